"""A client's view of the cluster: nodes, leaders, connections; requests that follow leaders until their time is over.

Any node knows all metadata. A client asks one that it can reach and stores the answer. It asks again when a node says
that it does not lead (the node often names the leader) or when a connection ends. While a shard has no leader the
request waits at the node until there is newer metadata, so that the client learns of the end of a fail-over at once.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon import system
from antiphon.client.addresses import parse_address, parse_servers
from antiphon.client.connection import Connection, open_connection
from antiphon.client.connection_errors import ClientClosedError, ConnectionLostError, NoHelloError
from antiphon.client.log import logger
from antiphon.client.reads import is_read
from antiphon.client.routing.outcomes import unanswered
from antiphon.client.routing.routes import NOBODY_HELPS, Routes, places_to_ask
from antiphon.client.routing.tries import NEWS_WAIT_MS, Tries
from antiphon.client.tasks import begin_task, end_tasks
from antiphon.client.wrong_port import check_port
from antiphon.errors import (
    AntiphonError,
    TimedOutError,
    UnavailableError,
    UnreachableError,
    WrongShardError,
)
from antiphon.model.body import reply_as
from antiphon.model.metadata import ClusterMeta, TopicMeta
from antiphon.model.requests import GetMetadata, MetadataReply, NewProducerId, ProducerId
from antiphon.security.account import Account
from antiphon.wire.frames import Buffer

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing

ASK_TIMEOUT_S: Final = 1.5  # for one node to answer a question about metadata
INQUIRIES_MAX: Final = 10

FoundT = TypeVar("FoundT")


class Cluster:
    """Metadata and connections of one client; all methods belong to one event loop."""

    def __init__(
        self,
        servers: str | Iterable[str],
        who: str,
        account: Account | None = None,
        tls: "Dialing | None" = None,
    ) -> None:
        self._account = account
        self._tls = tls
        self.servers = parse_servers(servers)
        self.closed = False
        self._who = who
        self._routes = Routes()
        self._connections: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._inquiries: set[asyncio.Task[None]] = set()
        self._producer_id: asyncio.Task[int] | None = None

    # -- metadata -----------------------------------------------------------------------------------------------

    @property
    def meta(self) -> ClusterMeta | None:
        """The newest metadata that any node gave; None before the first."""
        return self._routes.meta

    @property
    def topics(self) -> dict[str, TopicMeta]:
        """Topics and tables by name."""
        return self._routes.topics

    async def connect(self, timeout_s: float) -> None:
        """Reach any node and learn the metadata; raises UnreachableError."""
        tries = self.tries(timeout_s)
        while self.meta is None:
            try:
                await self.refresh()
            except UnavailableError as error:
                if isinstance(error.__cause__, NoHelloError) and not tries.count:
                    for address in self.servers:
                        await check_port(*parse_address(address), self._tls)
                try:
                    tries.failed_anywhere(error)
                    await self._next(tries)
                except TimedOutError:
                    raise UnreachableError(
                        f"no node answered at {', '.join(self.servers)} within {timeout_s:.1f} s ({error.message}); "
                        "is the cluster up?"
                    ) from error

    async def refresh(self, *, avoid: str | None = None, news: bool = False) -> None:
        """Ask a node for metadata; concurrent callers share one question.

        With `news` the node may hold the question until it has something newer. Raises UnavailableError when none answers.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._ask(avoid, news=news))
            self._refreshing.add_done_callback(_failed)
        await asyncio.shield(self._refreshing)

    async def _ask(self, avoid: str | None, *, news: bool) -> None:
        problem: AntiphonError = UnavailableError("no address of a node is known: give servers")
        known = self.meta.version if self.meta is not None and news else -1
        question = GetMetadata(known, NEWS_WAIT_MS if news else 0)
        for address in self._places(avoid):
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    connection = await self.connection(address)
                    reply, _ = await connection.request(question)
            except NOBODY_HELPS:
                raise
            except AntiphonError as error:
                problem = error
                continue
            except TimeoutError:
                kind = UnavailableError if address in self._connections else NoHelloError
                problem = kind(f"{address} did not answer within {ASK_TIMEOUT_S:.1f} s")
                continue
            if isinstance(reply, MetadataReply):
                self._routes.adopt(reply.cluster)
                return
        raise UnavailableError(problem.message) from problem

    async def until(self, seen: Callable[[], bool], timeout_s: float) -> None:
        """Ask for metadata until it contains a change that was made: nodes learn of it one after the other."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        await self.refresh()
        while not seen():
            if asyncio.get_running_loop().time() > deadline:
                raise TimedOutError(
                    "the change was made, but the node that was asked does not know of it yet: ask again in a moment"
                )
            await self.refresh(news=True)

    async def refresh_from_all(self) -> None:
        """Ask every node that answers soon: for callers that must not miss a change because one node lags."""
        question = GetMetadata()
        for address in self._places(None):
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    connection = await self.connection(address)
                    reply, _ = await connection.request(question)
            except (AntiphonError, TimeoutError):
                continue
            if isinstance(reply, MetadataReply):
                self._routes.adopt(reply.cluster)

    def _places(self, avoid: str | None) -> list[str]:
        """Addresses to ask: connected ones first, the one to avoid last."""
        known = self._routes.addresses.values()
        return places_to_ask(self._connections, known, self.servers, system.rng().shuffle, avoid)

    def address_of(self, node_id: int) -> str:
        """Native address of a node; raises UnavailableError when there is none."""
        address = self._routes.addresses.get(node_id)
        if address is None:
            raise UnavailableError(f"node {node_id} is not known, or has no native address")
        return address

    def leader_address(self, shard_id: int) -> str:
        """Where the shard's leader is, as far as is known.

        Raises UnknownShardError when the shard is in no topic, UnavailableError when it has no leader.
        """
        return self._routes.leader_address(shard_id)

    def knows_shard(self, shard_id: int) -> bool:
        """Is there metadata of that shard here?"""
        return self._routes.leader(shard_id) is not None

    # -- connections --------------------------------------------------------------------------------------------

    def ready_connection(self, shard_id: int) -> Connection | None:
        """The connection to the shard's leader if it is there already."""
        address = self._routes.known_address(shard_id)
        connection = self._connections.get(address) if address is not None else None
        return connection if connection is not None and connection.lost is None else None

    async def connection(self, address: str) -> Connection:
        """The connection to an address, opened if need be; raises AntiphonError."""
        if self.closed:
            raise ClientClosedError("this client is closed: connect() makes a new one")
        connection = self._connections.get(address)
        if connection is not None and connection.lost is None:
            return connection
        opening = self._opening.get(address)
        if opening is None:
            opening = asyncio.create_task(self._open(address))
            self._opening[address] = opening
            opening.add_done_callback(lambda task: self._opened(address, task))
        return await asyncio.shield(opening)

    async def _open(self, address: str) -> Connection:
        cluster_id = self.meta.cluster_id if self.meta is not None else None
        return await open_connection(address, self._who, cluster_id, self._account, self._tls)

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(address, None)
        if task.cancelled() or (problem := task.exception()) is not None:
            if not task.cancelled():
                logger.debug("no connection to %s: %s", address, problem)
            return
        connection = task.result()
        logger.info("connected to %s", address)
        self._connections[address] = connection
        connection.on_silence = self._went_silent
        connection.closed.add_done_callback(lambda _: self._closed(address, connection))

    def _closed(self, address: str, connection: Connection) -> None:
        if not self.closed:
            logger.info("disconnected from %s: %s", address, connection.lost)
        if self._connections.get(address) is connection:
            del self._connections[address]

    def _went_silent(self, connection: Connection) -> None:
        """Requests are open and nothing arrives: if other nodes say that the node is dead, do not wait for it."""
        begin_task(self._ask_about(connection), self._inquiries)

    async def _ask_about(self, connection: Connection) -> None:
        for _ in range(INQUIRIES_MAX):
            try:
                await self.refresh(avoid=connection.address, news=True)
            except AntiphonError:
                return
            if not connection.silent or self.meta is None:
                return
            for node in self.meta.nodes:
                if node.native == connection.address and not node.alive:
                    connection.abort(
                        ConnectionLostError(f"{connection.address} is silent, and dead to the others")
                    )
                    return

    # -- requests -----------------------------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def tries(self, timeout_s: float) -> Tries:
        """For a call that takes so long at the most."""
        return self.tries_until(self._now() + timeout_s)

    def tries_until(self, deadline_s: float, *, coordinated: bool = False) -> Tries:
        """For a call that ends then (loop time) at the latest. `coordinated`: see `Tries`."""
        return Tries(self._routes, self._now(), deadline_s, coordinated=coordinated)

    async def failed(self, shard_id: int, error: AntiphonError, tries: Tries, *, wrote: bool = False) -> None:
        """A try at a shard's leader failed: do what there is to do before the next one. `wrote`: a write was sent.

        Raises what ends the tries.
        """
        logger.debug("shard %d, try %d failed: %s", shard_id, tries.count + 1, error.message)
        tries.failed(shard_id, error, self._now(), wrote=wrote)
        if self.closed:
            tries.end(ClientClosedError("this client is closed: connect() makes a new one"))
        await self._next(tries)

    async def learn(self, error: AntiphonError, tries: Tries) -> None:
        """Pause, and have newer metadata afterwards if a node has some; raises TimedOutError when the time is over."""
        tries.lacking(error)
        await self._next(tries)

    async def _next(self, tries: Tries) -> None:
        """Pause, and ask what is to be asked."""
        step = tries.step(self._now(), system.rng().uniform)
        await asyncio.sleep(step.pause_s)
        question = step.question
        if question is None or (self.meta is not None and self.meta.version > question.known):
            return  # it came meanwhile: waiting for more would be in vain
        try:
            await self.refresh(avoid=question.avoid, news=question.holds)
        except UnavailableError:
            return  # the next try says what is wrong, until the time is over

    async def across_splits(self, attempt: Callable[[], Awaitable[FoundT]], tries: Tries) -> FoundT:
        """Do something by what is known of a table's shards; again with newer metadata where one of them was split.

        `attempt` does it, once. Raises what it raises, and TimedOutError.
        """
        while True:
            try:
                return await attempt()
            except WrongShardError as error:
                await self.learn(error, tries)

    async def ask_node(self, node_id: int, body: Any, timeout_s: float) -> tuple[Any, memoryview]:
        """Send a request to one node, once; returns the reply and its bulk bytes.

        Raises UnavailableError where the node is not known, TimedOutError, and what it answers.
        """
        address = self.address_of(node_id)
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self.connection(address)
                return await connection.request(body)
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(
                f"node {node_id} at {address} did not answer within {timeout_s:.1f} s"
            ) from None

    async def call_shard(
        self,
        shard_id: int,
        body: Any,
        payload: Sequence[Buffer] = (),
        *,
        timeout_s: float,
        ends: tuple[type[AntiphonError], ...] = (WrongShardError,),
        trace: str | None = None,
        coordinated: str = "",
    ) -> tuple[Any, memoryview]:
        """Send a request that may be repeated to the shard's leader; returns the reply and its bulk bytes. `trace`: see
        `Connection.request`. `coordinated`: what the leader coordinates, if it is asked as a coordinator.

        Raises the first error that a retry cannot fix, or one of `ends`, which are for the caller to deal with, or
        TimedOutError.
        """
        connection = self.ready_connection(shard_id)
        tries: Tries | None = None
        deadline = self._now() + timeout_s
        while True:
            sent = False
            try:
                if connection is None:
                    connection = await self.connection(self.leader_address(shard_id))
                sent = True
                async with asyncio.timeout_at(deadline):
                    return await connection.request(body, payload, trace)
            except AntiphonError as error:
                if isinstance(error, ends):  # such as which shard to ask instead
                    raise
                if tries is None:
                    tries = self.tries_until(deadline, coordinated=bool(coordinated))
                await self.failed(shard_id, error, tries, wrote=sent and not is_read(body))
                connection = None
            except TimeoutError:
                who = coordinated or f"the leader of shard {shard_id}"
                text = f"no answer within {timeout_s:.1f} s from {who}"
                raise unanswered(text, wrote=not is_read(body)) from None

    async def call_any(
        self, body: Any, *, timeout_s: float, done_if: type[AntiphonError] | None = None
    ) -> Any:
        """Send a request to any node; if that fails in a way that a retry can fix, send it to another one.

        Returns the reply. Returns None if a repeated request fails with `done_if` because an earlier try was carried
        out (a topic to create exists, a topic to delete does not).
        """
        tries = self.tries(timeout_s)
        wrote = not is_read(body)
        avoid: str | None = None
        while True:
            sent = False
            try:
                avoid = self._places(avoid)[0]
                connection = await self.connection(avoid)
                sent = True
                async with asyncio.timeout_at(tries.deadline_s):
                    reply, _ = await connection.request(body)
                return reply
            except AntiphonError as error:
                if tries.unknown and done_if is not None and isinstance(error, done_if):
                    return None
                logger.debug("%s, try %d failed: %s", type(body).__name__, tries.count + 1, error.message)
                tries.failed_anywhere(error, wrote=sent and wrote)
                await self._next(tries)
            except TimeoutError:
                raise unanswered(f"no answer from {avoid} within {timeout_s:.1f} s", wrote=wrote) from None

    async def producer_id(self, *, fresh: bool = False) -> int:
        """A producer id (below 2^61) that no other client has; the client's own, or a `fresh` one."""
        if fresh:
            return await self._new_producer_id()
        if self._producer_id is None or (self._producer_id.done() and _failed(self._producer_id)):
            self._producer_id = asyncio.create_task(self._new_producer_id())
            self._producer_id.add_done_callback(_failed)
        return await asyncio.shield(self._producer_id)

    async def _new_producer_id(self) -> int:
        reply = await self.call_any(NewProducerId(), timeout_s=30.0)
        return reply_as(ProducerId, reply, "for a producer id").producer_id

    async def close(self) -> None:
        """Close every connection; requests that are open fail. A second close does nothing."""
        self.closed = True
        await end_tasks(*self._opening.values(), *self._inquiries, self._refreshing, self._producer_id)
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()


def _failed(task: "asyncio.Task[Any]") -> bool:
    """Did it fail? Asking marks the error as seen, for whoever waited may have stopped."""
    return task.cancelled() or task.exception() is not None
