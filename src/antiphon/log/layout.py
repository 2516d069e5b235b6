"""Changes of a shard's files. Each is durable when it returns, and harmless if a crash repeats it or stops it half way."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from antiphon.errors import CorruptBatchError
from antiphon.log.aborted import ABORTED_SUFFIX
from antiphon.log.disk import FULL_DISK, Disk, read_whole, replace_file
from antiphon.log.index import ENTRY_BYTES, entry_position, pack_index_header
from antiphon.log.producer_state import ProducerState
from antiphon.log.segment import DATA_SUFFIX, INDEX_SUFFIX, SNAPSHOT_SUFFIX, Segment, file_of, offsets_of
from antiphon.log.snapshot import (
    RESET_NAME,
    START_NAME,
    LogStart,
    Snapshot,
    decode_snapshot,
    encode_snapshot,
    encode_start,
)
from antiphon.records.batch import BatchHeader
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members

SNAPSHOTS_KEPT = 2
DAMAGE_NAME = "damaged"


def remove_segment(disk: Disk, directory: str, base_offset: int) -> None:
    """Remove the files of one segment, the data last."""
    for suffix in (ABORTED_SUFFIX, INDEX_SUFFIX, DATA_SUFFIX):
        disk.remove(file_of(directory, base_offset, suffix))


def remove_segments(disk: Disk, directory: str, from_offset: int, *, ordered: bool = True) -> None:
    """Remove all segments that start at or after `from_offset`; `ordered`: the last first, so that a crash leaves no gap."""
    names = disk.listdir(directory)
    bases = {
        *offsets_of(names, DATA_SUFFIX),
        *offsets_of(names, INDEX_SUFFIX),
    }  # data alone may have been lost
    for base in sorted(bases, reverse=True):
        if base >= from_offset:
            remove_segment(disk, directory, base)
            if ordered:
                disk.fsync_dir(directory)


def remove_snapshots(disk: Disk, directory: str, above: int) -> None:
    """Remove the snapshots of offsets above `above`: the log that they describe is about to be truncated."""
    found = [offset for offset in offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX) if offset > above]
    for offset in found:
        disk.remove(file_of(directory, offset, SNAPSHOT_SUFFIX))
    if found:
        disk.fsync_dir(directory)


def wipe(disk: Disk, directory: str, at: EntryId, producers: bytes, members: Members | None = None) -> None:
    """Empty the log, which continues after `at` with the producers and members of that point. After a crash `recover`
    finishes it.

    The state at `at` waits in a file of its own: until `start` says so, nothing is reset.
    """
    snapshot = Snapshot(at.offset, at.offset, at.term, [], [], producers, b"")
    replace_file(disk, os.path.join(directory, RESET_NAME), encode_snapshot(snapshot))
    start = LogStart(at.offset, at.term, True, members)
    replace_file(disk, os.path.join(directory, START_NAME), encode_start(start))
    finish_wipe(disk, directory, start)


def finish_wipe(disk: Disk, directory: str, start: LogStart) -> None:
    """The second half of `wipe`, from where `start` says that it is under way; harmless to repeat."""
    remove_snapshots(disk, directory, -1)
    remove_segments(disk, directory, 0, ordered=False)
    disk.fsync_dir(directory)
    waiting = os.path.join(directory, RESET_NAME)
    snapshot = read_whole(disk, waiting)
    if snapshot is not None:
        replace_file(disk, file_of(directory, start.log_start, SNAPSHOT_SUFFIX), snapshot)
    done = start._replace(resetting=False)
    replace_file(disk, os.path.join(directory, START_NAME), encode_start(done))
    if snapshot is not None:
        disk.remove(waiting)


def close_segment(disk: Disk, data_path: str, size_bytes: int) -> None:
    """Take away the padding of a segment before another one follows: only the last one may have any.

    The snapshot that comes next syncs the file.
    """
    disk.open(data_path).truncate(size_bytes)


def create_segment(disk: Disk, directory: str, base_offset: int) -> None:
    """Make an empty segment and its index."""
    data = disk.open(file_of(directory, base_offset, DATA_SUFFIX), create=True)
    data.truncate(0)
    index = disk.open(file_of(directory, base_offset, INDEX_SUFFIX), create=True)
    index.truncate(0)
    index.pwritev([pack_index_header(base_offset)], 0)
    index.fdatasync()
    disk.fsync_dir(directory)


def cut_files(
    disk: Disk,
    directory: str,
    to_offset: int,
    kept: tuple[int, int, int] | None,
    front: tuple[int, bytes] | None = None,
) -> None:
    """Truncate the log at `to_offset`; `kept`: (base offset, bytes, batches) of the last segment that stays.

    The order guarantees that a crash in between leaves a longer or shorter prefix, never a gap: descriptions are
    removed before the data that they describe. `front` (see `front_of`) is written where no other snapshot would be left.
    """
    if front is not None:
        found_all = offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX)
        if not any(front[0] <= found <= to_offset for found in found_all):
            with _suppress_full_disk():  # a cut makes room
                replace_file(disk, file_of(directory, front[0], SNAPSHOT_SUFFIX), front[1])
    remove_snapshots(disk, directory, to_offset)
    if kept is None:
        remove_segments(disk, directory, 0)
        return
    base_offset, size_bytes, batches = kept
    remove_segments(disk, directory, base_offset + 1)
    index = disk.open(file_of(directory, base_offset, INDEX_SUFFIX), create=True)
    index.truncate(entry_position(batches))
    index.fdatasync()
    data = disk.open(file_of(directory, base_offset, DATA_SUFFIX))
    data.truncate(size_bytes)
    data.fdatasync()


def trim_files(disk: Disk, directory: str, start: LogStart, gone: list[int]) -> None:
    """Let the log start later, and remove the segments that `gone` names by their first offsets.

    If the disk is too full even for the start file, all but one of these segments are removed first. A crash at that
    moment leaves a log that starts later than it says, but never one that forgot where it ends.
    """
    path = os.path.join(directory, START_NAME)
    try:
        replace_file(disk, path, encode_start(start))
    except OSError as error:
        if error.errno not in FULL_DISK or len(gone) < 2:
            raise
        _remove_all(disk, directory, gone[:-1])
        replace_file(disk, path, encode_start(start))
    _remove_all(disk, directory, gone)


def _remove_all(disk: Disk, directory: str, bases: list[int]) -> None:
    for base_offset in bases:
        remove_segment(disk, directory, base_offset)
    if bases:
        disk.fsync_dir(directory)


class SnapshotFiles(NamedTuple):
    """What a snapshot of `offset` is written as: its `data`; `last`: paths of the data and index of the newest segment, and
    `aborted`: paths and contents of indexes of aborted transactions that come before it.
    """

    offset: int
    data: bytes
    last: tuple[str, str]
    aborted: list[tuple[str, bytes]]


def write_snapshot(disk: Disk, directory: str, files: SnapshotFiles, log_start: int) -> None:
    """Write a snapshot once data and index of the newest segment are synced, and what it counts on is written.

    The newest two are kept, and that of the log's start, whose content the log itself cannot replace.
    """
    offset, data, last, aborted = files
    for path in last:
        disk.open(path).fdatasync()
    for path, content in aborted:
        replace_file(disk, path, content)
    replace_file(disk, file_of(directory, offset, SNAPSHOT_SUFFIX), data)
    found_all = offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX)
    older = [found for found in found_all if found < offset and found != log_start]
    for found in older[: max(0, len(older) - (SNAPSHOTS_KEPT - 1))]:
        disk.remove(file_of(directory, found, SNAPSHOT_SUFFIX))


def write_last_snapshot(disk: Disk, directory: str, files: SnapshotFiles, log_start: int) -> None:
    """The same just before the last segment is removed. A disk too full for it must not keep the trim from making room."""
    with (
        contextlib.suppress(FileNotFoundError),
        _suppress_full_disk(),
    ):  # an earlier try got as far as the segments
        write_snapshot(disk, directory, files, log_start)


@contextlib.contextmanager
def _suppress_full_disk() -> Iterator[None]:
    """Go on where the disk has no room for what is written inside."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise


def newest_snapshot(disk: Disk, directory: str, up_to: int) -> Snapshot | None:
    """The newest snapshot file of an offset of at most `up_to`; whether the log still fits it is not checked."""
    for offset in reversed(offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX)):
        if offset <= up_to:
            path = file_of(directory, offset, SNAPSHOT_SUFFIX)
            snapshot = decode_snapshot(read_whole(disk, path), path)
            if snapshot is not None:
                return snapshot
    return None


def front_of(first: int, start: EntryId, producers: ProducerState) -> tuple[int, bytes]:
    """A snapshot of where a log's first segment begins, with its offset: for the producers of what was trimmed before.

    `start`: of the log.
    """
    term = start.term if start.offset == first else 0  # not known, and not needed
    return first, encode_snapshot(Snapshot(first, first, term, [], [], producers.encode(before=first), b""))


def producers_before(disk: Disk, directory: str, first: int) -> ProducerState:
    """The producers' state at offset `first`, where a log or its first segment begins; empty where nothing says.

    The newest snapshot knows it, whether or not the log still fits that: what was trimmed was committed.
    """
    offsets = offsets_of(disk.listdir(directory), SNAPSHOT_SUFFIX)
    found = newest_snapshot(disk, directory, offsets[-1]) if first and offsets else None
    if found is None or found.offset < first:
        return ProducerState()
    try:
        return ProducerState.decode(ProducerState.decode(found.producers).encode(before=first))
    except CorruptBatchError:
        return ProducerState()


def last_entry_bytes(disk: Disk, segment: Segment) -> bytes:
    """The index entry of a segment's last batch, as it stands in the file."""
    if segment.count == 0:
        return b""
    return disk.open(segment.index_path).pread(ENTRY_BYTES, entry_position(segment.count - 1))


def remove_damage(disk: Disk, directory: str) -> None:
    """Remove the marker of a damaged log."""
    disk.remove(os.path.join(directory, DAMAGE_NAME))
    disk.fsync_dir(directory)


def producers_of(
    disk: Disk,
    directory: str,
    start: int,
    end: int,
    batches_from: Callable[[int], Iterable[tuple[BatchHeader, memoryview]]],
) -> ProducerState:
    """The producers' state at the end of a log from `start` to `end`: from a snapshot and the batches after it."""
    found = newest_snapshot(disk, directory, end)
    if found is None or found.offset < start:
        state, at = producers_before(disk, directory, start), start
    else:
        state, at = ProducerState.decode(found.producers), found.offset
    for header, batch in batches_from(at):
        state.learn(header, batch)
    return state
