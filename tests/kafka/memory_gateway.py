"""A node in memory for the Kafka door's tests: real batch checks, producer sequences and table rows, no replication."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    NotLeaderError,
    OffsetMismatchError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TopicExistsError,
    UnknownShardError,
    UnknownTopicError,
)
from antiphon.node.gateway import AppendResult, Buffer, FetchResult, OffsetResult
from antiphon.records.batch import BatchHeader, read_header, stamp, validate_batch
from antiphon.records.decode import decode_records
from antiphon.wire.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.wire.requests import (
    AdminRequest,
    AlterTopic,
    CreateTopic,
    Delete,
    OpResult,
    OpStatus,
    Put,
    ReplicaStatus,
    Row,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
    TableWritten,
    Version,
)

TERM = 7


class MemoryLog:
    """Batches of one shard, committed as soon as they are there."""

    def __init__(self) -> None:
        self.batches: list[tuple[BatchHeader, bytes]] = []
        self.start = 0
        self.end = 0
        self.producers: dict[int, tuple[int, list[BatchHeader]]] = {}

    def append(self, batch: Buffer, expected: int | None) -> AppendResult:
        header = validate_batch(batch)
        duplicate = self._check_producer(header)
        if duplicate is not None:
            return AppendResult(duplicate.base_offset, duplicate.next_offset, TERM, 0, duplicate=True)
        if expected is not None and expected != self.end:
            raise OffsetMismatchError(
                f"expected offset {expected}, the log ends at {self.end}", expected=expected, actual=self.end
            )
        copy = bytearray(batch)
        stamp(copy, self.end, TERM)
        header = read_header(copy)
        self.batches.append((header, bytes(copy)))
        self.end = header.next_offset
        if header.producer_id >= 0:
            epoch, last = self.producers.get(header.producer_id, (header.producer_epoch, []))
            kept = last if epoch == header.producer_epoch else []
            self.producers[header.producer_id] = (header.producer_epoch, [*kept, header][-5:])
        return AppendResult(header.base_offset, header.next_offset, TERM, 0, duplicate=False)

    def _check_producer(self, header: BatchHeader) -> BatchHeader | None:
        if header.producer_id < 0 or header.producer_id not in self.producers:
            return None
        epoch, last = self.producers[header.producer_id]
        if header.producer_epoch < epoch:
            raise ProducerFencedError("older epoch", epoch=header.producer_epoch, current=epoch)
        if header.producer_epoch > epoch:
            if header.base_sequence:
                raise OutOfOrderSequenceError("new epoch", expected=0, actual=header.base_sequence)
            return None
        for known in last:
            if (known.base_sequence, known.last_sequence) == (header.base_sequence, header.last_sequence):
                return known
        wanted = (last[-1].last_sequence + 1) & 0x7FFF_FFFF
        if header.base_sequence != wanted:
            raise OutOfOrderSequenceError("gap", expected=wanted, actual=header.base_sequence)
        return None

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> list[Buffer]:
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRangeError("outside", asked=offset, start=self.start, end=self.end)
        found: list[Buffer] = []
        size = 0
        for header, data in self.batches:
            if header.next_offset <= offset:
                continue
            if size + len(data) > max_bytes and (found or not at_least_one):
                break
            found.append(memoryview(data))
            size += len(data)
        return found


class MemoryGateway:
    """Implements `antiphon.node.gateway.Gateway`. `node_id` leads every shard unless `lead` says otherwise."""

    def __init__(self, node_id: int = 1, nodes: Sequence[int] = (1,)) -> None:
        self.lost: list[int] = []
        self.node_id = node_id
        self.cluster_id = "memory"
        self.metadata = ClusterMeta(
            self.cluster_id, 1, node_id, tuple(NodeMeta(n, f"127.0.0.1:{7400 + n}") for n in nodes), ()
        )
        self.logs: dict[int, MemoryLog] = {}
        self.rows: dict[int, dict[bytes, tuple[bytes, Version]]] = {}
        self.fail_appends: list[AntiphonError] = []
        self.hold_appends: asyncio.Event | None = None
        self.max_message_bytes = 1_048_588
        self._changed = asyncio.Event()
        self._producer_id = 1000
        self._next_shard = 1

    # -- what tests turn ------------------------------------------------------------------------------------------

    def advertise(self, node_id: int, address: str) -> None:
        """A node's Kafka address."""
        nodes = tuple(
            NodeMeta(n.node_id, n.native, address) if n.node_id == node_id else n for n in self.metadata.nodes
        )
        self._publish(nodes=nodes)

    def lead(self, shard_id: int, leader: int, term: int = TERM) -> None:
        """Another node leads the shard."""
        topics = tuple(
            _replace(
                topic,
                shards=tuple(
                    _replace(s, leader=leader, term=term) if s.shard_id == shard_id else s
                    for s in topic.shards
                ),
            )
            for topic in self.metadata.topics
        )
        self._publish(topics=topics)

    def add_topic(self, name: str, shards: int = 1, **fields: Any) -> TopicMeta:
        """Create a topic at once."""
        nodes = tuple(node.node_id for node in self.metadata.nodes)
        made = []
        for index in range(shards):
            shard_id = self._next_shard
            self._next_shard += 1
            made.append(ShardMeta(shard_id, index, nodes, self.node_id, TERM, ShardStatus.ONLINE, nodes))
            self.logs[shard_id] = MemoryLog()
            self.rows[shard_id] = {}
        topic = TopicMeta(
            name=name,
            topic_id=self._next_shard.to_bytes(16, "big"),
            kind=fields.pop("kind", Kind.TOPIC),
            replicas=len(nodes),
            profile="oxia",
            shards=tuple(made),
            **fields,
        )
        self._publish(topics=(*self.metadata.topics, topic))
        return topic

    def _publish(self, **fields: Any) -> None:
        self.metadata = _replace(self.metadata, version=self.metadata.version + 1, **fields)
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # -- Gateway: metadata ----------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicMeta:
        for topic in self.metadata.topics:
            if topic.name == name:
                return topic
        raise UnknownTopicError(f"no topic {name!r}")

    def topic_by_id(self, topic_id: bytes) -> TopicMeta:
        for topic in self.metadata.topics:
            if topic.topic_id == topic_id:
                return topic
        raise UnknownTopicError("no topic of that id")

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        for topic in self.metadata.topics:
            for shard in topic.shards:
                if shard.shard_id == shard_id:
                    return topic, shard
        raise UnknownShardError(f"no shard {shard_id}")

    def lost_peers(self) -> Sequence[int]:
        return self.lost

    async def wait_metadata(self, known_version: int, timeout_s: float) -> ClusterMeta:
        if self.metadata.version <= known_version:
            await self._wait_change(timeout_s)
        return self.metadata

    async def _wait_change(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), timeout_s)
        except TimeoutError:
            return

    async def create_topic(self, request: CreateTopic, timeout_s: float = 30.0) -> TopicMeta:
        if any(topic.name == request.name for topic in self.metadata.topics):
            raise TopicExistsError(f"topic {request.name!r} exists")
        await asyncio.sleep(0)
        return self.add_topic(
            request.name,
            request.shards,
            kind=request.kind,
            config=dict(request.config),
            internal=request.internal,
        )

    async def delete_topic(self, name: str, timeout_s: float = 30.0) -> None:
        gone = self.topic(name)
        self._publish(topics=tuple(t for t in self.metadata.topics if t is not gone))

    async def alter_topic(self, request: AlterTopic, timeout_s: float = 30.0) -> TopicMeta:
        topic = self.topic(request.name)
        config = {**topic.config, **{k: v for k, v in request.config.items() if v is not None}}
        for name, value in request.config.items():
            if value is None:
                config.pop(name, None)
        more = []
        for index in range(len(topic.shards), request.shards or 0):
            more.append(_replace(topic.shards[0], shard_id=self._next_shard, index=index))
            self.logs[self._next_shard] = MemoryLog()
            self._next_shard += 1
        changed: TopicMeta = _replace(topic, config=config, shards=(*topic.shards, *more))
        self._publish(topics=tuple(changed if t is topic else t for t in self.metadata.topics))
        return changed

    async def administer(self, request: AdminRequest, timeout_s: float = 30.0) -> None:
        raise AssertionError(f"{request} is not expected here")

    async def elect_leader(self, shard_id: int, node: int = -1, timeout_s: float = 30.0) -> None:
        self.lead(shard_id, node)

    async def new_producer_id(self) -> int:
        self._producer_id += 1
        return self._producer_id

    # -- Gateway: logs --------------------------------------------------------------------------------------------

    def _led(self, shard_id: int) -> ShardMeta:
        _, shard = self.shard(shard_id)
        if shard.leader != self.node_id:
            raise NotLeaderError(f"node {shard.leader} leads shard {shard_id}", leader=shard.leader)
        return shard

    async def append(
        self, shard_id: int, batch: Buffer, *, expected_offset: int | None = None, timeout_s: float = 30.0
    ) -> AppendResult:
        self._led(shard_id)
        if self.fail_appends:
            raise self.fail_appends.pop(0)
        if len(batch) > self.max_message_bytes:
            raise BatchTooLargeError("too large", size_bytes=len(batch), limit_bytes=self.max_message_bytes)
        result = self.logs[shard_id].append(batch, expected_offset)
        self._wake()
        if self.hold_appends is not None:
            await self.hold_appends.wait()
        return result

    async def fetch(
        self,
        shard_id: int,
        offset: int,
        max_bytes: int,
        isolation: str = "committed",
        *,
        at_least_one: bool = True,
    ) -> FetchResult:
        term = self._led(shard_id).term
        log = self.logs[shard_id]
        batches = log.read(offset, max_bytes, at_least_one=at_least_one)
        return FetchResult(log.end, log.start, log.end, term, batches, sum(map(len, batches)))

    async def wait_for_data(
        self, positions: Sequence[tuple[int, int]], isolation: str, timeout_s: float, min_bytes: int = 1
    ) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while all(self._bytes_after(*position) < min_bytes for position in positions):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            await self._wait_change(left_s)

    def _bytes_after(self, shard_id: int, offset: int) -> int:
        try:
            self._led(shard_id)
        except AntiphonError:
            return 1 << 40
        return sum(len(data) for header, data in self.logs[shard_id].batches if header.next_offset > offset)

    async def list_offset(self, shard_id: int, timestamp_ms: int) -> OffsetResult:
        term = self._led(shard_id).term
        log = self.logs[shard_id]
        records = [record for _, data in log.batches for record in decode_records(data)]
        match timestamp_ms:
            case -1:
                found = (log.end, -1)
            case -2:
                found = (log.start, -1)
            case -3:
                newest = max(records, key=lambda r: r.timestamp_ms, default=None)
                found = (newest.offset, newest.timestamp_ms) if newest else (-1, -1)
            case _:
                first = next((r for r in records if r.timestamp_ms >= timestamp_ms), None)
                found = (first.offset, first.timestamp_ms) if first else (-1, -1)
        return OffsetResult(*found, term, log.start, log.end)

    async def trim(self, shard_id: int, before: int, timeout_s: float = 30.0) -> int:
        self._led(shard_id)
        log = self.logs[shard_id]
        wanted = log.end if before == -1 else before
        if wanted > log.end:
            raise OffsetOutOfRangeError("beyond", asked=wanted, start=log.start, end=log.end)
        log.batches = [batch for batch in log.batches if batch[0].next_offset > wanted]
        log.start = max(log.start, log.batches[0][0].base_offset if log.batches else wanted)
        return log.start

    def end_of_term(self, shard_id: int, term: int) -> tuple[int, int]:
        self._led(shard_id)
        return (TERM, self.logs[shard_id].end) if term >= TERM else (0, 0)

    # -- Gateway: tables ------------------------------------------------------------------------------------------

    async def table_write(self, request: TableWrite) -> TableWritten:
        self._led(request.shard_id)
        rows = self.rows[request.shard_id]
        results = []
        for op in request.ops:
            match op:
                case Put():
                    version = Version(len(rows), 0, 0, time.time_ns() // 1_000_000)
                    rows[op.key] = (op.value, version)
                    results.append(OpResult(OpStatus.OK, version))
                case Delete():
                    gone = rows.pop(op.key, None)
                    results.append(OpResult(OpStatus.OK if gone else OpStatus.KEY_NOT_FOUND))
                case _:
                    for key in [k for k in rows if op.start <= k and (not op.end or k < op.end)]:
                        del rows[key]
                    results.append(OpResult(OpStatus.OK))
        await asyncio.sleep(0)
        return TableWritten(tuple(results), 1)

    async def table_get(self, request: TableGet) -> TableRows:
        self._led(request.shard_id)
        rows = self.rows[request.shard_id]
        return TableRows(tuple(Row(k, *rows[k]) if k in rows else None for k in request.keys))

    async def table_scan(self, request: TableScan) -> TableRows:
        self._led(request.shard_id)
        rows = self.rows[request.shard_id]
        keys = sorted(k for k in rows if request.start <= k and (not request.end or k < request.end))
        limit = min(request.limit, 7)  # small pages, so that readers must turn them
        return TableRows(tuple(Row(k, *rows[k]) for k in keys[:limit]), more=len(keys) > limit)

    def replica_statuses(self) -> tuple[ReplicaStatus, ...]:
        return ()


def _replace(struct: Any, **fields: Any) -> Any:
    import msgspec.structs

    return msgspec.structs.replace(struct, **fields)
