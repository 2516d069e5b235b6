"""Structured logs: one JSON object a line in DIR/node.log, with time, level, event and facts.

Events are snake_case names that do not change, so that a log can be searched by them; the facts are fields, never text.

The process rotates the file itself: node.log becomes node.log.1, that becomes node.log.2, and so on. Somebody else may
rotate it too: where the name leads to another file, or to none, the log goes on in a file of that name within a second.

What libraries print beside that (a traceback at the end, say) goes to DIR/node.out, which is bounded too (`open_output`).
"""

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Any, Final, TextIO, cast

import msgspec
import structlog

from antiphon import system
from antiphon.node.config import LogFiles

LOG_FILE: Final = "node.log"
OUT_FILE: Final = "node.out"
OUT_BYTES_MAX: Final = 1024 * 1024  # of node.out, and of node.out.1
STANDARD: Final = (1, 2)  # output and errors of this process
LOOK_S: Final = 1.0  # between two looks at whether the name still leads to the open file


class LogFile:
    """A log file that never fails its writer: what cannot be written is lost, and counted, but nothing else stops.

    Lines may come from any thread. Attributes:
        lost: lines that were not written.
    """

    def __init__(self, path: Path, settings: LogFiles) -> None:
        self.lost = 0
        self._path = path
        self._settings = settings
        self._lock = threading.Lock()
        self._handle = -1
        self._size = 0
        self._looked_s = -LOOK_S
        self._is_closed = False

    def write(self, text: str) -> int:
        """Write whole lines; returns how much of `text` was."""
        data = text.encode("utf-8", "backslashreplace")
        with self._lock:
            try:
                self._choose_file(len(data))
                written = os.write(self._handle, data)
                if written < len(data):  # half a line would spoil the next one
                    os.ftruncate(self._handle, self._size)
                    self.lost += 1
                    return 0
            except OSError:  # no room, or closed at the end of the process
                self.lost += 1
                return 0
            self._size += written
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """What comes later is lost."""
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
            self._handle, self._is_closed = -1, True

    def _open(self) -> None:
        """Go on in the file of that name, and let go of the one before."""
        handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        before, self._handle = self._handle, handle
        self._size = os.fstat(handle).st_size
        if before >= 0:
            os.close(before)

    def _choose_file(self, more_bytes: int) -> None:
        if self._is_closed:
            return
        now_s = system.monotonic_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        if self._size and self._size + more_bytes > self._settings.bytes:
            # Where that is not possible the file grows on, and the next line tries again.
            with contextlib.suppress(OSError):
                self._rotate()

    def _look(self) -> None:
        """Did somebody else rotate the file, or cut it? Could it not be opened before?"""
        try:
            here, there = os.fstat(self._handle), os.stat(self._path)
            self._size = here.st_size
            is_same = (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
        except OSError:
            is_same = False
        if not is_same:
            with contextlib.suppress(OSError):
                self._open()

    def _rotate(self) -> None:
        kept = self._settings.files - 1
        for number in range(kept, 0, -1):
            source = self._path if number == 1 else self._numbered(number - 1)
            with contextlib.suppress(FileNotFoundError):
                os.replace(source, self._numbered(number))
        if not kept:
            os.remove(self._path)
        self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def open_output(directory: Path, handles: tuple[int, ...] = STANDARD) -> None:
    """From now on what this process prints goes to DIR/node.out, behind what is there. Raises OSError."""
    handle = os.open(directory / OUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for number in handles:
        os.dup2(handle, number)
    os.close(handle)


def bound_output(directory: Path, handles: tuple[int, ...] = STANDARD) -> None:
    """Where node.out has grown too large, put it aside as node.out.1, and go on in a new one.

    Nothing is done where this process prints elsewhere, such as on a terminal. What cannot be done now is done later.
    """
    path = directory / OUT_FILE
    with contextlib.suppress(OSError):
        here, there = os.fstat(handles[-1]), os.stat(path)
        is_ours = (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
        if is_ours and there.st_size > OUT_BYTES_MAX:
            os.replace(path, path.with_name(f"{OUT_FILE}.1"))
            open_output(directory, handles)


_file: LogFile | None = None  # of this process


def lost_lines() -> int:
    """Lines of this process's log that could not be written."""
    return 0 if _file is None else _file.lost


def _render(_logger: object, _name: str, event: Any) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()


def set_level(level: str) -> None:
    """From now on this process's log has lines from this level on, whoever writes them."""
    _level.lowest = getattr(logging, level.upper())


class _Level:
    lowest = logging.INFO


_level: Final = _Level()


def _drop_lower(_logger: object, name: str, event: Any) -> Any:
    """A logger that is bound keeps what it was bound with, so the level is looked at here."""
    if getattr(logging, name.upper(), logging.ERROR) < _level.lowest:
        raise structlog.DropEvent
    return event


def open_log(directory: Path, level: str, node_id: int, settings: LogFiles) -> LogFile:
    """Send this process's structured logs to DIR/node.log from `level` on. Returns the file, for the caller to close."""
    global _file  # noqa: PLW0603 - a process has one log, as structlog has one configuration
    file = _file = LogFile(directory / LOG_FILE, settings)
    structlog.configure(
        processors=[
            _drop_lower,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", file)),
        context_class=dict,
        cache_logger_on_first_use=False,
    )
    set_level(level)
    structlog.contextvars.clear_contextvars()
    structlog.get_logger().info("log_opened", node=node_id)
    return file
