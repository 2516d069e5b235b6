"""Read the data files of this folder: for each requirement a mistake in the product, and the test that sees it.

An entry of `s0.toml`, `s1.toml`, ..., `c.toml`:

    [[mutation]]
    requirement = "S0.29"            # or a list of numbers, all of which the test bears
    name = "acknowledges-before-the-sync"
    file = "src/antiphon/replication/follower.py"
    find = '''text that occurs exactly once in the file'''
    replace = '''text that stands there after the mistake'''
    test = "tests/seeds/test_s0_oxia.py::test_s0_29_..."

A mistake of several edits has `edits = [{file = ..., find = ..., replace = ...}, ...]` in place of the three keys.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent

# How many statements each document has; "C" are the conflicts between the documents.
FAMILIES: Mapping[str, int] = {"S0": 38, "S1": 38, "S2": 18, "S3": 32, "S4": 29, "C": 14}


@dataclass(frozen=True, slots=True)
class Edit:
    """One replacement in one file of the product; `file` is relative to the root of the repository."""

    file: str
    find: str
    replace: str

    def occurrences(self, root: Path) -> int:
        """How often the text to replace stands in the file (must be 1)."""
        path = root / self.file
        return path.read_text(encoding="utf-8").count(self.find) if path.is_file() else 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mistake, the requirements that it breaks, and the test (a pytest node id) that must fail."""

    requirements: tuple[str, ...]
    name: str
    edits: tuple[Edit, ...]
    test: str

    @property
    def test_name(self) -> str:
        """The function's name, without its file and the parameters' id."""
        return self.test.partition("::")[2].partition("[")[0]


def numbers_of(family: str) -> list[str]:
    """The numbers of a document's statements: S0.1 to S0.38, C1 to C14."""
    dot = "" if family == "C" else "."
    return [f"{family}{dot}{number}" for number in range(1, FAMILIES[family] + 1)]


def numbers_in(test_name: str) -> set[str]:
    """The requirement numbers that a test's name bears: `test_s0_14_c8_...` bears S0.14 and C8."""
    found = re.findall(r"(?<=_)(s[0-4]_|c)(\d+)(?=_|$)", test_name)
    return {f"{family.upper().replace('_', '.')}{int(number)}" for family, number in found}


def read_mutations(folder: Path = FOLDER) -> list[Mutation]:
    """All entries, in the order of the documents. Raises ValueError for an entry that is not as described above."""
    found: list[Mutation] = []
    for family in FAMILIES:
        path = folder / f"{family.lower()}.toml"
        if path.exists():
            found += _entries(path, tomllib.loads(path.read_text(encoding="utf-8")))
    return found


def _entries(path: Path, table: Mapping[str, Any]) -> Iterator[Mutation]:
    for entry in table.get("mutation", []):
        try:
            numbers = entry["requirement"]
            edits = entry.get("edits") or [{key: entry[key] for key in ("file", "find", "replace")}]
            yield Mutation(
                requirements=(numbers,) if isinstance(numbers, str) else tuple(numbers),
                name=entry["name"],
                edits=tuple(Edit(**edit) for edit in edits),
                test=entry["test"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.name}: {entry.get('name', entry)}: {error}") from error
