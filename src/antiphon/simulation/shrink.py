"""A failing run of the pure objects made small (`delta.py`): fewer faults, clients and nodes, a better network."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from antiphon.simulation.delta import Shrinker, Shrunk
from antiphon.simulation.plant import Plant
from antiphon.simulation.runner import RunResult, run_seed
from antiphon.simulation.scheduler import MILLISECOND

SECONDS_MAX: Final = 20.0
RUNS_MAX: Final = 2_000

_PLAINER: Final[tuple[dict[str, Any], ...]] = (
    {"loss_ppm": 0},
    {"duplicate_ppm": 0},
    {"in_order": True},
    {"clock_skew_ppm": 0},
    {"sync_stall_ppm": 0},
    {"delay_us_mean": 100},
    {"sync_us_mean": 100},
    {"shards": 1},
    {"warm_up": True},
)


class _PureShrinker(Shrinker[RunResult]):
    """See `Shrinker`. The plant, if any, is the one it failed with."""

    def __init__(
        self, failed: RunResult, plant: Plant | None, seconds_max: float, progress: Callable[[str], None]
    ) -> None:
        super().__init__(failed, seconds_max, RUNS_MAX, progress)
        self._plant = plant

    def run(self, options: Any, schedule: tuple[Any, ...]) -> RunResult:
        """See `Shrinker`."""
        return run_seed(options, self._plant, schedule=schedule)

    def words(self) -> str:
        """See `Shrinker`."""
        best = self.best
        return (
            f"{len(best.schedule)} faults, {best.options.clients} clients, {best.options.nodes} nodes, "
            f"{best.steps} steps"
        )

    def changes(self) -> Iterator[Mapping[str, Any]]:
        """See `Shrinker`."""
        if self.invariant != "liveness":
            yield {"safety_ms": self._failed_after_ms(), "liveness_ms": 0}
        for clients in range(1, self.best.options.clients):
            yield {"clients": clients}
            if self.best.options.clients == clients:
                break
        options = self.best.options
        if options.nodes > 3 and all(
            max((*f.nodes, *(n for link in f.links for n in link), 0)) < 3 for f in self.best.schedule
        ):
            yield {"nodes": 3, "replicas": min(3, options.replicas)}
        yield from _PLAINER

    def _failed_after_ms(self) -> int:
        """The safety phase began at the latest when its first fault happened, and failed where the run ended."""
        failure = self.best.failure
        if failure is None:
            return self.best.options.safety_ms
        return min(self.best.options.safety_ms, failure.time_ns // MILLISECOND + 1)


def shrink(
    failed: RunResult,
    plant: Plant | None = None,
    *,
    seconds_max: float = SECONDS_MAX,
    progress: Callable[[str], None] = lambda _: None,
) -> Shrunk[RunResult]:
    """Make a failing run small. The plant, if any, is the one it failed with; `progress` gets a line per success."""
    return _PureShrinker(failed, plant, seconds_max, progress).shrink()
