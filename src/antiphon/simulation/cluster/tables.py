"""What the docs say of faults, workloads and mutants, from where each registers itself."""

import re
from collections.abc import Mapping
from functools import cache
from inspect import cleandoc
from typing import Any, Final

from antiphon.simulation.cluster.faults import kinds_in_order
from antiphon.simulation.cluster.mutants import ALL_MUTANTS
from antiphon.simulation.cluster.options import ClusterOptions, draw_options
from antiphon.simulation.cluster.workloads.registry import workloads_in_order
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.workloads.topic import TopicWorkload

WORLDS: Final = 2_000
CHECKED: Final = "Checked: "
NOT_MEASURED: Final = ("not measured", "")
Measured = Mapping[str, tuple[str, str]]
"""By mutant: how many seeds it took, and what caught it, as cells of a table."""


@cache
def _worlds() -> tuple[ClusterOptions, ...]:
    return tuple(draw_options(seed) for seed in range(WORLDS))


def _share(option: str) -> str:
    """In how many worlds an option is on."""
    count = sum(bool(getattr(world, option)) for world in _worlds())
    return f"{100 * count / WORLDS:.0f} %" if count else "none"


def _paragraphs(documented: Any) -> list[str]:
    """Of a docstring, each on one line."""
    return [" ".join(one.split()) for one in cleandoc(documented.__doc__ or "").split("\n\n")]


def table_of_faults() -> str:
    """All kinds, in the order in which seeds number them."""
    lines = ["| kind | worlds | what happens | what the simulator does |", "|---|---|---|---|"]
    lines += [
        f"| `{kind.name}` | {_share(kind.option)} | {' '.join(_paragraphs(kind.effect))} | {kind.then} |"
        for kind in kinds_in_order()
    ]
    return "\n".join(lines)


def table_of_workloads() -> str:
    """Those that every run has, and the others in the order in which they begin."""
    lines = ["| workload | option | worlds | what clients do | what is checked |", "|---|---|---|---|---|"]
    lines += [_of_workload(cls, "", "all") for cls in (TopicWorkload, TableWorkload)]
    lines += [_of_workload(one.cls, f"`{one.option}`", _share(one.option)) for one in workloads_in_order()]
    return "\n".join(lines)


def _of_workload(cls: Any, option: str, worlds: str) -> str:
    does, *more = _paragraphs(cls)
    checked = next((one.removeprefix(CHECKED) for one in more if one.startswith(CHECKED)), "")
    file = f"{cls.__module__.rpartition('.')[2]}.py"
    return f"| `{file}` | {option} | {worlds} | {does} | {checked} |"


def table_of_mutants(measured: Measured) -> str:
    """All mutants, with what a run of all of them found."""
    lines = ["| mutant | profile | seeds | caught by |", "|---|---|---|---|"]
    for name, mutant in ALL_MUTANTS.items():
        seeds, caught = measured.get(name, NOT_MEASURED)
        lines.append(f"| `{name}`: {mutant.description} | {mutant.profile} | {seeds} | {caught} |")
    return "\n".join(lines)


def measured_in(page: str) -> dict[str, tuple[str, str]]:
    """What the table of mutants of a page says was found."""
    found = re.findall(r"^\| `([\w-]+)`: .* \| \w+ \| ([^|]+) \| ([^|]*) \|$", page, re.MULTILINE)
    return {name: (seeds.strip(), caught.strip()) for name, seeds, caught in found}
