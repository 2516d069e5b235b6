"""Mistakes in keeping tables, and the worlds in which they show."""

from collections.abc import Sequence
from typing import Any, Final

from antiphon.replication.replica_state import Role
from antiphon.simulation.plant import Patch, Plant
from antiphon.simulation.table_host import TableHosted, Who
from antiphon.simulation.table_messages import OpOutcome
from antiphon.table.evaluator import TableEvaluator
from antiphon.wire.requests import Delete, Put, TableOp

_apply = TableHosted.apply

_BUSY: dict[str, Any] = {
    "warm_up": True,
    "clients": 6,
    "conditional_ppm": 600_000,
    "safety_ms": 8_000,
    "fault_every_ms": 120,
    "crash_weight": 4,
    "partition_weight": 6,
    "one_way_weight": 3,
    "loss_ppm": 10_000,
    "delay_us_mean": 500,
    "sync_us_mean": 5_000,
}


def _refuse_at_once(self: TableHosted, who: Who, outcome: OpOutcome, wait_for: int) -> None:
    """What is appended is taken for what is committed."""
    del wait_for
    self.tell(who, "refused", self.table.applied_offset, outcome)


def _refuse_when_confirmed(self: TableHosted, who: Who, outcome: OpOutcome, wait_for: int) -> None:
    """Asks whether it still leads, but not whether what it looked at is committed."""
    del wait_for

    def confirmed(offset: int) -> None:
        self.when_applied(offset, who, lambda: self.tell(who, "refused", self.table.applied_offset, outcome))

    self._when_confirmed(who, confirmed)


def _apply_what_is_there(self: TableHosted, high_watermark: int) -> None:
    """A follower applies its log as it comes."""
    following = self.role is not Role.LEADER
    _apply(self, max(high_watermark, self.log.end_offset) if following else high_watermark)


def _committed_only(self: TableEvaluator, ops: Sequence[TableOp]) -> dict[bytes, Any]:
    """Judges by the store, whatever is appended."""
    keys = [op.key for op in ops if isinstance(op, Put | Delete)]
    return dict(zip(keys, self.state.versions(keys), strict=True))


def _keep_what_was_judged(self: TableHosted) -> None:
    """A leader that is deposed goes on applying what it has judged itself."""
    del self


REFUSE_AT_ONCE: tuple[Patch, ...] = ((TableHosted, "refuse_operation", _refuse_at_once),)
REFUSE_WHEN_CONFIRMED: tuple[Patch, ...] = ((TableHosted, "refuse_operation", _refuse_when_confirmed),)
APPLY_WHAT_IS_THERE: tuple[Patch, ...] = ((TableHosted, "apply", _apply_what_is_there),)
COMMITTED_ONLY: tuple[Patch, ...] = ((TableEvaluator, "_view", _committed_only),)
KEEP_WHAT_WAS_JUDGED: tuple[Patch, ...] = ((TableHosted, "stop_leading", _keep_what_was_judged),)

TABLE_PLANTS: Final = tuple(
    Plant(name, description, patches, profile="table", options=_BUSY)
    for name, description, patches in (
        (
            "table-refuses-at-once",
            "a table's leader answers a refused condition at once, without asking whether it still leads",
            REFUSE_AT_ONCE,
        ),
        (
            "table-refuses-uncommitted",
            "a table's leader answers a refused condition that it judged on uncommitted state before that is committed",
            REFUSE_WHEN_CONFIRMED,
        ),
        (
            "table-applies-uncommitted",
            "a follower applies a table's log beyond the high watermark",
            APPLY_WHAT_IS_THERE,
        ),
        (
            "table-judges-by-store",
            "conditions are held against what is committed, and not against what is appended",
            COMMITTED_ONLY,
        ),
        (
            "table-keeps-judged",
            "a deposed leader applies the effects that it judged itself, not those in the log",
            KEEP_WHAT_WAS_JUDGED,
        ),
    )
)
