"""A short run of targets: Messages, batches, the archive, secrets and rows of tables, without a node around them."""

from pathlib import Path

import pytest

from tests.fuzz.short_run import MARKS, finds_nothing, in_modules

pytestmark = MARKS
NAMES = in_modules("messages", "batches", "archived", "secrets", "tables", "oxia")


@pytest.mark.parametrize("name", NAMES)
def test_kept_and_fresh_inputs_find_nothing(name: str, tmp_path: Path) -> None:
    finds_nothing(name, tmp_path)
