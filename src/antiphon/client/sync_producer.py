"""Transactions for programs that block: the faces of `AsyncProducer` and `AsyncTransaction`, and calls to coordinators."""

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from antiphon.client.given import Expected
from antiphon.client.named import AnyTable, AnyTopic, Offsets
from antiphon.client.producer import TRANSACTION_TIMEOUT_S, AsyncProducer, AsyncTransaction
from antiphon.client.sync_table import Table
from antiphon.client.sync_topic import Topic
from antiphon.client.table_steps import Key
from antiphon.client.topic import Value
from antiphon.client.topic_writer import Position
from antiphon.errors import InvalidTxnStateError
from antiphon.model.groups import GroupsReply, GroupState
from antiphon.model.rows import Row, Version
from antiphon.model.transactions import TransactionState

if TYPE_CHECKING:
    from antiphon.client.loop_thread import LoopThread
    from antiphon.client.own_transactions import AsyncTransactionBlock


def _aio(what: Any) -> Any:
    """What the asynchronous calls take for a handle of this client; all else as it is."""
    return what.aio if isinstance(what, Topic | Table) else what


class ProducerTransaction:
    """One transaction; `Producer.begin` makes it, as a context that commits at its end. See `AsyncTransaction`.

    Topics and tables are given by name, or as what `topic()` or `table()` of the same client gave.
    """

    def __init__(self, thread: "LoopThread", transaction: AsyncTransaction) -> None:
        self._thread = thread
        self._transaction = transaction

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._transaction.__aexit__(kind, error, trace))

    @property
    def positions(self) -> list[Position]:
        """Where its records are, in order. Raises InvalidTxnStateError unless it is committed."""
        return self._transaction.positions

    def append(
        self,
        topic: "AnyTopic | Topic[Any]",
        value: Any,
        *,
        key: Value = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        shard: int | None = None,
        expected_offset: int | None = None,
    ) -> None:
        """Append a record to a topic. See `AsyncTransaction.append`."""
        self._thread.call(
            self._transaction.append(
                _aio(topic),
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                shard=shard,
                expected_offset=expected_offset,
            )
        )

    @property
    def versions(self) -> list[Version | None]:
        """The new version of each put, None for deletes and checks, in order, once it is committed."""
        return self._transaction.versions

    def get(self, table: "AnyTable | Table[Any]", key: Key) -> Row[Any]:
        """The row of a key; KeyNotFoundError if it is not there. See `AsyncTransaction.find`."""
        return self._thread.call(self._transaction.get(_aio(table), key))

    def find(self, table: "AnyTable | Table[Any]", key: Key) -> Row[Any] | None:
        """The row of a key, or None; the commit goes through only if it is still so. See `AsyncTransaction.find`."""
        return self._thread.call(self._transaction.find(_aio(table), key))

    def put(
        self, table: "AnyTable | Table[Any]", key: Key, value: Any, *, expected_version: Expected = None
    ) -> None:
        """Set a key with the commit. See `AsyncTransaction.put`."""
        self._thread.call(self._transaction.put(_aio(table), key, value, expected_version=expected_version))

    def delete(self, table: "AnyTable | Table[Any]", key: Key, *, expected_version: Expected = None) -> None:
        """Remove a key with the commit. See `AsyncTransaction.delete`."""
        self._thread.call(self._transaction.delete(_aio(table), key, expected_version=expected_version))

    def check(self, table: "AnyTable | Table[Any]", key: Key, expected_version: int | Version) -> None:
        """Commit only if the key has that version id, or is not there (`ABSENT`). See `AsyncTransaction.check`."""
        self._thread.call(self._transaction.check(_aio(table), key, expected_version))

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """The next offsets that a group is to read: `{(topic, shard): next offset}` or `{topic: {shard: next offset}}`.

        See `AsyncTransaction.commit_offsets`.
        """
        flat: dict[Any, Any] = {}
        for key, value in offsets.items():
            flat[(_aio(key[0]), *key[1:]) if isinstance(key, tuple) and key else _aio(key)] = value
        self._thread.call(self._transaction.commit_offsets(group, flat))

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        """The same as `commit_offsets`."""
        self.commit_offsets(group, offsets)

    def flush(self) -> None:
        """Send what waits; returns when all of it is durable. It is committed with the transaction only."""
        self._thread.call(self._transaction.flush())

    def commit(self) -> None:
        """Commit; returns when that is decided for good. See `AsyncTransaction.commit`."""
        self._thread.call(self._transaction.commit())

    def abort(self) -> None:
        """Abort: readers of committed records never see anything of it."""
        self._thread.call(self._transaction.abort())


class Producer:
    """`with db.producer("my-id") as producer:`, then `with producer.begin() as transaction:`. See `AsyncProducer`."""

    def __init__(self, thread: "LoopThread", producer: AsyncProducer) -> None:
        self._thread = thread
        self._producer = producer
        self.name = producer.name

    def __enter__(self) -> Self:
        self._thread.call(self._producer.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.call(self._producer.close())

    def begin(self) -> ProducerTransaction:
        """A new transaction, which commits at the end of its `with`, or aborts if that ends with an error."""

        async def begin() -> AsyncTransaction:
            return self._producer.begin()

        return ProducerTransaction(self._thread, self._thread.call(begin()))


class TransactionBlock:
    """`with db.transaction() as t:` commits at its end, or aborts where that is an error."""

    def __init__(self, thread: "LoopThread", times: dict[str, float]) -> None:
        self._thread = thread
        self._times = times
        self._block: AsyncTransactionBlock | None = None

    def __enter__(self) -> ProducerTransaction:
        if self._block is not None:
            raise InvalidTxnStateError(
                "this transaction was begun already: db.transaction() makes another one"
            )
        block = self._block = self._thread.client.transaction(**self._times)
        return ProducerTransaction(self._thread, self._thread.call(block.__aenter__()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._block is not None:
            self._thread.call(self._block.__aexit__(kind, error, trace))


class TransactionCalls:
    """The client's calls about transactions and offsets of groups."""

    _thread: "LoopThread"

    def producer(
        self,
        name: str,
        *,
        transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
        timeout_s: float | None = None,
    ) -> Producer:
        """The producer of a transactional id, as a context. See `AsyncClient.producer`."""

        async def make() -> AsyncProducer:
            return self._thread.client.producer(
                name, transaction_timeout_s=transaction_timeout_s, timeout_s=timeout_s
            )

        return Producer(self._thread, self._thread.call(make()))

    def transaction(
        self,
        *,
        transaction_timeout_s: float = TRANSACTION_TIMEOUT_S,
        timeout_s: float | None = None,
    ) -> TransactionBlock:
        """Records, rows and offsets of groups, all or nothing: `with db.transaction() as t: t.put(...); t.append(...)`.

        Each thread may have its own at the same time. See `AsyncClient.transaction`.
        """
        times = {"transaction_timeout_s": transaction_timeout_s}
        return TransactionBlock(
            self._thread, times if timeout_s is None else {**times, "timeout_s": timeout_s}
        )

    def group_offsets(
        self, group: str, positions: Iterable[tuple[str, int]], *, timeout_s: float | None = None
    ) -> dict[tuple[str, int], int]:
        """The next offsets that a group reads, by (topic, shard). See `AsyncClient.group_offsets`."""
        return self._thread.call(
            self._thread.client.group_offsets(group, list(positions), timeout_s=timeout_s)
        )

    def transactions(self, node_id: int, *, timeout_s: float | None = None) -> tuple[TransactionState, ...]:
        """The transactional ids that a node coordinates."""
        return self._thread.call(self._thread.client.transactions(node_id, timeout_s=timeout_s))

    def groups(self, node_id: int, *, timeout_s: float) -> tuple[GroupState, ...]:
        """The groups that a node coordinates: consumer groups and share groups, without their members."""
        return self._thread.call(self._thread.client.coordinators.groups(node_id, timeout_s=timeout_s))

    def group_at(self, node_id: int, group: str, *, start: int = 0, timeout_s: float) -> GroupsReply:
        """What a node knows of a group: its members and positions where it coordinates the group, and records of a share
        group that are worked on in shards that it leads.
        """
        asked = self._thread.client.coordinators.group_at(node_id, group, start=start, timeout_s=timeout_s)
        return self._thread.call(asked)

    def abort_transaction(self, node_id: int, name: str, *, timeout_s: float | None = None) -> None:
        """Have the node that coordinates a transactional id abort. See `AsyncClient.abort_transaction`."""
        self._thread.call(self._thread.client.abort_transaction(node_id, name, timeout_s=timeout_s))
