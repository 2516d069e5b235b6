"""What a shard answers to appends, fetches and questions for offsets, inside a node."""

from typing import Final, NamedTuple

from antiphon.records.batch import Buffer

COMMITTED: Final = "committed"  # isolations; `partition.reads` says what each of them reads
FOLLOWER: Final = "follower"
STORED: Final = "stored"
FOLLOWER_COMMITTED: Final = "follower_committed"
OF_FOLLOWERS: Final = (FOLLOWER, FOLLOWER_COMMITTED)


class AppendResult(NamedTuple):
    """Where a batch landed, once committed. `duplicate`: an earlier try of the same producer had put it there.

    `append_time_ms`: the time that the log gave its records; -1: they have their producer's.
    """

    base_offset: int
    next_offset: int
    term: int
    log_start: int
    duplicate: bool
    append_time_ms: int = -1


class FetchResult(NamedTuple):
    """What stands in the log now. `batches` are whole RecordBatches, contiguous, not copied where that can be.

    `stable_end`: first offset of a transaction that is under way, or else the high watermark. `aborted`: transactions that
    were aborted with batches among these, told where only committed ones are read: producer, first offset, marker's offset.
    """

    high_watermark: int
    log_start: int
    log_end: int
    term: int
    batches: list[Buffer]
    size_bytes: int
    stable_end: int = -1
    aborted: tuple[tuple[int, int, int], ...] = ()


class OffsetResult(NamedTuple):
    """`offset` is -1 when no record is that late. `default_end`: where reads that name no isolation end (C7).
    `stable_end`: where reads of committed transactions end. `deleted_before`: records before it were deleted on request,
    so nobody is given them from an archive, either.
    """

    offset: int
    timestamp_ms: int
    term: int
    log_start: int
    high_watermark: int
    default_end: int = -1
    stable_end: int = -1
    deleted_before: int = 0
