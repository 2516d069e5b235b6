"""The aborted transactions of a log: an index beside each segment, of those whose marker is in it, in order of markers.

What reads only committed transactions leaves out the batches that these tell of, without looking into any. The index is held
in memory (32 bytes each) and written whenever a snapshot is: a file `<first offset>.aborted`, magic 8s "ANTIPHAB" | version
u32 | crc u32 of all | four i64 for each (producer, first offset, marker, stable offset), big-endian. A snapshot says how
many each file names up to its offset. Where a file is missing, or not whole, the log is read instead of the snapshot, which
makes it anew.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Final

from antiphon.log.disk import Disk, read_whole
from antiphon.log.snapshot import seal, unframe
from antiphon.log.transactions import Aborted

ABORTED_MAGIC: Final = b"ANTIPHAB"
ABORTED_VERSION: Final = 1
ABORTED_SUFFIX: Final = ".aborted"
ABORTED_MAX: Final = 32_768  # of one segment; another one begins then
_FIELDS: Final = 4
_FIRST: Final = 1
_MARKER: Final = 2
_UNKNOWN: Final = -1


class AbortedIndex:
    """Of one segment. `written`: how many of them its file names, as far as writes are staged; -1: not known."""

    __slots__ = ("_numbers", "is_full", "written")

    def __init__(self, numbers: "array[int] | None" = None) -> None:
        self._numbers: array[int] = array("q") if numbers is None else numbers
        self.written = len(self)
        self.is_full = False  # does the next one belong in another segment?

    def __len__(self) -> int:
        return len(self._numbers) // _FIELDS

    def add(self, one: Aborted) -> None:
        """The marker of this one is in the segment, behind all others."""
        self._numbers.extend(one)
        self.is_full = len(self) >= ABORTED_MAX

    def truncate(self, to_offset: int) -> None:
        """Forget those whose marker is at `to_offset` or later."""
        del self._numbers[self._first_from(to_offset) * _FIELDS :]
        self.written = _UNKNOWN
        self.is_full = len(self) >= ABORTED_MAX

    def _first_from(self, offset: int) -> int:
        """Number of the first one whose marker is at `offset` or later."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self._numbers[middle * _FIELDS + _MARKER] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, offset: int, end: int, found: list[Aborted]) -> bool:
        """Add to `found` those with a batch or the marker within `offset` .. `end`; False: no later ones can have any."""
        for number in range(self._first_from(offset), len(self)):
            at = number * _FIELDS
            one = Aborted(*self._numbers[at : at + _FIELDS])
            if one.first_offset < end:
                found.append(one)
            if one.stable_offset >= end:
                return False
        return True

    def began_before(self, offset: int) -> list[Aborted]:
        """Those whose first batch is before an offset. There may be many others: these are passed over by number."""
        firsts = self._numbers[_FIRST::_FIELDS]
        found = (number * _FIELDS for number, first in enumerate(firsts) if first < offset)
        return [Aborted(*self._numbers[at : at + _FIELDS]) for at in found]

    def copy(self) -> "AbortedIndex":
        """The same, as it is now."""
        return AbortedIndex(self._numbers[:])

    def ended_before(self, offset: int) -> "array[int]":
        """The producers, then the markers, of those whose marker is before `offset`: which transactions these are.

        How early one began may be known less exactly where a log was read that is trimmed.
        """
        numbers = self._numbers[: self._first_from(offset) * _FIELDS]
        return numbers[::_FIELDS] + numbers[_MARKER::_FIELDS]

    def encode(self) -> bytes:
        """The whole file; it counts as written."""
        self.written = len(self)
        numbers = array("q", self._numbers)
        if sys.byteorder == "little":
            numbers.byteswap()
        return seal(ABORTED_MAGIC, ABORTED_VERSION, numbers.tobytes())


def index_of(found: Iterable[Aborted]) -> AbortedIndex:
    """An index of these, in order of markers, as its file has it."""
    return AbortedIndex(array("q", [number for one in found for number in one]))


def load_aborted(disk: Disk, path: str, before: int) -> AbortedIndex | None:
    """Those of a file whose marker is before an offset; None where the file is missing or not whole."""
    payload = unframe(ABORTED_MAGIC, ABORTED_VERSION, read_whole(disk, path), path)
    if payload is None or len(payload) % (8 * _FIELDS):
        return None
    numbers = array("q", payload)
    if sys.byteorder == "little":
        numbers.byteswap()
    found = AbortedIndex(numbers)
    if len(found) and numbers[-_FIELDS + _MARKER] >= before:
        found.truncate(before)
    return found
