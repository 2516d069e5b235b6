"""The split of a shard under any order of events: leaders and coordinators lost, late metadata, old reports.

The world here has the parts that decide: the coordinator's `Splits`, `next_entry` of the parent's leader, the rules of the
entries (`table.ranges`) and of copying (`table.copying`). Logs are lists with a committed prefix; whatever is beyond it may
be lost with a leader. Each node sees the metadata as of some committed version, ever newer ones. Clients ask any shard at
any time. After each step: nothing of the range is written in two places, and what the child starts with is what the parent
had; in the end every key has the value that was acknowledged last.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.actions import Answer, Propose
from antiphon.coordination.cluster_records import SHARD_COUNTER, ShardRecord
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.splits import EDGES, FREEZE_MS_MAX, Splits
from antiphon.coordination.state import ClusterState
from antiphon.errors import AntiphonError, InvalidRequestError, UnavailableError, UnknownShardError
from antiphon.model.cluster import CommandDone, SplitReport, SplitStep
from antiphon.model.metadata import Kind, ShardMeta, ShardStatus, Split, SplitPhase, TopicMeta, key_hash
from antiphon.model.requests import SplitShard
from antiphon.node.splits import next_entry
from antiphon.records.changes import VERSION
from antiphon.records.split_entries import Freeze, Inherit, Release, SplitEntry, Thaw
from antiphon.table.copying import CopiedRow, differences, newer
from antiphon.table.ranges import WHOLE, OwnedRange, advance

HALF = 1 << 31
PARENT = 1
TOPIC = TopicMeta("t", b"t" * 16, Kind.TABLE, 3, "oxia", ())
KEYS = [b"k%d" % number for number in range(14)]
HIGH = [key for key in KEYS if key_hash(key) >= HALF]
NODES = (0, 1, 2)


def packed(version_id: int) -> bytes:
    return VERSION.pack(version_id, 0, 0, 0)


class Rows:
    """A shard's log folded up to some offset."""

    def __init__(self) -> None:
        self.at = 0
        self.rows: dict[bytes, CopiedRow] = {}
        self.owned: OwnedRange = WHOLE
        self.next_id = 0

    def apply(self, entry: CopiedRow | SplitEntry) -> None:
        if isinstance(entry, CopiedRow):
            if entry.value is None:
                del self.rows[entry.key]  # whoever appends a removal has the row
            else:
                self.rows[entry.key] = entry
                self.next_id = max(self.next_id, entry.version_id + 1)
        else:
            self.owned = advance(self.owned, entry, self.at)
            if isinstance(entry, Inherit):
                self.next_id = max(self.next_id, entry.next_version_id)
            if isinstance(entry, Release):
                self.rows = {key: row for key, row in self.rows.items() if self.owned.holds(key)}
        self.at += 1

    def copy(self) -> "Rows":
        other = Rows()
        other.at, other.owned, other.next_id, other.rows = self.at, self.owned, self.next_id, dict(self.rows)
        return other


class Shard:
    """A log with its leader: everything committed is kept, the rest may be lost."""

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.log: list[CopiedRow | SplitEntry] = []
        self.acks: dict[int, Callable[[], None]] = {}  # by offset
        self.committed = Rows()
        self.ahead = Rows()  # with what is not committed: what the leader judges on
        self.term, self.leader = 1, 0

    def append(self, entry: CopiedRow | SplitEntry, ack: Callable[[], None] | None = None) -> None:
        if ack is not None:
            self.acks[len(self.log)] = ack
        self.log.append(entry)
        self.ahead.apply(entry)

    def commit(self, to: int) -> None:
        while self.committed.at < to:
            at = self.committed.at
            self.committed.apply(self.log[at])
            if at in self.acks:
                self.acks.pop(at)()

    def change_leader(self, random: Random) -> None:
        """The new leader has any part of what is not committed, and commits it."""
        keep = random.randint(self.committed.at, len(self.log))
        del self.log[keep:]
        self.acks = {at: ack for at, ack in self.acks.items() if at < keep}
        self.commit(keep)
        self.ahead = self.committed.copy()
        self.term += 1
        self.leader = random.choice(NODES)


class Copier:
    """What the leader of a child remembers of its copying; see `node.split_copy`."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.position = -1
        self.began_at = 0
        self.pages: list[list[bytes]] | None = None
        self.inherited = (-1, -1)


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.state = ClusterState()
        self.version = 1
        self.parent = Shard(PARENT)
        self.children: dict[int, Shard] = {}
        self.local: dict[int, int] = dict.fromkeys(NODES, 0)  # how far each node's replica of the parent is
        self.views: dict[int, ClusterState] = dict.fromkeys(NODES, self.state)
        self.past: list[ClusterState] = []
        self.seen: dict[int, int] = dict.fromkeys(NODES, 0)
        self.copiers: dict[int, Copier] = {}
        self.reports: list[tuple[int, SplitReport]] = []
        self.proposals: list[Propose] = []
        self.answers: dict[int, Any] = {}
        self.acknowledged: dict[bytes, bytes] = {}
        self.tokens = 0
        self.now_ms = 0
        self.values = 0
        self.moved: set[int] = set()  # children that took a client's write
        self.events = [
            self.client_step, self.commit_step, self.parent_step, self.children_step, self.deliver, self.commit_next,
            self.learn_step, self.lose_leader, self.rare,
        ]  # fmt: skip
        often, seldom = [2, 4, 8], [0.02, 0.1, 0.4]
        self.weights: list[float] = [self.random.choice(often) for _ in self.events[:6]]
        self.weights += [self.random.choice([0.3, 1, 4]), *(self.random.choice(seldom) for _ in range(2))]
        self.commit_metadata([])
        self.start_coordinator()
        self.ledger.put_topic(TOPIC)
        self.ledger.take(SHARD_COUNTER, PARENT)
        self.ledger.put_shard(ShardRecord(TOPIC.topic_id, online(ShardMeta(PARENT, 0, NODES), self.parent)))
        self.drain()

    # -- coordinator ----------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        self.ledger = Ledger(self.state)
        self.splits = Splits(self.ledger, self.elect, lambda _: None)
        for shard in self.shards():
            self.record_leader(shard)

    def crash_coordinator(self) -> None:
        for proposal in self.proposals[: self.random.randint(0, len(self.proposals))]:
            self.commit_metadata(list(proposal.records))
        self.proposals.clear()
        self.start_coordinator()
        self.act()

    def elect(self, shard_id: int, _wanted: int) -> None:
        self.children[shard_id] = Shard(shard_id)
        self.record_leader(self.children[shard_id])

    def record_leader(self, shard: Shard) -> None:
        record = self.ledger.model.shards.get(shard.shard_id)
        if record is not None:
            self.ledger.put_shard(msgspec.structs.replace(record, meta=online(record.meta, shard)))

    def act(self) -> None:
        for action in self.ledger.flush():
            if isinstance(action, Propose):
                self.proposals.append(action)
            elif isinstance(action, Answer):
                self.answers[action.token] = action.result

    def commit_metadata(self, records: list[Any]) -> None:
        self.version += 1
        self.state.apply(records, self.version)
        self.past.append(self.state.clone())

    def commit_next(self) -> None:
        if self.proposals:
            proposal = self.proposals.pop(0)
            self.commit_metadata(list(proposal.records))
            for record in self.ledger.committed(proposal.token, self.version).shards.values():
                self.splits.committed(record)
            self.act()

    def drain(self) -> None:
        self.act()
        while self.proposals:
            self.commit_next()

    def command(self) -> None:
        self.tokens += 1
        try:
            self.splits.split(self.tokens, SplitShard(PARENT, HALF))
        except (InvalidRequestError, UnavailableError) as error:
            self.answers[self.tokens] = error
        self.act()

    # -- nodes ----------------------------------------------------------------------------------------------------

    def shards(self) -> list[Shard]:
        known = self.ledger.model.shards
        return [self.parent] + [child for child in self.children.values() if child.shard_id in known]

    def learn(self, node: int, *, everything: bool = False) -> None:
        newest = len(self.past) - 1
        self.seen[node] = newest if everything else self.random.randint(self.seen[node], newest)

    def view(self, node: int) -> dict[int, ShardMeta]:
        return {shard_id: record.meta for shard_id, record in self.past[self.seen[node]].shards.items()}

    def say(self, sender: int, report: SplitReport) -> None:
        self.reports.append((sender, report))

    def parent_step(self) -> None:
        parent = self.parent
        if parent.ahead.owned != parent.committed.owned:
            return
        metas = self.view(parent.leader).values()
        child = next((meta for meta in metas if meta.split is not None and meta.split.parent == PARENT), None)
        step = next_entry(parent.committed.owned, child)
        if isinstance(step, SplitStep):
            assert child is not None
            assert child.split is not None
            self.say(parent.leader, SplitReport(child.shard_id, parent.term, step, child.split.frozen_at))
        elif step is not None:
            parent.append(step)

    def child_step(self, child: Shard) -> None:
        meta = self.view(child.leader).get(child.shard_id)
        if meta is None or meta.split is None or meta.split.phase is SplitPhase.RELEASE:
            return
        copier = self.copiers.get(child.shard_id)
        if copier is None or copier.term != child.term:
            copier = self.copiers[child.shard_id] = Copier(child.term)
        if child.ahead.at != child.committed.at:
            return  # the copier waits for its commits
        local = folded(self.parent, self.local[child.leader])
        if local.owned.last < meta.hashes[0]:
            return
        if copier.position < 0:
            self.scan_step(child, copier, local)
            return
        for entry in self.parent.log[copier.position : local.at][: self.random.randint(0, 6)]:
            copier.position += 1
            if isinstance(entry, CopiedRow) and key_hash(entry.key) >= HALF:
                known = child.ahead.rows.get(entry.key)
                for row in newer([entry], {entry.key: None if known is None else known.version_id}):
                    child.append(row)
        if meta.split.phase is SplitPhase.COPY:
            if local.at - copier.position < 3:
                self.say(child.leader, SplitReport(child.shard_id, child.term, SplitStep.CLOSE))
        elif local.owned.child == child.shard_id and copier.position > local.owned.frozen_at:
            self.finish_step(child, copier, local)

    def scan_step(self, child: Shard, copier: Copier, local: Rows) -> None:
        if copier.pages is None:
            copier.began_at = local.at
            copier.pages = [HIGH[:3], HIGH[3:]]
        page = copier.pages.pop(0)
        theirs = [local.rows[key] for key in page if key in local.rows]
        own = [child.ahead.rows[key] for key in page if key in child.ahead.rows]
        for row in differences(theirs, own, 0):
            child.append(row)
        if not copier.pages:
            copier.pages, copier.position = None, copier.began_at

    def finish_step(self, child: Shard, copier: Copier, local: Rows) -> None:
        frozen_at = local.owned.frozen_at
        if copier.inherited[0] != frozen_at:
            child.append(Inherit(HALF, 2 * HALF - 1, PARENT, frozen_at, local.next_id))
            copier.inherited = (frozen_at, len(child.log))
        elif child.committed.at >= copier.inherited[1]:
            self.say(
                child.leader, SplitReport(child.shard_id, child.term, SplitStep.COPIED, *copier.inherited)
            )

    # -- clients --------------------------------------------------------------------------------------------------

    def write(self, shard: Shard, key: bytes) -> bool:
        """A client asks a shard's leader to set or remove a key; acknowledged when that is committed."""
        judged = shard.ahead
        owned = judged.owned
        if not owned.holds(key) or (owned.is_frozen and key_hash(key) >= owned.frozen_from):
            return False
        if shard is not self.parent:
            meta = self.view(shard.leader).get(shard.shard_id)
            if meta is None or meta.split is not None:
                return False  # it does not serve yet
            self.check_child(shard)
        self.values += 1
        value = b"%d" % self.values
        current = judged.rows.get(key)
        if current is not None and self.random.random() < 0.2:
            shard.append(CopiedRow(key, current.version, None), lambda: self.acknowledge(shard, key, None))
        else:
            version = packed(judged.next_id)
            shard.append(CopiedRow(key, version, value), lambda: self.acknowledge(shard, key, value))
        return True

    def acknowledge(self, shard: Shard, key: bytes, value: bytes | None) -> None:
        if shard is self.parent:
            assert not (key in HIGH and self.moved), "the parent wrote what is the child's"
        if value is None:
            self.acknowledged.pop(key, None)
        else:
            self.acknowledged[key] = value

    def check_child(self, child: Shard) -> None:
        """The first write that a child takes: it starts where the parent ended."""
        if child.shard_id in self.moved:
            return
        assert not self.moved, "two children for one range"
        self.moved.add(child.shard_id)
        parent = self.parent
        assert parent.committed.owned.last == HALF - 1, "the parent has not let go"
        released = max(
            at for at, entry in enumerate(parent.log[: parent.committed.at]) if isinstance(entry, Release)
        )
        before = folded(parent, released)
        theirs = {key: row.version for key, row in before.rows.items() if key_hash(key) >= HALF}
        assert {key: row.version for key, row in child.ahead.rows.items()} == theirs
        newest = max(
            (e.version_id for e in parent.log if isinstance(e, CopiedRow) and e.key in HIGH), default=-1
        )
        assert child.ahead.next_id > newest

    # -- time -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One event; each world has its own idea of what is frequent."""
        (event,) = self.random.choices(self.events, self.weights)
        event()

    def client_step(self) -> None:
        self.write(self.random.choice(self.shards()), self.random.choice(KEYS))

    def commit_step(self) -> None:
        shard = self.random.choice(self.shards())
        shard.commit(self.random.randint(shard.committed.at, len(shard.log)))
        self.spread()

    def lose_leader(self) -> None:
        shard = self.random.choice(self.shards())
        shard.change_leader(self.random)
        self.record_leader(shard)
        self.act()

    def learn_step(self) -> None:
        self.learn(self.random.choice(NODES))

    def children_step(self) -> None:
        for child in self.shards()[1:]:
            self.child_step(child)

    def rare(self) -> None:
        chance = self.random.random()
        if chance < 0.2:
            self.crash_coordinator()
        elif chance > 0.9:
            self.now_ms += FREEZE_MS_MAX
            self.splits.tick(self.now_ms)
            self.act()
        elif chance < 0.5:
            self.command()
        elif chance < 0.55 and self.shards()[1:]:
            child = self.shards()[-1]
            self.say(child.leader, SplitReport(child.shard_id, child.term, SplitStep.STUCK, reason="a test"))

    def spread(self, *, everything: bool = False) -> None:
        committed = self.parent.committed.at
        for node in NODES:
            self.local[node] = committed if everything else self.random.randint(self.local[node], committed)

    def deliver(self) -> None:
        if not self.reports:
            return
        at = self.random.randrange(len(self.reports))
        sender, report = self.reports[at]
        if self.random.random() < 0.7:
            del self.reports[at]
        self.splits.report(sender, report)
        self.act()

    def quieten(self) -> None:
        """No more faults: what is under way comes to its end."""
        self.reports.clear()
        for _ in range(400):
            self.drain()
            for shard in self.shards():
                shard.commit(len(shard.log))
            self.spread(everything=True)
            for node in NODES:
                self.learn(node, everything=True)
            self.parent_step()
            for child in self.shards()[1:]:
                self.child_step(child)
            while self.reports:
                self.splits.report(*self.reports.pop(0))
                self.drain()
            self.drain()
        assert not len(self.splits)
        assert not self.parent.committed.owned.is_frozen

    def check(self) -> None:
        found: dict[bytes, bytes] = {}
        for shard in self.shards():
            for key, row in shard.committed.rows.items():
                assert key not in found, "a key is in two shards"
                found[key] = row.value or b""
        assert found == self.acknowledged
        shards = [record.meta for record in self.state.shards.values()]
        if len(shards) > 1:
            assert sorted(meta.hashes for meta in shards) == [(0, HALF - 1), (HALF, 2 * HALF - 1)]
            assert sorted(meta.index for meta in shards) == [0, 1]


def online(meta: ShardMeta, shard: Shard) -> ShardMeta:
    return msgspec.structs.replace(meta, leader=shard.leader, term=shard.term, status=ShardStatus.ONLINE)


def folded(shard: Shard, to: int) -> Rows:
    rows = Rows()
    for entry in shard.log[:to]:
        rows.apply(entry)
    return rows


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(20, 500))
def test_whatever_happens_no_key_is_lost_doubled_or_written_in_two_places(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps // 10):
        world.step()
    world.command()
    for _ in range(steps):
        world.step()
    world.quieten()
    world.check()


def test_many_runs_reach_the_end_of_a_split() -> None:
    """The random worlds are no use if nothing ever comes of them."""
    done = lost = 0
    for seed in range(60):
        world = World(seed)
        world.command()
        for _ in range(1500):
            world.step()
        done += bool(world.moved)
        lost += any(isinstance(entry, Thaw) for entry in world.parent.log)
        world.quieten()
        world.check()
    assert done > 20
    assert lost > 5, "freezes that were taken back"


def test_a_quiet_split_is_answered_when_it_is_done() -> None:
    world = World(1)
    for key in KEYS:
        world.write(world.parent, key)
    world.command()
    world.quieten()
    world.check()
    assert isinstance(world.answers[1], CommandDone)
    world.tokens += 1
    world.splits.split(world.tokens, SplitShard(PARENT, HALF))  # a repeat
    world.drain()
    assert isinstance(world.answers[2], CommandDone)
    with pytest.raises(UnknownShardError):
        world.splits.split(3, SplitShard(77))


@pytest.mark.parametrize("phase", list(SplitPhase))
@pytest.mark.parametrize("step", list(SplitStep))
def test_reports_that_do_not_fit_the_phase_change_nothing(phase: SplitPhase, step: SplitStep) -> None:
    world = World(1)
    world.command()
    world.drain()
    (child,) = world.children.values()
    record = world.ledger.model.shards[child.shard_id]
    split = Split(PARENT, phase, 7, 9)
    world.ledger.put_shard(
        msgspec.structs.replace(record, meta=msgspec.structs.replace(record.meta, split=split))
    )
    world.drain()
    world.splits.report(0, SplitReport(child.shard_id, 5, step, 7, 9))  # of another term
    world.splits.report(2, SplitReport(child.shard_id, 1, step, 7, 9))  # of a node that does not lead
    if phase is SplitPhase.RELEASE:
        world.splits.report(0, SplitReport(child.shard_id, 1, step, 6, 9))  # of another freeze
    world.drain()
    assert world.state.shards[child.shard_id].meta.split == split
    world.splits.report(0, SplitReport(child.shard_id, 1, step, 7, 9))
    world.drain()
    left = world.state.shards.get(child.shard_id)
    if (phase, step) in EDGES:
        found = None if left is None or left.meta.split is None else left.meta.split.phase
        assert found == EDGES[phase, step]
    elif step is SplitStep.STUCK and phase is not SplitPhase.RELEASE:
        assert left is None
        assert isinstance(world.answers[1], AntiphonError)
    else:
        assert left is not None
        assert left.meta.split == split


def test_a_freeze_that_takes_too_long_is_taken_back() -> None:
    world = World(1)
    world.command()
    world.drain()
    (child,) = world.children.values()
    world.splits.report(0, SplitReport(child.shard_id, 1, SplitStep.CLOSE))
    world.drain()
    for now_ms, phase in [
        (0, SplitPhase.FREEZE),
        (FREEZE_MS_MAX - 1, SplitPhase.FREEZE),
        (FREEZE_MS_MAX, SplitPhase.COPY),
    ]:
        world.splits.tick(now_ms)
        world.drain()
        assert world.state.shards[child.shard_id].meta.split == Split(PARENT, phase)
    world.quieten()
    world.check()


def test_entries_that_do_not_fit_change_nothing() -> None:
    frozen = advance(WHOLE, Freeze(HALF, 9), 70)
    assert (frozen.frozen_from, frozen.frozen_at, frozen.child) == (HALF, 70, 9)
    assert advance(frozen, Freeze(HALF + 5, 10), 71) == frozen
    assert advance(frozen, Thaw(69), 71) == frozen
    assert advance(frozen, Release(69, HALF, 9, 0), 71) == frozen
    assert advance(frozen, Thaw(70), 71) == WHOLE
    released = advance(frozen, Release(70, HALF, 9, 0), 71)
    assert (released.first, released.last, released.purging) == (0, HALF - 1, True)
    assert advance(released, Freeze(HALF, 11), 72) == released
