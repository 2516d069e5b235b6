"""Other projects' own tests and tools against three real nodes of this machine, one suite after the other.

    python -m tests.interop.run [SUITE...] [--out DIR]

What cannot be had here (no Java, no network) is skipped by name. OUT gets `interop.json` with every test. The exit code
is 1 where a test fails that is not a known difference, or a known difference is none any more.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

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


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module's text; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.interop.run", description=__doc__.split("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(suite.name for suite in SUITES))
    parser.add_argument("--out", type=Path, default=Path("interop"))
    asked = parser.parse_args(arguments)
    unknown = set(asked.suites) - {suite.name for suite in SUITES}
    if unknown:
        parser.error(f"no suite is called {', '.join(sorted(unknown))}")
    asked.out.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {}
    wrong: list[str] = []
    for suite in SUITES:
        if asked.suites and suite.name not in asked.suites:
            continue
        print(f"{suite.title}: getting it", flush=True)
        try:
            suite.get(folder())
        except UnavailableError as error:
            print(f"{suite.title}: skipped: {error}", flush=True)
            told[suite.name] = {"title": suite.title, "skipped": str(error)}
            continue
        print(f"{suite.title}: running", flush=True)
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="antiphon-interop-") as where:
            outcomes = run_suite(suite, Path(where))
        found = judged(suite, outcomes)
        count = Counter(one.result for one in outcomes)
        took_s = time.monotonic() - began_s
        print(
            f"{suite.title}: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped "
            f"in {took_s:.0f} s"
        )
        for line in found:
            print(f"  {line}")
        wrong += found
        told[suite.name] = {
            "title": suite.title,
            "seconds": round(took_s),
            "tests": [one._asdict() for one in outcomes],
            "differences": suite.differences,
        }
        (asked.out / "interop.json").write_text(json.dumps(told, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
