"""The suites of `antiphon bench`, by name; each takes how many seconds one measurement runs and returns rows of figures."""

from collections.abc import Callable
from typing import Final

from antiphon.tools.bench.cluster import (
    Rows,
    measure_failover,
    measure_idle,
    measure_kafka,
    measure_ready,
    measure_table,
)
from antiphon.tools.bench.compaction import measure_compaction
from antiphon.tools.bench.modes import measure_fleet, measure_loss, measure_modes
from antiphon.tools.bench.spark import measure_spark

SUITES: Final[dict[str, Callable[[float], Rows]]] = {
    "kafka": measure_kafka,
    "table": measure_table,
    "failover": measure_failover,
    "ready": measure_ready,
    "idle": measure_idle,
    "modes": measure_modes,
    "loss": measure_loss,
    "fleet": measure_fleet,
    "compaction": measure_compaction,
    "spark": measure_spark,
}
