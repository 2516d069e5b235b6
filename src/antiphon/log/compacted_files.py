"""Files of compaction: how new segments take the place of old ones, and how far a log is clean.

New segments are written beside the old ones, with `.compacted` behind their names, and synced. A file `swap`, which says
which segments they stand for, commits them; only then are names changed. Whatever a crash leaves of that is finished by the
next start, from `swap`, or the new files go. Snapshots that tell of the old segments are written anew for the new one, so
that a start reads no more than it would have.
"""

import contextlib
import os
from functools import partial
from typing import Final, NamedTuple

import msgspec

from antiphon.errors import UNDECODABLE, AntiphonError
from antiphon.invariants import invariant
from antiphon.log.aborted import ABORTED_SUFFIX, index_of
from antiphon.log.disk import Disk, File, read_whole, replace_file
from antiphon.log.index import ENTRY_BYTES, entry_position
from antiphon.log.operations import CallStep, LogOp, OpQueue, Step
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, Segment, file_of, offsets_of
from antiphon.log.segments import Segments
from antiphon.log.snapshot import SegmentSummary, Snapshot, decode_snapshot, encode_snapshot, seal, unframe
from antiphon.log.tail import MemoryTail
from antiphon.log.transactions import Aborted

COMPACTED_SUFFIX: Final = ".compacted"
SWAP_NAME: Final = "swap"
CLEAN_NAME: Final = "compacted"
SWAP_MAGIC: Final = b"ANTIPHSW"
CLEAN_MAGIC: Final = b"ANTIPHCP"
VERSION: Final = 1


class Swap(NamedTuple):
    """A segment that takes the place of others.

    `old`: their first offsets, the first of which is its own, too. `aborted`: the transactions whose marker is in it and
    that may have batches in segments before it which are not compacted.
    """

    new: SegmentSummary
    old: tuple[int, ...]
    aborted: tuple[Aborted, ...] = ()


class Clean(NamedTuple):
    """How far a log is clean.

    Attributes:
        end: below it each key has one record, but for what is newer.
        since_end, since_ms: below `since_end` the log has been clean since that time.
        tombstones: how many there are below `end`.
        ended_ms: when the last pass ended.
    """

    end: int = 0
    since_end: int = 0
    since_ms: int = 0
    tombstones: int = 0
    ended_ms: int = 0


class Compacting:
    """What the event loop knows and plans of the compaction of one log.

    Attributes:
        clean: how far the log is clean.
    """

    def __init__(
        self, disk: Disk, directory: str, queue: OpQueue, segments: Segments, tail: MemoryTail, log_end: int
    ) -> None:
        self._disk, self._directory, self._queue = disk, directory, queue
        self._segments = segments
        self._tail = tail
        self.clean = load_clean(disk, directory)
        # What comes in the place of what is gone may be another replica's, and not clean
        if self.clean.end > log_end:
            self.clean = Clean()
            forget_clean(disk, directory)

    def closed(self, limit: int) -> list[Segment]:
        """The segments that grow no more, and end at `limit` at the latest, from the first on."""
        return self._segments.closed(limit)

    def appended_before(self, limit_ms: int) -> int:
        """Below this offset all was appended before that time."""
        return self._segments.appended_before(limit_ms)

    def replace(
        self, old: list[Segment], new: SegmentSummary, files: tuple[File, File], clean_from: int
    ) -> LogOp:
        """Let a segment, whose files are written and synced, take the place of neighbours, which it ends with.

        What aborted transactions wrote from `clean_from` on is gone. Of those that began before, readers are told still.
        Until that is done it is read by its open files. Whoever has planned a read before is told that segments are gone.
        """
        segment = Segment(self._directory, new.base_offset, old[-1].created_ms)
        segment.next_offset, segment.size_bytes = new.next_offset, new.size_bytes
        segment.count, segment.max_timestamp = new.batches, new.max_timestamp
        segment.is_compacted, segment.files = True, files
        aborted = tuple(found for one in old for found in one.aborted.began_before(clean_from))
        segment.aborted = index_of(aborted)
        invariant(new.next_offset == old[-1].next_offset, "a segment ends where those end that it stands for")
        self._segments.replace(old, segment)
        self._tail.evict(0, segment.next_offset)
        swap = Swap(new, tuple(one.base_offset for one in old), aborted)

        def settled(error: AntiphonError | None) -> None:
            if error is None:
                segment.files = None

        run = partial(swap_segments, self._disk, self._directory, swap)
        return LogOp(self._queue, [CallStep(run)], settle=settled)

    def note(self, clean: Clean) -> LogOp:
        """The log is clean so far."""
        self.clean = clean
        return LogOp(self._queue, [CallStep(partial(save_clean, self._disk, self._directory, clean))])

    def cut(self, to_offset: int) -> list[Step]:
        """Before the log is cut there: what is forgotten of it."""
        if to_offset >= self.clean.end:
            return []
        self.clean = Clean()
        return [CallStep(partial(forget_clean, self._disk, self._directory))]


def swap_segments(disk: Disk, directory: str, swap: Swap) -> None:
    """Put the new segment, which is written and synced, in the place of the old ones."""
    path = os.path.join(directory, SWAP_NAME)
    replace_file(disk, path, seal(SWAP_MAGIC, VERSION, msgspec.msgpack.encode(swap)))
    _finish(disk, directory, swap)


def recover_swap(disk: Disk, directory: str) -> None:
    """Finish a swap that a crash interrupted, and remove what is left of one that was not committed."""
    path = os.path.join(directory, SWAP_NAME)
    payload = unframe(SWAP_MAGIC, VERSION, read_whole(disk, path), path)
    if payload is not None:
        with contextlib.suppress(*UNDECODABLE):
            _finish(disk, directory, msgspec.msgpack.decode(payload, type=Swap))
    remove_compacted(disk, directory)
    if disk.exists(path):
        disk.remove(path)
        disk.fsync_dir(directory)


def _finish(disk: Disk, directory: str, swap: Swap) -> None:
    base = swap.new.base_offset
    for suffix in (INDEX_SUFFIX, DATA_SUFFIX):
        path = file_of(directory, base, suffix)
        if disk.exists(path + COMPACTED_SUFFIX):
            disk.rename(path + COMPACTED_SUFFIX, path)
    disk.fsync_dir(directory)
    path = file_of(directory, base, ABORTED_SUFFIX)
    if swap.aborted:
        replace_file(disk, path, index_of(swap.aborted).encode())
    _describe(disk, directory, swap)
    if not swap.aborted:
        disk.remove(path)
    for old in swap.old:
        if old != base:
            for suffix in (ABORTED_SUFFIX, INDEX_SUFFIX, DATA_SUFFIX):
                disk.remove(file_of(directory, old, suffix))
    disk.fsync_dir(directory)
    disk.remove(os.path.join(directory, SWAP_NAME))
    disk.fsync_dir(directory)


def _describe(disk: Disk, directory: str, swap: Swap) -> None:
    """Let the snapshots that tell of the old segments tell of the new one."""
    for offset in offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX):
        path = file_of(directory, offset, SNAPSHOT_SUFFIX)
        snapshot = decode_snapshot(read_whole(disk, path), path)
        told = None if snapshot is None else _swapped(disk, directory, snapshot, swap)
        if told is not None:
            replace_file(disk, path, encode_snapshot(told))


def _swapped(disk: Disk, directory: str, snapshot: Snapshot, swap: Swap) -> Snapshot | None:
    bases = [one.base_offset for one in snapshot.segments]
    if swap.old[0] not in bases or snapshot.offset < swap.new.next_offset:
        return None
    first = bases.index(swap.old[0])
    after = first + len(swap.old)
    if tuple(bases[first:after]) != swap.old:
        return None
    aborted = snapshot.aborted
    if aborted:
        aborted = (*aborted[:first], len(swap.aborted), *aborted[after:])
    entry = snapshot.last_entry
    if after == len(bases):
        index = disk.open(file_of(directory, swap.new.base_offset, INDEX_SUFFIX))
        entry = index.pread(ENTRY_BYTES, entry_position(swap.new.batches - 1))
    segments = [*snapshot.segments[:first], swap.new, *snapshot.segments[after:]]
    return snapshot._replace(segments=segments, last_entry=entry, aborted=aborted, compacted=True)


def remove_compacted(disk: Disk, directory: str) -> None:
    """Remove new segments that took nobody's place. A power failure may bring them back: then they are removed again."""
    for name in disk.listdir(directory):
        if name.endswith(COMPACTED_SUFFIX):
            disk.remove(os.path.join(directory, name))


def save_clean(disk: Disk, directory: str, clean: Clean) -> None:
    """Note how far the log is clean."""
    payload = seal(CLEAN_MAGIC, VERSION, msgspec.msgpack.encode(clean))
    replace_file(disk, os.path.join(directory, CLEAN_NAME), payload)


def load_clean(disk: Disk, directory: str) -> Clean:
    """How far the log is clean; not at all where nothing says."""
    path = os.path.join(directory, CLEAN_NAME)
    payload = unframe(CLEAN_MAGIC, VERSION, read_whole(disk, path), path)
    if payload is not None:
        with contextlib.suppress(*UNDECODABLE):
            return msgspec.msgpack.decode(payload, type=Clean)
    return Clean()


def forget_swap(disk: Disk, directory: str) -> None:
    """The log is about to be emptied: nothing is to take the place of anything."""
    disk.remove(os.path.join(directory, SWAP_NAME))
    remove_compacted(disk, directory)


def forget_clean(disk: Disk, directory: str) -> None:
    """What follows may put back records that newer ones stood for: nothing counts as clean."""
    path = os.path.join(directory, CLEAN_NAME)
    if disk.exists(path):
        disk.remove(path)
        disk.fsync_dir(directory)
