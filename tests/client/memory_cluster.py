"""A small cluster in this process that speaks the native protocol over real sockets and fails on request.

Nodes share their shards' logs, so that leadership moves without loss; what is real here: frames, sockets, producer state,
table evaluator and store. `faults` are taken one per request of their kind, in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    NotLeaderError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownShardError,
    UnknownTopicError,
    from_wire,
)
from antiphon.log.producer_state import ProducerState
from antiphon.node.write_order import WriteOrder
from antiphon.records.batch import BatchHeader, read_header, stamp, validate_batch
from antiphon.records.builder import build_batch
from antiphon.table.evaluator import TableEvaluator, results_from_batch
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState, open_state
from antiphon.wire.frames import Buffer, Frame, FrameDecoder, decode_request, encode_message
from antiphon.wire.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.wire.requests import (
    AppendBatch,
    Appended,
    CreateTopic,
    DeleteTopic,
    Done,
    ElectLeader,
    Failure,
    Fetch,
    Fetched,
    GetMetadata,
    GetStatus,
    Hello,
    HelloReply,
    ListOffset,
    MetadataReply,
    NewProducerId,
    OffsetReply,
    ProducerId,
    StatusReply,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
)

DROP_BEFORE = "drop_before"  # the connection ends before the request is carried out
DROP_AFTER = "drop_after"  # it is carried out, and the connection ends before the answer
SILENT = "silent"  # it is never looked at, and never answered


class Shard:
    """One log; for a table also its store."""

    def __init__(self, shard_id: int, state: TableState | None) -> None:
        self.shard_id = shard_id
        self.batches: list[bytes] = []
        self.end = 0
        self.producers = ProducerState()
        self.order = WriteOrder()
        self.state = state
        self.evaluator = TableEvaluator(state) if state is not None else None
        self.grown = asyncio.Event()

    def append(self, batch: bytearray, term: int) -> Appended:
        stamp(batch, self.end, term)
        header = read_header(batch)
        self.producers.update(header)
        self.batches.append(bytes(batch))
        self.end = header.next_offset
        self.grown.set()
        self.grown = asyncio.Event()
        return Appended(header.base_offset, header.next_offset, term)


class Node:
    """One listening socket."""

    def __init__(self, cluster: "MemoryCluster", node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.address = ""
        self.server: asyncio.Server | None = None
        self.sessions: set[Session] = set()

    async def start(self) -> None:
        port = int(self.address.rpartition(":")[2]) if self.address else 0
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: Session(self), "127.0.0.1", port)
        self.address = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """As a killed process does it: connections are reset."""
        if self.server is not None:
            self.server.close()
            for session in list(self.sessions):
                session.drop()
            await self.server.wait_closed()
            self.server = None


class Session(asyncio.Protocol):
    """One accepted connection."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.decoder = FrameDecoder()
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.node.sessions.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.sessions.discard(self)
        self.transport = None

    def drop(self) -> None:
        if self.transport is not None:
            self.transport.abort()
            self.transport = None

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            if self.transport is None:
                return  # dropped in the middle
            self.handle(frame)

    def handle(self, frame: Frame) -> None:
        request_id, body = decode_request(frame.header)
        self.node.cluster.seen.append(body)
        self.node.cluster.arrived.set()
        fault = self.node.cluster.next_fault(body)
        if fault == SILENT:
            return
        if fault == DROP_BEFORE:
            self.drop()
            return
        payload: Sequence[Buffer] = ()
        try:
            if isinstance(fault, AntiphonError):
                raise fault
            reply = self.node.cluster.carry_out(self.node, body, bytes(frame.payload))
            if isinstance(reply, tuple):
                reply, payload = reply
        except AntiphonError as error:
            reply = Failure(error.code, error.message, error.details)
        if fault == DROP_AFTER:
            self.drop()
        elif callable(fault):
            fault(lambda: self.answer(request_id, reply, payload))
        elif isinstance(body, Fetch) and isinstance(reply, Fetched) and not payload and body.wait_ms:
            waiting = asyncio.ensure_future(self.fetch_later(request_id, body))
            self.node.cluster.tasks.add(waiting)
            waiting.add_done_callback(self.node.cluster.tasks.discard)
        else:
            self.answer(request_id, reply, payload)

    async def fetch_later(self, request_id: int, body: Fetch) -> None:
        try:
            async with asyncio.timeout(body.wait_ms / 1000):
                await self.node.cluster.shards[body.shard_id].grown.wait()
        except TimeoutError:
            pass
        reply, payload = self.node.cluster.fetch(body)
        self.answer(request_id, reply, payload)

    def answer(self, request_id: int, reply: Any, payload: Sequence[Buffer]) -> None:
        if self.transport is not None:
            self.transport.writelines(encode_message(request_id, reply, payload))


Fault = str | AntiphonError | Callable[[Callable[[], None]], object] | None


class MemoryCluster:
    """Three nodes by default; use it as an async context."""

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        self.directory = directory
        self.nodes = [Node(self, node_id) for node_id in range(nodes)]
        self.topics: dict[str, TopicMeta] = {}
        self.shards: dict[int, Shard] = {}
        self.version = 1
        self.term = 1
        self.batch_bytes_max = 1 << 20
        self.next_producer_id = 1000
        self.faults: dict[type, deque[Fault]] = {}
        self.seen: list[Any] = []
        self.tasks: set[asyncio.Future[None]] = set()
        self.arrived = asyncio.Event()

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for node in self.nodes:
            await node.stop()
        for shard in self.shards.values():
            if shard.state is not None:
                shard.state.close()

    @property
    def servers(self) -> str:
        return ",".join(node.address for node in self.nodes)

    @property
    def meta(self) -> ClusterMeta:
        nodes = tuple(NodeMeta(node.node_id, node.address) for node in self.nodes)
        return ClusterMeta("memory", self.version, 0, nodes, tuple(self.topics.values()))

    def fail(self, kind: type, *faults: Fault) -> None:
        """Let the next requests of a kind fail so, one each; None: not this one."""
        self.faults.setdefault(kind, deque()).extend(faults)

    async def until_seen(self, kind: type, count: int) -> None:
        """Wait until so many requests of a kind have arrived."""
        while len([body for body in self.seen if isinstance(body, kind)]) < count:
            self.arrived.clear()
            await self.arrived.wait()

    def next_fault(self, body: Any) -> Fault:
        queue = self.faults.get(type(body))
        return queue.popleft() if queue else None

    def create(self, name: str, kind: Kind, shards: int) -> TopicMeta:
        made = []
        for index in range(shards):
            shard_id = 1 + len(self.shards)
            state = (
                open_state(str(self.directory / f"shard-{shard_id}"), RocksEngine())
                if kind is Kind.TABLE
                else None
            )
            self.shards[shard_id] = Shard(shard_id, state)
            ensemble = tuple(node.node_id for node in self.nodes)
            leader = (shard_id - 1) % len(self.nodes)
            made.append(ShardMeta(shard_id, index, ensemble, leader, self.term, ShardStatus.ONLINE, ensemble))
        self.topics[name] = TopicMeta(
            name, bytes(15) + bytes([len(self.topics) + 1]), kind, 3, "oxia", tuple(made)
        )
        self.version += 1
        return self.topics[name]

    def move_leader(self, name: str, index: int, leader: int, *, announce: bool = True) -> None:
        """Another node leads from now on; without `announce` the clients' metadata does not get newer by it."""
        topic = self.topics[name]
        self.term += 1
        shards = list(topic.shards)
        old = shards[index]
        self.shards[old.shard_id].order = WriteOrder()
        shards[index] = ShardMeta(old.shard_id, index, old.ensemble, leader, self.term, old.status, old.live)
        self.topics[name] = TopicMeta(
            name, topic.topic_id, topic.kind, topic.replicas, topic.profile, tuple(shards), topic.config
        )
        if announce:
            self.version += 1

    def log(self, name: str, index: int = 0) -> Shard:
        return self.shards[self.topics[name].shards[index].shard_id]

    # -- carrying out -------------------------------------------------------------------------------------------

    def carry_out(self, node: Node, body: Any, payload: bytes) -> Any:
        if isinstance(body, Hello):
            if body.cluster_id not in {None, "memory"}:
                raise from_wire("foreign_directory", "another cluster", {})
            return HelloReply(1, "memory", node.node_id)
        if isinstance(body, GetMetadata):
            return MetadataReply(self.meta)
        if isinstance(body, NewProducerId):
            self.next_producer_id += 1
            return ProducerId(self.next_producer_id)
        if isinstance(body, GetStatus):
            return StatusReply(self.meta.nodes[node.node_id], "0", 1, 1, ())
        if isinstance(body, CreateTopic):
            if body.name in self.topics:
                raise TopicExistsError(f"{body.name} exists")
            self.create(body.name, body.kind, body.shards)
            return Done()
        if isinstance(body, DeleteTopic):
            if self.topics.pop(body.name, None) is None:
                raise UnknownTopicError(f"no topic {body.name}")
            self.version += 1
            return Done()
        return self.carry_out_on_shard(node, body, payload)

    def carry_out_on_shard(self, node: Node, body: Any, payload: bytes) -> Any:
        shard_id = body.shard_id
        found = [s for topic in self.topics.values() for s in topic.shards if s.shard_id == shard_id]
        if not found:
            raise UnknownShardError(f"no shard {shard_id}")
        if isinstance(body, ElectLeader):
            for name, topic in self.topics.items():
                if found[0] in topic.shards:
                    self.move_leader(name, found[0].index, body.node)
            return Done()
        if found[0].leader != node.node_id:
            raise NotLeaderError("not me", leader=found[0].leader)
        shard = self.shards[shard_id]
        if isinstance(body, AppendBatch):
            return self.append(shard, body, payload)
        if isinstance(body, Fetch):
            return self.fetch(body)
        if isinstance(body, ListOffset):
            offset = {-1: shard.end, -2: 0}.get(body.timestamp_ms, -1)
            return OffsetReply(offset, -1, self.term, 0, shard.end)
        if isinstance(body, TableWrite):
            return self.write(shard, body)
        assert shard.state is not None
        if isinstance(body, TableGet):
            return TableRows(tuple(shard.state.get_many(body.keys, include_value=body.include_value)))
        assert isinstance(body, TableScan)
        rows, more = shard.state.scan(body.start, body.end, body.limit, include_value=body.include_value)
        return TableRows(tuple(rows), more)

    def append(self, shard: Shard, body: AppendBatch, payload: bytes) -> Appended:
        header = validate_batch(payload)
        seen = shard.producers.check(header)
        if seen is not None:
            return Appended(seen.base_offset, seen.next_offset, self.term, True)
        if body.expected_offset not in {None, shard.end}:
            raise OffsetMismatchError("not there", expected=body.expected_offset, actual=shard.end)
        return shard.append(bytearray(payload), self.term)

    def write(self, shard: Shard, body: TableWrite) -> TableWritten:
        assert shard.evaluator is not None
        header = BatchHeader(
            0, 0, 0, 2, 0, 0, 0, 0, 0, body.producer_id, body.producer_epoch, body.sequence, 1
        )
        seen = shard.producers.check(header, table=True)
        if seen is not None:
            return results_from_batch(
                next(b for b in shard.batches if read_header(b).base_offset == seen.base_offset)
            )
        shard.order.check(body, shard.producers)
        evaluation = shard.evaluator.evaluate(body.ops, 1000, atomic=body.atomic)
        if not evaluation.records:
            shard.order.left_no_trace(body)
            return TableWritten(tuple(evaluation.results), -1)
        batch = build_batch(
            evaluation.records,
            producer_id=body.producer_id,
            producer_epoch=body.producer_epoch,
            base_sequence=body.sequence,
        )
        if len(batch) > self.batch_bytes_max:
            raise BatchTooLargeError(f"{len(batch)} bytes")
        base = shard.end
        shard.append(batch, self.term)
        shard.evaluator.appended(evaluation, base)
        shard.evaluator.committed(shard.end)
        return TableWritten(tuple(evaluation.results), base)

    def fetch(self, body: Fetch) -> tuple[Fetched, list[bytes]]:
        shard = self.shards[body.shard_id]
        if not 0 <= body.offset <= shard.end:
            raise OffsetOutOfRangeError("out of range", asked=body.offset, start=0, end=shard.end)
        found: list[bytes] = []
        size = 0
        for batch in shard.batches:
            if read_header(batch).next_offset > body.offset:
                if found and size + len(batch) > body.max_bytes:
                    break
                found.append(batch)
                size += len(batch)
        return Fetched(shard.end, 0, shard.end, self.term), found
