"""The same seed is the same run, also in another process with another hash seed."""

import os
import subprocess
import sys

import pytest

from antiphon.simulation.options import PROFILES, derive
from antiphon.simulation.runner import run_seed

SEED = 11
SCRIPT = """
import sys
from antiphon.simulation.options import derive
from antiphon.simulation.runner import run_seed
print(run_seed(derive(int(sys.argv[1]), sys.argv[2], safety_ms=1500)).digest)
"""


def digest_in_another_process(profile: str, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", SCRIPT, str(SEED), profile]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=50)
    return done.stdout.strip()


@pytest.mark.parametrize("profile", PROFILES)
def test_same_seed_same_trace_anywhere(profile: str) -> None:
    here = run_seed(derive(SEED, profile, safety_ms=1500))
    again = run_seed(derive(SEED, profile, safety_ms=1500))
    assert here == again
    assert here.steps > 500
    assert digest_in_another_process(profile, "0") == here.digest
    assert digest_in_another_process(profile, "4242") == here.digest


@pytest.mark.parametrize("profile", PROFILES)
def test_other_seeds_other_traces(profile: str) -> None:
    digests = {run_seed(derive(seed, profile, safety_ms=500)).digest for seed in range(5)}
    assert len(digests) == 5
