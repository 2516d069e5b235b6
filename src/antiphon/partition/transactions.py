"""Transactions in one shard, on its leader: which batches are taken as parts of them, and how they end.

Who decides whether a transaction is committed is its coordinator (docs/decisions/0025-transactions.md). Here a batch is
appended only if it is part of a transaction that is under way, and a marker only once.
"""

from functools import partial
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.errors import InvalidRequestError, NotReadyError, WrongKindError
from antiphon.log.producer_state import TABLE_ID_MIN
from antiphon.model.cluster import TransactionEnded
from antiphon.partition.table_writes import judge_appended
from antiphon.records.builder import build_end_marker

if TYPE_CHECKING:
    from antiphon.model.cluster import EndTransaction
    from antiphon.partition.append_queue import Done
    from antiphon.partition.clients import PartitionClients
    from antiphon.partition.driver import ReplicaDriver
    from antiphon.table.evaluator import TableEvaluator

EPOCH_MAX = 2**15 - 1
NUMBER_MAX = 2**31 - 1


class TransactionEnds:
    """Ends transactions in one shard."""

    def __init__(self, driver: "ReplicaDriver", clients: "PartitionClients") -> None:
        self._driver = driver
        self._state = driver.state
        self._clients = clients

    def end(self, request: "EndTransaction", timeout_s: float, done: "Done") -> None:
        """Append the marker, once; `done` gets `TransactionEnded` when the one that stands is committed, or an error.

        Raises what is known at once: InvalidRequestError, WrongKindError for a shard that takes no transactions,
        NotLeaderError, NotReadyError, DiskFullError, OverloadedError.
        """
        state = self._state
        _check(request)
        state.check_writable()
        is_internal = state.settings is not None and bool(state.settings.internal)
        if (state.table is not None and is_internal) or state.has_many_writers:
            raise WrongKindError(f"shard {state.shard_id} takes no transactions, so none can be ended there")
        self._clients.in_turn(lambda: self._end(request, timeout_s, done), timeout_s, done)

    def _end(self, request: "EndTransaction", timeout_s: float, done: "Done") -> None:
        state, clients, producer_id = self._state, self._clients, request.producer_id
        last = state.log.producers.transactions.markers.get(producer_id)
        if last is not None and request.number <= last.number:
            stands = TransactionEnded(last.offset)
            clients.when_committed(last.offset + 1, timeout_s, lambda: done(stands), done)
            return
        evaluator = self._evaluator()
        base = state.log.log_end
        marker = build_end_marker(
            commit=request.commit,
            number=request.number,
            producer=(producer_id, request.epoch),
            term=state.term,
            base_offset=base,
            timestamp_ms=system.wall_ms(),
        )
        clients.stage(marker, 1, base + 1, TransactionEnded(base), timeout_s, done)
        if evaluator is not None:
            ended = partial(evaluator.appended_marker, producer_id, base, commit=request.commit)
            judge_appended(self._driver, ended)

    def _evaluator(self) -> "TableEvaluator | None":
        """Who is to hear of a marker in a table's shard."""
        state = self._state
        if state.table is None:
            return None
        state.check_writable()
        if state.table.evaluator is None:
            raise NotReadyError(f"shard {state.shard_id} has just been elected; retry")
        return state.table.evaluator


def _check(request: "EndTransaction") -> None:
    if not 0 <= request.producer_id < TABLE_ID_MIN:
        raise InvalidRequestError(f"no producer of transactions has the id {request.producer_id}")
    if not 0 <= request.epoch <= EPOCH_MAX or not 0 <= request.number <= NUMBER_MAX:
        raise InvalidRequestError(
            f"a marker has an epoch up to {EPOCH_MAX} and a number up to {NUMBER_MAX}, "
            f"not {request.epoch} and {request.number}"
        )
