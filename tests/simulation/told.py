"""A failed run in words, for the message of an assertion; and the order in which tests try seeds."""

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final

import pytest

from antiphon.simulation.cluster.mutants import CLUSTER_MUTANTS, seeds_to_catch
from antiphon.simulation.cluster.options import NEEDS_NO_LOGIN, ClusterOptions, draw_options
from antiphon.simulation.cluster.run import ClusterResult, run_cluster
from antiphon.simulation.runtime.escapes import no_escapes

SEEDS: Final = 40  # of a mutant: each change of the product draws other worlds
LITTLE: Final[dict[str, Any]] = {
    "principals": 0,
    "fault_ms": 4_000,
    "fault_every_ms": 1_000,
    "operations_per_s": 200,
    "appenders": 1,
    "putters": 1,
    "bulk_writers": 0,
}
"""Not much goes on beside what a test is about, and not for long."""
WITH_LOGINS: Final = {**dict.fromkeys(NEEDS_NO_LOGIN, 0), **LITTLE}
"""The same, where clients have to log in."""


def words(result: ClusterResult) -> str:
    failure = result.failure
    if failure is None:
        return ""
    return "\n".join([failure.message, result.options.words(), *failure.trace])


def sound_until(
    reached: tuple[str, ...], profile: str, seed: int, seeds: int = 4, **options: Any
) -> Counter[str]:
    """
    What was done in the worlds of this seed and, while something of `reached` was never done, of the next ones.

    Fails if a world broke a promise, or if so many seeds reached too little.
    Every change of the product draws other worlds: what one seed does is chance, what four never do is a mistake.
    """
    done: Counter[str] = Counter()
    for each in range(seed, seed + seeds):
        result = run_cluster(draw_options(each, profile, **options))
        assert result.failure is None, words(result)
        done.update(result.operations)
        if all(done[name] for name in reached):
            return done
    missing = [name for name in reached if not done[name]]
    raise AssertionError(f"{seeds} seeds from {seed} on never reached {missing}: {dict(done)}")


def same_twice(options: ClusterOptions) -> None:
    """Fails unless this world keeps all promises, is the same run twice, and nothing of it is real."""
    digests = []
    for _ in range(2):
        with no_escapes() as escaped:
            result = run_cluster(options)
        assert not escaped
        assert result.failure is None, words(result)
        digests.append(result.digest)
    assert digests[0] == digests[1]


def each_once(**worlds: dict[str, Any]) -> list[Any]:
    """Profiles and worlds as parameters: quick tests have each of both once, slow ones the other pairs."""
    return [
        pytest.param(
            profile, world, id=f"{profile}-{name}", marks=() if number % 2 == turn else pytest.mark.slow
        )
        for number, (name, world) in enumerate(worlds.items())
        for turn, profile in enumerate(("oxia", "raft"))
    ]


def each_mutant_is_seen(*beginnings: str, quick: Collection[str]) -> Callable[[str], None]:
    """A test for a module: mutants whose names begin so are caught, and the worlds that show them are sound without them."""

    @pytest.mark.parametrize("name", mutants_of(*beginnings, quick=quick))
    def test_a_mutant_is_seen(name: str) -> None:
        mutant, found = CLUSTER_MUTANTS[name], caught(name)
        sound = run_cluster(mutant.world(found.options.seed))
        assert sound.failure is None, words(sound)

    return test_a_mutant_is_seen


def mutants_of(*beginnings: str, quick: Collection[str]) -> list[Any]:
    """Names of mutants that begin so, without rare ones, as parameters: all but the `quick` ones are for the slow tests."""
    found = [
        name for name, mutant in CLUSTER_MUTANTS.items() if name.startswith(beginnings) and not mutant.rare
    ]
    assert set(quick) <= set(found), f"not among {found}"
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in found]


def seeds_from(first: int, count: int) -> list[int]:
    """The seeds 1 to `count`, beginning with `first`: most often it shows the mistake, and the others need not run."""
    return [first, *(seed for seed in range(1, count + 1) if seed != first)]


def caught(name: str, seeds: int = SEEDS) -> ClusterResult:
    """The run that caught this mutant. Fails if none of so many seeds did."""
    mutant = CLUSTER_MUTANTS[name]
    found = seeds_to_catch(mutant, seeds_from(mutant.first_seed, seeds))
    assert found is not None, f"{name} got through {seeds} seeds"
    return found[1]


FOUND_BEFORE = {"kill_midway_weight": 0, "power_midway_weight": 0, "founding_ms": 0}
"""Options for seeds that found something before there were such faults, and before nodes founded a cluster as soon as they
do now: with them they are other worlds.
"""
