"""A short run of targets: messages, batches, archive, secrets, rows of tables and groups, metrics; no node is there."""

from pathlib import Path

import pytest

from tests.fuzz.short_run import MARKS, finds_nothing, in_modules

pytestmark = MARKS
NAMES = in_modules("messages", "batches", "archived", "secrets", "tables", "groups", "oxia", "pushed")


@pytest.mark.parametrize("name", NAMES)
def test_kept_and_fresh_inputs_find_nothing(name: str, tmp_path: Path) -> None:
    finds_nothing(name, tmp_path)
