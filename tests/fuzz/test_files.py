"""A short run of targets: What is read from disks."""

from pathlib import Path

import pytest

from tests.fuzz.short_run import MARKS, finds_nothing, in_modules

pytestmark = MARKS
NAMES = in_modules("disks", "states", "jobs", "settings")


@pytest.mark.parametrize("name", NAMES)
def test_kept_and_fresh_inputs_find_nothing(name: str, tmp_path: Path) -> None:
    finds_nothing(name, tmp_path)
