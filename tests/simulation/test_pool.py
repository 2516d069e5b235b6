"""Runs that are spread over processes: results in order, and no process that outlives the one that began them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from antiphon.simulation.pool import run_all
from tests.node.processes import eventually

_PROGRAM = """
import os, sys, time
from pathlib import Path
from antiphon.simulation.pool import run_all

def work(number):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(0.2)

if __name__ == "__main__":
    for _ in run_all(work, range(10_000), 2):
        pass
"""


def double(number: int) -> int:
    return 2 * number


def test_results_come_in_the_order_of_the_jobs() -> None:
    for workers in (1, 2):
        assert list(run_all(double, range(20), workers)) == list(range(0, 40, 2))


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    began = tmp_path / "began"
    began.mkdir()
    with subprocess.Popen([sys.executable, str(program), str(began)]) as run:
        try:
            eventually(lambda: len(list(began.iterdir())) == 2)
        finally:
            run.kill()
    workers = [int(one.name) for one in began.iterdir()]
    try:
        eventually(lambda: not any(map(_lives, workers)))
    finally:
        for one in filter(_lives, workers):
            os.kill(one, signal.SIGKILL)


def _lives(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # nobody may have waited for it
