"""What a node counts, as other nodes and dashboards are told."""

import msgspec


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """What a node has counted since its start. The last two: durations by the bounds of its histograms, not cumulative.

    `appends` are batches, `commit_counts` from a client's append to its commit, `disk_counts` until a write is durable.
    """

    appends: int = 0
    append_records: int = 0
    append_bytes: int = 0
    fetches: int = 0
    fetch_bytes: int = 0
    table_ops: int = 0
    table_reads: int = 0
    elections: int = 0
    commit_counts: tuple[int, ...] = ()
    disk_counts: tuple[int, ...] = ()
