"""Worlds for mutants: small and short, with the faults that a kind of bug needs and no others."""

from dataclasses import MISSING, fields
from typing import Any, Final

from antiphon.simulation.cluster.options import ClusterOptions

_FIELDS: Final = fields(ClusterOptions)

CALM: Final[dict[str, Any]] = {
    **{field.name: 0 for field in _FIELDS if field.name.endswith("_weight")},
    **{field.name: field.default for field in _FIELDS if field.default is not MISSING},
    "nodes": 3,
    "topic_shards": 1,
    "table_shards": 1,
    "commit": "",
    "fault_ms": 2_000,
    "settle_ms": 30_000,
    "fault_every_ms": 0,
    "fault_lasts_ms": 300,
    "delay_us": (500, 3_000),
    "clock_skew_ppm": 0,
    "pieces_ppm": 0,
    "store_flush_every": 50,
    "appenders": 2,
    "putters": 2,
    "bulk_writers": 0,
    "conditional_ppm": 0,
}
"""Nothing goes wrong."""

CRASHES: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 6_000,
    "fault_every_ms": 250,
    "kill_weight": 2,
    "power_weight": 4,
    "power_all_weight": 1,
}
"""Processes end and machines lose power."""

CUTS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 10_000,
    "fault_every_ms": 700,
    "fault_lasts_ms": 4_000,
    "pause_weight": 3,
    "cut_weight": 4,
    "one_way_weight": 2,
}
"""Nodes are cut off or stand still for so long that others take over."""

LONG_CUTS: Final[dict[str, Any]] = {
    **CUTS,
    "fault_ms": 15_000,
    "fault_every_ms": 1_500,
    "fault_lasts_ms": 6_000,
    "delay_us": (1_000, 5_000),
    "kill_weight": 1,
}
"""The same, for seconds at a time, with clients on both sides."""

RESETS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 4_000,
    "fault_every_ms": 60,
    "reset_weight": 6,
    "slow_weight": 1,
}
"""Connections break, so that clients do not know what became of their requests."""

TROUBLE: Final[dict[str, Any]] = {
    **CUTS,
    "fault_every_ms": 400,
    "fault_lasts_ms": 2_000,
    "kill_weight": 3,
    "power_weight": 3,
    "reset_weight": 3,
    "slow_weight": 2,
}
"""Leaders come and go while requests are repeated."""

MOVES: Final[dict[str, Any]] = {
    **CALM,
    "nodes": 4,
    "fault_ms": 5_000,
    "fault_every_ms": 120,
    "operator_weight": 1,
}
"""An operator moves, splits, elects, creates and deletes."""

SNAPSHOTS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 6_000,
    "fault_every_ms": 60,
    "fault_lasts_ms": 1_000,
    "store_flush_every": 20,
    "operations_per_s": 400,
    "kill_weight": 2,
    "trim_weight": 12,
}
"""Logs are trimmed while nodes are away, which then need snapshots: about six in a run."""


def only(operations_per_s: int = 200, **options: Any) -> dict[str, Any]:
    """No clients but those that the options name, with so many operations a second."""
    return {"appenders": 0, "putters": 0, "operations_per_s": operations_per_s, **options}
