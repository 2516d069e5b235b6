"""Opening a replica of a shard that every replica writes, from what is in its files."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from antiphon import system
from antiphon.log.disk import make_directory
from antiphon.log.shard_log import ShardLog
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta, TopicMeta
from antiphon.partition.multi_files import recover_origins, save_marks
from antiphon.partition.multi_members import member_origins
from antiphon.partition.multi_salvage import salvage
from antiphon.partition.multi_table import MergedShard
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.partition.table_files import destroy_state, open_or_rebuild, restore_aside
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.origin_history import Mark, OriginEntry
from antiphon.replication.origin_index import OriginIndex
from antiphon.table.merge import ConflictRule, rule_named

if TYPE_CHECKING:
    from antiphon.log.disk import Disk
    from antiphon.partition.services import PartitionServices
    from antiphon.partition.settings import PartitionSettings
    from antiphon.table.store import StoreEngine

RESEND_MS: Final = 200
STALL_MS: Final = 500
LIFE_UNIT_NS: Final = 10_000_000


class Place(NamedTuple):
    """What a replica needs to know of its node.

    `nodes`: of the metadata. `disk_id`: of the node's directory. `lost_peers`: nodes that are not reached now.
    """

    nodes: Mapping[int, NodeMeta]
    disk_id: str
    tick_ms: int
    lost_peers: Sequence[int]


class RecoveredOrigins(NamedTuple):
    """What the files of a replica say: its `origins`, up to `end`.

    `is_new`: whose entries they are was not known, and is to be written down anew. `behind_damage`: entries that a damaged
    log no longer has, and the disk has.
    """

    origins: OriginIndex
    end: Mark
    is_new: bool
    behind_damage: tuple[OriginEntry, ...]
    table: MergedShard | None


def recover_multi_writer(
    disk: "Disk", log: ShardLog, topic: TopicMeta, conflict: str, store: str, stores: "StoreEngine"
) -> RecoveredOrigins:
    """Read what is in the replica's files, `store` being that of a table. Blocking; may run in any thread.

    Raises InvalidRequestError for a conflict rule that this node does not know, StorageFailedError.
    """
    rule = rule_named(conflict)
    found = recover_origins(disk, log)
    index, end = found or _begin_anew(log)
    behind = salvage(disk, log, end.clock)
    if topic.kind is not Kind.TABLE:
        return RecoveredOrigins(index, end, found is None, behind, None)
    make_directory(disk, os.path.dirname(store))
    table = _open_table(disk, store, log, stores, rule)
    try:
        table.catch_up(log.log_end)
    except Exception as error:
        table.let_go(error)
        raise
    return RecoveredOrigins(index, end, found is None, behind, table)


def open_multi_writer(
    services: "PartitionServices",
    disk: "Disk",
    log: ShardLog,
    shard: ShardMeta,
    settings: "PartitionSettings",
    place: Place,
    found: RecoveredOrigins,
) -> MultiWriterPartition:
    """Start this node's replica with what was found of it."""
    if found.is_new:
        services.wal.submit(save_marks(disk, log, [found.end]))
    replica = MultiWriterReplica(
        node_id=services.node_id,
        shard=shard.shard_id,
        origins=member_origins(shard, place.nodes, services.node_id, place.disk_id),
        index=found.origins,
        end=found.end,
        life=system.wall_ns() // LIFE_UNIT_NS,
        config=MultiWriterConfig(
            resend_ticks=max(2, RESEND_MS // place.tick_ms), stall_ticks=max(4, STALL_MS // place.tick_ms)
        ),
        damaged=log.damaged is not None,
    )
    replica.kept.extend(found.behind_damage)
    for peer in place.lost_peers:
        replica.peer_lost(peer)
    host = MultiWriterPartition(
        services, disk, log, replica, found.table, place.disk_id, settings.max_message_bytes
    )
    host.configure(settings)
    host.start(shard, place.nodes)
    return host


def _begin_anew(log: ShardLog) -> tuple[OriginIndex, Mark]:
    """What is in the log stays there to be read, but nobody knows what of whom it is: the others send all they have anew.

    Until everybody has answered nothing is written here, over restarts too.
    """
    structlog.get_logger().error(
        "log_has_no_clock", path=log.path, log_start=log.log_start, log_end=log.log_end
    )
    if log.damaged is None:
        log.mark_forgotten()
    at = Mark(log.log_end, (), ())
    return OriginIndex([at]), at


def _open_table(
    disk: "Disk", path: str, log: ShardLog, stores: "StoreEngine", rule: ConflictRule
) -> MergedShard:
    """The store; one that is ahead of a log that lost its end is made anew from the log, which a table keeps whole."""
    restore_aside(disk, path)
    table = open_or_rebuild(disk, path, log, lambda: MergedShard(path, log, stores, rule))
    if table.state.applied_offset > log.log_end:
        table.state.close()
        destroy_state(disk, path)
        table = MergedShard(path, log, stores, rule)
    return table
