"""What becomes of a split when its parent, or the shard that was split off, lost most replicas."""

from typing import Any

import msgspec

from antiphon.errors import UnavailableError
from antiphon.model.cluster import SplitReport, SplitStep
from antiphon.model.metadata import ShardRecovery, ShardStatus, Split, SplitPhase
from tests.coordination.test_splits import NODES, PARENT, World


def recovered(world: World, shard_id: int, **changes: Any) -> None:
    """A shard lost most replicas once, and is led again by node 0."""
    record = world.ledger.model.shards[shard_id]
    known = ShardRecovery(1_000_000, 0, NODES, 5, done=True)
    meta = msgspec.structs.replace(
        record.meta, recovery=known, leader=0, status=ShardStatus.ONLINE, **changes
    )
    world.ledger.put_shard(msgspec.structs.replace(record, meta=meta))
    world.drain()


def test_a_copy_of_a_parent_that_lost_most_replicas_is_given_up() -> None:
    """It may be ahead of what is left of the parent."""
    world = World(1)
    world.command()
    world.drain()
    (child,) = world.children.values()
    recovered(world, child.shard_id, split=Split(PARENT, SplitPhase.RELEASE, 7, 9))
    world.splits.report(0, SplitReport(child.shard_id, 1, SplitStep.RELEASED, 7))
    world.drain()
    assert world.state.shards[child.shard_id].meta.split is None, "the release is there: the child has joined"
    world = World(1)
    world.command()
    world.drain()
    (child,) = world.children.values()
    recovered(world, child.shard_id, split=Split(PARENT, SplitPhase.RELEASE, 7, 9))
    recovered(world, PARENT)
    world.splits.report(0, SplitReport(child.shard_id, 1, SplitStep.LOST, 7))
    world.drain()
    assert child.shard_id not in world.state.shards
    assert isinstance(world.answers[1], UnavailableError)


def test_the_leader_of_a_recovered_child_says_where_its_own_changes_begin() -> None:
    world = World(1)
    world.command()
    world.drain()
    (child,) = world.children.values()

    def told(start: int, term: int = 1, sender: int = 0) -> int:
        world.splits.report(sender, SplitReport(child.shard_id, term, SplitStep.COPIED, -1, start))
        world.drain()
        return world.state.shards[child.shard_id].meta.own_start

    recovered(world, child.shard_id, split=None, own_start=40)
    assert told(7, term=5) == 40, "of another term"
    assert told(7, sender=2) == 40, "of a node that does not lead"
    assert told(7) == 7
    recovered(world, child.shard_id, own_start=0)
    assert told(7) == 0, "it was made with its table"
    recovered(world, child.shard_id, own_start=40)
    record = world.ledger.model.shards[child.shard_id]
    meta = msgspec.structs.replace(record.meta, recovery=None)
    world.ledger.put_shard(msgspec.structs.replace(record, meta=meta))
    assert told(7) == 40, "a late report of its split"
