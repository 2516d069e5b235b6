"""The blocking client: the asynchronous one on an event loop of its own, in a background thread.

Safe to use from several threads at once: calls are handed to the loop, which gathers what is asked for at the same time.
Iterators (`read`, `scan`, `watch`) move a page at a time between the threads. A client that is not closed is closed when it
is collected, or at the end of the program.
"""

import weakref
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

from antiphon.client.account import account_of
from antiphon.client.aio import CONNECT_TIMEOUT_S, TIMEOUT_S, AsyncClient
from antiphon.client.closing import Closes
from antiphon.client.codecs import Codec
from antiphon.client.finding import find_way
from antiphon.client.given import Setting, Settings
from antiphon.client.loop_thread import LoopThread
from antiphon.client.session import TIMEOUT_S as SESSION_TIMEOUT_S
from antiphon.client.session import AsyncSession, OnLost
from antiphon.client.sync_producer import TransactionCalls
from antiphon.client.sync_session import Session
from antiphon.client.sync_table import Table
from antiphon.client.sync_topic import Topic
from antiphon.client.table import AsyncTable
from antiphon.client.tls import tls_of
from antiphon.client.topic import AsyncTopic
from antiphon.errors import UnreachableError
from antiphon.model.metadata import ClusterMeta
from antiphon.model.requests import GetStatus, StatusReply
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing, TlsChoice

T = TypeVar("T")


class Client(TransactionCalls, Closes):
    """A cluster, for programs that block. `antiphon.connect(...)` makes one. Close it, or use it as a context."""

    def __init__(
        self,
        servers: str | Iterable[str],
        *,
        timeout_s: float = TIMEOUT_S,
        client_id: str = "",
        account: Account | None = None,
        tls: "Dialing | None" = None,
    ) -> None:
        self._thread = LoopThread(servers, timeout_s, client_id, account, tls)
        self._finalizer = weakref.finalize(self, LoopThread.close, self._thread)

    def __repr__(self) -> str:
        return repr(self.aio).replace("aio.AsyncClient", "Client", 1)

    @property
    def aio(self) -> AsyncClient:
        """The asynchronous client underneath; its coroutines are run by `run`."""
        return self._thread.client

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses `self.aio` on the client's event loop, and wait for its result."""
        return self._thread.call(work)

    def connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Reach any node; `antiphon.connect` does this. Raises UnreachableError."""
        self._thread.call(self.aio.connect(timeout_s))

    def close(self) -> None:
        """Fail all open requests, close all connections, end the thread. A second close does nothing."""
        self._finalizer()

    @overload
    def topic(self, name: str, *, compression: str = "none", any_kind: bool = False) -> Topic: ...

    @overload
    def topic(
        self,
        name: str,
        *,
        compression: str = "none",
        any_kind: bool = False,
        codec: Codec[T] | None = None,
        type: type[T] | None = None,
    ) -> Topic[T]: ...

    def topic(
        self,
        name: str,
        *,
        compression: str = "none",
        any_kind: bool = False,
        codec: Codec[Any] | None = None,
        type: "type[Any] | None" = None,  # noqa: A002 - as above
    ) -> Topic[Any]:
        """A topic to append to and read from. Raises UnknownTopicError, WrongKindError. See `AsyncClient.topic`."""

        async def find() -> AsyncTopic[Any]:
            topic: AsyncTopic[Any] = self.aio.topic(
                name, compression=compression, any_kind=any_kind, codec=codec, type=type
            )
            return await topic

        return Topic(self._thread, self.run(find()))

    @overload
    def table(self, name: str) -> Table: ...

    @overload
    def table(
        self,
        name: str,
        *,
        codec: Codec[T] | None = None,
        type: type[T] | None = None,
    ) -> Table[T]: ...

    def table(
        self,
        name: str,
        *,
        codec: Codec[Any] | None = None,
        type: "type[Any] | None" = None,  # noqa: A002 - as above
    ) -> Table[Any]:
        """A table. Raises UnknownTopicError, WrongKindError. See `AsyncClient.table`."""

        async def find() -> AsyncTable[Any]:
            table: AsyncTable[Any] = self.aio.table(name, codec=codec, type=type)
            return await table

        return Table(self._thread, self.run(find()))

    def create_topic(
        self,
        name: str,
        *,
        shards: int | None = None,
        replicas: int = 0,
        profile: str = "",
        config: Settings | None = None,
        exist_ok: bool = False,
        timeout_s: float | None = None,
    ) -> Topic:
        """Create a topic; returns when every shard has a leader that is ready. Raises TopicExistsError.

        `shards`: 1 if it is not said. `replicas` 0: as many as there are nodes, at most 3. `profile`: how it is replicated;
        without one as the cluster was started with. `config` uses Kafka's names: `{"retention.ms": 60000}`. With `exist_ok`
        one that is there will do, unless it differs from what is said here. See `AsyncClient.create_topic`.
        """
        made = self.aio.create_topic(
            name,
            shards=shards,
            replicas=replicas,
            profile=profile,
            config=config,
            exist_ok=exist_ok,
            timeout_s=timeout_s,
        )
        return Topic(self._thread, self.run(made))

    def create_table(
        self,
        name: str,
        *,
        shards: int | None = None,
        replicas: int = 0,
        profile: str = "",
        config: Settings | None = None,
        exist_ok: bool = False,
        timeout_s: float | None = None,
    ) -> Table:
        """Create a table; see `create_topic`. Its shards can only be split."""
        made = self.aio.create_table(
            name,
            shards=shards,
            replicas=replicas,
            profile=profile,
            config=config,
            exist_ok=exist_ok,
            timeout_s=timeout_s,
        )
        return Table(self._thread, self.run(made))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """The names of all topics in order; with `internal` also the cluster's own, which begin with `__`."""
        return self.run(self.aio.list_topics(internal=internal))

    def list_tables(self, *, internal: bool = False) -> list[str]:
        """The names of all tables in order. See `list_topics`."""
        return self.run(self.aio.list_tables(internal=internal))

    def delete_topic(self, name: str, *, timeout_s: float | None = None) -> None:
        """Delete a topic or table with its data. Raises UnknownTopicError."""
        self.run(self.aio.delete_topic(name, timeout_s=timeout_s))

    def delete_table(self, name: str, *, timeout_s: float | None = None) -> None:
        """The same as `delete_topic`."""
        self.run(self.aio.delete_topic(name, timeout_s=timeout_s))

    def alter_topic(
        self,
        name: str,
        *,
        config: Mapping[str, Setting | None] | None = None,
        shards: int | None = None,
        replicas: int | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Change settings, shards or replicas. See `AsyncClient.alter_topic`."""
        self.run(
            self.aio.alter_topic(name, config=config, shards=shards, replicas=replicas, timeout_s=timeout_s)
        )

    def elect_leader(self, name: str, shard: int, *, node: int = -1, timeout_s: float | None = None) -> None:
        """Fence a shard and elect a new leader; `node` -1: the replica with the best log."""
        self.run(self.aio.elect_leader(name, shard, node=node, timeout_s=timeout_s))

    def split_shard(
        self, name: str, shard: int, *, at: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Split a table's shard while it is read and written. See `AsyncClient.split_shard`."""
        self.run(self.aio.split_shard(name, shard, at=at, timeout_s=timeout_s))

    def move_replica(
        self, name: str, shard: int, from_node: int, to_node: int, *, timeout_s: float | None = None
    ) -> None:
        """Move a replica of a shard from one node to another. See `AsyncClient.move_replica`."""
        self.run(self.aio.move_replica(name, shard, from_node, to_node, timeout_s=timeout_s))

    def drain_node(self, node: int, *, cancel: bool = False, timeout_s: float | None = None) -> None:
        """Move everything off a node. See `AsyncClient.drain_node`."""
        self.run(self.aio.drain_node(node, cancel=cancel, timeout_s=timeout_s))

    def remove_node(self, node: int, *, timeout_s: float | None = None) -> None:
        """Remove a node that holds nothing and is stopped. See `AsyncClient.remove_node`."""
        self.run(self.aio.remove_node(node, timeout_s=timeout_s))

    def rebalance(self, *, leaders_only: bool = False, timeout_s: float | None = None) -> None:
        """Spread replicas and leaderships evenly. See `AsyncClient.rebalance`."""
        self.run(self.aio.rebalance(leaders_only=leaders_only, timeout_s=timeout_s))

    def wait_for_moves(self, name: str | None = None, *, timeout_s: float | None = None) -> None:
        """Return when no shard is changing its members. See `AsyncClient.wait_for_moves`."""
        self.run(self.aio.wait_for_moves(name, timeout_s=timeout_s))

    def metadata(self) -> ClusterMeta:
        """Nodes, topics and shards as a node knows them now."""
        return self.run(self.aio.metadata())

    def node_status(
        self, node_id: int, of: GetStatus | None = None, *, timeout_s: float | None = None
    ) -> StatusReply:
        """What one node knows of its replicas, or of what `of` asks. Raises UnavailableError when it cannot be reached."""
        return self.run(self.aio.node_status(node_id, of, timeout_s=timeout_s))

    def start_scrub(self, node_id: int, shard_id: int = -1, *, timeout_s: float | None = None) -> None:
        """Have a node read what is on its disk of a shard, or of all, now. See `AsyncClient.start_scrub`."""
        self.run(self.aio.start_scrub(node_id, shard_id, timeout_s=timeout_s))

    def session(self, *, timeout_s: float = SESSION_TIMEOUT_S, on_lost: OnLost | None = None) -> Session:
        """A session: rows put under it are removed when it ends. See `AsyncClient.session`.

        `on_lost` is called on the client's own thread: it must not wait, nor use this client.
        """

        async def make() -> AsyncSession:
            return self.aio.session(timeout_s=timeout_s, on_lost=on_lost)

        return Session(self._thread, self.run(make()))


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
) -> Client:
    """Connect to a cluster.

    Args:
        servers: native addresses of some nodes, `host:port[,host:port...]`; the client learns the others from them. By
            default the environment's ANTIPHON_SERVERS, else the cluster that `antiphon up` made in the working directory
            (`antiphon-data`); if that is secure, also the login and the authority that it has for its clients.
        timeout_s: default limit of a call, retries included.
        connect_timeout_s: how long to try to reach a first node.
        client_id: free text for the nodes' logs.
        user: who logs in, where the cluster asks for that; by default the environment's ANTIPHON_USER.
        password: of the user; by default ANTIPHON_PASSWORD, or what the file ANTIPHON_PASSWORD_FILE holds.
        token: a bearer token, in place of those; by default ANTIPHON_TOKEN.
        tls: speak TLS: True trusts the system's authorities, a path those of a PEM file, an `ssl.SSLContext` is used as it
            is; False: never. A tuple of paths: authorities, the client's own certificate, its key. By default the
            environment's ANTIPHON_TLS: `on`, or a path; with ANTIPHON_TLS_CERTIFICATE and ANTIPHON_TLS_KEY.

    Raises UnreachableError, UnauthenticatedError, and InvalidRequestError for an invalid address. Without `servers`,
    UnreachableError at once where no cluster is found.
    """
    account, dialing = account_of(user, password, token), tls_of(tls)
    way = find_way(account, dialing) if servers is None else None
    if way is not None:
        servers, account, dialing = way.servers, way.account, way.tls
    client = Client(servers or (), timeout_s=timeout_s, client_id=client_id, account=account, tls=dialing)
    try:
        client.connect(connect_timeout_s)
    except BaseException as error:
        client.close()
        if way is not None and isinstance(error, UnreachableError):
            raise way.unreachable(error) from None
        raise
    return client
