"""Rates: what nodes and shards say at two moments, as one figure per second. Pure: nothing here asks or waits."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Final, NamedTuple

from antiphon.model.counters import LATENCY_BOUNDS_S
from antiphon.model.requests import FIND_KEYS_MAX, ReplicaStatus, StatusReply

PAGE_SHARDS: Final = 500  # that a node is asked for at once
FORGET_READ_S: Final = 120.0  # so old a read says nothing of now


class NodeRates(NamedTuple):
    """What a node does, per second. `cpu`: processors in use; the last two: seconds, None where nothing was counted."""

    appends: float
    records: float
    bytes_in: float
    bytes_out: float
    table_ops: float
    table_reads: float
    cpu: float
    commit_p99_s: float | None
    sync_p99_s: float | None


def node_rates(before: StatusReply | None, now: StatusReply) -> NodeRates | None:
    """What a node did between two answers, by its own clock. None: it told nothing before, or was started anew since."""
    if before is None or before.counters is None or now.counters is None:
        return None
    passed_s = (now.uptime_ms - before.uptime_ms) / 1000
    if passed_s <= 0 or before.node.incarnation != now.node.incarnation:
        return None
    old, new = before.counters, now.counters
    return NodeRates(
        (new.appends - old.appends) / passed_s,
        (new.append_records - old.append_records) / passed_s,
        (new.append_bytes - old.append_bytes) / passed_s,
        (new.fetch_bytes - old.fetch_bytes) / passed_s,
        (new.table_ops - old.table_ops) / passed_s,
        (new.table_reads - old.table_reads) / passed_s,
        (new.cpu_ms - old.cpu_ms) / 1000 / passed_s,
        quantile_s(old.commit_counts, new.commit_counts, 0.99),
        quantile_s(old.disk_counts, new.disk_counts, 0.99),
    )


def quantile_s(before: Sequence[int], now: Sequence[int], share: float) -> float | None:
    """The duration that this share of those counted between two reads did not exceed; infinite above the last bound.

    Within a bucket they are taken to be spread evenly, as Prometheus does it. None where nothing was counted, or where the
    buckets are not those that this version knows.
    """
    if len(before) != len(now) or len(now) != len(LATENCY_BOUNDS_S) + 1:
        return None
    counts = [new - old for old, new in zip(before, now, strict=True)]
    total = sum(counts)
    if total <= 0 or min(counts) < 0:
        return None
    rank, below, low = share * total, 0, 0.0
    for count, bound in zip(counts, LATENCY_BOUNDS_S, strict=False):
        if count and below + count >= rank:
            return low + (bound - low) * (rank - below) / count
        below, low = below + count, bound
    return float("inf")


class ShardRead(NamedTuple):
    """What a shard's leader said. `records_s` None: it was read once only. `lag`: entries that `lag_node` lacks."""

    at_s: float
    node: int
    term: int
    log_end: int
    high_watermark: int
    size_bytes: int
    state: str
    records_s: float | None
    lag: int | None
    lag_node: int


class ShardBook:
    """The last read of each shard, and which shards to ask for next.

    A node is asked for a bounded number of the shards that it leads. Where it leads more, half of them are those with the
    highest rates and lags so far, and the others follow in turn: a shard that begins to be busy is found within a round.
    """

    def __init__(self, page_shards: int = PAGE_SHARDS) -> None:
        self.reads: dict[int, ShardRead] = {}
        self._page = min(page_shards, FIND_KEYS_MAX)
        self._at: dict[int, int] = {}  # by node: where in its shards the next page begins

    def next_page(self, node: int, led: Sequence[int], first: Collection[int] = ()) -> list[int]:
        """The shards to ask a node for that leads `led`; those that are also in `first` before others."""
        if len(led) <= self._page:
            self._at.pop(node, None)
            return list(led)
        half = self._page // 2
        known = [shard_id for shard_id in led if shard_id in self.reads]
        chosen = dict.fromkeys([shard_id for shard_id in led if shard_id in first][: half // 2])
        chosen.update(dict.fromkeys(nlargest(half - len(chosen), known, key=self._heat)))
        start = at = self._at.get(node, 0) % len(led)
        while len(chosen) < self._page:
            chosen[led[at]] = None
            at = (at + 1) % len(led)
            if at == start:
                break
        self._at[node] = at
        return list(chosen)

    def _heat(self, shard_id: int) -> tuple[float, int]:
        read = self.reads[shard_id]
        return read.records_s or 0.0, read.lag or 0

    def take(self, node: int, at_s: float, asked: Collection[int], replicas: Iterable[ReplicaStatus]) -> None:
        """A node said this of the shards that it was asked for, at a time of the reader's monotonic clock."""
        for replica in replicas:
            if replica.shard_id in asked and replica.role != "not_member":
                self.reads[replica.shard_id] = self._read(node, at_s, replica)

    def _read(self, node: int, at_s: float, now: ReplicaStatus) -> ShardRead:
        before = self.reads.get(now.shard_id)
        rate = None
        if before is not None and 0 < at_s - before.at_s <= FORGET_READ_S and now.log_end >= before.log_end:
            rate = (now.log_end - before.log_end) / (at_s - before.at_s)
        slowest = min(now.followers, key=lambda one: one[1], default=None)
        lag = None if slowest is None else max(0, now.log_end - slowest[1])
        return ShardRead(
            at_s,
            node,
            now.term,
            now.log_end,
            now.high_watermark,
            now.size_bytes,
            now.state,
            rate,
            lag,
            -1 if slowest is None else slowest[0],
        )

    def keep(self, shards: Mapping[int, object], now_s: float) -> None:
        """Forget shards that are no more, and reads that are too old to say anything."""
        gone = [
            shard_id
            for shard_id, read in self.reads.items()
            if shard_id not in shards or now_s - read.at_s > FORGET_READ_S
        ]
        for shard_id in gone:
            del self.reads[shard_id]
