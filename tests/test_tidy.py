"""Style that a linter does not know: sizes, words and promises of this code base."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = SOURCES + sorted((ROOT / "tests").rglob("*.py")) + sorted((ROOT / "examples").rglob("*.py"))
DOCUMENTS = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 80

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b|for now|simplified")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|home|root|Users)/\w")


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=_id)
def test_file_is_one_thought(path: Path) -> None:
    lines = path.read_text().count("\n")
    assert lines <= FILE_LINES_MAX, f"{lines} lines: split it"


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_functions_fit_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_invariant_not_assert(path: Path) -> None:
    found = [node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)]
    assert not found, f"assert vanishes under -O, use invariant(): lines {found}"


@pytest.mark.parametrize("path", SOURCES, ids=_id)
def test_nothing_sounds_unfinished(path: Path) -> None:
    found = UNFINISHED.findall(path.read_text())
    assert not found, f"finish it or refuse it clearly: {found}"


@pytest.mark.parametrize("path", PYTHON + DOCUMENTS, ids=_id)
def test_no_path_of_one_machine(path: Path) -> None:
    found = MACHINE_PATHS.findall(path.read_text())
    assert not found, f"paths that exist on one machine only: {found}"


def test_lock_file_has_hashes_and_no_addresses() -> None:
    text = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-z0-9-]+)==\S+", text, re.MULTILINE)
    assert len(pinned) > 30
    assert text.count("--hash=sha256:") >= len(pinned)
    assert "://" not in text
