"""Reads of a topic as a whole, their first records, and their ends."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.client import topic_reads
from antiphon.client.aio import AsyncClient
from antiphon.client.merging import Merged
from antiphon.client.topic import AsyncTopic
from antiphon.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    TimedOutError,
    UnknownShardError,
)
from antiphon.model.requests import Fetch
from antiphon.records.decode import Record
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import FailingNodes


async def filled(db: AsyncClient, shards: int = 3, records: int = 30) -> AsyncTopic:
    """A topic whose shards have as many records each, with their shards and numbers as values."""
    topic = await db.create_topic("t", shards=shards)
    for shard in range(shards):
        await topic.append_batch([b"%d-%d" % (shard, n) for n in range(records)], shard=shard)
    return topic


def by_shard(records: list[Record]) -> dict[int, list[int]]:
    """Offsets in the order in which they came."""
    found: dict[int, list[int]] = {}
    for record in records:
        assert bytes(record.value or b"").startswith(b"%d-" % record.shard)
        found.setdefault(record.shard, []).append(record.offset)
    return found


@in_a_cluster
async def test_a_read_without_a_shard_is_of_all(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await filled(db)
    whole = {shard: list(range(30)) for shard in range(3)}
    assert by_shard([r async for r in topic.read()]) == whole
    assert by_shard([r async for r in topic.read(start=-2)]) == whole
    assert by_shard([r async for r in topic.read(isolation="uncommitted")]) == whole
    assert [r async for r in topic.read(start=-1)] == []
    assert by_shard([r async for r in topic.read(shard=1)]) == {1: whole[1]}
    found = by_shard([r async for r in topic.read(start={0: 28, 2: -1}, end={1: 2})])
    assert found == {0: [28, 29], 1: [0, 1]}, "shards that are left out are read whole"
    assert by_shard([r async for r in topic.read(shard=2, start={2: 29})]) == {2: [29]}


@in_a_cluster
async def test_offsets_of_a_whole_topic_are_said_by_shard(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await filled(db)
    for wrong in (topic.read(start=0), topic.read(end=5)):
        with pytest.raises(InvalidRequestError, match=r"3 shards, each with offsets of its own: give shard="):
            await anext(wrong)
    with pytest.raises(UnknownShardError, match=r"start: 't' has shards 0\.\.2, not 3"):
        await anext(topic.read(start={3: 0}))
    wrong_type: Any = "0"
    with pytest.raises(
        InvalidRequestError, match="start is an offset, or a mapping from shard to offset, not '0'"
    ):
        await anext(topic.read(shard=0, start=wrong_type))
    one = await db.create_topic("one")
    await one.append_batch([b"a", b"b"])
    assert [r.value async for r in one.read(start=1)] == [b"b"]


@in_a_cluster
async def test_shards_take_turns(cluster: FailingNodes, db: AsyncClient) -> None:
    """A shard with much does not keep those with little waiting until it is at its end."""
    topic = await db.create_topic("t", shards=3)
    for _ in range(20):
        await topic.append_batch([b"0-" + b"x" * 100_000] * 4, shard=0)
    for shard in (1, 2):
        await topic.append(b"%d-" % shard, shard=shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_reads, "BYTES_AT_ONCE", 900_000)
        order = [r.shard async for r in topic.read()]
    assert Counter(order) == {0: 80, 1: 1, 2: 1}
    assert max(order.index(1), order.index(2)) < 80, "they came before the end of the large one"
    assert {body.max_bytes for body in cluster.seen if isinstance(body, Fetch)} == {300_000}


@in_a_cluster
async def test_no_more_than_so_many_shards_are_read_at_once(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await filled(db, shards=5, records=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_reads, "SHARDS_AT_ONCE", 2)
        reading = topic.read()
        await anext(reading)
        assert len({body.shard_id for body in cluster.seen if isinstance(body, Fetch)}) <= 2
        assert by_shard([r async for r in reading]).keys() == {0, 1, 2, 3, 4}


@in_a_cluster
async def test_a_follow_without_a_shard_is_of_all_also_of_new_ones(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await filled(db, shards=2, records=1)
    async with aclosing(topic.read(follow=True)) as following:
        assert {(await anext(following)).shard for _ in range(2)} == {0, 1}
        await topic.append(b"1-again", shard=1)
        assert (await anext(following)).value == b"1-again"
        await db.alter_topic("t", shards=3)
        await db.metadata()
        await topic.append(b"2-new", shard=2)
        record = await asyncio.wait_for(anext(following), 20)
        assert (record.shard, record.value) == (2, b"2-new")
    await asyncio.sleep(0.1)  # what was on its way
    before = cluster.count(Fetch)
    await asyncio.sleep(2)
    assert cluster.count(Fetch) == before, "who leaves a follow asks for nothing more"


@in_a_cluster
async def test_a_follow_from_now_on_has_what_comes_to_any_shard(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await filled(db)
    async with aclosing(topic.read(start=-1, follow=True)) as following:
        first = asyncio.ensure_future(anext(following))
        await asyncio.sleep(0.1)
        await topic.append(b"2-more", shard=2)
        assert (await first).value == b"2-more"


@in_a_cluster
async def test_a_read_begins_with_what_is_still_there(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=2)
    for shard in range(2):
        for number in range(30):
            await topic.append(b"%d-%d" % (shard, number), shard=shard)
        host = await cluster.nodes.leader(cluster.topic("t").shards[shard].shard_id)
        await cluster.nodes.nodes[host.services.node_id].gateway.trim(host.shard_id, 10 + shard, 10.0)
    there = {0: list(range(10, 30)), 1: list(range(11, 30))}
    assert by_shard([r async for r in topic.read()]) == there
    assert by_shard([r async for r in topic.read(shard=1)]) == {1: there[1]}
    async with aclosing(topic.read(follow=True)) as following:
        assert by_shard([await anext(following) for _ in range(39)]) == there
    with pytest.raises(OffsetOutOfRangeError, match="outside the shard's log, 10 to 30"):
        await anext(topic.read(shard=0, start=0))


@in_a_cluster
async def test_a_log_that_is_trimmed_before_the_first_record(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await filled(db, shards=1)
    gone = OffsetOutOfRangeError("offset 0 is outside the shard's log, 5 to 30", asked=0, start=5, end=30)
    cluster.fail(Fetch, gone)
    assert by_shard([r async for r in topic.read()]) == {0: list(range(30))}
    cluster.fail(Fetch, gone)
    with pytest.raises(OffsetOutOfRangeError, match="outside the shard's log"):
        await anext(topic.read(start=0))


@in_a_cluster
async def test_an_end_that_does_not_come(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await filled(db, shards=1, records=3)
    began, found = asyncio.get_running_loop().time(), list[int]()
    said = r"shard 0 of 't' ends at offset 3, the read is to end before 10, and nothing"
    with pytest.raises(TimedOutError, match=said):
        await _into(found, topic.read(end=10, timeout_s=2))
    assert found == [0, 1, 2]
    assert 2 <= asyncio.get_running_loop().time() - began < 3


@in_a_cluster
async def test_an_end_that_comes_late(cluster: FailingNodes, db: AsyncClient) -> None:
    """The time begins anew with each record."""
    topic = await filled(db, shards=1, records=3)

    async def read(**how: Any) -> list[int]:
        return [record.offset async for record in topic.read(end=6, timeout_s=2, **how)]

    reading = asyncio.create_task(read())
    for _ in range(3):
        await asyncio.sleep(1.5)
        await topic.append(b"0-late")
    assert await reading == [0, 1, 2, 3, 4, 5]
    following = asyncio.create_task(read(start=4, follow=True))
    assert await following == [4, 5]
    found = list[int]()
    patient = asyncio.create_task(_into(found, topic.read(start=5, end=7, timeout_s=1, follow=True)))
    await asyncio.sleep(5)
    await topic.append(b"0-last")
    await patient
    assert found == [5, 6], "with `follow` there is no limit"


async def _into(found: list[int], records: AsyncIterator[Record]) -> None:
    async for record in records:
        found.append(record.offset)  # noqa: PERF401 - what came before an error is to be there


def test_sources_that_fail_and_those_that_are_left() -> None:
    """What came before an error is given first, and nothing is left open."""
    closed: list[str] = []

    async def source(name: str, *, fails: bool) -> Any:
        try:
            yield f"{name}-1"
            if fails:
                raise ValueError(name)
            yield f"{name}-2"
            await asyncio.Event().wait()
        finally:
            closed.append(name)

    found: list[str] = []

    async def scenario() -> None:
        async for piece in Merged([source("good", fails=False), source("bad", fails=True)], 2).pieces():
            found.append(piece)  # noqa: PERF401 - as above

    with pytest.raises(ValueError, match="bad"):
        asyncio.run(scenario())
    assert found == ["good-1", "bad-1", "good-2"]

    async def left() -> None:
        closed.clear()
        async with aclosing(Merged([source("good", fails=False)], 1).pieces()) as pieces:
            assert await anext(pieces) == "good-1"
        assert closed == ["good"], "also while nobody asks it"
        closed.append("bad")

    asyncio.run(left())
    assert sorted(closed) == ["bad", "good"]
