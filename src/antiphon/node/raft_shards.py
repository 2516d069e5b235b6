"""Replicas of data shards that vote (election=raft): how they are opened, and what a fresh one may say.

Such a shard needs no coordinator once it is there: its replicas elect their leader, and its members are entries of its log.
What the metadata says matters at two moments only: it names the founders, as long as the log says nothing of members, and it
tells a replica that begins empty what that means:

- The metadata knows of no term and no leader: the shard is new, nothing can have been promised.
- It does, and this data directory may stand in the place of another: the replica *forgot*. An older self may have promised
  and acknowledged anything, so it asks the others for their terms, and votes only after a new term has brought it all.
- It does, and this node is a learner: the replica is *joining*. It has promised nothing, but does not vote before it has
  caught up, because an empty log would vote for anybody.
- It does, and this node is a voter: a founder that was never started, which has promised nothing.

A directory may stand in the place of another until the node has seen, once, which replicas the cluster had placed on it
(`NodeDirectory.may_replace`). A term is in the metadata as soon as a leader has reported it, a heartbeat after its election;
a disk that is lost within that heartbeat of the shard's first term is not recognised.

So that such a replica takes part again after a restart even when no coordinator is in reach, what the metadata said of it
is kept beside its log (`placement`): enough to open it. Whether it still belongs here is for the metadata to say.
"""

import asyncio
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from antiphon import system
from antiphon.errors import UNDECODABLE
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.shard_log import ShardLog
from antiphon.log.snapshot import frame, unframe
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, ShardStatus, TopicMeta
from antiphon.node.config import Timings
from antiphon.partition.restored_log import acknowledged_by_leader, restored_state
from antiphon.records.builder import build_members
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.members import Members
from antiphon.replication.messages import Entry
from antiphon.replication.raft import RaftReplica

if TYPE_CHECKING:
    from antiphon.node.context import NodeContext

Placement = tuple[TopicMeta, ShardMeta]

HAND_OVER_LOOK_S: Final = 0.005
PLACEMENT_NAME: Final = "placement"
PLACEMENT_MAGIC: Final = b"ANTIPHPL"
PLACEMENT_VERSION: Final = 1


def open_raft_replica(
    node: "NodeContext",
    directory: NodeDirectory,
    shard: ShardMeta,
    log: ShardLog,
    high_watermark: int,
    config: ReplicaConfig,
    entries: EntryFactory,
    bound_until_us: int = 0,
) -> RaftReplica:
    """The replica of a shard that elects for itself, from its log."""
    _judge_fresh(node.node_id, directory, shard, log)
    if shard.recovery is not None and not log.log_end:
        # Nothing of the history before is for it: a lost leader that is back, and has not heard, would fill it with that.
        log.hard_state.forget(shard.recovery.term)
    low, high = timeout_ticks(node.config.timings)
    restored = restored_state(
        log,
        high_watermark,
        acknowledged=acknowledged_by_leader(log),
        members=log.members.copy(),
        bound_until_us=bound_until_us,
    )
    return RaftReplica(
        node_id=node.node_id,
        shard=shard.shard_id,
        ensemble=shard.ensemble,
        restored=restored,
        entries=entries,
        config=config,
        election_timeout_ticks=lambda: node.random.randint(low, high),
        election=election_config(node.config.timings),
    )


def _judge_fresh(node_id: int, directory: NodeDirectory, shard: ShardMeta, log: ShardLog) -> None:
    """See the table above."""
    is_fresh = not (log.hard_state.term or log.log_end or log.damaged)
    if not is_fresh or (shard.term == 0 and shard.leader == ABSENT_NODE):
        return
    if directory.may_replace:
        log.mark_forgotten()
        structlog.get_logger().error(
            "replica_forgot",
            shard=shard.shard_id,
            reason="this directory is newer than the shard: no vote before the other members have answered and a new term "
            "has begun",
        )
    elif node_id not in shard.ensemble and node_id not in shard.outgoing:
        log.mark_joining()


def placement_of(topic: TopicMeta, shard: ShardMeta) -> Placement:
    """What it takes to open the replica, and nothing of what changes with every election."""
    kept = msgspec.structs.replace(
        shard, leader=ABSENT_NODE, term=0, status=ShardStatus.OFFLINE, live=(), live_version=0
    )
    return msgspec.structs.replace(topic, shards=()), kept


def note_placement(disk: Disk, path: str, placement: Placement) -> None:
    """Keep it in the replica's directory. Blocking."""
    data = frame(PLACEMENT_MAGIC, PLACEMENT_VERSION, msgspec.msgpack.encode(placement))
    replace_file(disk, os.path.join(path, PLACEMENT_NAME), data)


def known_placement(disk: Disk, path: str) -> Placement | None:
    """What `note_placement` left; None where there is nothing that can be read."""
    file = os.path.join(path, PLACEMENT_NAME)
    payload = unframe(PLACEMENT_MAGIC, PLACEMENT_VERSION, read_whole(disk, file), file)
    if payload is None:
        return None
    try:
        found: Placement = msgspec.msgpack.decode(payload, type=Placement)
    except UNDECODABLE:
        return None
    return found


async def hand_over(node: "NodeContext") -> None:
    """Before a clean stop: let others lead at once what votes and is led here, `__cluster` too."""
    handed = [host for host in list(node.hosts.values()) if host.hand_over()]
    patience_s = node.config.timings.election_min / 1000  # after which a replica gives it up itself
    for _ in range(int(patience_s / HAND_OVER_LOOK_S)):
        if not any(host.state.is_leader for host in handed):
            return
        await asyncio.sleep(HAND_OVER_LOOK_S)


def timeout_ticks(timings: Timings) -> tuple[int, int]:
    """The least and the greatest patience of a replica that hears from no leader."""
    return timings.election_min // timings.tick, timings.election_max // timings.tick


def election_config(timings: Timings, first: int = 0) -> ElectionConfig:
    """Settings of replicas that vote, `__cluster`'s too; `first` as in `first_ticks`."""
    low, _ = timeout_ticks(timings)
    return ElectionConfig(heartbeat_ticks=max(1, low // 5), election_ticks_min=low, first_ticks=first)


def first_ticks(timings: Timings, voters: Sequence[int], node_id: int) -> int:
    """How long a founder of a cluster waits before it stands for the first election: each longer than the one before."""
    if not timings.founding or node_id not in voters:
        return 0
    return max(1, timings.founding // timings.tick) * (1 + 2 * list(voters).index(node_id))


def members_entry(term: int, base_offset: int, members: Members) -> Entry:
    """The entry that changes the members of a shard."""
    batch = build_members(members, term, base_offset, system.wall_ms())
    return Entry(term, base_offset, base_offset + 1, batch, members)
