"""A target for a few seconds: kept inputs, and changed ones, the same in each run. All of them take a minute.

What judges a change of the product must not depend on luck, so inputs that nobody has tried yet are the work of
`make fuzz`: half an hour, led by coverage, from a new seed each time. Here `FUZZ_SEED` tries others, `FUZZ_TEST_S` more.
"""

import os
from pathlib import Path
from typing import Final

import pytest

from tests.fuzz.engine import run_for
from tests.fuzz.registry import TARGETS, make
from tests.fuzz.target import name_of

SEED: Final = int(os.environ.get("FUZZ_SEED", "1"))
SECONDS: Final = float(os.environ.get("FUZZ_TEST_S", "1.5"))
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
