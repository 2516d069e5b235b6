"""A reader that meets a batch that it cannot read: it fails with the place, or goes on behind it, as it chose."""

import asyncio
import struct
import sys
from types import ModuleType
from typing import Any

import pytest

from antiphon import UnreadableBatch, dead_letters
from antiphon.client.aio import AsyncClient
from antiphon.client.log_backed_store_aio import AsyncLogBackedStore
from antiphon.client.topic import AsyncTopic
from antiphon.errors import (
    CorruptBatchError,
    DecompressedTooLargeError,
    InvalidRequestError,
    UnknownTopicError,
    WrongKindError,
)
from antiphon.model.requests import AppendBatch
from antiphon.records.builder import build_batch, recompress
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, FailingNodes
from tests.records.test_intake import INSIDE, field, with_records

GARBAGE = INSIDE[0][1]  # three records
PACKED = recompress(bytearray(GARBAGE), 1)


def good(*values: bytes) -> bytearray:
    return build_batch([(None, value, (), 1) for value in values])


def bomb(size_bytes: int) -> bytearray:
    """Compressed bytes that lie about their size."""
    packed = with_records(bytes(size_bytes), 3, 1)
    struct.pack_into("<I", packed, len(packed) - 4, 5)
    return field(packed, 8, ">i", len(packed) - 12)


MANY = field(field(good(b"many"), 57, ">i", 1_000_000), 23, ">i", 999_999)


async def topic_with(
    cluster: FailingNodes, db: AsyncClient, *batches: bytearray, **config: str
) -> AsyncTopic:
    """A topic with these batches, as a node of an earlier version took them."""
    topic = await db.create_topic("t", config=config)
    for batch in batches:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        cluster.host("t", 0).clients.append(batch, None, 5.0, done.set_result)
        await done
    return topic


async def values(topic: AsyncTopic, **how: Any) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) async for record in topic.read(**how)]


async def keep(topic: AsyncTopic, found: list[bytes | None]) -> None:
    async for record in topic.read():
        found.append(record.value)  # noqa: PERF401 - what came before an error


@pytest.mark.parametrize("bad", [GARBAGE, PACKED, bomb(90_000_000)], ids=["garbage", "packed", "bomb"])
@in_a_cluster
async def test_a_reader_goes_past_a_batch_that_it_cannot_read(
    cluster: FailingNodes, db: AsyncClient, bad: bytearray
) -> None:
    topic = await topic_with(cluster, db, good(b"a", b"b"), bad, good(b"c"))
    assert await values(topic, on_corrupt="skip") == [(0, b"a"), (1, b"b"), (5, b"c")]
    assert topic.unreadable_batches == 1
    seen: list[Any] = []
    assert await values(topic, on_corrupt=seen.append) == [(0, b"a"), (1, b"b"), (5, b"c")]
    [batch] = seen
    assert (batch.topic, batch.shard, batch.start, batch.end) == ("t", 0, 2, 5)
    assert batch.data[61:] == bytes(bad[61:])
    assert batch.reason
    assert dict(batch.headers)["antiphon.offset"] == b"2"


@in_a_cluster
async def test_a_batch_that_takes_a_million_offsets_is_passed_over(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await topic_with(cluster, db, good(b"a"), MANY, good(b"c"))
    assert await values(topic, on_corrupt="skip") == [(0, b"a"), (1_000_001, b"c")]


@in_a_cluster
async def test_a_reader_that_fails_says_where_and_gives_what_was_before(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    topic = await topic_with(cluster, db, good(b"a", b"b"), GARBAGE, good(b"c"))
    found: list[bytes | None] = []
    with pytest.raises(CorruptBatchError, match="t shard 0, the batch at offset 2") as caught:
        await keep(topic, found)
    assert found == [b"a", b"b"]
    assert (caught.value.details["topic"], caught.value.details["offset"]) == ("t", 2)
    with pytest.raises(InvalidRequestError, match="on_corrupt"):
        await values(topic, on_corrupt="ignore")


@in_a_cluster
async def test_dead_letters_are_in_the_order_of_the_log_and_each_is_sent_once(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    """The read waits until the function is done; what it raises ends the read before the batch."""
    topic = await topic_with(cluster, db, GARBAGE, good(b"a"), PACKED, good(b"b"))
    letters = await db.create_topic("letters")

    async def send(batch: UnreadableBatch) -> None:
        await letters.append(batch.data, headers=batch.headers)

    assert await values(topic, on_corrupt=send) == [(3, b"a"), (7, b"b")]
    sent = [record async for record in letters.read()]
    assert [dict(record.headers)["antiphon.offset"] for record in sent] == [b"0", b"4"]
    assert [(record.value or b"")[61:] for record in sent] == [bytes(GARBAGE[61:]), bytes(PACKED[61:])]

    def fail(_batch: UnreadableBatch) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await values(topic, on_corrupt=fail)


@in_a_cluster
async def test_a_topic_takes_the_dead_letters(cluster: FailingNodes, db: AsyncClient) -> None:
    """Each once, though the answer to one was lost, and in their order; the read that comes there again sends them again."""
    topic = await topic_with(cluster, db, GARBAGE, good(b"a"), PACKED, good(b"b"))
    with pytest.raises(UnknownTopicError, match="dead letters"):
        await values(topic, on_corrupt=dead_letters("letters"))
    letters = await db.create_topic("letters", shards=2)
    cluster.fail(AppendBatch, DROP_AFTER)
    assert await values(topic, on_corrupt=dead_letters("letters")) == [(3, b"a"), (7, b"b")]
    sent = [record async for record in letters.read(0)]
    assert [dict(record.headers)["antiphon.offset"] for record in sent] == [b"0", b"4"]
    assert [(record.value or b"")[61:] for record in sent] == [bytes(GARBAGE[61:]), bytes(PACKED[61:])]
    assert topic.unreadable_batches == 2
    assert (await topic.to_arrow(on_corrupt=dead_letters("letters"))).num_rows == 2
    assert (await letters.offsets(0))[1] == 4
    with pytest.raises(InvalidRequestError, match="dead letters of t cannot go to t itself"):
        await values(topic, on_corrupt=dead_letters("t"))
    await db.create_table("rows")
    with pytest.raises(WrongKindError, match="a table"):
        await values(topic, on_corrupt=dead_letters("rows"))


@in_a_cluster
async def test_arrow_reads_have_the_same_choice(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await topic_with(cluster, db, good(b"a", b"b"), GARBAGE, good(b"c"), PACKED)
    table = await topic.to_arrow(on_corrupt="skip")
    assert table.column("offset").to_pylist() == [0, 1, 5]
    assert topic.unreadable_batches == 2
    seen: list[UnreadableBatch] = []
    assert len(await topic.to_pandas(on_corrupt=seen.append)) == 3
    assert [(batch.start, batch.end) for batch in seen] == [(2, 5), (6, 9)]
    with pytest.MonkeyPatch.context() as patch:
        polars: Any = ModuleType("polars")
        polars.from_arrow = lambda table: table.num_rows
        patch.setitem(sys.modules, "polars", polars)
        assert await topic.to_polars(on_corrupt="skip") == 3
    batches = topic.to_arrow_batches()
    assert (await anext(batches)).column("value").to_pylist() == [b"a", b"b"]
    with pytest.raises(CorruptBatchError, match=r"t shard 0, the batch at offset 2.*dead_letters"):
        await anext(batches)
    with pytest.raises(InvalidRequestError, match="on_corrupt"):
        await topic.to_arrow(on_corrupt="ignore")


def appended(state: tuple[bytes, ...], operation: bytes) -> tuple[bytes, ...]:
    return (*state, operation)


@in_a_cluster
async def test_a_store_on_a_log_goes_past_what_it_cannot_read(cluster: FailingNodes, db: AsyncClient) -> None:
    await topic_with(cluster, db, good(b"a"), GARBAGE, good(b"b"))
    letters = await db.create_topic("letters")
    how: Any = {"initial": (), "apply": appended}
    with pytest.raises(CorruptBatchError, match="t shard 0, the batch at offset 1"):
        await AsyncLogBackedStore(db, "t", **how).start()
    async with AsyncLogBackedStore(db, "t", **how, on_corrupt=dead_letters("letters")) as store:
        assert (store.state, store.upcoming_offset) == ((b"a", b"b"), 5)
        assert await store.submit(b"c") == (5, (b"a", b"b", b"c"))
    assert (await letters.offsets())[1] == 1
    async with AsyncLogBackedStore(db, "t", **how, on_corrupt="skip") as store:
        assert store.state == (b"a", b"b", b"c")
    with pytest.raises(TypeError, match="on_corupt"):
        AsyncLogBackedStore(db, "t", **how, on_corupt="skip")  # type: ignore[call-arg]  # mypy knows it, too


@in_a_cluster
async def test_what_is_unpacked_is_bounded_by_the_topic(cluster: FailingNodes, db: AsyncClient) -> None:
    large = build_batch([(None, bytes(2_000_000), (), 1)], compression="gzip")
    topic = await topic_with(cluster, db, large, **{"max.decompressed.bytes": "1048576"})
    with pytest.raises(DecompressedTooLargeError, match=r"t shard 0, the batch at offset 0.*1048576"):
        await values(topic)
    await db.alter_topic("t", config={"max.decompressed.bytes": "4194304"})
    assert [len(value or b"") for _, value in await values(topic)] == [2_000_000]
