"""A table's store beside its shard: the committed log is applied to it, and the leader's evaluator judges by it.

Followers apply the log's batches blindly; the leader applies the effects that its evaluator kept, which saves it the
decoding.
"""

from typing import TYPE_CHECKING, Final

import structlog

from antiphon.errors import DamagedStoreError, StorageFailedError
from antiphon.invariants import invariant
from antiphon.log.producer_state import ProducerState
from antiphon.model.metadata import HASH_MAX
from antiphon.partition.table_files import note_damage
from antiphon.partition.write_order import WriteOrder
from antiphon.table.evaluation import AT_ONCE, finished
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.folding import FoldSteps
from antiphon.table.ranges import inherits, narrowed, releases
from antiphon.table.state import TableState, open_state

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog
    from antiphon.model.shard_part import ShardPart
    from antiphon.records.packed_effects import EffectKernels
    from antiphon.table.store import StoreEngine

APPLY_BYTES: Final = 1024 * 1024


class TableShard:
    """Store and, while this node leads, evaluator of one table shard."""

    def __init__(
        self,
        path: str,
        log: "ShardLog",
        stores: "StoreEngine",
        state: TableState | None = None,
        *,
        ordered: bool = False,
        kernels: "EffectKernels | None" = None,
    ) -> None:
        """Opens the store in directory `path`, unless it is given; `ordered`: it is to keep the hierarchical order.

        `kernels`: the node's, for large batches.

        Raises what `open_state` does.
        """
        self.path = path
        self.stores = stores
        self.ordered = ordered
        self.kernels = kernels
        self.state = self.opened() if state is None else state
        self.evaluator: TableEvaluator | None = None
        self.order = WriteOrder()
        self.version_at_lead = 0  # the next version id when this replica began to lead
        self.first_due = 0  # the first hash, where the log should say so, and does not
        self._log = log
        self._inherited: tuple[bytes, ProducerState | None] = (b"", None)

    def opened(self) -> TableState:
        """The store that is in the directory now, opened. Raises what `open_state` does."""
        state = open_state(self.path, self.stores, ordered=self.ordered)
        state.kernels = self.kernels
        return state

    @property
    def inherited(self) -> ProducerState | None:
        """What jobs had written to the shard that this one was split off, before it was."""
        jobs = self.state.jobs
        if self._inherited[0] is not jobs:
            self._inherited = (jobs, ProducerState.decode(jobs) if jobs else None)
        return self._inherited[1]

    def catch_up(self, high_watermark: int) -> None:
        """Apply from the log what is committed and not applied."""
        finished(self.folding(high_watermark, AT_ONCE))

    def folding(self, high_watermark: int, piece: int) -> FoldSteps:
        """The same in steps of about `piece` records; `table.folding` says what may happen between two."""
        state, follows = self.state, False
        while state.applied_offset < high_watermark:
            if follows:
                yield
            before, follows = state.applied_offset, True
            yield from state.folding(self._log.read(before, APPLY_BYTES, high_watermark), piece)
            invariant(state.applied_offset > before, f"the log holds nothing to apply at {before}")

    def start_over(self) -> None:
        """Forget everything: the log, which reaches back to its beginning, tells it again as it is committed."""
        self.evaluator = None
        self.state.close()
        self._log.disk.remove_tree(self.path)
        self.state = self.opened()

    def note_damage(self) -> None:
        """The store was found damaged: the next start makes it anew, or does not use it."""
        note_damage(self._log.disk, self.path)

    def let_go(self, reason: Exception | None) -> None:
        """Close the store, as well as it goes. `reason`: why the replica ends, where that is a failure."""
        if isinstance(reason, DamagedStoreError):
            self.note_damage()
        try:
            self.state.close()
        except StorageFailedError as error:
            structlog.get_logger().error("table_not_closed", path=self.path, error=error.message)

    @property
    def is_incomplete(self) -> bool:
        """Was the shard split off another one, and the copy is not complete by its log?"""
        return self.state.owned.first < self.first_due

    def lead(self, part: "ShardPart | None" = None) -> None:
        """The replica leads and everything committed is applied: judge from now on.

        `part`: what the shard is to hold, where its log may not know of a split.
        """
        self.version_at_lead, self.first_due = self.state.next_version_id, 0
        self.state.limit = HASH_MAX
        if part is not None:
            self.hold(part)
        self.evaluator = TableEvaluator(self.state)
        self.order = WriteOrder()

    def hold(self, part: "ShardPart") -> None:
        """The shard is to hold this, and shows nothing else, whatever its log says by now."""
        owned, evaluator = self.state.owned, self.evaluator
        if inherits(owned, part):
            self.first_due = part.first
        if releases(owned, part) and self.state.limit != part.last:
            self.state.limit = part.last
            if evaluator is not None:
                evaluator.owned = narrowed(evaluator.owned, part.last)

    def stop_leading(self) -> None:
        """Forget what was judged and not committed."""
        self.evaluator = None
