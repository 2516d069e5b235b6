"""The vector clocks of a log on disk: a file of marks, and what the headers behind the last mark add to it.

The clock of a log is recovered from its batches' headers. So that a start need not read the whole log, and a peer that was
away long need not wait for it to be read, marks (offset, clock, chains) are written to `origins` in the shard's directory
now and then: the first is the log's start, later ones lie in the part that was durable at the time. What the file lacks is
read from the log. Only where the log was trimmed it cannot be done without: the clock at the log's start stands nowhere
else, so the file is durable before the log is trimmed.

File: magic "ANTIPHVC", version u32, CRC-32C u32, then a msgpack array of [offset, clock, chains].
"""

import functools
import itertools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from antiphon.errors import UNDECODABLE
from antiphon.log.disk import Disk, read_whole, replace_file
from antiphon.log.operations import CallStep, LogOp
from antiphon.log.snapshot import frame, unframe
from antiphon.partition.multi_batches import entry_of
from antiphon.replication.origin_history import START, History, Mark
from antiphon.replication.origin_index import OriginIndex
from antiphon.replication.vclock import LOCAL

if TYPE_CHECKING:
    from antiphon.log.shard_log import ShardLog

ORIGINS_FILE: Final = "origins"
ORIGINS_MAGIC: Final = b"ANTIPHVC"
ORIGINS_VERSION: Final = 1
_READ_BYTES: Final = 4 * 1024 * 1024

_decoder = msgspec.msgpack.Decoder(tuple[Mark, ...])


def save_marks(disk: Disk, log: "ShardLog", marks: Sequence[Mark]) -> LogOp:
    """The operation that writes the file; all marks lie in the durable part of the log."""
    path = os.path.join(log.path, ORIGINS_FILE)
    data = frame(ORIGINS_MAGIC, ORIGINS_VERSION, msgspec.msgpack.encode(marks))
    return LogOp(log.queue, [CallStep(functools.partial(replace_file, disk, path, data))])


def load_marks(disk: Disk, directory: str) -> tuple[Mark, ...]:
    """What the file says; nothing where it is missing, not whole, or says what no log can have."""
    path = os.path.join(directory, ORIGINS_FILE)
    payload = unframe(ORIGINS_MAGIC, ORIGINS_VERSION, read_whole(disk, path), path)
    if payload is None:
        return ()
    try:
        marks = _decoder.decode(payload)
    except UNDECODABLE:
        return ()
    rising = all(before.offset <= mark.offset for before, mark in itertools.pairwise(marks))
    return marks if rising and all(len(mark.clock) == len(mark.chains) for mark in marks) else ()


def recover_origins(disk: Disk, log: "ShardLog") -> tuple[OriginIndex, Mark] | None:
    """Index and final history of a log that was just opened; None where nothing says how it begins. Blocking.

    That is so where the log was trimmed and the file is gone, where damage cut the log before where the file begins, and
    where entries do not follow each other as the file would have it.
    """
    marks = [mark for mark in load_marks(disk, log.path) if mark.offset <= log.log_end]
    if not marks or marks[0].offset < log.log_start:
        if log.log_start > 0:
            return None
        marks = [START]
    index = OriginIndex(marks)
    history = History(marks[-1])
    return (index, history.mark()) if pass_over(log, history, log.log_end, index) else None


def pass_over(log: "ShardLog", history: History, to_offset: int, index: OriginIndex | None = None) -> bool:
    """Move `history` forward over the batches of the log, up to `to_offset`. Reads the disk where it must.

    False, half-way, where an entry is not the next one of its origin.
    """
    while history.offset < to_offset:
        batches = log.read(history.offset, _READ_BYTES, to_offset)
        if not batches:
            return False
        for batch in batches:
            entry = entry_of(batch)
            if entry.origin != LOCAL and entry.lsn != history.lsns[entry.origin] + 1:
                return False
            history.take(entry)
            if index is not None:
                index.passed(history, 1)
    return True
