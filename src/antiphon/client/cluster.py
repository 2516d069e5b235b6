"""A client's view of the cluster: nodes, leaders, connections; requests that follow leaders until their time is over.

Any node knows all metadata. A client asks one that it can reach and stores the answer. It asks again when a node says
that it does not lead (the node often names the leader) or when a connection ends. While a shard has no leader the
request waits at the node until there is newer metadata, so that the client learns of the end of a fail-over at once.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from antiphon import system
from antiphon.client.connection import (
    ClientClosedError,
    Connection,
    ConnectionLostError,
    NoHelloError,
    open_connection,
    parse_address,
)
from antiphon.client.log import logger
from antiphon.client.reads import is_read
from antiphon.client.routes import Next, Routes
from antiphon.client.wrong_port import check_port
from antiphon.errors import (
    AntiphonError,
    ForeignDirectoryError,
    InvalidRequestError,
    ProtocolViolationError,
    TimedOutError,
    UnauthenticatedError,
    UnavailableError,
    UnknownShardError,
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

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 0.5
ASK_TIMEOUT_S: Final = 1.5  # for one node to answer a question about metadata
NEWS_WAIT_S: Final = 0.3  # how long a node may keep the question for newer metadata
INQUIRIES_MAX: Final = 10


class Pauses:
    """Growing pauses with jitter between tries, until a deadline (loop time)."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._next_s = PAUSE_S_MIN
        self.count = 0
        self.started = asyncio.get_running_loop().time()

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - asyncio.get_running_loop().time()

    async def wait(self, reason: AntiphonError) -> None:
        """Sleep for the next pause; raises TimedOutError when the deadline comes first."""
        self.count += 1
        pause_s = self._next_s * system.rng().uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, PAUSE_S_MAX)
        if self.left_s() <= pause_s:
            raise TimedOutError(
                f"gave up after the last of several tries failed: {reason.message}"
            ) from reason
        await asyncio.sleep(pause_s)


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
        pauses = Pauses(asyncio.get_running_loop().time() + timeout_s)
        while self.meta is None:
            try:
                await self.refresh()
            except UnavailableError as error:
                if isinstance(error.__cause__, NoHelloError) and not pauses.count:
                    for address in self.servers:
                        await check_port(*parse_address(address), self._tls)
                try:
                    await pauses.wait(error)
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
        question = GetMetadata(known, int(NEWS_WAIT_S * 1000) if news else 0)
        for address in self._places(avoid):
            try:
                async with asyncio.timeout(ASK_TIMEOUT_S):
                    connection = await self.connection(address)
                    reply, _ = await connection.request(question)
            except (
                InvalidRequestError,
                ForeignDirectoryError,
                ProtocolViolationError,
                UnauthenticatedError,
            ):
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
        others = [address for address in self._routes.addresses.values() if address not in self._connections]
        system.rng().shuffle(others)
        connected = list(self._connections)
        system.rng().shuffle(connected)
        places = list(dict.fromkeys(connected + others + self.servers))
        if avoid in places:
            places.remove(avoid)
            places.append(avoid)
        return places

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
        task = asyncio.create_task(self._ask_about(connection))
        self._inquiries.add(task)
        task.add_done_callback(self._inquiries.discard)

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

    async def failed(self, shard_id: int, error: AntiphonError, pauses: Pauses) -> None:
        """A try at a shard failed with `error`: get newer metadata and pause, or raise the error that ends the tries."""
        logger.debug("shard %d, try %d failed: %s", shard_id, pauses.count + 1, error.message)
        step = self._routes.after(shard_id, error, asyncio.get_running_loop().time() - pauses.started)
        if step is not Next.FOLLOW and self.closed:
            raise ClientClosedError("this client is closed: connect() makes a new one")
        if step is Next.LEARN:
            try:
                avoid = self.leader_address(shard_id)
            except AntiphonError:
                avoid = None
            await self.learn(error, pauses, avoid=avoid)
        else:
            await pauses.wait(error)

    async def learn(self, error: AntiphonError, pauses: Pauses, *, avoid: str | None = None) -> None:
        """Pause, and have newer metadata afterwards if a node has some; raises TimedOutError when the time is over."""
        version = self.meta.version if self.meta is not None else -1
        await pauses.wait(error)
        if self.meta is not None and self.meta.version > version:
            return  # it came meanwhile: waiting for more would be in vain
        # The first time, what a node knows by now will do; later there is reason to wait for news.
        news = pauses.count > 1 and not isinstance(error, UnknownShardError)
        try:
            await self.refresh(avoid=avoid, news=news)
        except UnavailableError:
            return  # the next try says what is wrong, until the time is over

    async def call_shard(
        self,
        shard_id: int,
        body: Any,
        payload: Sequence[Buffer] = (),
        *,
        timeout_s: float,
        ends: tuple[type[AntiphonError], ...] = (WrongShardError,),
        trace: str | None = None,
    ) -> tuple[Any, memoryview]:
        """Send a request that may be repeated to the shard's leader; returns the reply and its bulk bytes. `trace`: see
        `Connection.request`.

        Raises the first error that a retry cannot fix, or one of `ends`, which are for the caller to deal with, or
        TimedOutError.
        """
        connection = self.ready_connection(shard_id)
        pauses: Pauses | None = None
        deadline = asyncio.get_running_loop().time() + timeout_s
        tries = _Tries(body)
        while True:
            try:
                if connection is None:
                    connection = await self.connection(self.leader_address(shard_id))
                tries.sent = True
                async with asyncio.timeout_at(deadline):
                    return await connection.request(body, payload, trace)
            except AntiphonError as error:
                tries.failed(error)
                if isinstance(error, ends):  # such as which shard to ask instead
                    raise
                if pauses is None:
                    pauses = Pauses(deadline)
                try:
                    await self.failed(shard_id, error, pauses)
                except TimedOutError as final:
                    raise tries.judged(final) from error
                connection = None
            except TimeoutError:
                raise tries.unanswered(
                    f"no answer within {timeout_s:.1f} s from the leader of shard {shard_id}"
                ) from None

    async def call_any(
        self, body: Any, *, timeout_s: float, done_if: type[AntiphonError] | None = None
    ) -> Any:
        """Send a request to any node; if that fails in a way that a retry can fix, send it to another one.

        Returns the reply. Returns None if a repeated request fails with `done_if` because an earlier try was carried
        out (a topic to create exists, a topic to delete does not).
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        pauses = Pauses(deadline)
        tries = _Tries(body)
        avoid: str | None = None
        while True:
            try:
                avoid = self._places(avoid)[0]
                connection = await self.connection(avoid)
                tries.sent = True
                async with asyncio.timeout_at(deadline):
                    reply, _ = await connection.request(body)
                return reply
            except AntiphonError as error:
                if tries.lost and done_if is not None and isinstance(error, done_if):
                    return None
                if not error.retriable:
                    raise
                tries.failed(error)
                logger.debug("%s, try %d failed: %s", type(body).__name__, pauses.count + 1, error.message)
                try:
                    await pauses.wait(error)
                except TimedOutError as final:
                    raise tries.judged(final) from error
            except TimeoutError:
                raise tries.unanswered(f"no answer from {avoid} within {timeout_s:.1f} s") from None

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
        tasks: list[asyncio.Task[Any]] = [*self._opening.values(), *self._inquiries]
        tasks += [task for task in (self._refreshing, self._producer_id) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self._connections.values()):
            await connection.close()
        self._connections.clear()


class _Tries:
    """What is known of the outcome of a request that is tried several times.

    `sent`: the try of now was. `lost`: a try may have been carried out.
    """

    def __init__(self, body: Any) -> None:
        self._is_read = is_read(body)
        self.sent = False
        self.lost = False

    def failed(self, error: AntiphonError) -> None:
        """A try ended so."""
        self.lost = self.lost or (self.sent and isinstance(error, ConnectionLostError | TimedOutError))
        self.sent = False

    def judged(self, final: TimedOutError) -> TimedOutError:
        """The error that the tries end with."""
        return final.with_unknown_outcome() if self.lost and not self._is_read else final

    def unanswered(self, text: str) -> TimedOutError:
        """The last try had no answer in time."""
        self.lost = True
        return self.judged(TimedOutError(text))


def _failed(task: "asyncio.Task[Any]") -> bool:
    """Did it fail? Asking marks the error as seen, for whoever waited may have stopped."""
    return task.cancelled() or task.exception() is not None


def parse_servers(servers: str | Iterable[str]) -> list[str]:
    """Addresses from `host:port[,host:port...]` or several of those; raises InvalidRequestError."""
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [text.strip() for text in texts if text.strip()]
    if not found:
        raise InvalidRequestError("give at least one address, such as 127.0.0.1:7400")
    for text in found:
        parse_address(text)
    return found
