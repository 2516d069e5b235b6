"""The shards' part of transactions on one node: the marker that ends one is appended by the shard's leader.

The coordinator may be on any node. Where this one leads the shard, the marker is appended here; else the leader is asked,
once. What another node asks is done or refused here, so two nodes that take each other for the leader do not play ball.
"""

from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import AntiphonError, InternalError, NotLeaderError
from antiphon.gateway.answers import awaited
from antiphon.model.cluster import TransactionEnded
from antiphon.node.topic_settings import check_takes_transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from antiphon.gateway.answers import Admit
    from antiphon.model.cluster import EndTransaction
    from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKeys
    from antiphon.node.local_replicas import LocalReplicas
    from antiphon.node.peers import PeerLink
    from antiphon.records.known_producer import KnownProducer

EXTRA_S: Final = 1.0  # beyond what the request itself may take at the leader
TIMEOUT_MS_MAX: Final = 300_000


class LocalTransactions:
    """See ShardTransactions. `link` gives the connection to a node, or UnavailableError."""

    def __init__(self, replicas: "LocalReplicas", link: "Callable[[int], PeerLink]") -> None:
        self._replicas = replicas
        self._link = link

    def has_open(self, shard_id: int, producer_id: int, epoch: int) -> bool:
        """See ShardTransactions."""
        host = self._replicas.hosts.get(shard_id)
        return host is not None and host.log.producers.transactions.has_open(producer_id, epoch)

    def check_taken(self, shard_id: int, *, tables: bool = False) -> None:
        """See ShardTransactions."""
        check_takes_transactions(*self._replicas.shard(shard_id), tables=tables)

    def prepare(self, request: "PrepareWrite", number: int | None, done: "Callable[[Any], None]") -> None:
        """See ShardTransactions."""
        host = self._replicas.host(request.shard_id)
        self.check_taken(request.shard_id, tables=True)
        host.prepares.prepare(request, number, done)

    def read(
        self, request: "ReadKeys | CheckReads", done: "Callable[[Any], None]", admit: "Admit | None" = None
    ) -> None:
        """See ShardTransactions."""
        self._replicas.host(request.shard_id).table_reads.in_transaction(request, done, admit)

    def producers(self, shard_id: int) -> "Iterator[KnownProducer]":
        """See ShardTransactions."""
        host = self._replicas.host(shard_id)
        host.state.check_serving()
        return host.log.producers.known()

    async def end(self, request: "EndTransaction") -> int:
        """See ShardTransactions."""
        try:
            return await self._here(request)
        except NotLeaderError as error:
            leader = error.details.get("leader")
            if not isinstance(leader, int) or leader == self._replicas.node_id:
                raise
        reply = await self._link(leader).ask(request, _timeout_s(request) + EXTRA_S)
        if not isinstance(reply, TransactionEnded):
            raise InternalError(
                f"node {leader} answered the end of a transaction with {type(reply).__name__}"
            )
        return reply.offset

    async def _here(self, request: "EndTransaction") -> int:
        future, done = awaited()
        self._submit(request, done)
        ended: TransactionEnded = await future
        return ended.offset

    def received(self, request: "EndTransaction", answered: "Callable[[Any], None]") -> None:
        """Another node's coordinator asks for a marker."""
        try:
            self._submit(request, answered)
        except AntiphonError as error:
            answered(error)

    def _submit(self, request: "EndTransaction", done: "Callable[[Any], None]") -> None:
        self._replicas.host(request.shard_id).transactions.end(request, _timeout_s(request), done)


def _timeout_s(request: "EndTransaction") -> float:
    return max(1, min(request.timeout_ms, TIMEOUT_MS_MAX)) / 1000
