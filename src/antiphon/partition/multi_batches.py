"""Origin and LSN in the header of a batch, where every replica writes.

A batch must carry who wrote it and as which of its entries, under the batch's own CRC, without a record being touched, so
that a replica's vector clock can be read off the headers of its log. The producer's fields carry it: `producer_epoch` is the
origin and `producer_id` is -1 - LSN. Ids below -1 are nobody's: whatever reads a batch (this project's log, Kafka's clients)
takes any negative id for "no producer", so such a batch looks plain to all of them. The origin sets the fields once, after
it has looked at the client's own producer id to tell repeats, and seals the batch again.
"""

import struct
from collections.abc import Iterable
from typing import Final

from antiphon.errors import ProtocolViolationError
from antiphon.records.batch import BatchHeader, Buffer, check_batch, iter_batches, read_header
from antiphon.records.builder import seal
from antiphon.replication.multi_messages import Relay
from antiphon.replication.origin_history import OriginEntry
from antiphon.replication.vclock import LOCAL, ORIGINS_MAX

_PRODUCER: Final = struct.Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_AT: Final = 43


def number_batch(batch: bytearray, origin: int, lsn: int) -> None:
    """Write origin and LSN into a batch and seal it."""
    _PRODUCER.pack_into(batch, _PRODUCER_AT, -1 - lsn, origin, -1)
    seal(batch)


def identity(header: BatchHeader) -> tuple[int, int]:
    """(origin, LSN) of a batch; the local origin and 0 for one that has none."""
    lsn = -1 - header.producer_id
    if lsn < 1 or not LOCAL < header.producer_epoch <= ORIGINS_MAX:
        return LOCAL, 0
    return header.producer_epoch, lsn


def entry_of(batch: Buffer, header: BatchHeader | None = None) -> OriginEntry:
    """The batch as an entry, with the offsets that stand in it."""
    header = header or read_header(batch)
    origin, lsn = identity(header)
    return OriginEntry(origin, lsn, header.crc, header.base_offset, header.next_offset, len(batch), batch)


def entries_of(batches: Iterable[Buffer]) -> list[OriginEntry]:
    """Several of them."""
    return [entry_of(batch) for batch in batches]


def checked_entries(message: Relay, payload: Buffer) -> tuple[OriginEntry, ...]:
    """The entries of a `Relay`'s payload, each checked; they own their bytes, which may be stamped in place.

    Raises CorruptBatchError or ProtocolViolationError.
    """
    owned = bytearray(payload)
    entries = []
    for header, batch in iter_batches(owned):
        check_batch(header, batch)
        entries.append(entry_of(batch, header))
    if message.entries or len(entries) != len(message.chains):
        raise ProtocolViolationError(
            f"a Relay for shard {message.shard} has {len(entries)} batches and {len(message.chains)} chains"
        )
    return tuple(entries)
