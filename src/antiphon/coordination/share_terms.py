"""What goes into a share-partition (KIP-932) and what comes out of it.

A share-partition is one partition of a topic as one share group reads it: from where on, who works on which records, and how
often each was delivered. Ends of ranges are exclusive. Times are milliseconds of one clock that never goes back.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

import msgspec

UNSET: Final = -1  # offset of a share-partition that nobody has read yet


class RecordState(IntEnum):
    """Of a record in flight. The numbers are stored."""

    AVAILABLE = 0
    ACQUIRED = 1  # a member works on it, under a lock; stored as available
    ACKNOWLEDGED = 2
    ARCHIVED = 3  # rejected, delivered as often as it may be, or no record for anybody


TERMINAL: Final = frozenset({RecordState.ACKNOWLEDGED, RecordState.ARCHIVED})


class AckType(IntEnum):
    """What a member says of records that it acquired. The numbers are Kafka's."""

    GAP = 0  # there is no record at this offset
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4  # it still works on them: the lock begins anew


class ShareRefused(StrEnum):
    """Why acknowledgements are refused, all of a request for a share-partition."""

    BAD_RANGE = "the ranges of offsets and the types of acknowledgements do not fit together"
    BAD_STATE = "the member has not acquired all of these records, or its lock has ended"


class ShareBounds(NamedTuple):
    """What an operator may choose; the names are those of Kafka's `group.share.*`."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    partition_max_record_locks: int = 2_000


@dataclass(slots=True)
class ShareCounts:
    """What became of records, since whoever counts began. One of these may serve many share-partitions.

    Attributes:
        delivered: records that members were given, each time counted.
        acknowledged: records, by what members said of them.
        timed_out: records whose lock ended before anything was said of them.
        exhausted: records that were archived because they had been delivered as often as may be.
    """

    delivered: int = 0
    acknowledged: dict[AckType, int] = field(default_factory=lambda: dict.fromkeys(AckType, 0))
    timed_out: int = 0
    exhausted: int = 0


class LogBatch(NamedTuple):
    """A batch that was read from the log. Nobody is given a batch that is not `visible`: control, or aborted."""

    first: int
    end: int
    visible: bool = True


class Ack(NamedTuple):
    """Acknowledgements of records from `first` to before `end`: one type for all, or one for each."""

    first: int
    end: int
    types: tuple[int, ...]


class Acquired(NamedTuple):
    """Records that a member was given; `deliveries` says how often they were delivered, this time included."""

    first: int
    end: int
    deliveries: int


class Span(NamedTuple):
    """Neighbours in the same state. `holder` and `lock_ms` (when the lock ends) where they are acquired."""

    first: int
    end: int
    state: RecordState
    deliveries: int = 0
    holder: str = ""
    lock_ms: int = 0

    @property
    def is_gap(self) -> bool:
        """Offsets that never were records for anybody."""
        return self.state is RecordState.ARCHIVED and not self.deliveries


class ShareRow(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a share-partition.

    Attributes:
        owner: whoever wrote it: another one for each leader in each term.
        term: of the partition's leader that wrote it.
        revision: of the state, as `owner` counts.
        made_at: version of the metadata that had the topic when the row was made.
        start: the share-partition start offset; everything before it is done. UNSET: not known yet.
        spans: what follows, as (number of offsets, state, delivery count).
    """

    owner: bytes
    term: int
    revision: int
    made_at: int
    start: int
    spans: tuple[tuple[int, int, int], ...] = ()
