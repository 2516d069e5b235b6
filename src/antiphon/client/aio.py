"""The asynchronous client. `antiphon.aio.connect(...)` makes one; it belongs to the event loop it was made on.

async with antiphon.aio.connect("127.0.0.1:7400") as db:
    await db.create_table("aircraft", shards=4)
    table = await db.table("aircraft")
    version = await table.put("N14228", b"...", expected_version=antiphon.ABSENT)
"""

import asyncio
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, overload

from antiphon import system, tracing
from antiphon.client.account import account_of
from antiphon.client.closing import AsyncCloses
from antiphon.client.cluster import Cluster
from antiphon.client.codecs import Codec, codec_of
from antiphon.client.coordinated import CoordinatedCalls, Coordinators
from antiphon.client.finding import Way, find_way
from antiphon.client.given import Setting, Settings, changes_text, check_whole
from antiphon.client.handles import Handle
from antiphon.client.moves import shard_of, shards_on_their_way
from antiphon.client.own_transactions import AsyncTransactionBlock, OwnProducers
from antiphon.client.producer import TRANSACTION_TIMEOUT_S, AsyncProducer
from antiphon.client.raw_requests import RawRequests
from antiphon.client.session import TIMEOUT_S as SESSION_TIMEOUT_S
from antiphon.client.session import AsyncSession, OnLost, OpenedSessions
from antiphon.client.table import AsyncTable
from antiphon.client.tls import tls_of
from antiphon.client.topic import AsyncTopic
from antiphon.client.topics import Asked, described, names
from antiphon.client.values import Values
from antiphon.client.whole_cluster import WholeCluster
from antiphon.errors import (
    AntiphonError,
    TimedOutError,
    UnavailableError,
    UnknownTopicError,
    UnreachableError,
)
from antiphon.model.body import reply_as
from antiphon.model.findings import StartScrub
from antiphon.model.metadata import ClusterMeta, KeyRanges, Kind
from antiphon.model.requests import (
    AccessReply,
    AdminRequest,
    AlterTopic,
    DeleteTopic,
    DrainNode,
    ElectLeader,
    GetAccess,
    GetStatus,
    MoveReplica,
    Rebalance,
    RemoveNode,
    SplitShard,
    StatusReply,
)
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing, TlsChoice
    from antiphon.client.topic_writer import TopicWriter

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
MOVES_POLL_S: Final = 0.1


class AsyncClient(CoordinatedCalls, RawRequests, AsyncCloses):
    """A cluster, from one event loop. Connections are shared by all topics and tables. Close it, or use it as a context."""

    def __init__(
        self,
        servers: str | Iterable[str],
        *,
        timeout_s: float = TIMEOUT_S,
        client_id: str = "",
        account: Account | None = None,
        tls: "Dialing | None" = None,
    ) -> None:
        who = client_id or f"antiphon-client/{system.installed_version()}"
        self._cluster = Cluster(servers, who, account, tls)
        self.coordinators = Coordinators(self._cluster)
        self._timeout_s = timeout_s
        self._topics: dict[tuple[str, bool, str], AsyncTopic] = {}
        self._tables: dict[str, AsyncTable] = {}
        self._topic_writers: dict[int, TopicWriter] = {}
        self._sessions = OpenedSessions(self._cluster)
        self._own_producers = OwnProducers(self._cluster, self.coordinators, self.topic, self.table)
        self.whole = WholeCluster(self._cluster, timeout_s)

    def __repr__(self) -> str:
        state = "closed" if self._cluster.closed else "open"
        return f"<antiphon.aio.AsyncClient of {','.join(self._cluster.servers)}, {state}>"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Reach any node; `antiphon.aio.connect` does this. Raises UnreachableError."""
        tracing.adopt()
        try:
            await self._cluster.connect(min(timeout_s, self._timeout_s))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Fail all open requests and close all connections. A second close does nothing."""
        self._cluster.closed = True
        self._sessions.abandon()
        for table in list(self._tables.values()):
            await table.close()
        for writer in list(self._topic_writers.values()):
            await writer.close()
        await self._cluster.close()

    # -- topics and tables --------------------------------------------------------------------------------------

    @overload
    def topic(self, name: str, *, compression: str = "none", any_kind: bool = False) -> AsyncTopic: ...

    @overload
    def topic(
        self,
        name: str,
        *,
        compression: str = "none",
        any_kind: bool = False,
        codec: Codec[T] | None = None,
        type: type[T] | None = None,
    ) -> AsyncTopic[T]: ...

    def topic(
        self,
        name: str,
        *,
        compression: str = "none",
        any_kind: bool = False,
        codec: Codec[Any] | None = None,
        type: "type[Any] | None" = None,  # noqa: A002 - as above
    ) -> AsyncTopic[Any]:
        """A topic to append to and read from. Await it to check that it exists: `await db.topic("flights")`.

        `compression` (none, gzip, snappy, lz4, zstd) applies to appended records. With `any_kind` the log of a table
        can be read. With a `codec`, or the `type` of its values (docs/python.md), it has those in place of bytes. Raises
        InvalidRequestError for a type without a codec.
        """
        known = codec_of(codec, type)
        key = (name, any_kind, compression)
        topic = self._topics.get(key) if known is None else None
        if topic is None:
            shared = self._cluster, name, self._timeout_s, self._topic_writers
            values = None if known is None else Values(name, known)
            topic = AsyncTopic(*shared, any_kind=any_kind, compression=compression, values=values)
            if known is None:
                self._topics[key] = topic
        return topic

    @overload
    def table(self, name: str) -> AsyncTable: ...

    @overload
    def table(
        self,
        name: str,
        *,
        codec: Codec[T] | None = None,
        type: type[T] | None = None,
    ) -> AsyncTable[T]: ...

    def table(
        self,
        name: str,
        *,
        codec: Codec[Any] | None = None,
        type: "type[Any] | None" = None,  # noqa: A002 - as above
    ) -> AsyncTable[Any]:
        """A table. Await it to check that it exists: `await db.table("aircraft")`.

        With a `codec`, or the `type` of its values (docs/python.md), it has those in place of bytes. Raises
        InvalidRequestError for a type without a codec.
        """
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = AsyncTable(self._cluster, name, self._timeout_s)
        if (known := codec_of(codec, type)) is None:
            return table
        return AsyncTable(self._cluster, name, self._timeout_s, table.core, Values(name, known))

    async def create_topic(
        self,
        name: str,
        *,
        shards: int | None = None,
        replicas: int = 0,
        profile: str = "",
        config: Settings | None = None,
        exist_ok: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncTopic:
        """Create a topic; returns when every shard has a leader that is ready.

        `shards`: 1 if it is not said. `replicas` 0: one per node, at most 3. `profile`: how it is replicated; by default as
        the cluster was started with. `config` uses Kafka's names: `{"retention.ms": 60000}`. Raises InvalidRequestError, and
        TopicExistsError; with `exist_ok` only if the one that is there has another number of shards, replicas, profile or
        setting than is said here, or is a table (WrongKindError).
        """
        asked = Asked(Kind.TOPIC, name, shards, replicas, profile, config, exist_ok)
        await asked.create(self._cluster, self._time(timeout_s))
        return await self.topic(name)

    async def create_table(
        self,
        name: str,
        *,
        shards: int | None = None,
        replicas: int = 0,
        profile: str = "",
        config: Settings | None = None,
        exist_ok: bool = False,
        timeout_s: float | None = None,
    ) -> AsyncTable:
        """Create a table; see `create_topic`. Its shards can only be split."""
        asked = Asked(Kind.TABLE, name, shards, replicas, profile, config, exist_ok)
        await asked.create(self._cluster, self._time(timeout_s))
        return await self.table(name)

    async def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics in order; with `internal` also the cluster's own, which begin with `__`."""
        return names(await self.metadata(), Kind.TOPIC, internal=internal)

    async def list_tables(self, *, internal: bool = False) -> list[str]:
        """The names of all tables in order. See `list_topics`."""
        return names(await self.metadata(), Kind.TABLE, internal=internal)

    async def delete_topic(self, name: str, *, timeout_s: float | None = None) -> None:
        """Delete a topic or table with its data. Raises UnknownTopicError."""
        await self._cluster.call_any(
            DeleteTopic(name), timeout_s=self._time(timeout_s), done_if=UnknownTopicError
        )
        await self._cluster.until(lambda: name not in self._cluster.topics, self._time(timeout_s))

    async def delete_table(self, name: str, *, timeout_s: float | None = None) -> None:
        """The same as `delete_topic`."""
        await self.delete_topic(name, timeout_s=timeout_s)

    async def alter_topic(
        self,
        name: str,
        *,
        config: "Mapping[str, Setting | None] | None" = None,
        shards: int | None = None,
        replicas: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Change settings (None: back to the default), add shards to a plain topic, or change the replicas of each
        shard.

        Returns when the change is decided; replicas are then added and dropped while clients read and write: see
        `wait_for_moves`.
        """
        check_whole(shards=shards, replicas=replicas)
        request = AlterTopic(name, changes_text(config), shards, replicas)
        await self.administer(request, timeout_s=timeout_s)

    async def elect_leader(
        self, name: str, shard: int, *, node: int = -1, timeout_s: float | None = None
    ) -> None:
        """Fence a shard and elect a new leader; `node` -1: the replica with the best log."""
        shard_id = shard_of(await described(self._cluster, name), shard).shard_id
        await self.administer(ElectLeader(shard_id, node), timeout_s=timeout_s)

    async def split_shard(
        self, name: str, shard: int, *, at: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Split a table's shard: keys with hashes from `at` on (by default the upper half) go to a new shard.

        Reads and writes go on meanwhile; writes to the moved keys wait for a moment at the end. Returns when the new
        shard is part of the table. Raises InvalidRequestError, UnknownShardError, UnavailableError (nothing has
        changed).
        """
        meta = await described(self._cluster, name)
        found = shard_of(meta, shard)
        if at is None:  # said outright, so that a repeat does not halve a half
            first, last = KeyRanges(meta.shards).range_of(found)
            at = (first + last + 1) // 2
        request = SplitShard(found.shard_id, at)
        await self._cluster.call_any(request, timeout_s=self._time(timeout_s))
        await self._cluster.refresh()

    # -- who holds what -----------------------------------------------------------------------------------------

    async def move_replica(
        self, name: str, shard: int, from_node: int, to_node: int, *, timeout_s: float | None = None
    ) -> None:
        """Move a replica of a shard from one node to another. Returns when the move is decided: see `wait_for_moves`.

        Raises InvalidRequestError, UnknownShardError.
        """
        shard_id = shard_of(await described(self._cluster, name), shard).shard_id
        await self.administer(MoveReplica(shard_id, from_node, to_node), timeout_s=timeout_s)

    async def administer(self, request: AdminRequest, *, timeout_s: float | None = None) -> None:
        """Have the coordinator carry out a request as it stands: of users, access control lists, quotas."""
        await self._cluster.call_any(request, timeout_s=self._time(timeout_s))
        await self._cluster.refresh()

    async def access(self) -> AccessReply:
        """Users, access control lists and quotas. Takes the right to describe the cluster."""
        reply = await self._cluster.call_any(GetAccess(), timeout_s=self._timeout_s)
        if not isinstance(reply, AccessReply):
            raise UnavailableError("a node answered with something else than users and lists")
        return reply

    async def drain_node(self, node: int, *, cancel: bool = False, timeout_s: float | None = None) -> None:
        """Move everything off a node and place nothing new on it; `cancel` revokes this.

        Returns when it is decided: see `wait_for_moves`. Raises InvalidRequestError if a replica has nowhere to go.
        """
        await self.administer(DrainNode(node, cancel), timeout_s=timeout_s)

    async def remove_node(self, node: int, *, timeout_s: float | None = None) -> None:
        """Remove a node that holds nothing and is stopped. Raises InvalidRequestError for any other."""
        await self.administer(RemoveNode(node), timeout_s=timeout_s)

    async def rebalance(self, *, leaders_only: bool = False, timeout_s: float | None = None) -> None:
        """Spread replicas (unless `leaders_only`) and leaderships evenly. Returns when it is decided: see
        `wait_for_moves`.

        Leaderships of shards that move replicas are not evened out at once: call again when those moves are done.
        """
        await self.administer(Rebalance(leaders_only), timeout_s=timeout_s)

    async def wait_for_moves(self, name: str | None = None, *, timeout_s: float | None = None) -> None:
        """Return when no shard (of one topic, if named) is changing its members. Raises TimedOutError."""
        deadline = asyncio.get_running_loop().time() + self._time(timeout_s)
        await asyncio.sleep(MOVES_POLL_S)  # nodes hear one after the other of what was decided just now
        while moving := shards_on_their_way(await self.metadata(), name):
            if asyncio.get_running_loop().time() > deadline:
                topic, shard = moving[0]
                raise TimedOutError(
                    f"{len(moving)} shards are still being moved; {topic}/{shard.index} from "
                    f"{list(shard.ensemble)} to {list(shard.goal)}"
                )
            await asyncio.sleep(MOVES_POLL_S)

    async def metadata(self) -> ClusterMeta:
        """Nodes, topics and shards as a node knows them now."""
        await self._cluster.refresh()
        if self._cluster.meta is None:
            raise UnavailableError("no node returned the metadata; `antiphon status` says which nodes are up")
        return self._cluster.meta

    async def node_status(
        self, node_id: int, of: GetStatus | None = None, *, timeout_s: float | None = None
    ) -> StatusReply:
        """One node's view of its replicas, or of what `of` asks. Raises UnavailableError if it cannot be reached."""
        reply = await self._ask_node(node_id, of or GetStatus(), timeout_s)
        return reply_as(StatusReply, reply, "for a status")

    async def _ask_node(self, node_id: int, body: Any, timeout_s: float | None) -> Any:
        if self._cluster.meta is None:
            await self._cluster.refresh()
        reply, _ = await self._cluster.ask_node(node_id, body, self._time(timeout_s))
        return reply

    async def start_scrub(self, node_id: int, shard_id: int = -1, *, timeout_s: float | None = None) -> None:
        """Have a node read what is on its disk of a shard, or of all, now; `node_status` shows what it finds."""
        await self._ask_node(node_id, StartScrub(shard_id), timeout_s)

    def producer(
        self,
        name: str,
        *,
        transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
        timeout_s: float | None = None,
    ) -> AsyncProducer:
        """The producer of a transactional id: an async context, which fences whoever had it before.

        A transaction that lasts longer than `transaction_timeout_s` is aborted; `timeout_s` bounds each call.
        """
        times = self._time(timeout_s), transaction_timeout_s
        return AsyncProducer(self._cluster, self.coordinators, self.topic, self.table, name, *times)

    def transaction(
        self, *, transaction_timeout_s: float = TRANSACTION_TIMEOUT_S, timeout_s: float | None = None
    ) -> AsyncTransactionBlock:
        """Records, rows and offsets of groups, all or nothing: `async with db.transaction() as t: await t.put(...)`.

        The block's end commits, an error in it aborts. Up to 64 may be open at once. `producer` is for programs of which
        one is to fence the other; the times are those of it.
        """
        return AsyncTransactionBlock(self._own_producers, self._time(timeout_s), transaction_timeout_s)

    def session(self, *, timeout_s: float = SESSION_TIMEOUT_S, on_lost: OnLost | None = None) -> AsyncSession:
        """A session: rows put under it (`table.put(..., session=session)`) are removed when it ends.

        It ends when it is closed (`async with` does that), or when this client is silent for `timeout_s`: it died, cannot
        reach the cluster, or its loop stood still. A fail-over ends none early. `on_lost` is called once, on the loop.
        """
        return self._sessions.add(timeout_s, on_lost)

    # -- inside -------------------------------------------------------------------------------------------------

    def _time(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s


class Connecting:
    """What `connect` returns: await it for a client, or use it as an async context."""

    def __init__(self, client: AsyncClient, timeout_s: float, way: Way | None = None) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._way = way

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._connect().__await__()

    async def _connect(self) -> AsyncClient:
        try:
            await self._client.connect(self._timeout_s)
        except UnreachableError as error:
            raise error if self._way is None else self._way.unreachable(error) from None
        return self._client

    async def __aenter__(self) -> AsyncClient:
        return await self._connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()


def connect(
    servers: str | Iterable[str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    client_id: str = "",
    user: str = "",
    password: str = "",
    token: str = "",
    tls: "TlsChoice" = None,
) -> Connecting:
    """Connect to a cluster, by awaiting this or as an asynchronous context.

    Args:
        servers: native addresses of some nodes, `host:port[,host:port...]`; the client learns the others from them. By
            default the environment's ANTIPHON_SERVERS, else the cluster that `antiphon up` made in the working directory
            (`antiphon-data`); if that is secure, also the login and the authority that it has for its clients.
        timeout_s: default limit of a call, retries included.
        connect_timeout_s: how long to try to reach a first node.
        client_id: free text for the nodes' logs.
        user: who logs in (with SCRAM), where the cluster asks for that; by default the environment's ANTIPHON_USER.
        password: of the user; by default ANTIPHON_PASSWORD, or what the file ANTIPHON_PASSWORD_FILE holds.
        token: a bearer token (JWT), in place of those; by default ANTIPHON_TOKEN.
        tls: speak TLS: True trusts the system's authorities, a path those of a PEM file, an `ssl.SSLContext` is used as it
            is; False: never. Paths: authorities, the client's own certificate, its key. By default ANTIPHON_TLS says it.

    Raises UnreachableError and UnauthenticatedError (when awaited), and InvalidRequestError for an invalid address. Without
    `servers`, UnreachableError at once where no cluster is found.
    """
    account, dialing = account_of(user, password, token), tls_of(tls)
    way = find_way(account, dialing) if servers is None else None
    if way is not None:
        servers, account, dialing = way.servers, way.account, way.tls
    client = AsyncClient(
        servers or (), timeout_s=timeout_s, client_id=client_id, account=account, tls=dialing
    )
    return Connecting(client, connect_timeout_s, way)


__all__ = ["AntiphonError", "AsyncClient", "AsyncTable", "AsyncTopic", "Handle", "connect"]
