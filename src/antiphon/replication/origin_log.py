"""What a replica knows of its own log where every replica writes: how far each origin has come, and what of it is durable.

One log per replica holds the entries of all origins in the order in which they arrived here, so the same entry stands at
another offset in every replica. The log only grows. A write is staged (it counts as part of the log at once) and later
persisted, in the order of write ids.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from antiphon.invariants import unreachable
from antiphon.replication.multi_writer_actions import AdoptBase, AppendEntries
from antiphon.replication.origin_history import History, Mark, OriginEntry
from antiphon.replication.origin_index import OriginIndex
from antiphon.replication.vclock import ORIGINS_MAX, Vclock, clock_of

RECENT_MAX: Final = 4096


class OriginLog:
    """Histories, index and pending writes of one log."""

    __slots__ = (
        "_clock", "_durable", "_recent", "_underway", "durable_end", "history", "index", "persisted_id", "write_id",
    )  # fmt: skip

    def __init__(self, index: OriginIndex, end: Mark) -> None:
        """`end` is the durable end of the log as recovered."""
        self.index = index
        self.history = History(end)
        self.durable_end = end.offset
        self.write_id = 0
        self.persisted_id = 0
        self._durable = list(self.history.lsns)
        self._clock: Vclock | None = None
        # (write id, end, last LSN by origin)
        self._underway: deque[tuple[int, int, dict[int, int]]] = deque()
        self._recent: dict[tuple[int, int], int] = {}  # (origin, LSN) -> checksum, of the newest entries

    @property
    def log_end(self) -> int:
        """Next offset to write, appends underway included."""
        return self.history.offset

    @property
    def log_start(self) -> int:
        """First offset that is still in the log."""
        return self.index.base.offset

    @property
    def is_empty(self) -> bool:
        """Was nothing ever appended or adopted?"""
        return not any(self.history.lsns)

    @property
    def durable_clock(self) -> Vclock:
        """What may be said to be here; made anew when it has moved."""
        if self._clock is None:
            self._clock = clock_of(self._durable)
        return self._clock

    def durable_lsn(self, origin: int) -> int:
        """The last LSN of `origin` that is on this disk."""
        return self._durable[origin]

    def checksum_of(self, origin: int, lsn: int) -> int | None:
        """The checksum of a recent entry, None where it is not remembered."""
        return self._recent.get((origin, lsn))

    def append(self, entries: Sequence[OriginEntry]) -> AppendEntries:
        """Stage entries, each the next one of its origin, at the log's end; their offsets are set here."""
        history, heads, placed = self.history, dict[int, int](), []
        for entry in entries:
            origin, lsn = entry.origin, entry.lsn
            if not 0 <= origin <= ORIGINS_MAX or lsn != history.lsns[origin] + 1:
                unreachable(f"entry {lsn} of origin {origin} after entry {history.lsns[origin]}")
            base = history.offset
            if entry.base_offset != base:
                entry = entry._replace(
                    base_offset=base, next_offset=base + entry.next_offset - entry.base_offset
                )
            history.take(entry)
            heads[origin] = lsn
            placed.append(entry)
            self._remember(entry)
        self.index.passed(history, len(placed))
        return AppendEntries(self._stage(heads), tuple(placed))

    def adopt(self, clock: Vclock, chains: tuple[int, ...]) -> AdoptBase:
        """Go on behind what a peer no longer has: entries up to `clock` that are not here were trimmed elsewhere.

        For those who ask this replica, its log begins here from now on.
        """
        history = self.history
        heads: dict[int, int] = {}
        for origin, lsn in enumerate(clock):
            if lsn > history.lsns[origin]:
                history.lsns[origin], history.chains[origin] = lsn, chains[origin]
                heads[origin] = lsn
        mark = history.mark()
        self.index.trim(mark)
        return AdoptBase(self._stage(heads), mark)

    def _stage(self, heads: dict[int, int]) -> int:
        self.write_id += 1
        self._underway.append((self.write_id, self.log_end, heads))
        return self.write_id

    def _remember(self, entry: OriginEntry) -> None:
        recent = self._recent
        recent[entry.origin, entry.lsn] = entry.crc
        if len(recent) > RECENT_MAX:
            del recent[next(iter(recent))]

    def persisted(self, write_id: int) -> bool:
        """Every write up to `write_id` is durable; did that move the log's durable end or clock?"""
        underway, moved = self._underway, False
        while underway and underway[0][0] <= write_id:
            _, end, heads = underway.popleft()
            self.durable_end = end
            self._clock = None
            for origin, lsn in heads.items():
                self._durable[origin] = lsn
            moved = True
        self.persisted_id = max(self.persisted_id, write_id)
        return moved

    def durable_marks(self) -> tuple[Mark, ...]:
        """The index as far as it may be written down: a mark beyond what is durable may never come true."""
        marks = tuple(mark for mark in self.index.marks if mark.offset <= self.durable_end)
        at_end = self.durable_end == self.log_end > marks[-1].offset
        return (*marks, self.history.mark()) if at_end else marks
