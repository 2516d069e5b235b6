"""Where the tests of backups put them."""

from pathlib import Path

import pytest

from antiphon.backup.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(str(tmp_path / "place"))
