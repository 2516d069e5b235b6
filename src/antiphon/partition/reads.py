"""The reading side of one shard: fetches, and offsets by time.

Reads of the log need no confirmation of leadership by themselves: what is committed here is committed everywhere. How far a
read goes is its isolation (C7), or the topic's where it names none:

- `committed`: to the last stable offset, before any part of a transaction that is under way. The answer names the aborted
  transactions, whose batches the reader leaves out.
- `read_uncommitted`: to the high watermark, whatever becomes of the transactions.
- `uncommitted`: to the end of the log. `replica`: what this replica knows to be committed, whoever leads, and
  `replica_committed`: of that, what `committed` reads; what is durable is read from the disk.
- `follower`, `follower_committed`: the same for consumers, who read it from memory, and from no damaged replica.
- `stored`: as `read_uncommitted`, and from where the log itself begins, as backups copy whole batches. Nobody else is shown
  what was deleted on request.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from antiphon.errors import DamagedLogError, InvalidRequestError, NotReadyError, OffsetOutOfRangeError
from antiphon.model.results import (
    COMMITTED,
    FOLLOWER_COMMITTED,
    OF_FOLLOWERS,
    STORED,
    FetchResult,
    OffsetResult,
)
from antiphon.partition.driver import ReplicaDriver
from antiphon.records.batch import Buffer, read_header

REPLICA: Final = "replica"
REPLICA_COMMITTED: Final = "replica_committed"
OF_THIS_REPLICA: Final = (REPLICA, REPLICA_COMMITTED)
ISOLATIONS: Final = (COMMITTED, "read_uncommitted", "uncommitted", *OF_THIS_REPLICA, *OF_FOLLOWERS, STORED)
OF_COMMITTED_TRANSACTIONS: Final = (COMMITTED, REPLICA_COMMITTED, FOLLOWER_COMMITTED)
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
READ_TRIES: Final = 8  # of a read while segments are replaced, which happens one after the other, with pauses


class PartitionReads:
    """See the module's text."""

    def __init__(self, driver: ReplicaDriver) -> None:
        self._driver = driver
        self._state = driver.state

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool = True) -> list[memoryview]:
        """Batches for a client. A disk that does not give back what was written ends this replica, not only the read."""
        try:
            return self._state.log.read(offset, max_bytes, end, at_least_one=at_least_one)
        except (DamagedLogError, OSError) as error:
            raise self._driver.stopped_by(error) from error

    async def read_in_thread(
        self, offset: int, max_bytes: int, end: int, *, at_least_one: bool, from_disk: bool = False
    ) -> list[memoryview]:
        """The same, without keeping the event loop waiting for the disk; `from_disk` as for `ShardLog.plan_read`."""
        work = self._state.log.plan_read(offset, max_bytes, end, at_least_one, from_disk=from_disk)
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work)
        except (DamagedLogError, OSError) as error:
            raise self._driver.stopped_by(error) from error

    def fetch(self, offset: int, max_bytes: int, isolation: str, *, at_least_one: bool) -> FetchResult:
        """Whole batches from the one that holds `offset`. Of isolation `replica`, what is durable is read
        from the disk. May read the disk: see `is_cold`.
        """
        end = self._end_for(offset, isolation)
        batches: list[memoryview] = []
        if offset < end and max_bytes > 0:
            batches = self.read(offset, max_bytes, end, at_least_one=at_least_one)
        return self._fetched(batches, offset, isolation)

    def is_cold(self, offset: int, isolation: str) -> bool:
        """Would a fetch from here read the disk? Then it is to be a `fetch_cold`, which spares the event loop."""
        log = self._state.log
        if isolation in OF_THIS_REPLICA and offset < log.durable_end:
            return True
        return offset < log.log_end and not log.is_in_memory(offset)

    async def fetch_cold(
        self, offset: int, max_bytes: int, isolation: str, *, at_least_one: bool
    ) -> FetchResult:
        """`fetch`, with the disk read in a thread.

        What is read belongs to the aborted transactions that are known when it was begun. Compaction replaces both, so what
        was read while it did that is read again.
        """
        reader, is_from_disk = self._state.log.reader, isolation in OF_THIS_REPLICA
        for _ in range(READ_TRIES):
            end, removals = self._end_for(offset, isolation), reader.removals
            batches: list[memoryview] = []
            if offset < end and max_bytes > 0:
                batches = await self.read_in_thread(
                    offset, max_bytes, end, at_least_one=at_least_one, from_disk=is_from_disk
                )
            if reader.removals == removals:
                return self._fetched(batches, offset, isolation)
        raise NotReadyError("segments of this log are being replaced while it is read; ask again")

    def _end_for(self, offset: int, isolation: str) -> int:
        """Where a fetch of this isolation ends (exclusive); raises when it may not be made."""
        state = self._state
        isolation = isolation or state.default_isolation
        if isolation not in ISOLATIONS:
            raise InvalidRequestError(f"isolation is one of {', '.join(ISOLATIONS)}, not {isolation!r}")
        if isolation in OF_THIS_REPLICA:
            state.check_alive()
        elif isolation in OF_FOLLOWERS:
            state.check_whole()
        else:
            state.check_serving()
        log = state.log
        if isolation in OF_COMMITTED_TRANSACTIONS:
            end = state.stable_end
        else:
            end = log.log_end if isolation == "uncommitted" else state.high_watermark
        start = log.log_start if isolation == STORED else state.log_start
        if not start <= offset <= log.log_end:
            gone = "" if offset < start else "; if it was there before, a fail-over lost it"
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside the shard's log, {start} to {end}{gone}",
                asked=offset,
                start=start,
                end=end,
                stored=log.log_start,
                deleted=state.deleted_before,
            )
        return end

    def _fetched(self, batches: Sequence[Buffer], offset: int, isolation: str) -> FetchResult:
        state = self._state
        size = sum(map(len, batches))
        metrics = state.services.metrics
        metrics.fetches += 1
        metrics.fetch_bytes += size
        log = state.log
        result = FetchResult(
            state.high_watermark,
            state.log_start,
            log.log_end,
            state.term,
            list(batches),
            size,
            state.stable_end,
        )
        if not batches or not log.producers.transactions.is_used:
            return result
        if (isolation or state.default_isolation) not in OF_COMMITTED_TRANSACTIONS:
            return result
        found = log.aborted(offset, read_header(batches[-1]).next_offset)
        return result._replace(aborted=tuple(one[:3] for one in found))

    def list_offset(self, timestamp_ms: int, isolation: str = "read_uncommitted") -> OffsetResult:
        """See Gateway.list_offset."""
        state = self._state
        state.check_serving()
        log, high_watermark, stable_end = state.log, state.high_watermark, state.stable_end
        end = stable_end if isolation == COMMITTED else high_watermark
        offset, found_ms = -1, -1
        if timestamp_ms == LATEST:
            offset = end
        elif timestamp_ms == EARLIEST:
            offset = state.log_start
        elif timestamp_ms < MAX_TIMESTAMP:
            raise InvalidRequestError(f"{timestamp_ms} is no time: ms since 1970, or -1, -2, -3")
        else:
            try:
                found = (
                    log.reader.offset_of_max_timestamp(state.log_start)
                    if timestamp_ms == MAX_TIMESTAMP
                    else log.reader.offset_for_timestamp(timestamp_ms, state.log_start)
                )
            except (DamagedLogError, OSError) as error:
                raise self._driver.stopped_by(error) from error
            if found is not None and found[0] < end:
                offset, found_ms = found
        default = log.log_end if state.default_isolation == "uncommitted" else stable_end
        return OffsetResult(
            offset=offset,
            timestamp_ms=found_ms,
            term=state.term,
            log_start=state.log_start,
            high_watermark=high_watermark,
            default_end=default,
            stable_end=stable_end,
            deleted_before=state.deleted_before,
        )
