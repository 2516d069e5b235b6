"""Rows of internal tables, as the leader of their shard reads them."""

from collections.abc import AsyncIterator
from typing import Final

import structlog

from antiphon.gateway.interface import Gateway
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row

SCAN_ROWS: Final = 500  # of one scan
TOLD_MAX: Final = 1_000  # rows that cannot be read and are told of


async def rows_between(
    gateway: Gateway,
    shard_id: int,
    start: bytes,
    end: bytes,
    *,
    limit: int = SCAN_ROWS,
    include_value: bool = True,
) -> AsyncIterator[Row]:
    """All rows with start <= key < end, by their keys. Raises what the gateway's table calls raise."""
    while True:
        scan = TableScan(shard_id, start, end, limit=limit, include_value=include_value)
        reply = await gateway.table_scan(scan)
        rows = [row for row in reply.rows if row is not None]
        for row in rows:
            yield row
        if not reply.more or not rows:
            return
        start = rows[-1].key + b"\x00"


class UnreadableRows:
    """Rows that a node of another version, or a mistake, has left: the log tells of each once, as `event`."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._told: set[bytes] = set()

    def log(self, key: bytes, reason: str) -> None:
        """This row cannot be read."""
        if key not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(key)
            structlog.get_logger().error(self._event, key=key[:200], reason=reason)
