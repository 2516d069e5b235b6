"""Records of a shard's log for one page: from an offset on, out of a bounded number of pieces, with what cannot be read."""

from typing import Final, NamedTuple

from antiphon.http.pages.asking import Asker, Piece, off_loop
from antiphon.records.aborted import without_aborted
from antiphon.records.batch import iter_batches
from antiphon.records.decode import BadBatch, Record, decode_what_can_be

RECORDS: Final = 50  # of one page
PIECE_BYTES: Final = 256 * 1024
PIECES_MAX: Final = 8  # that are read for one page
UNPACKED_MAX: Final = 8 * 1024 * 1024  # of one batch


class Found(NamedTuple):
    """Records of one page. `next_offset`: where the next one begins; `seen`: how many were looked at."""

    records: list[Record]
    bad: list[BadBatch]
    piece: Piece | None
    next_offset: int
    seen: int


async def read_records(
    asker: Asker, shard_id: int, start: int, end: int, wanted: str, limit: int = RECORDS
) -> Found:
    """Records from `start` on, at most `limit`, out of a bounded number of pieces of the log."""
    kept: list[Record] = []
    bad: list[BadBatch] = []
    piece: Piece | None = None
    at, seen = start, 0
    for _ in range(PIECES_MAX if wanted else 2):
        if at >= end or len(kept) >= limit:
            break
        piece = await asker.log_piece(shard_id, at, PIECE_BYTES)
        some, worse, after = await off_loop(_decoded, piece, at)
        if after <= at:
            break
        seen += len(some)
        for one in some:
            if len(kept) < limit and one.offset < end and _matches(one, wanted):
                kept.append(one)
        bad += worse
        at = kept[-1].offset + 1 if len(kept) >= limit else after
    return Found(kept, bad[:limit], piece, at, seen)


def _decoded(piece: Piece, start: int) -> tuple[list[Record], list[BadBatch], int]:
    """Records of a piece from an offset on, what cannot be read, and where the piece ends."""
    after = start
    if not piece.batches:
        return [], [], after
    for header, _ in iter_batches(piece.batches):
        after = header.next_offset
    some, bad = decode_what_can_be(without_aborted(piece.batches, piece.aborted), UNPACKED_MAX)
    return [one for one in some if one.offset >= start], bad, after


def _matches(one: Record, wanted: str) -> bool:
    if not wanted:
        return True
    looked_for = wanted.encode()
    return any(part is not None and looked_for in part for part in (one.key, one.value))
