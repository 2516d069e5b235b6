"""Crash anywhere, lose or tear what was not synced: what was reported durable is there, and nothing that was not written."""

import contextlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.log.config import LogConfig
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.operations import LogOp
from antiphon.log.producer_state import ProducerState
from antiphon.log.shard_log import ShardLog
from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.records.batch import read_header
from antiphon.records.builder import build_members, members_of
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members
from tests.log.helpers import batch_at, finish

DIRECTORY = "/shard"
CONFIG = LogConfig(segment_bytes=1500, snapshot_bytes=1000, tail_bytes_max=3000)


class State:
    """What a log should be: where it starts, its batches by offset, its promise, the members as of its start."""

    def __init__(self, start: EntryId, batches: list[bytes], term: int, base: Members | None) -> None:
        self.start = start
        self.batches = batches
        self.term = term
        self.base = base

    @property
    def members(self) -> list[tuple[int, Members]]:
        """The members entries in the log."""
        found = [(read_header(batch).next_offset, members_of(batch)) for batch in self.batches]
        return [(end, said) for end, said in found if said is not None and end > self.start.offset]

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset if self.batches else self.start.offset

    def agrees_up_to(self, other: "State") -> int:
        """The offset up to which both logs hold the same."""
        mine = {read_header(batch).base_offset: batch for batch in self.batches}
        theirs = {read_header(batch).base_offset: batch for batch in other.batches}
        at = max(self.start.offset, other.start.offset)
        if at > min(self.end, other.end):
            return self.start.offset
        for base in sorted(mine):
            if base >= other.end or mine[base] != theirs.get(base, mine[base]):
                return max(base, self.start.offset)
        return self.end


class Crasher:
    """Runs random operations on a log, remembering every state that was staged and how many were reported done."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimulatedDisk(self.rng)
        self.term = 1
        self.open()

    def open(self) -> None:
        self.disk.fsync_dir("/")  # as NodeDirectory.open does: a killed process may have made the directory
        self.log = ShardLog.open(self.disk, DIRECTORY, CONFIG, clock_ms=lambda: 0)
        self.committer = GroupCommitter(self.disk)
        self.states = [self.observe()]
        self.done = 0
        self.sequences = {pid: self.next_sequence(pid) for pid in (5, 6)}

    def next_sequence(self, pid: int) -> int:
        last = self.log.producers.last_batch(pid)
        return 0 if last is None else last.last_sequence + 1

    def observe(self) -> State:
        batches: list[bytes] = []
        at = self.log.log_start
        while at < self.log.log_end:
            for batch in self.log.read(at, 400, self.log.log_end):
                batches.append(bytes(batch))
                at = read_header(batch).next_offset
        return State(self.log.terms.start, batches, self.log.hard_state.term, self.log.members.base)

    def stage(self) -> LogOp:
        last = self.states[-1]
        kind = self.rng.choices(
            ["append", "truncate", "trim", "reset", "promise", "checkpoint"], [60, 6, 5, 1, 5, 3]
        )[0]
        batches, start, term, base = list(last.batches), last.start, last.term, last.base
        if kind == "truncate":
            cut = self.rng.choice([read_header(b).base_offset for b in batches if b] or [last.end])
            cut = max(cut, start.offset)
            if any(read_header(b).base_offset < cut < read_header(b).next_offset for b in batches):
                cut = last.end
            op = self.log.truncate(cut)
            batches = [b for b in batches if read_header(b).base_offset < cut]
            self.term += 1
            self.sequences = {pid: self.next_sequence(pid) for pid in (5, 6)}
        elif kind == "trim" and self.log.durable_end > start.offset:
            to = self.rng.randint(start.offset + 1, self.log.durable_end)
            op_or_none = self.log.trim(to)
            assert op_or_none is not None
            op = op_or_none
            start = self.log.terms.start
            base = ([base] + [said for end, said in last.members if end <= to])[-1]
            batches = [b for b in batches if read_header(b).next_offset > to]
        elif kind == "reset":
            start = EntryId(self.term, self.rng.randint(0, 300))
            base = Members((self.term,), (1, 2))
            op, batches = self.log.reset(start, members=base), []
            self.sequences = {5: 0, 6: 0}
        elif kind == "promise":
            self.term += 1
            term = self.term
            op = self.log.hard_state.stage(term, self.rng.choice([None, 1, 2]))
        elif kind == "checkpoint":
            op = self.log.checkpoint()
        else:
            new = self.new_batches()
            op = self.log.stage_append(new)
            batches += new
        self.states.append(State(start, batches, term, base))
        assert (self.log.members.base, self.log.members.items()) == (base, self.states[-1].members)
        return op

    def new_batches(self) -> list[bytes]:
        new: list[bytes] = []
        at = self.log.log_end
        for _ in range(self.rng.randint(1, 4)):
            if self.rng.random() < 0.15:
                members = Members((1, 2, 3), learners=(self.rng.randint(4, 99),))
                new.append(bytes(build_members(members, max(self.term, self.log.end.term), at, 1000)))
                at += 1
                continue
            count = self.rng.randint(1, 3)
            pid = self.rng.choice([-1, 5, 6])
            sequence = self.sequences.get(pid, -1)
            batch = batch_at(
                at,
                count=count,
                term=max(self.term, self.log.end.term),
                size=self.rng.choice((5, 60, 700)),
                producer_id=pid,
                sequence=sequence,
            )
            if pid >= 0:
                self.sequences[pid] += count
            new.append(bytes(batch))
            at += count
        return new

    def run(self, groups: int) -> None:
        for _ in range(groups):
            for _ in range(self.rng.randint(1, 5)):
                self.committer.add(self.stage())
            for op, error in self.committer.commit():
                assert error is None
                finish(op, None)
                self.done += 1

    def check(self) -> None:
        """After reopening: is the log one that the acknowledgements allow?"""
        before, done = self.states, self.done
        self.open()
        found = self.states[0]
        assert self.log.damaged is None, self.log.damaged
        possible = before[done:]
        assert found.term in {state.term for state in possible}
        assert any(_allows(state, found, possible) for state in possible), self._explain(found, possible)
        assert self.log.members.items() == found.members
        for pid in (5, 6):
            mine = [h for h in map(read_header, found.batches) if h.producer_id == pid]
            last = self.log.producers.last_batch(pid)
            if mine:
                assert last is not None
                assert (last.base_offset, last.last_sequence) == (
                    mine[-1].base_offset,
                    mine[-1].last_sequence,
                )

    def _explain(self, found: State, possible: list[State]) -> str:
        lines = [f"found {found.start}..{found.end} of {len(found.batches)} batches; possible:"]
        lines += [f"  {state.start}..{state.end} of {len(state.batches)}" for state in possible]
        return "\n".join(lines)


def _allows(state: State, found: State, possible: list[State]) -> bool:
    if (found.start, found.base) != (state.start, state.base):
        return False
    if found.batches != state.batches[: len(found.batches)]:
        return False
    needed = min([state.end, *(state.agrees_up_to(other) for other in possible)])
    return found.end >= needed


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), crash_after=st.integers(0, 150), tear=st.booleans(), killed=st.booleans())
def test_crashes_lose_nothing_that_was_durable(seed: int, crash_after: int, tear: bool, killed: bool) -> None:
    world = Crasher(seed)
    for _ in range(3):
        world.disk.crash_after = world.disk.calls + crash_after
        with contextlib.suppress(SimulatedCrash):
            world.run(groups=12)
        world.disk = world.disk.kill() if killed else world.disk.crash(tear=tear)
        # A crash during recovery itself is harmless too.
        world.disk.crash_after = world.disk.calls + world.rng.randint(0, 6)
        try:
            ShardLog.open(world.disk, DIRECTORY, CONFIG)
        except SimulatedCrash:
            world.disk = world.disk.crash(tear=tear)
        world.disk.crash_after = None
        world.check()


@pytest.mark.slow
def test_crash_at_every_single_call_of_one_run() -> None:
    calls = Crasher(3)
    calls.run(groups=6)
    for crash_after in range(calls.disk.calls):
        for tear in (False, True):
            world = Crasher(3)
            world.disk.crash_after = crash_after
            with pytest.raises(SimulatedCrash):
                world.run(groups=6)
            world.disk = world.disk.crash(tear=tear)
            world.check()
            world.run(groups=2)
            world.disk = world.disk.crash(tear=tear)
            world.check()


@pytest.mark.parametrize("tear", [False, True])
def test_a_reset_brings_its_producers_or_has_not_happened(tear: bool) -> None:
    """A crash at every call of a reset: the old log with its producers, or the new start with those of the snapshot."""
    theirs = ProducerState()
    theirs.update(read_header(batch_at(90, producer_id=9, sequence=4)))
    outcomes = set()
    for crash_after in range(40):
        disk = SimulatedDisk(Random(crash_after))
        log, committer = ShardLog.open(disk, DIRECTORY, CONFIG), GroupCommitter(disk)
        committer.add(log.stage_append([batch_at(0, producer_id=7, sequence=0)]))
        committer.add(log.checkpoint())
        committer.commit()
        disk.crash_after = disk.calls + crash_after
        committer.add(log.reset(EntryId(3, 100), ProducerState.decode(theirs.encode())))
        with contextlib.suppress(SimulatedCrash):
            committer.commit()
        log = ShardLog.open(disk.crash(tear=tear), DIRECTORY, CONFIG)
        known = [number for number in (7, 9) if log.producers.last_batch(number) is not None]
        outcomes.add((log.end, *known))
    assert outcomes == {(EntryId(1, 1), 7), (EntryId(3, 100), 9)}


def test_names_left_by_a_killed_process_are_made_durable() -> None:
    """The segment's name was not synced when the process was killed; the next process wrote into it and lost it."""
    for seed in range(20):
        disk = SimulatedDisk(Random(seed))
        log, committer = ShardLog.open(disk, DIRECTORY, CONFIG), GroupCommitter(disk)
        disk.fail_kind, disk.fail_after = "fsync_dir", 0
        committer.add(log.stage_append([batch_at(0)]))
        assert committer.commit()[0][1] is not None
        again = disk.kill()
        again.fsync_dir("/")  # as NodeDirectory.open does
        log, committer = ShardLog.open(again, DIRECTORY, CONFIG), GroupCommitter(again)
        committer.add(log.stage_append([batch_at(0)]))
        assert committer.commit()[0][1] is None
        assert ShardLog.open(again.crash(), DIRECTORY, CONFIG).log_end == 1
