"""Topics and tables as Arrow: reads as record batches, and DataFrames of pandas and Polars; writes of all of those.

The libraries are optional, so they are imported where they are needed (`arrow_pieces`).
"""

from contextlib import aclosing
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.client.handles import Handle
from antiphon.client.hashing import as_bytes
from antiphon.client.log_reader import EARLIEST
from antiphon.client.on_unreadable import OnCorrupt
from antiphon.client.past import AsOf, rows_of_table_as_of
from antiphon.client.table_core import TableCore
from antiphon.client.table_scan import SCAN_ROWS
from antiphon.client.tasks import all_ended
from antiphon.client.topic_reads import TopicReads, Wanted
from antiphon.client.topic_writer import BYTES_PER_BATCH, now_ms
from antiphon.errors import InvalidRequestError, WrongKindError
from antiphon.model.body import reply_as
from antiphon.model.metadata import Kind
from antiphon.model.requests import AppendBatch, Appended, Put, TableScan
from antiphon.records.unreadable import FAIL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    import pyarrow as pa

Key = str | bytes
BATCH_BYTES_MAX: Final = 1_048_588  # a topic's default for `max.message.bytes`
PUTS_AT_ONCE: Final = 5_000


def pieces() -> Any:
    """The module that needs the libraries. Raises InvalidRequestError when one is missing."""
    try:
        if find_spec("numba") is None:  # which is not imported before the first batch
            raise ModuleNotFoundError(name="numba")
        return import_module("antiphon.client.arrow_pieces")
    except ModuleNotFoundError as error:
        raise InvalidRequestError(f"{error.name} is not installed: pip install 'antiphon[arrow]'") from error


def library(name: str) -> Any:
    """A library of DataFrames. Raises InvalidRequestError when it is missing."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidRequestError(f"{error.name} is not installed: pip install {name}") from error


async def _frame(name: str, read: "Callable[[], Awaitable[pa.Table]]") -> Any:
    """A Table as a DataFrame of pandas or Polars; nothing is read where the library is missing."""
    found = library(name)
    table = await read()
    if name == "polars":
        return found.from_arrow(table)
    return table.to_pandas(integer_object_nulls=True)  # integers would be rounded beside nulls, as floats


class TopicArrow(TopicReads):
    """The calls of `AsyncTopic` about Arrow. Values are bytes there, whatever type the topic's have."""

    _compression = "none"

    async def to_arrow_batches(
        self,
        shard: int | None = None,
        start: int = EARLIEST,
        end: int | None = None,
        *,
        headers: bool = False,
        isolation: str = "",
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        """Records as record batches, in the order of their offsets: of one shard, or of all, one shard after the other.

        Columns: key and value (binary), shard (int32), offset (int64), timestamp (microseconds, UTC), and with `headers`
        headers (list of struct of key and value). What is fetched ahead is one request, so memory is bounded by about 2 MiB
        and what a compressed batch unpacks to. See `read` for the arguments and `on_corrupt`; offsets belong to a shard, so
        `start` and `end` need one.

        Raises what `read` raises, and InvalidRequestError without the libraries of `antiphon[arrow]`.
        """
        library, meta = pieces(), await self._resolved()
        if shard is None and (start != EARLIEST or end is not None):
            raise InvalidRequestError("start and end need shard: offsets belong to a shard")
        of_shard = partial(library.ArrowPieces, headers=headers)
        for one in range(len(meta.shards)) if shard is None else (shard,):
            found = self._pieces(of_shard, Wanted(one, start, end, isolation), on_corrupt, timeout_s)
            async with aclosing(found):
                async for batch in found:
                    yield batch

    async def to_arrow(
        self,
        shard: int | None = None,
        start: int = EARLIEST,
        end: int | None = None,
        *,
        headers: bool = False,
        isolation: str = "",
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> "pa.Table":
        """All of `to_arrow_batches` as one Table, in memory."""
        read = TopicRead(shard, start, end, headers, isolation, on_corrupt, timeout_s)
        return await read.table(self)

    async def to_pandas(
        self,
        shard: int | None = None,
        start: int = EARLIEST,
        end: int | None = None,
        *,
        headers: bool = False,
        isolation: str = "",
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> Any:
        """The same as a DataFrame of pandas; keys and values are bytes."""
        read = TopicRead(shard, start, end, headers, isolation, on_corrupt, timeout_s)
        return await read.frame("pandas", self)

    async def to_polars(
        self,
        shard: int | None = None,
        start: int = EARLIEST,
        end: int | None = None,
        *,
        headers: bool = False,
        isolation: str = "",
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> Any:
        """The same as a DataFrame of Polars; keys and values are binary."""
        read = TopicRead(shard, start, end, headers, isolation, on_corrupt, timeout_s)
        return await read.frame("polars", self)

    async def append_arrow(
        self, data: Any, *, shard: int | None = None, timeout_s: float | None = None
    ) -> int:
        """Append the rows of a Table, of record batches or of a DataFrame; returns how many, when all are durable.

        Columns: value, and if there are any key (binary or string, or null), headers (list of struct of key and value) and
        timestamp. Other columns are left out. Without `shard` keys decide, as in `append`; rows without a key are spread.
        Rows of a shard keep their order. At most 50,000 rows are encoded at once. `timeout_s` bounds each batch.

        A batch is in the log once or not at all, whatever repeats it takes. When an error is raised, batches before the one
        that failed are in the log. Raises what `append` raises, and InvalidRequestError for columns of other types.
        """
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        arrow, meta = pieces(), await self._resolved()
        if meta.kind is Kind.TABLE:
            raise WrongKindError(f"{self.name!r} is a table: its log is written by puts and deletes only")
        if shard is not None:
            self._shard_id(meta, shard)
        limit = min(int(meta.config.get("max.message.bytes", BATCH_BYTES_MAX)) // 2, BYTES_PER_BATCH)
        producer_id = await self._cluster.producer_id(fresh=True)
        maker = arrow.ArrowToBatches(len(meta.shards), shard, limit, self._compression, producer_id)
        for batch in arrow.batches_of(data):
            made = maker.add(batch, now_ms())
            sent = [self._append_all(self._shard_id(meta, to), found, limit_s) for to, found in made.items()]
            await all_ended(sent)
        return int(maker.rows)

    async def _append_all(self, shard_id: int, batches: list[bytearray], timeout_s: float) -> None:
        """One after the other: a shard takes the sequences of a producer in order."""
        for batch in batches:
            request = AppendBatch(shard_id, None, int(timeout_s * 1000))
            reply, _ = await self._cluster.call_shard(shard_id, request, (batch,), timeout_s=timeout_s)
            reply = reply_as(Appended, reply, "for an append")


class TopicRead(NamedTuple):
    """What `to_arrow_batches` of a topic is asked for."""

    shard: int | None
    start: int
    end: int | None
    headers: bool
    isolation: str
    on_corrupt: OnCorrupt
    timeout_s: float | None

    def batches(self, topic: TopicArrow) -> "AsyncGenerator[pa.RecordBatch, None]":
        """The record batches."""
        return topic.to_arrow_batches(
            self.shard,
            self.start,
            self.end,
            headers=self.headers,
            isolation=self.isolation,
            on_corrupt=self.on_corrupt,
            timeout_s=self.timeout_s,
        )

    async def table(self, topic: TopicArrow) -> "pa.Table":
        """All of them as one Table."""
        schema = pieces().RECORDS_WITH_HEADERS if self.headers else pieces().RECORDS
        return pieces().table_of([batch async for batch in self.batches(topic)], schema)

    async def frame(self, library: str, topic: TopicArrow) -> Any:
        """The same as a DataFrame of this library."""
        return await _frame(library, partial(self.table, topic))


class TableArrow(Handle):
    """The calls of `AsyncTable` about Arrow. Values are bytes there, whatever type the table's have."""

    core: TableCore

    async def to_arrow_batches(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> "AsyncGenerator[pa.RecordBatch, None]":
        """Rows with start <= key < end as record batches, shard by shard, in key order within a shard.

        Columns: key and value (binary), version and modifications (int64), created and modified (microseconds, UTC),
        session_id (int64, null for rows of no session). A batch is a page of up to 1,000 rows, from one moment; the whole
        result is not. An empty end means to the end; `timeout_s` bounds each page.

        With `as_of` the rows as they were at an offset or a time, in key order over all shards: see `AsyncTable.scan`.

        Raises what `scan` raises, and InvalidRequestError without the libraries of `antiphon[arrow]`.
        """
        arrow, first, stop = pieces(), as_bytes(start, "key"), as_bytes(end, "key")
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if as_of is not None:
            rows = await rows_of_table_as_of(self.core, first, stop, as_of, limit_s)
            for at in range(0, len(rows), SCAN_ROWS):
                yield arrow.rows_batch(rows[at : at + SCAN_ROWS])
            return
        request = TableScan(-1, first, stop, SCAN_ROWS, True, consistency)
        for scan in await self.core.scans(request, limit_s):
            while scan.more:
                await scan.load()
                if scan.rows:
                    yield arrow.rows_batch(scan.rows)

    async def to_arrow(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> "pa.Table":
        """All of `to_arrow_batches` as one Table, in memory."""
        found = self.to_arrow_batches(start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        return pieces().table_of([batch async for batch in found], pieces().ROWS)

    async def to_pandas(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The same as a DataFrame of pandas; keys and values are bytes."""
        read = partial(self.to_arrow, start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        return await _frame("pandas", read)

    async def to_polars(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The same as a DataFrame of Polars; keys and values are binary."""
        read = partial(self.to_arrow, start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        return await _frame("polars", read)

    async def put_arrow(self, data: Any, *, timeout_s: float | None = None) -> int:
        """Put the rows of a Table, of record batches or of a DataFrame; returns how many, when all are durable.

        Columns: key and value (binary or string, without nulls). Other columns are left out. Each row is put on its own, in
        order; 5,000 are on their way at once. `timeout_s` bounds each put. When an error is raised, any of the rows may
        have been put up to those on their way. Raises what `put` raises, and InvalidRequestError for columns of other
        types.
        """
        arrow, rows = pieces(), 0
        await self.core.ready()
        for batch in arrow.batches_of(data):
            pairs = list(arrow.puts_of(batch))
            for at in range(0, len(pairs), PUTS_AT_ONCE):
                part = pairs[at : at + PUTS_AT_ONCE]
                puts = [self.core.write(key, Put(key, value, None), timeout_s) for key, value in part]
                await all_ended(puts)
                rows += len(part)
        return rows
