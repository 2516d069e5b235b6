"""Topics and tables as Arrow and as DataFrames, through both clients; what is asked for in other ways is the same."""

import sys
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from antiphon.client.aio import AsyncClient
from antiphon.client.arrow_pieces import RECORDS, ROWS, SLICE_ROWS, ArrowPieces, batches_of
from antiphon.client.on_unreadable import PassOver
from antiphon.errors import CorruptBatchError, InvalidRequestError, UnknownShardError, WrongKindError
from antiphon.model.requests import AppendBatch
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, FailingNodes


def of_records(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("shard", "offset", "key", "value")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


@in_a_cluster
async def test_a_topic_as_arrow_is_what_reads_give(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=3)
    messages = [(f"k{n}", f"v{n}" if n % 7 else None, [("h", b"x")] * (n % 2)) for n in range(200)]
    for at in range(0, 200, 50):
        await topic.append_batch(messages[at : at + 50])
    records = [(shard, r) for shard in range(3) for r in [r async for r in topic.read(shard)]]
    table = await topic.to_arrow()
    assert table.schema == RECORDS
    assert of_records(table) == [(shard, r.offset, r.key, r.value) for shard, r in records]
    times = [int(time.timestamp() * 1000 + 0.5) for time in table.column("timestamp").to_pylist()]
    assert times == [r.timestamp_ms for _, r in records]
    pairs = (await topic.to_arrow(headers=True)).column("headers").to_pylist()
    assert [[(one["key"], one["value"]) for one in each] for each in pairs] == [
        list(r.headers) for _, r in records
    ]

    own = [r for shard, r in records if shard == 1]
    first, last = own[3].offset, own[-3].offset
    part = await topic.to_arrow(1, first, last)
    assert part.column("offset").to_pylist() == [r.offset for r in own if first <= r.offset < last]
    batches = [batch async for batch in topic.to_arrow_batches(1, first)]
    assert sum(batch.num_rows for batch in batches) == len([r for r in own if r.offset >= first])
    assert (await topic.to_arrow(1, last, last)).num_rows == 0
    assert list((await topic.to_pandas(1))["value"]) == [r.value for r in own]
    with pytest.raises(InvalidRequestError, match="offsets belong to a shard"):
        await topic.to_arrow(start=5)
    with pytest.raises(UnknownShardError):
        await topic.to_arrow(3)


@in_a_cluster
async def test_an_empty_topic_has_columns(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=2)
    assert (await topic.to_arrow()).schema == RECORDS
    assert (await topic.to_arrow()).num_rows == 0
    table = await db.create_table("rows")
    assert (await table.to_arrow()).schema == ROWS


@in_a_cluster
async def test_what_is_appended_as_arrow_is_read(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t", shards=3)
    keys = [None if n % 10 == 0 else f"k{n}" for n in range(500)]
    data = pa.table({"key": keys, "value": [f"v{n}" for n in range(500)], "more": list(range(500))})
    assert await topic.append_arrow(data) == 500
    for shard in range(3):
        found = [r async for r in topic.read(shard)]
        assert found, "rows without a key are spread"
        assert [r.value for r in found] == sorted((r.value or b"" for r in found), key=lambda v: int(v[1:]))
    by_key = {r.key: shard for shard in range(3) for r in [r async for r in topic.read(shard)] if r.key}
    assert by_key[b"k7"] == (await topic.append(b"", key="k7")).shard
    again = await topic.to_arrow(headers=True)
    assert await topic.append_arrow(again.to_batches(), shard=2) == 501
    assert (await topic.to_arrow(2)).column("value").to_pylist()[-501:] == again.column("value").to_pylist()


@pytest.mark.parametrize("fault", [DROP_AFTER, DROP_BEFORE])
@in_a_cluster
async def test_no_batch_of_arrow_is_appended_twice(
    cluster: FailingNodes, db: AsyncClient, fault: Any
) -> None:
    topic = await db.create_topic("t")
    cluster.fail(AppendBatch, fault)
    assert await topic.append_arrow(pa.table({"value": [b"a", b"b"]})) == 2
    assert await topic.append_arrow(pa.table({"value": [b"c"]})) == 1
    assert [r.value async for r in topic.read()] == [b"a", b"b", b"c"]


@in_a_cluster
async def test_large_rows_are_several_batches(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.topic((await db.create_topic("t")).name, compression="zstd")
    values = [b"%d" % n * 1000 for n in range(1000)]
    assert await topic.append_arrow(pa.table({"value": values})) == 1000
    assert len(cluster.batches("t")) > 5
    assert (await topic.to_arrow()).column("value").to_pylist() == values


@in_a_cluster
async def test_a_table_as_arrow_is_what_scans_give(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=2)
    data = pa.table({"key": [f"k{n:04}" for n in range(2500)], "value": [b"%d" % n for n in range(2500)]})
    assert await table.put_arrow(data) == 2500
    async with db.session() as session:
        await table.put("k0001", b"mine", session=session)
        found = await table.to_arrow()
        assert found.schema == ROWS
        rows = {row.key: row async for row in table.scan()}
        assert len(found) == len(rows) == 2500
        for at in found.to_pylist():
            row = rows[at["key"]]
            assert (at["value"], at["version"], at["session_id"]) == (
                row.value,
                row.version.id,
                row.session_id,
            )
            assert int(at["modified"].timestamp() * 1000 + 0.5) == row.version.modified_ms
        frame = (await table.to_pandas("k0000", "k0002")).sort_values("key")
        assert list(frame["session_id"]) == [None, session.id]
    part = await table.to_arrow("k0100", "k0200")
    assert sorted(part.column("key").to_pylist()) == [b"k%04d" % n for n in range(100, 200)]
    assert max([batch.num_rows async for batch in table.to_arrow_batches()]) <= 1000
    assert len(await table.to_pandas()) == 2499, "the session's row went with it"


@in_a_cluster
async def test_a_table_as_arrow_as_of_a_place_or_a_time(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t")
    versions = [await table.put(f"k{number % 3}", f"v{number}") for number in range(6)]
    before, time = versions[3].id, datetime.fromtimestamp(versions[2].modified_ms / 1000, UTC)
    place = (await table.offsets())[1] - 3
    for as_of in (place, {0: place}, time):
        if as_of == time and versions[3].modified_ms == versions[2].modified_ms:
            continue
        found = await table.to_arrow(as_of=as_of)
        assert found.schema == ROWS
        assert found.column("value").to_pylist() == [b"v0", b"v1", b"v2"]
        assert max(found.column("version").to_pylist()) < before
        assert list((await table.to_pandas("k1", as_of=as_of))["key"]) == [b"k1", b"k2"]
    assert (await table.to_arrow(as_of=0)).num_rows == 0
    assert (await table.to_arrow()).column("value").to_pylist() == [b"v3", b"v4", b"v5"]


@in_a_cluster
async def test_columns_that_do_not_fit_are_named(cluster: FailingNodes, db: AsyncClient) -> None:
    topic, table = await db.create_topic("topic"), await db.create_table("table")
    for data, said in (
        (pa.table({"key": ["a"]}), "no column 'value'; the columns are key"),
        (pa.table({"value": [{"a": 1}]}), "a value is binary or string"),
        ([pa.table({"value": ["x"]}), 7], "not int"),
        ("text", "not str"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await topic.append_arrow(data)
    for data, said in (
        (pa.table({"value": ["a"]}), "no column 'key'"),
        (pa.table({"key": ["a", None], "value": ["x", "y"]}), "column 'key' has nulls"),
        (pa.table({"key": ["a"], "value": [[1]]}), "a value is binary or string, not list"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            await table.put_arrow(data)
    with pytest.raises(UnknownShardError):
        await topic.append_arrow(pa.table({"value": ["x"]}), shard=1)
    with pytest.raises(WrongKindError):
        await db.topic("table", any_kind=True).append_arrow(pa.table({"value": ["x"]}))


@in_a_cluster
async def test_a_batch_that_cannot_be_read_is_named(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"x" * 100)
    bad = bytearray(cluster.batches("t")[0])
    bad[-50] ^= 1
    passing = PassOver(topic._cluster, cluster.topic("t"), 0, "fail", lambda: None, 5.0)
    pieces = ArrowPieces(passing, headers=False)
    for data, said in ((bad, "t shard 0, the batch at offset 0: "), (bad[:-50], "t shard 0: ")):
        with pytest.raises(CorruptBatchError, match=said) as caught:
            await anext(pieces.decode(memoryview(data)))
        assert (caught.value.details["topic"], caught.value.details["shard"]) == ("t", 0)


def test_what_is_taken_for_arrow() -> None:
    import pandas as pd

    table = pa.table({"value": [b"x"] * (SLICE_ROWS + 1)})
    for data in (
        table,
        table.to_batches(),
        iter([table]),
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches()),
    ):
        found = list(batches_of(data))
        assert [batch.num_rows for batch in found] == [SLICE_ROWS, 1]
    (one,) = batches_of(pd.DataFrame({"key": ["a"], "value": ["b"]}))
    assert one.schema.names == ["key", "value"]


@in_a_cluster
async def test_libraries_that_are_missing_are_named(cluster: FailingNodes, db: AsyncClient) -> None:
    topic = await db.create_topic("t")
    await topic.append(b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "antiphon.client.arrow_pieces", None)
        patch.setitem(sys.modules, "polars", None)
        with pytest.raises(InvalidRequestError, match=r"pip install 'antiphon\[arrow\]'"):
            await topic.to_arrow()
        with pytest.raises(InvalidRequestError, match="polars is not installed: pip install polars"):
            await topic.to_polars()
        polars: Any = ModuleType("polars")
        polars.from_arrow = lambda table: ("frame", table.num_rows)
        patch.undo()
        patch.setitem(sys.modules, "polars", polars)
        assert await topic.to_polars() == ("frame", 1)
        table = await db.create_table("rows")
        assert await table.to_polars() == ("frame", 0)
