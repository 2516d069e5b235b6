"""The node's own log: JSON lines with facts, from its level on, and harmless when it cannot be written."""

import json
from pathlib import Path

import pytest
import structlog

from antiphon.node import logs


@pytest.fixture(autouse=True)
def _restore() -> None:
    structlog.reset_defaults()


def test_lines_are_json_with_time_level_event_and_facts(tmp_path: Path) -> None:
    file = logs.open_log(tmp_path, "info", 3)
    log = structlog.get_logger().bind(shard=7)
    log.info("something_happened", at=(1, 2), path=Path("x"))
    log.debug("not_at_this_level")
    try:
        raise ValueError("the cause")
    except ValueError as error:
        log.error("it_failed", exc_info=error)
    file.close()
    log.info("after_the_end")  # lost, and nothing else
    first, second, third = map(json.loads, (tmp_path / logs.LOG_FILE).read_text().splitlines())
    assert (first["event"], first["node"]) == ("log_opened", 3)
    assert (second["shard"], second["at"], second["path"], second["level"]) == (7, [1, 2], "x", "info")
    assert "the cause" in third["exception"]
    assert second["timestamp"].endswith("Z")
    structlog.reset_defaults()


def test_a_log_that_has_grown_is_put_aside_at_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 10)
    (tmp_path / logs.LOG_FILE).write_text("x" * 11)
    logs.open_log(tmp_path, "warning", 0).close()
    assert (tmp_path / "node.log.1").read_text() == "x" * 11
    structlog.reset_defaults()
