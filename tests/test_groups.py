"""Where tests are spread over processes, those of a group stay in one: a file, or all with one Spark session."""

import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.conftest import DRIVERS, LONG, NODES, SESSION, _turn, group_of

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("file", "group"),
    [
        ("tests/spark/test_sink.py", SESSION),
        ("tests/lake/test_jobs.py", SESSION),
        ("tests/spark/test_audit.py", NODES),
        ("tests/spark/test_speculation.py", DRIVERS),
        ("tests/cli/test_output.py", "tests/cli/test_output.py"),
    ],
)
def test_groups(file: str, group: str) -> None:
    assert group_of(f"{file}::test_something[a::b]") == group


@pytest.mark.parametrize("prefix", LONG)
def test_files_that_take_long_are_there(prefix: str) -> None:
    assert any(ROOT.glob(f"{prefix}*"))


def test_every_test_is_run_for_every_change() -> None:
    makefile = (ROOT / "Makefile").read_text()
    marks = [
        re.search(rf"^{name}: .*\n(?:\t.*\n)*?\t.*pytest -n .* -m (.*) \$", makefile, re.MULTILINE)
        for name in ("test", "test-slow")
    ]
    assert [found and found[1] for found in marks] == ['"not slow"', "slow"]
    steps = (ROOT / ".ci" / "run").read_text().splitlines()[-2:]
    assert steps == ["make test", "exec make test-slow"]


def test_what_takes_long_goes_first() -> None:
    sizes = Counter(
        {
            SESSION: 500,
            NODES: 20,
            DRIVERS: 10,
            "tests/node/test_cluster.py": 16,
            "tests/fuzz/test_fuzz.py": 28,
            "tests/test_tidy.py": 4_000,
        }
    )
    in_order = [
        SESSION,
        NODES,
        DRIVERS,
        "tests/node/test_cluster.py",
        "tests/fuzz/test_fuzz.py",
        "tests/test_tidy.py",
    ]
    slow = {NODES, DRIVERS, "tests/node/test_cluster.py"}
    given = [in_order[i] for i in (3, 1, 5, 0, 4, 2)]
    assert sorted(given, key=lambda group: _turn(group, slow, sizes)) == in_order


def test_a_group_stays_in_one_process() -> None:
    pytest.importorskip("xdist")
    chosen = ("tests/cli/test_output.py", "tests/spark/test_offsets.py")
    command = (sys.executable, "-m", "pytest", "-vv", "-n", "2", *chosen)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout
    processes = defaultdict(set)
    for process, file in re.findall(r"^\[(gw\d)\].* PASSED (\S+?)::", done.stdout, re.MULTILINE):
        processes[file].add(process)
    assert set(processes) == set(chosen)
    assert all(len(of_file) == 1 for of_file in processes.values()), processes
