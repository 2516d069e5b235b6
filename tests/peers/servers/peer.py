"""What a peer is to the harness, and the cluster of three nodes that it starts."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from antiphon.tools.free_ports import bind_free

KAFKA: Final = "kafka"  # the protocols that rows speak
TABLE: Final = "table"
NODES: Final = 3
READY_S: Final = 90.0
STOP_S: Final = 30.0


class UnavailableError(Exception):
    """A peer cannot be had here; the text says why."""


class Running(Protocol):
    """Three nodes that answer."""

    addresses: dict[str, str]

    @property
    def pids(self) -> Sequence[int]:
        """The servers' processes."""

    def stop(self) -> None:
        """Stop the nodes and remove what they wrote."""


class Peer(Protocol):
    """Something to measure.

    Attributes:
        name: how `--peers` calls it.
        title: how tables call it.
        settings: what a reader must know of how it runs.
        clients: the command of the client, by the protocol of a row; a row whose protocol is absent is left out.
        lacks: kinds of work that its client has no operation for, with the reason.
    """

    name: str
    title: str
    settings: str
    clients: dict[str, tuple[str, ...]]
    lacks: dict[str, str]

    def get(self, cache: Path) -> None:
        """Have its programs ready. Raises UnavailableError."""

    def start(self) -> Running:
        """Start three nodes, and wait until they take work. Raises UnavailableError."""


class Processes:
    """Server processes of one peer in a temporary directory of their own."""

    def __init__(self, name: str) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix=f"antiphon-peers-{name}-"))
        self.addresses: dict[str, str] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The servers' processes."""
        return [process.pid for process in self._processes]

    def start(self, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        """One more server; what it says goes to a file in the directory."""
        said = (self.dir / f"{len(self._processes)}.log").open("wb")
        with said:
            self._processes.append(
                subprocess.Popen(
                    list(command), stdout=said, stderr=said, stdin=subprocess.DEVNULL, cwd=self.dir, env=env
                )
            )

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for an answer. Raises UnavailableError with a server's last words."""
        deadline = time.monotonic() + READY_S
        while not ready():
            ended = [number for number, one in enumerate(self._processes) if one.poll() is not None]
            if ended or time.monotonic() > deadline:
                number = ended[0] if ended else 0
                words = (self.dir / f"{number}.log").read_text(errors="replace")[-600:].strip()
                why = "ended" if ended else f"was not ready within {READY_S:.0f} s"
                self.stop()
                raise UnavailableError(f"node {number} {why}: {words}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the servers, and remove the directory."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            bind_free(one, "127.0.0.1")
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def listening(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


def run_tool(command: Sequence[str], where: Path, seconds: float = 1800.0) -> str:
    """Run a tool that gets or builds a peer. Raises UnavailableError with its last words."""
    if shutil.which(command[0]) is None:
        raise UnavailableError(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            list(command),
            cwd=where,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=os.environ | {"GOFLAGS": "-mod=readonly"},
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{command[0]} did not end within {seconds:.0f} s") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise UnavailableError(f"{' '.join(command[:3])} failed: {' '.join(words)}")
    return done.stdout
