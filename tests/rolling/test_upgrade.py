"""Nodes of an earlier commit of this repository are upgraded under load; `make upgrade` does more, and takes longer."""

from pathlib import Path

import pytest

from tests.packaging.environments import bare, build
from tests.rolling.upgrade import OLD, Upgrade, Version, no_history, old_wheel

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.packaging, pytest.mark.timeout(600)]


@pytest.mark.skipif(bool(no_history(OLD)), reason=no_history(OLD))
def test_nodes_of_an_earlier_version_are_upgraded_under_load(tmp_path: Path) -> None:
    old = Version("old", bare(tmp_path / "old", old_wheel(OLD, tmp_path / "old-build")))
    new = Version("new", bare(tmp_path / "new", build("wheel", tmp_path / "new-wheel")))
    upgrade = Upgrade(tmp_path, old, new)
    try:
        upgrade.run_in_short()
    finally:
        new.run("down", "--dir", str(upgrade.dir), code=None)


def test_where_there_is_no_history_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "unshallow" in no_history("0" * 40) or "no history" in no_history("0" * 40)
    monkeypatch.setattr("tests.rolling.upgrade.ROOT", tmp_path)
    assert "no clone" in no_history(OLD)
