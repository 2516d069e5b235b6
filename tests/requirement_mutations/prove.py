"""Show that the tests of the numbered requirements can fail: `python -m tests.requirement_mutations.prove [NUMBER...]`.

Each mistake of the data files (see mutations.py) is made in a copy of the repository, and the test that is named for it is
run there. It must fail by itself, and it must pass in the copy without the mistake. NUMBER is a requirement (S0.29), a
document (S0) or a mutation's name; without any, all are tried, and a requirement without a mutation is an error, too.

Exit code: 0 if all of them are seen, otherwise 1.
"""

import argparse
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.requirement_mutations.mutations import FAMILIES, ROOT, Mutation, numbers_of, read_mutations

TEST_SECONDS_MAX = 60
COPIED = ("src", "tests", "docs", "examples")

# A mutant that cannot even run its line shows nothing about the test.
BROKEN_MUTANT = ("NameError", "UnboundLocalError", "ImportError", "ModuleNotFoundError", "SyntaxError")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pytest run said: names of failed tests with the first line of why, tests that passed, and its output."""

    failed: dict[str, str]
    passed: frozenset[str]
    errors: int
    output: str


def copy_repository(to: Path) -> None:
    """Copy what the tests need. Times of files are kept, so byte code that is there stays valid."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, to / name)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, to / path.name)


def run_pytest(copy: Path, tests: Sequence[str], seconds_max: float) -> Outcome:
    """Run these tests on the product in `copy`."""
    report = copy / "report.xml"
    report.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short"]
    command += [f"--timeout={TEST_SECONDS_MAX}", f"--junitxml={report}", "-o", "junit_family=xunit1", *tests]
    with (copy / "output.txt").open("w+b") as output_file:
        run = subprocess.Popen(
            command,
            cwd=copy,
            env=environment,
            stdout=output_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            run.wait(seconds_max)
        except BaseException as error:
            os.killpg(run.pid, signal.SIGKILL)  # the nodes that a test has started, too
            run.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                return Outcome({}, frozenset(), 1, f"no end after {seconds_max:.0f} s")
            raise
        output_file.seek(0)
        output = output_file.read().decode(errors="replace")
    if not report.exists():
        return Outcome({}, frozenset(), 1, output)
    failed, passed, errors = {}, set(), 0
    for case in ElementTree.parse(report).iter("testcase"):
        test = f"{case.get('file')}::{(case.get('name') or '').partition('[')[0]}"
        failure = case.find("failure")
        if failure is not None:
            failed[test] = (failure.get("message") or "").partition("\n")[0]
        elif case.find("error") is not None or case.find("skipped") is not None:
            errors += 1
        else:
            passed.add(test)
    return Outcome(failed, frozenset(passed - failed.keys()), errors, output)


@contextmanager
def mutated(copy: Path, mutation: Mutation, serial: int) -> Iterator[None]:
    """Make the mistake in `copy`, and take it back afterwards.

    Python takes byte code for current if the source's time is the one it was made of: each mutant has a time of its own.
    """
    files = {edit.file for edit in mutation.edits}
    try:
        for edit in mutation.edits:
            path = copy / edit.file
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(edit.find, edit.replace), encoding="utf-8")
        for file in files:
            os.utime(copy / file, (serial, serial))
        yield
    finally:
        for file in files:
            shutil.copy2(ROOT / file, copy / file)


def objection(outcome: Outcome) -> str:
    """Why this run does not show that the test sees the mistake; empty if it does."""
    if outcome.errors or not (outcome.failed or outcome.passed):
        return "the test could not be run: " + " | ".join(outcome.output.strip().splitlines()[-3:])
    if not outcome.failed:
        return "SURVIVES: the test passes"
    why = next(iter(outcome.failed.values()))
    if why.startswith(BROKEN_MUTANT):
        return f"the mutant itself is broken: {why}"
    if why.startswith("Failed: Timeout"):
        return f"the test hangs instead of failing: {why}"
    return ""


def selected(mutations: Sequence[Mutation], wanted: Sequence[str]) -> list[Mutation]:
    """The mutations of these requirements, documents or names; all if none is given."""
    if not wanted:
        return list(mutations)
    names = {name.upper() for name in wanted}
    return [
        mutation
        for mutation in mutations
        if mutation.name.upper() in names
        or any(number in names or family_of(number) in names for number in mutation.requirements)
    ]


def family_of(number: str) -> str:
    """The document of a statement: S0 of S0.29, C of C7."""
    return "C" if number.startswith("C") else number.partition(".")[0]


def missing(mutations: Sequence[Mutation], wanted: Sequence[str]) -> list[str]:
    """Requirements (of those wanted; of all, if nothing is given) that have no mutation."""
    names = {name.upper() for name in wanted}
    have = {number for mutation in mutations for number in mutation.requirements}
    every = [
        number
        for family in FAMILIES
        for number in numbers_of(family)
        if not names or family in names or number in names
    ]
    return [number for number in every if number not in have]


def check_unmutated(copy: Path, mutations: Sequence[Mutation]) -> set[str]:
    """Run all named tests as the product is. Returns those that pass."""
    tests = sorted({mutation.test.partition("[")[0] for mutation in mutations})
    outcome = run_pytest(copy, tests, seconds_max=TEST_SECONDS_MAX * max(2, len(tests)))
    if not outcome.passed:
        sys.stdout.write(outcome.output)
    return set(outcome.passed)


def prove(mutations: Sequence[Mutation], jobs: int, *, verbose: bool = False) -> int:
    """Try each mutation; print a line each, with how the test failed if `verbose`. Returns how many are not seen."""
    bad = 0
    with tempfile.TemporaryDirectory(prefix="antiphon-mutants-") as folder:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for job in range(jobs):
            copy = Path(folder).resolve() / str(job)
            copy.mkdir()
            copy_repository(copy)
            copies.put(copy)
        passing = check_unmutated(copy, mutations)

        def attempt(serial: int, mutation: Mutation) -> tuple[Mutation, str, str, float]:
            began = time.monotonic()
            if mutation.test.partition("[")[0] not in passing:
                return mutation, "the test fails without the mistake, too", "", 0.0
            if any(edit.occurrences(ROOT) != 1 for edit in mutation.edits):
                return mutation, "the text to replace does not stand exactly once in its file", "", 0.0
            copy = copies.get()
            try:
                with mutated(copy, mutation, serial):
                    outcome = run_pytest(copy, [mutation.test], TEST_SECONDS_MAX * 2)
            finally:
                copies.put(copy)
            why = " | ".join(outcome.failed.values())
            return mutation, objection(outcome), why, time.monotonic() - began

        with ThreadPoolExecutor(jobs) as pool:
            for mutation, wrong, why, seconds in pool.map(attempt, range(1, len(mutations) + 1), mutations):
                bad += bool(wrong)
                sys.stdout.write(
                    f"{' '.join(mutation.requirements):12} {'NO  ' if wrong else 'seen'} {seconds:5.1f} s  "
                    f"{mutation.name}  {mutation.test_name}{f'  <- {wrong}' if wrong else ''}\n"
                )
                if verbose and why and not wrong:
                    sys.stdout.write(f"                by {why}\n")
                sys.stdout.flush()
    return bad


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove what was asked for. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.requirement_mutations.prove",
        description="Show that the tests of the numbered requirements can fail.",
    )
    parser.add_argument("numbers", nargs="*", help="S0.29, S0, C, or a mutation's name; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time")
    parser.add_argument("--verbose", action="store_true", help="say how each test failed")
    options = parser.parse_args(arguments)
    every = read_mutations()
    mutations = selected(every, options.numbers)
    without = missing(every, options.numbers)
    bad = prove(mutations, options.jobs, verbose=options.verbose) if mutations else 0
    for number in without:
        sys.stdout.write(f"{number:12} NO   has no mutation\n")
    shown = {number for mutation in mutations for number in mutation.requirements}
    sys.stdout.write(
        f"{len(mutations) - bad} of {len(mutations)} mutations are seen by their test; "
        f"{len(shown)} requirements have one, {len(without)} have none\n"
    )
    return 1 if bad or without or not mutations else 0


if __name__ == "__main__":
    sys.exit(main())
