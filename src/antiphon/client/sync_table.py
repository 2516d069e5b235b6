"""Tables for programs that block: the face of `AsyncTable`."""

import contextlib
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeVar, overload

from antiphon.client.changes import Changes
from antiphon.client.given import Expected
from antiphon.client.loop_thread import LoopThread, Stream
from antiphon.client.past import AsOf
from antiphon.client.sync_arrow import TableArrowCalls
from antiphon.client.sync_session import Session
from antiphon.client.table import AsyncTable, Key, Value
from antiphon.client.tasks import all_ended
from antiphon.client.transaction import Operation, Results, Transaction
from antiphon.client.watch import Watch
from antiphon.model.rows import Row, Version
from antiphon.records.value_type import ValueT

T = TypeVar("T")

SCAN_PAGE_ROWS: Final = 500


class Table(TableArrowCalls, Generic[ValueT]):
    """Keys, values and versions; `client.table(name)` makes one. See `AsyncTable` for the details of each call."""

    def __init__(self, thread: LoopThread, table: AsyncTable[ValueT]) -> None:
        self._thread = thread
        self._table = table
        self.name = table.name

    def __repr__(self) -> str:
        return self._table.described("antiphon.Table")

    def _repr_html_(self) -> str:
        return self._table._repr_html_()

    @property
    def aio(self) -> AsyncTable[ValueT]:
        """The asynchronous handle underneath."""
        return self._table

    @property
    def shards(self) -> int:
        """Number of shards."""
        return self._table.shards

    @overload
    def put(
        self: "Table[bytes]",
        key: Key,
        value: Value,
        *,
        expected_version: Expected = None,
        session: Session | None = None,
        timeout_s: float | None = None,
    ) -> Version: ...

    @overload
    def put(
        self,
        key: Key,
        value: ValueT,
        *,
        expected_version: Expected = None,
        session: Session | None = None,
        timeout_s: float | None = None,
    ) -> Version: ...

    def put(
        self,
        key: Key,
        value: Any,
        *,
        expected_version: Expected = None,
        session: Session | None = None,
        timeout_s: float | None = None,
    ) -> Version:
        """Set a key; returns its new version when it is durable and committed. See `AsyncTable.put`.

        Raises VersionMismatchError (expected, actual), UnknownTopicError, InvalidRequestError, SessionNotFoundError,
        TimedOutError.
        """

        async def put() -> Version:
            under = None if session is None else session.aio
            return await self._table.put(
                key, value, expected_version=expected_version, session=under, timeout_s=timeout_s
            )

        return self._thread.call(put())

    @overload
    def put_many(
        self: "Table[bytes]",
        items: Mapping[str, Value] | Mapping[bytes, Value] | Iterable[tuple[Key, Value]],
        *,
        timeout_s: float | None = None,
    ) -> list[Version]: ...

    @overload
    def put_many(
        self,
        items: Mapping[str, ValueT] | Mapping[bytes, ValueT] | Iterable[tuple[Key, ValueT]],
        *,
        timeout_s: float | None = None,
    ) -> list[Version]: ...

    def put_many(
        self,
        items: Any,
        *,
        timeout_s: float | None = None,
    ) -> list[Version]:
        """Set several keys, each on its own; returns their versions in order. The first error is raised, after all ended."""
        pairs: list[tuple[Key, Any]] = list(items.items() if isinstance(items, Mapping) else items)

        async def put_all() -> list[Version]:
            return await all_ended([self._table.put(key, value, timeout_s=timeout_s) for key, value in pairs])

        return self._thread.call(put_all())

    @contextlib.contextmanager
    def transaction(self, *, timeout_s: float | None = None) -> Generator[Transaction[ValueT]]:
        """Several puts and deletes that are carried out together when the block ends, or not at all.

        All keys must belong to one shard. See `AsyncTable.write` for what the end of the block raises.
        """

        async def write(operations: Sequence[Operation]) -> Results:
            return await self._table.write(operations, timeout_s=timeout_s)

        transaction = Transaction(write, self._table.places, timeout_s, self._table.values)
        yield transaction
        if transaction.operations:
            self._thread.call(transaction.commit())

    def get(
        self,
        key: Key,
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Row[ValueT]:
        """The row of a key: `value` and `version`. Raises KeyNotFoundError. See `AsyncTable.get`."""
        return self._thread.call(
            self._table.get(key, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        )

    def find(
        self,
        key: Key,
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Row[ValueT] | None:
        """The row of a key, or None when it is not there."""
        return self._thread.call(
            self._table.find(key, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        )

    def get_many(
        self, keys: Iterable[Key], *, consistency: str = "linearizable", timeout_s: float | None = None
    ) -> list[Row[ValueT] | None]:
        """The rows of several keys in their order, None where a key is not there."""
        return self._thread.call(
            self._table.get_many(list(keys), consistency=consistency, timeout_s=timeout_s)
        )

    def __contains__(self, key: Key) -> bool:
        return self.find(key) is not None

    def delete(self, key: Key, *, expected_version: Expected = None, timeout_s: float | None = None) -> None:
        """Remove a key. Raises KeyNotFoundError when it is not there, VersionMismatchError."""

        async def delete() -> None:
            await self._table.delete(key, expected_version=expected_version, timeout_s=timeout_s)

        self._thread.call(delete())

    def delete_range(self, start: Key, end: Key, *, timeout_s: float | None = None) -> None:
        """Remove every key with start <= key < end in byte order; an empty end means to the end."""
        self._thread.call(self._table.delete_range(start, end, timeout_s=timeout_s))

    @overload
    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        include_value: Literal[True] = True,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Stream[Row[ValueT]]: ...

    @overload
    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        include_value: bool,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Stream[Row[ValueT | None]]: ...

    def scan(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        include_value: bool = True,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Stream[Row[Any]]:
        """Rows with start <= key < end, or whose keys begin with `prefix`, in byte order. See `AsyncTable.scan`."""
        rows = self._table.scan(
            start,
            end,
            prefix=prefix,
            include_value=include_value,
            consistency=consistency,
            as_of=as_of,
            timeout_s=timeout_s,
        )
        return self._thread.iterate(_pages(rows))

    def list(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        prefix: Key = b"",
        consistency: str = "linearizable",
        timeout_s: float | None = None,
    ) -> "list[bytes]":
        """Keys with start <= key < end, or that begin with `prefix`, in byte order."""
        return self._thread.call(
            self._table.list(start, end, prefix=prefix, consistency=consistency, timeout_s=timeout_s)
        )

    def watch(self, *, start: int | Sequence[int] = -1, shard: int | None = None) -> Changes[ValueT]:
        """Follow the table from this moment on (or from `start`): an iterator of changes. See `AsyncTable.watch`."""

        async def make() -> Watch[ValueT]:
            watch = self._table.watch(start=start, shard=shard)
            await watch.start()
            return watch

        return Changes(self._thread, self._thread.call(make()))


async def _pages(rows: AsyncIterator[T]) -> AsyncIterator[Sequence[T]]:
    page: list[T] = []
    async for row in rows:
        page.append(row)
        if len(page) == SCAN_PAGE_ROWS:
            yield page
            page = []
    if page:
        yield page
