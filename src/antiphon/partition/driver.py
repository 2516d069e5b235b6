"""Drives one replica: an event in, the actions that it answers with carried out, then the news of it told.

The pure replica says what to do (`replication.actions`), the driver has it done: storage actions go to the WAL thread,
messages to the transport, reads for other replicas to the log. What is done for each type of action is the business of
`ActionHandlers`; when it is done is the driver's.

The replica owns the log's end. A client batch is an entry of the replica from the moment at which it is stamped (`stage`),
and what is written is exactly what the replica's actions say. Writing and sending wait for the end of the loop's turn, so
that the batches of a turn cost one group of the WAL and one message to each of the other replicas.

A step is one event and its actions. It cannot be entered a second time: an event that comes while actions are carried out
waits for the next step. Whoever is outside the replica (clients, readers, the coordinator, the node) is told when the step
is done, in the order of the actions; so whatever they do then, the replica, its log and its table agree with each other.

A broken invariant or a failed disk stops this replica for good, and nothing it had underway is acknowledged: the node
goes on with its other shards and reports this one's state.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.errors import (
    AntiphonError,
    DamagedLogError,
    OverloadedError,
    StorageFailedError,
)
from antiphon.invariants import unreachable
from antiphon.log.disk import NO_DESCRIPTORS
from antiphon.partition.failures import as_failure, report_request
from antiphon.partition.log_writer import LogWriter
from antiphon.partition.state import PartitionState
from antiphon.partition.steps import BUSY, REFUSALS, Event, Steps
from antiphon.partition.waiting_readers import WaitingReaders
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.log.operations import Callback, LogOp


class ActionHandlers(Protocol):
    """What is done for what a replica says."""

    @property
    def by_action(self) -> Mapping[type, Callable[[Any], None]]:
        """What carries out an action, by its type."""

    def take_batch(self, batch: bytearray, records: int) -> Event | None:
        """Make a stamped batch an entry of the replica, and stage what the replica says.

        Returns the event that is due before any other, at the end of the turn at the latest.
        """

    def stopped(self, error: Exception, *, was_leader: bool) -> None:
        """The replica stopped for good: it sends no entries, and whoever relies on it is to be told."""


class ReplicaDriver:
    """See the module's text; of one replica.

    Attributes:
        carry_out: what carries out an action, by its type.
        writer: the way to the log's files, for handlers of actions.
        steps: takes the events and the news that follow from an action, for handlers of actions.
        ticking: does the node call `tick`?
    """

    def __init__(self, state: PartitionState, readers: WaitingReaders) -> None:
        self.state = state
        self.shard_id = state.shard_id
        self.carry_out: dict[type, Callable[[Any], None]] = {}
        self.writer = LogWriter(state.services, state.log, self._report_written, self.fail)
        stirred = state.services.stirred
        self.steps = Steps(self.carry_out, state.log.terms, state.replica.ends, self.shard_id, stirred)
        self.ticking = False
        self._readers = readers
        self._handlers: ActionHandlers  # as attached
        self._take_batch: Callable[[bytearray, int], Event | None]
        self._unsent: Event | None = None  # the replica owes the others what clients have appended
        self._turn_asked = False
        self._log = state.lines

    def attach(self, handlers: ActionHandlers) -> None:
        """Who carries out the actions; before the first event."""
        self._handlers = handlers
        self._take_batch = handlers.take_batch
        self.carry_out.update(handlers.by_action)

    # -- events into the replica -------------------------------------------------------------------------------

    def call(self, event: Event, *arguments: Any) -> None:
        """Give the replica an event and do what it says; while that goes on for another event, this one waits for it.

        Raises what the replica refuses: NotLeaderError, NotReadyError, OverloadedError; nothing has changed then.
        """
        steps, state = self.steps, self.state
        if state.failed is not None or state.closed:
            return
        if steps.is_acting:
            steps.queue(event, *arguments)
            return
        try:
            unsent = self._unsent
            if unsent is not None:  # first: it goes out as one message then
                self._unsent = None
                steps.step(unsent)
            steps.step(event, *arguments)
        except REFUSALS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, what the replica believes was not carried out
            self.fail(error)
        finally:
            if steps.events and state.failed is None:
                self._step_on()
            if steps.news:
                steps.notify(self.fail)
        if not self.ticking:
            self.start_ticking()  # the next tick finds out whether more are needed

    def _step_on(self) -> None:
        """The events that came meanwhile; whoever they came from has gone on."""
        steps = self.steps
        while steps.events:
            event, arguments = steps.events.popleft()
            try:
                steps.step(event, *arguments)
            except REFUSALS as error:
                report_request(self.shard_id, error)
            except Exception as error:  # noqa: BLE001 - as for the first event
                self.fail(error)

    def _wants_ticks(self) -> bool:
        state = self.state
        return state.failed is None and not state.closed and state.replica.needs_tick

    def start_ticking(self) -> None:
        """Have the node call `tick`, while this replica works."""
        if self.state.failed is None and not self.state.closed:
            self.ticking = True
            self.state.services.needs_ticks(self)

    def tick(self) -> bool:
        """One tick of time; False when no more are needed."""
        self.call(self.state.replica.tick, self.state.now_us())
        self.ticking = self._wants_ticks()
        return self.ticking

    def stage(self, batch: bytearray, records: int) -> None:
        """Append a client batch that is stamped with the log's end and the term; it is on its way when this turn ends.

        Raises NotLeaderError, NotReadyError: nothing was appended. Never called while a step is under way.
        """
        steps, state = self.steps, self.state
        if state.failed is not None or state.closed:
            raise state.not_leader()
        try:
            if steps.is_acting:
                unreachable(BUSY)
            steps.is_acting = True
            try:
                self._unsent = self._take_batch(batch, records)
            finally:
                steps.is_acting = False
        except REFUSALS:
            raise
        except Exception as error:  # the log may have the batch and the replica not, or the other way round
            self.fail(error)
            raise state.not_leader() from error
        if not self._turn_asked:
            self._turn_asked = True
            state.services.turn.for_shard(self._end_turn)

    def _end_turn(self) -> None:
        """What clients appended in this turn goes to the disk and to followers; readers of uncommitted records are woken."""
        self._turn_asked = False
        self.writer.flush()
        unsent = self._unsent
        if unsent is not None:
            self._unsent = None
            self.call(unsent)
        if self._readers.followers:
            self._readers.wake(committed=False)

    # -- the log -----------------------------------------------------------------------------------------------

    def submit(self, op: "LogOp", callback: "Callback | None" = None) -> None:
        """Give the WAL an operation of this log that does not come from the replica, such as a trim, just staged."""
        self.writer.submit(op, callback)

    def _report_written(self) -> None:
        """Writes come back in order; the replica hears of the last of a group, once a turn."""
        writer, state = self.writer, self.state
        writer.is_told = True
        if state.traces is not None:
            state.traces.synced(writer)
        self.call(state.replica.persisted, writer.written_id)

    # -- the end -----------------------------------------------------------------------------------------------

    def stopped_by(self, error: DamagedLogError | StorageFailedError | OSError) -> AntiphonError:
        """The disk failed in the middle of somebody's read: this ends the replica. What the reader is told."""
        state = self.state
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:  # that passes
            return OverloadedError(f"node {state.services.node_id} has no file descriptors left; retry")
        if isinstance(error, OSError):
            error = StorageFailedError(f"shard {self.shard_id} cannot be read from the disk: {error}")
        if not state.closed:
            self.fail(error)
        return state.not_leader()

    def fail(self, error: Exception) -> None:
        """Stop this replica for good; nothing that was underway is acknowledged."""
        state = self.state
        if state.failed is not None:
            return
        self._log.error("replica_stopped", error=str(error), kind=type(error).__name__, exc_info=error)
        state.failed = as_failure(error, f"shard {self.shard_id} stopped on this node")
        was_leader = state.replica.role is Role.LEADER
        state.replica.storage_failed()  # silent from now on; its actions have nobody left to carry them out
        self.writer.drop()
        self.steps.stop()
        state.services.metrics.shard_failures += 1
        self._handlers.stopped(error, was_leader=was_leader)
        self.steps.notify(self.fail)
