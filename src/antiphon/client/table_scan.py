"""Pages of a table's rows, by ranges of key hashes and not by shards: so a scan continues if a shard is split
meanwhile.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from antiphon import tracing
from antiphon.client.cluster import Cluster
from antiphon.client.table_writer import OP_OVERHEAD_BYTES
from antiphon.model.body import reply_as
from antiphon.model.metadata import KeyRanges
from antiphon.model.requests import TableRows, TableScan
from antiphon.model.rows import Row

SCAN_ROWS: Final = 1000
RANGE_PIECE_BYTES: Final = 128 * 1024


class RangeScan:
    """Rows whose keys have hashes from the first to the second of `hashes`, page by page in key order."""

    def __init__(
        self,
        cluster: Cluster,
        ranges: Callable[[], KeyRanges],
        hashes: tuple[int, int],
        request: TableScan,
        timeout_s: float,
    ) -> None:
        """`request` says what to read; its shard and hashes are set here. `timeout_s` bounds each page."""
        self._cluster = cluster
        self._ranges = ranges
        self._hashes = hashes
        self._request = request
        self._timeout_s = timeout_s
        self._at = 0
        self.more = True
        self.rows: Sequence[Row] = ()

    async def load(self) -> None:
        """Get the next page, or none when there is nothing more."""
        if tracing.tracer is None:
            await self._load()
        else:
            with tracing.tracer.around("scan"):
                await self._load()

    async def _load(self) -> None:
        tries = self._cluster.tries(self._timeout_s)
        pages = await self._cluster.across_splits(
            lambda: asyncio.gather(*(self._page(*one) for one in self._parts())), tries
        )
        if len(pages) == 1:
            self.rows, self.more = pages[0]
        else:
            # A part that has more says nothing of keys after its last: the page ends with the first of those.
            ends = [rows[-1].key for rows, more in pages if more and rows]
            found = sorted((row for rows, _ in pages for row in rows), key=lambda row: row.key)
            self.rows = [row for row in found if not ends or row.key <= min(ends)]
            self.more = any(more for _, more in pages)
        self._at = 0
        if self.rows:
            self._request = msgspec.structs.replace(self._request, start=self.rows[-1].key + b"\x00")

    def _parts(self) -> list[tuple[int, tuple[int, ...]]]:
        """The shards that hold the range now, with what of it each holds (empty where tables say so without words)."""
        return [(shard.shard_id, hashes) for shard, hashes in self._ranges().parts_of(*self._hashes)]

    async def _page(self, shard_id: int, hashes: tuple[int, ...]) -> tuple[Sequence[Row], bool]:
        request = msgspec.structs.replace(self._request, shard_id=shard_id, hashes=hashes)
        reply, _ = await self._cluster.call_shard(shard_id, request, timeout_s=self._timeout_s)
        reply = reply_as(TableRows, reply, "for rows")
        rows = [row for row in reply.rows if row is not None]
        return rows, reply.more and bool(rows)

    def take(self) -> Row:
        """The next row, which must have been seen by `head`."""
        self._at += 1
        return self.rows[self._at - 1]

    async def head(self) -> Row | None:
        """The next row without taking it; None at the end."""
        if self._at == len(self.rows) and self.more:
            await self.load()
        return self.rows[self._at] if self._at < len(self.rows) else None


def range_piece(rows: Sequence[Row], end: bytes, *, more: bool) -> tuple[bytes, bytes | None]:
    """Where a piece of a range ends that removes some of `rows`, and where the next one starts (None: no next one)."""
    size_bytes = 0
    for row in rows:
        size_bytes += OP_OVERHEAD_BYTES + len(row.key)
        if size_bytes > RANGE_PIECE_BYTES and row is not rows[0]:
            return row.key, row.key
    if more:
        following = rows[-1].key + b"\x00"
        return following, following
    return end, None
