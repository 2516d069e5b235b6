"""The reading side of one shard: fetches, offsets by time, and those who follow the log and wait for more of it.

Reads of the log need no confirmation of leadership by themselves: what is committed here is committed everywhere. How far a
read goes is its isolation (C7), or the topic's where it names none.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from antiphon.errors import DamagedLogError, InvalidRequestError, OffsetOutOfRangeError
from antiphon.model.results import FetchResult, OffsetResult
from antiphon.records.batch import Buffer

if TYPE_CHECKING:
    from antiphon.partition.partition import Partition

ISOLATIONS: Final = ("committed", "uncommitted", "replica")
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


class PartitionReads:
    """See the module's text."""

    def __init__(self, host: "Partition") -> None:
        self._host = host
        self.default_isolation = "committed"  # of reads that name none (C7)
        self.followers: dict[int, tuple[int, bool, Callable[[], None]]] = {}

    # -- following the log --------------------------------------------------------------------------------------

    def follow(self, key: int, offset: int, isolation: str, wake: Callable[[], None]) -> bool:
        """Call `wake` once, when there is data at `offset`. False: there is already, or there is nothing to wait for."""
        host = self._host
        uncommitted = (isolation or self.default_isolation) == "uncommitted"
        end = host.log.log_end if uncommitted else host.high_watermark
        if offset < end or not host.is_serving:
            return False
        self.followers[key] = (offset, uncommitted, wake)
        return True

    def unfollow(self, key: int) -> None:
        """Forget about it."""
        self.followers.pop(key, None)

    def wake(self, *, committed: bool) -> None:
        """Wake who follows the log: beyond what is committed, or after a commit as far as that goes, too."""
        host = self._host
        log_end, high_watermark = host.log.log_end, host.high_watermark
        found = [
            key
            for key, (offset, uncommitted, _) in self.followers.items()
            if offset < (log_end if uncommitted else high_watermark if committed else -1)
        ]
        for key in found:
            entry = self.followers.pop(key, None)
            if entry is not None:
                try:
                    entry[2]()
                except Exception as error:  # noqa: BLE001 - one reader's trouble is not the shard's
                    host.report(error)

    def wake_all(self) -> None:
        """This replica serves no more: whoever follows it is to ask elsewhere."""
        followers, self.followers = self.followers, {}
        for _, _, wake in followers.values():
            wake()

    # -- reading ------------------------------------------------------------------------------------------------

    def fetch(self, offset: int, max_bytes: int, isolation: str, *, at_least_one: bool) -> FetchResult:
        """Whole batches from the one that holds `offset`. Isolation `replica` reads what this replica knows to be
        committed, whoever leads, and of that what is durable from the disk. May read the disk: see `is_cold`.
        """
        end = self._end_for(offset, isolation)
        batches: list[memoryview] = []
        if offset < end and max_bytes > 0:
            batches = self._host.read(offset, max_bytes, end, at_least_one=at_least_one)
        return self._fetched(batches)

    def is_cold(self, offset: int, isolation: str) -> bool:
        """Would a fetch from here read the disk? Then it is to be a `fetch_cold`, which spares the event loop."""
        log = self._host.log
        if isolation == "replica" and offset < log.durable_end:
            return True
        return offset < log.log_end and not log.is_in_memory(offset)

    async def fetch_cold(
        self, offset: int, max_bytes: int, isolation: str, *, at_least_one: bool
    ) -> FetchResult:
        """`fetch`, with the disk read in a thread."""
        end = self._end_for(offset, isolation)
        batches: list[memoryview] = []
        if offset < end and max_bytes > 0:
            batches = await self._host.read_in_thread(
                offset, max_bytes, end, at_least_one=at_least_one, from_disk=isolation == "replica"
            )
        return self._fetched(batches)

    def _end_for(self, offset: int, isolation: str) -> int:
        """Where a fetch of this isolation ends (exclusive); raises when it may not be made."""
        host = self._host
        isolation = isolation or self.default_isolation
        if isolation not in ISOLATIONS:
            raise InvalidRequestError(f"isolation is one of {', '.join(ISOLATIONS)}, not {isolation!r}")
        if isolation == "replica":
            host.check_alive()
        else:
            host.check_serving()
        log = host.log
        end = log.log_end if isolation == "uncommitted" else host.high_watermark
        if not log.log_start <= offset <= log.log_end:
            gone = "" if offset < log.log_start else "; if it was there before, a fail-over lost it"
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside the shard's log, {log.log_start} to {end}{gone}",
                asked=offset,
                start=log.log_start,
                end=end,
            )
        return end

    def _fetched(self, batches: Sequence[Buffer]) -> FetchResult:
        host = self._host
        size = sum(map(len, batches))
        metrics = host.services.metrics
        metrics.fetches += 1
        metrics.fetch_bytes += size
        log = host.log
        return FetchResult(host.high_watermark, log.log_start, log.log_end, host.term, list(batches), size)

    def list_offset(self, timestamp_ms: int) -> OffsetResult:
        """See Gateway.list_offset."""
        host = self._host
        host.check_serving()
        log, high_watermark = host.log, host.high_watermark
        offset, found_ms = -1, -1
        if timestamp_ms == LATEST:
            offset = high_watermark
        elif timestamp_ms == EARLIEST:
            offset = log.log_start
        elif timestamp_ms < MAX_TIMESTAMP:
            raise InvalidRequestError(f"{timestamp_ms} is no time: ms since 1970, or -1, -2, -3")
        else:
            try:
                found = (
                    log.reader.offset_of_max_timestamp()
                    if timestamp_ms == MAX_TIMESTAMP
                    else log.reader.offset_for_timestamp(timestamp_ms)
                )
            except (DamagedLogError, OSError) as error:
                raise host.stopped_by(error) from error
            if found is not None and found[0] < high_watermark:
                offset, found_ms = found
        end = log.log_end if self.default_isolation == "uncommitted" else high_watermark
        return OffsetResult(offset, found_ms, host.term, log.log_start, high_watermark, end)
