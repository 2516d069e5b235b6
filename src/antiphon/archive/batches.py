"""Rows of archived files as RecordBatches again, for consumers of a protocol whose unit is the batch.

A file has no batch as it stood in the log. Batches are made of neighbours with one term and one kind of time; where the log
gave them their time, of those with one time. Offsets without a row, of control batches and of aborted transactions, belong
to the batch before them, as after compaction; those before the first row are a filler (`records.compacted`). So batches
take every offset from the one that was asked for on, and a consumer goes on over all of them.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.records.batch import HEADER_BYTES, NO_TIME
from antiphon.records.builder import RecordInput, build_sparse
from antiphon.records.compacted import filler

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from antiphon.archive.files import RowGroup

BATCH_BYTES: Final = 256 * 1024  # of a batch, but for one that has a larger record
BATCH_OFFSETS: Final = 1 << 30  # that a batch takes at most
ROWS_MAX: Final = 16_384  # that one call makes batches of
ROW_BYTES: Final = 36  # at most of a record in a batch, besides key, value and headers
PAIR_BYTES: Final = 10  # at most of a header, besides name and value
NO_TERM: Final = -1


class Made(NamedTuple):
    """Batches that follow each other, and their size."""

    batches: list[bytes | bytearray]
    size_bytes: int


def batches_of(
    group: "RowGroup", offset: int, max_bytes: int, pause: Callable[[], None], *, at_least_one: bool
) -> Made:
    """Batches of a row group, from an offset on that it holds; together at most `max_bytes`.

    With `at_least_one` the first record comes however large it is. `pause` is called after each batch.
    """
    import numpy as np

    offsets = group.rows.column("offset").to_numpy()
    first = int(np.searchsorted(offsets, offset))
    if first == len(offsets):
        return _sized(list(_fillers(offset, group.end, NO_TERM)))
    rows = group.rows.slice(first, ROWS_MAX).combine_chunks().to_batches()[0]
    behind = [*offsets[first : first + ROWS_MAX + 1].tolist(), group.end]
    made: list[bytes | bytearray] = list(_fillers(offset, behind[0], rows.column("term")[0].as_py()))
    sizes = _bytes_of_rows(rows)
    starts = _starts(rows, sizes)
    costs = np.cumsum(sizes + starts * HEADER_BYTES)
    fit = int(np.searchsorted(costs, max_bytes - HEADER_BYTES * len(made), side="right"))
    if not fit and not at_least_one:
        return Made([], 0)
    fit = max(fit, 1)
    for begin, end in pairwise([*np.flatnonzero(starts[:fit]).tolist(), fit]):
        made += _built(rows.slice(begin, end - begin), behind[begin], behind[end])
        pause()
    return _sized(made)


def _sized(made: list[bytes | bytearray]) -> Made:
    return Made(made, sum(map(len, made)))


def _fillers(offset: int, end: int, term: int) -> Iterator[bytes]:
    """Batches without records for offsets without any."""
    for start in range(offset, end, BATCH_OFFSETS):
        yield filler(start, min(end, start + BATCH_OFFSETS), term)


def _bytes_of_rows(rows: "pa.RecordBatch") -> "NDArray[np.int64]":
    """What each row takes of a batch, at most."""
    import numpy as np
    import pyarrow.compute as pc

    def lengths(column: Any) -> "NDArray[np.int64]":
        return np.asarray(pc.fill_null(pc.binary_length(column), 0).to_numpy(), np.int64)

    headers = rows.column("headers")
    ends = np.cumsum(pc.fill_null(pc.list_value_length(headers), 0).to_numpy())
    names, values = headers.flatten().flatten()
    pairs = np.concatenate(([0], np.cumsum(lengths(names) + lengths(values) + PAIR_BYTES)))
    of_headers: NDArray[np.int64] = np.diff(pairs[ends], prepend=0)
    keys, texts = lengths(rows.column("key")), lengths(rows.column("value"))
    found: NDArray[np.int64] = keys + texts + of_headers + ROW_BYTES
    return found


def _starts(rows: "pa.RecordBatch", sizes: "NDArray[np.int64]") -> "NDArray[np.bool_]":
    """Which rows begin a batch."""
    import numpy as np

    offsets = rows.column("offset").to_numpy()
    by_log = rows.column("timestampType").to_numpy()
    together = (
        rows.column("term").to_numpy(),
        by_log,
        _times_ms(rows) * by_log,
        np.cumsum(sizes) // BATCH_BYTES,
        (offsets - offsets[0]) // BATCH_OFFSETS,
    )
    starts = np.zeros(len(offsets), np.bool_)
    starts[0] = True
    for values in together:
        starts[1:] |= values[1:] != values[:-1]
    return starts


def _times_ms(rows: "pa.RecordBatch") -> "NDArray[np.int64]":
    import numpy as np

    return np.asarray(rows.column("timestamp").cast("int64").to_numpy(), np.int64) // 1000


def _built(rows: "pa.RecordBatch", base: int, behind: int) -> Iterator[bytes | bytearray]:
    """One batch of these rows, which takes all offsets up to the next row's, and fillers where these are too many."""
    times = _times_ms(rows).tolist()
    offsets = rows.column("offset").to_pylist()
    term = int(rows.column("term")[0].as_py())
    records: list[RecordInput] = [
        (key, value, [(pair["key"], pair["value"]) for pair in headers or ()], time_ms)
        for key, value, headers, time_ms in zip(
            rows.column("key").to_pylist(),
            rows.column("value").to_pylist(),
            rows.column("headers").to_pylist(),
            times,
            strict=True,
        )
    ]
    end = behind if behind - base <= BATCH_OFFSETS else offsets[-1] + 1
    yield build_sparse(
        records,
        [offset - base for offset in offsets],
        base_offset=base,
        last_delta=end - base - 1,
        leader_epoch=term,
        append_time_ms=times[0] if rows.column("timestampType")[0].as_py() else NO_TIME,
    )
    yield from _fillers(end, behind, term)
