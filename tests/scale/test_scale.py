"""Each thing that grows is measured, in a small size, on real nodes, and the picture is drawn."""

from pathlib import Path

import pytest

from tests.scale import axes, plot, run
from tests.scale.axes import AXES

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(300)]


def test_all_of_it_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scale.resting.RESTS_S", 0.2)
    monkeypatch.setattr("tests.scale.shards.SETTLES_S", 0.1)
    small = {name: axis._replace(sizes=axis.short) for name, axis in AXES.items()}
    for place in (axes, plot, run):
        monkeypatch.setattr(place, "AXES", small)
    found = run.measure(list(small), 0.3, 1 << 40, tmp_path)
    assert {name: [row["size"] for row in rows] for name, rows in found.items()} == {
        name: list(axis.sizes) for name, axis in small.items()
    }
    for name, rows in found.items():
        for row in rows:
            assert all(row[drawn] > 0 for drawn in small[name].drawn if drawn != "idle_cpu_percent"), (
                name,
                row,
            )
    assert (tmp_path / "scale.png").read_bytes().startswith(b"\x89PNG")
    assert "| shards | made_s |" in (tmp_path / "scale.md").read_text()
