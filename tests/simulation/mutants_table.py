"""Writes the table of mutants in docs/simulation.md, from one run of all of them (`make mutants-table`).

    python -m tests.simulation.mutants_table [--jobs N] [--out FILE] [--missing]

Every mutant is a line of JSON in FILE as soon as it is caught. A run that was stopped goes on where it was, if the sources
are still the same; the file of a run of other sources is begun anew. All rows of the table, and the sentence above it, come
from one such file: a run that did not find a mutant is refused. With `--missing` only those are run that the table has no
figure of, and the others keep theirs.
"""

import argparse
import json
import os
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from antiphon.simulation.cluster.mutants import ALL_MUTANTS
from antiphon.simulation.cluster.tables import NOT_MEASURED, measured_in, table_of_mutants
from antiphon.tools.simulation_runs import caught

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "simulation.md"
MADE, END_MADE = "<!-- made: simulated mutants -->", "<!-- end: simulated mutants -->"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"
BY_SCRIPT: Final = "its script"  # in the place of a number of seeds
SEEDS: Final = 1_000  # of each mutant at most


def sources() -> str:
    """What tells the sources of the package from others."""
    digest = sha256()
    for file in sorted((ROOT / "src").rglob("*.py")):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def known(out: Path, of: str) -> list[dict[str, Any]]:
    """What a run of these sources has found so far; a file of others is removed."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if lines and lines[0] == {"sources": of}:
        return lines[1:]
    out.write_text(json.dumps({"sources": of}) + "\n")
    return []


def run(out: Path, jobs: int) -> list[dict[str, Any]]:
    """What every mutant took: those in the file, and the others, which are run now."""
    found = known(out, sources())
    done = {one["mutant"] for one in found}
    names = [name for name in ALL_MUTANTS if name not in done]
    began = time.monotonic()
    with out.open("a") as file:
        for one in caught(names, SEEDS, jobs):
            now = time.monotonic()
            found.append({**one, "jobs": jobs, "elapsed_s": round(now - began, 1)})
            began = now
            print(json.dumps(found[-1]), file=file, flush=True)
            print(f"{len(found)} of {len(ALL_MUTANTS)}: {one['mutant']} {one['seeds']}", flush=True)
    return found


def table(run: list[dict[str, Any]]) -> str:
    """The sentence and the table. Raises ValueError for a run that is not of all mutants, or did not find one."""
    found = {one["mutant"]: one for one in run if one["mutant"] in ALL_MUTANTS}
    absent = sorted(ALL_MUTANTS.keys() - found.keys())
    missed = [name for name, one in found.items() if one["seeds"] is None]
    if absent or missed:
        raise ValueError(f"this run left out {absent} and did not find {missed}")
    took = [one["seeds"] for one in found.values()]
    minutes, jobs = max(1, round(sum(one["elapsed_s"] for one in run) / 60)), max(one["jobs"] for one in run)
    where = f"{jobs} process" + ("es" if jobs > 1 else "")
    lines = [
        _summary(took, f"In one run of all {len(took)} every one was caught"),
        f"It took {minutes} minutes in {where}.",
    ]
    return _made(lines, {name: _cells(one) for name, one in found.items()})


def _summary(took: list[int], said: str) -> str:
    first, soon = took.count(1), sum(count <= 25 for count in took)
    return f"{said}: {first} by the first seed, {soon} within 25, the last by seed number {max(took)}."


def _made(lines: list[str], cells: dict[str, tuple[str, str]]) -> str:
    return "\n".join([*lines, "", MADE, table_of_mutants(cells), END_MADE]) + "\n"


def with_missing(page: str, jobs: int) -> str:
    """The page with figures of those that it has none of; the others keep theirs. Raises ValueError where one is missed."""
    before = measured_in(page)
    names = [name for name in ALL_MUTANTS if before.get(name, NOT_MEASURED) == NOT_MEASURED]
    found = {}
    for one in caught(names, SEEDS, jobs):
        found[one["mutant"]] = one
        print(f"{len(found)} of {len(names)}: {one['mutant']} {one['seeds']}", flush=True)
    missed = [name for name, one in found.items() if one["seeds"] is None]
    if missed:
        raise ValueError(f"this run did not find {missed}")
    cells = {name: _cells(found[name]) if name in found else before[name] for name in ALL_MUTANTS}
    took = [int(seeds) for seeds, _ in cells.values() if seeds != BY_SCRIPT]
    lines = [
        _summary(took, f"Every one of the {len(cells)} was caught"),
        "Those that came after the last run of all of them were run by themselves.",
    ]
    return put(page, _made(lines, cells))


def _cells(one: dict[str, Any]) -> tuple[str, str]:
    return BY_SCRIPT if one.get("script") else str(one["seeds"]), f"`{one['invariant']}`"


def put(page: str, made: str) -> str:
    """The page with this table in the place of the one that it has."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + made + END + after


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants that run at a time")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    parser.add_argument("--missing", action="store_true", help="only those that the table has no figure of")
    given = parser.parse_args()
    try:
        page = PAGE.read_text()
        page = (
            with_missing(page, given.jobs) if given.missing else put(page, table(run(given.out, given.jobs)))
        )
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{given.out}: {error}")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
