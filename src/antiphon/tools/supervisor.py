"""Starting and stopping the processes of a local cluster.

`antiphon up` binds every port first, so that "any free port" is known to all before any of them runs, then forks one child
per node from this one warmed-up process: no thread and no event loop exists yet, and Python's imports are paid once.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from antiphon.client.local_folder import LISTENERS, PEER_LISTENER, LocalClusterFile, LocalNode
from antiphon.errors import InvalidRequestError, PortInUseError, UnavailableError
from antiphon.security.private_files import only_private_files
from antiphon.tools.cluster_files import running_pid, write_pid
from antiphon.tools.free_ports import bind_free
from antiphon.tools.processes import send_signal

READY_TIMEOUT_S = 60.0
SIGNALS_EVERY_S = 0.1
STOP_TIMEOUT_S = 15.0

READY = b"ready"
ALONE = b"alone"  # it runs, but there is no coordinator yet

Sockets = dict[str, socket.socket]

# Nodes that this process has forked and that have not ended: they are known also when their folders are gone.
_forked: dict[int, Path] = {}


def bind_ports(cluster: LocalClusterFile, bases: Mapping[str, int | None]) -> list[Sockets]:
    """Bind each node's listeners: base port + node id, 0 for any free one, None for the port of its last start.

    Fills in the nodes' addresses. Raises PortInUseError, with everything closed again.
    """
    bound: list[Sockets] = []
    try:
        for node in cluster.nodes:
            sockets: Sockets = {}
            bound.append(sockets)
            for name in cluster.listeners:
                base = bases.get(name)
                port = _last_port(node, name) if base is None else base + node.id if base else 0
                sockets[name] = _listen(cluster.host, port, name, node.id)
                setattr(node, name, f"{cluster.host}:{sockets[name].getsockname()[1]}")
    except BaseException:
        close_sockets(bound)
        raise
    return bound


def bind_again(node: LocalNode) -> Sockets:
    """Bind the listeners of one node where it listened before."""
    sockets: Sockets = {}
    try:
        for name in (*LISTENERS, PEER_LISTENER):
            host, _, port = str(getattr(node, name)).rpartition(":")
            if not port:
                continue
            sockets[name] = _listen(host, int(port), name, node.id)
    except BaseException:
        close_sockets([sockets])
        raise
    return sockets


def close_sockets(bound: Iterable[Sockets]) -> None:
    """Close what was bound."""
    for sockets in bound:
        for listener in sockets.values():
            listener.close()


def _last_port(node: LocalNode, name: str) -> int:
    return int(str(getattr(node, name)).rpartition(":")[2] or 0)


def _listen(host: str, port: int, name: str, node_id: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise InvalidRequestError(
            f"port {port} ({name} listener of node {node_id}) is not between 0 and 65535"
        )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if port:
            listener.bind((host, port))
        else:
            bind_free(listener, host)
        listener.listen(512)
    except OSError as error:
        listener.close()
        option = "native" if name == PEER_LISTENER else name  # the ports for other nodes are beside those
        raise PortInUseError(
            f"port {port} ({name} listener of node {node_id}) cannot be used: {error.strerror}; "
            f"choose another with --{option}-port, 0 for any free one",
            port=port,
            listener=option,
        ) from None
    listener.set_inheritable(True)
    return listener


def fork_node(
    node_dir: Path, run: Callable[[Callable[[bool], None]], None], close: Iterable[Sockets]
) -> tuple[int, int]:
    """Fork a child that calls `run(ready)`; returns its pid and a pipe that says READY, ALONE or an error message.

    `close` are the listening sockets of the other nodes, which the child must not hold.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        try:
            write_pid(node_dir, pid)
        except OSError:  # nobody could stop it later
            os.close(reader)
            send_signal(pid, signal.SIGKILL)
            raise
        _forked[pid] = node_dir
        return pid, reader
    status = 1
    try:
        os.close(reader)
        close_sockets(close)
        for number in (
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
        ):  # what the parent does with them is not for nodes
            signal.signal(number, signal.SIG_DFL)
        os.setsid()  # ctrl-C reaches the supervisor only, which stops the nodes in order
        only_private_files()
        _quiet_stdio(node_dir)
        run(lambda joined: _report(writer, READY if joined else ALONE))
        status = 0
    except BaseException as error:  # noqa: BLE001 - the child must end here, whatever happened
        _report(writer, f"{error}".encode() or type(error).__name__.encode())
        if not isinstance(error, SystemExit | KeyboardInterrupt):
            import traceback

            traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _report(writer: int, message: bytes) -> None:
    with contextlib.suppress(OSError):
        os.write(writer, message)
        os.close(writer)


def _quiet_stdio(node_dir: Path) -> None:
    """Keep a node's stray output in its own folder, so that the terminal and pipes of the caller are free."""
    from antiphon.node.logs import bound_output, open_output

    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    open_output(node_dir)
    bound_output(node_dir)


def wait_ready(
    pipes: dict[int, int],
    asked: Sequence[int] = (),
    failed: dict[int, str] | None = None,
) -> list[int]:
    """Wait until every node (id -> pipe) serves; raises UnavailableError with what a failed one said.

    With `failed` that is put there instead, and the others are waited for.

    Returns the nodes that run but have found no coordinator so far: they go on trying.

    KeyboardInterrupt as soon as a signal's number is in `asked`: raising in the handler itself is not safe around a fork,
    whose hooks swallow what is raised in them.
    """
    deadline = time.monotonic() + READY_TIMEOUT_S
    waiting = dict(pipes)
    alone: list[int] = []
    while waiting or asked:
        if asked:
            raise KeyboardInterrupt
        left = deadline - time.monotonic()
        if left <= 0:
            raise UnavailableError(
                f"nodes {sorted(waiting)} were not ready within {READY_TIMEOUT_S:.0f} s; see their node.log"
            )
        readable, _, _ = select.select(list(waiting.values()), [], [], min(left, SIGNALS_EVERY_S))
        for node_id, pipe in list(waiting.items()):
            if pipe not in readable:
                continue
            said = os.read(pipe, 65_536)
            os.close(pipe)
            del waiting[node_id]
            if said == ALONE:
                alone.append(node_id)
            elif said != READY:
                why = said.decode(errors="replace") or "it ended"
                if failed is None:
                    raise UnavailableError(f"node {node_id} did not start: {why}")
                failed[node_id] = why
    return sorted(alone)


def stop_nodes(node_dirs: Iterable[Path]) -> list[int]:
    """Stop the processes of these folders: SIGTERM, SIGKILL after a while. Returns the pids it had to kill."""
    reap()
    wanted = list(node_dirs)
    pids = {pid: node_dir for pid, node_dir in _forked.items() if node_dir in wanted}
    pids |= {pid: node_dir for node_dir in wanted if (pid := running_pid(node_dir)) is not None}
    for pid in pids:
        send_signal(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while pids and time.monotonic() < deadline:
        reap()
        pids = {pid: path for pid, path in pids.items() if pid in _forked or running_pid(path) == pid}
        time.sleep(0.01)
    for pid in pids:
        send_signal(pid, signal.SIGKILL)
    reap()
    return sorted(pids)


def runs_any(node_dirs: Iterable[Path]) -> bool:
    """Has one of these folders a process, or this process a child whose folder is gone?"""
    return bool(_forked) or any(running_pid(node_dir) is not None for node_dir in node_dirs)


def reap() -> list[tuple[int, int, Path | None]]:
    """Collect children that have ended: (pid, wait status, the folder of a node that this process has forked)."""
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status, _forked.pop(pid, None)))
    return ended
