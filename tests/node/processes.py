"""Real node processes for the tests, and a small blocking client that speaks to one of them."""

import contextlib
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from antiphon.errors import AntiphonError, from_wire
from antiphon.model.metadata import ClusterMeta, ShardMeta
from antiphon.model.requests import (
    PROTOCOL_VERSION,
    AppendBatch,
    Appended,
    Failure,
    Fetch,
    Fetched,
    GetMetadata,
    GetStatus,
    Hello,
    MetadataReply,
    ReplicaStatus,
    StatusReply,
)
from antiphon.node.config import Member, NodeConfig, Ports, save_config, split_address
from antiphon.records.builder import build_batch
from antiphon.security.settings import Security
from antiphon.tools.free_ports import bind_free
from antiphon.wire.frames import Buffer, FrameDecoder, decode_reply, encode_message
from tests.forks import FORKS, Handed
from tests.node import run_one_node

SCRIPT = Path(__file__).parent / "run_one_node.py"
LISTENERS = ("native", "kafka", "http")
START_TIMEOUT_S = 30.0


def bind() -> socket.socket:
    """A listening socket on any free port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bind_free(listener, "127.0.0.1")
    listener.listen(128)
    return listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


class NodeProcess:
    """The process of one node. It is forked, and so need not import the program first."""

    def __init__(self, directory: Path, sockets: dict[str, socket.socket], descriptors: int) -> None:
        (out, to_out), (err, to_err) = os.pipe(), os.pipe()
        arguments = (directory, sockets, dict(os.environ), Handed(to_out), Handed(to_err), descriptors)
        self._process = FORKS.Process(target=run_one_node.forked, args=arguments, daemon=True)
        self.stdout, self.stderr = open(out), open(err)  # noqa: SIM115
        try:
            self._process.start()
        finally:
            os.close(to_out)
            os.close(to_err)

    def send(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self._process.exitcode is None and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def wait(self, timeout_s: float) -> int:
        """Its exit code; a signal's number below 0 where one has ended it."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        assert code is not None, f"process {self._process.pid} does not end"
        self._process.close()
        self.stdout.close()
        self.stderr.close()
        return code


class Processes:
    """Nodes of one cluster in `directory`, each in its own process."""

    def __init__(self, directory: Path, nodes: int = 3, *, descriptors: int = 0, **settings: Any) -> None:
        """`descriptors`: how many files each process may have open; 0: as many as this one."""
        self.directory = directory
        self._descriptors = descriptors
        self._processes: dict[int, NodeProcess] = {}
        bound = [{name: bind() for name in LISTENERS} for _ in range(nodes)]
        members = [Member(i, f"127.0.0.1:{port_of(bound[i]['native'])}") for i in range(nodes)]
        self.native = {member.id: member.native for member in members}
        self.http = {i: f"127.0.0.1:{port_of(bound[i]['http'])}" for i in range(nodes)}
        self.ids = list(range(nodes))
        for i in self.ids:
            ports = Ports(
                *(
                    port_of(bound[i][name]) if name != "oxia" else -1
                    for name in ("native", "kafka", "oxia", "http")
                )
            )
            settings.setdefault("security", Security(insecure=True))  # no key: anybody may be a node
            config = NodeConfig(cluster_id="test", node_id=i, nodes=members, ports=ports, **settings)
            self.dir(i).mkdir(parents=True, exist_ok=True)
            save_config(config, self.dir(i))
        try:
            for i in self.ids:
                self._begin(i, bound[i])
            for i in self.ids:
                self._await_ready(i)
            # A busy machine may keep a node from its heartbeats at the start; tests begin with all of them.
            eventually(lambda: all(node.alive for node in self.metadata(self.ids[0]).nodes))
        except BaseException:
            self.close()
            raise
        finally:
            for sockets in bound:
                for listener in sockets.values():
                    listener.close()

    def dir(self, node_id: int) -> Path:
        """Directory of a node."""
        return self.directory / f"node-{node_id}"

    def _begin(self, node_id: int, sockets: dict[str, socket.socket] | None = None) -> None:
        self._processes[node_id] = NodeProcess(self.dir(node_id), sockets or {}, self._descriptors)

    @property
    def servers(self) -> str:
        """As clients are given it."""
        return ",".join(self.native.values())

    def _await_ready(self, node_id: int) -> None:
        process = self._processes[node_id]
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        if not readable or process.stdout.readline() != "ready\n":
            process.send(signal.SIGKILL)
            raise AssertionError(f"node {node_id} did not start: {process.stderr.read()}")

    def start(self, node_id: int) -> None:
        """Start a node again that was stopped or killed."""
        self._begin(node_id)
        self._await_ready(node_id)

    def kill(self, node_id: int) -> None:
        """kill -9."""
        self._end(node_id, signal.SIGKILL)

    def stop(self, node_id: int) -> int:
        """SIGTERM; returns the exit code."""
        return self._end(node_id, signal.SIGTERM)

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        self._processes[node_id].send(signal.SIGSTOP)

    def resume(self, node_id: int) -> None:
        """SIGCONT."""
        self._processes[node_id].send(signal.SIGCONT)

    def _end(self, node_id: int, number: int) -> int:
        process = self._processes.pop(node_id)
        process.send(number)
        return process.wait(20)

    def alive(self) -> list[int]:
        """Nodes whose process runs."""
        return sorted(self._processes)

    def close(self) -> None:
        """Kill what still runs."""
        for node_id in list(self._processes):
            with contextlib.suppress(ProcessLookupError):
                self.kill(node_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- talking to them ----------------------------------------------------------------------------------------

    def ask(self, node_id: int, body: Any, payload: Sequence[Buffer] = ()) -> Any:
        """One request on a connection of its own; raises the error that the node answers."""
        with NativeClient(self.native[node_id]) as client:
            return client.ask(body, payload)

    def metadata(self, node_id: int) -> ClusterMeta:
        """The cluster as one node sees it."""
        reply = self.ask(node_id, GetMetadata())
        assert isinstance(reply, MetadataReply)
        return reply.cluster

    def shard(self, node_id: int, topic: str, index: int = 0) -> ShardMeta:
        """A shard as one node sees it."""
        found = next(one for one in self.metadata(node_id).topics if one.name == topic)
        return found.shards[index]

    def statuses(self, node_id: int) -> dict[int, ReplicaStatus]:
        """A node's replicas by shard."""
        reply = self.ask(node_id, GetStatus())
        assert isinstance(reply, StatusReply)
        return {one.shard_id: one for one in reply.replicas}

    def on_leader(
        self, shard_id: int, body: Any, payload: Sequence[Buffer] = (), timeout_s: float = 15.0
    ) -> Any:
        """Ask whoever leads the shard, through elections."""
        deadline = time.monotonic() + timeout_s
        while True:
            for node_id in self.alive():
                try:
                    return self.ask(node_id, body, payload)
                except AntiphonError as error:
                    if not error.retriable or time.monotonic() > deadline:
                        raise
                except OSError:
                    assert time.monotonic() < deadline
            time.sleep(0.01)

    def append(self, shard_id: int, value: bytes, expected_offset: int | None = None) -> Appended:
        """Append one record to the leader of a shard, once: tries that were cut off by an election may have landed."""
        producer_id = secrets.randbits(60)
        batch = build_batch(
            [(None, value, [], 1)], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        reply = self.on_leader(shard_id, AppendBatch(shard_id, expected_offset), [batch])
        assert isinstance(reply, Appended)
        return reply

    def read(self, node_id: int, shard_id: int, isolation: str = "replica") -> bytes:
        """A whole replica's committed log, as stored."""
        out, at = bytearray(), 0
        with NativeClient(self.native[node_id]) as client:
            while True:
                reply = client.ask(Fetch(shard_id, at, isolation=isolation))
                assert isinstance(reply, Fetched)
                if not client.payload:
                    return bytes(out)
                out += client.payload
                at = end_of(client.payload)


def end_of(batches: bytes) -> int:
    """Offset after the last of these batches."""
    from antiphon.records.batch import iter_batches

    return max(header.next_offset for header, _ in iter_batches(batches))


class NativeClient:
    """One connection, one request at a time."""

    def __init__(self, address: str, timeout_s: float = 30.0) -> None:
        self._socket = socket.create_connection(split_address(address), timeout=timeout_s)
        self._decoder = FrameDecoder()
        self._next_id = 0
        self.payload = b""
        try:
            self.ask(Hello(PROTOCOL_VERSION, "test"))
        except BaseException:
            self._socket.close()
            raise

    def ask(self, body: Any, payload: Sequence[Buffer] = ()) -> Any:
        """The reply's body; its payload is left in `payload`."""
        self._next_id += 1
        self._socket.sendall(b"".join(encode_message(self._next_id, body, payload)))
        while True:
            data = self._socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError("the node hung up")
            for frame in self._decoder.feed(data):
                request_id, reply = decode_reply(frame.header)
                if request_id == self._next_id:
                    self.payload = bytes(frame.payload)
                    if isinstance(reply, Failure):
                        raise from_wire(reply.code, reply.message, reply.details)
                    return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Look again until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)
