"""Topics and tables as Arrow, for programs that block: the faces of what `arrow_calls.py` has."""

from typing import TYPE_CHECKING, Any

from antiphon.client.arrow_calls import TopicRead
from antiphon.client.log_reader import EARLIEST
from antiphon.client.loop_thread import LoopThread, Stream
from antiphon.client.on_unreadable import OnCorrupt
from antiphon.client.past import AsOf
from antiphon.client.table import AsyncTable, Key
from antiphon.client.topic import AsyncTopic
from antiphon.records.unreadable import FAIL

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa


async def _one_by_one(
    batches: "AsyncGenerator[pa.RecordBatch, None]",
) -> "AsyncGenerator[list[pa.RecordBatch], None]":
    async for batch in batches:
        yield [batch]


class TopicArrowCalls:
    """The calls of `Topic` about Arrow. See `AsyncTopic` for the details of each."""

    _thread: LoopThread
    _topic: AsyncTopic[Any]

    def to_arrow_batches(
        self,
        shard: int | None = None,
        start: int = EARLIEST,
        end: int | None = None,
        *,
        headers: bool = False,
        isolation: str = "",
        on_corrupt: OnCorrupt = FAIL,
        timeout_s: float | None = None,
    ) -> "Stream[pa.RecordBatch]":
        """Records as record batches. See `AsyncTopic.to_arrow_batches`."""
        read = TopicRead(shard, start, end, headers, isolation, on_corrupt, timeout_s)
        return self._thread.iterate(_one_by_one(read.batches(self._topic)))

    def to_arrow(
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
        return self._thread.call(read.table(self._topic))

    def to_pandas(
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
        return self._thread.call(read.frame("pandas", self._topic))

    def to_polars(
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
        return self._thread.call(read.frame("polars", self._topic))

    def append_arrow(self, data: Any, *, shard: int | None = None, timeout_s: float | None = None) -> int:
        """Append the rows of a Table, of record batches or of a DataFrame. See `AsyncTopic.append_arrow`."""
        return self._thread.call(self._topic.append_arrow(data, shard=shard, timeout_s=timeout_s))


class TableArrowCalls:
    """The calls of `Table` about Arrow. See `AsyncTable` for the details of each."""

    _thread: LoopThread
    _table: AsyncTable[Any]

    def to_arrow_batches(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> "Stream[pa.RecordBatch]":
        """Rows as record batches. See `AsyncTable.to_arrow_batches`."""
        batches = self._table.to_arrow_batches(
            start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s
        )
        return self._thread.iterate(_one_by_one(batches))

    def to_arrow(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> "pa.Table":
        """All of `to_arrow_batches` as one Table, in memory."""
        return self._thread.call(
            self._table.to_arrow(start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        )

    def to_pandas(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The same as a DataFrame of pandas; keys and values are bytes."""
        return self._thread.call(
            self._table.to_pandas(start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        )

    def to_polars(
        self,
        start: Key = b"",
        end: Key = b"",
        *,
        consistency: str = "linearizable",
        as_of: AsOf | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """The same as a DataFrame of Polars; keys and values are binary."""
        return self._thread.call(
            self._table.to_polars(start, end, consistency=consistency, as_of=as_of, timeout_s=timeout_s)
        )

    def put_arrow(self, data: Any, *, timeout_s: float | None = None) -> int:
        """Put the rows of a Table, of record batches or of a DataFrame. See `AsyncTable.put_arrow`."""
        return self._thread.call(self._table.put_arrow(data, timeout_s=timeout_s))
