"""A target for a few seconds: kept inputs, and fresh ones from a seed that is printed. All of them take a minute.

`FUZZ_SEED` repeats a run, `FUZZ_TEST_S` makes it longer. `make fuzz` goes on for half an hour, led by coverage.
"""

import os
from pathlib import Path
from random import SystemRandom
from typing import Final

import pytest

from tests.fuzz.engine import run_for
from tests.fuzz.registry import TARGETS, make
from tests.fuzz.target import name_of

SEED: Final = int(os.environ.get("FUZZ_SEED", SystemRandom().randrange(1, 1 << 30)))
SECONDS: Final = float(os.environ.get("FUZZ_TEST_S", "2.3"))
MARKS: Final = [
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning"),
]


def in_modules(*modules: str) -> list[str]:
    """The targets of these modules of `targets/`."""
    return [name for name, place in TARGETS.items() if place.partition(":")[0] in modules]


def finds_nothing(name: str, folder: Path) -> None:
    """Fail where it finds anything; the inputs go to `folder`, to be run again."""
    print(f"FUZZ_SEED={SEED}")
    target = make(name)
    try:
        ran = run_for(target, name, SEED, SECONDS)
    finally:
        target.close()
    for finding in ran.findings:
        file = folder / name / name_of(finding.data)
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(finding.data)
        print(f'make fuzz ARGS="--repeat {file}"\n{finding.text()}')
    assert not ran.findings
    assert ran.inputs > 3
