"""`make fuzz`: every target for its share of the time, led by coverage where atheris is installed.

    python -m tests.fuzz.run [--seconds N] [--seed N] [--out FOLDER] [TARGET ...]
    python -m tests.fuzz.run --repeat FILE        one input again, a finding or a kept one: its traceback

A finding is a file in FOLDER/TARGET/findings, with its traceback beside it. Ends with 1 if there is any.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from typing import Final, NamedTuple

from tests.fuzz.engine import run_for
from tests.fuzz.registry import TARGETS, make
from tests.fuzz.target import Finding, name_of, watched

SECONDS: Final = 1800.0
GRACE_S: Final = 600.0  # for what begins and ends a process, on a machine that has other work too
COVERED: Final = re.compile(r"^#(\d+)\s+(\w+)\s+cov: (\d+) ft: (\d+)", re.MULTILINE)
EXECUTED: Final = re.compile(r"stat::number_of_executed_units: (\d+)")


class Outcome(NamedTuple):
    """What one target's share brought. Coverage in edges of our code; 0 without atheris."""

    executions: int
    covered_first: int
    covered_last: int
    findings: list[Path]


def guided(name: str, seconds: float, seed: int, folder: Path) -> Outcome:
    """A process with atheris; one that dies of an input is started again for the rest of the time."""
    executions, first, last = 0, 0, 0
    ends_s = time.monotonic() + seconds
    while (left_s := ends_s - time.monotonic()) > 1:
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.guided",
            name,
            str(max(1, round(left_s))),
            str(seed),
            str(folder),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=left_s + GRACE_S, check=False
        )
        told = done.stdout + done.stderr
        steps = COVERED.findall(told)
        if not steps:
            raise RuntimeError(f"{' '.join(command)} did not begin:\n{told[-3000:]}")
        count = EXECUTED.search(told)
        executions += int(count.group(1)) if count else int(steps[-1][0])
        first, last = first or int(steps[0][2]), max(last, int(steps[-1][2]))
        if done.returncode == 0:
            break
        seed += 1
    return Outcome(executions, first, last, _findings(folder))


def unguided(name: str, seconds: float, seed: int, folder: Path) -> Outcome:
    """The same in this process, by chance alone."""
    target = make(name)

    def keep(finding: Finding) -> None:
        file = folder / "findings" / name_of(finding.data)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(finding.data)
        file.with_suffix(".txt").write_text(finding.text())

    try:
        ran = run_for(target, name, seed, seconds, found=keep)
    finally:
        target.close()
    return Outcome(ran.inputs, 0, 0, _findings(folder))


def _findings(folder: Path) -> list[Path]:
    return sorted(file for file in (folder / "findings").glob("*") if file.suffix != ".txt")


def repeat(file: Path) -> int:
    """Run one input again; 1 if it is a finding."""
    name = next((part for part in reversed(file.resolve().parts[:-1]) if part in TARGETS), None)
    if name is None:
        sys.exit(f"{file} lies in no folder that is named after a target: {', '.join(TARGETS)}")
    target = make(name)
    try:
        finding = watched(target, file.read_bytes(), memory=True)
    finally:
        target.close()
    print("nothing found" if finding is None else finding.text())
    return 0 if finding is None else 1


def fuzz(names: list[str], seconds: float, seed: int, out: Path) -> int:
    """All of these targets; the number of findings."""
    with_coverage = find_spec("atheris") is not None
    if not with_coverage:
        print("atheris is not installed here: inputs are changed by chance, without a look at coverage")
    print(f"seed {seed}, {len(names)} targets, {seconds / len(names):.0f} s each, to {out}", flush=True)
    found = 0
    for name in names:
        work = guided if with_coverage else unguided
        outcome = work(name, seconds / len(names), seed, out / name)
        found += len(outcome.findings)
        print(
            f"{name:>16}: {outcome.executions:9,} executions, coverage {outcome.covered_first:5} to "
            f"{outcome.covered_last:5}, {len(outcome.findings)} findings",
            flush=True,
        )
        for file in outcome.findings:
            print(f'{"":>16}  make fuzz ARGS="--repeat {os.path.relpath(file)}"', flush=True)
    return found


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="make fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)}; none: all of them")
    parser.add_argument(
        "--seconds", type=float, default=float(os.environ.get("FUZZ_S", SECONDS)), help="for all together"
    )
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--out", type=Path, default=Path("fuzz"), help="where inputs and findings go")
    parser.add_argument("--repeat", type=Path, default=None, metavar="FILE", help="run this input again")
    given = parser.parse_args()
    if given.repeat is not None:
        sys.exit(repeat(given.repeat))
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    seed = SystemRandom().randrange(1, 1 << 30) if given.seed is None else given.seed
    found = fuzz(given.targets or list(TARGETS), given.seconds, seed, given.out)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
