"""Style that a linter does not know: sizes, words and promises of this code base."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = SOURCES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
DOCUMENTS = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))

FILE_LINES_MAX = 600
SOURCE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60  # without the docstring
PARAMETERS_MAX = 8  # of a constructor
METHODS_MAX = 40  # of a class with those that it inherits

# What is larger, and not straightened yet. Each of these must be the truth: who makes one smaller says so here,
# and nothing new comes in.
LONG_SOURCES: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
LONG_CONSTRUCTORS: set[str] = set()
LARGE_CLASSES: dict[tuple[str, str], int] = {}

PROSE_MAX = 120
TABLES_OR_CODE = re.compile(
    r"^```.*?^```|<!-- trials -->.*?<!-- end of trials -->|^\|.*?$|^!?\[!?\[?[^\n]*$",
    re.DOTALL | re.MULTILINE,
)

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|for now|simplified")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/\w")


@cache
def _text(path: Path) -> str:
    return path.read_text()


def _found(paths: list[Path], found_in: Callable[[Path], Any]) -> dict[str, Any]:
    """Which of these files have something that they must not have, and what."""
    return {str(path.relative_to(ROOT)): found for path in paths if (found := found_in(path))}


def test_a_file_is_one_thought() -> None:
    long = _found(PYTHON, lambda path: _text(path).count("\n") > FILE_LINES_MAX)
    assert not long, f"more than {FILE_LINES_MAX} lines: split them"


Function = ast.FunctionDef | ast.AsyncFunctionDef


Named = tuple[str, str]
"""Module and name of a class: two modules may have classes of one name."""


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _length(function: Function) -> int:
    """Lines, without those of the docstring."""
    first = function.body[0]
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


class Outline(NamedTuple):
    """What the tests below ask of a module, which is parsed once for all of them."""

    functions: list[tuple[str, int, int]]  # name, lines, parameters
    classes: dict[str, tuple[set[str], list[Named]]]  # methods, and classes that it is derived from
    asserts: list[int]  # lines
    imported: dict[str, Named]  # what a name stands for that another module has


@cache
def _outline(path: Path) -> Outline:
    tree, module = ast.parse(_text(path)), _module(path)
    made = Outline([], {}, [], {})
    for node in ast.walk(tree):
        if isinstance(node, Function):
            taken = node.args
            count = len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs)
            made.functions.append((node.name, _length(node), count))
        elif isinstance(node, ast.Assert):
            made.asserts.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module:
            made.imported.update(
                {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            )

    def note(inside: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(inside):
            if isinstance(node, ast.ClassDef):
                methods = {one.name for one in _statements(node) if isinstance(one, Function)}
                bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
                made.classes[prefix + node.name] = methods, [_named(base, module, made) for base in bases]
            note(node, f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix)

    note(tree, "")
    return made


def _statements(inside: ast.AST) -> Iterator[ast.AST]:
    """Those of a class, also under `if` and the like, without those of its functions and classes."""
    for node in ast.iter_child_nodes(inside):
        yield node
        if not isinstance(node, Function | ast.ClassDef | ast.Lambda):
            yield from _statements(node)


def _named(base: ast.expr, module: str, outline: Outline) -> Named:
    """Where a base of a class is, that is named as `Class`, `module.Class` or `package.module.Class`."""
    first, _, rest = ast.unparse(base).partition(".")
    if first in outline.imported:
        whole = ".".join((*outline.imported[first], rest)).removesuffix(".")
    else:
        whole = f"{first}.{rest}" if rest else f"{module}.{first}"
    return whole.rpartition(".")[0], whole.rpartition(".")[2]


def test_sources_are_one_thought() -> None:
    long = {
        str(path.relative_to(ROOT / "src" / "antiphon"))
        for path in SOURCES
        if _text(path).count("\n") > SOURCE_LINES_MAX
    }
    assert long == LONG_SOURCES


def test_functions_fit_a_screen() -> None:
    long = {
        name for path in SOURCES for name, lines, _ in _outline(path).functions if lines > FUNCTION_LINES_MAX
    }
    assert long == LONG_FUNCTIONS


def test_constructors_take_few_parameters() -> None:
    long = {
        path.name
        for path in SOURCES
        for name, _, count in _outline(path).functions
        if name in ("__init__", "__new__") and count - 1 > PARAMETERS_MAX
    }
    assert long == LONG_CONSTRUCTORS


def test_classes_are_small_with_what_they_inherit() -> None:
    outlines = {_module(path): _outline(path) for path in SOURCES}

    def methods(module: str, name: str) -> set[str]:
        if module not in outlines:
            return set()
        outline = outlines[module]
        if name in outline.classes:
            own, bases = outline.classes[name]
            return own.union(*(methods(*base) for base in bases))
        return methods(*outline.imported[name]) if name in outline.imported else set()

    assert {"put", "offsets"} <= methods("antiphon.client.table", "AsyncTable"), "one has a base elsewhere"
    counts = {
        (module, name): len(methods(module, name))
        for module, outline in outlines.items()
        for name in outline.classes
    }
    assert {name: count for name, count in counts.items() if count > METHODS_MAX} == LARGE_CLASSES


def test_invariant_not_assert() -> None:
    found = _found(SOURCES, lambda path: _outline(path).asserts)
    assert not found, "assert vanishes under -O, use invariant() on these lines"


def test_nothing_sounds_unfinished() -> None:
    found = _found(SOURCES, lambda path: UNFINISHED.findall(_text(path)))
    assert not found, "finish it or refuse it clearly"


def test_no_path_of_one_machine() -> None:
    found = _found(PYTHON + DOCUMENTS, lambda path: MACHINE_PATHS.findall(_text(path)))
    assert not found, "paths that exist on one machine only"


def _long_lines(path: Path) -> list[str]:
    prose = TABLES_OR_CODE.sub("", _text(path))
    return [line for line in prose.splitlines() if len(line) > PROSE_MAX]


def test_lines_of_prose_are_short() -> None:
    """Those of tables, code and what a program wrote are as long as they are."""
    assert not _found(DOCUMENTS, _long_lines), f"break after {PROSE_MAX} characters"


def test_lock_file_has_hashes_and_no_addresses() -> None:
    text = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-z0-9-]+)==\S+", text, re.MULTILINE)
    assert len(pinned) > 30
    assert text.count("--hash=sha256:") >= len(pinned)
    assert "://" not in text
