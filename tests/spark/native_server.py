"""A one-process native server with the real producer rules, for tests of what Spark's side does when things go wrong.

`ServerFaults` makes it misbehave on purpose: close the connection after an append was carried out, or deny leadership for
a while. Everything is kept in memory and served by threads.

It stands in for a node because Spark plans and works in processes of its own, which need a real socket while the test waits,
and because most tests that use it count how often it struck and read each shard's bytes from their own thread. What Spark
does with whole nodes is in `test_source_nodes.py`, `test_sink_nodes.py`, `test_audit_nodes.py`, `test_cluster.py` and
`test_failures.py`.
"""

import socketserver
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    NotLeaderError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownShardError,
)
from antiphon.log.producer_state import ProducerState
from antiphon.model.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import (
    AppendBatch,
    Appended,
    CreateTopic,
    Delete,
    Done,
    Failure,
    Fetch,
    Fetched,
    GetMetadata,
    GetStatus,
    Hello,
    HelloReply,
    ListOffset,
    MetadataReply,
    OffsetReply,
    OpResult,
    OpStatus,
    Put,
    ReplicaStatus,
    StatusReply,
    TableGet,
    TableOp,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
    Trimmed,
    TrimShard,
)
from antiphon.model.rows import Row, Version
from antiphon.records.batch import BatchHeader, read_header, stamp, validate_batch
from antiphon.records.builder import build_batch, build_term_start
from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.wire.frames import FrameDecoder, decode_request, encode_message

TERM = 3


@dataclass
class ServerFaults:
    """Counted down by one each time it strikes."""

    drop_after_append: int = 0
    deny_leadership: int = 0
    unknown: int = 0  # requests that are answered as by a node that does not know the shard yet
    fetch_bytes_max: int = 1 << 30
    silent: int = 0  # requests that get no answer
    away: bool = False  # connections are closed as soon as something is asked
    forgetful: int = 0  # metadata is answered without topics, as by a node that has just started


@dataclass
class MemoryShard:
    """One shard's log; every log starts with a term-start batch at offset 0, as real ones do."""

    log_start: int = 0
    limit_bytes: int = 1_048_588
    starts: list[int] = field(default_factory=list)
    batches: list[tuple[BatchHeader, bytes]] = field(default_factory=list)
    producers: ProducerState = field(default_factory=ProducerState)
    rows: dict[bytes, tuple[bytes, Version]] = field(default_factory=dict)
    next_version: int = 0

    def __post_init__(self) -> None:
        self.put(build_term_start(TERM, 0, 1_000))

    @property
    def end(self) -> int:
        return self.batches[-1][0].next_offset if self.batches else self.log_start

    @property
    def size(self) -> int:
        return sum(len(batch) for _, batch in self.batches)

    def put(self, batch: bytearray) -> BatchHeader:
        stamp(batch, self.end, TERM)
        header = read_header(batch)
        self.starts.append(header.base_offset)
        self.batches.append((header, bytes(batch)))
        self.producers.update(header)
        return header

    def append(self, payload: memoryview, expected: int | None) -> Appended:
        header = validate_batch(payload)
        if len(payload) > self.limit_bytes:
            raise BatchTooLargeError(f"{len(payload)} bytes", size_bytes=len(payload))
        known = self.producers.check(header)
        if known is not None:
            return Appended(known.base_offset, known.next_offset, TERM, duplicate=True)
        if expected is not None and expected != self.end:
            raise OffsetMismatchError("elsewhere", expected=expected, actual=self.end)
        stored = self.put(bytearray(payload))
        return Appended(stored.base_offset, stored.next_offset, TERM)

    def read(self, request: Fetch, max_bytes: int) -> list[bytes]:
        if not self.log_start <= request.offset <= self.end:
            raise OffsetOutOfRangeError(
                f"offset {request.offset}", asked=request.offset, start=self.log_start, end=self.end
            )
        found: list[bytes] = []
        size = 0
        for header, batch in self.batches[max(0, bisect_right(self.starts, request.offset) - 1) :]:
            if header.next_offset <= request.offset:
                continue
            if found and size + len(batch) > max_bytes:
                break
            found.append(batch)
            size += len(batch)
        return found

    def trim(self, log_start: int) -> None:
        self.log_start = log_start

    def write_table(self, request: TableWrite) -> TableWritten:
        header = read_header(build_batch([(b"", b"", (), 0)]))._replace(
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            base_sequence=request.sequence,
        )
        known = self.producers.check(header, table=True)
        results = [OpResult(OpStatus.OK) for _ in request.ops]
        if known is not None:
            return TableWritten(tuple(results), known.base_offset)
        now_ms = time.time_ns() // 1_000_000
        if request.atomic and not all(map(self.may, request.ops)):
            return TableWritten(tuple(OpResult(OpStatus.NOT_CARRIED_OUT) for _ in request.ops), -1)
        effects: list[tuple[bytes, bytes | None, list[tuple[str, bytes | None]], int]] = []
        for index, op in enumerate(request.ops):
            assert isinstance(op, Put | Delete)
            old = self.rows.get(op.key)
            if not self.may(op):
                status = (
                    OpStatus.KEY_NOT_FOUND if op.expected_version is None else OpStatus.UNEXPECTED_VERSION
                )
                results[index] = OpResult(status)
            elif isinstance(op, Put):
                version = (
                    Version(self.next_version, old[1].modifications + 1, old[1].created_ms, now_ms)
                    if old
                    else Version(self.next_version, 0, now_ms, now_ms)
                )
                self.next_version += 1
                self.rows[op.key] = (op.value, version)
                results[index] = OpResult(OpStatus.OK, version)
                effects.append((op.key, op.value, [(VERSION_HEADER, _packed(version))], now_ms))
            else:
                _, version = self.rows.pop(op.key)
                effects.append((op.key, None, [(VERSION_HEADER, _packed(version))], now_ms))
        if not effects:
            return TableWritten(tuple(results), -1)
        batch = build_batch(
            effects,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            base_sequence=request.sequence,
        )
        return TableWritten(tuple(results), self.put(batch).base_offset)

    def may(self, op: TableOp) -> bool:
        """Would the operation be carried out?"""
        assert isinstance(op, Put | Delete)
        old = self.rows.get(op.key)
        if op.expected_version is None:
            return isinstance(op, Put) or old is not None
        return op.expected_version == (old[1].id if old is not None else -1)

    def get(self, request: TableGet) -> TableRows:
        return TableRows(
            tuple(Row(key, *self.rows[key]) if key in self.rows else None for key in request.keys)
        )

    def scan(self, request: TableScan) -> TableRows:
        keys = sorted(
            key for key in self.rows if key >= request.start and (not request.end or key < request.end)
        )
        taken = keys[: min(request.limit, 7)]  # small pages, so that the reader has to come again
        rows = tuple(Row(key, *self.rows[key]) for key in taken)
        return TableRows(rows, more=len(keys) > len(taken))


def _packed(version: Version) -> bytes:
    return VERSION.pack(version.id, version.modifications, version.created_ms, version.modified_ms)


class NativeServer:
    """Topics and tables behind one port."""

    def __init__(self, port: int = 0) -> None:
        self.faults = ServerFaults()
        self.shards: dict[int, MemoryShard] = {}
        self._topics: list[TopicMeta] = []
        self._version = 0
        self._created = 0
        self._next_shard = 1  # ids are never used again
        self._lock = threading.Lock()
        self._connections: list[Any] = []
        owner = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                owner.serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", port), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        with self._lock:
            for connection in self._connections:
                connection.close()
        self._server.server_close()
        self._thread.join()

    def create(
        self,
        name: str,
        shards: int = 1,
        kind: Kind = Kind.TOPIC,
        config: dict[str, str] | None = None,
        *,
        internal: bool = False,
    ) -> list[MemoryShard]:
        with self._lock:
            return self._create(name, shards, kind, config or {}, internal=internal)

    def _create(
        self, name: str, shards: int, kind: Kind, config: dict[str, str], *, internal: bool
    ) -> list[MemoryShard]:
        if any(topic.name == name for topic in self._topics):
            raise TopicExistsError(name)
        first = self._next_shard
        self._next_shard += shards
        made = [MemoryShard() for _ in range(shards)]
        metas = []
        for index, shard in enumerate(made):
            shard.limit_bytes = int(config.get("max.message.bytes", shard.limit_bytes))
            self.shards[first + index] = shard
            metas.append(ShardMeta(first + index, index, (0,), 0, TERM, ShardStatus.ONLINE, (0,)))
        self._created += 1
        topic_id = self._created.to_bytes(16, "big")
        self._topics.append(
            TopicMeta(name, topic_id, kind, 1, "oxia", tuple(metas), config, internal=internal)
        )
        self._version += 1
        return made

    def shards_of(self, name: str) -> list[MemoryShard]:
        """Shards of a topic or table; none where there is none of that name."""
        metas = [shard for topic in self._topics if topic.name == name for shard in topic.shards]
        return [self.shards[meta.shard_id] for meta in metas]

    def delete(self, name: str) -> None:
        with self._lock:
            topic = next(topic for topic in self._topics if topic.name == name)
            self._topics.remove(topic)
            for meta in topic.shards:
                del self.shards[meta.shard_id]
            self._version += 1

    def add_shard(self, name: str) -> MemoryShard:
        with self._lock:
            at, topic = next((i, t) for i, t in enumerate(self._topics) if t.name == name)
            shard_id = self._next_shard
            self._next_shard += 1
            shard = self.shards[shard_id] = MemoryShard()
            meta = ShardMeta(shard_id, len(topic.shards), (0,), 0, TERM, ShardStatus.ONLINE, (0,))
            self._topics[at] = TopicMeta(
                topic.name, topic.topic_id, topic.kind, 1, "oxia", (*topic.shards, meta)
            )
            self._version += 1
            return shard

    def serve(self, connection: Any) -> None:
        with self._lock:
            self._connections.append(connection)
        decoder = FrameDecoder()
        try:
            while data := connection.recv(1 << 20):
                for frame in decoder.feed(data):
                    request_id, request = decode_request(frame.header)
                    if self.faults.away:
                        connection.close()
                        return
                    if self.faults.silent > 0 and not isinstance(request, Hello):
                        self.faults.silent -= 1
                        continue
                    parts = self._answer(request_id, request, frame.payload)
                    if parts is None:
                        connection.close()
                        return
                    connection.sendall(b"".join(parts))
        except OSError:
            return

    def _answer(self, request_id: int, request: Any, payload: memoryview) -> list[Any] | None:
        with self._lock:
            try:
                body, out = self._handle(request, payload)
            except AntiphonError as error:
                return encode_message(request_id, Failure(error.code, error.message, error.details))
            if isinstance(request, AppendBatch | TableWrite) and self.faults.drop_after_append > 0:
                self.faults.drop_after_append -= 1
                return None
            return encode_message(request_id, body, out)

    def _handle(self, request: Any, payload: memoryview) -> tuple[Any, list[bytes]]:
        if isinstance(request, Hello):
            return HelloReply(1, "test", 0), []
        if isinstance(request, GetMetadata):
            node = NodeMeta(0, self.address)
            if self.faults.forgetful > 0:
                self.faults.forgetful -= 1
                return MetadataReply(ClusterMeta("test", 0, 0, (node,), ())), []
            return MetadataReply(ClusterMeta("test", self._version, 0, (node,), tuple(self._topics))), []
        if isinstance(request, GetStatus):
            replicas = tuple(
                ReplicaStatus(shard_id, "leader", TERM, shard.log_start, shard.end, shard.end, shard.size)
                for shard_id, shard in self.shards.items()
            )
            return StatusReply(NodeMeta(0, self.address), "test", 0, 0, replicas), []
        if isinstance(request, CreateTopic):
            self._create(
                request.name, request.shards, request.kind, request.config, internal=request.internal
            )
            return Done(), []
        if self.faults.deny_leadership > 0:
            self.faults.deny_leadership -= 1
            raise NotLeaderError("not me", leader=None)
        if self.faults.unknown > 0:
            self.faults.unknown -= 1
            raise UnknownShardError(f"shard {request.shard_id} is not known here")
        shard = self.shards.get(request.shard_id)
        if shard is None:
            raise UnknownShardError(f"no shard {request.shard_id}")
        return self._handle_shard(shard, request, payload)

    def _handle_shard(self, shard: MemoryShard, request: Any, payload: memoryview) -> tuple[Any, list[bytes]]:
        if isinstance(request, Fetch):
            found = shard.read(request, min(request.max_bytes, self.faults.fetch_bytes_max))
            return Fetched(shard.end, shard.log_start, shard.end, TERM), found
        if isinstance(request, ListOffset):
            return self._list_offset(shard, request), []
        if isinstance(request, AppendBatch):
            return shard.append(payload, request.expected_offset), []
        if isinstance(request, TableWrite):
            return shard.write_table(request), []
        if isinstance(request, TableGet):
            return shard.get(request), []
        if isinstance(request, TrimShard):
            shard.trim(max(shard.log_start, min(request.before, shard.end)))
            return Trimmed(shard.log_start), []
        assert isinstance(request, TableScan)
        return shard.scan(request), []

    @staticmethod
    def _list_offset(shard: MemoryShard, request: ListOffset) -> OffsetReply:
        offset, found_ms = -1, -1
        if request.timestamp_ms == -1:
            offset = shard.end
        else:
            for header, _ in shard.batches:
                if not header.is_control and header.max_timestamp >= request.timestamp_ms:
                    offset, found_ms = header.base_offset, header.max_timestamp
                    break
        return OffsetReply(offset, found_ms, TERM, shard.log_start, shard.end)


@contextmanager
def running() -> Iterator[NativeServer]:
    """A started server."""
    with NativeServer() as server:
        yield server
