"""Transactions for programs that block: the faces of `AsyncProducer` and `AsyncTransaction`, and calls to coordinators."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from antiphon.client.producer import TRANSACTION_TIMEOUT_S, AsyncProducer, AsyncTransaction
from antiphon.client.table_steps import Key
from antiphon.client.topic import Value
from antiphon.client.topic_writer import Position
from antiphon.model.rows import Row, Version
from antiphon.model.transactions import TransactionState

if TYPE_CHECKING:
    from antiphon.client.loop_thread import LoopThread


class ProducerTransaction:
    """One transaction; `Producer.begin` makes it, as a context that commits at its end. See `AsyncTransaction`."""

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
        topic: str,
        value: Value,
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
                topic,
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

    def get(self, table: str, key: Key) -> Row:
        """The row of a key; KeyNotFoundError if it is not there. See `AsyncTransaction.find`."""
        return self._thread.call(self._transaction.get(table, key))

    def find(self, table: str, key: Key) -> Row | None:
        """The row of a key, or None; the commit goes through only if it is still so. See `AsyncTransaction.find`."""
        return self._thread.call(self._transaction.find(table, key))

    def put(self, table: str, key: Key, value: Key, *, expected_version: int | None = None) -> None:
        """Set a key with the commit. See `AsyncTransaction.put`."""
        self._thread.call(self._transaction.put(table, key, value, expected_version=expected_version))

    def delete(self, table: str, key: Key, *, expected_version: int | None = None) -> None:
        """Remove a key with the commit. See `AsyncTransaction.delete`."""
        self._thread.call(self._transaction.delete(table, key, expected_version=expected_version))

    def check(self, table: str, key: Key, expected_version: int) -> None:
        """Commit only if the key has that version id, or is not there (`ABSENT`). See `AsyncTransaction.check`."""
        self._thread.call(self._transaction.check(table, key, expected_version))

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """The next offsets that a group is to read, by (topic, shard). See `AsyncTransaction.send_offsets`."""
        self._thread.call(self._transaction.send_offsets(group, offsets))

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

    def abort_transaction(self, node_id: int, name: str, *, timeout_s: float | None = None) -> None:
        """Have the node that coordinates a transactional id abort. See `AsyncClient.abort_transaction`."""
        self._thread.call(self._thread.client.abort_transaction(node_id, name, timeout_s=timeout_s))
