"""How a table's leader judges what transactions prepare here, and what their ends do: a part of `table.evaluator`.

A prepare is judged as any atomic request is. Its effects are in the log at once and change nothing yet: they lock their keys
until the marker of the transaction is in the log, too. From there on the rows are those of the transaction, or as before.
"""

from abc import abstractmethod
from collections.abc import Sequence

from antiphon.errors import InvalidRequestError
from antiphon.model.requests import Check, Delete, Put, TableOp
from antiphon.model.table_transactions import PREPARE_OPS_MAX
from antiphon.records.changes import VERSION
from antiphon.table.evaluation import Evaluation, Known, Pending, effects_in
from antiphon.table.prepared import End, Prepare
from antiphon.table.range_removals import RangeRemovals
from antiphon.table.removals import RecentRemovals
from antiphon.table.state import TableState


class PreparedWrites(RangeRemovals):
    """See the module's text; of a `TableEvaluator`, which has the rest of it.

    Attributes:
        transactions: what is prepared, with what is appended and not committed.
        removals: keys that were removed lately.
    """

    _next_version_id: int

    def __init__(self, state: TableState) -> None:
        self.state = state
        self.transactions = state.transactions.copy()
        self.removals = RecentRemovals(state.applied_offset)

    @abstractmethod
    def evaluate(self, ops: Sequence[TableOp], now_ms: int, *, atomic: bool = False) -> Evaluation:
        """Judge operations."""

    @abstractmethod
    def _append(self, base_offset: int, pending: Pending) -> None:
        """Something is in the log."""

    def evaluate_prepare(self, ops: Sequence[TableOp], now_ms: int) -> Evaluation:
        """Judge what a transaction is to change here, all or nothing. Changes nothing itself.

        Raises InvalidRequestError, KeyLockedError for a key of another transaction that is prepared.
        """
        check_prepare(ops)
        return self.evaluate(ops, now_ms, atomic=True)

    def appended_prepare(self, producer_id: int, evaluation: Evaluation, base_offset: int) -> None:
        """A prepare's batch is in the log at `base_offset`."""
        end = evaluation.wait_for = base_offset + len(evaluation.records)
        change = Prepare(producer_id, effects_in(evaluation.records))
        self._append(base_offset, Pending(end, [], {}, evaluation.next_version_id, transaction=change))
        self.transactions.prepare(change)

    def appended_marker(self, producer_id: int, base_offset: int, *, commit: bool) -> None:
        """The marker that ends a producer's transaction is in the log at `base_offset`."""
        effects, end = self.transactions.end(producer_id), base_offset + 1
        changed: Known = {}
        for key, value, version in effects if commit else ():
            changed[key] = None if value is None else VERSION.unpack_from(version)
        change = End(producer_id, commit)
        self._append(base_offset, Pending(end, [], changed, self._next_version_id, transaction=change))
        removed = [key for key, version in changed.items() if version is None]
        if removed:
            self.removals.note(removed, end)


def check_prepare(ops: Sequence[TableOp]) -> None:
    """Raise InvalidRequestError for what is no prepare."""
    if not 0 < len(ops) <= PREPARE_OPS_MAX:
        raise InvalidRequestError(
            f"a transaction has 1 to {PREPARE_OPS_MAX} operations on one shard of a table, not {len(ops)}",
            limit=PREPARE_OPS_MAX,
        )
    for op in ops:
        if not isinstance(op, Put | Delete | Check):
            raise InvalidRequestError(
                f"a transaction over several shards has puts, deletes and checks, not {type(op).__name__}"
            )
    if all(isinstance(op, Check) for op in ops):
        raise InvalidRequestError("a prepare changes something: what was read only is checked by CheckReads")


def records_of_prepare(ops: Sequence[TableOp]) -> int:
    """How many records the batch of a prepare has, if it is not refused: each put and each delete is one."""
    return sum(1 for op in ops if not isinstance(op, Check))
