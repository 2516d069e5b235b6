"""The world's parts one by one: time, logs, disks, the network."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import AppendLog, PersistTerm, TruncateLog
from antiphon.replication.messages import Entry
from antiphon.simulation.disk import NodeDisk, ReplicaFiles, Write
from antiphon.simulation.network import Network
from antiphon.simulation.options import PROFILES, derive
from antiphon.simulation.scheduler import Scheduler
from antiphon.simulation.stored_log import StoredLog
from antiphon.simulation.trace import Trace


def entry(term: int, base: int, count: int = 1, data: object = 0) -> Entry:
    return Entry(term, base, base + count, data)


# -- scheduler and trace ----------------------------------------------------------------------------------------------


def test_time_goes_forward_and_ties_are_drawn() -> None:
    def order(seed: int) -> list[str]:
        scheduler = Scheduler(Random(seed))
        seen: list[str] = []
        for name in "abcdef":
            scheduler.after(5, seen.append, name)
        scheduler.after(1, seen.append, "first")
        while scheduler.step():
            pass
        assert scheduler.now_ns == 5
        assert scheduler.steps == 7
        return seen

    assert order(1)[0] == "first"
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_nothing_is_planned_for_the_past() -> None:
    scheduler = Scheduler(Random(0))
    scheduler.after(10, lambda: None)
    scheduler.step()
    with pytest.raises(InvariantError, match="past"):
        scheduler.at(9, lambda: None)


def test_trace_digest_depends_on_every_event() -> None:
    def digest(*events: tuple[Any, ...]) -> str:
        trace = Trace(Scheduler(Random(0)))
        for kind, shard, *facts in events:
            trace.note(kind, shard, *facts)
        return trace.digest()

    assert digest(("a", 1, 2)) == digest(("a", 1, 2))
    assert (
        len({digest(("a", 1, 2)), digest(("a", 1, 3)), digest(("b", 1, 2)), digest(("a", 2, 2)), digest()})
        == 5
    )


def test_trace_tail_reads_one_shard_and_what_concerns_all() -> None:
    trace = Trace(Scheduler(Random(0)))
    trace.note("crash", -1, 2)
    trace.say("append", 1, "node 0", entry(3, 4, 2))
    trace.say("append", 2, "node 0", EntryId(1, 2))
    assert [line.split()[-1] for line in trace.tail(10, shard=1)] == ["2", "[4,6)@3"]
    assert len(trace.tail(10)) == 3
    assert trace.tail(10)[2].endswith("2@1")


def test_options_are_drawn_from_the_seed_alone() -> None:
    assert derive(7) == derive(7)
    assert {derive(seed).profile for seed in range(60)} == set(PROFILES)
    assert len({derive(seed, "raft").words() for seed in range(50)}) == 50
    assert derive(7, "oxia", nodes=9).nodes == 9
    with pytest.raises(InvariantError, match="none of"):
        derive(7, "paxos")


# -- logs -------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), max_size=30), st.randoms(use_true_random=False)
)
def test_chain_names_the_prefix(steps: list[tuple[int, int]], random: Random) -> None:
    """Two logs have equal chains at an offset exactly when their entries before it are equal."""
    one, other, term = StoredLog(), StoredLog(), 1
    for rise, count in steps:
        term += rise
        one.append([entry(term, one.end_offset, count, random.randrange(2))])
        other.append([entry(term, other.end_offset, count, random.randrange(2))])
    for index, end in enumerate(one.ends):
        same = one.entries[: index + 1] == other.entries[: index + 1]
        assert (one.chain_at(end) == other.chain_at(end)) is same


def test_log_reads_cuts_trims_and_resets() -> None:
    log = StoredLog()
    log.append([entry(1, 0, 2), entry(1, 2), entry(2, 3, 3)])
    assert log.end == EntryId(2, 6)
    assert log.read(1, 6, 10) == log.entries
    assert log.read(2, 5, 10) == [entry(1, 2)]
    assert log.read(0, 6, 1) == [entry(1, 0, 2)]
    assert log.term_changes() == [(1, 0), (2, 3)]
    assert log.chain_at(4) is None
    with pytest.raises(InvariantError, match="inside an entry"):
        log.truncate(4)
    copy, chain = log.copy(), log.chain_at(3)
    assert log.truncate(3) == [entry(2, 3, 3)]
    assert log.end == EntryId(1, 3)
    assert copy.end == EntryId(2, 6)
    copy.trim(3)
    assert (copy.start, copy.start_chain, copy.ends) == (EntryId(1, 3), chain, [6])
    assert copy.read(2, 6, 10) == []
    copy.reset(EntryId(5, 9), 77)
    assert (copy.end, copy.end_chain, copy.chain_at(9)) == (EntryId(5, 9), 77, 77)
    with pytest.raises(InvariantError, match="appended to a log"):
        copy.append([entry(5, 10)])
    with pytest.raises(InvariantError, match="after 5"):
        copy.append([entry(4, 9)])


# -- disks ------------------------------------------------------------------------------------------------------------


class DiskBench:
    """A disk with one replica's files, whose reports are collected."""

    def __init__(self, seed: int, **overrides: int) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.reports: list[int] = []
        self.disk = NodeDisk(derive(seed, "raft", **overrides), self.scheduler, Random(seed), self._synced)
        self.files = ReplicaFiles()

    def _synced(self, group: list[Write]) -> None:
        self.reports += [write.action.write_id for write in group]

    def submit(self, *actions: PersistTerm | AppendLog | TruncateLog) -> None:
        for action in actions:
            self.disk.submit(Write(1, self.files, action, 0))

    def settle(self) -> None:
        while self.scheduler.step():
            pass


def test_writes_become_durable_in_order_and_in_groups() -> None:
    bench = DiskBench(3)
    bench.submit(PersistTerm(1, 5, 2), AppendLog(2, (entry(5, 0), entry(5, 1))), TruncateLog(3, 1))
    assert bench.reports == []
    assert bench.files.term == 0
    bench.settle()
    assert bench.reports == [1, 2, 3]
    assert (bench.files.term, bench.files.voted_for, bench.files.log.end) == (5, 2, EntryId(5, 1))
    assert bench.scheduler.steps == 2, "the first write alone, the other two as one group"


@pytest.mark.parametrize("seed", range(30))
def test_crash_keeps_a_prefix_and_never_what_was_reported_lost(seed: int) -> None:
    bench = DiskBench(seed)
    appends = [AppendLog(n, (entry(1, 2 * n - 2), entry(1, 2 * n - 1))) for n in range(1, 8)]
    bench.submit(*appends)
    for _ in range(seed % 3):
        bench.scheduler.step()
    reported = len(bench.reports)
    bench.disk.crash()
    bench.settle()
    assert len(bench.reports) == reported, "a write of before the crash is never reported after it"
    kept = bench.files.log.entries
    assert kept == [one for action in appends for one in action.entries][: len(kept)]
    assert len(kept) >= 2 * reported
    bench.submit(PersistTerm(1, 9, None))
    bench.settle()
    assert bench.files.term == 9


def test_failed_disk_reports_nothing_any_more() -> None:
    bench = DiskBench(1)
    bench.submit(PersistTerm(1, 5, 2))
    bench.disk.fail()
    bench.submit(PersistTerm(2, 6, 2))
    bench.settle()
    assert bench.reports == []
    bench.disk.crash()
    bench.submit(PersistTerm(1, 7, 2))
    bench.settle()
    assert bench.reports == [1]


# -- network ----------------------------------------------------------------------------------------------------------


class NetworkBench:
    """A network whose deliveries are collected."""

    def __init__(self, **overrides: Any) -> None:
        self.scheduler = Scheduler(Random(1))
        self.arrived: list[tuple[int, int, Any]] = []
        overrides = {"loss_ppm": 0, "duplicate_ppm": 0, "delay_us_mean": 1_000} | overrides
        self.network = Network(
            derive(1, "raft", **overrides), self.scheduler, Random(2), lambda *what: self.arrived.append(what)
        )

    def settle(self) -> list[Any]:
        while self.scheduler.step():
            pass
        return [message for _, _, message in self.arrived]


def test_network_reorders_unless_told_to_keep_order() -> None:
    free, ordered = NetworkBench(in_order=False), NetworkBench(in_order=True)
    for bench in (free, ordered):
        for number in range(50):
            bench.network.send(0, 1, number)
    assert ordered.settle() == list(range(50))
    arrived = free.settle()
    assert arrived != list(range(50))
    assert sorted(arrived) == list(range(50))


def test_network_loses_and_repeats() -> None:
    bench = NetworkBench(loss_ppm=300_000, duplicate_ppm=300_000)
    for number in range(1000):
        bench.network.send(0, 1, number)
    arrived = bench.settle()
    assert 600 < len(set(arrived)) < 800
    assert len(arrived) > len(set(arrived)) + 100


def test_cut_is_one_way_and_clog_delays() -> None:
    bench = NetworkBench()
    bench.network.cut(0, 1)
    bench.network.clog(2, 0, until_ns=10**9)
    bench.network.send(0, 1, "lost")
    bench.network.send(1, 0, "back")
    bench.network.send(2, 0, "late")
    assert bench.settle() == ["back", "late"]
    assert bench.scheduler.now_ns > 10**9
    assert bench.network.is_cut(0, 1)
    assert not bench.network.is_cut(1, 0)
    assert bench.network.become_perfect() == [(0, 1)]
    bench.network.send(0, 1, "healed")
    assert bench.settle()[-1] == "healed"
