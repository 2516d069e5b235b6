"""Nodes whose native listener fails on request: real nodes, with a fault between a client's request and its answer.

`fail` says what becomes of the next requests of a kind. Nothing else of a node is changed, and requests of other nodes
are let through. On the virtual loop a whole cluster is made for each test (`FailingNodes.cluster`); the blocking client's
tests put the same faults into nodes on a real loop.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from antiphon.errors import AntiphonError
from antiphon.model.metadata import ClusterMeta, TopicMeta
from antiphon.model.requests import GetMetadata, Hello, MetadataReply
from antiphon.native.exchange import Exchange
from antiphon.native.session import NativeSession
from antiphon.partition.partition import Partition
from antiphon.records.batch import read_header
from tests.node.in_process import Nodes, cluster_of, eventually

DROP_BEFORE: Final = "drop_before"  # the connection ends before the request is carried out
DROP_AFTER: Final = "drop_after"  # it is carried out, and the connection ends before the answer
SILENT: Final = "silent"  # it is never looked at, and never answered

Fault = str | AntiphonError | Callable[[Callable[[], None]], object] | None
"""What becomes of a request: one of the words above, the error that it is refused with, or a function that is given what
sends the answer; None: nothing."""


class FailingListeners:
    """What clients asked of the native listeners of all nodes in this process, and what is to become of it."""

    def __init__(self) -> None:
        self.faults: dict[type, deque[Fault]] = {}
        self.seen: list[Any] = []
        self.stale: ClusterMeta | None = None  # what clients are told for metadata, in place of the newest
        self._muted: set[Exchange] = set()
        self._answers: dict[tuple[Exchange, int], Fault] = {}

    def fail(self, kind: type, *faults: Fault) -> None:
        """Let the next requests of a kind fail so, one each; None: not this one."""
        self.faults.setdefault(kind, deque()).extend(faults)

    def count(self, kind: type) -> int:
        """How many requests of a kind clients have sent."""
        return sum(isinstance(body, kind) for body in self.seen)

    @contextmanager
    def faulty(self) -> Iterator[None]:
        """While this lasts, every native listener of this process fails as it is told to."""
        dispatch, reply = NativeSession._dispatch, Exchange.reply

        def dispatched(session: NativeSession, request_id: int, body: Any, payload: memoryview) -> None:
            if not _is_clients(session, body):
                dispatch(session, request_id, body, payload)
                return
            self.seen.append(body)
            queue = self.faults.get(type(body))
            fault = queue.popleft() if queue else None
            exchange = session.exchange
            if exchange in self._muted:
                return
            if fault == DROP_BEFORE:
                drop(exchange)
            elif isinstance(fault, AntiphonError):
                exchange.fail(request_id, fault)
            elif isinstance(body, GetMetadata) and self.stale is not None:
                exchange.reply(request_id, MetadataReply(self.stale))
            elif fault != SILENT:
                if fault is not None:
                    self._answers[exchange, request_id] = fault
                dispatch(session, request_id, body, payload)

        def replied(exchange: Exchange, request_id: int, *answer: Any) -> None:
            fault = self._answers.pop((exchange, request_id), None)
            if fault == DROP_AFTER:
                drop(exchange)
            elif callable(fault):
                fault(lambda: reply(exchange, request_id, *answer))
            else:
                reply(exchange, request_id, *answer)

        with (
            patch.object(NativeSession, "_dispatch", dispatched),
            patch.object(Exchange, "reply", replied),
        ):
            yield


def _is_clients(session: NativeSession, body: Any) -> bool:
    return session.peer_id is None and not (isinstance(body, Hello) and body.node_id is not None)


def drop(exchange: Exchange) -> None:
    """End a connection; what is not answered yet never will be."""
    if exchange.connection is not None:
        exchange.connection.close()


class FailingNodes(FailingListeners):
    """Whole nodes on the virtual loop, with such listeners."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__()
        self.nodes = nodes

    @classmethod
    @asynccontextmanager
    async def cluster(cls, count: int = 3) -> AsyncIterator["FailingNodes"]:
        """A running cluster."""
        async with cluster_of(count) as nodes:
            made = cls(nodes)
            with made.faulty():
                yield made

    @property
    def servers(self) -> str:
        """As clients are given it."""
        return ",".join(member.native for member in self.nodes.members)

    def topic(self, name: str) -> TopicMeta:
        """What the node with the newest metadata knows of a topic or table."""
        return max(self.nodes.nodes.values(), key=lambda node: node.gateway.metadata.version).gateway.topic(
            name
        )

    def host(self, name: str, index: int = 0) -> Partition:
        """The replica that serves a shard."""
        shard_id = self.topic(name).shards[index].shard_id
        hosts = [node.hosts.get(shard_id) for node in self.nodes.nodes.values()]
        return next(host for host in hosts if host is not None and host.state.is_serving)

    def leader(self, name: str, index: int = 0) -> int:
        """The node that serves a shard."""
        return self.host(name, index).services.node_id

    def batches(self, name: str, index: int = 0) -> list[bytes]:
        """What is committed in a shard, without what a leader writes when it begins."""
        host, found, at = self.host(name, index), [], 0
        while at < host.state.high_watermark:
            for batch in host.log.read(at, 1 << 20, host.state.high_watermark):
                header = read_header(batch)
                at = header.next_offset
                found += [] if header.is_control else [bytes(batch)]
        return found

    def end(self, name: str, index: int = 0) -> int:
        """The offset after the last that is committed."""
        return self.host(name, index).state.high_watermark

    async def move_leader(self, name: str, index: int, leader: int, *, announce: bool = True) -> None:
        """Another node leads from now on; without `announce` clients who ask for metadata are told what was before."""
        if self.leader(name, index) == leader:
            return
        before = self.nodes.nodes[self.leader(name, index)].gateway.metadata
        await self.nodes.nodes[leader].gateway.elect_leader(self.topic(name).shards[index].shard_id, leader)
        await eventually(lambda: self.leader(name, index) == leader)
        self.stale = None if announce else before

    async def until_seen(self, kind: type, count: int) -> None:
        """Wait until so many requests of a kind have arrived."""
        await eventually(lambda: self.count(kind) >= count)

    def client_exchanges(self, node_id: int) -> list[Exchange]:
        """The connections that clients have to a node."""
        sessions = self.nodes.servers[node_id].native.sessions.values()
        return [session.exchange for session in sessions if session.peer_id is None]

    def mute(self, node_id: int) -> None:
        """Answer nothing any more on the connections that clients have to a node now."""
        self._muted.update(self.client_exchanges(node_id))

    def drop_clients(self, node_id: int) -> None:
        """End the connections that clients have to a node."""
        for exchange in self.client_exchanges(node_id):
            drop(exchange)
