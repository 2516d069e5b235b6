"""Opening a replica of a shard that every replica writes, from what is in its files."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from antiphon import system
from antiphon.log.disk import make_directory
from antiphon.log.shard_log import ShardLog
from antiphon.model.metadata import Kind, NodeMeta, ShardMeta, TopicMeta
from antiphon.partition.multi_files import recover_origins, save_marks
from antiphon.partition.multi_members import member_origins
from antiphon.partition.multi_table import MergedShard
from antiphon.partition.multi_writer import MultiWriterPartition
from antiphon.partition.table_files import destroy_state, open_or_rebuild, restore_aside, store_path
from antiphon.replication.multi_writer import MultiWriterReplica
from antiphon.replication.multi_writer_config import MultiWriterConfig
from antiphon.replication.origin_history import Mark
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

    `nodes`: of the metadata. `disk_id`: of the node's directory. `tables`: where stores go; `stores`: their engine.
    `lost_peers`: nodes that are not reached now.
    """

    nodes: Mapping[int, NodeMeta]
    disk_id: str
    tables: str
    stores: "StoreEngine"
    tick_ms: int
    lost_peers: Sequence[int]


def open_multi_writer(
    services: "PartitionServices",
    disk: "Disk",
    log: ShardLog,
    topic: TopicMeta,
    shard: ShardMeta,
    settings: "PartitionSettings",
    place: Place,
) -> MultiWriterPartition:
    """Recover this node's replica and start it. Blocking.

    Raises InvalidRequestError for a conflict rule that this node does not know, StorageFailedError.
    """
    rule = rule_named(settings.conflict)
    found = recover_origins(disk, log)
    if found is None:
        found = _begin_anew(services, disk, log)
    index, end = found
    table = None
    if topic.kind is Kind.TABLE:
        make_directory(disk, place.tables)
        path = store_path(place.tables, shard.shard_id)
        table = _open_table(disk, path, log, place.stores, rule)
        try:
            table.catch_up(log.log_end)
        except Exception as error:
            table.let_go(error)
            raise
    replica = MultiWriterReplica(
        node_id=services.node_id,
        shard=shard.shard_id,
        origins=member_origins(shard, place.nodes, services.node_id, place.disk_id),
        index=index,
        end=end,
        life=system.wall_ns() // LIFE_UNIT_NS,
        config=MultiWriterConfig(
            resend_ticks=max(2, RESEND_MS // place.tick_ms), stall_ticks=max(4, STALL_MS // place.tick_ms)
        ),
        damaged=log.damaged is not None,
    )
    for peer in place.lost_peers:
        replica.peer_lost(peer)
    host = MultiWriterPartition(
        services, disk, log, replica, table, place.disk_id, settings.max_message_bytes
    )
    host.configure(settings)
    host.start(shard, place.nodes)
    return host


def _begin_anew(services: "PartitionServices", disk: "Disk", log: ShardLog) -> tuple[OriginIndex, Mark]:
    """What is in the log stays there to be read, but nobody knows what of whom it is: the others send all they have anew.

    Until everybody has answered nothing is written here, over restarts too.
    """
    structlog.get_logger().error(
        "log_has_no_clock", path=log.path, log_start=log.log_start, log_end=log.log_end
    )
    if log.damaged is None:
        log.mark_forgotten()
    at = Mark(log.log_end, (), ())
    services.wal.submit(save_marks(disk, log, [at]))
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
