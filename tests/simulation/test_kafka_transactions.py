"""Transactional producers in the world of whole nodes: clean seeds, and judges that see mutants."""

from typing import Any

import pytest

from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, CUTS
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from tests.simulation.told import FOUND_BEFORE, caught, mutants_of, words

WORK = {"appenders": 0, "putters": 0, "operations_per_s": 400, "kafka_transactors": 3}
MUTANTS = mutants_of(
    "transactions-",
    quick=("transactions-marker-turned", "transactions-epoch-stays-at-end", "transactions-join-replaces"),
)


@pytest.mark.parametrize("world", [CALM, CRASHES, CUTS], ids=["calm", "crashes", "cuts"])
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_promises_are_kept(world: dict[str, Any], seed: int) -> None:
    result = run_cluster(draw_options(seed, "oxia", **{**world, **WORK}))
    assert result.failure is None, words(result)
    if world is CALM:
        assert result.operations["transactions_committed"] > 3
        assert result.operations["transactions_aborted"] > 0


# A run that caught something ends in the middle of everything.
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine:RuntimeWarning"
)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_seen(name: str) -> None:
    caught(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "seed"),
    [
        # A node that knew nothing yet denied the table of transactions, and a client believed it.
        ("multi", 510_916),
        # Of two offsets of a group the later one was committed first, and stayed.
        ("tarantool", 510_364),
    ],
)
def test_what_seeds_have_found_is_mended(profile: str, seed: int) -> None:
    result = run_cluster(draw_options(seed, profile, **FOUND_BEFORE))
    assert result.failure is None, words(result)
