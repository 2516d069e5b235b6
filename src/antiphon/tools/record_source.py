"""Records of some shards of a topic as a command asks for them: up to the end of now, to an offset, or as they come."""

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from antiphon.client.log_reader import EARLIEST, LATEST
from antiphon.errors import TimedOutError
from antiphon.records.decode import Record
from antiphon.records.unreadable import letter_shard
from antiphon.tools.merged_reads import NothingCameError, Pieces, merged

if TYPE_CHECKING:
    import antiphon

WAIT_S: Final = 30.0
Records: TypeAlias = Generator[tuple[int, Record], None, None]
Note: TypeAlias = Callable[[str], None]
"""Shows a line to the person who waits."""


class Span(NamedTuple):
    """Which records of each shard are read.

    Attributes:
        start: first offset; EARLIEST, which None is, too, or LATEST.
        since_ms: begin at this time instead, ms since 1970 UTC.
        end: stop before this offset; None: at the end as it is now.
        follow: wait for what is not there yet.
        isolation: of the reads; empty: the topic's.
        timeout_s: how long nothing may come; None: WAIT_S up to an `end`, for ever where the log is followed.
    """

    start: int | None
    since_ms: int | None
    end: int | None
    follow: bool
    isolation: str
    timeout_s: float | None


class RecordSource:
    """See the module's text. Raises TimedOutError where an `end` is not reached in time."""

    def __init__(
        self,
        db: "antiphon.Client",
        log: "antiphon.Topic",
        span: Span,
        on_corrupt: "str | Callable[[antiphon.UnreadableBatch], None]",
        note: Note,
    ) -> None:
        self._db = db
        self._log = log
        self._span = span
        self._on_corrupt = on_corrupt
        self._note = note

    def records(self, shards: list[int]) -> Records:
        """One shard after the other, each to its end; those that are followed as they come."""
        starts = {shard: self._start(shard) for shard in shards}
        if self._span.follow:
            yield from self._as_they_come(starts)
            return
        for shard, start in starts.items():
            if self._span.end is not None and self._ends_before(shard, self._span.end):
                yield from self._awaited(shard, start, self._span.end)
                continue
            for record in self._log.read(
                shard=shard,
                start=start,
                end=self._span.end,
                isolation=self._span.isolation,
                on_corrupt=self._on_corrupt,
            ):
                yield shard, record

    def _start(self, shard: int) -> int:
        if self._span.since_ms is not None:
            return self._log.offset_at(self._span.since_ms, shard)
        if self._span.start is None:
            return EARLIEST
        # "From now on" is one moment for all shards: not when the reader of each one begins.
        return self._log.offsets(shard)[1] if self._span.start == LATEST else self._span.start

    def _ends_before(self, shard: int, end: int) -> bool:
        """Is the end further than what is there to be read? Of what is not committed only reading tells."""
        return self._log.offsets(shard)[1] < end

    def _awaited(self, shard: int, start: int, end: int) -> Records:
        """Records up to an offset that is not there yet."""
        timeout_s = WAIT_S if self._span.timeout_s is None else self._span.timeout_s
        at = self._log.offsets(shard)[1]
        name = f"{self._log.name} shard {shard}"
        self._note(
            f"{name} ends at {at}: waiting for offset {end - 1}, until nothing came for {timeout_s:g} s"
        )
        try:
            yield from merged(self._db, lambda: self._readers({shard: start}), timeout_s)
        except NothingCameError:
            at = self._log.offsets(shard)[1]
            raise TimedOutError(
                f"{name} ends at {at}, before --to {end}, and nothing came for {timeout_s:g} s; --timeout waits longer"
            ) from None

    def _as_they_come(self, starts: dict[int, int]) -> Records:
        try:
            yield from merged(self._db, lambda: self._readers(starts), self._span.timeout_s)
        except NothingCameError:
            if self._span.end is not None:
                raise TimedOutError(
                    f"nothing came for {self._span.timeout_s:g} s, and --to {self._span.end} is not reached"
                ) from None
            self._note(f"nothing came for {self._span.timeout_s:g} s")

    def _readers(self, starts: dict[int, int]) -> Mapping[int, Pieces]:
        return {
            shard: self._log.aio.read_chunks(
                shard,
                start,
                self._span.end,
                isolation=self._span.isolation,
                follow=True,
                on_corrupt=self._on_corrupt,
            )
            for shard, start in starts.items()
        }


class PassedOver:
    """Batches that cannot be read: each is noted, and appended to a topic of dead letters where there is one."""

    def __init__(self, dead_letters: "antiphon.Topic | None", note: Note) -> None:
        self._dead_letters = dead_letters
        self._note = note
        self._waiting: list[antiphon.UnreadableBatch] = []

    def add(self, batch: "antiphon.UnreadableBatch") -> None:
        """Called in the client's thread, where it cannot be asked for anything."""
        self._waiting.append(batch)

    def taking_along(self, records: Records) -> Records:
        """The same records; what was passed over on the way to each is dealt with before it."""
        for record in records:
            self._deal()
            yield record
        self._deal()

    def _deal(self) -> None:
        waiting, self._waiting = self._waiting, []
        for batch in waiting:
            if self._dead_letters is not None:
                shard = letter_shard(batch, self._dead_letters.shards)
                self._dead_letters.append(batch.data, headers=batch.headers, shard=shard)
            outcome = "skipped" if self._dead_letters is None else "appended to the dead letters"
            place = f"{batch.topic} shard {batch.shard}, offsets {batch.start} to {batch.end}"
            self._note(f"{place}: {batch.reason}; {outcome}")
