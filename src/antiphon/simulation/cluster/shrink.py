"""A failing run of whole nodes made small (`delta.py`): fewer faults, clients and nodes, a shorter run, a better network."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, replace
from typing import Any, Final

import msgspec

from antiphon.simulation.cluster.faults import KINDS, Fault
from antiphon.simulation.cluster.options import ClusterOptions
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.delta import Shrinker, Shrunk

SECONDS_MAX: Final = 60.0
RUNS_MAX: Final = 400
NODES_MIN: Final = 3
CLIENTS: Final = tuple(
    field.name
    for field in fields(ClusterOptions)
    if field.type in {int, "int"} and field.name.endswith(("ers", "ors", "clients"))
)
"""Options that say how many clients of a kind there are: appenders, putters ..."""
SWITCHES: Final = tuple(field.name for field in fields(ClusterOptions) if field.type in {bool, "bool"})
"""Options that switch on what some clients do besides."""

_PLAINER: Final[tuple[dict[str, Any], ...]] = (
    {"clock_skew_ppm": 0},
    {"pieces_ppm": 0},
    {"delay_us": (50, 300)},
    {"topic_shards": 1},
    {"table_shards": 1},
    {"conditional_ppm": 0},
    {"commit": ""},
    {"store_flush_every": 500},
    {"checkpoint_records": 0},
)


class _ClusterShrinker(Shrinker[ClusterResult]):
    """See `Shrinker`. `mutated` makes the context in which the mutant is put in, anew for each run."""

    def __init__(
        self,
        failed: ClusterResult,
        mutated: Callable[[], AbstractContextManager[Any]],
        seconds_max: float,
        progress: Callable[[str], None],
    ) -> None:
        super().__init__(failed, seconds_max, RUNS_MAX, progress)
        self._mutated = mutated

    def run(self, options: Any, schedule: tuple[Any, ...]) -> ClusterResult:
        """See `Shrinker`."""
        return run_cluster(options, mutated=self._mutated(), schedule=_among(options.nodes, schedule))

    def words(self) -> str:
        """See `Shrinker`."""
        best = self.best
        clients = sum(getattr(best.options, name) for name in CLIENTS)
        return (
            f"{len(best.schedule)} faults, {clients} clients, {best.options.nodes} nodes, "
            f"{best.options.fault_ms} ms with faults, {best.steps} steps"
        )

    def changes(self) -> Iterator[Mapping[str, Any]]:
        """See `Shrinker`."""
        yield from self._shorter()
        if self.best.options.nodes > NODES_MIN:
            yield {"nodes": NODES_MIN}
        for name in CLIENTS:
            count = getattr(self.best.options, name)
            for fewer in range(min(2, count)):
                yield {name: fewer}
                if getattr(self.best.options, name) == fewer:
                    break
        # Nobody but the scrub finds rot: without it a run would fail for another reason.
        kept = {KINDS[fault.kind].needs for fault in self.best.schedule}
        yield from ({name: False} for name in SWITCHES if name not in kept)
        yield from _PLAINER

    def _shorter(self) -> Iterator[Mapping[str, Any]]:
        """The phase with faults ends when the promise is broken, or as soon after its beginning as it still is."""
        yield self._until_failure()
        for percent in (10, 25, 50, 75):
            yield {"fault_ms": self.best.options.fault_ms * percent // 100}

    def _until_failure(self) -> Mapping[str, Any]:
        best, fault_ms = self.best, self.best.options.fault_ms
        if best.failure is None or not best.founded:
            return {}
        return {"fault_ms": min(fault_ms, int((best.failure.time_s - best.began_s) * 1000) + 1)}

    def shrink(self) -> Shrunk[ClusterResult]:
        """See `Shrinker`. First of all the run ends where it failed, so that the others are short."""
        self.attempt(replace(self.best.options, **self._until_failure()), self.best.schedule)
        return super().shrink()


def _among(nodes: int, schedule: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """The faults of a cluster that has so many nodes: what befell another befalls one of them."""
    return tuple(
        msgspec.structs.replace(fault, nodes=tuple(dict.fromkeys(node % nodes for node in fault.nodes)))
        for fault in schedule
    )


def shrink(
    failed: ClusterResult,
    mutated: Callable[[], AbstractContextManager[Any]] = nullcontext,
    *,
    seconds_max: float = SECONDS_MAX,
    progress: Callable[[str], None] = lambda _: None,
) -> Shrunk[ClusterResult]:
    """Make a failing run small. `mutated` puts in the mutant it failed with; `progress` gets a line per success."""
    return _ClusterShrinker(failed, mutated, seconds_max, progress).shrink()
