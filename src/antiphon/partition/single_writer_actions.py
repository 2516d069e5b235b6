"""What is done for the actions of a replica whose shard one leader writes.

Its state machine is a `Replica`, where the coordinator or an operator appoints the leader, or a `RaftReplica`, where the
replicas vote.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon import tracing
from antiphon.errors import StorageFailedError
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.follower_reads import FollowerReads
from antiphon.partition.live_reports import LiveReports
from antiphon.partition.mode import SingleWriterMode
from antiphon.partition.sessions import PartitionSessions
from antiphon.partition.snapshots import SingleWriterSnapshots
from antiphon.partition.steps import Event
from antiphon.partition.upkeep import WatermarkHint
from antiphon.replication.actions import (
    Action,
    AppendLog,
    LeaderReady,
    LostTail,
    MembersChanged,
    PersistTerm,
    ProposeLiveSet,
    ReadEntries,
    ResetLog,
    RoleChanged,
    Send,
    SendSnapshot,
    TruncateLog,
)
from antiphon.replication.messages import Append
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica
from antiphon.replication.replica_state import Role


class SingleWriterActions:
    """See the module's text. The parts of the partition that an action concerns are told; none of them tells this one."""

    def __init__(
        self,
        driver: ReplicaDriver,
        replica: Replica | RaftReplica,
        common: CommonActions,
        mode: SingleWriterMode,
        reports: LiveReports,
        snapshots: SingleWriterSnapshots,
        hint: WatermarkHint,
        sessions: PartitionSessions,
    ) -> None:
        self._driver = driver
        self._writer = driver.writer
        self._steps = driver.steps
        self._state = driver.state
        self._services = driver.state.services
        self._files = driver.state.log
        self._replica = replica
        self._send_appended = replica.send_appended
        self._common = common
        self._mode = mode
        self._reports = reports
        self._snapshots = snapshots
        self._hint = hint
        self._sessions = sessions
        self._follower_reads = FollowerReads(self._services, self._files)
        self._log = driver.state.lines

    @property
    def by_action(self) -> Mapping[type, Callable[[Any], None]]:
        """See ActionHandlers."""
        return {
            **self._common.by_action,
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
            ProposeLiveSet: self._propose_live,
        }

    # -- the log -----------------------------------------------------------------------------------------------

    def take_batch(self, batch: bytearray, records: int) -> Event:
        """See ActionHandlers. What was appended is due to the followers."""
        action = self._replica.append_batch(records, batch)
        self._writer.append(action)
        if tracing.current:
            self._state.follow(action, tracing.current, "leader")
        # Without leases the replica is asked itself: each append passes here.
        return self._send_now if self._state.has_leases else self._send_appended

    def _send_now(self) -> Sequence[Action]:
        return self._send_appended(self._state.now_us())

    def _append_log(self, action: AppendLog) -> None:
        self._writer.append(action)
        self._writer.flush()
        if tracing.current:
            self._state.follow(action, tracing.current, "follower")

    def _truncate_log(self, action: TruncateLog) -> None:
        self._log.warning("log_truncated", to=action.to_offset, log_end=self._files.log_end)
        self._writer.write(self._files.truncate(action.to_offset), action.write_id)

    def _reset_log(self, action: ResetLog) -> None:
        self._log.warning("log_reset", at=action.at)
        producers, then = self._snapshots.installing or (None, None)
        self._writer.write(self._files.reset(action.at, producers, action.members, then), action.write_id)

    def _persist_term(self, action: PersistTerm) -> None:
        self._writer.write(self._files.hard_state.stage(action.term, action.voted_for), action.write_id)

    # -- other replicas ----------------------------------------------------------------------------------------

    def _send(self, action: Send) -> None:
        traces, message = self._state.traces, action.message
        if traces is not None and type(message) is Append and message.entries:
            tracing.outgoing = traces.parent_of(message.entries)
            try:
                self._services.send_message(action.to, message)
            finally:
                tracing.outgoing = None
            return
        self._services.send_message(action.to, message)

    def _read_entries(self, action: ReadEntries) -> None:
        self._steps.queue(self._entries_read, action)

    def _entries_read(self, action: ReadEntries) -> Sequence[Action]:
        found = self._follower_reads.read(action)
        return () if found is None else self._replica.entries_read(action.to, *found)

    def peer_drained(self, node_id: int) -> None:
        """The connection to a follower has room again."""
        deferred = self._follower_reads.drained(node_id)
        if deferred is not None:
            self._driver.call(self._entries_read, deferred)

    def _send_snapshot(self, action: SendSnapshot) -> None:
        self._services.send_snapshot(self._snapshots, action.to)

    # -- roles and members -------------------------------------------------------------------------------------

    def _role_changed(self, action: RoleChanged) -> None:
        state = self._state
        self._log.debug("role_changed", role=str(action.role), term=action.term, leader=action.leader)
        self._reports.proposed = None
        if action.role is Role.LEADER:
            self._services.metrics.elections += 1
            self.note_led_term()
        else:
            if state.table is not None:
                state.table.stop_leading()
            self._follower_reads.clear()
            self._steps.later(self._common.send_clients_away)
            # What this leader had acknowledged beyond what is settled may yet turn out to be lost.
            state.high_watermark = min(state.high_watermark, self._replica.high_watermark)
        if state.observer is not None:
            self._steps.later(state.observer.role_changed, action.role, action.term, action.leader)
        self._steps.later(self._services.replica_changed, state.shard_id)

    def _leader_ready(self, action: LeaderReady) -> None:
        state = self._state
        if state.table is not None:
            self._common.folds.finish()
            state.table.lead(self._services.recovered_part(state.shard_id))
            self._steps.later(self._sessions.look)
        self._log.info("leader_ready", term=action.term, log_end=self._files.log_end)
        if state.observer is not None:
            self._steps.later(state.observer.leader_ready, action.term)
        self._steps.later(self._services.replica_changed, state.shard_id)

    def _lost_tail(self, action: LostTail) -> None:
        """What this node had acknowledged, and nobody else has, is cut: the loss window of the topic's rule (S4.28)."""
        lost = action.to_offset - action.from_offset
        state, table = self._state, self._state.table
        self._log.warning("lost_tail", from_offset=action.from_offset, to_offset=action.to_offset)
        self._services.metrics.lost_tail_records += lost
        state.high_watermark = min(state.high_watermark, action.from_offset)
        if self._hint.noted > action.from_offset:
            self._hint.note()  # before the log is cut: what is noted binds the next start
        self._common.folds.give_up(action.from_offset)
        if self._snapshots.installing is not None:
            return  # the store is another one already
        if table is not None and table.state.applied_offset > action.from_offset:
            if self._files.log_start:
                raise StorageFailedError(
                    f"shard {state.shard_id}: what is in the store was given up by an unclean election and the log no "
                    "longer reaches back to its beginning: move this replica to another node and back"
                )
            table.start_over()

    def _members_changed(self, action: MembersChanged) -> None:
        self._log.info("members_changed", members=action.members, committed=action.committed)
        if action.committed:
            self._state.deleted_before = action.members.deleted_before
        self.note_led_term()
        self._steps.later(self._services.replica_changed, self._state.shard_id)

    def _propose_live(self, action: ProposeLiveSet) -> None:
        self._log.info("live_set_proposed", live=action.live, version=action.version)
        self._reports.proposed = action
        self._steps.later(self._services.live_changed)

    def note_led_term(self) -> None:
        """A loss has to be counted even if the power fails before it is found (S4.28).

        A term that begins is noted before its first entry is written, so also before anything is acknowledged in it.
        """
        hard_state, state = self._files.hard_state, self._state
        if state.is_leader and self._mode.acknowledges_early and hard_state.led_term != state.term:
            self._driver.submit(hard_state.stage_led_term(state.term))

    # -- the end -----------------------------------------------------------------------------------------------

    def stopped(self, error: Exception, *, was_leader: bool) -> None:
        """See ActionHandlers."""
        self._follower_reads.clear()
        self._common.stopped(error, needs_leader=was_leader and self._mode.is_appointed)

    def closed(self) -> None:
        """No follower is sent entries any more."""
        self._follower_reads.clear()
