"""Targets of make that others call: names of before do what those of now do."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands(target: str) -> list[str]:
    """What make would run for a target. Nothing is run."""
    done = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("before", "now", "program"),
    [
        ("simulate-plants", "mutants", "antiphon simulate --catch"),
        ("simulate-mutants", "mutants", "antiphon simulate --catch"),
        ("plants-table", "mutants-table", "tests.simulation.mutants_table"),
    ],
)
def test_targets_of_before_go_on(before: str, now: str, program: str) -> None:
    assert commands(before) == commands(now)
    assert program in commands(before)[-1]
