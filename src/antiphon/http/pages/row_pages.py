"""Rows of a table for one page, in the order of keys over all shards: merged from a look into each shard."""

import asyncio
import heapq
from collections.abc import Sequence
from typing import Final

from antiphon.http.pages.asking import Asker
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row

SHARDS_MERGED: Final = 16  # that one page asks


async def merged_rows(
    asker: Asker, shards: Sequence[int], start: bytes, end: bytes, limit: int
) -> tuple[list[Row], bool]:
    """The first rows with start <= key < end (empty: to the end), and whether there are more."""
    scans = [TableScan(one, start, end, limit=limit + 1, consistency="leader") for one in shards]
    replies = await asyncio.gather(*(asker.rows(scan) for scan in scans))
    merged = heapq.merge(
        *([row for row in reply.rows if row is not None] for reply in replies), key=lambda row: row.key
    )
    kept = [row for _, row in zip(range(limit + 1), merged, strict=False)]
    # A shard that has more says nothing of keys behind its last row.
    ends = [
        reply.rows[-1].key for reply in replies if reply.more and reply.rows and reply.rows[-1] is not None
    ]
    if ends:
        kept = [row for row in kept if row.key <= min(ends)]
    return kept[:limit], bool(ends) or len(kept) > limit


def end_of(prefix: bytes) -> bytes:
    """The first key that does not begin with this; empty: there is none."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes((cut[-1] + 1,)) if cut else b""
