"""The blocking client: the asynchronous one on an event loop of its own, in a background thread.

Safe to use from several threads at once: calls are handed to the loop, which gathers what is asked for at the same time.
Iterators (`read`, `scan`, `watch`) move a page at a time between the threads. A client that is not closed is closed when it
is collected, or at the end of the program.
"""

import asyncio
import contextlib
import weakref
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon.client.account import account_of
from antiphon.client.aio import CONNECT_TIMEOUT_S, TIMEOUT_S, AsyncClient
from antiphon.client.changes import Changes
from antiphon.client.closing import Closes
from antiphon.client.cluster import default_servers
from antiphon.client.loop_thread import LoopThread
from antiphon.client.on_unreadable import OnCorrupt
from antiphon.client.sync_producer import TransactionCalls
from antiphon.client.table import AsyncTable, Key
from antiphon.client.table import Value as TableValue
from antiphon.client.tls import tls_of
from antiphon.client.topic import AsyncTopic, Message, Value
from antiphon.client.topic_writer import Position
from antiphon.client.transaction import Operation, Results, Transaction
from antiphon.client.watch import Watch
from antiphon.model.metadata import ClusterMeta
from antiphon.model.requests import GetStatus, Row, StatusReply, Version
from antiphon.records.decode import Record
from antiphon.records.unreadable import FAIL
from antiphon.security.account import Account

if TYPE_CHECKING:
    from antiphon.client.tls import Dialing, TlsChoice

T = TypeVar("T")

SCAN_PAGE_ROWS: Final = 500


class Topic:
    """A plain log, cut into shards; `client.topic(name)` makes one. See `AsyncTopic` for the details of each call."""

    def __init__(self, thread: LoopThread, topic: AsyncTopic) -> None:
        self._thread = thread
        self._topic = topic
        self.name = topic.name

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._topic.shards

    def append(
        self,
        value: Value,
        *,
        key: Value = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        shard: int | None = None,
        expected_offset: int | None = None,
        timeout_s: float | None = None,
    ) -> Position:
        """Append one record; returns when it is durable and committed. See `AsyncTopic.append`.

        Raises OffsetMismatchError (expected, actual), UnknownTopicError, UnknownShardError, BatchTooLargeError,
        InvalidRequestError, TimedOutError.
        """
        return self._thread.call(
            self._topic.append(
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                shard=shard,
                expected_offset=expected_offset,
                timeout_s=timeout_s,
            )
        )

    def append_batch(
        self,
        messages: Iterable[Message],
        *,
        shard: int | None = None,
        expected_offset: int | None = None,
        timestamp_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> list[Position]:
        """Append several records, as one durable batch per shard. See `AsyncTopic.append_batch`."""
        return self._thread.call(
            self._topic.append_batch(
                list(messages),
                shard=shard,
                expected_offset=expected_offset,
                timestamp_ms=timestamp_ms,
                timeout_s=timeout_s,
            )
        )

    def read(
        self,
        shard: int = 0,
        start: int = 0,
        end: int | None = None,
        *,
        isolation: str = "",
        follow: bool = False,
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> Generator[Record, None, None]:
        """Records of one shard in order. See `AsyncTopic.read`.

        A function for `on_corrupt` is called in the client's own thread, and must not call the client.
        """
        chunks = self._topic.read_chunks(
            shard, start, end, isolation=isolation, follow=follow, on_corrupt=on_corrupt, timeout_s=timeout_s
        )
        return self._thread.iterate(chunks)

    @property
    def unreadable_batches(self) -> int:
        """Batches that reads of this handle have passed over (`on_corrupt`)."""
        return self._topic.unreadable_batches

    def offsets(self, shard: int = 0) -> tuple[int, int]:
        """(first offset that is still there, end of what is committed) of a shard; the end is exclusive."""
        return self._thread.call(self._topic.offsets(shard))

    def offset_at(self, timestamp_ms: int, shard: int = 0) -> int:
        """First offset whose timestamp is at least `timestamp_ms`; the end where none is that late."""
        return self._thread.call(self._topic.offset_at(timestamp_ms, shard))


class Table:
    """Keys, values and versions; `client.table(name)` makes one. See `AsyncTable` for the details of each call."""

    def __init__(self, thread: LoopThread, table: AsyncTable) -> None:
        self._thread = thread
        self._table = table
        self.name = table.name

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._table.shards

    def put(
        self,
        key: Key,
        value: TableValue,
        *,
        expected_version: int | None = None,
        timeout_s: float | None = None,
    ) -> Version:
        """Set a key; returns its new version when it is durable and committed. See `AsyncTable.put`.

        Raises VersionMismatchError (expected, actual), UnknownTopicError, InvalidRequestError, TimedOutError.
        """

        async def put() -> Version:
            return await self._table.put(key, value, expected_version=expected_version, timeout_s=timeout_s)

        return self._thread.call(put())

    def put_many(
        self,
        items: Mapping[str, TableValue] | Mapping[bytes, TableValue] | Iterable[tuple[Key, TableValue]],
        *,
        timeout_s: float | None = None,
    ) -> list[Version]:
        """Set several keys, each on its own; returns their versions in order. The first error is raised, after all ended."""
        pairs: list[tuple[Key, TableValue]] = list(items.items() if isinstance(items, Mapping) else items)

        async def put_all() -> list[Version]:
            puts = [self._table.put(key, value, timeout_s=timeout_s) for key, value in pairs]
            versions: list[Version] = []
            outcomes = await asyncio.gather(*puts, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
                versions.append(outcome)
            return versions

        return self._thread.call(put_all())

    @contextlib.contextmanager
    def transaction(self, *, timeout_s: float | None = None) -> Generator[Transaction]:
        """Several puts and deletes that are carried out together when the block ends, or not at all.

        All keys must belong to one shard. See `AsyncTable.write` for what the end of the block raises.
        """

        async def write(operations: Sequence[Operation]) -> Results:
            return await self._table.write(operations, timeout_s=timeout_s)

        transaction = Transaction(write)
        yield transaction
        if transaction.operations:
            self._thread.call(transaction.commit())

    def get(self, key: Key, *, consistency: str = "linearizable", timeout_s: float | None = None) -> Row:
        """The row of a key: `value` and `version`. Raises KeyNotFoundError. See `AsyncTable.get`."""
        return self._thread.call(self._table.get(key, consistency=consistency, timeout_s=timeout_s))

    def find(
        self, key: Key, *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> Row | None:
        """The row of a key, or None when it is not there."""
        return self._thread.call(self._table.find(key, consistency=consistency, timeout_s=timeout_s))

    def get_many(
        self, keys: Iterable[Key], *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> list[Row | None]:
        """The rows of several keys in their order, None where a key is not there."""
        return self._thread.call(
            self._table.get_many(list(keys), consistency=consistency, timeout_s=timeout_s)
        )

    def __contains__(self, key: Key) -> bool:
        return self.find(key) is not None

    def delete(
        self, key: Key, *, expected_version: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Remove a key. Raises KeyNotFoundError when it is not there, VersionMismatchError."""

        async def delete() -> None:
            await self._table.delete(key, expected_version=expected_version, timeout_s=timeout_s)

        self._thread.call(delete())

    def delete_range(self, start: Key, end: Key, *, timeout_s: float | None = None) -> None:
        """Remove every key with start <= key < end in byte order; an empty end means to the end."""
        self._thread.call(self._table.delete_range(start, end, timeout_s=timeout_s))

    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        include_value: bool = True,
        consistency: str = "linearizable",
        timeout_s: float | None = None,
    ) -> Generator[Row, None, None]:
        """Rows with start <= key < end in byte order; an empty end means to the end. See `AsyncTable.scan`."""
        rows = self._table.scan(
            start, end, include_value=include_value, consistency=consistency, timeout_s=timeout_s
        )
        return self._thread.iterate(_pages(rows))

    def list(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        timeout_s: float | None = None,
    ) -> "list[bytes]":
        """Keys with start <= key < end in byte order."""
        return self._thread.call(self._table.list(start, end, consistency=consistency, timeout_s=timeout_s))

    def watch(self, *, start: int | Sequence[int] = -1, shard: int | None = None) -> Changes:
        """Follow the table from this moment on (or from `start`): an iterator of changes. See `AsyncTable.watch`."""

        async def make() -> Watch:
            watch = self._table.watch(start=start, shard=shard)
            await watch.start()
            return watch

        return Changes(self._thread, self._thread.call(make()))


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

    def topic(self, name: str, *, compression: str = "none", any_kind: bool = False) -> Topic:
        """A topic to append to and read from. Raises UnknownTopicError, WrongKindError. See `AsyncClient.topic`."""

        async def find() -> AsyncTopic:
            return await self.aio.topic(name, compression=compression, any_kind=any_kind)

        return Topic(self._thread, self.run(find()))

    def table(self, name: str) -> Table:
        """A table. Raises UnknownTopicError, WrongKindError."""

        async def find() -> AsyncTable:
            return await self.aio.table(name)

        return Table(self._thread, self.run(find()))

    def create_topic(
        self,
        name: str,
        *,
        shards: int = 1,
        replicas: int = 0,
        profile: str = "",
        config: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Topic:
        """Create a topic; returns when every shard has a leader that is ready. Raises TopicExistsError.

        `replicas` 0: as many as there are nodes, at most 3. `profile`: how it is replicated; without one as the cluster was
        started with. `config` uses Kafka's names (`retention.ms`, ...).
        """
        made = self.aio.create_topic(
            name, shards=shards, replicas=replicas, profile=profile, config=config, timeout_s=timeout_s
        )
        return Topic(self._thread, self.run(made))

    def create_table(
        self,
        name: str,
        *,
        shards: int = 1,
        replicas: int = 0,
        profile: str = "",
        config: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Table:
        """Create a table; see `create_topic`. The number of its shards is fixed."""
        made = self.aio.create_table(
            name, shards=shards, replicas=replicas, profile=profile, config=config, timeout_s=timeout_s
        )
        return Table(self._thread, self.run(made))

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
        config: Mapping[str, str | None] | None = None,
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

    def session(self, *, timeout_s: float = 10.0) -> Any:
        """Sessions and ephemeral keys are not offered by this version: always raises InvalidRequestError."""
        return self.aio.session(timeout_s=timeout_s)


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
            default the environment's ANTIPHON_SERVERS, else 127.0.0.1:7400.
        timeout_s: default limit of a call, retries included.
        connect_timeout_s: how long to try to reach a first node.
        client_id: free text for the nodes' logs.
        user: who logs in, where the cluster asks for that; by default the environment's ANTIPHON_USER.
        password: of the user; by default ANTIPHON_PASSWORD, or what the file ANTIPHON_PASSWORD_FILE holds.
        token: a bearer token, in place of those; by default ANTIPHON_TOKEN.
        tls: speak TLS: True trusts the system's authorities, a path those of a PEM file, an `ssl.SSLContext` is used as it
            is; False: never. A tuple of paths: authorities, the client's own certificate, its key. By default the
            environment's ANTIPHON_TLS: `on`, or a path; with ANTIPHON_TLS_CERTIFICATE and ANTIPHON_TLS_KEY.

    Raises UnreachableError, UnauthenticatedError, and InvalidRequestError for an invalid address.
    """
    client = Client(
        default_servers() if servers is None else servers,
        timeout_s=timeout_s,
        client_id=client_id,
        account=account_of(user, password, token),
        tls=tls_of(tls),
    )
    try:
        client.connect(connect_timeout_s)
    except BaseException:
        client.close()
        raise
    return client


async def _pages(rows: AsyncIterator[Row]) -> AsyncIterator[Sequence[Row]]:
    page: list[Row] = []
    async for row in rows:
        page.append(row)
        if len(page) == SCAN_PAGE_ROWS:
            yield page
            page = []
    if page:
        yield page
