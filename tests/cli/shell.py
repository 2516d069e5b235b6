"""`antiphon ...` as a person types it, each in a process of its own that need not import the program first.

They are forked (`tests/forks.py`): same words, same exit code, same output, another environment.
"""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.forks import FORKS, Handed, become


def antiphon(
    *words: str, environment: dict[str, str] | None = None, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; raises `subprocess.TimeoutExpired` and kills it if that takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(stdin)
        process = FORKS.Process(
            target=_command, args=(words, dict(os.environ if environment is None else environment), files)
        )
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout_s, files[1].read_text(), files[2].read_text())
        out, err = (file.read_text() for file in files[1:])
        return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _command(words: tuple[str, ...], environment: dict[str, str], files: list[Path]) -> None:
    """What the forked process does: become the command, as far as it or its children can tell."""
    flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT)
    become(environment, *(os.open(file, flag, 0o600) for file, flag in zip(files, flags, strict=True)))
    run_words(words)


def run_words(words: Sequence[str]) -> None:
    """In a forked process: be the command that has these words."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["antiphon", *words]
    from antiphon.cli.main import main

    main()


class Terminal:
    """`antiphon ...` in a terminal of its own; `shown` is what it wrote last, from the top of the screen on.

    A context; the process is killed at its end if it still runs.
    """

    def __init__(self, *words: str, environment: dict[str, str], columns: int = 80, lines: int = 24) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.settings = termios.tcgetattr(theirs)
        self.written = ""
        self.process = FORKS.Process(target=_in_terminal, args=(words, environment, Handed(theirs)))
        self.process.start()
        self._theirs = theirs  # open, so that settings can be looked at afterwards

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()
        os.close(self._ours)
        os.close(self._theirs)

    @property
    def shown(self) -> str:
        """Without what is written for the terminal only."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written.rpartition("\x1b[H")[2])

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def until(self, wanted: str, timeout_s: float = 20) -> str:
        """What is shown once that is part of it; fails the test where that takes too long."""
        deadline_s = time.monotonic() + timeout_s
        while wanted not in self.shown or not self.written.endswith("\x1b[J"):
            assert time.monotonic() < deadline_s, f"no {wanted!r} in\n{self.shown}"
            self._read(0.1)
        return self.shown

    def until_written(self, wanted: str, timeout_s: float = 20) -> str:
        """All that was written, once `wanted` is part of it: for commands that do not draw a screen."""
        deadline_s = time.monotonic() + timeout_s
        while wanted not in self.written:
            assert time.monotonic() < deadline_s, f"no {wanted!r} in\n{self.written}"
            self._read(0.1)
        return self.written

    def ended(self, timeout_s: float = 5) -> int | None:
        """The exit code."""
        deadline_s = time.monotonic() + timeout_s
        while self.process.exitcode is None and time.monotonic() < deadline_s:
            self._read(0.05)
        self._read(0)
        return self.process.exitcode

    def settings_now(self) -> list[Any]:
        """Of the terminal."""
        return termios.tcgetattr(self._theirs)

    def _read(self, timeout_s: float) -> None:
        if select.select([self._ours], [], [], timeout_s)[0]:
            self.written += os.read(self._ours, 1 << 16).decode("utf-8", "replace")


def _in_terminal(words: tuple[str, ...], environment: dict[str, str], terminal: int) -> None:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    size_of_another = {
        "LINES",
        "COLUMNS",
    }  # of the terminal that runs the tests; it would go before the one of this
    kept = {name: value for name, value in environment.items() if name not in size_of_another}
    become({"TERM": "xterm", **kept}, terminal, terminal, terminal)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["antiphon", *words]
    from antiphon.cli.main import main

    main()
