"""The segments of one log, oldest first, as the event loop plans them; the files follow by way of the WAL thread."""

from antiphon.errors import DamagedLogError
from antiphon.invariants import invariant
from antiphon.log.disk import Disk
from antiphon.log.index import IndexEntry, find_entry, read_entry
from antiphon.log.segment import Segment
from antiphon.log.snapshot import SegmentSummary
from antiphon.log.tail import MemoryTail
from antiphon.log.transactions import Aborted


class Segments:
    """See the module's text. `newest` is the one that grows; None where nothing was ever written, or all is removed."""

    __slots__ = ("_directory", "_disk", "all", "newest", "removals")

    def __init__(self, disk: Disk, directory: str, found: list[Segment]) -> None:
        self.all = found
        self.newest: Segment | None = found[-1] if found else None
        self.removals = 0  # changes when what was on disk may be gone
        self._disk = disk
        self._directory = directory

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, staged ones included."""
        return sum(segment.size_bytes for segment in self.all)

    def begin(self, base_offset: int, now_ms: int) -> Segment:
        """A new segment follows the others."""
        segment = self.newest = Segment(self._directory, base_offset, now_ms)
        self.all.append(segment)
        return segment

    def truncate(self, to_offset: int, tail: MemoryTail) -> None:
        """Drop what begins at `to_offset` or later, a batch's start; `tail` knows where in a segment batches are.

        Raises DamagedLogError where the place has to be read from an index and is not there.
        """
        while self.all and self.all[-1].base_offset >= to_offset:
            self.all.pop()
        self.newest = self.all[-1] if self.all else None
        self.removals += 1
        if self.newest is not None and self.newest.next_offset > to_offset:
            self._shorten(self.newest, to_offset, tail.place_of(to_offset))

    def _shorten(self, segment: Segment, to_offset: int, place: tuple[int, int] | None) -> None:
        if place is None:
            number, entry = self._lookup(segment, to_offset)
            invariant(entry.base_offset == to_offset, f"offset {to_offset} lies inside a batch")
            place = entry.position, number
        segment.size_bytes, segment.count = place
        segment.next_offset = to_offset
        segment.max_is_exact = False
        segment.aborted.truncate(to_offset)

    def trim(self, log_start: int) -> list[int]:
        """Drop whole segments before `log_start`; returns their first offsets."""
        gone = [segment.base_offset for segment in self.all if segment.next_offset <= log_start]
        self.all = self.all[len(gone) :]
        if not self.all:
            self.newest = None
        self.removals += 1
        return gone

    def closed(self, limit: int) -> list[Segment]:
        """Those that grow no more, and end at `limit` at the latest, from the first on."""
        return [one for one in self.all[:-1] if one.next_offset <= limit]

    def appended_before(self, limit_ms: int) -> int:
        """Below this offset all was appended before that time, by this replica's clock and not by what records say.

        A segment is made when those before it are full. One that was there at the start counts as made then.
        """
        found = (one.base_offset for one in reversed(self.all) if one.created_ms <= limit_ms)
        return next(found, 0)

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Let a new one take the place of neighbours."""
        at = self.all.index(old[0])
        invariant(self.all[at : at + len(old)] == old, "neighbours are replaced, and they are there")
        self.all[at : at + len(old)] = [new]
        self.removals += 1

    def clear(self) -> None:
        """Drop all."""
        self.all, self.newest = [], None
        self.removals += 1

    def find(self, offset: int) -> tuple[int, IndexEntry]:
        """The batch that holds `offset`: its number in its segment, and its index entry. Reads the disk.

        Raises DamagedLogError where the index does not know it.
        """
        return self._lookup(next(segment for segment in self.all if segment.next_offset > offset), offset)

    def _lookup(self, segment: Segment, offset: int) -> tuple[int, IndexEntry]:
        index = self._disk.open(segment.index_path) if segment.files is None else segment.files[1]
        number = find_entry(index, segment.count, offset, segment.base_offset, segment.next_offset)
        entry = read_entry(index, number) if number >= 0 else None
        if entry is None:
            raise DamagedLogError(
                f"the index of {segment.data_path} does not know offset {offset}", offset=offset
            )
        return number, entry

    def aborted(self, offset: int, end: int) -> list[Aborted]:
        """Aborted transactions with a batch or the marker within `offset` .. `end`, in order of markers."""
        found: list[Aborted] = []
        for segment in self.all:
            if segment.next_offset > offset and not segment.aborted.find(offset, end, found):
                break
        return found

    def unwritten(self) -> list[tuple[str, bytes]]:
        """Path and content of the indexes of aborted transactions that are not as their files are; they count as written."""
        return [
            (segment.aborted_path, segment.aborted.encode())
            for segment in self.all
            if segment.aborted.written != len(segment.aborted)
        ]

    def summaries(self) -> list[SegmentSummary]:
        """What a snapshot says of each."""
        return [
            SegmentSummary(s.base_offset, s.next_offset, s.size_bytes, s.count, s.max_timestamp)
            for s in self.all
        ]
