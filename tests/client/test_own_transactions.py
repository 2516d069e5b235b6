"""`db.transaction()`: transactions without an id of the caller's, on whole nodes that fail on request."""

import asyncio
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from antiphon.client import own_transactions
from antiphon.client.aio import AsyncClient, connect
from antiphon.coordination import transactions as rows
from antiphon.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    KeyNotFoundError,
    LimitReachedError,
    NotReadyError,
    ProducerFencedError,
    TimedOutError,
    VersionMismatchError,
    WrongKindError,
)
from antiphon.model.metadata import HASH_MAX, KeyRanges, key_hash
from antiphon.model.requests import AppendBatch, SplitShard, TableWrite
from antiphon.model.table_transactions import PrepareWrite
from antiphon.model.transactions import OWN_IDS, FinishTransaction, InitProducer, JoinTransaction, SendOffsets
from antiphon.transactions import coordinator
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, SILENT, FailingNodes, Fault

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.client.own_transactions import AsyncOwnTransaction

ABSENT = -1
T = "accounts"


async def made(db: AsyncClient) -> tuple[bytes, bytes, bytes]:
    """A table and a topic; keys of the table: two of its first shard and one of its second."""
    await db.create_table(T, shards=2)
    await db.create_topic("journal", shards=2)
    await db.table(T)
    ranges = KeyRanges(db._cluster.topics[T].shards)
    names = [b"k%d" % number for number in range(40)]
    first = [name for name in names if ranges.shard_of(name).index == 0][:2]
    return first[0], first[1], next(name for name in names if ranges.shard_of(name).index == 1)


async def journal(db: AsyncClient) -> list[bytes]:
    """What readers of committed records see, once all that is under way has ended."""
    found: list[bytes] = []
    for shard in range(2):
        async with asyncio.timeout(20):
            while True:
                reply = await db.list_offset(db._cluster.topics["journal"].shards[shard].shard_id, -1)
                if reply.stable_end == reply.high_watermark:
                    break
                await asyncio.sleep(0.05)
        found += [r.value or b"" async for r in db.topic("journal").read(shard, 0, isolation="committed")]
    return found


async def ids(cluster: FailingNodes, db: AsyncClient) -> list[str]:
    """Those that coordinators know; a row that is being written is not among them, so nothing may be under way."""
    found = [row.transactional_id for node in cluster.nodes.nodes for row in await db.transactions(node)]
    return sorted(found)


@in_a_cluster
async def test_rows_records_and_offsets_by_name_and_by_handle(cluster: FailingNodes, db: AsyncClient) -> None:
    a, b, c = await made(db)
    table, topic = db.table(T), db.topic("journal")
    before = await table.put(a, "1")
    await table.put(b, "1")
    async with db.transaction() as t:
        assert (await t.get(table, a)).version == before
        assert await t.find(T, "nobody") is None
        await t.put(T, a, "2", expected_version=before.id)
        await t.put(table, c, "3", expected_version=ABSENT)
        await t.delete(table, b)
        await t.check(T, "nobody", ABSENT)
        await t.append(topic, "x", shard=0)
        await t.append("journal", "y", key="k", shard=1)
        await t.commit_offsets("g", {("journal", 0): 5, topic: {1: 6}})
    assert [version and version.id for version in t.versions] == [before.id + 2, 0, None, None]
    assert [(at.shard, at.offset) for at in t.positions] == [(0, 0), (1, 0)]
    assert [row and row.value for row in await table.get_many([a, b, c])] == [b"2", None, b"3"]
    assert await journal(db) == [b"x", b"y"]
    assert await db.group_offsets("g", [("journal", 0), ("journal", 1)]) == {
        ("journal", 0): 5,
        ("journal", 1): 6,
    }


@in_a_cluster
async def test_values_are_as_the_codec_of_a_handle_has_them(cluster: FailingNodes, db: AsyncClient) -> None:
    a, _b, c = await made(db)
    table, topic = db.table(T, type=dict), db.topic("journal", type=dict)
    await table.put(a, {"n": 1})
    async with db.transaction() as t:
        assert (await t.get(table, a)).value == {"n": 1}
        await t.put(table, c, {"n": 2})
        await t.append(topic, {"n": 3}, shard=0)
        with pytest.raises(InvalidRequestError, match="the value is no dict"):
            await t.put(table, c, {"n": object()})
    assert (await table.get(c)).value == {"n": 2}
    assert len(await journal(db)) == 1
    assert [record.value async for record in topic.read(0, 0, isolation="committed")] == [{"n": 3}]


@in_a_cluster
async def test_an_error_in_the_block_aborts(cluster: FailingNodes, db: AsyncClient) -> None:
    a, _b, c = await made(db)

    async def body1() -> None:
        async with db.transaction() as t:
            await t.put(T, a, "1")
            await t.append("journal", "x")
            await t.flush()
            await t.commit_offsets("g", {"journal": {0: 1}})
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        await body1()
    assert await journal(db) == []
    assert await db.table(T).find(a) is None
    assert await db.group_offsets("g", [("journal", 0)]) == {}
    async with db.transaction() as t:
        await t.put(T, a, "1")
        await t.put(T, c, "1")
        await t.abort()
    assert await db.table(T).get_many([a, c]) == [None, None]


@in_a_cluster
async def test_after_its_end_it_refuses_everything(cluster: FailingNodes, db: AsyncClient) -> None:
    a, _b, _c = await made(db)
    block = db.transaction()
    async with block as t:
        await t.put(T, a, "1")
    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: t.put(T, a, "1"),
        lambda: t.find(T, a),
        lambda: t.append("journal", "x"),
        lambda: t.commit_offsets("g", {}),
        t.commit,
    ]
    for step in steps:
        with pytest.raises(InvalidTxnStateError, match="is committed: begin another one"):
            await step()
    with pytest.raises(InvalidTxnStateError, match="was begun already"):
        await block.__aenter__()


@in_a_cluster
async def test_what_cannot_be_named_is_refused(cluster: FailingNodes, db: AsyncClient) -> None:
    await made(db)
    async with connect(cluster.servers) as other, db.transaction() as t:
        with pytest.raises(InvalidRequestError, match="is of another client"):
            await t.put(other.table(T), "a", "1")
        with pytest.raises(InvalidRequestError, match="name of a topic or table"):
            await t.append(7, "a")  # type: ignore[arg-type]
        for wrong in (
            {"journal": 1},
            {("journal",): 1},
            {("journal", 0): -1},
            {("journal", "0"): 1},
            {"journal": {0: True}},
        ):
            with pytest.raises(InvalidRequestError, match="offsets are"):
                await t.commit_offsets("g", wrong)
        with pytest.raises(InvalidRequestError, match="shard 0 of 'journal' twice"):
            await t.commit_offsets("g", {("journal", 0): 1, db.topic("journal"): {0: 2}})
    assert await ids(cluster, db) == []


# -- one shard ----------------------------------------------------------------------------------------------------


@in_a_cluster
async def test_what_changes_one_shard_is_one_request(cluster: FailingNodes, db: AsyncClient) -> None:
    a, b, _c = await made(db)
    old = await db.table(T).put(a, "1")
    cluster.seen.clear()
    async with db.transaction() as t:
        await t.find(T, b)
        await t.get(T, a)
        await t.put(T, a, "2")
        await t.put(T, b, "2", expected_version=ABSENT)
    assert [version and version.id for version in t.versions] == [old.id + 1, old.id + 2]
    assert cluster.count(TableWrite) == 1
    assert not any(cluster.count(kind) for kind in (InitProducer, JoinTransaction, PrepareWrite))
    assert await ids(cluster, db) == []


@pytest.mark.parametrize("faults", [[DROP_AFTER], [NotReadyError("soon"), DROP_AFTER]])
@in_a_cluster
async def test_such_a_request_is_carried_out_once(
    cluster: FailingNodes, db: AsyncClient, faults: list[Fault]
) -> None:
    a, b, _c = await made(db)
    cluster.fail(TableWrite, *faults)
    async with db.transaction() as t:
        await t.put(T, a, "1", expected_version=ABSENT)
        await t.put(T, b, "1", expected_version=ABSENT)
    assert [version and version.id for version in t.versions] == [0, 1]


@pytest.mark.parametrize("alone", [True, False], ids=["one shard", "several"])
@in_a_cluster
async def test_a_condition_that_does_not_hold_says_which(
    cluster: FailingNodes, db: AsyncClient, alone: bool
) -> None:
    a, b, c = await made(db)
    old = await db.table(T).put(a, "1")

    async def body2() -> None:
        async with db.transaction() as t:
            await t.find(T, b)
            await t.put(T, b if alone else c, "2")
            await t.put(T, a, "2", expected_version=77)

    with pytest.raises(VersionMismatchError) as refused:
        await body2()
    assert refused.value.details == {"expected": 77, "actual": old.id, "operation": 1, "table": T}

    async def body3() -> None:
        async with db.transaction() as t:
            await t.put(T, a if alone else c, "2")
            await t.delete(T, b)

    with pytest.raises(KeyNotFoundError) as absent:
        await body3()
    assert absent.value.details == {"operation": 1, "table": T}

    async def body4() -> None:
        async with db.transaction() as t:
            await t.find(T, b)
            await t.put(T, a if alone else c, "2")
            await db.table(T).put(b, "between")

    with pytest.raises(VersionMismatchError) as changed:
        await body4()
    assert "operation" not in changed.value.details
    assert changed.value.details["table"] == T
    assert [row and row.value for row in await db.table(T).get_many([a, b, c])] == [b"1", b"between", None]


@in_a_cluster
async def test_without_an_answer_nobody_knows(cluster: FailingNodes, db: AsyncClient) -> None:
    a, _b, c = await made(db)
    cluster.fail(TableWrite, *[SILENT] * 20)
    transactions: list[AsyncOwnTransaction] = []

    async def body5() -> None:
        async with db.transaction(timeout_s=2) as t:
            transactions.append(t)
            await t.put(T, a, "1")

    with pytest.raises(TimedOutError, match="whether the transaction was committed is not known") as unknown:
        await body5()
    assert unknown.value.details == {"earlier_try": True}
    with pytest.raises(TimedOutError, match="is not known"):
        await transactions[0].commit()
    with pytest.raises(InvalidTxnStateError):
        _ = transactions[0].versions
    cluster.faults.clear()
    async with db.transaction() as t:
        await t.put(T, a, "2")
        await t.put(T, c, "2")
    assert (await db.table(T).get(a)).value == b"2"


@in_a_cluster
async def test_a_shard_that_is_split_meanwhile_becomes_several(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table(T)
    keys = [b"k%d" % number for number in range(20)]
    moved = next(key for key in keys if key_hash(key) > HASH_MAX // 2)
    async with db.transaction() as t:
        assert await t.find(T, moved) is None
        for key in keys:
            await t.put(T, key, b"1")
        cluster.stale = db._cluster.meta
        split = SplitShard(cluster.topic(T).shards[0].shard_id)
        await cluster.nodes.nodes[0].gateway.administer(split)
        cluster.stale = None
        cluster.seen.clear()
    assert cluster.count(TableWrite)
    assert cluster.count(PrepareWrite)
    assert [row and row.value for row in await db.table(T).get_many(keys)] == [b"1"] * 20


@in_a_cluster
async def test_a_table_that_takes_no_part_says_so(cluster: FailingNodes, db: AsyncClient) -> None:
    await db.create_table("lossy", config={"writers": "multi"})

    async def body6() -> None:
        async with db.transaction() as t:
            await t.put("lossy", "a", "1")

    with pytest.raises(WrongKindError, match="takes no transactions"):
        await body6()


# -- producers of its own -----------------------------------------------------------------------------------------


@in_a_cluster
async def test_one_id_does_for_transactions_one_after_the_other(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await made(db)
    for number in range(5):
        async with db.transaction() as t:
            await t.append("journal", f"{number}", shard=0)
    assert await journal(db) == [b"0", b"1", b"2", b"3", b"4"]
    [name] = await ids(cluster, db)
    assert name.startswith(OWN_IDS)
    assert cluster.count(InitProducer) == 1


@in_a_cluster
async def test_transactions_at_the_same_time_have_ids_of_their_own(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await made(db)

    async def one(number: int) -> None:
        async with db.transaction() as t:
            await t.append("journal", f"{number}", shard=0)
            await asyncio.sleep(0.5)
            await t.append("journal", f"{number}", shard=1)

    for _ in range(2):
        await asyncio.gather(*map(one, range(6)))
    assert sorted(await journal(db)) == sorted([b"%d" % number for number in range(6)] * 4)
    assert len(await ids(cluster, db)) == 6


@in_a_cluster
async def test_more_than_the_limit_wait(cluster: FailingNodes, db: AsyncClient) -> None:
    with patch.object(own_transactions, "AT_ONCE_MAX", 2):
        async with connect(cluster.servers) as few, few.transaction(), few.transaction() as second:
            with pytest.raises(LimitReachedError, match="2 transactions open"):
                await few.transaction(timeout_s=1).__aenter__()
            waiting = asyncio.ensure_future(few.transaction(timeout_s=5).__aenter__())
            await asyncio.sleep(1)
            assert not waiting.done()
            del second
        assert (await waiting).is_open


@in_a_cluster
async def test_an_id_that_was_forgotten_is_asked_for_anew(cluster: FailingNodes, db: AsyncClient) -> None:
    await made(db)
    with patch.object(rows, "OWN_ID_EXPIRES_MS", 5_000), patch.object(coordinator, "SWEEP_S", 1.0):
        async with db.producer("of-the-caller") as producer, producer.begin() as t:
            await t.append("journal", "0", shard=0)
        async with db.transaction() as t:
            await t.append("journal", "1", shard=0)
        for server in cluster.nodes.servers.values():
            server.transactions.coordinator._sweep_s = 0.0  # it looks every second from now on
        await asyncio.sleep(12)
        assert await ids(cluster, db) == ["of-the-caller"]
        async with db.transaction() as t:
            await t.append("journal", "2", shard=0)
            await t.append("journal", "3", shard=1)
    assert await journal(db) == [b"0", b"1", b"2", b"3"]


@in_a_cluster
async def test_one_that_lasts_too_long_is_aborted_and_the_next_is_not(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await made(db)

    async def body7() -> None:
        async with db.transaction(transaction_timeout_s=2) as t:
            await t.append("journal", "late", shard=0)
            await t.flush()
            await asyncio.sleep(10)

    with pytest.raises(ProducerFencedError, match="lasted longer than its time-out of 2 s"):
        await body7()
    async with db.transaction(transaction_timeout_s=2) as t:
        await t.append("journal", "next", shard=0)
    assert await journal(db) == [b"next"]
    assert len(await ids(cluster, db)) == 1


@in_a_cluster
async def test_a_commit_without_an_outcome_keeps_its_id(cluster: FailingNodes, db: AsyncClient) -> None:
    await made(db)
    transactions: list[AsyncOwnTransaction] = []
    cluster.fail(FinishTransaction, *[DROP_AFTER] * 30)

    async def body8() -> None:
        async with db.transaction(timeout_s=1) as t:
            transactions.append(t)
            await t.append("journal", "1", shard=0)

    with pytest.raises(TimedOutError, match="is not known"):
        await body8()
    cluster.faults.clear()
    async with db.transaction() as t:
        await t.append("journal", "2", shard=0)
    await transactions[0].commit()
    assert [at.offset for at in transactions[0].positions] == [0]
    assert await journal(db) == [b"1", b"2"]
    assert len(await ids(cluster, db)) == 2


# -- interrupts ---------------------------------------------------------------------------------------------------


def late(send: "Callable[[], None]") -> None:
    """It is carried out, and answered when nobody waits any more."""
    asyncio.get_running_loop().call_later(3, send)


@pytest.mark.parametrize("kind", [AppendBatch, SendOffsets])
@in_a_cluster
async def test_nothing_builds_on_a_step_that_was_interrupted(
    cluster: FailingNodes, db: AsyncClient, kind: type
) -> None:
    """The step is carried out, and nobody waits for its answer: the next transaction of the id is not mistaken for it."""
    await made(db)
    async with db.transaction() as t:
        await t.append("journal", "0", shard=0)
    cluster.fail(kind, late)

    async def interrupted() -> None:
        async with db.transaction() as t:
            await t.append("journal", "no", shard=0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await (t.flush() if kind is AppendBatch else t.commit_offsets("g", {"journal": {0: 9}}))

    with pytest.raises(InvalidTxnStateError, match="was interrupted while"):
        await interrupted()
    async with db.transaction() as t:
        await t.append("journal", "1", shard=0)
        await t.commit_offsets("g", {"journal": {1: 1}})
    assert await journal(db) == [b"0", b"1"]
    assert await db.group_offsets("g", [("journal", 0), ("journal", 1)]) == {("journal", 1): 1}


@in_a_cluster
async def test_an_abort_that_was_interrupted_leaves_nothing_to_the_next_transaction(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await made(db)
    cluster.fail(FinishTransaction, SILENT)

    async def interrupted() -> None:
        async with db.transaction() as t:
            await t.append("journal", "no", shard=0)
            await t.flush()
            async with asyncio.timeout(1):
                await t.abort()

    with pytest.raises(TimeoutError):
        await interrupted()
    async with db.transaction() as t:
        await t.append("journal", "1", shard=1)
    assert await journal(db) == [b"1"]
