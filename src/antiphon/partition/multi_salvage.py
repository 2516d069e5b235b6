"""What stands whole behind damage of a log that every replica writes: perhaps nobody else has it.

A damaged log ends before the damage, and the next append cuts what follows. The others send back what they have. They lack
what was acknowledged here and not relayed yet, and that stands at the end of the log, so mostly behind the damage. So all
entries behind it that are whole are copied to the file `behind-damage` before anything is cut. When the replica has got back
what the others have of its own origin, it appends those that follow under their own numbers (`take_kept`).

File: magic "ANTIPHBD", version u32, CRC-32C u32, then whole batches. It is removed by the first start that finds the log
whole. Entries beyond `KEPT_BYTES`, the oldest ones, are not kept: a replica that is so far ahead of all others is rare.
"""

import errno
import os
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import structlog

from antiphon.errors import AntiphonError
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.segment import DATA_SUFFIX, file_of, offsets_of
from antiphon.log.snapshot import frame, unframe
from antiphon.partition.multi_batches import entry_of
from antiphon.records.batch import HEADER_BYTES, check_batch, iter_batches, read_header
from antiphon.replication.origin_history import OriginEntry
from antiphon.replication.vclock import LOCAL, Vclock, component

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog

SALVAGE_FILE: Final = "behind-damage"
SALVAGE_MAGIC: Final = b"ANTIPHBD"
SALVAGE_VERSION: Final = 1
KEPT_BYTES: Final = 16 * 1024 * 1024


def salvage(disk: Disk, log: "ShardLog", clock: Vclock) -> tuple[OriginEntry, ...]:
    """Entries behind the damage of a log that was just opened and ends with `clock`, by origin and LSN. Blocking.

    They are durable in the file when this returns, so the log may be cut. Raises OSError for a disk that cannot be used.
    """
    path = os.path.join(log.path, SALVAGE_FILE)
    if log.damaged is None:
        if disk.exists(path):
            disk.remove(path)
        return ()
    before = [one for one in _load(disk, path) if one.lsn > component(clock, one.origin)]
    kept = {(one.origin, one.lsn): one for one in before}
    found = {(one.origin, one.lsn): one for one in _behind(disk, log, clock)}
    if not found.keys() <= kept.keys():
        kept.update(found)
        data = b"".join(bytes(kept[name].data) for name in sorted(kept))
        replace_file(disk, path, frame(SALVAGE_MAGIC, SALVAGE_VERSION, data))
        structlog.get_logger().warning(
            "entries_behind_damage", path=path, entries=len(found), first=min(found), last=max(found)
        )
    return tuple(kept[name] for name in sorted(kept))


def _load(disk: Disk, path: str) -> list[OriginEntry]:
    payload = unframe(SALVAGE_MAGIC, SALVAGE_VERSION, read_whole(disk, path), path)
    if payload is None:
        return []
    return [entry_of(bytearray(batch), header) for header, batch in iter_batches(payload)]


def _behind(disk: Disk, log: "ShardLog", clock: Vclock) -> deque[OriginEntry]:
    """The newest whole entries of the log's files that the log, as it was opened, does not have."""
    found: deque[OriginEntry] = deque()
    size_bytes = 0
    for batch in _batches_behind(disk, log):
        entry = entry_of(batch)
        if entry.origin == LOCAL or entry.lsn <= component(clock, entry.origin):
            continue
        found.append(entry)
        size_bytes += entry.size_bytes
        while size_bytes > KEPT_BYTES:
            size_bytes -= found.popleft().size_bytes
    return found


def _batches_behind(disk: Disk, log: "ShardLog") -> Iterator[bytearray]:
    bases = offsets_of(disk.listdir(log.path), DATA_SUFFIX)
    for number, base in enumerate(bases):
        if number + 1 < len(bases) and bases[number + 1] <= log.log_end:
            continue
        path = file_of(log.path, base, DATA_SUFFIX)
        try:
            yield from _whole_batches(disk, path, base, log.log_end)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            structlog.get_logger().error("not_readable_behind_damage", path=path, reason=str(error))


def _whole_batches(disk: Disk, path: str, offset: int, from_offset: int) -> Iterator[bytearray]:
    """Batches from an offset on that have their CRC, of a file that begins at `offset`.

    One that has not is stepped over, as long as its length can be true. A batch's own offset is under no CRC: what counts
    is that all before it was passed.
    """
    file, at = disk.open(path), 0
    end = file.size()
    while end - at >= HEADER_BYTES:
        header = read_header(file.pread(HEADER_BYTES, at))
        size = header.size_bytes
        if not HEADER_BYTES <= size <= end - at:
            return
        if offset >= from_offset:
            batch = bytearray(file.pread(size, at))
            if _is_whole(batch):
                yield batch
        else:
            offset = header.next_offset  # these were found whole when the log was opened
        at += size


def _is_whole(batch: bytearray) -> bool:
    try:
        check_batch(read_header(batch), batch)
    except AntiphonError:
        return False
    return True
