"""Settings of one shard's log."""

from typing import Final, NamedTuple

STEP_BYTES: Final = 1024 * 1024  # a write of so many bytes is not added to


class Compaction(NamedTuple):
    """When and how a log is compacted; Kafka's `min.compaction.lag.ms` and so on."""

    min_lag_ms: int = 0  # what is younger stays
    max_lag_ms: int = (1 << 63) - 1  # what is older is compacted, however little there is
    # That tombstones stay once the records that they delete are gone
    delete_retention_ms: int = 24 * 3600 * 1000
    dirty_ratio: float = 0.5  # of a log's bytes, that are not clean: a pass begins above it


class LogConfig(NamedTuple):
    """Settings of one shard's log; `_replace` gives a changed copy, which `ShardLog.configure` takes over at once.

    flush: `always`: a write is reported done when fdatasync has returned. `interval`: when it is written, with an fdatasync
    every `flush_interval_ms`. `os`: when it is written. The two latter can lose acknowledged data in a power failure.
    """

    segment_bytes: int = 256 * 1024 * 1024  # a segment that would outgrow this is closed
    # A segment older than this is closed, so that retention can take it
    segment_ms: int = 7 * 24 * 3600 * 1000
    retention_ms: int = -1  # segments whose newest record is older go; -1: never
    retention_bytes: int = -1  # oldest segments go while the log is larger; -1: never
    flush: str = "always"
    flush_interval_ms: int = 1000
    tail_bytes_max: int = 4 * 1024 * 1024  # newest batches kept in memory, per shard, once they are durable
    snapshot_bytes: int = 32 * 1024 * 1024  # recovery after a crash reads at most about this much
    compaction: Compaction | None = None  # None: by age and size only
