"""What a client asks of coordinators of transactions and groups: where they are, offsets, what operators want."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from antiphon.client.cluster import Cluster
from antiphon.client.routing.tries import Tries
from antiphon.errors import ProtocolViolationError, UnavailableError
from antiphon.model.body import reply_as
from antiphon.model.client_metrics import GetSubscriptions, Subscription, SubscriptionsReply
from antiphon.model.groups import GetGroups, GroupsReply, GroupState
from antiphon.model.node_settings import GetNodeSettings, NodeSettingsReply
from antiphon.model.transactions import (
    AbortTransaction,
    CoordinatedBy,
    FindCoordinator,
    GetOffsets,
    ListTransactions,
    OffsetsReply,
    TransactionsReply,
    TransactionState,
)

Transactions = tuple[TransactionState, ...]
PLACES_MAX: Final = 1_000


async def all_transactions(
    ask: Callable[[ListTransactions], Awaitable[Any]],
) -> Transactions:
    """All that a node coordinates, page by page."""
    found: list[TransactionState] = []
    while True:
        reply = await ask(ListTransactions(found[-1].transactional_id if found else ""))
        reply = reply_as(TransactionsReply, reply, "for transactions")
        found.extend(reply.rows)
        if not reply.more or not reply.rows:
            return tuple(found)


class Coordinators:
    """Finds the coordinators of transactional ids and groups, and asks them until they answer or the time is over; asks
    single nodes what only they know.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._places: dict[tuple[str, bool], int] = {}

    async def ask(self, name: str, body: Any, *, timeout_s: float, is_group: bool = False) -> Any:
        """Send a request that may be repeated. Raises the first error that a repeat cannot mend, or TimedOutError.

        Both have an unknown outcome if a try before may have been carried out without an answer; reads never have.
        """
        loop = asyncio.get_running_loop()
        tries = self._cluster.tries(timeout_s)
        shard_id = await self._place(name, tries, is_group=is_group)
        reply, _ = await self._cluster.call_shard(
            shard_id,
            body,
            timeout_s=max(0.001, tries.left_s(loop.time())),
            ends=(),
            coordinated=f"the coordinator of {name!r}",
        )
        return reply

    async def _place(self, name: str, tries: Tries, *, is_group: bool) -> int:
        """The shard whose leader coordinates a name: it never changes."""
        known = self._places.get((name, is_group))
        if known is not None:
            return known
        left_s = max(0.01, tries.left_s(asyncio.get_running_loop().time()))
        reply = await self._cluster.call_any(FindCoordinator(name, is_group), timeout_s=left_s)
        reply = reply_as(CoordinatedBy, reply, "for a coordinator")
        while not self._cluster.knows_shard(reply.shard_id):
            await self._cluster.refresh_from_all()
            if not self._cluster.knows_shard(reply.shard_id):
                lacks = UnavailableError(f"no node knows who leads shard {reply.shard_id} yet")
                await self._cluster.learn(lacks, tries)
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        self._places[name, is_group] = reply.shard_id
        return reply.shard_id

    # -- groups -------------------------------------------------------------------------------------------------------

    async def groups(self, node_id: int, *, timeout_s: float) -> tuple[GroupState, ...]:
        """All groups that a node coordinates, page by page: what they are, and their states."""
        found: list[GroupState] = []
        while True:
            reply = await self._groups(node_id, GetGroups(after=found[-1].group if found else ""), timeout_s)
            found.extend(reply.groups)
            if not reply.more or not reply.groups:
                return tuple(found)

    async def group_at(self, node_id: int, group: str, *, start: int = 0, timeout_s: float) -> GroupsReply:
        """What a node knows of a group: all of it, up to 1,000 positions from `start` on, where it coordinates the group."""
        return await self._groups(node_id, GetGroups(group, start=start), timeout_s)

    async def _groups(self, node_id: int, asked: GetGroups, timeout_s: float) -> GroupsReply:
        reply = await self._of_node(node_id, asked, timeout_s)
        return reply_as(GroupsReply, reply, "for groups")

    async def _of_node(self, node_id: int, asked: Any, timeout_s: float) -> Any:
        reply, _ = await self._cluster.ask_node(node_id, asked, timeout_s)
        return reply

    # -- metrics of clients -----------------------------------------------------------------------------------------

    async def subscriptions(self, *, timeout_s: float) -> tuple[Subscription, ...]:
        """The subscriptions to metrics of Kafka's clients, as any node knows them."""
        reply = await self._cluster.call_any(GetSubscriptions(), timeout_s=timeout_s)
        return reply_as(SubscriptionsReply, reply, "for subscriptions").subscriptions

    # -- nodes --------------------------------------------------------------------------------------------------------

    async def node_settings(self, node_id: int, *, timeout_s: float) -> NodeSettingsReply:
        """A node's settings that can be changed while it runs, and what is set for others. Raises UnavailableError."""
        reply = await self._of_node(node_id, GetNodeSettings(), timeout_s)
        return reply_as(NodeSettingsReply, reply, "for settings")


class CoordinatedCalls(ABC):
    """The client's calls to coordinators, except for what a transaction consists of."""

    coordinators: Coordinators

    @abstractmethod
    async def _ask_node(self, node_id: int, body: Any, timeout_s: float | None) -> Any: ...

    @abstractmethod
    def _time(self, timeout_s: float | None) -> float: ...

    async def group_offsets(
        self, group: str, positions: Iterable[tuple[str, int]], *, timeout_s: float | None = None
    ) -> dict[tuple[str, int], int]:
        """The next offsets that a group reads, by (topic, shard); those are left out for which it has none.

        While a transaction that sent one of them is under way, this waits for its end. Raises TimedOutError.
        """
        wanted = tuple(positions)
        reply = await self.coordinators.ask(
            group, GetOffsets(group, wanted), timeout_s=self._time(timeout_s), is_group=True
        )
        if not isinstance(reply, OffsetsReply) or len(reply.offsets) != len(wanted):
            raise ProtocolViolationError(f"asked for offsets, got {type(reply).__name__}")
        return {at: offset for at, offset in zip(wanted, reply.offsets, strict=True) if offset >= 0}

    async def transactions(self, node_id: int, *, timeout_s: float | None = None) -> Transactions:
        """The transactional ids that a node coordinates."""
        return await all_transactions(lambda body: self._ask_node(node_id, body, timeout_s))

    async def abort_transaction(self, node_id: int, name: str, *, timeout_s: float | None = None) -> None:
        """Have the node that coordinates a transactional id abort what is open. Raises InvalidTxnStateError."""
        await self._ask_node(node_id, AbortTransaction(name), timeout_s)
