"""`antiphon ...` as a person types it, each in a process of its own that need not import the program first.

They are forked (`tests/forks.py`): same words, same exit code, same output, another environment.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.forks import FORKS, become


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
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["antiphon", *words]
    from antiphon.cli.main import main

    main()
