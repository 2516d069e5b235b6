"""One replica on this node: its log, its protocol, its table, tied together on the event loop.

Theory of operation. The pure replica says what to do (`replication.actions`), the host does it: storage actions go to
the WAL thread, messages to the transport, reads for followers to the log.

The replica owns the log's end. A client batch is an entry of the replica from the moment at which it is stamped (`stage`),
and what is written is exactly what the replica's AppendLog says. Writing and sending wait for the end of the loop's turn, so
that the batches of a turn cost one group of the WAL and one message to each follower.

A step is one event and its actions. It cannot be entered a second time: an event that comes while actions are carried out
waits for the next step. Whoever is outside the replica (clients, readers, the coordinator, the node) is told when the step
is done, in the order of the actions; so whatever they do then, the replica, its log and its table agree with each other.
Within a commit the order is: apply, answer clients, wake readers (S0.20, S1.20).

A broken invariant or a failed disk stops this replica for good, and nothing it had underway is acknowledged: the node
goes on with its other shards and reports this one's state.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from antiphon.errors import (
    AntiphonError,
    DamagedLogError,
    DamagedStoreError,
    DiskFullError,
    NotLeaderError,
    NotReadyError,
    OverloadedError,
    StorageFailedError,
    WrongKindError,
)
from antiphon.invariants import unreachable
from antiphon.log.disk import NO_DESCRIPTORS
from antiphon.model.metadata import ShardMeta
from antiphon.partition.clients import ShardClients
from antiphon.partition.failures import as_failure
from antiphon.partition.feeding import Feeding
from antiphon.partition.log_writer import LogWriter, not_as_said
from antiphon.partition.services import CommitObserver, HostServices
from antiphon.partition.status import status_of
from antiphon.partition.steps import BUSY, REFUSALS, Steps
from antiphon.records.batch import read_header
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import (
    Action,
    AppendLog,
    Commit,
    Feed,
    LeaderReady,
    LostTail,
    MembersChanged,
    PersistTerm,
    ProposeLive,
    ReadFailed,
    ReadReady,
    Repaired,
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
    from antiphon.log.operations import Callback, LogOp
    from antiphon.log.producer_state import ProducerState
    from antiphon.log.shard_log import ShardLog
    from antiphon.model.requests import ReplicaStatus
    from antiphon.partition.settings import PartitionSettings
    from antiphon.partition.table_shard import TableShard


class InstallingSnapshot(NamedTuple):
    """What a log that is reset for a snapshot begins with, and what follows once the reset is durable."""

    producers: "ProducerState"
    then: Callable[[], None] | None


class ShardHost:
    """See the module's text."""

    every_replica_writes = False

    def __init__(
        self,
        services: HostServices,
        shard_id: int,
        log: "ShardLog",
        replica: Replica | RaftReplica,
        table: "TableShard | None",
        max_message_bytes: int,
    ) -> None:
        self.services = services
        self.shard_id = shard_id
        self.log = log
        self.replica = replica
        self.table = table
        self.settings: PartitionSettings | None = None  # of its topic; `__cluster` has none
        self.clients = ShardClients(self, max_message_bytes)
        self.observer: CommitObserver | None = None
        self.failed: AntiphonError | None = None
        self.closed = False
        self.leader_lacks = 0  # checkpoints in a row at which the leader had not shown what is settled here
        self.high_watermark = replica.high_watermark
        self.noted_watermark = replica.high_watermark  # what the checkpoint file says
        self._known_record = (0, 0)  # term and version of the live replica set that the replica was told of
        self.proposed_live: ProposeLive | None = None  # to be told to the coordinator
        self.ticking = False
        self.installing: InstallingSnapshot | None = None  # while a snapshot takes the place of log and store
        self._writer = LogWriter(services, log, self._written, self.fail)
        self._unsent = False  # does the replica owe its followers what clients have appended?
        self._turn_asked = False
        self._written_id = 0
        self._written_asked = False
        self._feeding = Feeding(services, log)
        self._log = structlog.get_logger().bind(shard=shard_id)
        self._carry_out: dict[type, Callable[[Any], None]] = {
            PersistTerm: self._persist_term,
            AppendLog: self._append_log,
            TruncateLog: self._truncate_log,
            ResetLog: self._reset_log,
            Send: self._send,
            Feed: self._feed,
            SendSnapshot: self._send_snapshot,
            Commit: self._commit,
            RoleChanged: self._role_changed,
            LeaderReady: self._leader_ready,
            ReadReady: self._read_ready,
            ReadFailed: self._read_failed,
            Repaired: self._repaired,
            LostTail: self._lost_tail,
            MembersChanged: self._members_changed,
            ProposeLive: self._propose_live,
        }
        self._steps = Steps(self._carry_out)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def term(self) -> int:
        """The term that this replica is in."""
        return self.replica.term

    @property
    def elects_itself(self) -> bool:
        """Do the replicas of this shard vote? `__cluster`'s do, and those of topics with `election=raft`."""
        return isinstance(self.replica, RaftReplica)

    @property
    def is_leader(self) -> bool:
        """Does this replica lead, ready or not?"""
        return self.failed is None and self.replica.role is Role.LEADER

    @property
    def settled(self) -> int:
        """First offset that an election may still take back: what is written down, and as far as the log may be trimmed."""
        return self.high_watermark if self.every_replica_writes else self.replica.settled

    @property
    def acknowledges_early(self) -> bool:
        """Does the topic's rule acknowledge what an election may still lose (`local`, small `at_least(k)`)?"""
        if self.every_replica_writes or self.replica.live:
            return False
        return self.replica.commit_rule.may_lose(len(self.replica.members.voters))

    @property
    def waits_for(self) -> str:
        """What may be missing when nothing is committed, as a question to an operator."""
        live = () if self.every_replica_writes else self.replica.live
        if live and self.settings is not None:
            wanted = self.settings.replica.min_live
            return f"are enough replicas live (min.live={wanted}, live are {', '.join(map(str, live))})"
        return "is a majority of its replicas up"

    @property
    def is_serving(self) -> bool:
        """Does this replica lead, and may it serve clients?"""
        return self.failed is None and self.replica.role is Role.LEADER and self.replica.ready

    def not_leader(self) -> NotLeaderError:
        """The error that points to who leads."""
        if self.failed is not None:  # the others elect a leader among them: worth a retry
            return NotLeaderError(
                f"the replica of shard {self.shard_id} on node {self.services.node_id} stopped: {self.failed.message}",
                leader=None,
                shard_id=self.shard_id,
                failed=self.failed.code,  # for good: who asks for this very replica need not wait
                offset=self.failed.details.get("offset"),
            )
        leader = None if self.is_leader else self.replica.leader
        return NotLeaderError(
            f"node {self.services.node_id} does not lead shard {self.shard_id}, "
            + (f"node {leader} does" if leader is not None else "nobody is known to"),
            leader=leader,
            shard_id=self.shard_id,
        )

    def check_alive(self) -> None:
        """Raise unless this replica works."""
        if self.failed is not None or self.closed:
            raise self.not_leader()

    def check_serving(self) -> None:
        """Raise NotLeaderError or NotReadyError unless this replica may serve clients (S0.8, S1.36)."""
        self.check_alive()
        if self.replica.role is not Role.LEADER:
            raise self.not_leader()
        if not self.replica.ready:
            raise NotReadyError(
                f"shard {self.shard_id} has just got its leader, whose term has no committed entry yet; retry",
                leader=self.services.node_id,
            )

    def check_writable(self) -> None:
        """The same, and there must be room for a write: DiskFullError, OverloadedError."""
        self.check_serving()
        wal = self.services.wal
        if wal.disk_full:
            lacks = "the disk is full" if wal.committer.waits_for_room else "no file descriptors are left"
            raise DiskFullError(
                f"node {self.services.node_id} cannot write, {lacks}: writes are refused until that passes, reads go on"
            )
        if wal.overloaded:
            raise OverloadedError(
                f"{wal.backlog_bytes} bytes wait for the disk of node {self.services.node_id}; retry"
            )

    def require_table(self) -> "TableShard":
        """The table's store; WrongKindError for a plain topic's shard."""
        if self.table is None:
            raise WrongKindError(f"shard {self.shard_id} belongs to a topic, not to a table")
        return self.table

    def configure(self, settings: "PartitionSettings") -> None:
        """Take over the settings of the topic, whatever this replica is doing."""
        self.settings = settings
        if self.log.config != settings.log:
            self.log.config = settings.log
        self.clients.configure(settings)
        if not self.every_replica_writes:
            self.call(self.replica.set_config, settings.replica)
            self._note_led_term()

    def recorded(self, shard: ShardMeta) -> None:
        """The metadata shows the shard like this: a leader that goes by its live set is told of the record (S3.29)."""
        if shard.live_version and self.is_leader and (shard.term, shard.live_version) != self._known_record:
            self._known_record = (shard.term, shard.live_version)
            if self.proposed_live is not None and self.proposed_live.version < shard.live_version:
                self.proposed_live = None  # it was made on top of an older record, and would be refused
            self.call(self.replica.live_recorded, shard.term, shard.live_version, shard.live)

    # -- events into the replica --------------------------------------------------------------------------------

    def call(self, event: Callable[..., Sequence[Action]], *arguments: Any) -> None:
        """Give the replica an event and do what it says; while that goes on for another event, this one waits for it.

        Raises what the replica refuses: NotLeaderError, NotReadyError, OverloadedError; nothing has changed then.
        """
        steps = self._steps
        if self.failed is not None or self.closed:
            return
        if steps.is_acting:
            steps.queue(event, *arguments)
            return
        try:
            if self._unsent:  # first: it goes out as one message then
                self._unsent = False
                self._step(self.replica.send_appended)
            self._step(event, *arguments)
        except REFUSALS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, what the replica believes was not carried out
            self.fail(error)
        finally:
            if steps.events and self.failed is None:
                self._step_on()
            if steps.news:
                steps.tell(self.fail)
        if not self.ticking and self._wants_ticks():
            self.ticking = True
            self.services.needs_ticks(self)

    def _step(self, event: Callable[..., Sequence[Action]], *arguments: Any) -> None:
        """One event and all of its actions; afterwards the replica and its log agree on what the log holds."""
        self._steps.step(event, *arguments)
        if self.log.log_end != self.replica.log_end and self.failed is None:
            unreachable(f"the log ends at {self.log.log_end}, the replica's at {self.replica.log_end}")

    def _step_on(self) -> None:
        """The events that came meanwhile; whoever they came from has gone on."""
        events = self._steps.events
        while events:
            event, arguments = events.popleft()
            try:
                self._step(event, *arguments)
            except REFUSALS as error:
                self.report(error)
            except Exception as error:  # noqa: BLE001 - as for the first event
                self.fail(error)

    def _wants_ticks(self) -> bool:
        return self.failed is None and not self.closed and self.replica.needs_tick

    def receive(self, sender: int, message: AnyMessage) -> None:
        """A message from another replica, or from the coordinator."""
        self.call(self.replica.receive, sender, message)

    def members_at(self, offset: int) -> Members | None:
        """Who the members were at `offset`, where the replicas vote; None where a coordinator keeps them."""
        return self.replica.members_at(offset) if isinstance(self.replica, RaftReplica) else None

    def snapshot_installed(self, at: EntryId, members: Members | None) -> Sequence[Action]:
        """A whole snapshot is here: what the replica makes of it."""
        if isinstance(self.replica, RaftReplica):
            return self.replica.snapshot_installed(at, members)
        return self.replica.snapshot_installed(at)

    def tick(self) -> bool:
        """One tick of time; False when no more are needed."""
        self.call(self.replica.tick)
        self.ticking = self._wants_ticks()
        return self.ticking

    def stage(self, batch: bytearray, records: int) -> None:
        """Append a client batch that is stamped with the log's end and the term; it is on its way when this turn ends.

        Raises NotLeaderError, NotReadyError: nothing was appended. Never called while a step is under way.
        """
        steps = self._steps
        self.check_alive()
        try:
            if steps.is_acting:
                unreachable(BUSY)
            steps.is_acting = True
            try:
                self._take_batch(batch, records)
            finally:
                steps.is_acting = False
        except REFUSALS:
            raise
        except Exception as error:  # the log may have the batch and the replica not, or the other way round
            self.fail(error)
            raise self.not_leader() from error
        if not self._turn_asked:
            self._turn_asked = True
            self.services.turn.for_shard(self._end_turn)

    def _take_batch(self, batch: bytearray, records: int) -> None:
        self._write(self.replica.append_batch(records, batch))
        self._unsent = True

    def _end_turn(self) -> None:
        """What clients appended in this turn goes to the disk and to followers; readers of uncommitted records are woken."""
        self._turn_asked = False
        self._writer.flush()
        if self._unsent:
            self._unsent = False
            self.call(self.replica.send_appended)
        self.clients.appended()

    # -- actions out of the replica -----------------------------------------------------------------------------

    def submit(self, op: "LogOp", callback: "Callback | None" = None) -> None:
        """Give the WAL an operation of this log that does not come from the replica, such as a trim, just staged."""
        self._writer.submit(op, callback)

    def _append_log(self, action: AppendLog) -> None:
        self._write(action)
        self._writer.flush()

    def _write(self, action: AppendLog) -> None:
        """Stage exactly what the replica says."""
        batches: list[Any] = []
        headers = []
        for term, base_offset, next_offset, data, _ in action.entries:
            batch: Any = data
            header = read_header(batch)
            if (
                header.base_offset != base_offset
                or header.leader_epoch != term
                or base_offset + header.last_offset_delta + 1 != next_offset
            ):
                not_as_said(header, term, base_offset, next_offset)
            batches.append(batch)
            headers.append(header)
        self._writer.append(action.write_id, batches, headers)

    def _truncate_log(self, action: TruncateLog) -> None:
        self._log.warning("log_truncated", to=action.to_offset, log_end=self.log.log_end)
        self._writer.write(self.log.truncate(action.to_offset), action.write_id)

    def _reset_log(self, action: ResetLog) -> None:
        self._log.warning("log_reset", at=action.at)
        producers, then = self.installing or (None, None)
        self._writer.write(self.log.reset(action.at, producers, action.members, then), action.write_id)

    def _persist_term(self, action: PersistTerm) -> None:
        self._writer.write(self.log.hard_state.stage(action.term, action.voted_for), action.write_id)

    def _written(self, write_id: int) -> None:
        """Writes come back in order; the replica hears of the last of a group, once a turn."""
        self._written_id = write_id
        if not self._written_asked:
            self._written_asked = True
            self.services.turn.for_shard(self._tell_written)

    def _tell_written(self) -> None:
        self._written_asked = False
        self.call(self.replica.persisted, self._written_id)
        self.services.disk_progressed()

    def _send(self, action: Send) -> None:
        self.services.send(self, action.to, action.message)

    def _feed(self, action: Feed) -> None:
        self._steps.queue(self._fed, action)

    def _fed(self, action: Feed) -> Sequence[Action]:
        found = self._feeding.read(action)
        return () if found is None else self.replica.fed(action.to, *found)

    def peer_drained(self, node_id: int) -> None:
        """The connection to a follower has room again."""
        feed = self._feeding.drained(node_id)
        if feed is not None:
            self.call(self._fed, feed)

    def _send_snapshot(self, action: SendSnapshot) -> None:
        self.services.send_snapshot(self, action.to)

    def _commit(self, action: Commit) -> None:
        """Apply; then answer clients and wake readers (S0.20, S1.20)."""
        high_watermark = action.high_watermark
        if self.table is not None:
            self.table.committed(high_watermark)
        self.high_watermark = high_watermark
        self._steps.later(self.clients.committed, high_watermark)
        if self.observer is not None:
            self._steps.later(self.observer.committed, high_watermark)

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

    def _send_clients_away(self) -> None:
        self.clients.fail_all(self.not_leader())

    def _leader_ready(self, action: LeaderReady) -> None:
        if self.table is not None:
            self.table.lead()
        self._log.info("leader_ready", term=action.term, log_end=self.log.log_end)
        if self.observer is not None:
            self._steps.later(self.observer.leader_ready, action.term)
        self._steps.later(self.services.host_changed, self)

    def _read_ready(self, action: ReadReady) -> None:
        self._steps.later(self.clients.read_ready, action)

    def _read_failed(self, action: ReadFailed) -> None:
        self._steps.later(self.clients.read_failed, action)

    def _repaired(self, _action: Repaired) -> None:
        self._log.info("log_repaired", log_end=self.log.log_end)
        self.submit(self.log.clear_damage())

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

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool = True) -> list[memoryview]:
        """Batches for a client. A disk that does not give back what was written ends this replica, not only the read."""
        try:
            return self.log.read(offset, max_bytes, end, at_least_one=at_least_one)
        except (DamagedLogError, OSError) as error:
            raise self.stopped_by(error) from error

    async def read_in_thread(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool, from_disk: bool = False
    ) -> list[memoryview]:
        """The same, without keeping the event loop waiting for the disk; `from_disk` as for `ShardLog.plan_read`."""
        work = self.log.plan_read(offset, max_bytes, end, at_least_one, from_disk=from_disk)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except (DamagedLogError, OSError) as error:
            raise self.stopped_by(error) from error

    def stopped_by(self, error: DamagedLogError | StorageFailedError | OSError) -> AntiphonError:
        """The disk failed in the middle of somebody's read: this ends the replica. What the reader is told."""
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:  # that passes
            return OverloadedError(f"node {self.services.node_id} has no file descriptors left; retry")
        if isinstance(error, OSError):
            error = StorageFailedError(f"shard {self.shard_id} cannot be read from the disk: {error}")
        if not self.closed:
            self.fail(error)
        return self.not_leader()

    def report(self, error: Exception) -> None:
        """Log what went wrong with one client's request."""
        self._log.error("request_failed", error=str(error), exc_info=error)

    def note_watermark(self) -> None:
        """Leave a hint for the next start."""
        # A leader may have committed what its own disk does not have yet: then the hint would accuse the disk of a loss.
        self.noted_watermark = min(self.settled, self.log.durable_end)
        self.submit(self.log.hard_state.stage_high_watermark(self.noted_watermark))

    def _note_led_term(self) -> None:
        """A loss has to be counted even if the power fails before it is found (S4.28).

        A term that begins is noted before its first entry is written, so also before anything is acknowledged in it.
        """
        state = self.log.hard_state
        if self.is_leader and self.acknowledges_early and state.led_term != self.term:
            self.submit(state.stage_led_term(self.term))

    # -- the end ------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """Stop this replica for good; nothing that was underway is acknowledged."""
        if self.failed is not None:
            return
        self._log.error("replica_stopped", error=str(error), kind=type(error).__name__, exc_info=error)
        self.failed = as_failure(error, f"shard {self.shard_id} stopped on this node")
        was_leader = self.replica.role is Role.LEADER
        self.replica.storage_failed()  # silent from now on; its actions have nobody left to carry them out
        self._writer.drop()
        self._steps.stop()
        self._feeding.clear()
        self.services.metrics.shard_failures += 1
        if self.table is not None:
            self.table.stop_leading()
            if isinstance(error, DamagedStoreError):
                self.table.note_damage()
        self._steps.later(self._send_clients_away)
        if self.observer is not None:
            self._steps.later(self.observer.role_changed, Role.FENCED, self.term, None)
        self._steps.later(partial(self.services.host_failed, self, was_leader=was_leader))
        self._steps.tell(self.fail)

    def close(self) -> None:
        """Stop serving: the node stops, or the shard is no longer here. The log's files are the caller's to close."""
        if not self.closed:
            self._writer.flush()
            self.closed = True
            self._feeding.clear()
            self.clients.fail_all(self.not_leader())

    def status(self) -> "ReplicaStatus":
        """For status pages."""
        return status_of(self)
