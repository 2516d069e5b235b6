"""Writes the table of mutants in docs/simulation.md, from one run of all of them.

    antiphon simulate --catch --seeds 1000 --json > plants.json
    python -m tests.simulation.mutants_table plants.json

`make plants-table` does both. All rows and the sentence above them come from that run; a run that left out a bug, or did not
find one, is refused.
"""

import json
import sys
from pathlib import Path
from typing import Any

from antiphon.simulation.cluster.mutants import ALL_MUTANTS
from antiphon.simulation.cluster.tables import table_of_mutants

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"
MADE, END_MADE = "<!-- made: simulated plants -->", "<!-- end: simulated plants -->"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"


def table(run: dict[str, Any]) -> str:
    """The sentence and the table. Raises ValueError for a run that is not of all bugs, or did not find one."""
    found = {one["plant"]: one for one in run["plants"]}
    absent, missed = sorted(ALL_MUTANTS.keys() - found.keys()), run["missed"]
    if absent or missed:
        raise ValueError(f"this run left out {absent} and did not find {missed}")
    took = sorted(one["seeds"] for one in found.values())
    first, soon = took.count(1), sum(count <= 25 for count in took)
    minutes, jobs = max(1, round(run["elapsed_s"] / 60)), run["jobs"]
    where = f"{jobs} process" + ("es" if jobs > 1 else "")
    lines = [
        f"In one run of all {len(took)} every one was caught: {first} by the first seed, {soon} within 25, the last by seed",
        f"number {took[-1]}. It took {minutes} minutes in {where}.",
        "",
        MADE,
        table_of_mutants({name: _cells(one) for name, one in found.items()}),
        END_MADE,
    ]
    return "\n".join(lines) + "\n"


def _cells(one: dict[str, Any]) -> tuple[str, str]:
    return "its script" if one.get("script") else str(one["seeds"]), f"`{one['invariant']}`"


def put(page: str, made: str) -> str:
    """The page with this table in the place of the one that it has."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + made + END + after


def main() -> None:
    """Write the page."""
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        made = table(json.loads(Path(sys.argv[1]).read_text()))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    PAGE.write_text(put(PAGE.read_text(), made))


if __name__ == "__main__":
    main()
