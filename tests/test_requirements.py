"""Every statement of the five documents has a test that bears its number."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
STATEMENTS = {"s0": 38, "s1": 38, "s2": 18, "s3": 32, "s4": 29}
CONFLICTS = 14


def _shown() -> set[str]:
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")):
            for family, number in re.findall(r"(?<=_)(s[0-4]_|c)(\d+)(?=_)", name):
                found.add(f"{family.rstrip('_')}.{int(number)}")
    return found


@pytest.mark.parametrize("family", STATEMENTS)
def test_every_statement_has_its_test(family: str) -> None:
    wanted = {f"{family}.{number}" for number in range(1, STATEMENTS[family] + 1)}
    assert not wanted - _shown()


def test_every_conflict_between_the_documents_has_its_test() -> None:
    assert not {f"c.{number}" for number in range(1, CONFLICTS + 1)} - _shown()
