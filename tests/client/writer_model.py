"""The shards of a table or a topic and the network to them as a seed has it, without sockets or time.

Everything that happens is a turn of the event loop, drawn from one random source, so a seed always plays the same. The
client is real (`AsyncTable`, `AsyncTopic`, writers, handovers, `Cluster`), and so are the shards' rules: `ProducerState`,
`WriteOrder`, `RefusedAppends`, the ranges of keys. The network is hostile: connections break with requests and answers on
their way, and what was on its way may still be carried out later. Leaders change, with or without what was not committed;
they refuse for a moment; a table's shards are split.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from antiphon.client.cluster import Cluster
from antiphon.client.connection import Connection
from antiphon.client.connection_errors import ConnectionLostError
from antiphon.errors import (
    AntiphonError,
    BatchTooLargeError,
    InvalidRequestError,
    NotLeaderError,
    NotReadyError,
    OffsetMismatchError,
    UnavailableError,
)
from antiphon.log.producer_state import ProducerState
from antiphon.model.metadata import ClusterMeta, Kind, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.requests import AppendBatch, Appended, OpResult, OpStatus, Put, TableWrite, TableWritten
from antiphon.model.rows import Version
from antiphon.partition.write_order import RefusedAppends, WriteOrder
from antiphon.records.batch import BatchHeader, read_header
from antiphon.records.decode import decode_records
from antiphon.records.split_entries import Freeze, Inherit, Release
from antiphon.table.ranges import OwnedRange, advance, check_ops, wrong_shard

NODES = 3
Answered = Callable[[Any], None]
POISON = b"poison"  # a value that makes its whole request invalid


class ModelShard(ABC):
    """What is in one shard's log, and what its leader remembers."""

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.term = 1
        self.leader = 0
        self.producers = ProducerState()
        self.log: list[tuple[bytes, bytes]] = []
        self.committed = 0
        self.pending: list[tuple[int, Any, Answered]] = []  # each with the end that is to be committed first
        self.forget()

    @abstractmethod
    def forget(self) -> None:
        """A new leader begins without what the log does not tell."""

    @abstractmethod
    def judge(self, body: Any, payload: bytes) -> Any:
        """Carry out a request and return the reply, or raise."""

    def lead(self, node: int, *, lose: bool) -> None:
        """A new leader, with what was not committed or without."""
        if lose:
            del self.log[self.committed :]
            self.producers.truncate(self.committed)
            for _, _, answered in self.pending:
                answered(NotLeaderError("deposed", leader=None))
            self.pending = []
        self.commit()
        self.leader = node
        self.term += 1
        self.forget()

    def commit(self) -> None:
        self.committed = len(self.log)
        for _, reply, answered in self.pending:
            answered(reply)
        self.pending = []


class TableModel(ModelShard):
    """A shard of a table."""

    def __init__(self, shard_id: int, owned: OwnedRange) -> None:
        super().__init__(shard_id)
        self.owned = owned
        self.batches: dict[int, TableWritten] = {}  # by base offset

    def forget(self) -> None:
        self.order = WriteOrder()

    def judge(self, body: TableWrite, payload: bytes) -> TableWritten:
        header = BatchHeader(
            len(self.log), 0, 0, 2, 0, 0, 0, 0, 0, body.producer_id, 0, body.sequence, len(body.ops)
        )
        duplicate = self.producers.check(header, table=True)
        if duplicate is not None:
            return self.batches[duplicate.base_offset]
        self.order.check(body, self.producers)
        if not check_ops(self.owned, body.ops, body.hashes):
            raise wrong_shard(self.shard_id, self.owned)
        if any(isinstance(op, Put) and op.value == POISON for op in body.ops):
            raise InvalidRequestError("a poisoned value")
        results = []
        base = len(self.log)
        for op in body.ops:
            assert isinstance(op, Put)
            if op.expected_version is not None:
                results.append(OpResult(OpStatus.UNEXPECTED_VERSION))
                continue
            results.append(OpResult(OpStatus.OK, Version(len(self.log), 0, 0, 0)))
            self.log.append((op.key, op.value))
        written = TableWritten(tuple(results), base)
        if len(self.log) == base:
            self.order.left_no_trace(body)
            return written
        self.producers.update(header._replace(record_count=1, last_offset_delta=len(self.log) - base - 1))
        self.batches[base] = written
        return written


class TopicModel(ModelShard):
    """A shard of a topic, whose appends are judged in the order of `PartitionClients.append`."""

    def forget(self) -> None:
        self.refused = RefusedAppends()

    def judge(self, body: AppendBatch, payload: bytes) -> Appended:
        header = read_header(payload)
        records = list(decode_records(payload))
        if any(record.value == POISON for record in records):
            raise BatchTooLargeError("a poisoned value")
        duplicate = self.producers.check(header)
        if duplicate is not None:
            return Appended(duplicate.base_offset, duplicate.next_offset, self.term, True)
        self.refused.check(header)
        base = len(self.log)
        if body.expected_offset not in {None, base}:
            self.refused.note(header, self.producers)
            raise OffsetMismatchError("not there", expected=body.expected_offset, actual=base)
        self.refused.landed(header)
        self.log += [(record.key or b"", record.value or b"") for record in records]
        self.producers.update(header._replace(base_offset=base))
        return Appended(base, len(self.log), self.term)


class ModelConnection:
    """Requests in order one way, answers in order the other; either may be cut off."""

    congested = False

    def __init__(self, cluster: "ModelCluster", node: int) -> None:
        self.cluster = cluster
        self.node = node
        self.lost: AntiphonError | None = None
        self.requests: deque[tuple[Any, bytes, Callable[[Any, Any], None]]] = deque()
        self.open: list[Callable[[Any, Any], None]] = []
        self.answers: deque[tuple[Any, Callable[[Any, Any], None]]] = deque()

    def send(
        self, body: Any, answer: Callable[[Any, Any], None], payload: Any = (), trace: str | None = None
    ) -> None:
        if self.lost is not None:
            raise self.lost
        self.requests.append((body, b"".join(payload), answer))

    def step(self) -> None:
        """One request is carried out, or one answer arrives."""
        draw = self.cluster.random
        if self.answers and (not self.requests or draw.random() < 0.5):
            reply, answer = self.answers.popleft()
            answer(reply, memoryview(b""))
        elif self.requests:
            body, payload, answer = self.requests.popleft()
            self.open.append(answer)
            self.cluster.carry_out(self.node, body, payload, lambda reply: self.answered(reply, answer))

    def answered(self, reply: Any, answer: Callable[[Any, Any], None]) -> None:
        if self.lost is None:
            self.open.remove(answer)
            self.answers.append((reply, answer))

    def cut(self) -> None:
        """The client hears nothing more from here; what it sent may be carried out all the same, later."""
        self.lost = ConnectionLostError("cut")
        waiting = (
            [answer for _, answer in self.answers] + self.open + [answer for *_, answer in self.requests]
        )
        self.cluster.late += [(self.node, body, payload) for body, payload, _ in self.requests]
        self.answers.clear()
        self.requests.clear()
        for answer in waiting:
            answer(self.lost, memoryview(b""))


class ModelCluster(Cluster):
    """One table or topic `t`, and a client's view of it that may lag."""

    def __init__(self, seed: int, kind: Kind) -> None:
        super().__init__("127.0.0.1:1", "model")
        self.seed = seed
        self.random = random.Random(seed)
        self.links: list[ModelConnection] = []
        self.late: list[tuple[int, Any, bytes]] = []  # on lost connections, not carried out yet
        self.kind = kind
        self.producers = 0
        self.shards: dict[int, ModelShard] = {
            1: TableModel(1, OwnedRange()) if kind is Kind.TABLE else TopicModel(1)
        }
        self.version = 1
        self.refusing = 0  # this many requests more
        self.happened: dict[str, int] = {}
        self._routes.adopt(self.now())

    def now(self) -> ClusterMeta:
        split = len(self.shards) > 1
        shards = tuple(
            ShardMeta(
                shard.shard_id,
                index,
                (0, 1, 2),
                shard.leader,
                shard.term,
                ShardStatus.ONLINE,
                hashes=(shard.owned.first, shard.owned.last)
                if split and isinstance(shard, TableModel)
                else (),
            )
            for index, shard in enumerate(self.shards.values())
        )
        nodes = tuple(NodeMeta(node, f"node:{node}") for node in range(NODES))
        topic = TopicMeta("t", bytes(15) + b"1", self.kind, 3, "oxia", shards)
        return ClusterMeta("model", self.version, 0, nodes, (topic,))

    # -- what the client calls ------------------------------------------------------------------------------------

    async def refresh(self, *, avoid: str | None = None, news: bool = False) -> None:
        await asyncio.sleep(0)
        if self.random.random() < 0.2:
            raise UnavailableError("nobody answers")
        self._routes.adopt(self.now())

    def ready_connection(self, shard_id: int) -> Connection | None:
        node = self._routes.leader(shard_id)
        found = [link for link in self.links if link.node == node and link.lost is None]
        return found[0] if found else None  # type: ignore[return-value]

    async def connection(self, address: str) -> Connection:
        await asyncio.sleep(0)
        node = int(address.partition(":")[2])
        found = [link for link in self.links if link.node == node and link.lost is None]
        if not found:
            found = [ModelConnection(self, node)]
            self.links += found
        return found[0]  # type: ignore[return-value]

    async def producer_id(self, *, fresh: bool = False) -> int:
        await asyncio.sleep(0)
        self.producers += fresh
        return self.producers if fresh else 1000

    # -- what happens ---------------------------------------------------------------------------------------------

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    def carry_out(self, node: int, body: Any, payload: bytes, answered: Answered) -> None:
        shard = self.shards[body.shard_id]
        try:
            if shard.leader != node:
                raise NotLeaderError("not me", leader=shard.leader)
            if self.refusing:
                self.refusing -= 1
                raise NotReadyError("refused for a moment")
            reply = shard.judge(body, payload)
            shard.pending.append((len(shard.log), reply, answered))
        except AntiphonError as error:
            self.count(error.code)
            answered(error)

    def step(self) -> None:
        """Something happens."""
        draw = self.random.random()
        live = [link for link in self.links if link.lost is None]
        if draw < 0.01:
            self.refusing = self.random.choice([1, 1, 1, 2])
        elif draw < 0.02 and live:
            self.random.choice(live).cut()
        elif draw < 0.03:
            shard = self.random.choice(list(self.shards.values()))
            shard.lead(self.random.randrange(NODES), lose=self.random.random() < 0.5)
            self.version += 1
        elif draw < 0.035 and self.kind is Kind.TABLE:
            self.split()
        elif draw < 0.1 and self.late:
            node, body, payload = self.late.pop(self.random.randrange(len(self.late)))
            self.carry_out(node, body, payload, lambda _: None)
        elif draw < 0.3:
            self.random.choice(list(self.shards.values())).commit()
        elif live:
            self.random.choice(live).step()

    def split(self) -> None:
        """A freeze or, where there is one, the end of the split; the client does not hear of it by itself."""
        tables = [shard for shard in self.shards.values() if isinstance(shard, TableModel)]
        shard = self.random.choice(tables)
        shard.commit()
        owned, at = shard.owned, len(shard.log)
        if not owned.is_frozen:
            if len(self.shards) < 4 and not any(other.owned.is_frozen for other in tables):
                middle = (owned.first + owned.last + 1) // 2
                shard.owned = advance(owned, Freeze(middle, len(self.shards) + 1), at)
            return
        child = TableModel(len(self.shards) + 1, OwnedRange())
        child.owned = advance(
            OwnedRange(), Inherit(owned.frozen_from, owned.last, shard.shard_id, 0, 0, b""), 0
        )
        shard.owned = advance(owned, Release(owned.frozen_at, owned.frozen_from, child.shard_id, 0), at)
        self.shards[child.shard_id] = child
        self.version += 1
        self.count("split")
