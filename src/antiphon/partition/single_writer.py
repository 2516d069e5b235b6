"""One replica of a shard that one leader writes: the leader, or one that follows it.

Its state machine is a `Replica`, where the coordinator or an operator appoints the leader, or a `RaftReplica`, where the
replicas vote. `base` has the order in which events and actions are carried out; this adds what is done for the actions of
such a replica.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from antiphon.errors import StorageFailedError
from antiphon.log.operations import TRIM, LogOp
from antiphon.model.metadata import NodeMeta, ShardMeta
from antiphon.partition import table_shard
from antiphon.partition.base import PartitionBase
from antiphon.partition.feeding import Feeding
from antiphon.partition.live_reports import live_set
from antiphon.partition.partition import Done
from antiphon.partition.services import PartitionServices
from antiphon.partition.status import LOOKS
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import (
    Action,
    AppendLog,
    LeaderReady,
    LostTail,
    MembersChanged,
    PersistTerm,
    ProposeLive,
    ReadEntries,
    ResetLog,
    RoleChanged,
    Send,
    SendSnapshot,
    TruncateLog,
)
from antiphon.replication.members import Members
from antiphon.replication.messages import AnyMessage
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.operations import Callback
    from antiphon.log.shard_log import ShardLog
    from antiphon.model.cluster import LiveSet
    from antiphon.model.requests import ReplicaStatus, TableWrite
    from antiphon.partition.multi_writer import MultiWriterPartition
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.table_shard import TableShard


class SingleWriterPartition(PartitionBase[Replica | RaftReplica]):
    """See the module's text."""

    def __init__(
        self,
        services: PartitionServices,
        shard_id: int,
        log: "ShardLog",
        replica: Replica | RaftReplica,
        table: "TableShard | None",
        max_message_bytes: int,
    ) -> None:
        super().__init__(services, shard_id, log, replica, table, max_message_bytes)
        self.leader_lacks = 0  # checkpoints in a row at which the leader had not shown what is settled here
        self.proposed_live: ProposeLive | None = None  # to be told to the coordinator
        self._known_record = (0, 0)  # term and version of the live replica set that the replica was told of
        self._feeding = Feeding(services, log)
        self._send_appended = replica.send_appended
        self._carry_out.update(
            {
                PersistTerm: self._persist_term,
                AppendLog: self._append_log,
                TruncateLog: self._truncate_log,
                ResetLog: self._reset_log,
                Send: self._send,
                ReadEntries: self._read_entries,
                SendSnapshot: self._send_snapshot,
                RoleChanged: self._role_changed,
                LeaderReady: self._leader_ready,
                LostTail: self._lost_tail,
                MembersChanged: self._members_changed,
                ProposeLive: self._propose_live,
            }
        )

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def voter(self) -> RaftReplica | None:
        """The state machine, where the replicas vote."""
        return self.replica if isinstance(self.replica, RaftReplica) else None

    @property
    def elects_itself(self) -> bool:
        """See Partition."""
        return self.voter is not None

    @property
    def is_appointed(self) -> bool:
        """See Partition."""
        return self.voter is None

    @property
    def needs_new_term(self) -> bool:
        """See Partition."""
        replica = self.replica
        return (
            self.failed is None
            and self.is_appointed
            and replica.damaged
            and replica.role is Role.FOLLOWER
            and replica.log_end > 0  # an empty one may be waiting for a snapshot
            and replica.high_watermark >= replica.log_start  # equal where a snapshot brought all of it
        )

    @property
    def live(self) -> tuple[int, ...]:
        """See Partition."""
        return self.replica.live if self.is_leader else ()

    @property
    def settled(self) -> int:
        """First offset that an election may still take back: what is written down, and as far as the log may be trimmed."""
        return self.replica.settled

    @property
    def acknowledges_early(self) -> bool:
        """Does the topic's rule acknowledge what an election may still lose (`local`, small `at_least(k)`)?"""
        if self.replica.live:
            return False
        return self.replica.config.commit.may_lose(len(self.replica.members.voters))

    @property
    def waits_for(self) -> str:
        """What may be missing when nothing is committed, as a question to an operator."""
        live = self.replica.live
        if live and self.settings is not None:
            wanted = self.settings.replica.min_live
            return f"are enough replicas live (min.live={wanted}, live are {', '.join(map(str, live))})"
        return "is a majority of its replicas up"

    def status(self) -> "ReplicaStatus":
        """See Partition."""
        found = super().status()
        if self.leader_lacks >= LOOKS and found.state in {"ok", "disk_full"}:
            return msgspec.structs.replace(found, state="ahead_of_leader")
        return found

    # -- what the cluster says ---------------------------------------------------------------------------------

    def configure(self, settings: "PartitionSettings") -> None:
        """Take over the settings of the topic, whatever this replica is doing."""
        self.settings = settings
        if self.log.config != settings.log:
            self.log.config = settings.log
        self.clients.configure(settings)
        self.call(self.replica.set_config, settings.replica)
        self._note_led_term()

    def recorded(self, shard: ShardMeta, _nodes: Mapping[int, NodeMeta]) -> None:
        """A leader that goes by its live set is told of the record (S3.29)."""
        if shard.live_version and self.is_leader and (shard.term, shard.live_version) != self._known_record:
            self._known_record = (shard.term, shard.live_version)
            if self.proposed_live is not None and self.proposed_live.version < shard.live_version:
                self.proposed_live = None  # it was made on top of an older record, and would be refused
            self.call(self.replica.live_recorded, shard.term, shard.live_version, shard.live)

    def live_set(self, told: "LiveSet | None") -> "LiveSet | None":
        """See Partition. By the live set, a leader may need a record before it can commit anything, and be ready."""
        return live_set(self, told) if self.is_serving or self.live else None

    def live_set_told(self) -> None:
        """See Partition. It is said once: the replica proposes again what is not recorded in time."""
        self.proposed_live = None

    def hand_over(self) -> bool:
        """See Partition."""
        voter = self.voter
        if voter is None or not self.is_serving or voter.transfer.successor is None:
            return False
        self.call(voter.transfer_leadership, voter.transfer.successor)
        return True

    # -- events into the replica -------------------------------------------------------------------------------

    def receive(self, sender: int, message: AnyMessage) -> None:
        """A message from another replica, or from the coordinator."""
        self.call(self.replica.receive, sender, message)

    def peer_drained(self, node_id: int) -> None:
        """The connection to a follower has room again."""
        feed = self._feeding.drained(node_id)
        if feed is not None:
            self.call(self._entries_read, feed)

    def members_at(self, offset: int) -> Members | None:
        """See Partition."""
        return None if self.voter is None else self.voter.members_at(offset)

    def snapshot_installed(self, at: EntryId, members: Members | None) -> Sequence[Action]:
        """See Partition."""
        if self.voter is not None:
            return self.voter.snapshot_installed(at, members)
        return self.replica.snapshot_installed(at)

    def _take_batch(self, batch: bytearray, records: int) -> None:
        self._writer.append(self.replica.append_batch(records, batch))
        self._unsent = True

    def table_write(self, request: "TableWrite", done: Done) -> None:
        """See Partition."""
        queue = self.clients.queue
        if queue.limit and queue.is_busy:
            self.check_writable()
            write = partial(table_shard.write_table, self, request, done)
            size_bytes = table_shard.size_of_write(request)
            self.clients.in_turn(write, request.timeout_ms / 1000, done, size_bytes)
            return
        try:
            table_shard.write_table(self, request, done)
        except StorageFailedError as error:
            raise self.stopped_by(error) from error

    # -- actions out of the replica ----------------------------------------------------------------------------

    def _append_log(self, action: AppendLog) -> None:
        self._writer.append(action)
        self._writer.flush()

    def _truncate_log(self, action: TruncateLog) -> None:
        self._log.warning("log_truncated", to=action.to_offset, log_end=self.log.log_end)
        self._writer.write(self.log.truncate(action.to_offset), action.write_id)

    def _reset_log(self, action: ResetLog) -> None:
        self._log.warning("log_reset", at=action.at)
        producers, then = self.installing or (None, None)
        self._writer.write(self.log.reset(action.at, producers, action.members, then), action.write_id)

    def _persist_term(self, action: PersistTerm) -> None:
        self._writer.write(self.log.hard_state.stage(action.term, action.voted_for), action.write_id)

    def _send(self, action: Send) -> None:
        self.services.send(self, action.to, action.message)

    def _read_entries(self, action: ReadEntries) -> None:
        self._steps.queue(self._entries_read, action)

    def _entries_read(self, action: ReadEntries) -> Sequence[Action]:
        found = self._feeding.read(action)
        return () if found is None else self.replica.entries_read(action.to, *found)

    def _send_snapshot(self, action: SendSnapshot) -> None:
        self.services.send_snapshot(self, action.to)

    def _role_changed(self, action: RoleChanged) -> None:
        self._log.debug("role_changed", role=str(action.role), term=action.term, leader=action.leader)
        self.proposed_live = None
        if action.role is Role.LEADER:
            self.services.metrics.elections += 1
            self._note_led_term()
        else:
            if self.table is not None:
                self.table.stop_leading()
            self._feeding.clear()
            self._steps.later(self._send_clients_away)
            # What this leader had acknowledged beyond what is settled may yet turn out to be lost.
            self.high_watermark = min(self.high_watermark, self.replica.high_watermark)
        if self.observer is not None:
            self._steps.later(self.observer.role_changed, action.role, action.term, action.leader)
        self._steps.later(self.services.host_changed, self)

    def _leader_ready(self, action: LeaderReady) -> None:
        if self.table is not None:
            self.table.lead()
        self._log.info("leader_ready", term=action.term, log_end=self.log.log_end)
        if self.observer is not None:
            self._steps.later(self.observer.leader_ready, action.term)
        self._steps.later(self.services.host_changed, self)

    def _lost_tail(self, action: LostTail) -> None:
        """What this node had acknowledged, and nobody else has, is cut: the loss window of the topic's rule (S4.28)."""
        lost = action.to_offset - action.from_offset
        self._log.warning("lost_tail", from_offset=action.from_offset, to_offset=action.to_offset)
        self.services.metrics.lost_tail_records += lost
        self.high_watermark = min(self.high_watermark, action.from_offset)
        if self.noted_watermark > action.from_offset:
            self.note_watermark()  # before the log is cut: what is noted binds the next start
        if self.installing is not None:
            return  # the store is another one already
        if self.table is not None and self.table.state.applied_offset > action.from_offset:
            if self.log.log_start:
                raise StorageFailedError(
                    f"shard {self.shard_id}: what is in the store was given up by an unclean election and the log no longer "
                    "reaches back to its beginning: move this replica to another node and back"
                )
            self.table.start_over()

    def _members_changed(self, action: MembersChanged) -> None:
        self._log.info("members_changed", members=action.members, committed=action.committed)
        self._note_led_term()
        self._steps.later(self.services.host_changed, self)

    def _propose_live(self, action: ProposeLive) -> None:
        self._log.info("live_set_proposed", live=action.live, version=action.version)
        self.proposed_live = action
        self._steps.later(self.services.live_changed)

    def _note_led_term(self) -> None:
        """A loss has to be counted even if the power fails before it is found (S4.28).

        A term that begins is noted before its first entry is written, so also before anything is acknowledged in it.
        """
        state = self.log.hard_state
        if self.is_leader and self.acknowledges_early and state.led_term != self.term:
            self.submit(state.stage_led_term(self.term))

    # -- keeping house -----------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """See Partition. Says so, too, when a leader goes on without what was acknowledged and is settled here."""
        super().checkpoint()
        self.leader_lacks = self.leader_lacks + 1 if self.replica.following.leader_shows_less else 0
        if self.leader_lacks == LOOKS:
            self._log.error(
                "leader_lacks_acknowledged_entries",
                leader=self.replica.leader,
                high_watermark=self.settled,
                reason="entries that were acknowledged are here and not in the leader's log: keep this node's directory",
            )

    def apply_retention(self, now_ms: int) -> None:
        """See Partition."""
        limit = self.settled
        if self.table is not None:
            limit = min(limit, self.table.state.durable_offset)
        op = self.log.apply_retention(now_ms, limit)
        if op is not None:
            self._log.info("log_trimmed", log_start=self.log.log_start)
            self.submit(op)
            self.call(self.replica.trimmed, self.log.log_start)

    def check_trimmable(self) -> None:
        """See Partition."""

    def trim(self, log_start: int, done: "Callback") -> None:
        """See Partition."""
        op = self.log.trim(log_start)
        self.submit(op or LogOp(self.log.queue, [], kind=TRIM), done)
        if op is not None:
            self._log.info("log_trimmed", log_start=log_start, asked=True)
            self.call(self.replica.trimmed, log_start)

    def _silenced(self) -> None:
        self._feeding.clear()

    @property
    def single_writer(self) -> "SingleWriterPartition":
        """See Partition."""
        return self

    @property
    def multi_writer(self) -> "MultiWriterPartition | None":
        """See Partition."""
        return None
