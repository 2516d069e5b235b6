"""Snapshot files of a shard's log: everything that recovery needs to know about the log before an offset.

Written when a segment is closed, every `snapshot_bytes`, and at a clean stop; the data and index before the offset are
synced first. Big-endian: magic 8s "ANTIPHSS" | version u32 | crc u32 of the rest | msgpack of `Snapshot`.

If the log has named its members, the files that must contain them are of version 2. Older programs refuse these,
because they would use outdated members. If there were transactions, they are of version 3, and sealed:
an older program would forget which are under way. If batches have lost records to compaction, of version 4: an older
program would take them for damaged. All others stay of version 1.
"""

import os
import struct
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from antiphon.errors import UNDECODABLE, NewerFormatError
from antiphon.log.disk import Disk, read_whole
from antiphon.log.producer_state import has_transactions
from antiphon.records.members import Members

SNAPSHOT_MAGIC: Final = b"ANTIPHSS"
SNAPSHOT_VERSION: Final = 4
TRANSACTIONS_VERSION: Final = 3
MEMBERS_VERSION: Final = 2
START_MAGIC: Final = b"ANTIPHST"
START_VERSION: Final = 2
FRAMED_VERSIONS: Final = {SNAPSHOT_MAGIC: 2, START_MAGIC: 2}  # of other files: 1; later ones are sealed
_FRAME: Final = struct.Struct(">8sII")
_HEAD: Final = struct.Struct(">8sI")
_START: Final = struct.Struct(">qqB7x")
START_NAME: Final = "start"
RESET_NAME: Final = "reset"  # the snapshot that a reset puts in the place of the log, until it stands there


class SegmentSummary(NamedTuple):
    """A segment up to the snapshot's offset."""

    base_offset: int
    next_offset: int
    size_bytes: int
    batches: int
    max_timestamp: int


class Snapshot(NamedTuple):
    """State of the log up to `offset`. `last_entry`: index entry of the last batch before it, to recognise the log by.

    `members`: the members entries in the log, by their exclusive ends (version 2). `aborted`: how many transactions each
    segment's index of aborted ones names (version 3). `compacted`: batches have fewer records than offsets (version 4).
    """

    offset: int
    log_start: int
    start_term: int
    terms: list[tuple[int, int]]
    segments: list[SegmentSummary]
    producers: bytes
    last_entry: bytes
    members: tuple[tuple[int, Members], ...] = ()
    aborted: tuple[int, ...] = ()
    compacted: bool = False


class LogStart(NamedTuple):
    """Where the log starts, and the term of the entry before; `resetting`: all segments are about to be removed.

    `members`: as of the log's start, where the log has ever said (version 2).
    """

    log_start: int
    start_term: int
    resetting: bool
    members: Members | None = None


def frame(magic: bytes, version: int, payload: bytes) -> bytes:
    """A small file: magic, version, CRC of the payload, payload."""
    return _FRAME.pack(magic, version, crc32c(payload)) + payload


def seal(magic: bytes, version: int, payload: bytes) -> bytes:
    """The same with magic and version under the CRC too; every later version is written this way."""
    return _FRAME.pack(magic, version, _crc_of_all(magic, version, payload)) + payload


def _crc_of_all(magic: bytes, version: int, payload: bytes) -> int:
    return int(crc32c(payload, crc32c(_HEAD.pack(magic, version))))


def unframe(magic: bytes, version: int, data: bytes | None, what: str) -> bytes | None:
    """The payload of such a file, framed or sealed; None where it is missing or not whole.

    Raises NewerFormatError for a later version. Those are sealed, so a flipped bit of the version makes none.
    """
    if data is None or len(data) < _FRAME.size:
        return None
    found_magic, found_version, crc = _FRAME.unpack_from(data)
    payload = data[_FRAME.size :]
    if found_magic != magic:
        return None
    if crc != _crc_of_all(magic, found_version, payload) and (
        found_version > FRAMED_VERSIONS.get(magic, 1) or crc != crc32c(payload)
    ):
        return None
    if found_version > version:
        raise NewerFormatError(
            f"{what} has format {found_version}, this version knows up to {version}; "
            "start the newer version of Antiphon that wrote it",
            found=found_version,
            known=version,
        )
    return payload


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The whole file."""
    if snapshot.compacted:
        return seal(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, msgspec.msgpack.encode(snapshot))
    if has_transactions(snapshot.producers):
        return seal(SNAPSHOT_MAGIC, TRANSACTIONS_VERSION, msgspec.msgpack.encode(snapshot[:-1]))
    if snapshot.members:
        return frame(SNAPSHOT_MAGIC, MEMBERS_VERSION, msgspec.msgpack.encode(snapshot[:-2]))
    return frame(SNAPSHOT_MAGIC, 1, msgspec.msgpack.encode(snapshot[:-3]))


def decode_snapshot(data: bytes | None, path: str) -> Snapshot | None:
    """Undo `encode_snapshot`; None where it is missing or not whole."""
    payload = unframe(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, data, path)
    if payload is None:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=Snapshot)
    except UNDECODABLE:
        return None


def encode_start(start: LogStart) -> bytes:
    """The whole file."""
    payload = _START.pack(start.log_start, start.start_term, start.resetting)
    if start.members is None:
        return frame(START_MAGIC, 1, payload)
    return frame(START_MAGIC, START_VERSION, payload + msgspec.msgpack.encode(start.members))


def load_start(disk: Disk, directory: str) -> LogStart | None:
    """The log's start file; None where it is missing (a log that starts at 0) or not whole."""
    path = os.path.join(directory, START_NAME)
    return decode_start(read_whole(disk, path), path)


def decode_start(data: bytes | None, path: str) -> LogStart | None:
    """What the start file at `path` says; None where there is none, or not a whole one."""
    payload = unframe(START_MAGIC, START_VERSION, data, path)
    if payload is None or len(payload) < _START.size:
        return None
    log_start, start_term, resetting = _START.unpack_from(payload)
    said = payload[_START.size :]
    try:
        members = msgspec.msgpack.decode(said, type=Members) if said else None
    except UNDECODABLE:
        return None
    return LogStart(log_start, start_term, bool(resetting), members)
