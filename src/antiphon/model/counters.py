"""What a node counts, as other nodes and dashboards are told."""

from typing import Final

import msgspec

LATENCY_BOUNDS_S: Final = (
    0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0
)  # fmt: skip


class Counters(msgspec.Struct, frozen=True, array_like=True):
    """What a node has counted since its start.

    `appends` are batches. `commit_counts` (from a client's append to its commit) and `disk_counts` (until a write is
    durable) are durations by LATENCY_BOUNDS_S, not cumulative. `descriptors` are those that are open now; 0: not known.
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
    cpu_ms: int = 0
    descriptors: int = 0
