"""What a table's store keeps of transactions that are prepared and have not ended, beside the rows.

| key | value |
|---|---|
| 0x00 "prepared/" + producer id (int64) | MessagePack: the effects, each as [key, value or nil, version] |

They change together with the applied offset, as rows do. So a snapshot has them, and so has the store after a restart.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from antiphon.errors import UNDECODABLE, StorageFailedError
from antiphon.records.batch import CONTROL_BIT, BatchHeader, Buffer
from antiphon.records.builder import end_marker_of
from antiphon.records.changes import Effect, effects_in
from antiphon.table.prepared import End, Prepare, PreparedTransactions, TransactionChange
from antiphon.table.store import Batch, Store

PREPARED: Final = b"\x00prepared/"
PRODUCER: Final = struct.Struct(">q")

_effects = msgspec.msgpack.Decoder(list[Effect])


def change_in(header: BatchHeader, batch: Buffer) -> TransactionChange | None:
    """What a batch with the transactional bit changes."""
    if not header.attributes & CONTROL_BIT:
        return Prepare(header.producer_id, effects_in(header, batch))
    said = end_marker_of(batch)
    return None if said is None else End(header.producer_id, said[0])


def read_prepared(store: Store) -> PreparedTransactions:
    """All that a store keeps. Raises StorageFailedError where it cannot be decoded."""
    return PreparedTransactions(_stored(store))


def _stored(store: Store) -> Iterator[Prepare]:
    for key, stored in store.items(PREPARED):
        if not key.startswith(PREPARED):
            return
        try:
            yield Prepare(PRODUCER.unpack(key[len(PREPARED) :])[0], _effects.decode(stored))
        except (*UNDECODABLE, struct.error) as error:
            raise StorageFailedError(
                f"what a table store keeps of a prepared transaction cannot be decoded: {error}"
            ) from error


def add_change(batch: Batch, known: PreparedTransactions, change: TransactionChange) -> list[Effect]:
    """Add to a batch what a change comes to in a store with `known`; returns the effects that become rows by it."""
    stored_key = PREPARED + PRODUCER.pack(change.producer_id)
    before = known.by_producer.get(change.producer_id, [])
    if isinstance(change, Prepare):
        batch.put(stored_key, msgspec.msgpack.encode([*before, *change.effects]))
        return []
    batch.delete(stored_key)
    return before if change.commit else []
