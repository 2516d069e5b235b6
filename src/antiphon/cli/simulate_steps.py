"""`antiphon simulate --script FILE --step`: a scenario at the reader's own speed, with the cluster drawn after each step."""

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from antiphon.simulation.script_language import Step
    from antiphon.simulation.written_script import Script

INDENT = " " * 8
KEYS = "Enter: next step · c: on to the end · q: quit"
END_OF_FILE = (b"", b"\x04")


class StoppedError(Exception):
    """The reader has seen enough."""


class Steps:
    """Shows a scenario step by step; waits for a key after each where a person sits at a terminal."""

    def __init__(self, script: "Path | Script") -> None:
        self._lines = script.read_text().splitlines()
        self._told = 0  # lines of the script
        self._waits = sys.stdin.isatty() and sys.stdout.isatty()

    @contextmanager
    def reading_keys(self) -> Iterator[None]:
        """While this is open, a key is read without Enter, and what is typed early is not lost."""
        if not self._waits:
            yield
            return
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        tty.setcbreak(terminal, termios.TCSADRAIN)
        try:
            yield
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)

    def say(self, text: str) -> None:
        """A step and what it caused, behind the comments that the script has before it."""
        number = int(text.split(maxsplit=1)[0])
        for line in self._lines[self._told : number - 1]:
            if line.startswith("#"):
                typer.secho(line, dim=True)
        self._told = number
        typer.secho(text, bold=True)

    def show(self, step: "Step", picture: list[str]) -> None:
        """The cluster after a step, if that may have changed it. Raises StoppedError."""
        if step.command == "expect":
            return
        for line in picture:
            typer.echo(INDENT + line)
        if picture and self._waits:
            self._wait()

    def _wait(self) -> None:
        typer.secho(KEYS, dim=True, nl=False)
        key = os.read(sys.stdin.fileno(), 1).lower()
        typer.echo("\r\x1b[K", nl=False)
        if key == b"q" or key in END_OF_FILE:
            raise StoppedError
        self._waits = key != b"c"
