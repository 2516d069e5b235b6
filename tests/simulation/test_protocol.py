"""The protocol in the simulated world: sixty seeds keep every promise, and planted bugs break one."""

import os
import re
from pathlib import Path

import pytest

from antiphon.simulation.options import PROFILES, derive
from antiphon.simulation.plants import PLANTS, Plant, planted
from antiphon.simulation.runner import Job, report, run_jobs, run_seed, seeds_to_catch

SEEDS = 60
CHUNKS = 2
QUICK_SEEDS = 20  # within which a bug is found that is not `rare`; `make simulate-plants` goes to a thousand
QUICK = [plant for plant in PLANTS.values() if not plant.rare]
WORKERS = min(2, os.cpu_count() or 1)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_seeds_keep_every_promise(chunk: int) -> None:
    size = SEEDS // CHUNKS
    jobs = [Job(seed, None, None) for seed in range(chunk * size + 1, (chunk + 1) * size + 1)]
    results = list(run_jobs(jobs, WORKERS))
    assert len(results) == size
    for result in results:
        assert result.failure is None, report(result)
    assert sum(result.operations["ok"] for result in results) > 20 * size, "the runs do real work"
    assert all(result.entries > 1 for result in results)
    for kind in (
        "crash",
        "partition",
        "pause",
        "truncate",
        "snapshot",
        "reset",
        "damage",
        "repaired",
        "ready",
        "trim",
    ):
        assert any(kind in result.events for result in results), f"no run has a {kind}"


@pytest.mark.parametrize("plant", QUICK, ids=[plant.name for plant in QUICK])
def test_planted_bug_is_caught(plant: Plant) -> None:
    caught = seeds_to_catch(plant, range(1, QUICK_SEEDS + 1))
    assert caught is not None, f"{plant.name} survives {QUICK_SEEDS} seeds"
    _, result = caught
    assert result.failure is not None
    assert result.failure.trace, "a failure comes with the events before it"
    again = run_seed(derive(result.options.seed, plant.profile), plant)
    assert again.failure is not None
    assert (again.failure.step, again.digest) == (result.failure.step, result.digest)


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_planted_bugs_world_is_sound_without_it(plant: Plant) -> None:
    """What catches the bug is the bug, not the options that were chosen for it."""
    result = run_seed(plant.adapt(derive(1, plant.profile)))
    assert result.failure is None, report(result)


def test_plants_leave_nothing_behind() -> None:
    for plant in PLANTS.values():
        before = replaced(plant)
        with pytest.raises(RuntimeError, match="inside"):
            _fail_inside(plant, before)
        assert replaced(plant) == before


def replaced(plant: Plant) -> list[object]:
    return [vars(where).get(name, "inherited") for where, name, _ in plant.patches]


def _fail_inside(plant: Plant, before: list[object]) -> None:
    with planted(plant):
        assert plant.on_restart or replaced(plant) != before
        raise RuntimeError("inside")


def test_every_hazard_of_the_requirements_has_a_plant() -> None:
    for number in range(1, 6):
        assert any(name.startswith(f"h{number}-") for name in PLANTS), f"H{number}"


def test_a_quiet_world_commits_everything() -> None:
    """Without faults nothing is unknown and nothing is refused for lack of a leader for long."""
    quiet = {
        "fault_every_ms": 0,
        "loss_ppm": 0,
        "duplicate_ppm": 0,
        "sync_stall_ppm": 0,
        "delay_us_mean": 500,
    }
    for profile in PROFILES:
        result = run_seed(derive(1, profile, **quiet))
        assert result.failure is None, report(result)
        assert result.operations["ok"] > 50


def test_liveness_is_demanded() -> None:
    """A world that cannot converge in its time is a failure, with what was missing in the message."""
    result = run_seed(derive(1, "raft", liveness_ms=1, fault_every_ms=30, crash_all_weight=50))
    assert result.failure is not None
    assert result.failure.invariant == "liveness"
    assert "ms after the last fault" in result.failure.message


def test_docs_name_every_plant_and_every_promise() -> None:
    root = Path(__file__).parent.parent.parent
    text = (root / "docs" / "simulation.md").read_text()
    for plant in PLANTS.values():
        assert f"| `{plant.name}`: {plant.description} |" in text, plant.name
    source = (root / "src" / "antiphon" / "simulation" / "checker.py").read_text()
    promises = re.findall(r"^\| ([a-z-]+) \|", source, re.MULTILINE)
    assert len(promises) > 20
    for name in promises[1:]:
        assert f"| `{name}` |" in text, name
