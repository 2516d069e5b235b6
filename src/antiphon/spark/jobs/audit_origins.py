"""Shards that every replica writes: their logs hold the same entries in another order on each replica.

An entry is known by (origin, LSN), which stand in its header under its CRC; offset and term are each replica's own. So what
has to agree is, per origin and up to a vector clock that every replica has reached, the entries by LSN: each there once,
with the same bytes from byte 21 on. They are summed up per range of LSNs, by a sum of hashes that knows no order, because
the entries of one range may lie in several blocks of one replica.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

from antiphon.spark.jobs.audit_model import DIFFERS, OriginSpan

PART_LSNS: Final = 256  # where logs were trimmed to different entries, no more than this is left out
ORIGINS_MAX: Final = 31
_MASK: Final = (1 << 64) - 1


@dataclass
class _Sum:
    count: int
    total: int
    low: int
    high: int
    low_offset: int
    high_offset: int


class OriginScanner:
    """Sums up the entries of one replica. `cut` is the vector clock up to which they are compared."""

    def __init__(self, cut: Sequence[int]) -> None:
        self._cut = cut
        self._last: dict[int, int] = {}
        self._sums: dict[tuple[int, int], _Sum] = {}

    def look(
        self, producer: int, epoch: int, crc: int, size_bytes: int, offset: int
    ) -> Iterator[tuple[str, str, str]]:
        """Take in one batch; yields what is wrong with it as (verdict, kind, what)."""
        lsn = -1 - producer
        if lsn < 1 or not 0 < epoch <= ORIGINS_MAX:
            return  # local to this replica
        last = self._last.get(epoch)
        if last is not None and lsn != last + 1:
            kind = "doubled_entry" if lsn <= last else "missing_entry"
            yield DIFFERS, kind, f"entry {lsn} of origin {epoch} follows its entry {last}"
        self._last[epoch] = max(lsn, last or 0)
        if epoch >= len(self._cut) or lsn > self._cut[epoch]:
            return
        hashed = xxh3_64_intdigest(b"%d/%d/%d" % (lsn, crc, size_bytes))
        place = (epoch, lsn // PART_LSNS)
        known = self._sums.get(place)
        if known is None:
            self._sums[place] = _Sum(1, hashed, lsn, lsn, offset, offset)
            return
        known.count += 1
        known.total = (known.total + hashed) & _MASK
        if lsn < known.low:
            known.low, known.low_offset = lsn, offset
        if lsn > known.high:
            known.high, known.high_offset = lsn, offset

    def take(self) -> tuple[OriginSpan, ...]:
        """What was summed up since the last time."""
        found = tuple(
            OriginSpan(origin, part, s.count, s.total, s.low, s.high, s.low_offset, s.high_offset)
            for (origin, part), s in self._sums.items()
        )
        self._sums.clear()
        return found


@dataclass
class OriginTotal:
    """All entries of one origin and range of LSNs on one replica."""

    count: int = 0
    total: int = 0
    low: int = 1 << 62
    high: int = -1
    offset: int = -1

    def add(self, span: OriginSpan) -> None:
        """Take in what one block has of them."""
        self.count += span.count
        self.total = (self.total + span.total) & _MASK
        if span.low < self.low:
            self.low, self.offset = span.low, span.low_offset
        self.high = max(self.high, span.high)
