"""Tables as of offsets: against plain folds of what was written, over trims, splits and transactions."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from antiphon.client.aio import AsyncClient
from antiphon.errors import (
    InvalidRequestError,
    KeyNotFoundError,
    OffsetOutOfRangeError,
    UnknownTopicError,
    WrongKindError,
)
from antiphon.model.metadata import HASH_MAX, KeyRanges
from antiphon.model.past import check_whole
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import FailingNodes

T = "stock"


async def states(table: Any, writes: int) -> list[dict[bytes, bytes | None]]:
    """Write; the rows after each write, by the offset where the log ended then."""
    found: list[dict[bytes, bytes | None]] = [{}]
    rows: dict[bytes, bytes | None] = {}
    for number in range(writes):
        key = b"k%d" % (number * 7 % 5)
        if number % 4 == 3 and key in rows:
            await table.delete(key)
            del rows[key]
        else:
            rows[key] = b"%d" % number
            await table.put(key, b"%d" % number)
        found.append(dict(rows))
    return found


async def at(table: Any, as_of: Any, **bounds: Any) -> dict[bytes, bytes | None]:
    return {row.key: row.value async for row in table.scan(as_of=as_of, **bounds)}


async def trim(cluster: FailingNodes, table: Any, before: int) -> None:
    await table
    shard = (await table.core.described_by()).shards[0]
    host = await cluster.nodes.leader(shard.shard_id)
    await cluster.nodes.nodes[host.services.node_id].gateway.trim(shard.shard_id, before, 10.0)


@in_a_cluster
async def test_every_offset_has_its_rows_from_either_end(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table(T)
    base = (await table.offsets())[1]
    told = await states(table, 40)
    assert (await table.offsets())[1] == base + 40
    for number, rows in enumerate(told):
        assert await at(table, base + number) == rows, number
    offset = base + 12
    assert (await table.get("k1", as_of=offset)).value == told[12][b"k1"]
    assert await at(table, {0: offset}, start="k1", end="k3") == {
        key: value for key, value in told[12].items() if b"k1" <= key < b"k3"
    }
    assert [row.value async for row in table.scan(as_of=offset, include_value=False)] == [None] * len(
        told[12]
    )
    gone = next(number for number, rows in enumerate(told) if number and len(rows) < len(told[number - 1]))
    key = next(iter(told[gone - 1].keys() - told[gone].keys()))
    assert (await table.find(key, as_of=base + gone - 1)) is not None
    with pytest.raises(KeyNotFoundError, match=f"as of offset {base + gone}"):
        await table.get(key, as_of=base + gone)
    row = await table.find(key, as_of=base + gone - 1)
    assert row is not None
    assert row.version.modified_ms > 0


@in_a_cluster
async def test_what_a_trimmed_log_still_has_is_told_and_the_rest_says_from_where_on(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table(T)
    await table.put("still", b"as it was")
    for number in range(30):
        await table.put(f"n{number}", b"new")
    await table.put("busy", b"1")
    await table.put("busy", b"2")
    end = (await table.offsets())[1]
    await trim(cluster, table, end - 2)
    start = (await table.offsets())[0]
    assert start > 0
    assert (await table.get("still", as_of=start)).value == b"as it was", "it has not changed since"
    with pytest.raises(OffsetOutOfRangeError, match=f"as of {start} or a later offset") as caught:
        await table.get("still", as_of=start - 1)
    assert caught.value.details["start"] == start
    await table.put("still", b"changed")
    changed = (await table.offsets())[1] - 1
    with pytest.raises(OffsetOutOfRangeError, match="does not say what was there") as caught:
        await table.get("still", as_of=changed)
    assert caught.value.details["start"] == changed + 1
    assert (await table.get("still", as_of=changed + 1)).value == b"changed"
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await at(table, start)
    assert caught.value.details["start"] == changed + 1
    assert len(await at(table, changed + 1)) == 32
    assert (await table.get("busy", as_of=end - 1)).value == b"1"
    with pytest.raises(OffsetOutOfRangeError, match="is beyond"):
        await table.get("busy", as_of=changed + 500)


@in_a_cluster
async def test_offsets_of_a_table_that_was_split_are_one_moment_or_are_refused(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table(T)
    told = await states(table, 30)
    before = (await table.offsets())[1]
    await db.split_shard(T, 0)
    await db.metadata()
    ranges = KeyRanges((await table.core.described_by()).shards)
    assert len((await table.core.described_by()).shards) == 2
    split = {index: (await table.offsets(index))[1] for index in (0, 1)}
    for _ in range(20):
        for key in told[-1]:
            await table.put(key, b"after")
    assert await at(table, split) == told[-1], "read from the beginning, past the entry that hands keys over"
    ends = {index: (await table.offsets(index))[1] for index in (0, 1)}
    assert await at(table, ends) == dict.fromkeys(told[-1], b"after")
    assert await at(table, {0: before}) == told[-1], "the shard that was split off was not there yet"
    with pytest.raises(InvalidRequestError, match="are no moment of table"):
        await at(table, {0: before, 1: ends[1]})
    with pytest.raises(InvalidRequestError, match="are missing"):
        await at(table, {0: ends[0]})
    with pytest.raises(InvalidRequestError, match="give an offset for each"):
        await at(table, before)
    with pytest.raises(OffsetOutOfRangeError, match="split off another one"):
        await at(table, {0: ends[0], 1: 1})
    key = next(key for key in told[-1] if ranges.shard_of(key).index == 1)
    assert (await table.get(key, as_of=ends[1])).value == b"after"
    with pytest.raises(InvalidRequestError, match="no offset is given"):
        await table.get(key, as_of={0: 1})


@in_a_cluster
async def test_a_transaction_happens_where_its_marker_stands(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table(T)
    await table.put("a", b"old")
    async with db.producer("mover") as producer:
        async with producer.begin() as t:
            await t.put(T, "a", b"new")
            await t.put(T, "b", b"made")
        transaction = producer.begin()
        await transaction.put(T, "c", b"never")
        await transaction.abort()
    assert (await table.get("a")).value == b"new", "a read of a key that is locked waits for the marker"
    await table.put("d", b"later")
    end = (await table.offsets())[1]
    seen = [await at(table, offset) for offset in range(end + 1)]
    kinds = [found for number, found in enumerate(seen) if not number or found != seen[number - 1]]
    await trim(cluster, table, end)
    await table.put("a", b"again")
    async with db.producer("mover") as producer, producer.begin() as t:
        await t.put(T, "a", b"final")
    assert (await table.get("a")).value == b"final"
    start, last = (await table.offsets())[0], (await table.offsets())[1]
    after = [(await at(table, offset, start="a", end="b")).get(b"a") for offset in range(start + 1, last + 1)]
    changed = [one for number, one in enumerate(after) if not number or one != after[number - 1]]
    assert changed == [b"again", b"final"]
    marker = after.index(b"final")
    assert marker >= 2, "what is prepared and not committed is no row yet, though its offset is below"
    assert kinds == [
        {},
        {b"a": b"old"},
        {b"a": b"new", b"b": b"made"},
        {b"a": b"new", b"b": b"made", b"d": b"later"},
    ]


class Order(msgspec.Struct):
    item: str
    count: int = 1


@in_a_cluster
async def test_typed_rows_and_what_is_refused(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table(T)
    orders = db.table(T, type=Order)
    await orders.put("o", Order("tea"))
    end = (await orders.offsets())[1]
    await orders.put("o", Order("milk", 2))
    assert (await orders.get("o", as_of=end)).value == Order("tea")
    assert [row.value async for row in orders.scan(as_of=end)] == [Order("tea")]
    for wrong, text in ((-1, "from 0 on"), ({3: 0}, "shards 0 to 0")):
        with pytest.raises(InvalidRequestError, match=text):
            await at(orders, wrong)
    with pytest.raises(UnknownTopicError):
        await db.table("nowhere").get("o", as_of=0)
    await db.create_topic("plain")
    with pytest.raises(WrongKindError):
        await db.table("plain").get("o", as_of=0)
    await db.create_table("both", replicas=1, config={"writers": "multi"})
    with pytest.raises(InvalidRequestError, match="no one order"):
        await db.table("both").get("o", as_of=0)


def test_pieces_of_a_table_are_each_key_once() -> None:
    half = HASH_MAX // 2
    check_whole({0: (0, half), 1: (half + 1, HASH_MAX)}, "t")
    for wrong in ({}, {0: (0, half)}, {0: (0, HASH_MAX), 1: (half, HASH_MAX)}, {1: (half, HASH_MAX)}):
        with pytest.raises(InvalidRequestError):
            check_whole(wrong, "t")


@in_a_cluster
async def test_a_time_is_as_the_offsets_of_then(cluster: FailingNodes, db: AsyncClient) -> None:
    """Over a split: a shard that was not there yet is left out."""
    table = await db.create_table(T)
    told: list[tuple[datetime, dict[bytes, bytes | None]]] = []
    rows: dict[bytes, bytes | None] = {}
    for number in range(20):
        if number == 8:
            await db.split_shard(T, 0)
            await asyncio.sleep(1)
        rows[b"k%d" % (number % 6)] = b"%d" % number
        version = await table.put(b"k%d" % (number % 6), b"%d" % number)
        told.append((datetime.fromtimestamp(version.modified_ms / 1000, UTC), dict(rows)))
        await asyncio.sleep(0.05)
    for time, then in told:
        assert await at(table, time) == then
        for key, value in then.items():
            assert (await table.get(key, as_of=time)).value == value
    assert await at(table, told[0][0] - timedelta(milliseconds=1)) == {}
    assert await at(table, told[-1][0] + timedelta(days=1), start="k2", end="k4") == {
        key: rows[key] for key in (b"k2", b"k3")
    }
    assert await table.find("k5", as_of=told[0][0]) is None
    with pytest.raises(KeyNotFoundError, match=r"is not in table 'stock' as of 2"):
        await table.get("k5", as_of=told[0][0])
    with pytest.raises(InvalidRequestError, match="as_of is a time with a time zone"):
        await at(table, told[0][0].replace(tzinfo=None))
    with pytest.raises(
        InvalidRequestError, match="as_of is an offset, offsets by shard or a datetime, not 'now'"
    ):
        await at(table, "now")
