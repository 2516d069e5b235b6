"""Imports go down only: which package may import which, and that the docs say the same."""

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "antiphon"
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"

# Each package with the packages of ours that it may import. What `EVERYBODYS` has belongs to everybody.
# `package.part` is a part on a layer of its own: it may import what stands here, and nobody else may import it.
ALLOWED: dict[str, set[str]] = {
    "records": set(),
    "model": {"records"},
    "wire": {"model"},
    "log": {"records"},
    "replication": {"records"},
    "coordination": {"replication", "records", "model"},
    "table": {"records", "model"},
    "partition": {"replication", "table", "log", "records", "model"},
    "security": {"records", "model"},
    "gateway": {"records", "model", "security"},
    "transport": {"wire", "security"},
    "node": {
        "partition",
        "gateway",
        "security",
        "transport",
        "coordination",
        "replication",
        "table",
        "log",
        "records",
        "model",
        "wire",
    },
    "transactions": {"gateway", "coordination", "model"},
    "native": {
        "transactions",
        "coordination",
        "gateway",
        "security",
        "transport",
        "records",
        "model",
        "wire",
    },
    "kafka": {"archive", "transactions", "gateway", "coordination", "security", "records", "model"},
    "http": {"transactions", "gateway", "coordination", "security", "records", "model"},
    "oxia": {"gateway", "security", "records", "model"},
    "archive": {"records", "model"},
    "client": {"archive", "security", "records", "model", "wire"},
    "recipes": {"client"},
    "archive.catalog": {"archive", "client", "records", "model"},
    "spark": {"client", "records", "model", "wire"},
    "spark.read": {"spark", "archive", "archive.catalog", "client", "records", "model"},
    "spark.staging": {"spark", "client", "records", "model"},
    "spark.write": {"spark", "spark.staging", "client", "records", "model"},
    "spark.__init__": {"spark", "spark.source"},
    "spark.source": {"spark", "spark.read", "spark.write"},
    "spark.jobs": {"spark", "spark.staging", "archive.catalog", "client", "records", "model"},
    "archive.job": {"archive", "archive.catalog", "spark", "spark.read", "client", "records", "model"},
    "lake": {"archive", "spark", "client", "records", "model"},
    "backup": {
        "client",
        "archive",
        "node",
        "partition",
        "coordination",
        "log",
        "table",
        "security",
        "records",
        "model",
    },
    "server": {
        "node",
        "security",
        "native",
        "kafka",
        "transactions",
        "http",
        "oxia",
        "gateway",
        "spark",
        "spark.staging",
        "table",
        "log",
        "model",
    },
    "simulation": {
        "archive",
        "backup",
        "gateway",
        "security",
        "server",
        "native",
        "coordination",
        "replication",
        "table",
        "log",
        "records",
        "model",
        "wire",
        "node",
        "partition",
        "client",
        "recipes",
        "kafka",
        "transactions",
        "http",
        "oxia",
    },
    "tools": {
        "server",
        "transactions",
        "security",
        "client",
        "spark",
        "spark.jobs",
        "lake",
        "node",
        "partition",
        "kafka",
        "http",
        "simulation",
        "replication",
        "coordination",
        "log",
        "table",
        "records",
        "model",
        "wire",
        "aio",
        "__init__",
    },
    "testing": {"tools", "client", "node", "kafka", "model"},
    "cli": set(),  # filled below: everything
}
ALLOWED["cli"] = {
    *ALLOWED,
    "aio",
    "__init__",
}  # antiphon.aio and antiphon itself are the client's public names

# The modules beside the packages. What `EVERYBODYS` has is below everything; the others offer public names.
ROOT: dict[str, set[str]] = {
    "errors": set(),
    "invariants": set(),
    "system": set(),
    "tracing": set(),
    "aio": {"client"},
    "__init__": {"aio", "client", "model", "records", "tools"},
    "__main__": {"cli"},
}
EVERYBODYS = {"errors", "invariants", "system", "tracing"}

# What the pure parts must never see: sockets, files, clocks, random sources, threads.
IMPURE = {
    "asyncio", "datetime", "io", "os", "pathlib", "random", "secrets", "select", "socket", "ssl", "subprocess", "tempfile",
    "threading", "time", "uuid", "uvloop",
}  # fmt: skip
PURE_PACKAGES = ("replication", "coordination", "client/routing")


@cache
def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _layer(parts: Sequence[str]) -> str:
    """The package of a module, or the part of one that stands on a layer of its own."""
    part = ".".join(parts[:2])
    return part if part in ALLOWED else parts[0]


def _layer_of_imported(parts: Sequence[str]) -> str:
    """The same for what is imported, where a name that is no package and no module is one of `antiphon` itself."""
    layer = _layer(parts) if parts else ""
    return layer if layer in ALLOWED or layer in ROOT else "__init__"


@cache
def _import_statements(path: Path) -> list[ast.Import | ast.ImportFrom]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


@cache
def _imports(path: Path) -> list[str]:
    found = []
    for node in _import_statements(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif node.module is not None:
            assert node.level == 0, f"{path}: relative imports hide the layers"
            if node.module != "antiphon":
                found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]  # the name may be a module too
    return found


def _imports_that_do_not_go_down(path: Path) -> list[str]:
    parts = path.relative_to(SOURCE).parts
    package = path.stem if len(parts) == 1 else _layer([*parts[:-1], path.stem])
    known = ROOT if len(parts) == 1 else ALLOWED
    assert package in known, f"new package {package}: say in this test which layer it is on"
    allowed = known[package] if package in EVERYBODYS else known[package] | EVERYBODYS | {package}
    return [
        f"{path.name} in {package}/ must not import {name}"
        for name in _imports(path)
        if name.split(".")[0] == "antiphon" and _layer_of_imported(name.split(".")[1:]) not in allowed
    ]


def test_imports_go_down_only() -> None:
    assert not [words for path in _modules() for words in _imports_that_do_not_go_down(path)]


def _name(path: Path) -> str:
    parts = ("antiphon", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _graph() -> dict[str, set[str]]:
    """Who imports whom of ours, by module. A name that is a module counts for itself, not for the package that it is in."""
    paths = {_name(path): path for path in _modules()}
    graph = {}
    for name, path in paths.items():
        found = set()
        for node in _import_statements(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif node.module is not None:
                whole = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {one if one in paths else node.module for one in whole}
        graph[name] = found & paths.keys() - {name}
    return graph


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """Every module that `start` imports, or that those import, and so on."""
    found: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += graph[one]
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone included."""
    graph = _graph()
    circular = [name for name in graph if name in _reached(graph, name)]
    assert not circular, "\n".join(circular)


def _arrows() -> dict[str, set[str]]:
    """Those of the diagram of packages in the docs: who is above, and what is right below."""
    diagram = re.search(r"^flowchart TD\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert diagram is not None
    found: dict[str, set[str]] = {}
    for above, below in re.findall(r"^ +(.+) --> (.+)$", re.sub(r"\[.*?\]", "", diagram[1]), re.MULTILINE):
        for one in above.split(" & "):
            found.setdefault(one, set()).update(below.split(" & "))
    return found | {one: set() for one in set().union(*found.values()) - found.keys()}


def _in_diagram(layer: str) -> str:
    """The package as the diagram has it, which shows of the parts only the archive's."""
    package = layer.partition(".")[0]
    return layer.replace(".", "_") if package == "archive" else package


def test_the_docs_diagram_is_of_these_packages_and_imports() -> None:
    arrows = _arrows()
    assert arrows.keys() == {_in_diagram(layer) for layer in ALLOWED}
    imports = [
        (_in_diagram(_layer([*parts[:-1], path.stem])), _in_diagram(_layer_of_imported(name.split(".")[1:])))
        for path in _modules()
        if len(parts := path.relative_to(SOURCE).parts) > 1
        for name in _imports(path)
        if name.split(".")[0] == "antiphon"
    ]
    reached = {one: _reached(arrows, one) | {one, *ROOT} for one in arrows}
    assert not {(one, other) for one, other in imports if other not in reached[one]}
    assert not {(one, other) for one, below in arrows.items() for other in below} - set(imports)


def test_the_docs_table_has_every_package() -> None:
    rows = "\n".join(line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `"))
    folders = {one.parent.name for one in SOURCE.glob("*/__init__.py")}
    assert not {folder for folder in folders if f"`{folder}/`" not in rows}


@pytest.mark.parametrize("package", PURE_PACKAGES)
def test_pure_packages_see_no_world(package: str) -> None:
    for path in sorted((SOURCE / package).rglob("*.py")):
        for name in _imports(path):
            assert name.split(".")[0] not in IMPURE, (
                f"{path.name} in {package}/ imports {name}: it must stay pure"
            )
