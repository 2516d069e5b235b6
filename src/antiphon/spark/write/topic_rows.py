"""From Arrow columns to record batches for a topic's shards, without a Python object per row.

A row goes where its column partition (or shard) says, else where its key's hash says (as with Kafka's clients), else to the
shards in turn, by its place in the task. Batches are cut by the rows of their shard alone.

With a column expectedOffset, rows whose expectations follow each other form one batch (or several, above the limits of one),
which has to land exactly there; rows without an expectation that follow each other form batches as always.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from antiphon.errors import BatchTooLargeError, InvalidRequestError, UnknownShardError
from antiphon.spark.job import Job
from antiphon.spark.rows import EXPECTED
from antiphon.spark.shard_writers import Numbers

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from antiphon.records.arrow_encode import BatchEncoder, Encoded

NO_EXPECTATION: Final = -1
_RECORD_COLUMNS: Final = ("key", "value", "headers", "timestamp")


class Ready(NamedTuple):
    """A record batch for a shard, the `number`th of this task for it; `expected`: where it has to land."""

    shard: int
    number: int
    batch: bytearray
    expected: int | None = None


class Cut(NamedTuple):
    """Where batches are cut, and what the topic takes at most."""

    rows_max: int
    bytes_max: int
    limit_bytes: int
    compression: str


class TopicRows:
    """A task's rows on their way to batches. Use: `add` any number of times, then `rest`."""

    def __init__(
        self, job: Job, name: str, shards: int, cut: Cut, default_time_ms: int | Callable[[], int]
    ) -> None:
        self._job = job
        self._name = name
        self._shards = shards
        self._cut = cut
        self._default_time_ms = default_time_ms
        self._numbers = Numbers(job)
        self._encoder: BatchEncoder | None = None
        self._runs: dict[int, _Run] = {}
        self.rows = 0

    def add(self, batch: "pa.RecordBatch") -> Iterator[Ready]:
        """Take rows whose columns passed `check_columns`; the batches that they complete, those of a shard in order.

        Raises UnknownShardError, and BatchTooLargeError for a row that the topic does not take.
        """
        if batch.num_rows == 0:
            return
        shards = self._shards_of(batch)
        names = [name for name in _RECORD_COLUMNS if name in batch.schema.names]
        columns = batch.select(names)
        if EXPECTED in batch.schema.names:
            yield from self._conditional(columns, shards, _integers(batch.column(EXPECTED), NO_EXPECTATION))
        else:
            if self._encoder is None:
                self._encoder = self._new_encoder(self._shards)
            for encoded in self._encoder.add(columns, shards, self._default_time_ms):
                yield self._ready(encoded.shard, encoded, None)
        self.rows += batch.num_rows

    def rest(self) -> Iterator[Ready]:
        """What is left of all shards."""
        if self._encoder is not None:
            for encoded in self._encoder.rest():
                yield self._ready(encoded.shard, encoded, None)
        for shard in sorted(self._runs):
            yield from self._end_run(shard)

    def _new_encoder(self, shards: int) -> "BatchEncoder":
        from antiphon.records.arrow_encode import BatchEncoder

        return BatchEncoder(
            shards,
            self._cut.rows_max,
            min(self._cut.bytes_max, self._cut.limit_bytes),
            producer_id=self._job.producer_id(table=False),
            producer_epoch=self._job.producer_epoch,
            compression=self._cut.compression,
        )

    def _ready(self, shard: int, encoded: "Encoded", expected: int | None) -> Ready:
        if len(encoded.batch) > self._cut.limit_bytes:
            raise BatchTooLargeError(
                f"{self._job}: row {encoded.first_row} of those for shard {shard} takes {len(encoded.batch)} bytes, "
                f"{self._name} takes {self._cut.limit_bytes} (max.message.bytes)",
                size_bytes=len(encoded.batch),
                limit_bytes=self._cut.limit_bytes,
                row=encoded.first_row,
            )
        return Ready(shard, self._numbers.take(shard), encoded.batch, expected)

    # -- shards -------------------------------------------------------------------------------------------------

    def _shards_of(self, batch: "pa.RecordBatch") -> "NDArray[np.int32]":
        from antiphon.records.arrow_encode import shards_by_key

        names = batch.schema.names
        in_turn = (self.rows + np.arange(batch.num_rows)) % self._shards
        found = in_turn.astype(np.int32)
        if "key" in names:
            by_key = shards_by_key(batch.column("key"), self._shards, table=False)
            found = np.where(by_key < 0, found, by_key)
        place = "partition" if "partition" in names else "shard"
        if place in names:
            asked = _integers(batch.column(place), NO_EXPECTATION)
            given = ~_nulls(batch.column(place))
            wrong = given & ((asked < 0) | (asked >= self._shards))
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise UnknownShardError(
                    f"{self._name} has shards 0 to {self._shards - 1}, a row asks for {asked[at]} "
                    f"(row {self.rows + at} of {self._job})",
                    row=self.rows + at,
                )
            found = np.where(given, asked, found)
        return found.astype(np.int32)

    # -- conditional appends ------------------------------------------------------------------------------------

    def _conditional(
        self, columns: "pa.RecordBatch", shards: "NDArray[np.int32]", expected: "NDArray[np.int64]"
    ) -> Iterator[Ready]:
        if (expected < NO_EXPECTATION).any():
            raise InvalidRequestError(
                f"{self._job}: an {EXPECTED} is negative; null stands for no expectation",
                row=self.rows + int(np.flatnonzero(expected < NO_EXPECTATION)[0]),
            )
        for shard in np.unique(shards).tolist():
            rows = np.flatnonzero(shards == shard)
            places = expected[rows]
            goes_on = (places[1:] == places[:-1] + 1) & (places[:-1] >= 0)
            goes_on |= (places[1:] == NO_EXPECTATION) & (places[:-1] == NO_EXPECTATION)
            starts = [0, *(np.flatnonzero(~goes_on) + 1).tolist(), len(rows)]
            for start, end in pairwise(starts):
                yield from self._add_run(shard, columns, rows[start:end], int(places[start]))

    def _add_run(
        self, shard: int, columns: "pa.RecordBatch", rows: "NDArray[Any]", expected: int
    ) -> Iterator[Ready]:
        run = self._runs.get(shard)
        if run is None:
            run = self._runs[shard] = _Run(self._new_encoder(1))
        if not run.takes(expected):
            yield from self._end_run(shard)
        if run.is_empty:
            run.begin(expected)
        run.rows += len(rows)
        taken = columns.take(_indices(rows))
        yield from self._run_batches(
            shard, run.encoder.add(taken, np.zeros(len(rows), np.int32), self._default_time_ms)
        )

    def _end_run(self, shard: int) -> Iterator[Ready]:
        run = self._runs[shard]
        yield from self._run_batches(shard, run.encoder.rest())
        run.rows = 0

    def _run_batches(self, shard: int, made: "Sequence[Encoded]") -> Iterator[Ready]:
        run = self._runs[shard]
        for encoded in made:
            yield self._ready(shard, encoded, run.land(encoded.rows))


class _Run:
    """Rows of one shard whose expectations follow each other, or that have none."""

    def __init__(self, encoder: "BatchEncoder") -> None:
        self.encoder = encoder
        self.rows = 0
        self._first = NO_EXPECTATION
        self._landed = 0

    @property
    def is_empty(self) -> bool:
        """Did it not begin yet?"""
        return self.rows == 0

    def begin(self, expected: int) -> None:
        """The first row of a run expects to land here."""
        self._first, self._landed = expected, 0

    def takes(self, expected: int) -> bool:
        """Does a row with this expectation go on with the run?"""
        if self.is_empty:
            return True
        return expected == (self._first + self.rows if self._first >= 0 else NO_EXPECTATION)

    def land(self, rows: int) -> int | None:
        """Where the next batch of so many rows has to land."""
        at = self._landed
        self._landed += rows
        return self._first + at if self._first >= 0 else None


# Arrow's own conversions from and to Python's and numpy's values import pandas, in every worker of Spark.


def _integers(column: "pa.Array", null: int) -> "NDArray[np.int64]":
    import pyarrow as pa

    whole = column.cast(pa.int64())
    found = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + len(whole)]
    return np.where(_nulls(whole), null, found) if whole.null_count else found


def _nulls(column: "pa.Array") -> "NDArray[np.bool_]":
    validity = column.buffers()[0]
    if validity is None or column.null_count == 0:
        return np.zeros(len(column), np.bool_)
    bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
    return bits[column.offset : column.offset + len(column)] == 0


def _indices(rows: "NDArray[Any]") -> "pa.Array":
    import pyarrow as pa

    return pa.Int64Array.from_buffers(
        pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows, np.int64))]
    )
