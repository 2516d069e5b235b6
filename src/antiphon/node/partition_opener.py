"""Opens replicas from what is in their files: log, table, and the state machine that the topic's settings ask for.

Opening blocks, as it reads the disk. What stands in the way of one replica is raised, and is the caller's to note.
"""

import os
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import structlog

from antiphon import system
from antiphon.coordination.membership import old_history
from antiphon.errors import DamagedLogError
from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import Disk, make_directory
from antiphon.log.shard_log import ShardLog
from antiphon.model.metadata import CLUSTER_SHARD_ID, Kind, ShardMeta, TopicMeta
from antiphon.node.context import NodeContext
from antiphon.node.leased import bound_from_now_us, is_leased, note_leased
from antiphon.node.old_history import is_old_log
from antiphon.node.own_voter import is_of_the_past
from antiphon.node.raft_shards import (
    election_config,
    first_ticks,
    members_entry,
    open_raft_replica,
    timeout_ticks,
)
from antiphon.node.topic_settings import MAX_MESSAGE_BYTES, SettingsBook, TopicSettings, read_settings
from antiphon.partition.multi_opening import Place, RecoveredOrigins, open_multi_writer, recover_multi_writer
from antiphon.partition.partition import Partition
from antiphon.partition.restored_log import acknowledged_by_leader, restored_state
from antiphon.partition.services import PartitionServices
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.partition.table_files import (
    open_or_rebuild,
    recover_install,
    store_path,
    watermark_at_start,
)
from antiphon.records.builder import build_committed, build_term_start
from antiphon.records.key_order import is_hierarchical
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import EntryFactory
from antiphon.replication.messages import Entry
from antiphon.replication.multi_writer_relay import TERM
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica

if TYPE_CHECKING:
    from antiphon.node.metrics import NodeMetrics
    from antiphon.node.turn import Turn
    from antiphon.partition.table_shard import TableShard
    from antiphon.table.store import StoreEngine


FORGOT: Final = (
    "this directory is new and was not made to found a cluster: no vote before the other voters have answered and a new "
    "term has begun; the first start of a new cluster needs --bootstrap"
)


class OpeningNode(NodeContext, PartitionServices, Protocol):
    """What opening replicas takes from the node, the services of those that are opened included."""

    stores: "StoreEngine"

    @property
    def metrics(self) -> "NodeMetrics":
        """What is counted."""

    @property
    def turn(self) -> "Turn":
        """Work at the end of the event loop's turn."""


class Recovered(NamedTuple):
    """What is in the files of a replica that does not run yet.

    `high_watermark`: up to where the log is known to be settled. `origins`: where every replica writes.
    `leased`: may it have promised to support nobody but a leader?
    """

    log: ShardLog
    table: "TableShard | None"
    high_watermark: int
    origins: RecoveredOrigins | None
    leased: bool = False


class PartitionOpener:
    """See the module's text; of one node."""

    def __init__(
        self, node: OpeningNode, disk: Disk, directory: NodeDirectory, settings: SettingsBook
    ) -> None:
        self._node = node
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._cluster_log = LogConfig(segment_bytes=node.config.metadata.segment_bytes)
        self._tables = os.path.join(node.config.dir, "tables")
        self._log = structlog.get_logger()

    def open(self, topic: TopicMeta, shard: ShardMeta) -> Partition:
        """Open the replica of a shard that is placed here; it runs when this returns. Raises what stands in the way."""
        return self.start(topic, shard, self.recover(topic, shard))

    def recover(self, topic: TopicMeta, shard: ShardMeta) -> Recovered:
        """Read what is in the replica's files, of a table with its store. Blocking; may run in any thread.

        The replica is to be started then, or to be let go of.
        """
        settings, shard_id = read_settings(topic, self._node.config), shard.shard_id
        is_multi = settings.replication.is_multi
        is_table = topic.kind is Kind.TABLE and not is_multi
        store = store_path(self._tables, shard_id)
        if is_table:
            make_directory(self._disk, self._tables)
            self._recover_install(shard_id, store)
        config = settings.log._replace(flush="always") if is_multi else settings.log
        log = self._open_log(shard_id, config, promises=not is_multi)
        if is_old_log(log, shard, self._node.node_id):
            self._directory.remove_shard(shard_id)
            log = self._open_log(shard_id, config, promises=not is_multi)  # the store that is left goes below
        stores = self._node.stores
        if is_multi:
            found = recover_multi_writer(self._disk, log, topic, settings.conflict, store, stores)
            return Recovered(log, found.table, log.hard_state.high_watermark, found)
        table = None
        high_watermark = log.hard_state.high_watermark
        if is_table:
            from antiphon.partition.table_shard import TableShard

            ordered = is_hierarchical(topic.config)
            kernels = self._node.kernels

            def make() -> TableShard:
                return TableShard(store, log, stores, ordered=ordered, kernels=kernels)

            table = open_or_rebuild(self._disk, store, log, make)
            applied, unclean = table.state.applied_offset, settings.replica.unclean
            high_watermark = watermark_at_start(high_watermark, applied, log.log_end, unclean=unclean)
            try:
                table.catch_up(min(max(high_watermark, log.log_start), log.log_end))
            except Exception as error:
                table.let_go(error)
                raise
        return Recovered(log, table, high_watermark, None, self._is_leased(settings, shard_id))

    def _is_leased(self, settings: TopicSettings, shard_id: int) -> bool:
        path = self._directory.shard_path(shard_id)
        if settings.replica.lease_ms:
            note_leased(self._disk, path)
        return is_leased(self._disk, path)

    def start(self, topic: TopicMeta, shard: ShardMeta, found: Recovered) -> Partition:
        """Run the replica with what was found in its files. Raises what stands in the way; it is let go of then."""
        try:
            settings = self._settings.of(topic)
            if found.origins is None:
                return self._make_host(settings, shard, found)
            return open_multi_writer(
                self._node, self._disk, found.log, shard, settings, self._place(), found.origins
            )
        except Exception as error:
            self.let_go(found, error)
            raise

    def let_go(self, found: Recovered, reason: Exception | None = None) -> None:
        """Close what was recovered, and is not to run."""
        if found.table is not None:
            found.table.let_go(reason)

    def _make_host(
        self, settings: TopicSettings, shard: ShardMeta, found: Recovered
    ) -> SingleWriterPartition:
        node, log, table = self._node, found.log, found.table
        bound_until_us = bound_from_now_us() if found.leased else 0
        replica = self._make_replica(settings, shard, log, found.high_watermark, bound_until_us)
        for peer in node.lost_peers():
            replica.peer_lost(peer)
        if table is not None:
            # Nothing is left to apply, but for what opening the replica settled
            table.catch_up(replica.high_watermark)
        host = SingleWriterPartition(node, shard.shard_id, log, replica, table, settings.max_message_bytes)
        host.configure(settings)
        if replica.needs_tick:  # it votes, and has patience of its own
            host.driver.start_ticking()
        return host

    def _recover_install(self, shard_id: int, store: str) -> None:
        directory = self._directory
        log_path, shortened = directory.shard_path(shard_id), directory.held(shard_id).lower
        found = recover_install(self._disk, store, log_path, shortened)
        if found is not None:
            self._log.warning("snapshot_installed_at_start", shard=shard_id, at=found.at)

    def _make_replica(
        self,
        settings: TopicSettings,
        shard: ShardMeta,
        log: ShardLog,
        high_watermark: int,
        bound_until_us: int,
    ) -> Replica | RaftReplica:
        node = self._node
        entries = EntryFactory(term_start, self._commit_marker, members_entry)
        if settings.replication.election == "raft":
            return open_raft_replica(
                node,
                self._directory,
                shard,
                log,
                high_watermark,
                settings.replica,
                entries,
                bound_until_us,
            )
        return Replica(
            node_id=node.node_id,
            shard=shard.shard_id,
            # A directory that never promised a term may stand for one that did, and was lost or taken away: the
            # coordinator's word has to come first, or Appends of a leader that was deposed would be acknowledged.
            ensemble=shard.everybody if log.hard_state.term else (),
            restored=restored_state(
                log,
                high_watermark,
                acknowledged=acknowledged_by_leader(log),
                bound_until_us=bound_until_us,
            ),
            entries=entries,
            config=settings.replica,
        )

    def _place(self) -> Place:
        node = self._node
        return Place(
            node.view.nodes,
            self._directory.identity.disk_id,
            node.config.timings.tick,
            node.lost_peers(),
        )

    def _commit_marker(self, term: int, base_offset: int, high_watermark: int) -> Entry:
        self._node.metrics.commit_markers += 1
        return commit_marker(term, base_offset, high_watermark)

    def recover_cluster_shard(self) -> Recovered:
        """Read what is in the files of this voter's replica of `__cluster`. Blocking; may run in any thread."""
        log = self._open_whole_log(CLUSTER_SHARD_ID, self._cluster_log)
        record, mark = self._node.voters.record, self._node.voters.mark
        if is_of_the_past(log, mark):
            if record is None or self._node.node_id not in record.learners:
                self._node.voters.is_past = True
                raise old_history(self._node.node_id, mark)
            self._log.warning("old_history_removed", shard=CLUSTER_SHARD_ID, log_end=log.log_end)
            # It left before the recovery, and is to vote again
            self._directory.remove_shard(CLUSTER_SHARD_ID)
            log = self._open_whole_log(CLUSTER_SHARD_ID, self._cluster_log)
        is_founding = self._directory.identity.bootstrap and record is None
        if not (log.hard_state.term or log.damaged or is_founding):
            # That this node never voted before is not known, not even of one that is just to become a voter.
            log.mark_forgotten()
            if record is not None and self._node.node_id in record.learners:
                self._log.info("voter_joins", shard=CLUSTER_SHARD_ID, voters=record.ensemble)
            else:
                self._log.error("voter_forgot", shard=CLUSTER_SHARD_ID, reason=FORGOT)
        return Recovered(log, None, log.hard_state.high_watermark, None)

    def start_cluster_shard(self, found: Recovered) -> SingleWriterPartition:
        """Run this voter's replica of `__cluster` with what was found in its files."""
        node, log = self._node, found.log
        timings = node.config.timings
        low, high = timeout_ticks(timings)
        first = first_ticks(timings, node.config.voters, node.node_id)
        replica = RaftReplica(
            node_id=node.node_id,
            shard=CLUSTER_SHARD_ID,
            # The founders, unless the log says otherwise; where there is no log, who is to be asked.
            ensemble=node.config.voters if log.log_end else node.voters.voting,
            restored=restored_state(log, found.high_watermark, members=log.members.copy()),
            entries=EntryFactory(term_start, members=members_entry),
            config=ReplicaConfig(),
            election_timeout_ticks=lambda: node.random.randint(low, high),
            election=election_config(timings, first),
        )
        for peer in node.lost_peers():
            replica.peer_lost(peer)
        host = SingleWriterPartition(node, CLUSTER_SHARD_ID, log, replica, None, MAX_MESSAGE_BYTES)
        host.driver.start_ticking()
        return host

    def _open_log(self, shard_id: int, config: LogConfig, *, promises: bool) -> ShardLog:
        directory = self._directory
        log = ShardLog.open(
            self._disk,
            directory.shard_path(shard_id),
            config,
            held=directory.held(shard_id),
            promises=promises,
            only_term=0 if promises else TERM,
        )
        if log.damaged is not None:
            self._log.error("log_damaged", shard=shard_id, at=log.damaged.offset, reason=log.damaged.reason)
        elif log.recovery.torn_bytes:
            self._log.warning("torn_tail_cut", shard=shard_id, bytes=log.recovery.torn_bytes)
        return log

    def _open_whole_log(self, shard_id: int, config: LogConfig) -> ShardLog:
        """The same, of a log that is about to be read from its start: rot in its old segments is found now, not then."""
        log = self._open_log(shard_id, config, promises=True)
        try:
            log.reader.verify()
        except DamagedLogError:  # it is marked by now, so everything is read
            log = self._open_log(shard_id, config, promises=True)
        return log


def term_start(term: int, base_offset: int) -> Entry:
    """The entry that opens a leadership: a control batch that clients skip."""
    batch = build_term_start(term, base_offset, system.wall_ms())
    return Entry(term, base_offset, base_offset + 1, batch)


def commit_marker(term: int, base_offset: int, high_watermark: int) -> Entry:
    """The entry that tells how far the log is committed: a control batch that clients skip."""
    batch = build_committed(high_watermark, term, base_offset, system.wall_ms())
    return Entry(term, base_offset, base_offset + 1, batch)
