"""The query of a mirror, without Spark: what it leaves behind where it cannot be started."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.lake.mirror import Mirror, Source
from antiphon.lake.query import MirrorQuery, TriggerOptions
from antiphon.lake.records import RowShape

if TYPE_CHECKING:
    from antiphon.lake.targets.target import Target


class NoSpark:
    @property
    def readStream(self) -> Any:  # noqa: N802 - Spark's name
        raise InvalidRequestError("no such option")


class Opened:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_mirror_that_cannot_be_started_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    target = Opened()
    query = MirrorQuery(cast("Mirror", None), None, owned=cast("Target", target))
    assert len(list(tmp_path.iterdir())) == 1
    source = Source("here:7400", "t", "id", is_table=False)
    with pytest.raises(InvalidRequestError, match="no such option"):
        query.start(cast("Any", NoSpark()), source, RowShape(is_table=False), TriggerOptions())
    assert not list(tmp_path.iterdir())
    assert target.closed
