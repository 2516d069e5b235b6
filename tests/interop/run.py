"""Other projects' own tests and tools against three real nodes of this machine, one suite after the other.

    python -m tests.interop.run [SUITE...] [--out DIR]

What cannot be had here (no Java, no network) is skipped by name. A suite that breaks off counts as one test that fails,
and the next one is run. After each suite OUT gets `interop.json` with every test; a table of all ends the run. The exit
code is 1 where a test fails that is not a known difference, or a known difference is none any more.
"""

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.interop.aiokafka_suite import AioKafka
from tests.interop.java_tools import JavaTools
from tests.interop.kafka_python import KafkaPython
from tests.interop.kcat import Kcat
from tests.interop.librdkafka import Librdkafka
from tests.interop.nodes import start_nodes
from tests.interop.oxia_go import OxiaGo
from tests.interop.oxia_python import OxiaPython
from tests.interop.spark_kafka import SparkKafka
from tests.interop.suite import Outcome, Suite, folder
from tests.peers.servers.peer import UnavailableError

SUITES: Final[tuple[Suite, ...]] = (
    KafkaPython(),
    AioKafka(),
    Librdkafka(),
    Kcat(),
    JavaTools(),
    SparkKafka(),
    OxiaPython(),
    OxiaGo(),
)
HEADINGS: Final = ("suite", "passed", "known", "failed", "skipped", "seconds", "")


class Report(NamedTuple):
    """What became of a suite."""

    title: str
    outcomes: Sequence[Outcome]
    differences: dict[str, str]
    wrong: Sequence[str]
    seconds: int
    missing: str = ""  # why it was not run

    def line(self) -> tuple[str, ...]:
        """Its cells under HEADINGS: `known` are the differences among what failed."""
        count = Counter(one.result for one in self.outcomes)
        known = sum(one.result == "failed" and one.test in self.differences for one in self.outcomes)
        numbers = (count["passed"], known, count["failed"] - known, count["skipped"], self.seconds)
        if self.missing:
            return (self.title, *("-" for _ in numbers), f"not run: {self.missing}")
        return (self.title, *map(str, numbers), f"{len(self.wrong)} unexplained" if self.wrong else "")

    def as_json(self) -> dict[str, Any]:
        """What `interop.json` says of it."""
        if self.missing:
            return {"title": self.title, "skipped": self.missing}
        return {
            "title": self.title,
            "seconds": self.seconds,
            "tests": [one._asdict() for one in self.outcomes],
            "differences": self.differences,
            "wrong": list(self.wrong),
        }


def judged(suite: Suite, outcomes: Sequence[Outcome]) -> list[str]:
    """What is wrong: tests that fail and are no known difference, and differences that are none any more."""
    failed = {one.test: one.said for one in outcomes if one.result == "failed"}
    passed = {one.test for one in outcomes if one.result == "passed"}
    wrong = [f"{test} fails: {said}" for test, said in failed.items() if test not in suite.differences]
    return wrong + [
        f"{test} passes, and is listed as a difference" for test in suite.differences if test in passed
    ]


def run_suite(suite: Suite, where: Path) -> list[Outcome]:
    """Run one suite against nodes of its own."""
    with start_nodes(where / "nodes", suite.settings) as running:
        return suite.run(running.kafka, where)


def report_of(suite: Suite, run: Callable[[Suite, Path], list[Outcome]]) -> Report:
    """Get a suite and run it. Whatever breaks it off is its failure, and not that of the suites after it."""
    began_s = time.monotonic()
    try:
        print(f"{suite.title}: getting it", flush=True)
        try:
            suite.get(folder())
        except UnavailableError as error:
            return Report(suite.title, (), {}, (), 0, str(error))
        print(f"{suite.title}: running", flush=True)
        with tempfile.TemporaryDirectory(prefix="antiphon-interop-", ignore_cleanup_errors=True) as where:
            outcomes = run(suite, Path(where))
    except Exception as error:  # noqa: BLE001 what suites do is not ours
        traceback.print_exc()
        outcomes = [Outcome("all", "failed", f"it broke off: {error!r}"[:300])]
    took_s = round(time.monotonic() - began_s)
    return Report(suite.title, outcomes, suite.differences, judged(suite, outcomes), took_s)


def table_of(reports: Sequence[Report]) -> str:
    """All suites, one a line, and what is wrong with them."""
    lines = [HEADINGS, *(report.line() for report in reports)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEADINGS))]
    cells = (
        [line[0].ljust(widths[0]), *map(str.rjust, line[1:-1], widths[1:-1]), line[-1]] for line in lines
    )
    told = ["  ".join(row).rstrip() for row in cells]
    return "\n".join(told + [f"{one.title}: {said}" for one in reports for said in one.wrong])


def run_all(
    suites: Sequence[Suite], out: Path, run: Callable[[Suite, Path], list[Outcome]] = run_suite
) -> list[Report]:
    """One suite after the other, whatever becomes of them."""
    out.mkdir(parents=True, exist_ok=True)
    reports: dict[str, Report] = {}
    for suite in suites:
        reports[suite.name] = report = report_of(suite, run)
        print(table_of([report]), flush=True)
        told = {name: one.as_json() for name, one in reports.items()}
        (out / "interop.json").write_text(json.dumps(told, indent=1) + "\n")
    return list(reports.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.run", description=__doc__.split("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument("--out", type=Path, default=Path("interop"))
    asked = parser.parse_args(arguments)
    unknown = set(asked.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"no suite is called {', '.join(sorted(unknown))}")
    reports = run_all([one for one in SUITES if not asked.suites or one.name in asked.suites], asked.out)
    print(f"\n{table_of(reports)}")
    return 1 if any(report.wrong for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
