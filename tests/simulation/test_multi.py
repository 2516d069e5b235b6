"""The multi-writer world: good seeds keep every promise, the same seed is the same run, and planted bugs are caught."""

import pytest
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.simulation.multi_plants import MULTI_PLANTS
from antiphon.simulation.multi_world import derive_multi, run_multi

SEEDS = range(1, 13)
CATCH_SEEDS_MAX = 40


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_and_everything_comes_together(seed: int) -> None:
    result = run_multi(seed)
    assert result.failure is None, f"{result.failure.message}\n" + "\n".join(result.failure.trace)
    assert result.operations["ok"] > 50


def test_the_same_seed_is_the_same_run() -> None:
    first, again = run_multi(5), run_multi(5)
    assert (first.digest, first.steps, first.events) == (again.digest, again.steps, again.events)
    assert run_multi(6).digest != first.digest


def test_worlds_differ() -> None:
    worlds = [derive_multi(seed) for seed in range(60)]
    assert {world.nodes for world in worlds} == {2, 3, 4, 5}
    assert {world.trim_weight > 0 for world in worlds} == {False, True}
    assert {world.damage_ppm > 0 for world in worlds} == {False, True}


@pytest.mark.parametrize("name", MULTI_PLANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = next((seed for seed in range(1, CATCH_SEEDS_MAX + 1) if run_multi(seed, name).failure), None)
    assert caught is not None


def test_the_command_runs_it() -> None:
    result = CliRunner().invoke(app, ["simulate", "--profile", "multi", "--seeds", "2", "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert "seeds 1..2: every promise kept" in result.stdout
    result = CliRunner().invoke(app, ["simulate", "--plant", "multi-duplicates-taken", "--jobs", "1"])
    assert result.exit_code == 1
    assert "broke lsn-order" in result.output
