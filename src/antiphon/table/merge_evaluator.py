"""Evaluates operations on a table with `writers=multi`, on the replica that receives them.

As in `table.evaluator`, operations are evaluated here and only their effects go to the log. But the state here is only
this replica's rows with its own appended changes: another replica may evaluate the same key at the same moment. So a
write whose condition held here may later lose to a change that was made elsewhere before it was known here. A condition
orders the writers of one replica; it is no lock across replicas.

Version ids consist of LSN, origin and the operation's place, so they are the same on all replicas; they distinguish
versions and do not rise. Times come from a clock that never falls behind any change that this replica has seen
(`evaluate`'s `now_ms` is raised to that). So a writer that changes what it has seen wins over it under
`last-writer-wins`.
"""

from collections.abc import Sequence

from antiphon.errors import InvalidRequestError
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import TableOp
from antiphon.model.sessions import PutEphemeral
from antiphon.records.changes import VersionTuple
from antiphon.table.evaluation import Evaluation
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.merge import pack_id
from antiphon.table.merge_state import MergedState


class MergingEvaluator(TableEvaluator):
    """Judges operations for one replica of one shard."""

    def __init__(self, state: MergedState) -> None:
        super().__init__(state)
        self._merged = state
        self._own_ms = state.clock_ms + 1  # an earlier life of this node may have written at `clock_ms`
        self._next_own_ms = self._own_ms
        self._base_id = 0

    def begin(self, now_ms: int, lsn: int, origin: int) -> int:
        """What is judged next is entry `lsn` of `origin`; returns the time at which it is. Until it is appended, or
        forgotten, nothing is merged.
        """
        self._base_id = pack_id(lsn, origin, 0)
        self._next_own_ms = max(now_ms, self._own_ms, self._merged.foreign_ms + 1)
        return self._next_own_ms

    def appended(self, evaluation: Evaluation, base_offset: int) -> None:
        """The evaluation's batch stands in the log at `base_offset`."""
        self._own_ms = self._next_own_ms
        super().appended(evaluation, base_offset)

    def committed(self, high_watermark: int) -> None:
        """The log is merged up to `high_watermark`; what was appended here before it is in the store now."""
        pending = self._pending
        if not pending or pending[0].end > high_watermark:
            return
        while pending and pending[0].end <= high_watermark:
            pending.popleft()
        self._overlay.clear()
        for item in pending:
            self._overlay.update(item.changed)

    def _puts(self, to: Evaluation, start: int, ops: Sequence[TableOp], end: int) -> int:  # noqa: ARG002 - `end`:
        """One at a time, for each has an id by its place."""
        to.next_version_id = self._base_id + start
        return super()._puts(to, start, ops, start + 1)

    def _put_attributed(self, to: Evaluation, index: int, op: PutAttributed | PutEphemeral) -> None:
        if isinstance(op, PutAttributed):
            raise InvalidRequestError(
                "rows of a table with writers=multi have no attributes: no identity, partition key, index or sequence"
            )
        super()._put_attributed(to, index, op)

    def _remove(self, to: Evaluation, index: int, key: bytes, removed: VersionTuple) -> None:
        """A removal has a version of its own, by which it is merged."""
        to.put(index, key, None, (self._base_id + index, removed[1] + 1, removed[2], to.now_ms))
