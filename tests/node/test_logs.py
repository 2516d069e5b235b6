"""The node's own log: JSON lines with facts, from its level on, and harmless when it cannot be written."""

import json
import os
from pathlib import Path

import pytest
import structlog

from antiphon.node import logs
from antiphon.node.config import LogFiles


@pytest.fixture(autouse=True)
def _restore() -> None:
    structlog.reset_defaults()


def test_lines_are_json_with_time_level_event_and_facts(tmp_path: Path) -> None:
    file = logs.open_log(tmp_path, "info", 3, LogFiles())
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


SMALL = LogFiles(bytes=4096, files=3)


def lines_of(directory: Path) -> list[str]:
    """What is in all files, the oldest first."""
    names = sorted((path.name for path in directory.iterdir()), reverse=True)
    return [line for name in names for line in (directory / name).read_text().splitlines()]


def test_the_log_is_rotated_while_the_node_runs_and_old_files_go(tmp_path: Path) -> None:
    file = logs.LogFile(tmp_path / logs.LOG_FILE, SMALL)
    for number in range(200):
        file.write(f"{number:0100d}\n")
    file.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["node.log", "node.log.1", "node.log.2"]
    assert all((tmp_path / name).stat().st_size <= SMALL.bytes for name in names)
    kept = [int(line) for line in lines_of(tmp_path)]
    assert kept == list(range(kept[0], 200)), "the newest lines, each once and in order"
    assert len(kept) > 2 * SMALL.bytes // 101 - 2


def test_one_file_is_begun_anew(tmp_path: Path) -> None:
    file = logs.LogFile(tmp_path / logs.LOG_FILE, LogFiles(bytes=4096, files=1))
    for number in range(100):
        file.write(f"{number:0100d}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["node.log"]
    assert int(lines_of(tmp_path)[-1]) == 99
    file.close()


@pytest.mark.parametrize("how", ["renamed", "removed", "cut"])
def test_somebody_else_may_rotate_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(logs, "LOOK_S", 0.0)
    path = tmp_path / logs.LOG_FILE
    file = logs.LogFile(path, SMALL)
    file.write("before\n")
    if how == "renamed":
        path.rename(tmp_path / "node.log-20260101")
    elif how == "removed":
        path.unlink()
    else:
        path.write_bytes(b"")
    file.write("after\n")
    assert path.read_text() == "after\n"
    file.close()


def test_what_cannot_be_written_is_counted_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_S", 0.0)
    file = logs.open_log(tmp_path / "not there", "info", 0, SMALL)
    assert logs.lost_lines() == file.lost == 1
    (tmp_path / "not there").mkdir()
    structlog.get_logger().info("there")
    assert logs.lost_lines() == 1
    assert "there" in (tmp_path / "not there" / logs.LOG_FILE).read_text()
    file.close()
    structlog.reset_defaults()


def test_what_a_process_prints_is_kept_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "OUT_BYTES_MAX", 1000)
    output = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in range(40):
            if number % 5 == 0:  # a start
                logs.open_output(tmp_path, (output,))
            os.write(output, b"%03d " % number * 50)
            logs.bound_output(tmp_path, (output,))
    finally:
        os.close(output)
    kept = sorted(tmp_path.iterdir())
    assert [file.name for file in kept] == [logs.OUT_FILE, f"{logs.OUT_FILE}.1"]
    assert sum(file.stat().st_size for file in kept) <= 2 * 1200
    assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
    assert "039" in "".join(file.read_text() for file in kept)


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "OUT_BYTES_MAX", 10)
    (tmp_path / logs.OUT_FILE).write_text("of an earlier start, and long")
    other = os.open(tmp_path / "elsewhere", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        logs.bound_output(tmp_path, (other,))
    finally:
        os.close(other)
    assert {file.name for file in tmp_path.iterdir()} == {logs.OUT_FILE, "elsewhere"}
