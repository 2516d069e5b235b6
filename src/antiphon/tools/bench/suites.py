"""The suites of `antiphon bench`, by name, each with its module, which is loaded when the suite is run."""

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from antiphon.tools.bench.cluster import Rows

SUITES: Final = {
    "kafka": "cluster",
    "table": "cluster",
    "failover": "cluster",
    "ready": "cluster",
    "idle": "cluster",
    "modes": "modes",
    "loss": "modes",
    "fleet": "modes",
    "compaction": "compaction",
    "loads": "loads",
    "rebalance": "rebalance",
    "spark": "spark",
}


def measure(suite: str, seconds: float) -> "Rows":
    """Rows of figures; each measurement of the suite runs for `seconds`."""
    module = import_module(f"antiphon.tools.bench.{SUITES[suite]}")
    return cast("Rows", getattr(module, f"measure_{suite}")(seconds))
