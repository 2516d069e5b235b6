"""Draw the parts of the documentation that are made from the code: `python -m antiphon.tools.diagrams docs`.

A page marks such a part by two comments, `<!-- made: NAME -->` and `<!-- end: NAME -->`; what stands between is replaced.
`--check` changes nothing and fails if a page is not current, which is what the tests do too.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from antiphon.kafka.apis import APIS
from antiphon.lake.targets.kinds import table_of_kinds, table_of_layouts
from antiphon.lake.values.formats import table_of_formats
from antiphon.model.node_settings import NODE_SETTINGS
from antiphon.replication.commit_rule import table_of_rules
from antiphon.replication.replica_state import (
    CANDIDACIES,
    LEADER_PHASES,
    LOG_CONDITIONS,
    TRANSITIONS,
    Candidacy,
    Happening,
    LeaderPhase,
    LogCondition,
    Role,
    State,
)
from antiphon.simulation.cluster.tables import (
    measured_in,
    table_of_faults,
    table_of_mutants,
    table_of_workloads,
)
from antiphon.spark.jobs import table_of_jobs
from antiphon.tools.capacity.costs import our_costs
from antiphon.tools.capacity.model import table_of_checks, table_of_clusters


def state_diagram(table: Mapping[tuple[State, Happening], State], *starts: State) -> str:
    """The states and edges of a transition table as a Mermaid state diagram; `starts` are the states to begin in."""
    lines = ["```mermaid", "stateDiagram-v2", *(f"    [*] --> {_state_name(start)}" for start in starts)]
    lines += [
        f"    {_state_name(before)} --> {_state_name(after)}: {event}"
        for (before, event), after in table.items()
    ]
    return "\n".join([*lines, "```"])


def _state_name(state: StrEnum) -> str:
    return "".join(part.capitalize() for part in re.split("[_-]", state.value))


def kafka_apis(_root: Path) -> str:
    """The APIs of Kafka's protocol that are served, from the rows that the listener dispatches by."""
    lines = ["| key | API | versions | asked of | notes |", "|---|---|---|---|---|"]
    lines += [
        f"| {api.key} | {api.name} | {api.min_version}-{api.max_version} | {api.routing} | {api.notes} |"
        for api in APIS.values()
    ]
    return "\n".join(lines)


def requirement_table(root: Path) -> str:
    """Requirement numbers with the modules that name them, the tests that bear them, and mistakes that those tests see."""
    lives: dict[str, set[str]] = {}
    for path in sorted((root / "src" / "antiphon").rglob("*.py")):
        where = str(path.relative_to(root / "src" / "antiphon"))
        for number in re.findall(r"\b(S[0-4]\.\d+|C1?\d)\b", path.read_text(encoding="utf-8")):
            lives.setdefault(number, set()).add(where)
    shown: dict[str, set[str]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        for name in re.findall(
            r"^ *(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            for family, number in re.findall(r"(?<=_)(s[0-4]_|c)(\d+)(?=_)", name):
                key = f"{family.upper().replace('_', '.')}{int(number)}"
                shown.setdefault(key, set()).add(f"{path.relative_to(root)}::{name}")
    seen = _mutation_names(root)
    lines = ["| requirement | named in | shown by | fails under |", "|---|---|---|---|"]
    for key in sorted(shown, key=_requirement_order):
        modules = " ".join(f"`{module}`" for module in sorted(lives.get(key, ())))
        tests = "<br>".join(f"`{test}`" for test in sorted(shown[key]))
        mistakes = "<br>".join(seen.get(key, ()))
        lines.append(f"| {key} | {modules} | {tests} | {mistakes} |")
    return "\n".join(lines)


def _mutation_names(root: Path) -> dict[str, list[str]]:
    """Per requirement, the names of the mutations in the data files of tests/requirement_mutations."""
    names: dict[str, list[str]] = {}
    for path in sorted((root / "tests" / "requirement_mutations").glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8")).get("mutation", []):
            numbers = entry["requirement"]
            for number in [numbers] if isinstance(numbers, str) else numbers:
                names.setdefault(number, []).append(entry["name"])
    return names


def _requirement_order(key: str) -> tuple[str, int]:
    """The statements by document, then the conflicts."""
    if key.startswith("C"):
        return "T", int(key[1:])
    family, _, number = key.partition(".")
    return family, int(number)


def lake_targets(_root: Path) -> str:
    """The kinds of lake tables, from their rows."""
    return table_of_kinds()


def lake_layouts(_root: Path) -> str:
    """What each kind of lake table can be laid out by, from their rows."""
    return table_of_layouts()


def lake_formats(_root: Path) -> str:
    """The formats of values, from their rows."""
    return table_of_formats()


def simulated_mutants(root: Path) -> str:
    """The mutants, from their rows; what a run of all of them found stays as the page has it (`make mutants-table`)."""
    return table_of_mutants(measured_in((root / "docs" / "simulation.md").read_text(encoding="utf-8")))


def http_api(_root: Path) -> str:
    """The operations of the API over HTTP."""
    from antiphon.http.api.routes import table

    return "\n".join(table())


def node_settings(_root: Path) -> str:
    """The settings that can be changed while nodes run."""
    rows = [
        "| setting | Kafka's name | value | default | a change counts |",
        "|---|---|---|---|---|",
    ]
    for one in NODE_SETTINGS.values():
        kafka = f"`{one.kafka}`" if one.kafka else "-"
        span = ", ".join(one.words) if one.words else f"{one.least:,} to {one.most:,}"
        default = one.default if one.words else f"{int(one.default):,}"
        rows.append(f"| `{one.name}` | {kafka} | {span} | {default} | {one.effect} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[Path], str]] = {
    "api": http_api,
    "capacity": lambda _: table_of_clusters(our_costs()),
    "capacity checks": lambda _: table_of_checks(our_costs()),
    "commit rules": lambda _: table_of_rules(),
    "lake formats": lake_formats,
    "lake layouts": lake_layouts,
    "lake targets": lake_targets,
    "kafka apis": kafka_apis,
    "replica states": lambda _: state_diagram(TRANSITIONS, Role.NOT_MEMBER, Role.FENCED),
    "candidacies": lambda _: state_diagram(CANDIDACIES, Candidacy.NONE),
    "leader phases": lambda _: state_diagram(LEADER_PHASES, LeaderPhase.STARTING),
    "log conditions": lambda _: state_diagram(LOG_CONDITIONS, *LogCondition),
    "jobs": lambda _: table_of_jobs(),
    "node settings": node_settings,
    "requirements": requirement_table,
    "simulated faults": lambda _: table_of_faults(),
    "simulated workloads": lambda _: table_of_workloads(),
    "simulated mutants": simulated_mutants,
}


def redraw(text: str, root: Path) -> str:
    """A page with its made parts as the tree `root` has them now. Raises ValueError for a part that nothing makes."""

    def replace(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in PARTS:
            raise ValueError(f"nothing makes {name!r}; there are: {', '.join(sorted(PARTS))}")
        return f"<!-- made: {name} -->\n{PARTS[name](root)}\n<!-- end: {name} -->"

    return re.sub(
        r"<!-- made: (?P<name>[^>]*?) -->.*?<!-- end: (?P=name) -->", replace, text, flags=re.DOTALL
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Redraw every page in a folder. Returns the exit code: 1 if `--check` finds a page that is not current."""
    parser = argparse.ArgumentParser(prog="python -m antiphon.tools.diagrams", description=redraw.__doc__)
    parser.add_argument("folder", type=Path, help="where the pages (*.md) are")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is not current")
    options = parser.parse_args(arguments)
    stale = 0
    for page in sorted(options.folder.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        drawn = redraw(text, options.folder.resolve().parent)
        if drawn == text:
            continue
        stale += 1
        if not options.check:
            page.write_text(drawn, encoding="utf-8")
        sys.stdout.write(f"{page}: {'is not current; run make docs' if options.check else 'redrawn'}\n")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
