"""Compaction, batch by batch: which is the newest record of each key, and what of a batch is to stay.

Without files and threads, so that it can be tested by itself; `compaction` reads the batches and writes what is left.
"""

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from antiphon.errors import CorruptBatchError
from antiphon.log.producer_state import Needed
from antiphon.log.transactions import Aborted
from antiphon.records.batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader, Buffer
from antiphon.records.builder import committed_of
from antiphon.records.compacted import FILLER_OFFSETS_MAX, emptied, filler, is_filler, with_records
from antiphon.records.compression import MissingCodecError
from antiphon.records.decode import plain_records, records_in

ENTRY_BYTES: Final = 176  # that a key takes in the map, with its place and number, about
_HASHED_FROM: Final = 16  # bytes of a key; shorter ones stand for themselves
_HASH_BYTES: Final = 16
NOWHERE: Final = -1
UNREADABLE: Final = (
    CorruptBatchError,
    MissingCodecError,
)  # of records: nobody here knows what keys they have
NEVER: Final = (1 << 63) - 1


class KeyMap:
    """The newest offset of each key, as far as there is room. Long keys by a hash that nobody can predict."""

    def __init__(self, bytes_max: int, secret: bytes) -> None:
        self._entries_max = max(1, bytes_max // ENTRY_BYTES)
        self._newest: dict[bytes, int] = {}
        self._hash = blake2b(digest_size=_HASH_BYTES, key=secret)

    def __len__(self) -> int:
        return len(self._newest)

    def has_room(self, records: int) -> bool:
        """Is there room for so many records, or nothing in it? A batch is taken in as a whole."""
        return not self._newest or len(self._newest) + records <= self._entries_max

    def _name(self, key: bytes) -> bytes:
        if len(key) < _HASHED_FROM:
            return key
        hashed = self._hash.copy()
        hashed.update(key)
        return hashed.digest()

    def learn(self, header: BatchHeader, batch: Buffer) -> None:
        """These records are newer than all before. Raises one of UNREADABLE where they cannot be decoded."""
        newest, name = self._newest, self._name
        for record in records_in(header, batch):
            if record.key is not None:
                newest[name(record.key)] = record.offset

    def offset_of(self, key: bytes) -> int:
        """Of the newest record with this key; -1 where none was seen."""
        return self._newest.get(self._name(key), NOWHERE)


class Cleaner:
    """Takes the batches of a log in order, and gives what is to stand in their place.

    Attributes:
        tombstones: how many were kept.
        dirty_from: the first batch that stays whole with records that a newer one stands for, or that cannot be decoded.
            What follows it is not clean: a tombstone behind it may be all that keeps such a record from coming back.
    """

    def __init__(self, newest: KeyMap, needed: Needed, drop_before: int) -> None:
        """`drop_before`: tombstones before this offset have been there for long enough."""
        self._newest = newest
        self._needed = needed
        self._drop_before = drop_before
        self._gap: tuple[int, int, int] | None = None  # first offset, next offset, term of what is left out
        self.tombstones = 0
        self.dirty_from = NEVER

    def take(self, header: BatchHeader, batch: Buffer, aborted: Iterable[Aborted]) -> list[Buffer]:
        """What is known to stay, up to this batch. `aborted`: transactions of which it may be a part."""
        kept = self._kept(header, batch, aborted)
        if kept is None:
            return self._left_out(header)
        return [*self.flush(), kept]

    def flush(self) -> list[Buffer]:
        """What stands for batches that were left out and not told yet."""
        gap, self._gap = self._gap, None
        return [] if gap is None else [filler(*gap)]

    def _left_out(self, header: BatchHeader) -> list[Buffer]:
        gap, term, end = self._gap, header.leader_epoch, header.next_offset
        if gap is not None and gap[2] == term and end - gap[0] <= FILLER_OFFSETS_MAX:
            self._gap = (gap[0], end, term)
            return []
        told = self.flush()
        self._gap = (header.base_offset, end, term)
        return told

    def _kept(self, header: BatchHeader, batch: Buffer, aborted: Iterable[Aborted]) -> Buffer | None:
        at = header.base_offset
        if header.attributes & CONTROL_BIT:
            return None if committed_of(batch) is not None else batch
        if is_filler(header):
            return None
        if header.attributes & TRANSACTIONAL_BIT and is_aborted(header, aborted):
            return emptied(header, aborted=True) if at in self._needed.headers else None
        if header.record_count:
            try:
                return self._cleaned(header, batch)
            except UNREADABLE:  # nobody knows which keys it has
                self.dirty_from = min(self.dirty_from, at)
                return batch
        return batch if at in self._needed.headers else None

    def _cleaned(self, header: BatchHeader, batch: Buffer) -> Buffer | None:
        offset_of, drop_before = self._newest.offset_of, min(self._drop_before, self.dirty_from)
        keeps, tombstones, latest = [], 0, NOWHERE
        for record in records_in(header, batch):
            key = record.key
            stays = key is None or offset_of(key) <= record.offset
            if stays and key is not None and record.value is None:
                stays = record.offset >= drop_before
                tombstones += stays
            if stays and record.timestamp > latest:
                latest = record.timestamp
            keeps.append(stays)
        self.tombstones += tombstones
        at = header.base_offset
        if all(keeps):
            return batch
        if at in self._needed.whole:
            self.dirty_from = min(self.dirty_from, at)
            return batch
        if any(keeps):
            return with_records(header, plain_records(header, batch), keeps, latest)
        return emptied(header) if at in self._needed.headers else None


def is_aborted(header: BatchHeader, aborted: Iterable[Aborted]) -> bool:
    """Is a transactional batch a part of one of these?"""
    producer_id, at = header.producer_id, header.base_offset
    return any(
        one.producer_id == producer_id and one.first_offset <= at < one.marker_offset for one in aborted
    )
