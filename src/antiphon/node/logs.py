"""Structured logs: one JSON object a line in DIR/node.log, with time, level, event and facts.

Events are snake_case names that do not change, so that a log can be searched by them; the facts are fields, never text.
"""

import logging
from pathlib import Path
from typing import Any, TextIO, cast

import msgspec
import structlog

LOG_FILE = "node.log"
LOG_BYTES_MAX = 64 * 1024 * 1024  # at a start, a longer file is put aside as node.log.1


class _Lines:
    """A log file that never fails its writer: on a full disk lines are lost, and counted, but nothing else stops."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.lost = 0

    def write(self, text: str) -> int:
        try:
            return self._file.write(text)
        except (OSError, ValueError):  # no room, or closed at the end of the process
            self.lost += 1
            return 0

    def flush(self) -> None:
        try:
            self._file.flush()
        except (OSError, ValueError):
            self.lost += 1


def _render(_logger: object, _name: str, event: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def open_log(directory: Path, level: str, node_id: int) -> TextIO:
    """Send this process's structured logs to DIR/node.log from `level` on. Returns the file, for the caller to close."""
    path = directory / LOG_FILE
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_suffix(".log.1"))
    file = path.open("a", buffering=1)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Lines(file))),
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    structlog.get_logger().info("log_opened", node=node_id)
    return file
