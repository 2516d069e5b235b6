"""A local cluster as an object: what the demo, the benchmarks and the tests start, hurt and stop.

It drives the same `antiphon up` and `antiphon node start` that a person types, as processes.

    with LocalCluster.start(nodes=3) as cluster:
        db = antiphon.connect(cluster.native)
        cluster.kill(1)          # SIGKILL
        cluster.start_node(1)    # back again, with its data
"""

import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from antiphon.client.local_folder import LISTENERS
from antiphon.errors import AntiphonError, InvalidRequestError, TimedOutError, UnavailableError
from antiphon.node.injected_faults import FAULTS_VARIABLE, inject, taken
from antiphon.tools.cluster_files import running_pid
from antiphon.tools.processes import send_signal

COMMAND = (sys.executable, "-m", "antiphon.cli.main")
TAKEN_TIMEOUT_S: Final = 20.0
LOOK_S: Final = 0.002  # between two looks at what a node says in a file


@dataclass
class RunningNode:
    """One node process; `pid` is the one of its last start."""

    id: int
    pid: int
    dir: Path
    native: str
    kafka: str
    http: str
    oxia: str = ""


def _announced(node: dict[str, Any]) -> RunningNode:
    """As `node_json` tells it."""
    return RunningNode(**{**node, "dir": Path(node["dir"])})


class LocalCluster:
    """Node processes of this machine; stops them, and removes its own temporary directory, at the end."""

    def __init__(
        self, process: subprocess.Popen[str], announcement: dict[str, Any], *, own_dir: bool
    ) -> None:
        self._process = process
        self._own_dir = own_dir
        self._hurtable = False
        self.cluster_id: str = announcement["cluster_id"]
        self.dir = Path(announcement["dir"])
        self.nodes = {node["id"]: _announced(node) for node in announcement["nodes"]}
        self.native = ",".join(node.native for node in self.nodes.values())
        self.kafka = ",".join(node.kafka for node in self.nodes.values())
        self.oxia = ",".join(node.oxia for node in self.nodes.values())
        self.http = ",".join(node.http for node in self.nodes.values())

    @classmethod
    def start(
        cls,
        nodes: int = 3,
        directory: Path | None = None,
        *,
        any_port: bool = True,
        options: tuple[str, ...] = (),
        timeout_s: float = 60.0,
        hurtable: bool = False,
    ) -> Self:
        """Start and wait until ready. Without `directory` a temporary one is made, and removed by `stop()`.

        The nodes of a `hurtable` cluster do as `hurt()` says.

        Raises AntiphonError with what `antiphon up` said when it cannot start.
        """
        own_dir = directory is None
        where = Path(tempfile.mkdtemp(prefix="antiphon-")) if directory is None else directory
        ports = tuple(f"--{name}-port=0" for name in LISTENERS) if any_port else ()
        count = () if (where / "cluster.json").exists() else ("--nodes", str(nodes))
        process = subprocess.Popen(
            (*COMMAND, "up", *count, "--dir", str(where), "--json", *ports, *options),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=_environment(hurtable),
        )
        try:
            line = _first_line(process, timeout_s)
        except BaseException:
            process.terminate()
            process.wait(20)
            _close_pipes(process)
            if own_dir:
                shutil.rmtree(where, ignore_errors=True)
            raise
        cluster = cls(process, json.loads(line), own_dir=own_dir)
        cluster._hurtable = hurtable
        return cluster

    def kill(self, node_id: int) -> None:
        """SIGKILL a node, as `kill -9` does."""
        os.kill(self.nodes[node_id].pid, signal.SIGKILL)

    def pause(self, node_id: int) -> None:
        """SIGSTOP a node: its connections stay open and silent."""
        os.kill(self.nodes[node_id].pid, signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """Let a paused node go on."""
        os.kill(self.nodes[node_id].pid, signal.SIGCONT)

    def hurt(
        self,
        node_id: int,
        *,
        cut: tuple[int, ...] = (),
        disk: str = "ok",
        listener: Mapping[str, Any] | None = None,
    ) -> str:
        """Cut a node off from others, take its disk away, or let its Kafka listener do wrong (`kafka/listener_faults.py`).

        Without arguments all is well again. Returns a mark for `until_taken`.
        """
        node = self.nodes[node_id]
        serial = inject(node.dir, cut=cut, disk=disk, listener=listener)
        send_signal(node.pid, signal.SIGUSR1)
        return serial

    def until_taken(self, node_id: int, serial: str) -> None:
        """Return when the node has taken over what `hurt` told it.

        Raises InvalidRequestError with the node's words if it refuses, UnavailableError if it ends meanwhile, TimedOutError.
        """
        node = self.nodes[node_id]
        deadline = time.monotonic() + TAKEN_TIMEOUT_S
        while True:
            mark, refusal = taken(node.dir)
            if mark == serial:
                if refusal:
                    raise InvalidRequestError(refusal)
                return
            if running_pid(node.dir) is None:
                raise UnavailableError(f"node {node_id} ended before it took over its faults: start it again")
            if time.monotonic() > deadline:
                raise TimedOutError(
                    f"node {node_id} did not take over its faults within {TAKEN_TIMEOUT_S:g} s: is it paused?"
                )
            time.sleep(LOOK_S)

    def is_running(self, node_id: int) -> bool:
        """Has the node a process, a paused one included?"""
        return running_pid(self.nodes[node_id].dir) is not None

    def start_node(self, node_id: int, timeout_s: float = 60.0) -> None:
        """Start a killed node again, where it was."""
        command = (*COMMAND, "node", "start", "--dir", str(self.nodes[node_id].dir), "--json")
        deadline = time.monotonic() + timeout_s
        while True:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
                env=_environment(self._hurtable),
            )
            if done.returncode == 0:
                break
            # The kernel may still hold the killed process or its ports for a moment; or somebody else has got them.
            may_pass = "running already" in done.stderr or os.strerror(errno.EADDRINUSE) in done.stderr
            if time.monotonic() > deadline or not may_pass:
                raise UnavailableError(f"node {node_id} did not start: {done.stderr.strip()}")
            time.sleep(0.05)
        self.nodes[node_id].pid = json.loads(done.stdout.splitlines()[-1])["pid"]

    def add_node(self, timeout_s: float = 60.0) -> int:
        """Start one more node; returns its id. It holds nothing yet."""
        command = (*COMMAND, "node", "add", "--dir", str(self.dir), "--json")
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise UnavailableError(f"no node was added: {done.stderr.strip()}")
        said = json.loads(done.stdout.splitlines()[-1])
        node = self.nodes[said["id"]] = _announced(said)
        return node.id

    def detach(self) -> None:
        """Let the cluster go on by itself; `antiphon down --dir DIR` stops it."""
        self._process.kill()
        self._process.wait()
        _close_pipes(self._process)

    def stop(self) -> None:
        """Stop every node cleanly. Harmless when done already."""
        for node in self.nodes.values():
            send_signal(node.pid, signal.SIGCONT)
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise TimedOutError(f"the cluster in {self.dir} did not stop within 30 s") from None
        finally:
            self._stop_left()
            _close_pipes(self._process)
            if self._own_dir:
                shutil.rmtree(self.dir, ignore_errors=True)

    def _stop_left(self) -> None:
        """Nodes that were started again after `antiphon up` had ended, for all of them had been killed."""
        if any(self.is_running(node_id) for node_id in self.nodes):
            words = (*COMMAND, "down", "--dir", str(self.dir))
            subprocess.run(words, capture_output=True, timeout=30, check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _first_line(process: subprocess.Popen[str], timeout_s: float) -> str:
    if process.stdout is None or process.stderr is None:
        raise AntiphonError("the process of `antiphon up` has no pipes")
    readable, _, _ = select.select([process.stdout], [], [], timeout_s)
    line = process.stdout.readline() if readable else ""
    if not line.startswith("{"):
        process.terminate()
        said = process.stderr.read().strip()
        raise UnavailableError(f"the cluster did not start: {said or 'no answer in time'}")
    return line


def _close_pipes(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _environment(hurtable: bool) -> dict[str, str] | None:
    return {**os.environ, FAULTS_VARIABLE: "1"} if hurtable else None
