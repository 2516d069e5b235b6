"""Whole nodes under simulation: clean seeds and the same run from the same seed."""

import os
import subprocess
import sys

import pytest

from antiphon.simulation.cluster.options import PROFILES, draw_options
from antiphon.simulation.cluster.run import run_cluster
from tests.simulation.told import words

SHORT = {"fault_ms": 1_500}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.slow)]
)  # `make campaign` runs thousands
def test_promises_are_kept(profile: str, seed: int) -> None:
    result = run_cluster(draw_options(seed, profile, **SHORT))
    assert result.failure is None, words(result)
    assert result.operations["ok"] > 0


def test_promises_are_kept_by_nodes_that_found_their_cluster_quickly() -> None:
    result = run_cluster(draw_options(81_000, "raft", founding_ms=50, fault_ms=1_000))
    assert result.failure is None, words(result)
    assert result.operations["ok"] > 0


def test_a_quiet_cluster_does_a_lot_of_work() -> None:
    result = run_cluster(
        draw_options(5, "oxia", fault_every_ms=0, fault_ms=400, commit="", bulk_writers=0, operations_per_s=0)
    )
    assert result.failure is None, words(result)
    assert result.operations["ok"] > 80
    assert result.operations["unknown"] == 0


_PRINT = (
    "from antiphon.simulation.cluster.options import draw_options\n"
    "from antiphon.simulation.cluster.run import run_cluster\n"
    "result = run_cluster(draw_options(11, 'oxia', fault_ms=1_000, kill_midway_weight=9, power_midway_weight=9))\n"
    "print(result.digest, result.steps)\n"
)


def test_a_seed_decides_everything_in_any_process() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _PRINT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("0", "4242")
    ]
    seen = {run.communicate(timeout=150)[0] for run in runs}
    assert all(run.returncode == 0 for run in runs)
    assert len(seen) == 1
