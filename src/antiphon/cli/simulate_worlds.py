"""The two worlds of `antiphon simulate`: whole nodes, and the protocol's pure objects."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from antiphon.errors import InvalidRequestError
from antiphon.simulation.delta import Shrunk

LAST_DIGESTS: Final = 10
Progress = Callable[[Any], None] | None


@dataclass(frozen=True, slots=True)
class Seeds:
    """Which seeds are run, and how.

    Attributes:
        first: the first seed.
        count: how many.
        profile: None: each seed draws its own.
        plant: name of the bug that is planted, if any.
        fault_ms: length of the phase with faults, None: drawn. Whole nodes only.
        rocks: tables' stores are RocksDB. Whole nodes only.
    """

    first: int
    count: int
    profile: str | None = None
    plant: str | None = None
    fault_ms: int | None = None
    rocks: bool = False

    @property
    def numbers(self) -> range:
        """The seeds."""
        return range(self.first, self.first + self.count)


class World(ABC):
    """One of them."""

    name: str
    option: str  # that chooses it on the command line
    catch_seeds: int  # within which a planted bug has to be found

    @property
    @abstractmethod
    def profiles(self) -> tuple[str, ...]:
        """By name."""

    @property
    @abstractmethod
    def plants(self) -> Mapping[str, Any]:
        """The bugs that can be planted, by name, each with `description` and `profile`."""

    @abstractmethod
    def run(self, seeds: Seeds, workers: int, progress: Progress = None) -> tuple[list[Any], Any]:
        """Run seeds until one fails: the results before it, and the failed one or None."""

    @abstractmethod
    def replay(self, path: Path) -> Any:
        """Run what `save` wrote. Raises InvalidRequestError."""

    @abstractmethod
    def save(self, path: Path, result: Any, plant: str | None) -> None:
        """Write a run down, or raise InvalidRequestError."""

    @abstractmethod
    def report(self, failed: Any) -> str:
        """A failed run in words, with its last events."""

    @abstractmethod
    def shrink(self, failed: Any, plant: str | None, progress: Callable[[str], None]) -> Shrunk[Any]:
        """Make a failed run small."""

    @abstractmethod
    def tell(self, result: Any) -> list[str]:
        """Its story, a sentence a line."""

    @abstractmethod
    def simulated_s(self, result: Any) -> float:
        """How long the run was in its own time."""

    def more_figures(self, _results: list[Any]) -> dict[str, Any]:
        """What this world counts besides."""
        return {}

    def more_words(self, _figures: Mapping[str, Any]) -> str:
        """The same in words."""
        return ""

    def again(self, failed: Any, seeds: Seeds) -> str:
        """The options that repeat a run."""
        words = [f"--seed {failed.options.seed} --profile {failed.options.profile}"]
        if seeds.plant is not None:
            words.append(f"--plant {seeds.plant}")
        if seeds.fault_ms is not None:
            words.append(f"--seconds {seeds.fault_ms / 1000:g}")
        if seeds.rocks:
            words.append("--rocksdb")
        return " ".join([*([self.option] if self.option else []), *words])

    def figures(self, passed: list[Any], failed: Any, elapsed_s: float) -> dict[str, Any]:
        """The outcome as one object."""
        results = [*passed, *([] if failed is None else [failed])]
        simulated_s = sum(map(self.simulated_s, results))
        return {
            "world": self.name,
            "seeds": len(results),
            "steps": sum(result.steps for result in results),
            "simulated_s": simulated_s,
            "elapsed_s": round(elapsed_s, 3),
            "cluster_seconds_per_second": round(simulated_s / max(elapsed_s, 1e-3), 1),
            "entries": sum(result.entries for result in results),
            "operations": {
                outcome: sum(result.operations.get(outcome, 0) for result in results)
                for outcome in ("ok", "refused", "unknown")
            },
            **self.more_figures(results),
            "digests": {str(result.options.seed): result.digest for result in results[-LAST_DIGESTS:]},
            "failure": None if failed is None or failed.failure is None else self._failure(failed),
        }

    @staticmethod
    def _failure(failed: Any) -> dict[str, Any]:
        return {
            "seed": failed.options.seed,
            "profile": failed.options.profile,
            "invariant": failed.failure.invariant,
            "message": failed.failure.message,
            "step": failed.failure.step,
            "trace": list(failed.failure.trace),
        }

    def words(self, first: int, passed: list[Any], elapsed_s: float) -> str:
        """That all went well."""
        figures = self.figures(passed, None, elapsed_s)
        operations, simulated_s = figures["operations"], figures["simulated_s"]
        text = (
            f"seeds {first}..{first + len(passed) - 1}: every promise kept in {figures['steps']:,} steps, "
            f"{simulated_s:.0f} s of cluster time in {elapsed_s:.1f} s "
            f"({simulated_s / max(elapsed_s, 1e-3):.0f} cluster-seconds per second); "
            f"{figures['entries']:,} entries committed, operations: {operations['ok']:,} ok, "
            f"{operations['refused']:,} refused, {operations['unknown']:,} unknown{self.more_words(figures)}"
        )
        if len(passed) == 1:
            options = passed[0].options
            text += f"\nprofile {options.profile}, trace {passed[0].digest}\noptions: {options.words()}"
        return text


class Nodes(World):
    """Whole nodes and clients, unchanged, in virtual time (`simulation/cluster/`)."""

    name = "nodes"
    option = ""
    catch_seeds = 200

    @property
    def profiles(self) -> tuple[str, ...]:
        """See `World`."""
        from antiphon.simulation.cluster.options import PROFILES

        return PROFILES

    @property
    def plants(self) -> Mapping[str, Any]:
        """See `World`."""
        from antiphon.simulation.cluster.plants import CLUSTER_PLANTS

        return CLUSTER_PLANTS

    def run(self, seeds: Seeds, workers: int, progress: Progress = None) -> tuple[list[Any], Any]:
        """See `World`."""
        from antiphon.simulation.cluster.runner import ClusterJob, run_jobs
        from antiphon.simulation.pool import until_failure

        jobs = [
            ClusterJob(seed, seeds.profile, seeds.plant, seeds.fault_ms, seeds.rocks)
            for seed in seeds.numbers
        ]
        return until_failure(run_jobs(jobs, workers), progress)

    def replay(self, path: Path) -> Any:
        """See `World`."""
        from antiphon.simulation.cluster.replay import replay

        return replay(path)[0]

    def save(self, path: Path, result: Any, plant: str | None) -> None:
        """See `World`."""
        from antiphon.simulation.cluster.replay import save

        save(path, result, plant)

    def report(self, failed: Any) -> str:
        """See `World`."""
        from antiphon.simulation.cluster.runner import report

        return report(failed)

    def shrink(self, failed: Any, plant: str | None, progress: Callable[[str], None]) -> Shrunk[Any]:
        """See `World`."""
        from antiphon.simulation.cluster.plants import CLUSTER_PLANTS, planted
        from antiphon.simulation.cluster.shrink import shrink

        bug = None if plant is None else CLUSTER_PLANTS[plant]
        return shrink(failed, lambda: planted(bug), progress=progress)

    def tell(self, result: Any) -> list[str]:
        """See `World`."""
        from antiphon.simulation.cluster.story import tell

        return tell(result)

    def simulated_s(self, result: Any) -> float:
        """See `World`."""
        return float(result.simulated_s)


class Pure(World):
    """The protocol's objects, with everything around them simulated (`simulation/world.py`, `multi_world.py`)."""

    name = "pure"
    option = "--pure"
    catch_seeds = 1_000

    @property
    def profiles(self) -> tuple[str, ...]:
        """See `World`."""
        from antiphon.simulation.multi_plants import PROFILE
        from antiphon.simulation.options import PROFILES

        return (*PROFILES, PROFILE)

    @property
    def plants(self) -> Mapping[str, Any]:
        """See `World`."""
        from antiphon.simulation.multi_plants import MULTI_PLANTS
        from antiphon.simulation.plants import PLANTS

        return {**PLANTS, **MULTI_PLANTS}

    def run(self, seeds: Seeds, workers: int, progress: Progress = None) -> tuple[list[Any], Any]:
        """See `World`."""
        from antiphon.simulation.runner import Job, run_until_failure

        jobs = [Job(seed, seeds.profile, seeds.plant) for seed in seeds.numbers]
        return run_until_failure(jobs, workers, progress)

    def replay(self, path: Path) -> Any:
        """See `World`."""
        from antiphon.simulation.replay import replay

        return replay(path)[0]

    def save(self, path: Path, result: Any, plant: str | None) -> None:
        """See `World`."""
        from antiphon.simulation.replay import save

        if result.options.profile == "multi":
            raise InvalidRequestError(
                "a run of --pure --profile multi is repeated by its seed, not by a file"
            )
        save(path, result, plant)

    def report(self, failed: Any) -> str:
        """See `World`."""
        from antiphon.simulation.runner import report

        return report(failed)

    def shrink(self, failed: Any, plant: str | None, progress: Callable[[str], None]) -> Shrunk[Any]:
        """See `World`."""
        from antiphon.simulation.multi_shrink import shrink_multi
        from antiphon.simulation.plants import PLANTS
        from antiphon.simulation.shrink import shrink

        if failed.options.profile == "multi":
            return shrink_multi(failed, plant)
        return shrink(failed, None if plant is None else PLANTS[plant], progress=progress)

    def tell(self, result: Any) -> list[str]:
        """See `World`."""
        from antiphon.simulation.multi_shrink import tell_multi
        from antiphon.simulation.story import tell

        return tell_multi(result) if result.options.profile == "multi" else tell(result)

    def simulated_s(self, result: Any) -> float:
        """See `World`."""
        return float(result.simulated_ns / 1e9)

    def more_figures(self, results: list[Any]) -> dict[str, Any]:
        """See `World`."""
        return {
            "losses": {
                "acknowledged": sum(result.losses.acknowledged for result in results),
                "lost": sum(result.losses.lost for result in results),
                "longest_ms": max((result.losses.longest_ms for result in results), default=0),
                "unclean_entries": sum(result.losses.unclean_entries for result in results),
            }
        }

    def more_words(self, figures: Mapping[str, Any]) -> str:
        """See `World`."""
        losses, text = figures["losses"], ""
        if losses["acknowledged"]:
            text += (
                f"\nasynchronous commit lost {losses['lost']:,} of {losses['acknowledged']:,} acknowledged requests, "
                f"all in the window; the longest was {losses['longest_ms']} ms before the next leader"
            )
        if losses["unclean_entries"]:
            text += f"\nunclean elections lost {losses['unclean_entries']:,} committed entries, as their topics allow"
        return text


NODES: Final = Nodes()
PURE: Final = Pure()
WORLDS: Final[tuple[World, ...]] = (NODES, PURE)


def world_of(profile: str | None, plant: str | None, *, pure: bool) -> World:
    """The world in which this is run: the first that has the profile and the plant, whole nodes before pure objects.

    Raises InvalidRequestError where none has.
    """
    worlds = (PURE,) if pure else WORLDS
    if profile is not None and not any(profile in world.profiles for world in worlds):
        known = dict.fromkeys(name for world in worlds for name in world.profiles)
        raise InvalidRequestError(f"--profile {profile}: choose one of {', '.join(known)}")
    if plant is None:
        return next(world for world in worlds if profile is None or profile in world.profiles)
    having = [world for world in worlds if plant in world.plants]
    if not having:
        raise InvalidRequestError(f"--plant {plant}: --plants lists those that there are")
    world = having[0]
    shows_in = world.plants[plant].profile
    if profile not in {None, shows_in}:
        raise InvalidRequestError(f"--profile {profile}: {plant} shows in profile {shows_in} only")
    return world


def workers_for(jobs: int, count: int = 1024) -> int:
    """How many processes: as many as were asked for, or one per core; never more than there is work."""
    return min(jobs or os.cpu_count() or 1, count)
