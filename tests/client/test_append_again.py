"""Appends whose outcome is not known, tried again by hand: each is in the log once."""

import asyncio
import gc
from typing import Any

import pytest

from antiphon.client.aio import AsyncClient
from antiphon.client.pipeline import Item, Request
from antiphon.errors import BatchTooLargeError, InvalidRequestError, TimedOutError
from antiphon.model.requests import AppendBatch
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, SILENT, FailingNodes
from tests.client.test_topic import values


async def lost(append: Any) -> TimedOutError:
    """What an append ends with."""
    with pytest.raises(TimedOutError) as caught:
        await append
    assert caught.value.outcome_unknown
    return caught.value


def late(_send: Any) -> None:
    """It is carried out, and no answer comes."""


FAULTS = {
    "no answer, not carried out": [SILENT],
    "no answer, carried out": [late],
    "connections break, not carried out": [DROP_BEFORE] * 50,
    "connections break, carried out": [DROP_AFTER, *[DROP_BEFORE] * 50],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
@in_a_cluster
async def test_an_append_is_in_the_log_once(
    cluster: FailingNodes, db: AsyncClient, faults: list[Any]
) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"before")
    cluster.fail(AppendBatch, *faults)
    error = await lost(topic.append(b"once", timeout_s=0.3))
    cluster.faults.clear()
    at = await topic.retry(error)
    assert [(one.shard, one.offset) for one in at] == [(0, 1)]
    assert await topic.retry(error) == at, "also more often"
    assert (await topic.append(b"after")).offset == 2
    assert values(cluster, "t") == [b"before", b"once", b"after"]


@in_a_cluster
async def test_later_appends_do_not_wait_for_it(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"before")
    cluster.fail(AppendBatch, *[DROP_BEFORE] * 50)
    error = await lost(topic.append(b"once", timeout_s=0.3))
    cluster.faults.clear()
    for number in range(20):
        await topic.append(b"%d" % number)
    (at,) = await topic.retry(error)
    assert (at.offset, values(cluster, "t").count(b"once")) == (21, 1)


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
@in_a_cluster
async def test_a_retry_may_be_lost_too(cluster: FailingNodes, db: AsyncClient, faults: list[Any]) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"before")
    cluster.fail(AppendBatch, *faults, SILENT, late, SILENT)
    error = await lost(topic.append(b"once", timeout_s=0.3))
    for _ in range(2):
        error = await lost(topic.retry(error, timeout_s=0.3))
    cluster.faults.clear()
    (at,) = await topic.retry(error)
    assert at.offset == 1
    assert (await topic.append(b"after")).offset == 2
    assert values(cluster, "t") == [b"before", b"once", b"after"]


@in_a_cluster
async def test_callers_of_one_batch_may_all_try_again(cluster: FailingNodes, db: AsyncClient) -> None:
    """Also the one whose time is over while others of its batch wait still."""
    topic = await db.create_topic("t")
    await topic.append(b"before")
    cluster.fail(AppendBatch, SILENT)
    appends = [asyncio.ensure_future(topic.append(b"%d" % n, timeout_s=0.3)) for n in range(3)]
    patient = asyncio.ensure_future(topic.append(b"patient", timeout_s=60))
    errors = [await lost(append) for append in appends]
    found = await asyncio.gather(*(topic.retry(error) for error in reversed(errors)))
    assert [one[0].offset for one in found] == [3, 2, 1]
    assert (await patient).offset == 4
    again = await asyncio.gather(*(topic.retry(error) for error in errors))
    assert [one[0].offset for one in again] == [1, 2, 3]
    assert values(cluster, "t") == [b"before", b"0", b"1", b"2", b"patient"]


@in_a_cluster
async def test_one_behind_another_waits_for_that_to_be_tried_again(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"before")
    cluster.fail(AppendBatch, *[DROP_BEFORE] * 50)
    first = asyncio.ensure_future(topic.append_batch([b"1"], timeout_s=0.3))
    second = asyncio.ensure_future(topic.append_batch([b"2"], timeout_s=0.3))
    errors = [await lost(first), await lost(second)]
    cluster.faults.clear()
    last = errors[1]
    for _ in range(2):
        last = await lost(topic.retry(last))
    assert "before this one" in last.message
    assert "try that one again first" in last.message
    assert [at.offset for at in await topic.retry(errors[0])] == [1]
    assert [at.offset for at in await topic.retry(last)] == [2]
    assert values(cluster, "t") == [b"before", b"1", b"2"]


@in_a_cluster
async def test_a_batch_for_several_shards(cluster: FailingNodes, db: AsyncClient) -> None:
    """What is in the log stays, the rest is tried again."""
    topic = await db.create_topic("t", shards=2)
    for shard in range(2):
        await topic.append(b"before", shard=shard)
    keys = ["a", "b", "c", "d", "e", "f"]
    cluster.fail(AppendBatch, SILENT)
    error = await lost(topic.append_batch([(key, key) for key in keys], timeout_s=0.3))
    found = await topic.retry(error)
    assert len({(at.shard, at.offset) for at in found}) == len(keys)
    stored = {shard: values(cluster, "t", shard) for shard in range(2)}
    assert sorted(bytes(key or b"") for shard in stored.values() for key in shard if key != b"before") == [
        k.encode() for k in keys
    ]
    for key, at in zip(keys, found, strict=True):
        assert stored[at.shard][at.offset] == key.encode()


@in_a_cluster
async def test_a_conditional_append(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"before")
    cluster.fail(AppendBatch, late)
    error = await lost(topic.append(b"once", shard=0, expected_offset=1, timeout_s=0.3))
    assert [at.offset for at in await topic.retry(error)] == [1]


@in_a_cluster
async def test_other_errors_are_not_taken(cluster: FailingNodes, db: AsyncClient) -> None:
    topic, other = await db.create_topic("t"), await db.create_topic("other")
    await topic.append(b"before")
    with pytest.raises(BatchTooLargeError) as refused:
        await topic.append(b"x" * 2_000_000)
    cluster.fail(AppendBatch, SILENT)
    error = await lost(topic.append(b"once", timeout_s=0.3))
    for of, wrong in ((topic, refused.value), (topic, TimedOutError("a read's")), (other, error)):
        with pytest.raises(InvalidRequestError, match="retry takes the TimedOutError of an append to"):
            await of.retry(wrong)


def test_a_write_that_is_answered_leaves_nothing_for_the_garbage_collector() -> None:
    """A circle for each write would have the collector stop the client now and then, for all writes that wait."""

    @in_a_cluster
    async def scenario(_cluster: FailingNodes, db: AsyncClient) -> None:
        topic, table = await db.create_topic("t"), await db.create_table("rows")
        await topic.append(b"warm")
        gc.collect()
        gc.disable()
        try:
            for number in range(5):
                await topic.append(b"value")
                await topic.append_batch([b"a", b"b"])
                await table.put(b"k", str(number).encode())
            left = [one for one in gc.get_objects() if isinstance(one, Item | Request)]
        finally:
            gc.enable()
        assert len(left) < 5, "those of the last writes at most"

    scenario()
