"""Transactions that change tables of several shards, on whole nodes that fail on request."""

import asyncio

import msgspec
import pytest

from antiphon.client.aio import AsyncClient
from antiphon.client.producer import AsyncProducer, AsyncTransaction
from antiphon.client.table_steps import LOCK_WAIT_S
from antiphon.coordination.cluster_records import PREPARED_FORMAT
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    InvalidTxnStateError,
    KeyLockedError,
    KeyNotFoundError,
    NotReadyError,
    TimedOutError,
    UnknownTopicError,
    VersionMismatchError,
    WrongKindError,
)
from antiphon.model.metadata import HASH_MAX, KeyRanges, key_hash
from antiphon.model.requests import SplitShard, TrimShard
from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKeys
from antiphon.model.transactions import FinishTransaction, InitProducer, JoinTransaction
from antiphon.records.changes import ChangeKind
from tests.client.conftest import in_a_cluster
from tests.client.failing_nodes import DROP_AFTER, DROP_BEFORE, FailingNodes, Fault

ABSENT = -1
T = "accounts"


async def made(db: AsyncClient, shards: int = 2) -> tuple[bytes, bytes, bytes]:
    """A table, and keys of it: two of its first shard and one of its last."""
    await db.create_table(T, shards=shards)
    await db.create_topic("journal")
    await db.table(T)
    ranges = KeyRanges(db._cluster.topics[T].shards)
    names = [b"k%d" % number for number in range(40)]
    first = [name for name in names if ranges.shard_of(name).index == 0][:2]
    last = next(name for name in names if ranges.shard_of(name).index == shards - 1)
    return first[0], first[1], last


async def values(db: AsyncClient, *keys: bytes) -> list[bytes | None]:
    return [None if row is None else row.value for row in await db.table(T).get_many(keys)]


async def prepared(
    db: AsyncClient, producer: AsyncProducer, *changes: tuple[bytes, bytes]
) -> AsyncTransaction:
    """A transaction whose changes are prepared, and that is not decided."""
    transaction = producer.begin()
    for key, value in changes:
        await transaction.put(T, key, value)
    await transaction._prepare_tables()
    transaction._state = "committing"
    return transaction


async def give_up(transaction: AsyncTransaction) -> None:
    transaction._state = "open"
    await transaction.abort()


@in_a_cluster
async def test_a_transaction_changes_rows_of_several_shards_a_topic_and_offsets(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    a, b, c = await made(db)
    await db.table(T).put(a, b"100")
    await db.table(T).put(b, b"1")
    await db.create_table("holds")
    held = await db.table("holds").put(b"h", b"x")
    async with db.producer("billing") as producer:
        async with producer.begin() as t:
            old = await t.get(T, a)
            assert (old.value, await t.find(T, c)) == (b"100", None)
            await t.put(T, a, b"95", expected_version=old.version.id)
            await t.put(T, c, b"5")
            await t.delete(T, b)
            await t.check("holds", b"h", held.id)
            await t.check("holds", b"absent", ABSENT)
            await t.append("journal", b"moved")
            await t.send_offsets("g", {("journal", 0): 3})
            assert await values(db, a, c) == [b"100", None], "nothing is sent before the commit"
            with pytest.raises(InvalidTxnStateError):
                _ = t.versions
        assert await values(db, a, b, c) == [b"95", None, b"5"]
        rows = [await db.table(T).get(a), await db.table(T).get(c)]
        assert t.versions == [rows[0].version, rows[1].version, None, None, None]
        assert [r.value async for r in db.topic("journal").read(0, 0, isolation="committed")] == [b"moved"]
        assert await db.group_offsets("g", [("journal", 0)]) == {("journal", 0): 3}


@in_a_cluster
async def test_nothing_is_prepared_where_a_replica_would_take_it_for_rows(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    a, _, c = await made(db)
    await db.table(T)
    async with db.producer("billing") as producer:
        for node in cluster.nodes.nodes.values():
            old = node.view.nodes[2]
            node.view.nodes[2] = msgspec.structs.replace(old, reads=PREPARED_FORMAT - 1)
        t = producer.begin()
        await t.put(T, a, b"1")
        await t.put(T, c, b"1")
        with pytest.raises(InvalidRequestError, match="no transactions over tables: 2; upgrade"):
            await t.commit()
        await t.abort()
        assert await values(db, a, c) == [None, None]
        for node in cluster.nodes.nodes.values():
            node.view.nodes[2] = old
        async with producer.begin() as t:
            await t.put(T, a, b"1")
        assert await values(db, a) == [b"1"]


@pytest.mark.parametrize(
    ("asked", "error", "actual"),
    [
        ("put", VersionMismatchError, 0),
        ("put-absent", VersionMismatchError, 0),
        ("delete", VersionMismatchError, 0),
        ("delete-nothing", KeyNotFoundError, None),
        ("check", VersionMismatchError, 0),
        ("check-absent", VersionMismatchError, 0),
        ("check-of-what-is-written", VersionMismatchError, 0),
    ],
)
@in_a_cluster
async def test_a_condition_that_does_not_hold_leaves_nothing(
    cluster: FailingNodes, db: AsyncClient, asked: str, error: type[AntiphonError], actual: int | None
) -> None:
    a, b, c = await made(db)
    await db.table(T).put(a, b"1")
    async with db.producer("p") as producer:
        t = producer.begin()
        await t.append("journal", b"no")
        await t.put(T, c, b"x")
        if asked == "put":
            await t.put(T, a, b"x", expected_version=7)
        elif asked == "put-absent":
            await t.put(T, a, b"x", expected_version=ABSENT)
        elif asked == "delete":
            await t.delete(T, a, expected_version=7)
        elif asked == "delete-nothing":
            await t.delete(T, b)
        elif asked == "check":
            await t.check(T, a, 7)
        elif asked == "check-absent":
            await t.check(T, a, ABSENT)
        else:
            await t.put(T, a, b"x")
            await t.check(T, a, 7)
        with pytest.raises(error) as raised:
            await t.commit()
        assert raised.value.details["operation"] == (2 if asked == "check-of-what-is-written" else 1)
        assert raised.value.details.get("actual") == (1 if asked == "check-of-what-is-written" else actual)
        with pytest.raises(InvalidTxnStateError):
            await t.put(T, a, b"late")
        async with producer.begin() as t:
            await t.put(T, b, b"next")
        assert await values(db, a, b, c) == [b"1", b"next", None]
        assert [r.value async for r in db.topic("journal").read(0, 0, isolation="committed")] == []
        assert cluster.count(InitProducer) == 1, "a refusal leaves no sequence in doubt"


@pytest.mark.parametrize("changes", ["same", "other", "nothing"])
@in_a_cluster
async def test_what_was_read_has_to_be_so_at_the_commit(
    cluster: FailingNodes, db: AsyncClient, changes: str
) -> None:
    a, b, c = await made(db)
    table = db.table(T)
    await table.put(a, b"1")
    async with db.producer("p") as producer:
        for key, change in (
            (a, lambda: table.put(a, b"2")),
            (a, lambda: table.delete(a)),
            (a, lambda: table.put(a, b"3")),  # it is absent when it is read
        ):
            t = producer.begin()
            row = await t.find(T, key)
            assert row is await t.find(T, key), "once"
            if changes != "nothing":
                await t.put(T, key if changes == "same" else c, b"x")
            await change()
            with pytest.raises(VersionMismatchError, match=r"begin again|was expected") as raised:
                await t.commit()
            assert "operation" not in raised.value.details
            assert raised.value.details["table"] == T
        assert await values(db, a, c) == [b"3", None]
        async with producer.begin() as t:
            assert await t.find(T, b) is None
            assert (await t.get(T, a)).value == b"3"
            if changes != "nothing":
                await t.put(T, c, b"x")
        assert await values(db, c) == [None if changes == "nothing" else b"x"]


@in_a_cluster
async def test_a_key_that_was_absent_must_not_come_and_go(cluster: FailingNodes, db: AsyncClient) -> None:
    a, _b, c = await made(db)
    table = db.table(T)
    await table.put(a, b"1")
    await table.delete(a)
    async with db.producer("p") as producer:
        async with producer.begin() as t:  # what went before it was read is no matter
            assert await t.find(T, a) is None
            await t.put(T, c, b"1")
        t = producer.begin()
        assert await t.find(T, a) is None
        await t.put(T, c, b"2")
        await table.put(a, b"1")
        await table.delete(a)
        with pytest.raises(VersionMismatchError, match="come and gone"):
            await t.commit()
    assert await values(db, a, c) == [None, b"1"]


@in_a_cluster
async def test_nobody_sees_half_of_a_transaction_that_is_prepared(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    a, b, c = await made(db)
    table = db.table(T)
    await table.put(b, b"free")
    async with db.producer("p") as producer, db.producer("q") as other:
        t = await prepared(db, producer, (a, b"1"), (c, b"1"))
        for consistency in ("linearizable", "leader"):
            for key in (a, c):
                with pytest.raises(TimedOutError, match="transaction that is about to end"):
                    await table.get(key, consistency=consistency, timeout_s=0.2)
        assert await table.find(a, consistency="local") is None
        assert (await table.get(b)).value == b"free"
        with pytest.raises(TimedOutError):
            _ = [row async for row in table.scan(timeout_s=0.2)]
        for write in (table.put(a, b"2", timeout_s=0.2), table.delete(c, timeout_s=0.2)):
            with pytest.raises(TimedOutError):
                await write
        await table.put(b, b"still free")
        reader = asyncio.ensure_future(table.get(c))
        two = other.begin()
        await two.put(T, a, b"2")
        with pytest.raises(KeyLockedError, match=f"given up after {LOCK_WAIT_S:g} s"):
            await two.commit()
        assert not reader.done()
        await t.commit()
        assert (await reader).value == b"1"
        assert await values(db, a, c) == [b"1", b"1"]
        async with other.begin() as two:
            await two.put(T, a, b"2")
        assert await values(db, a) == [b"2"]


@in_a_cluster
async def test_a_read_that_another_transaction_is_about_to_change_gives_up(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    a, _b, c = await made(db)
    async with db.producer("p") as producer, db.producer("q") as other:
        two = other.begin()
        await two.find(T, a)
        await two.put(T, c, b"2")
        t = await prepared(db, producer, (a, b"1"))
        with pytest.raises(KeyLockedError, match="begin the transaction again"):
            await two.commit()
        await t.commit()
        assert await values(db, a, c) == [b"1", None]


@in_a_cluster
async def test_a_prepared_transaction_of_a_client_that_died_is_ended(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    a, _b, c = await made(db)
    await db.table(T).put(a, b"0")
    producer = db.producer("p", transaction_timeout_s=2)
    await producer.start()
    await prepared(db, producer, (a, b"1"), (c, b"1"))
    assert (await db.table(T).get(a)).value == b"0", "it waits for the end of the other one's time"
    await db.table(T).put(c, b"2")
    assert await values(db, a, c) == [b"0", b"2"]


async def elect(cluster: FailingNodes, index: int) -> None:
    gateway = cluster.nodes.nodes[0].gateway
    await gateway.elect_leader(cluster.topic(T).shards[index].shard_id, (cluster.leader(T, index) + 1) % 3)


STEPS = (InitProducer, JoinTransaction, ReadKeys, PrepareWrite, CheckReads, FinishTransaction)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "faults", [[DROP_BEFORE], [DROP_AFTER], [NotReadyError("soon"), DROP_AFTER, DROP_AFTER]]
)
@in_a_cluster
async def test_each_step_that_is_asked_for_again_is_carried_out_once(
    cluster: FailingNodes, db: AsyncClient, step: type, faults: list[Fault]
) -> None:
    a, b, c = await made(db)
    cluster.fail(step, *faults)
    async with db.producer("mover") as producer:
        for number in range(3):
            async with producer.begin() as t:
                await t.find(T, b)
                row = await t.find(T, a)
                await t.put(T, a, b"%d" % number)
                await t.put(T, c, b"%d" % number)
        assert row is not None
        assert t.versions[0].modifications == 2  # type: ignore[union-attr]
    assert await values(db, a, c) == [b"2", b"2"]


@in_a_cluster
async def test_a_new_leader_goes_on(cluster: FailingNodes, db: AsyncClient) -> None:
    a, _b, c = await made(db)
    async with db.producer("p") as producer:
        for number in range(4):
            t = await prepared(db, producer, (a, b"%d" % number), (c, b"%d" % number))
            for index in (0, 1):
                await elect(cluster, index)
            with pytest.raises(TimedOutError):
                await db.table(T).get(a, timeout_s=0.3)
            if number % 2:
                await give_up(t)
            else:
                await t.commit()
            assert await values(db, a, c) == [b"%d" % (number // 2 * 2)] * 2


@in_a_cluster
async def test_watches_see_committed_changes_only(cluster: FailingNodes, db: AsyncClient) -> None:
    a, b, _c = await made(db, shards=1)
    table = db.table(T)
    seen: list[tuple[bytes, bytes | None, ChangeKind]] = []
    async with table.watch() as changes, db.producer("p") as producer:
        t = await prepared(db, producer, (a, b"no"))
        await give_up(t)
        t = await prepared(db, producer, (a, b"1"))
        await table.put(b, b"1")
        await t.commit()
        async with producer.begin() as t:
            await t.delete(T, a)
        await table.put(b, b"2")
        async for change in changes:
            seen.append((change.key, change.value, change.kind))
            if change.value == b"2":
                break
    assert seen == [
        (a, b"1", ChangeKind.CREATED),
        (b, b"1", ChangeKind.CREATED),
        (a, None, ChangeKind.DELETED),
        (b, b"2", ChangeKind.MODIFIED),
    ]


@in_a_cluster
async def test_a_scan_gives_what_lies_before_a_locked_key_and_waits_there(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table(T)
    table = db.table(T)
    for number in range(5):
        await table.put(b"%d" % number, b"old")
    async with db.producer("p") as producer:
        t = await prepared(db, producer, (b"3", b"new"), (b"5", b"new"))
        found = []

        async def scan() -> None:
            found.extend([(row.key, row.value) async for row in table.scan()])

        task = asyncio.ensure_future(scan())
        await asyncio.sleep(1)
        assert not task.done()
        assert [row.key async for row in table.scan(b"", b"3")] == [b"0", b"1", b"2"]
        await t.commit()
        await task
        assert found == [(b"%d" % number, b"new" if number in {3, 5} else b"old") for number in range(6)]


@in_a_cluster
async def test_what_is_prepared_is_not_trimmed(cluster: FailingNodes, db: AsyncClient) -> None:
    a, b, _c = await made(db, shards=1)
    for number in range(5):
        await db.table(T).put(a, b"%d" % number)
    async with db.producer("p") as producer:
        t = await prepared(db, producer, (a, b"last"))
        await db.table(T).put(b, b"1")
        host = cluster.host(T)
        first = host.state.stable_end
        assert first < host.state.high_watermark
        body = TrimShard(host.shard_id, host.state.high_watermark)
        reply, _ = await db._cluster.call_shard(host.shard_id, body, timeout_s=5)
        assert reply.log_start == first
        await t.commit()
        await db.table(T).get(a)  # the marker is applied
        reply, _ = await db._cluster.call_shard(host.shard_id, body, timeout_s=5)
        assert reply.log_start > first


@in_a_cluster
async def test_a_split_waits_for_what_is_prepared_and_copies_what_becomes_of_it(
    cluster: FailingNodes, db: AsyncClient
) -> None:
    await db.create_table(T)
    table, keys = db.table(T), [b"k%d" % number for number in range(20)]
    for key in keys:
        await table.put(key, b"old")
    async with db.producer("p") as producer, db.producer("q") as other:
        t = await prepared(db, producer, *((key, b"new") for key in keys[:10]))
        two = await prepared(db, other, *((key, b"no") for key in keys[10:15]))
        split = asyncio.ensure_future(db.split_shard(T, 0))
        await asyncio.sleep(3)
        assert not split.done()
        await t.commit()
        await give_up(two)
        await split
        assert [row.value async for row in table.scan()] == [
            b"new" if key in keys[:10] else b"old" for key in sorted(keys)
        ]
        async with producer.begin() as t:
            for key in keys:
                await t.put(T, key, b"newer")
        assert await values(db, *keys) == [b"newer"] * 20


@in_a_cluster
async def test_a_shard_that_was_split_is_asked_as_it_is_now(cluster: FailingNodes, db: AsyncClient) -> None:
    """The client does not know of the split before it is refused."""
    await db.create_table(T)
    keys = [b"k%d" % number for number in range(20)]
    moved = next(key for key in keys if key_hash(key) > HASH_MAX // 2)
    async with db.producer("p") as producer:
        await db.table(T)
        t, two = producer.begin(), AsyncTransaction(producer)
        for key in keys:
            await t.put(T, key, b"1")
        assert await two.find(T, moved) is None
        cluster.stale = db._cluster.meta
        split = SplitShard(cluster.topic(T).shards[0].shard_id)
        await cluster.nodes.nodes[0].gateway.administer(split)
        cluster.stale = None
        await t.commit()
        assert await values(db, *keys) == [b"1"] * 20
        with pytest.raises(NotReadyError, match="was split since this transaction read of it"):
            await two.commit()


@in_a_cluster
async def test_misuse_is_told(cluster: FailingNodes, db: AsyncClient) -> None:
    a, b, _c = await made(db)
    await db.create_table("lossy", config={"writers": "multi"})
    async with db.producer("p") as producer:
        for name, error in (
            ("nowhere", UnknownTopicError),
            ("journal", WrongKindError),
            ("lossy", WrongKindError),
        ):
            t = producer.begin()
            await t.put(name, a, b"1")
            with pytest.raises(error):
                await t.commit()
        t = producer.begin()
        await t.put(T, a, b"1")
        with pytest.raises(InvalidRequestError, match="read it before"):
            await t.find(T, a)
        with pytest.raises(KeyNotFoundError):
            await t.get(T, b)
        await t.abort()
        t = producer.begin()
        for number in range(1_001):
            await t.put(T, a, b"%d" % number)
        with pytest.raises(InvalidRequestError, match="at most 1000"):
            await t.commit()
