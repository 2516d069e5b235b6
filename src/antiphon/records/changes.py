"""How a table's changes are stored in its log: after-images and tombstones (the *effects* of operations).

A table's log is its changelog. One write request becomes one batch, one effect is one record: the key is the user's
key, the value is the new value (None: the key is removed), and the header `v` carries the version metadata. So replicas
apply effects without evaluating anything, and a Kafka consumer or a lake job can follow a table without further
requests. A tombstone carries the version of the row that it removes.

Two more headers let a node rebuild the answer when the same request is sent again:

- `i`: index (big-endian int32) of the operation in its request; omitted if it equals the record's place in the batch;
- `s`, on the first record only: the outcome of every operation (`pack_outcomes`); omitted if every operation succeeded
  and has a record.

The header `e`, right after `v`, names the session (big-endian int64) that the row belongs to. A tombstone has it where the
row is removed because its session ends: such tombstones are a batch of their own, one for each of the session's rows.

The header `x`, right after those, has the row's attributes (`records.attributes`). `q`, without a value, says that the shard
made the key: it continues a sequence.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from antiphon.errors import CorruptBatchError
from antiphon.records.batch import BatchHeader, Buffer
from antiphon.records.decode import data_batches, decode_records, records_in, records_in_pieces

VERSION = struct.Struct(">qqqq")  # version id, modifications, created ms, modified ms
INDEX = struct.Struct(">i")
SESSION = struct.Struct(">q")  # the id of a session
VERSION_HEADER = "v"
INDEX_HEADER = "i"
OUTCOMES_HEADER = "s"
SESSION_HEADER = "e"
ATTRIBUTES_HEADER = "x"
SEQUENCE_HEADER = "q"
LENGTH = struct.Struct(">I")
TABLE_PRODUCER_BIT = 1 << 61  # producer ids of table writers: their sequences rise, but may skip

VersionTuple = tuple[int, int, int, int]
"""(version id, modifications, created ms, modified ms), as `VERSION` packs it."""

Outcome = tuple[int, VersionTuple | None]
"""Status of an operation (`model.requests.OpStatus`) and, for a refused put, the version that was found."""


class ChangeKind(StrEnum):
    """What happened to the key."""

    CREATED = "created"
    MODIFIED = "modified"
    DELETED = "deleted"


class Change(NamedTuple):
    """One effect. From `version_id` on the fields are of the new row, or of the removed one where `value` is None.

    `offset` is its place in the shard's log; `timestamp_ms` is when the leader took the request, in ms since 1970.
    `session_id` is the session that the row belongs to, or whose end removed it; None without one. `attributes` are the
    row's, packed; None without any.
    """

    key: bytes
    value: bytes | None
    offset: int
    timestamp_ms: int
    version_id: int
    modifications: int
    created_ms: int
    modified_ms: int
    session_id: int | None = None
    attributes: bytes | None = None

    @property
    def kind(self) -> ChangeKind:
        """Created, modified or deleted."""
        if self.value is None:
            return ChangeKind.DELETED
        return ChangeKind.MODIFIED if self.modifications else ChangeKind.CREATED


Effect = tuple[bytes, bytes | None, bytes]
"""One effect on its way to a store: the user's key, the new value (None: removed), and the version as `VERSION` packs it,
or as `owned_version` and `attributed_version` do where a session has to do with it, or the row has attributes."""

Headers = Sequence[tuple[str, bytes | None]]


def owned_version(packed: bytes, session_id: int) -> bytes:
    """A version that `VERSION` packed, as stores keep it of a row that belongs to a session.

    The modifications become their complement, which is negative as in no other row, and the session's id follows.
    """
    version_id, modifications, created_ms, modified_ms = VERSION.unpack(packed)
    return VERSION.pack(version_id, ~modifications, created_ms, modified_ms) + SESSION.pack(session_id)


def attributed_version(version: bytes, attributes: bytes) -> bytes:
    """A version as `VERSION` or `owned_version` packs it, as stores keep it of a row with attributes.

    The time of creation becomes its complement, which is negative as in no other row. The attributes follow with their
    length, behind the session.
    """
    created_ms = SESSION.unpack_from(version, 16)[0]
    flagged = version[:16] + SESSION.pack(~created_ms) + version[24:]
    return flagged + LENGTH.pack(len(attributes)) + attributes


def stored_row(stored: Buffer) -> tuple[VersionTuple, int | None, bytes | None, int]:
    """The version at the beginning of a row as stores keep it, its session, its attributes, and where the value begins."""
    version_id, modifications, created_ms, modified_ms = VERSION.unpack_from(stored)
    at = VERSION.size
    session_id: int | None = None
    attributes: bytes | None = None
    if modifications < 0:
        modifications = ~modifications
        session_id = SESSION.unpack_from(stored, at)[0]
        at += SESSION.size
    if created_ms < 0:
        created_ms = ~created_ms
        size = LENGTH.unpack_from(stored, at)[0]
        at += LENGTH.size
        attributes = bytes(stored[at : at + size])
        at += size
    return (version_id, modifications, created_ms, modified_ms), session_id, attributes, at


def stored_version(stored: Buffer) -> tuple[VersionTuple, int | None, int]:
    """The version at the beginning of a row as stores keep it, its session, and where the value begins."""
    version: VersionTuple = VERSION.unpack_from(stored)
    if version[1] >= 0 <= version[2]:
        return version, None, VERSION.size
    found, session_id, _, at = stored_row(stored)
    return found, session_id, at


def has_attributes(version: bytes) -> bool:
    """Has a row attributes whose version stores keep like this?"""
    return version[16] >= 0x80


def version_for_store(packed: bytes, headers: Headers) -> bytes:
    """The version in a record's headers as stores keep it, with what the headers say of session and attributes."""
    session_id = session_in(headers)
    if session_id is not None:
        packed = owned_version(packed, session_id)
    attributes = attributes_in(headers)
    return packed if attributes is None else attributed_version(packed, attributes)


def effects_of(batch: Buffer) -> list[Effect]:
    """The effects in one or more batches, in order; control batches and records that are no effects are passed over."""
    effects: list[Effect] = []
    for header, one in data_batches(batch):
        effects += effects_in(header, one)
    return effects


def effects_in(header: BatchHeader, batch: Buffer) -> list[Effect]:
    """The effects in one batch that is no control batch."""
    return _effects(records_in(header, batch))


def effects_in_pieces(header: BatchHeader, batch: Buffer, piece: int) -> Iterator[list[Effect]]:
    """The same, those of `piece` records at a time. What is wrong with a later piece is found when that is asked for."""
    return map(_effects, records_in_pieces(header, batch, piece))


def _effects(records: Iterable[Any]) -> list[Effect]:
    effects: list[Effect] = []
    size, add = VERSION.size, effects.append
    for record in records:
        headers = record.headers
        if len(headers) == 1:  # of most there is no more to say than the version
            name, packed = headers[0]
            if name == VERSION_HEADER and packed is not None and len(packed) == size:
                add((record.key or b"", record.value, packed))
            continue
        for name, packed in headers:
            if name == VERSION_HEADER:
                if packed is not None and len(packed) == size:
                    add((record.key or b"", record.value, version_for_store(packed, headers)))
                break
    return effects


def session_in(headers: Sequence[tuple[str, bytes | None]]) -> int | None:
    """The session that a record's headers name, which have the version first."""
    name, packed = headers[1] if len(headers) > 1 else ("", None)
    if name != SESSION_HEADER or packed is None or len(packed) != SESSION.size:
        return None
    session_id: int = SESSION.unpack(packed)[0]
    return session_id


def attributes_in(headers: Headers) -> bytes | None:
    """The attributes that a record's headers have: right after the version, and the session where there is one."""
    for name, packed in headers[1:3]:
        if name == ATTRIBUTES_HEADER:
            return packed
    return None


def decode_changes(batches: Iterable[Buffer], start: int = 0) -> Iterator[Change]:
    """The changes at or after offset `start` in whole batches, in order.

    Raises CorruptBatchError where bytes are not a batch.
    """
    for batch in batches:
        for record in decode_records(batch):
            if record.offset < start:
                continue
            for name, packed in record.headers:
                if name == VERSION_HEADER:
                    if packed is not None and len(packed) == VERSION.size:
                        version: VersionTuple = VERSION.unpack(packed)
                        yield Change(
                            record.key or b"",
                            record.value,
                            record.offset,
                            record.timestamp_ms,
                            *version,
                            session_in(record.headers),
                            attributes_in(record.headers),
                        )
                    break


def pack_outcomes(outcomes: Sequence[Outcome]) -> bytes:
    """Outcomes of a whole request as bytes: a status byte each; with bit 7 set, a found version follows."""
    out = bytearray()
    for status, found in outcomes:
        if found is None:
            out.append(status)
        else:
            out.append(status | 0x80)
            out += VERSION.pack(*found)
    return bytes(out)


def unpack_outcomes(packed: bytes) -> list[Outcome]:
    """The reverse of `pack_outcomes`; raises CorruptBatchError on bytes that it never made."""
    outcomes: list[Outcome] = []
    at = 0
    while at < len(packed):
        status = packed[at]
        at += 1
        if status & 0x80:
            if at + VERSION.size > len(packed):
                raise CorruptBatchError(
                    f"outcomes end in the middle of a version, {len(packed)} bytes in all"
                )
            outcomes.append((status & 0x7F, VERSION.unpack_from(packed, at)))
            at += VERSION.size
        else:
            outcomes.append((status, None))
    return outcomes
