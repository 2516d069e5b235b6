"""A one-process native server with the real producer rules, for tests of what Spark's side does when things go wrong.

`ServerFaults` makes it misbehave on purpose: close the connection after an append was carried out, or deny leadership for
a while. Everything is kept in memory and served by threads.
"""

import socketserver
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from antiphon.errors import AntiphonError, NotLeaderError, OffsetOutOfRangeError, UnknownShardError
from antiphon.log.producer_state import ProducerState
from antiphon.records.batch import BatchHeader, read_header, stamp, validate_batch
from antiphon.records.builder import build_batch, build_term_start
from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.wire.frames import FrameDecoder, decode_request, encode_message
from antiphon.wire.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.wire.requests import (
    AppendBatch,
    Appended,
    Delete,
    Failure,
    Fetch,
    Fetched,
    GetMetadata,
    Hello,
    HelloReply,
    ListOffset,
    MetadataReply,
    OffsetReply,
    OpResult,
    OpStatus,
    Put,
    Row,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
    Version,
)

TERM = 3


@dataclass
class ServerFaults:
    """Counted down by one each time it strikes."""

    drop_after_append: int = 0
    deny_leadership: int = 0
    fetch_bytes_max: int = 1 << 30


@dataclass
class MemoryShard:
    """One shard's log; every log starts with a term-start batch at offset 0, as real ones do."""

    log_start: int = 0
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

    def put(self, batch: bytearray) -> BatchHeader:
        stamp(batch, self.end, TERM)
        header = read_header(batch)
        self.starts.append(header.base_offset)
        self.batches.append((header, bytes(batch)))
        self.producers.update(header)
        return header

    def append(self, payload: memoryview) -> Appended:
        header = validate_batch(payload)
        known = self.producers.check(header)
        if known is not None:
            return Appended(known.base_offset, known.next_offset, TERM, duplicate=True)
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
        effects: list[tuple[bytes, bytes | None, list[tuple[str, bytes | None]], int]] = []
        for index, op in enumerate(request.ops):
            assert isinstance(op, Put | Delete)
            old = self.rows.get(op.key)
            if isinstance(op, Put):
                version = (
                    Version(self.next_version, old[1].modifications + 1, old[1].created_ms, now_ms)
                    if old
                    else Version(self.next_version, 0, now_ms, now_ms)
                )
                self.next_version += 1
                self.rows[op.key] = (op.value, version)
                effects.append((op.key, op.value, [(VERSION_HEADER, _packed(version))], now_ms))
            elif old is None:
                results[index] = OpResult(OpStatus.KEY_NOT_FOUND)
            else:
                del self.rows[op.key]
                effects.append((op.key, None, [(VERSION_HEADER, _packed(old[1]))], now_ms))
        if not effects:
            return TableWritten(tuple(results), -1)
        batch = build_batch(
            effects,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            base_sequence=request.sequence,
        )
        return TableWritten(tuple(results), self.put(batch).base_offset)

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

    def __init__(self) -> None:
        self.faults = ServerFaults()
        self.shards: dict[int, MemoryShard] = {}
        self._topics: list[TopicMeta] = []
        self._version = 0
        self._lock = threading.Lock()
        self._connections: list[Any] = []
        owner = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                owner.serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
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

    def create(self, name: str, shards: int = 1, kind: Kind = Kind.TOPIC) -> list[MemoryShard]:
        with self._lock:
            first = len(self.shards) + 1
            made = [MemoryShard() for _ in range(shards)]
            metas = []
            for index, shard in enumerate(made):
                self.shards[first + index] = shard
                metas.append(ShardMeta(first + index, index, (0,), 0, TERM, ShardStatus.ONLINE, (0,)))
            number = len(self._topics) + 1
            self._topics.append(TopicMeta(name, number.to_bytes(16, "big"), kind, 1, "oxia", tuple(metas)))
            self._version += 1
            return made

    def add_shard(self, name: str) -> MemoryShard:
        with self._lock:
            at, topic = next((i, t) for i, t in enumerate(self._topics) if t.name == name)
            shard_id = len(self.shards) + 1
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
            return MetadataReply(ClusterMeta("test", self._version, 0, (node,), tuple(self._topics))), []
        if self.faults.deny_leadership > 0:
            self.faults.deny_leadership -= 1
            raise NotLeaderError("not me", leader=None)
        shard = self.shards.get(request.shard_id)
        if shard is None:
            raise UnknownShardError(f"no shard {request.shard_id}")
        if isinstance(request, Fetch):
            found = shard.read(request, min(request.max_bytes, self.faults.fetch_bytes_max))
            return Fetched(shard.end, shard.log_start, shard.end, TERM), found
        if isinstance(request, ListOffset):
            return self._list_offset(shard, request), []
        if isinstance(request, AppendBatch):
            return shard.append(payload), []
        if isinstance(request, TableWrite):
            return shard.write_table(request), []
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
