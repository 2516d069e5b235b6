"""Checkpoints of the metadata: when one is due, what it has, and that a fold from it is the fold from 0."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.coordination.actions import Propose, Record
from antiphon.coordination.checkpoints import CheckpointRule, Checkpoints
from antiphon.coordination.cluster_records import (
    CHECKPOINT_KEY,
    FORMAT_HEADER,
    PRODUCER_COUNTER,
    ClusterRecord,
    ShardRecord,
    checkpoint_record,
    cluster_record,
    headers_of,
    node_record,
    shard_gone,
    shard_record,
    topic_gone,
    topic_record,
)
from antiphon.coordination.coordinator import Coordinator, CoordinatorConfig
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.state import Checkpoint, ClusterState
from antiphon.invariants import InvariantError
from antiphon.model.access import User
from antiphon.model.client_metrics import Subscription
from antiphon.model.cluster import MetadataView
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta, TopicMeta
from antiphon.model.node_settings import NodeSettings
from antiphon.simulation.cluster.metadata_watch import objects_of

OFTEN = CheckpointRule(records=1, per_object=1, batch=2)
VOTER = NodeMeta(0, "h:1", reads=4)


def topic(name: str, number: int) -> TopicMeta:
    return TopicMeta(name, bytes([number]) * 16, Kind.TOPIC, 1, "oxia", ())


def shard(shard_id: int, number: int, leader: int = -1) -> ShardRecord:
    return ShardRecord(bytes([number]) * 16, ShardMeta(shard_id, 0, (0, 1), leader))


@dataclass
class World:
    """A ledger with its log: what is proposed is committed when the test says so."""

    rule: CheckpointRule = OFTEN
    voters: tuple[int, ...] = (0,)
    log: list[tuple[int, tuple[Record, ...]]] = field(default_factory=list)  # end of the batch, records
    state: ClusterState = field(default_factory=ClusterState)
    shards: int = 0

    def __post_init__(self) -> None:
        self.new_coordinator()

    def new_coordinator(self) -> None:
        """Another one, that knows what is committed."""
        self.ledger = Ledger(self.state)
        self.checkpoints = Checkpoints(self.ledger, lambda: self.voters, self.rule)
        self.flying: list[Propose] = []

    def flush(self) -> None:
        """What was decided is proposed, where nothing stands in the way."""
        self.flying += [action for action in self.ledger.flush() if isinstance(action, Propose)]

    def commit(self) -> None:
        """The oldest proposal is committed."""
        self.flush()
        if not self.flying:
            return
        proposal = self.flying.pop(0)
        end = self.state.version + len(proposal.records)
        self.log.append((end, proposal.records))
        self.state.apply(proposal.records, end)
        self.ledger.model.version = end
        batch = self.ledger.committed(proposal.token, end)
        if batch.is_of_checkpoint:
            self.checkpoints.committed(end)
        self.flush()

    def until_closed(self) -> Checkpoint:
        """Let the coordinator write until there is another checkpoint."""
        before = self.state.checkpoint
        for _ in range(200):
            self.checkpoints.tick()
            self.commit()
            if self.state.checkpoint != before:
                break
            if not self.checkpoints.is_under_way:
                self.ledger.take("test")  # until one is due
        assert self.state.checkpoint is not None
        assert self.state.checkpoint != before
        return self.state.checkpoint

    def folded_from(self, begin: int) -> ClusterState:
        """A fold that begins there, of everything behind it."""
        found = ClusterState(begin)
        for end, records in self.log:
            if end > begin:
                found.apply(records, end)
        return found

    def create(self, name: str) -> None:
        """A topic with one shard."""
        self.shards += 1
        self.ledger.put_topic(topic(name, self.shards))
        self.ledger.put_shard(shard(self.shards, self.shards))


def some_world(**options: Any) -> World:
    """With some objects of each kind that are committed."""
    world = World(**options)
    world.ledger.put_cluster(ClusterRecord("c"))
    world.ledger.put_node(VOTER)
    world.ledger.take(PRODUCER_COUNTER)
    world.create("a")
    world.create("b")
    world.ledger.put_access("user", "alice", User("alice"))
    world.commit()
    return world


def test_fold_from_a_checkpoint_is_the_fold_from_the_beginning() -> None:
    world = some_world()
    found = world.until_closed()
    assert found == Checkpoint(world.log[0][0], world.state.version)
    fold = world.folded_from(found.begin)
    assert fold.is_whole
    assert objects_of(fold) == objects_of(world.state)
    assert (fold.version, fold.checkpoint) == (world.state.version, found)
    assert all(len(records) <= OFTEN.batch for _, records in world.log[1:])


def test_half_a_checkpoint_is_not_whole() -> None:
    world = some_world()
    found = world.until_closed()
    fold = ClusterState(found.begin)
    assert not fold.is_whole
    for end, records in world.log:
        if found.begin < end < found.end:
            fold.apply(records, end)
            assert not fold.is_whole
    fold.apply([checkpoint_record(found.begin - 1)], found.end)
    assert not fold.is_whole, "one that begins before the fold does not cover it"


@pytest.mark.parametrize(("records", "per_object", "due"), [(30, 1, 30), (1, 3, 24)])
def test_none_before_enough_was_recorded(records: int, per_object: int, due: int) -> None:
    """What the last one wrote does not count."""
    world = some_world(rule=CheckpointRule(records, per_object))
    assert world.state.object_count == 8
    for _ in range(2):
        since = 0 if world.state.checkpoint is None else world.state.checkpoint.end
        while world.state.version - since < due:
            world.checkpoints.tick()
            assert not world.checkpoints.is_under_way
            world.ledger.take(PRODUCER_COUNTER)
            world.commit()
        world.checkpoints.tick()
        assert world.checkpoints.is_under_way
        assert world.until_closed().begin == since + due


def test_none_where_it_is_switched_off() -> None:
    world = some_world(rule=CheckpointRule(records=0, per_object=0))
    for _ in range(10):
        world.checkpoints.tick()
        world.commit()
    assert len(world.log) == 1


def test_none_before_every_voter_reads_it() -> None:
    """A voter of an older version would stop, and with two of three nobody could decide anything."""
    world = some_world(voters=(0, 1))
    for older in (None, NodeMeta(1, "h:2")):
        if older is not None:
            world.ledger.put_node(older)
        world.commit()
        before = len(world.log)
        world.checkpoints.tick()
        world.commit()
        assert len(world.log) == before
    world.ledger.put_node(NodeMeta(1, "h:2", reads=4))
    world.commit()
    assert world.until_closed()


def test_none_goes_on_while_the_disk_is_full() -> None:
    """What is kept free is for votes and elections."""
    world = some_world()
    config = CoordinatorConfig("c", checkpoints=CheckpointRule(records=1, per_object=0))
    coordinator = Coordinator(config, world.state)
    coordinator.start(0)
    assert not coordinator.tick(50, False)
    assert any(isinstance(action, Propose) for action in coordinator.tick(100, True))


def test_successor_ignores_an_unfinished_checkpoint() -> None:
    world = some_world()
    begin = world.state.version
    for _ in range(3):
        world.checkpoints.tick()
        world.commit()
    assert world.state.version > begin
    assert world.state.checkpoint is None
    world.ledger.drop_topic("a")
    world.commit()
    world.new_coordinator()
    found = world.until_closed()
    assert found.begin > begin
    assert objects_of(world.folded_from(found.begin)) == objects_of(world.state)
    assert not world.folded_from(begin).topics.get("a")


def test_what_is_decided_and_not_committed_yet_is_in_one_batch_with_its_repeat() -> None:
    """A repeat that came before what it says was decided together with would tell of half a decision."""
    world = some_world(rule=CheckpointRule(records=1, per_object=0, batch=256))
    for name in ("x", "y"):
        world.create(name)
        world.flush()
    world.create("z")  # waits: two batches are in flight
    world.checkpoints.tick()
    world.flush()
    assert len(world.flying) == 2
    world.commit()
    assert {b"topic/z", b"shard/5", b"cluster"} <= {key for key, _ in world.flying[-1].records}


def test_repeats_are_no_news() -> None:
    """Or each checkpoint would be pushed to every node."""
    world = some_world()
    before = world.state.version
    world.until_closed()
    change = world.state.delta(before, cluster_id="c", controller=0, coordinator_term=1)
    assert change.base_version == before
    assert (change.nodes, change.topics, change.shards, change.access.users) == ((), (), (), ())


def test_whoever_knew_more_is_told_everything_by_a_fold_that_began_later() -> None:
    world = some_world()
    known = world.state.version
    view = MetadataView("c")
    assert view.apply(world.state.delta(-1, cluster_id="c", controller=0, coordinator_term=1))
    world.ledger.drop_topic("a")
    world.commit()
    found = world.until_closed()
    fold = world.folded_from(known)  # it meets the removal, and never knew what is removed
    assert fold.is_whole
    assert found.begin >= known
    assert view.apply(fold.delta(view.version, cluster_id="c", controller=0, coordinator_term=1))
    assert [one.name for one in view.cluster().topics] == ["b"]


def test_record_is_written_as_documented() -> None:
    key, value = checkpoint_record(300)
    assert (key, (value or b"").hex()) == (b"checkpoint", "91cd012c")
    assert headers_of(key, value) == ((FORMAT_HEADER, b"4"),)
    assert headers_of(*node_record(VOTER)) == ()


@pytest.mark.parametrize(
    "record",
    [checkpoint_record(9), checkpoint_record(-1), (CHECKPOINT_KEY, None), (b"checkpoint/1", b"\x91\x01")],
)
def test_checkpoint_that_makes_no_sense_is_passed_over(record: Record) -> None:
    state = ClusterState()
    assert len(state.apply_readable([record, cluster_record(ClusterRecord("c"))], 9)) == 1
    assert state.checkpoint is None
    assert state.cluster is not None
    with pytest.raises(InvariantError):
        ClusterState().apply([record], 9)


def test_topic_made_anew_in_the_batch_that_removes_it_leaves_nothing_of_the_old_one() -> None:
    state = ClusterState()
    state.apply([topic_record(topic("t", 1)), shard_record(shard(1, 1))], 2)
    state.apply([shard_gone(1), topic_record(topic("t", 2)), shard_record(shard(2, 2))], 5)
    assert state.names == {bytes([2]) * 16: "t"}
    assert state.shards_of == {bytes([2]) * 16: {2: None}}
    change = state.delta(2, cluster_id="c", controller=0, coordinator_term=1)
    assert change.gone_topics == (bytes([1]) * 16,)


def test_removals_of_what_a_fold_never_knew_leave_nothing() -> None:
    fold = ClusterState(5)
    fold.apply([shard_record(shard(1, 1, leader=0))], 6)
    fold.apply([shard_gone(1), topic_gone("t")], 8)
    assert (fold.shards_of, fold.shards_on) == ({}, {0: {}, 1: {}})


def _take(ledger: Ledger, counter: str) -> None:
    ledger.take(counter)


CHANGES: dict[str, Callable[[World, str], None]] = {
    "create": lambda world, name: None if name in world.ledger.model.topics else world.create(name),
    "drop": lambda world, name: world.ledger.drop_topic(name) if name in world.ledger.model.topics else None,
    "node": lambda world, name: world.ledger.put_node(
        NodeMeta(ord(name), "h:1", incarnation=str(world.shards))
    ),
    "node gone": lambda world, name: (
        world.ledger.drop_node(ord(name)) if ord(name) in world.ledger.model.nodes else None
    ),
    "take": lambda world, name: _take(world.ledger, name),
    "user": lambda world, name: world.ledger.put_access("user", name, User(name)),
    "user gone": lambda world, name: world.ledger.put_access("user", name, None),
    "settings": lambda world, name: world.ledger.put_settings(
        NodeSettings(ord(name), {"num_partitions": "2"})
    ),
    "settings gone": lambda world, name: world.ledger.put_settings(NodeSettings(ord(name), {})),
    "subscription": lambda world, name: world.ledger.put_subscription(Subscription(name, {"metrics": "*"})),
    "subscription gone": lambda world, name: world.ledger.put_subscription(Subscription(name, {})),
    "tick": lambda world, _: world.checkpoints.tick(),
    "commit": lambda world, _: world.commit(),
    "flush": lambda world, _: world.flush(),
    "successor": lambda world, _: world.new_coordinator(),
}
STEPS = st.lists(
    st.tuples(st.sampled_from([*CHANGES, *["tick", "commit"] * 4]), st.sampled_from("abc")), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 4))
def test_every_fold_from_a_closed_checkpoint_is_the_fold_from_the_beginning(
    steps: list[tuple[str, str]], batch: int
) -> None:
    world = some_world(rule=CheckpointRule(1, 1, batch))
    begins = {0}
    for step, name in steps:
        CHANGES[step](world, name)
        if world.state.checkpoint is not None:
            begins.add(world.state.checkpoint.begin)
    world.new_coordinator()
    begins.add(world.until_closed().begin)
    for begin in begins:
        fold = ClusterState(begin)
        whole = ClusterState()
        for end, records in world.log:
            whole.apply(records, end)
            if end > begin:
                fold.apply(records, end)
                assert not fold.is_whole or objects_of(fold) == objects_of(whole)
        assert fold.is_whole
        assert fold.names == whole.names
        assert {key: set(value) for key, value in fold.shards_of.items()} == {
            key: set(value) for key, value in whole.shards_of.items()
        }
