"""`antiphon` for scripts of a shell: a file that scripts find by its name, and which need not import the program.

The file is a small program that hands its words, its environment, its folder and its standard files to this process. This
process forks the command (`tests/forks.py`), passes on the signals that the small program gets, and tells it the exit code.
"""

import os
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, Final, Self

from tests.cli.shell import run_words
from tests.forks import FORKS, Handed, become

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ASK: Final = """
import os, signal, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({place!r})
pairs = [name + b"=" + value for name, value in os.environb.items()]
words = [os.fsencode(one) for one in (os.getcwd(), str(len(pairs)))]
said = b"\\0".join([*words, *pairs, *map(os.fsencode, sys.argv[1:])])
socket.send_fds(asked, [len(said).to_bytes(4, "big")], [0, 1, 2])
asked.sendall(said)
for number in {signals!r}:
    signal.signal(number, lambda number, _: asked.sendall(bytes([number])))
told = asked.recv(1)
os._exit(told[0] if told else 255)
"""


class AntiphonScript:
    """`antiphon`, as a file in a folder. A context: commands that still run at its end are killed."""

    def __init__(self, folder: Path) -> None:
        self._place = tempfile.mkdtemp(prefix="asked-")  # a socket's name may not be long
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{self._place}/socket")
        self._listener.listen(64)
        self._running: set[Any] = set()
        folder.mkdir(parents=True, exist_ok=True)
        asks = folder / "ask.py"
        numbers = tuple(map(int, _SIGNALS))
        asks.write_text(_ASK.format(place=f"{self._place}/socket", signals=numbers))
        self.file = folder / "antiphon"
        self.file.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {asks} "$@"\n')
        self.file.chmod(0o700)
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for process in list(self._running):
            process.kill()
        os.unlink(f"{self._place}/socket")
        os.rmdir(self._place)

    def _serve(self) -> None:
        while True:
            try:
                asked, _ = self._listener.accept()
            except OSError:
                return
            Thread(target=self._answer, args=(asked,), daemon=True).start()

    def _answer(self, asked: socket.socket) -> None:
        with asked:
            header, files, _, _ = socket.recv_fds(asked, 4, 3)
            left = int.from_bytes(header, "big")
            said = b""
            while left > len(said):
                said += asked.recv(left - len(said))
            folder, count, *rest = map(os.fsdecode, said.split(b"\0"))
            pairs, words = rest[: int(count)], rest[int(count) :]
            environment = dict(one.split("=", 1) for one in pairs)
            process = FORKS.Process(target=_command, args=(words, environment, folder, *map(Handed, files)))
            process.start()
            for file in files:
                os.close(file)
            self._running.add(process)
            Thread(target=self._pass_on, args=(asked, process), daemon=True).start()
            process.join()
            self._running.discard(process)
            code = process.exitcode or 0
            with suppress(OSError):
                asked.sendall(bytes([code if code >= 0 else 128 - code]))
                asked.shutdown(socket.SHUT_RDWR)

    def _pass_on(self, asked: socket.socket, process: Any) -> None:
        """Signals; a small program that was killed takes its command with it."""
        with suppress(OSError):
            while numbers := asked.recv(16):
                for number in numbers:
                    os.kill(process.pid, number)
        if process in self._running:
            process.kill()


def _command(
    words: list[str], environment: dict[str, str], folder: str, stdin: int, stdout: int, stderr: int
) -> None:
    os.chdir(folder)
    become(environment, stdin, stdout, stderr)
    for number in (stdin, stdout, stderr):
        os.close(number)
    run_words(words)
