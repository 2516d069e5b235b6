"""The terminal: a screen of its own while the command runs, keys as they are pressed, all as it was afterwards."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from antiphon.tools.top.layout import Line

ENTER: Final = "\x1b[?1049h\x1b[?25l"  # the other screen; no cursor
LEAVE: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"
STYLES: Final = {"title": "\x1b[1m", "head": "\x1b[7m", "bad": "\x1b[1;31m", "warn": "\x1b[33m"}
KEYS_READ: Final = 64


class Screen:
    """A context. `pressed` is called with each key, `changed` when the size of the terminal has changed.

    Keys need a terminal on stdin; without one only signals end the command. Everything runs on the event loop.
    """

    def __init__(self, pressed: Callable[[str], None], changed: Callable[[], None]) -> None:
        self._pressed = pressed
        self._changed = changed
        self._before: list[Any] | None = None
        self._has_colours = not os.environ.get("NO_COLOR")
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        self._enter()
        if sys.stdin.isatty():
            self._loop.add_reader(sys.stdin.fileno(), self._read)
        self._loop.add_signal_handler(signal.SIGWINCH, self._changed)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._pressed, "q")
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGWINCH, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(number)
        if sys.stdin.isatty():
            self._loop.remove_reader(sys.stdin.fileno())
        self._leave()

    def _enter(self) -> None:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())  # ctrl-C stays a signal
        self._write(ENTER)

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._write(LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None

    def _suspend(self) -> None:
        """Ctrl-Z: the shell gets its terminal as it was, and we get ours when we go on."""
        self._leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._enter()
        self._changed()

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), KEYS_READ)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._loop.remove_reader(sys.stdin.fileno())
            self._pressed("q")
        elif not data.startswith(b"\x1b"):  # arrows and the like mean nothing here
            for key in data.decode("latin-1"):
                self._pressed(key)

    @staticmethod
    def size() -> tuple[int, int]:
        """Columns and lines."""
        found = shutil.get_terminal_size((80, 24))
        return max(20, found.columns), max(4, found.lines)

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these from the top on; what was below them is wiped. One write, so that nothing flickers."""
        shown = [f"{self._styled(line)}\x1b[K" for line in lines]
        self._write("\x1b[H" + "\n".join(shown) + "\x1b[J")

    def _styled(self, line: Line) -> str:
        style = STYLES.get(line.style, "") if self._has_colours or line.style in {"title", "head"} else ""
        return f"{style}{line.text}\x1b[0m" if style else line.text

    @staticmethod
    def _write(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
