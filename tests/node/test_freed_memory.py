"""What a node has freed goes back to the system, though something is still in use in between."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from antiphon.node import memory

memory.settle()
holes = memory.HeapTrimmer()
assert not holes.look()

def resident_mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) // 1024

held = [bytes(100_000) for _ in range(2000)]
kept = [held[at] for at in range(0, len(held), 50)] + [bytes(1000) for _ in range(10)]
kept.append([bytes(2000) for _ in range(20_000)][::100])
held.clear()
before = resident_mib()
{give_back}
print(before, resident_mib())
"""
COLLECTED, GIVEN_BACK = "memory.collect()", "memory.give_back()"
LOOKED_AT = "assert holes.look() and not holes.look()"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's own")
@pytest.mark.parametrize(
    "give_back", [COLLECTED, GIVEN_BACK, LOOKED_AT], ids=["collected", "given back", "grown"]
)
def test_holes_in_the_heap_are_given_back(give_back: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{give_back}", give_back)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    before_mib, after_mib = map(int, done.stdout.split())
    assert after_mib < before_mib - 15, done.stdout
