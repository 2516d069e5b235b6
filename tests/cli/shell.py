"""`antiphon ...` as a person types it, each in a process of its own that need not import the program first.

Most of the life of a short command is imports, and the tests run a hundred of them. So a server that has imported the
command line forks the processes: same words, same exit code, same output, another environment.
"""

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Final

_FORKS: Final = get_context("forkserver")
_FORKS.set_forkserver_preload(["antiphon.cli.main", "antiphon.client.sync", "tests.cli.shell"])


def antiphon(
    *words: str, environment: dict[str, str] | None = None, stdin: str = "", timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end; raises `subprocess.TimeoutExpired` and kills it if that takes too long."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("in", "out", "err")]
        files[0].write_text(stdin)
        process = _FORKS.Process(
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
    for number, (file, flags) in enumerate(
        zip(files, (os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_WRONLY | os.O_CREAT), strict=True)
    ):
        os.dup2(os.open(file, flags, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["antiphon", *words]
    from antiphon.cli.main import main

    main()
