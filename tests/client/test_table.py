"""The asynchronous table client, against whole nodes whose listeners fail on request."""

import asyncio

import pytest

from antiphon.client import table_core as table_client
from antiphon.client import table_scan, table_writer
from antiphon.client.aio import AsyncClient
from antiphon.client.hashing import shard_of_table_key
from antiphon.client.table import ABSENT
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    KeyNotFoundError,
    NotLeaderError,
    NotReadyError,
    OffsetOutOfRangeError,
    OverloadedError,
    StorageFailedError,
    TimedOutError,
    UnavailableError,
    UnknownTopicError,
    VersionMismatchError,
    WrongKindError,
)
from antiphon.model.requests import TableGet, TableWrite
from antiphon.records.changes import decode_changes
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, SILENT, FailingNodes, Fault


def effects(cluster: FailingNodes, name: str) -> list[tuple[bytes, bytes | None]]:
    """All changes of a table, shard by shard, in the order of the logs."""
    logs = [cluster.batches(name, shard.index) for shard in cluster.topic(name).shards]
    return [(change.key, change.value) for log in logs for change in decode_changes(log)]


@in_a_cluster
async def test_put_get_delete(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=4)
    assert table.shards == 4
    version = await table.put("k", b"1", expected_version=ABSENT)
    assert (version.id, version.modifications) == (0, 0)
    row = await table.get("k")
    assert (row.key, row.value, row.version) == (b"k", b"1", version)
    with pytest.raises(VersionMismatchError, match="has version 0") as caught:
        await table.put("k", "2", expected_version=ABSENT)
    assert caught.value.details == {"expected": -1, "actual": 0}
    assert (await table.put("k", "2", expected_version=0)).modifications == 1
    with pytest.raises(VersionMismatchError, match="it is not there"):
        await table.delete("none", expected_version=5)
    with pytest.raises(KeyNotFoundError):
        await table.delete("none")
    await table.delete(b"k", expected_version=1)
    with pytest.raises(KeyNotFoundError, match="'k' is not in table 't'"):
        await table.get("k")
    assert await table.find("k") is None


@in_a_cluster
async def test_keys_are_spread_and_merged_in_order(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=4)
    keys = [b"%04d" % i for i in range(2500)]
    await asyncio.gather(*(table.put(key, b"v" + key) for key in keys))
    assert min(cluster.end("t", i) for i in range(4)) > 400
    assert await table.list() == keys
    rows = [row async for row in table.scan("0100", b"2200")]
    assert [row.key for row in rows] == keys[100:2200]
    assert rows[0].value == b"v0100"
    assert await table.list("9", "") == []
    found = await table.get_many(["0001", "no", "0002"])
    assert [row and row.value for row in found] == [b"v0001", None, b"v0002"]
    await table.delete_range("0001", "2499")
    assert await table.list() == [b"0000", b"2499"]
    assert cluster.count(TableWrite) < 60  # gathered


@pytest.mark.parametrize(
    "faults",
    [
        [DROP_BEFORE],
        [DROP_AFTER],
        [DROP_AFTER, DROP_AFTER, DROP_BEFORE],
        [NotLeaderError("moved", leader=None), DROP_AFTER],
        [NotReadyError("soon"), None, None, DROP_AFTER],
        [OverloadedError("slow down"), None, DROP_AFTER, None, DROP_AFTER],
        [None, NotReadyError("soon"), None, None, DROP_AFTER],
    ],
)
@in_a_cluster
async def test_a_retried_put_is_never_applied_twice(
    cluster: FailingNodes, db: AsyncClient, faults: list[Fault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "OPS_PER_REQUEST", 3)
    table = await db.create_table("t", shards=1)
    await table.put("first", b"")
    cluster.fail(TableWrite, *faults)
    versions = await asyncio.gather(*(table.put(f"k{i}", b"%d" % i) for i in range(40)))
    assert not cluster.faults[TableWrite]
    assert sorted(version.id for version in versions) == list(range(1, 41))
    assert all(version.modifications == 0 for version in versions)
    found = effects(cluster, "t")
    assert sorted(found) == sorted([(b"first", b"")] + [(b"k%d" % i, b"%d" % i) for i in range(40)])


@in_a_cluster
async def test_refusals_that_leave_no_trace_are_judged_again(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose operations were all refused is not in the log; its repeat comes after a later one that is."""
    monkeypatch.setattr(table_writer, "OPS_PER_REQUEST", 1)
    table = await db.create_table("t", shards=1)
    await table.put("k", b"")
    cluster.fail(TableWrite, NotReadyError("soon"), None, DROP_AFTER)
    outcomes = await asyncio.gather(
        table.put("k", b"x", expected_version=ABSENT),
        table.put("k", b"2"),
        table.put("k", b"x", expected_version=ABSENT),
        table.put("k", b"3"),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "VersionMismatchError", "Version", "VersionMismatchError", "Version",
    ]  # fmt: skip
    assert [value for _, value in effects(cluster, "t")] == [b"", b"2", b"3"]


@in_a_cluster
async def test_leader_moves_with_and_without_a_hint(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    await table.put("k", b"0")
    for number, announce in enumerate([True, False, True, False]):
        await cluster.move_leader("t", 0, (cluster.leader("t") + 1) % 3, announce=announce)
        await table.put("k", b"%d" % number)
        assert (await table.get("k")).value == b"%d" % number
    assert (await table.get("k")).version.modifications == 4


@in_a_cluster
async def test_node_is_killed_and_another_leads(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    await table.put("k", b"0")
    leader = cluster.leader("t")
    other = (leader + 1) % 3
    await cluster.nodes.stop(other)
    cluster.nodes.kill(leader)
    put = table.put("k", b"1")
    get = asyncio.ensure_future(table.get("k"))
    await asyncio.sleep(2)
    assert not put.done()
    assert not get.done()
    await cluster.nodes.start(other)
    assert (await put).modifications == 1
    assert (await get).value in {b"0", b"1"}
    assert effects(cluster, "t") == [(b"k", b"0"), (b"k", b"1")]
    assert cluster.leader("t") != leader


@in_a_cluster
async def test_silent_node_is_given_up(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from antiphon.client import connection

    monkeypatch.setattr(connection, "LIFE_CHECK_S", 0.02)
    monkeypatch.setattr(connection, "SILENCE_S_MAX", 0.05)
    monkeypatch.setattr(connection, "LIFELESS_S_MAX", 0.1)
    table = await db.create_table("t", shards=1)
    await table.put("k", b"0")
    cluster.mute(cluster.leader("t"))  # nor gives it the sign of life that it is asked for
    assert (await table.put("k", b"1")).id == 1
    assert effects(cluster, "t") == [(b"k", b"0"), (b"k", b"1")]
    assert cluster.count(TableWrite) == 3


@in_a_cluster
async def test_slow_answers_are_waited_for(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that shows signs of life may take its time: nothing is sent again."""
    from antiphon.client import connection

    monkeypatch.setattr(connection, "LIFE_CHECK_S", 0.01)
    monkeypatch.setattr(connection, "SILENCE_S_MAX", 0.02)
    monkeypatch.setattr(connection, "LIFELESS_S_MAX", 0.15)
    table = await db.create_table("t", shards=1)
    loop = asyncio.get_running_loop()
    cluster.fail(TableWrite, lambda answer: loop.call_later(0.5, answer))
    assert (await table.put("k", b"1")).id == 0
    assert cluster.count(TableWrite) == 1


@in_a_cluster
async def test_time_is_over(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    await table.put("warm", b"")
    cluster.fail(TableWrite, SILENT)
    with pytest.raises(TimedOutError, match="whether the write was carried out is not known"):
        await table.put("k", b"1", timeout_s=0.05)
    cluster.fail(TableGet, SILENT)
    with pytest.raises(TimedOutError):
        await table.get("k", timeout_s=0.05)
    assert (await table.put("k", b"2", timeout_s=5)).id == 1
    leader = cluster.leader("t")
    cluster.nodes.kill((leader + 1) % 3)
    cluster.nodes.kill(leader)
    with pytest.raises(TimedOutError):
        await table.put("k", b"3", timeout_s=0.05)
    with pytest.raises(TimedOutError):
        await table.get("k", timeout_s=0.05)


@in_a_cluster
async def test_short_time_after_a_long_one(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    cluster.fail(TableWrite, SILENT, SILENT)
    long = table.put("a", b"", timeout_s=60)
    await asyncio.sleep(0)
    with pytest.raises(TimedOutError):
        await table.put("b", b"", timeout_s=0.05)
    assert not long.done()
    long.cancel()


@pytest.mark.parametrize(
    "error",
    [
        StorageFailedError("broken disk"),
        InvalidRequestError("never"),
        AntiphonError("unknown to this version"),
    ],
)
@in_a_cluster
async def test_definite_errors_reach_the_caller(
    cluster: FailingNodes, db: AsyncClient, error: AntiphonError
) -> None:
    table = await db.create_table("t", shards=1)
    cluster.fail(TableWrite, error)
    with pytest.raises(type(error), match=error.message):
        await table.put("k", b"1")
    cluster.fail(TableGet, error, error)
    with pytest.raises(type(error), match=error.message):
        await table.get("k")
    assert (await table.put("k", b"1")).id == 0


@in_a_cluster
async def test_what_one_caller_asks_for_does_not_fail_the_others(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=1, config={"max.message.bytes": "5000"})
    outcomes = await asyncio.gather(
        table.put("a", b""),
        table.put("b", b"x" * 6000),
        table.put("c", b"", expected_version=-7),
        table.put("d" * 70_000, b""),
        table.put("e", b""),
        return_exceptions=True,
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "Version", "BatchTooLargeError", "InvalidRequestError", "InvalidRequestError", "Version",
    ]  # fmt: skip
    assert sorted(key for key, _ in effects(cluster, "t")) == [b"a", b"e"]


@pytest.mark.parametrize("piece_bytes", [500, 5000, 1 << 20])
@in_a_cluster
async def test_large_ranges_are_deleted_in_pieces(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(table_client, "RANGE_PIECE_KEYS", 70)
    monkeypatch.setattr(table_scan, "RANGE_PIECE_BYTES", piece_bytes)
    table = await db.create_table("t", shards=2)
    await asyncio.gather(*(table.put(f"{i:03}", b"") for i in range(500)))
    await db.alter_topic("t", config={"max.message.bytes": "10000"})
    await table.delete_range("100", "490")
    assert await table.list() == [b"%03d" % i for i in (*range(100), *range(490, 500))]
    await table.delete_range("", "")
    assert await table.list() == []


@in_a_cluster
async def test_wrong_names_and_values(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_topic("plain")
    for use in (db.table("none").put("k", b""), db.table("none").get("k"), db.table("none").list()):
        with pytest.raises(UnknownTopicError, match="no table 'none'"):
            await use
    with pytest.raises(UnknownTopicError):
        await db.table("none")
    with pytest.raises(WrongKindError, match="is a topic"):
        await db.table("plain")
    table = await db.create_table("t")
    with pytest.raises(InvalidRequestError, match="a key is bytes or str, not int"):
        await table.put(5, b"")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="a value is bytes or str"):
        await table.put("k", None)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="consistency"):
        await table.get("k", consistency="eventual")


@in_a_cluster
async def test_table_that_is_deleted_and_made_again(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=2)
    await table.put("k", b"1")
    await db.delete_table("t")
    with pytest.raises(UnknownTopicError):
        await table.put("k", b"1")
    await db.create_table("t", shards=3)
    assert table.shards == 3
    assert (await table.put("k", b"1")).id == 0


@in_a_cluster
async def test_cancelled_puts_are_not_sent(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    puts = [table.put(f"k{i}", b"") for i in range(3)]
    puts[1].cancel()
    await asyncio.gather(puts[0], puts[2])
    assert [key for key, _ in effects(cluster, "t")] == [b"k0", b"k2"]


@in_a_cluster
async def test_close_fails_what_is_open(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=1)
    cluster.fail(TableWrite, SILENT)
    put = table.put("k", b"")
    await asyncio.sleep(0.02)
    await db.close()
    with pytest.raises(UnavailableError, match="closed"):
        await put
    with pytest.raises(UnavailableError, match="closed"):
        await table.put("k", b"")
    with pytest.raises(UnavailableError, match="closed"):
        await table.get("k")
    await db.close()


@in_a_cluster
async def test_sequences_that_run_out_go_on_under_a_new_id(
    cluster: FailingNodes, db: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "SEQUENCE_MAX", 3)
    table = await db.create_table("t", shards=1)
    for i in range(10):
        assert (await table.put("k", b"")).modifications == i
    assert len({body.producer_id for body in cluster.seen if isinstance(body, TableWrite)}) > 2


@in_a_cluster
async def test_watch(cluster: FailingNodes, db: AsyncClient) -> None:
    table = await db.create_table("t", shards=3)
    await table.put("before", b"")
    async with table.watch() as changes:
        await table.put("k", b"1")
        await table.put("k", b"2")
        await table.delete("k")
        found = [await anext(changes) for _ in range(3)]
        shard = shard_of_table_key(b"k", 3)
        assert [(c.key, c.value, str(c.kind), c.shard) for c in found] == [
            (b"k", b"1", "created", shard), (b"k", b"2", "modified", shard), (b"k", None, "deleted", shard),
        ]  # fmt: skip
        assert [c.version.modifications for c in found] == [0, 1, 1]
        await cluster.move_leader("t", shard, (cluster.leader("t", shard) + 1) % 3)
        await table.put("k", b"3")
        assert (await anext(changes)).value == b"3"
        closing = asyncio.ensure_future(changes.next_chunk())
    assert await closing == []
    everything = table.watch(start=-2)
    keys = {(await anext(everything)).key for _ in range(5)}
    await everything.close()
    assert keys == {b"before", b"k"}
    with pytest.raises(InvalidRequestError, match="2 start offsets for 3 shards"):
        await anext(table.watch(start=[0, 0]))


@in_a_cluster
async def test_a_watch_behind_what_was_trimmed_says_where_it_goes_on(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    table = await db.create_table("t", shards=3)
    shard = shard_of_table_key(b"k", 3)
    for value in (b"1", b"2", b"3"):
        await table.put("k", value)
    host = cluster.host("t", shard)
    before = host.state.high_watermark - 1
    await cluster.nodes.nodes[host.services.node_id].gateway.trim(host.shard_id, before, 10.0)
    async with table.watch(start=[0, 0, 0]) as changes:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await anext(changes)
    told = caught.value.details
    assert (told["shard"], told["asked"], told["start"]) == (shard, 0, before)
    starts = [0, 0, 0]
    starts[shard] = told["start"]
    async with table.watch(start=starts) as changes:
        assert (await anext(changes)).value == b"3"
