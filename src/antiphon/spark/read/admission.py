"""How much of what waits goes into the next micro-batch.

Sizes are not known before records are read. What a shard's log takes per offset on disk (compressed, as it is) stands in for
the size of what waits, or what the first batches that wait take, whichever is more.
So `maxBytesPerTrigger` is exact where records are of about one size, and about right where they are not; it bounds what is
fetched, not what Spark makes of it.
"""

import time
from collections.abc import Iterable
from typing import Final

from antiphon.client.blocking import ShardCall
from antiphon.errors import AntiphonError
from antiphon.model.requests import Fetch
from antiphon.records.batch import iter_batches
from antiphon.spark.offsets import Position, Positions, advance, within_bytes
from antiphon.spark.read.options import Admission
from antiphon.spark.read.planner import Planner

SIZES_AGE_S: Final = 5.0
PROBE_BYTES: Final = 64 * 1024


class Admitter:
    """The limits of one stream, and when it last had a batch."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._admitted_at: float | None = None
        self._sizes: dict[int, float] = {}  # shard id -> bytes per offset
        self._sized_at: float | None = None

    def admit(
        self, planner: Planner, begin: Positions, end: Positions, *, is_last: bool, is_limited: bool
    ) -> Positions | None:
        """How far to go from `begin` towards `end`; None where too little waits.

        `is_last`: no more will come, so there is nothing to wait for.
        """
        admission = self._admission
        waiting = sum(max(0, end[position] - begin.get(position, 0)) for position in end)
        now = time.monotonic()
        if not is_last and self._is_too_little(waiting, now):
            return None
        if not waiting:
            return advance(begin, end, None)
        self._admitted_at = now
        reached = advance(begin, end, admission.offsets_max if is_limited else None)
        if is_limited and admission.bytes_max is not None:
            reached = self._within_bytes(planner, begin, reached, admission.bytes_max)
        return reached

    def _is_too_little(self, waiting: int, now: float) -> bool:
        wanted = self._admission.offsets_min
        if wanted is None or waiting >= wanted or self._admitted_at is None:
            return False
        return now - self._admitted_at < self._admission.delay_ms / 1000

    def _within_bytes(self, planner: Planner, begin: Positions, end: Positions, bytes_max: int) -> Positions:
        moving = [position for position in end if end[position] > begin.get(position, 0)]
        average = self._averages(planner, moving)
        for position, size in _probe(planner, {p: begin.get(p, 0) for p in moving}).items():
            average[position] = max(average[position], size)
        return within_bytes(begin, end, average, bytes_max)

    def _averages(self, planner: Planner, positions: Iterable[Position]) -> dict[Position, float]:
        """Bytes per offset in the leader's log of each shard."""
        now = time.monotonic()
        if self._sized_at is None or now - self._sized_at > SIZES_AGE_S:
            for shard_id, status in planner.statuses().items():
                self._sizes[shard_id] = status.size_bytes / max(1, status.log_end - status.log_start)
            self._sized_at = now
        return {position: self._sizes.get(planner.shard_ids[position], 0.0) for position in positions}


def _probe(planner: Planner, begin: Positions) -> dict[Position, float]:
    """Bytes per offset of the first batches from each position on."""
    calls = [
        ShardCall(planner.shard_ids[position], Fetch(planner.shard_ids[position], offset, PROBE_BYTES))
        for position, offset in begin.items()
    ]
    found: dict[Position, float] = {}
    try:
        for position, answer in zip(begin, planner.cluster.call_all(calls), strict=True):
            headers = [header for header, _ in iter_batches(answer.payload)]
            if headers:
                offsets = max(1, headers[-1].next_offset - headers[0].base_offset)
                found[position] = len(answer.payload) / offsets
    except AntiphonError:
        return found  # archived meanwhile, or worse: the read itself tells
    return found
