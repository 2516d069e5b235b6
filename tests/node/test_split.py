"""A table's shard is split while clients read and write it, and while leaders die."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import antiphon.aio
from antiphon.client.aio import AsyncClient
from antiphon.client.table import ABSENT
from antiphon.errors import (
    AlreadyAppliedError,
    InvalidRequestError,
    ProducerFencedError,
    TimedOutError,
    VersionMismatchError,
    WrongShardError,
)
from antiphon.model.cluster import SplitStep
from antiphon.model.metadata import ShardMeta, Split, SplitPhase, key_hash
from antiphon.model.requests import Put, TableGet, TableScan, TableWrite
from antiphon.node.splits import next_entry
from antiphon.partition.partition import Partition
from antiphon.records.batch import read_header
from antiphon.records.changes import ChangeKind, decode_changes
from antiphon.records.split_entries import Freeze, Release, Thaw
from antiphon.simulation.linearizability import Operation, Verdict, check, register
from antiphon.table.ranges import WHOLE, OwnedRange
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

if TYPE_CHECKING:
    from antiphon.model.rows import Version

HALF = 1 << 31


@dataclass
class Load:
    """Writers with keys of their own, so that the last acknowledged value of each is known, and readers."""

    table: antiphon.aio.AsyncTable
    last: dict[str, int] = field(default_factory=dict)
    unsure: dict[str, set[int]] = field(default_factory=dict)  # values whose put was not answered in time
    acknowledged: list[tuple[str, int, int]] = field(default_factory=list)  # key, value, version id
    gaps_s: list[float] = field(default_factory=list)
    scans: int = 0
    stop: bool = False

    async def write(self, number: int, keys: int) -> None:
        value = 0
        while not self.stop:
            value += 1
            key = f"w{number}-{value % keys}"
            began_s = asyncio.get_running_loop().time()
            try:
                version = await self.table.put(key, str(value), timeout_s=15)
            except TimedOutError:
                self.unsure.setdefault(key, set()).add(value)
            else:
                self.last[key] = value
                self.unsure.pop(key, None)
                self.acknowledged.append((key, value, version.id))
            if key_hash(key.encode()) >= HALF:
                self.gaps_s.append(asyncio.get_running_loop().time() - began_s)

    async def scan(self) -> None:
        while not self.stop:
            before = dict(self.last)
            found = {row.key.decode(): int(row.value or b"") async for row in self.table.scan("w", "x")}
            missing = {key for key in before if key not in found}
            assert not missing, missing
            stale = {key for key, value in before.items() if found[key] < value}
            assert not stale, stale
            self.scans += 1

    async def read(self) -> None:
        while not self.stop:
            for key in list(self.last)[-20:]:
                wanted = self.last[key]
                row = await self.table.get(key)
                assert int(row.value or b"") >= wanted
            await asyncio.sleep(0.001)

    async def check(self) -> None:
        """Every key has its last acknowledged value, each once."""
        rows = [row async for row in self.table.scan("w", "x")]
        assert len({row.key for row in rows}) == len(rows)
        found = {row.key.decode(): int(row.value or b"") for row in rows}
        wrong = {
            key: (value, found.get(key))
            for key, value in self.last.items()
            if found.get(key) != value and found.get(key) not in self.unsure.get(key, set())
        }
        assert not wrong, wrong
        assert set(found) <= set(self.last) | set(self.unsure)


async def under_load(
    db: AsyncClient, name: str, act: Callable[[], Awaitable[None]], *, writers: int = 4, keys: int = 50
) -> Load:
    """Let writers, a scanner and a reader work while `act` goes on, and a moment before and after it."""
    load = Load(db.table(name))
    work = [asyncio.create_task(load.write(number, keys)) for number in range(writers)]
    work += [asyncio.create_task(load.scan()), asyncio.create_task(load.read())]
    try:
        await asyncio.sleep(0.3)
        await act()
        await asyncio.sleep(0.3)
    finally:
        load.stop = True
        outcomes = await asyncio.gather(*work, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    await load.check()
    return load


def whole_log(host: Partition) -> list[memoryview]:
    """All committed batches."""
    batches: list[memoryview] = []
    at = host.log.log_start
    while at < host.state.high_watermark:
        batches += host.log.read(at, 1 << 30, host.state.high_watermark)
        at = read_header(batches[-1]).next_offset
    return batches


async def check_logs(nodes: Nodes, name: str, load: Load) -> None:
    """The logs tell each acknowledged write once, apart from the copies at the child's beginning, and no removals."""
    written: list[tuple[str, int]] = []
    topic = next(iter(nodes.nodes.values())).gateway.topic(name)
    for shard in topic.shards:
        leader = await nodes.leader(shard.shard_id)
        changes = list(decode_changes(whole_log(leader)))
        assert all(change.kind is not ChangeKind.DELETED for change in changes)
        own = [change for change in changes if change.offset >= shard.own_start]
        versions = [change.version_id for change in own]
        assert versions == sorted(set(versions))
        copied = [change.version_id for change in changes if change.offset < shard.own_start]
        assert max(copied, default=-1) < min(versions, default=1 << 62)
        written += [(c.key.decode(), int(c.value or b"")) for c in own if c.key.startswith(b"w")]
    assert len(set(written)) == len(written), "a write was carried out twice"
    assert {(key, value) for key, value, _ in load.acknowledged} <= set(written)


@in_virtual_time
async def test_split_with_readers_and_writers_at_work() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table("t", shards=1, replicas=3)
        await asyncio.gather(*(table.put(f"k{number}", b"v") for number in range(5_000)))
        load = await under_load(db, "t", lambda: db.split_shard("t", 0))
        shards = nodes.nodes[0].gateway.topic("t").shards
        assert [shard.hashes for shard in shards] == [(0, HALF - 1), (HALF, 2 * HALF - 1)]
        assert len(await table.list("k", "l")) == 5_000
        assert max(load.gaps_s) < 1.0, "writers of the keys that move wait for a moment only"
        assert load.scans > 1
        print("longest wait of a writer of keys that moved:", max(load.gaps_s))
        await check_logs(nodes, "t", load)
        parent = shards[0].shard_id
        hosts = [node.hosts[parent] for node in nodes.nodes.values()]
        await eventually(lambda: not any(host.state.require_table().state.owned.purging for host in hosts))
        # The keys that moved are gone from every replica of the parent, without a trace in its log.
        for host in hosts:
            rows, _ = host.state.require_table().state.stored_rows(
                b"", None, (HALF, 2 * HALF - 1), examined_max=100_000, size_bytes_max=1 << 30
            )
            assert not rows


async def caught_up(nodes: Nodes, node_id: int, shard_id: int) -> None:
    """Wait until the node's replica has what the leader has, and compare them."""
    leader = await nodes.leader(shard_id)
    hosts = nodes.nodes[node_id].hosts
    await eventually(
        lambda: shard_id in hosts and hosts[shard_id].state.high_watermark == leader.state.high_watermark
    )
    mine, theirs = (
        host.state.require_table().state.scan(b"", b"", 10_000)[0] for host in (hosts[shard_id], leader)
    )
    assert mine == theirs


@pytest.mark.parametrize("pause_ms", [0, 8, 20])
@in_virtual_time
async def test_split_while_the_leader_of_both_shards_is_lost(pause_ms: int) -> None:
    """At whatever moment it happens: the split goes on with the leaders that come after, or was through."""
    async with cluster_of(3) as nodes:
        servers = ",".join(member.native for member in nodes.members)
        async with antiphon.aio.connect(servers) as db:
            table = await db.create_table("t", shards=1, replicas=3)
            await asyncio.gather(*(table.put(f"k{number}", b"v") for number in range(2_000)))
            shard_id = (await db.metadata()).topics[-1].shards[0].shard_id
            victim = (await nodes.leader(shard_id)).services.node_id

            async def split() -> None:
                splitting = asyncio.create_task(db.split_shard("t", 0, timeout_s=20))
                await asyncio.sleep(pause_ms / 1000)
                await nodes.stop(victim)
                await splitting

            load = await under_load(db, "t", split)
            node = next(iter(nodes.nodes.values()))
            assert [shard.hashes for shard in node.gateway.topic("t").shards] == [
                (0, HALF - 1),
                (HALF, 2 * HALF - 1),
            ]
            assert len(await table.list("k", "l")) == 2_000
            await check_logs(nodes, "t", load)
            await nodes.start(victim)
            for shard in node.gateway.topic("t").shards:
                await caught_up(nodes, victim, shard.shard_id)


@pytest.mark.parametrize("profile", ["raft", "fluvio", "one in flight"])
@in_virtual_time
async def test_tables_of_other_profiles_are_split(profile: str) -> None:
    config = {"max.in.flight": "1"} if profile == "one in flight" else {}
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table(
            "t", shards=1, replicas=3, profile="oxia" if config else profile, config=config
        )
        await asyncio.gather(*(table.put(f"k{number}", b"v") for number in range(1_000)))
        load = await under_load(db, "t", lambda: db.split_shard("t", 0))
        assert len(await table.list("k", "l")) == 1_000
        await check_logs(nodes, "t", load)


@in_virtual_time
async def test_a_shard_can_be_split_again_and_again() -> None:
    async with cluster_of(1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table("t", shards=2)
        await asyncio.gather(*(table.put(f"k{number}", b"v") for number in range(1_000)))

        async def split_all() -> None:
            for _ in range(2):
                for shard in range(table.shards):
                    await db.split_shard("t", shard)

        load = await under_load(db, "t", split_all)
        found = sorted(shard.hashes for shard in nodes.nodes[0].gateway.topic("t").shards)
        size = (1 << 32) // 8
        assert found == [(at * size, (at + 1) * size - 1) for at in range(8)]
        assert len(await table.list("k", "l")) == 1_000
        await check_logs(nodes, "t", load)
        await table.delete_range("k", "l")
        assert await table.list("k", "l") == []


class History:
    """Operations of several clients on a few keys, as the checker wants them."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._clock = 0
        self._values = 0

    def now(self) -> int:
        self._clock += 1
        return self._clock

    async def one(self, table: antiphon.aio.AsyncTable, process: int, random: Random) -> None:
        """A read, a write, or a write on condition of the version that was just read."""
        key = f"k{random.randrange(6)}"
        what = random.choice(["read", "write", "cas"])
        invoked, returned = self.now(), None
        argument: Any = None
        result: Any = None
        self._values += 1
        value = str(self._values)
        try:
            if what == "write":
                argument = value
                await table.put(key, value)
            elif what == "read":
                row = await table.find(key)
                result = None if row is None else (row.value or b"").decode()
            else:
                row = await table.find(key)
                invoked = self.now()
                old = None if row is None else (row.value or b"").decode()
                argument = (old, value)
                try:
                    await table.put(key, value, expected_version=ABSENT if row is None else row.version.id)
                    result = True
                except VersionMismatchError:
                    result = False
            returned = self.now()
        except TimedOutError:
            pass
        if what != "read" or returned is not None:
            self.operations.append(Operation(process, what, argument, result, invoked, returned, key))


@pytest.mark.parametrize("seed", range(2))
@in_virtual_time
async def test_single_keys_are_linearizable_over_the_switch(seed: int) -> None:
    """Clients that learn of it at different times, a leader that moves meanwhile."""
    async with cluster_of(3) as nodes, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(antiphon.aio.connect(nodes.members[n % 3].native))
            for n in range(6)
        ]
        await clients[0].create_table("t", shards=1, replicas=3)
        await asyncio.gather(*(clients[0].table("t").put(f"x{n}", b"v" * 500) for n in range(1_000)))
        history, stop = History(), asyncio.Event()

        async def work(process: int) -> None:
            random = Random(seed * 100 + process)
            table = await clients[process].table("t")
            while not stop.is_set():
                await history.one(table, process, random)
                await asyncio.sleep(random.random() * 0.004)

        tasks = [asyncio.create_task(work(process)) for process in range(6)]
        await asyncio.sleep(0.05)
        splitting = asyncio.create_task(clients[0].split_shard("t", 0))
        if seed:
            await asyncio.sleep(0.01 * seed)
            await clients[1].elect_leader("t", 0)
        await splitting
        seen = len(history.operations)
        await eventually(lambda: len(history.operations) > seen + 60)
        stop.set()
        await asyncio.gather(*tasks)
        assert check(history.operations, register, None) is Verdict.LINEARIZABLE


@in_virtual_time
async def test_writes_that_are_not_awaited_keep_their_order_over_the_switch() -> None:
    async with cluster_of(3) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table("t", shards=1, replicas=3)
        await asyncio.gather(*(table.put(f"x{n}", b"v" * 500) for n in range(2_000)))
        splitting = asyncio.create_task(db.split_shard("t", 0))
        puts: dict[str, list[asyncio.Future[Version]]] = {}
        for number in range(10_000):
            key = f"k{number % 10}"
            puts.setdefault(key, []).append(table.put(key, str(number)))
            if splitting.done() and number > 3_000:
                break
            if number % 20 == 0:
                await asyncio.sleep(0.0005)
        await splitting
        for futures in puts.values():
            versions = [version.id for version in await asyncio.gather(*futures)]
            assert versions == sorted(set(versions))
        rows = {row.key.decode(): int(row.value or b"") async for row in table.scan("k", "l")}
        assert all((number - value) < 10 for value in rows.values()), rows


@in_virtual_time
async def test_watchers_hear_of_each_change_once_over_the_switch() -> None:
    async with cluster_of(1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        table = await db.create_table("t", shards=1)
        await asyncio.gather(*(table.put(f"k{n}", b"v") for n in range(500)))
        heard: list[tuple[str, int]] = []

        async def follow() -> None:
            async with table.watch(start=-2) as changes:
                async for change in changes:
                    heard.append((change.key.decode(), change.version.modifications))
                    assert change.kind is not ChangeKind.DELETED

        watching = asyncio.create_task(follow())
        load = await under_load(db, "t", lambda: db.split_shard("t", 0))
        wanted = 500 + len(load.acknowledged)
        await eventually(lambda: len(heard) >= wanted or watching.done())
        await asyncio.sleep(0.05)
        watching.cancel()
        assert len(heard) == len(set(heard)) == wanted


@in_virtual_time
async def test_what_cannot_be_split_is_refused_with_the_reason() -> None:
    async with cluster_of(1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        await db.create_topic("topic")
        await db.create_table("t", shards=2)
        unclean = {"commit": "live", "unclean.leader.election.enable": "true"}
        await db.create_table("unclean", config=unclean)
        await db.create_table("multi", config={"writers": "multi"})
        with pytest.raises(InvalidRequestError, match="only the shards of tables"):
            await db.split_shard("topic", 0)
        with pytest.raises(InvalidRequestError, match="allows unclean elections"):
            await db.split_shard("unclean", 0)
        with pytest.raises(InvalidRequestError, match="every replica of 'multi' accepts writes"):
            await db.split_shard("multi", 0)
        with pytest.raises(InvalidRequestError, match="can be split from 1 on, not at 0"):
            await db.split_shard("t", 0, at=0)
        with pytest.raises(InvalidRequestError, match="holds hashes 2147483648 to 4294967295"):
            await db.split_shard("t", 1, at=5)
        await db.split_shard("t", 1, at=3 << 30)
        await db.split_shard("t", 1, at=3 << 30)  # the same command once more: a repeat
        assert len(nodes.nodes[0].gateway.topic("t").shards) == 3


@in_virtual_time
async def test_who_asks_the_wrong_shard_is_told_so_and_nothing_is_carried_out() -> None:
    async with cluster_of(1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        node = nodes.nodes[0]
        table = await db.create_table("t", shards=1)
        keys = [f"k{number}" for number in range(20)]
        await asyncio.gather(*(table.put(key, b"v") for key in keys))
        await db.split_shard("t", 0)
        parent, child = node.gateway.topic("t").shards
        low = next(key.encode() for key in keys if key_hash(key.encode()) < HALF)
        high = next(key.encode() for key in keys if key_hash(key.encode()) >= HALF)
        end = node.hosts[parent.shard_id].log.log_end
        with pytest.raises(WrongShardError):
            await node.gateway.table_write(TableWrite(parent.shard_id, (Put(low, b"x"), Put(high, b"x"))))
        with pytest.raises(WrongShardError):
            await node.gateway.table_get(TableGet(parent.shard_id, (high,)))
        with pytest.raises(WrongShardError):
            await node.gateway.table_get(TableGet(child.shard_id, (low,)))
        with pytest.raises(WrongShardError):  # whoever does not know of the split would miss rows
            await node.gateway.table_scan(TableScan(parent.shard_id, b"", b""))
        assert node.hosts[parent.shard_id].log.log_end == end
        rows = await node.gateway.table_scan(TableScan(parent.shard_id, b"", b"", hashes=parent.hashes))
        assert all(row is not None and key_hash(row.key) < HALF for row in rows.rows)


@in_virtual_time
async def test_a_job_that_wrote_to_the_parent_is_recognised_by_the_child() -> None:
    job = 1 << 62 | 1 << 61 | 7
    async with cluster_of(1) as nodes, antiphon.aio.connect(nodes.members[0].native) as db:
        node = nodes.nodes[0]
        await db.create_table("t", shards=1)
        shard_id = node.gateway.topic("t").shards[0].shard_id
        high = next(key for key in (b"k%d" % i for i in range(99)) if key_hash(key) >= HALF)
        await node.gateway.table_write(TableWrite(shard_id, (Put(high, b"x"),), job, 5, 0))
        await db.split_shard("t", 0)
        await db.split_shard("t", 1)
        child = next(
            s for s in node.gateway.topic("t").shards if s.hashes[0] <= key_hash(high) <= s.hashes[1]
        )
        with pytest.raises(AlreadyAppliedError):
            await node.gateway.table_write(TableWrite(child.shard_id, (Put(high, b"x"),), job, 5, 0))
        with pytest.raises(ProducerFencedError):
            await node.gateway.table_write(TableWrite(child.shard_id, (Put(high, b"x"),), job, 4, 0))
        await node.gateway.table_write(TableWrite(child.shard_id, (Put(high, b"y"),), job, 6, 0))


FROZEN = OwnedRange(frozen_from=HALF, frozen_at=70, child=9)
RELEASED = OwnedRange(0, HALF - 1)


def child(phase: SplitPhase, frozen_at: int = -1, start: int = -1) -> ShardMeta:
    return ShardMeta(9, 1, (0,), hashes=(HALF, 2 * HALF - 1), split=Split(1, phase, frozen_at, start))


@pytest.mark.parametrize(
    ("owned", "of", "expected"),
    [
        (WHOLE, None, None),
        (WHOLE, child(SplitPhase.COPY), None),
        (WHOLE, child(SplitPhase.FREEZE), Freeze(HALF, 9)),
        (WHOLE, child(SplitPhase.RELEASE, 70, 5), SplitStep.LOST),
        (FROZEN, None, Thaw(70)),  # given up
        (FROZEN, child(SplitPhase.COPY), Thaw(70)),
        (FROZEN, child(SplitPhase.FREEZE), None),
        (FROZEN, child(SplitPhase.RELEASE, 70, 5), Release(70, HALF, 9, 5)),
        (FROZEN, child(SplitPhase.RELEASE, 60, 5), SplitStep.LOST),  # another freeze was copied
        (RELEASED, None, None),
        (RELEASED, child(SplitPhase.FREEZE), None),  # old metadata
        (RELEASED, child(SplitPhase.RELEASE, 70, 5), SplitStep.RELEASED),
    ],
)
def test_what_the_leader_of_the_parent_does_next(
    owned: OwnedRange, of: ShardMeta | None, expected: object
) -> None:
    assert next_entry(owned, of) == expected
