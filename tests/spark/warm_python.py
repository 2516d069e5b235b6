"""A Python for Spark whose processes need not import anything first: a server that has done so forks them.

Spark starts Python processes by the hundred here: daemons for each kind of planning, runners of streaming sources, and
workers, many of them only to be killed. Imports take most of the life of such a process. Spark is told that its Python is a
script (`warm_python_call.py`), which hands its words, environment and streams to the server and lives as long as the fork.
The demo has the plain Python, as users do.
"""

import fcntl
import gc
import importlib
import marshal
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

CALL = Path(__file__).parent / "warm_python_call.py"
# What the processes import; none of these may start a thread. `pyspark.daemon` and the runner are run as programs, so they
# are not among them, but what they import is.
IMPORTED = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.analyze_udtf",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.data_source_pushdown_filters",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "antiphon.spark.source",
    "antiphon.spark.read.log_reader",
    "antiphon.spark.read.snapshot",
    "antiphon.spark.write.sink",
    "antiphon.spark.write.topic_rows",
)


@contextmanager
def warm_python(folder: Path) -> Iterator[str]:
    """A path to give Spark as its Python, for as long as the context lasts; `folder` is for the script and the socket."""
    address = folder / "server"
    script = folder / "python"
    words = (sys.executable, "-IS", str(CALL), str(address))
    script.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    script.chmod(0o755)
    server = subprocess.Popen(
        (sys.executable, "-m", "tests.spark.warm_python", str(address)),
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    with server, server.stdin, server.stdout:
        assert server.stdout.readline() == b"ready\n"
        yield str(script)


class Call(NamedTuple):
    """What a caller wants run, as `python -m` does: in a process that was forked for it."""

    connection: socket.socket
    streams: tuple[int, ...]
    words: list[str]
    environment: dict[str, str]
    folder: str

    @classmethod
    def receive(cls, connection: socket.socket) -> "Call":
        """Read one from the caller."""
        size, streams, _, _ = socket.recv_fds(connection, 4, 3)
        with connection.makefile("rb") as file:
            words, environment, folder = marshal.loads(file.read(int.from_bytes(size, "big")))
        return cls(connection, tuple(streams), words, environment, folder)

    def answer(self, code: int) -> None:
        """Tell the caller how its process ended."""
        try:
            self.connection.sendall((code & 0xFF).to_bytes(1, "big"))
        except OSError:
            return  # it was killed
        finally:
            self.connection.close()

    def run(self) -> None:
        """Become the process; where the caller is killed, so is this one."""
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        fcntl.fcntl(self.connection, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(self.connection, fcntl.F_SETSIG, signal.SIGTERM)
        fcntl.fcntl(self.connection, fcntl.F_SETFL, os.O_ASYNC)
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        paths = self.environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        sys.argv = self.words
        runpy.run_module(self.words[0], run_name="__main__", alter_sys=True)


def serve(address: str) -> Call | None:
    """Fork a process for each call until the input ends; returns what it is to do in each of them, None in the server."""
    calls: dict[int, Call] = {}
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
        listener.bind(address)
        listener.listen(128)
        print("ready", flush=True)
        for watched in (sys.stdin, listener):
            selector.register(watched, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is not listener:
                    _, status = os.waitpid(key.data, 0)
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    calls.pop(key.data).answer(os.waitstatus_to_exitcode(status))
                    continue
                call = Call.receive(listener.accept()[0])
                forked = os.fork()
                if not forked:
                    return call
                for stream in call.streams:
                    os.close(stream)
                calls[forked] = call
                selector.register(os.pidfd_open(forked), selectors.EVENT_READ, forked)


def main() -> None:
    """Import, then serve."""
    for name in IMPORTED:
        importlib.import_module(name)
    from antiphon.records.arrow_encode import compile_kernels

    compile_kernels()
    gc.freeze()
    call = serve(sys.argv[1])
    if call is not None:
        call.run()


if __name__ == "__main__":
    main()
