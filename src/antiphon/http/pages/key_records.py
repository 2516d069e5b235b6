"""Records of one key, the newest first: read backwards from an offset, within a bound of bytes for one page.

Logs are read forwards only, so a stretch of offsets before the last one is read at a time. How many bytes it has shows when
it is read: a stretch that has too many is tried again shorter, one that has few is followed by a longer one.
"""

from typing import Final, NamedTuple

from antiphon.http.pages.asking import Asker, Piece, off_loop
from antiphon.http.pages.log_pages import PIECE_BYTES, RECORDS, UNPACKED_MAX
from antiphon.model.metadata import KeyRanges, Kind, ShardMeta, TopicMeta
from antiphon.model.topic_keys import shard_of_topic_key
from antiphon.records.aborted import without_aborted
from antiphon.records.batch import iter_batches
from antiphon.records.decode import BadBatch, Record, decode_what_can_be

READ_BYTES_MAX: Final = 2 * 1024 * 1024  # of the log, for one page; the last batch may go beyond it
FIRST_STRETCH: Final = 256  # offsets
STRETCH_PIECES: Final = 2  # that are read before a stretch is tried shorter


class KeyFound(NamedTuple):
    """Records of a key, the newest first. All before `low` was not looked at; `seen`: how many records were."""

    records: list[Record]
    bad: list[BadBatch]
    piece: Piece | None
    low: int
    seen: int


class Stretch(NamedTuple):
    """What a stretch of offsets has: from its first batch on, up to `reached`.

    `size_bytes` were read for it, of which `own_bytes` are its own batches.
    """

    records: list[Record]
    bad: list[BadBatch]
    piece: Piece | None
    began: int
    reached: int
    size_bytes: int
    own_bytes: int


def shard_of_key(topic: TopicMeta, key: bytes) -> ShardMeta:
    """The shard that a key is in: of a table always, of a topic if the key decided about it."""
    if topic.kind is Kind.TABLE:
        return KeyRanges(topic.shards).shard_of(key)
    index = shard_of_topic_key(key, len(topic.shards))
    return next(one for one in topic.shards if one.index == index)


async def read_key(
    asker: Asker, shard_id: int, first: int, before: int, key: bytes, limit: int = RECORDS
) -> KeyFound:
    """Records with this very key from `before` (exclusive) back to `first`, at most `limit`, or as far as bytes go."""
    kept: list[Record] = []
    bad: list[BadBatch] = []
    piece: Piece | None = None
    at, stretch, left, seen = before, FIRST_STRETCH, READ_BYTES_MAX, 0
    while at > first and left > 0 and len(kept) < limit:
        low = max(first, at - stretch)
        found = await _read(asker, shard_id, low, at)
        left -= found.size_bytes
        piece = found.piece or piece
        if found.reached < at and stretch > 1:
            stretch = max(1, min(stretch // 2, (found.reached - low) * 3 // 4))
            continue
        # The first batch may hold records before `first`, which were deleted: nobody is shown one.
        some = [one for one in found.records if one.offset >= first]
        seen += len(some)
        bad += found.bad
        kept += [one for one in reversed(some) if one.key == key]
        at = min(low, found.began)
        if found.own_bytes < PIECE_BYTES // 2:
            stretch *= 2
    if len(kept) > limit:
        kept = kept[:limit]
        at = kept[-1].offset
    return KeyFound(kept, bad[:limit], piece, max(first, at), seen)


async def _read(asker: Asker, shard_id: int, low: int, end: int) -> Stretch:
    """The records before `end` from the batch on that holds `low`, out of a bounded number of pieces."""
    records: list[Record] = []
    bad: list[BadBatch] = []
    piece: Piece | None = None
    at, began, size_bytes, own_bytes = low, low, 0, 0
    for _ in range(STRETCH_PIECES):
        piece = await asker.log_piece(shard_id, at, PIECE_BYTES)
        size_bytes += len(piece.batches)
        if not len(piece.batches):
            return Stretch(
                records, bad, piece, began, end, size_bytes, own_bytes
            )  # nothing more that may be shown
        some, worse, start, after, own = await off_loop(_decoded, piece, end)
        own_bytes += own
        began = min(began, start)
        records += [
            one for one in some if one.offset < end and (not records or one.offset > records[-1].offset)
        ]
        bad += [one for one in worse if one.offset < end]
        if after >= end or after <= at:
            return Stretch(records, bad, piece, began, end, size_bytes, own_bytes)
        at = after
    return Stretch(records, bad, piece, began, at, size_bytes, own_bytes)


def _decoded(piece: Piece, end: int) -> tuple[list[Record], list[BadBatch], int, int, int]:
    """The records of a piece, what cannot be read, where it begins and ends, and how many bytes of it are before `end`."""
    batches = list(iter_batches(piece.batches))
    own_bytes = sum(len(batch) for header, batch in batches if header.base_offset < end)
    some, bad = decode_what_can_be(without_aborted(piece.batches, piece.aborted), UNPACKED_MAX)
    return some, bad, batches[0][0].base_offset, batches[-1][0].next_offset, own_bytes
