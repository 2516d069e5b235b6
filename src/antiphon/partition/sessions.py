"""Sessions of a table's shard, for clients and by the clock, on the shard's leader.

A session is opened and ended by entries of the shard's log; signs of life are in the leader's memory only (`SessionClock`).
A sign of life is answered when leadership was confirmed after it came in: no newer leader can then have begun to count
before it, and a newer one counts in full. So a session whose client was answered does not expire within its time-out from
when the client asked, whoever leads by then.

While a part of the keys is being handed over to another shard (a split), no session begins or ends: the other shard takes
over those that are open, with their rows.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    LimitReachedError,
    NotReadyError,
    SessionNotFoundError,
    StorageFailedError,
)
from antiphon.model.requests import Done
from antiphon.model.sessions import (
    CloseSession,
    KeepSession,
    ListSessions,
    OpenSession,
    SessionRequest,
    SessionsReply,
    SessionState,
)
from antiphon.partition import append_queue
from antiphon.partition.clients import PartitionClients
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.table_reads import joins
from antiphon.partition.table_writes import judge_appended
from antiphon.records.builder import build_batch
from antiphon.records.session_entries import SessionEnded, SessionEntry, SessionOpened, build_session_entry
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.ranges import OwnedRange, covers, wrong_shard
from antiphon.table.session_clock import SessionClock
from antiphon.table.session_rows import change_by

if TYPE_CHECKING:
    from antiphon.partition.table_shard import TableShard

ENDS_AT_ONCE: Final = 128  # sessions that expire, in one turn
KEYS_COUNTED_MAX: Final = 5_000  # that a list of sessions looks for in the store
END_TIMEOUT_S: Final = 30.0
SESSION_ID_MAX: Final = (1 << 63) - 1


class PartitionSessions:
    """See the module's text; of one replica. Looked after as one where clients wait (`Waiting`)."""

    def __init__(self, driver: ReplicaDriver, clients: PartitionClients) -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients
        self._clock = SessionClock(0.0)
        self._judge: TableEvaluator | None = None  # whose sessions the clock knows
        self._log = driver.state.lines
        self.shard_id = driver.shard_id
        self.is_looked_after = False

    @property
    def count(self) -> int:
        """Sessions that are open in a shard that is led here."""
        evaluator = self._evaluator
        return 0 if evaluator is None else len(evaluator.sessions.by_id)

    @property
    def _evaluator(self) -> TableEvaluator | None:
        table, state = self._state.table, self._state
        is_over = table is None or state.failed is not None or state.closed
        return None if table is None or is_over else table.evaluator

    # -- by the clock --------------------------------------------------------------------------------------------

    def look(self) -> None:
        """This replica may lead a shard with sessions now: have their time pass."""
        evaluator = self._evaluator
        if evaluator is not None and evaluator.sessions.by_id:
            self._clock_of(evaluator)
            self._state.services.someone_waits(self)

    @property
    def waiting(self) -> bool:
        """Is there a session that may expire?"""
        return self.count > 0

    def expire(self, now_s: float) -> None:
        """End the sessions that are due."""
        evaluator = self._evaluator
        if evaluator is None:
            return
        clock = self._clock_of(evaluator)
        if self._state.is_joining:
            clock.begin(evaluator.sessions, now_s)  # clients reach the shard that this one is split off
            return
        for session_id in clock.turn(evaluator.sessions, now_s, ENDS_AT_ONCE):
            try:
                self._clients.in_turn(
                    partial(self._expire, evaluator, session_id), END_TIMEOUT_S, _nobody_waits
                )
            except StorageFailedError as error:
                self._driver.stopped_by(error)
                return
            except AntiphonError as error:  # it comes up again
                self._log.info("session_not_ended", session=session_id, error=error.message)
                return

    def _clock_of(self, evaluator: TableEvaluator) -> SessionClock:
        if self._judge is not evaluator:
            self._judge, self._clock = evaluator, SessionClock(self._state.services.now_s())
        return self._clock

    def _expire(self, evaluator: TableEvaluator, session_id: int) -> None:
        """End it, if it is still due when its turn has come."""
        now_s = self._state.services.now_s()
        is_open = evaluator is self._evaluator and session_id in evaluator.sessions.by_id
        if not is_open or evaluator.owned.is_frozen or not self._clock.is_due(session_id, now_s):
            return
        self._state.check_writable()
        self._end(evaluator, session_id, END_TIMEOUT_S, None, _nobody_waits)
        self._state.services.metrics.sessions_expired += 1
        self._log.info("session_expired", session=session_id)

    def open_sessions(self, request: ListSessions) -> SessionsReply:
        """The open sessions that a list asks for. Raises what clients of sessions are told otherwise."""
        table, evaluator = self._leading()
        now_s, clock, left = self._state.services.now_s(), self._clock_of(evaluator), KEYS_COUNTED_MAX
        ids = sorted(one for one in evaluator.sessions.by_id if one > request.after)
        rows = []
        for session_id in ids[: request.limit]:
            session = evaluator.sessions.by_id[session_id]
            keys = (
                session.keys
                if session.keys is not None or left <= 0
                else table.state.session_keys(session_id)
            )
            left -= 0 if keys is session.keys or keys is None else len(keys) + 1
            rows.append(
                SessionState(
                    session_id,
                    session.timeout_ms,
                    -1 if keys is None else len(keys),
                    clock.age_ms(session, now_s),
                    clock.left_ms(session_id, session, now_s),
                )
            )
        return SessionsReply(tuple(rows), len(evaluator.sessions.by_id), len(ids) > len(rows))

    # -- for clients ---------------------------------------------------------------------------------------------

    def carry_out(self, request: SessionRequest, done: append_queue.Done) -> None:
        """Carry out a request; `done` gets `Done` or an error. Raises what is known at once."""
        timeout_s = request.wait_ms / 1000
        if not 0 < request.session_id <= SESSION_ID_MAX:
            raise InvalidRequestError(f"a session's id is from 1 to 2^63 - 1, not {request.session_id}")
        try:
            if isinstance(request, KeepSession):
                self._keep(request, timeout_s, done)
                return
            self._state.check_writable()
            run = (
                partial(self._open, request)
                if isinstance(request, OpenSession)
                else partial(self._close, request)
            )
            self._clients.in_turn(partial(run, timeout_s, done), timeout_s, done)
        except StorageFailedError as error:
            raise self._driver.stopped_by(error) from error

    def _leading(self) -> "tuple[TableShard, TableEvaluator]":
        """The table, where this replica judges. Raises what a client is told otherwise."""
        state = self._state
        state.check_serving()
        table = state.require_table()
        if state.has_many_writers:
            raise InvalidRequestError(
                "sessions need one leader that says when they expire: a table with writers=multi has none"
            )
        if state.is_joining:
            raise joins(state.shard_id)
        if table.evaluator is None:
            raise NotReadyError(f"shard {state.shard_id} has just been elected; retry")
        return table, table.evaluator

    def _open(self, request: OpenSession, timeout_s: float, done: append_queue.Done) -> None:
        _, evaluator = self._leading()
        bounds, sessions = self._state.services.session_bounds, evaluator.sessions.by_id
        if not bounds.timeout_min_ms <= request.timeout_ms <= bounds.timeout_max_ms:
            raise InvalidRequestError(
                f"a session's time-out is from {bounds.timeout_min_ms} to {bounds.timeout_max_ms} ms here "
                f"([sessions] in node.toml), not {request.timeout_ms}"
            )
        _check_settled(evaluator.owned)
        if not covers(evaluator.owned, request.hashes):
            self._elsewhere(evaluator, timeout_s, done)
            return
        known = sessions.get(request.session_id)
        if known is not None:
            self._open_already(evaluator, request, timeout_s, done)
            return
        if len(sessions) >= bounds.per_shard:
            raise LimitReachedError(
                f"shard {self.shard_id} has {len(sessions)} open sessions, as many as there may be: close some, or set "
                "per_shard of [sessions] in node.toml higher",
                limit="sessions.per_shard",
            )
        self._append(
            evaluator, SessionOpened(request.session_id, request.timeout_ms), timeout_s, Done(), done
        )
        self.look()

    def _open_already(
        self, evaluator: TableEvaluator, request: OpenSession, timeout_s: float, done: append_queue.Done
    ) -> None:
        session = evaluator.sessions.by_id[request.session_id]
        if session.timeout_ms != request.timeout_ms:
            raise InvalidRequestError(
                f"session {request.session_id} is open with a time-out of {session.timeout_ms} ms, not "
                f"{request.timeout_ms}: draw another id"
            )
        self._clock_of(evaluator).kept(request.session_id, session, self._state.services.now_s())
        self._clients.when_confirmed(evaluator.appended_end, timeout_s, lambda: done(Done()), done)

    def _keep(self, request: KeepSession, timeout_s: float, done: append_queue.Done) -> None:
        _, evaluator = self._leading()
        session = evaluator.sessions.by_id.get(request.session_id)
        if session is not None:
            self._clock_of(evaluator).kept(request.session_id, session, self._state.services.now_s())
        confirmed = partial(self._confirmed, request, timeout_s, done)
        self._clients.when_confirmed(0, timeout_s, confirmed, done)

    def _confirmed(self, request: KeepSession, timeout_s: float, done: append_queue.Done) -> None:
        """Nobody else leads, as of after the request came in: say how the session is."""
        table, evaluator = self._leading()
        owned = table.state.shown
        if not covers(owned, request.hashes):
            done(wrong_shard(self.shard_id, owned))
        elif request.session_id in evaluator.sessions.by_id:
            done(Done())
        else:
            self._not_there(request, evaluator, timeout_s, done)

    def _close(self, request: CloseSession, timeout_s: float, done: append_queue.Done) -> None:
        _, evaluator = self._leading()
        _check_settled(evaluator.owned)
        if not covers(evaluator.owned, request.hashes):
            self._elsewhere(evaluator, timeout_s, done)
        elif request.session_id in evaluator.sessions.by_id:
            self._end(evaluator, request.session_id, timeout_s, Done(), done)
        else:
            self._not_there(request, evaluator, timeout_s, done)

    def _not_there(
        self, request: SessionRequest, evaluator: TableEvaluator, timeout_s: float, done: append_queue.Done
    ) -> None:
        """Refuse it, once whatever ended the session is committed and nobody else can have opened it."""
        error = SessionNotFoundError(
            f"session {request.session_id} is not open in shard {self.shard_id}: it expired, was closed or never was",
            session_id=request.session_id,
        )
        self._clients.when_confirmed(evaluator.appended_end, timeout_s, lambda: done(error), done)

    def _elsewhere(self, evaluator: TableEvaluator, timeout_s: float, done: append_queue.Done) -> None:
        error = wrong_shard(self.shard_id, evaluator.owned)
        self._clients.when_committed(evaluator.appended_end, timeout_s, lambda: done(error), done)

    # -- the log -------------------------------------------------------------------------------------------------

    def _end(
        self,
        evaluator: TableEvaluator,
        session_id: int,
        timeout_s: float,
        result: Any,
        done: append_queue.Done,
    ) -> None:
        """Append the end of an open session: one entry, which takes its rows away."""
        evaluation = evaluator.ending(session_id, system.wall_ms())
        if not evaluation.records:
            self._append(evaluator, SessionEnded(session_id), timeout_s, result, done)
            return
        state = self._state
        base, records = state.log.terms.log_end, len(evaluation.records)
        batch = build_batch(evaluation.records, base_offset=base, leader_epoch=state.replica.term)
        self._stage(
            batch, base, records, partial(evaluator.appended, evaluation, base), timeout_s, result, done
        )

    def _append(
        self,
        evaluator: TableEvaluator,
        entry: SessionEntry,
        timeout_s: float,
        result: Any,
        done: append_queue.Done,
    ) -> None:
        state = self._state
        base = state.log.terms.log_end
        change = change_by(entry)
        batch = build_session_entry(entry, state.replica.term, base, system.wall_ms())
        told = partial(evaluator.appended_session, change, base)
        self._stage(batch, base, 1, told, timeout_s, result, done)

    def _stage(
        self,
        batch: bytearray,
        base: int,
        records: int,
        appended: Callable[[], None],
        timeout_s: float,
        result: Any,
        done: append_queue.Done,
    ) -> None:
        self._clients.stage(batch, records, base + records, result, timeout_s, done)
        judge_appended(self._driver, appended)


def _check_settled(owned: OwnedRange) -> None:
    """Raise NotReadyError while a part of the keys is being handed over."""
    if owned.is_frozen:
        raise NotReadyError(
            f"keys are moving to shard {owned.child}, which takes a moment: no session begins or ends meanwhile; retry"
        )


def _nobody_waits(_result: Any) -> None:
    """It was the clock."""
