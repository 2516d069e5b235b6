"""Files and folders that nobody else may look into."""

import stat
from pathlib import Path

import pytest

from antiphon.security.private_files import private_folder


def test_a_folder_is_private_and_one_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    (tmp_path / "open").mkdir(mode=0o755)
    private_folder(tmp_path / "open")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o755


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="this system has no /proc")
def test_where_no_folder_can_be_made_that_is_said() -> None:
    with pytest.raises(PermissionError, match="no folder can be made there"):
        private_folder(Path("/proc/antiphon/node-0"))
