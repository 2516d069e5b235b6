"""The rows of `__archive` as a node reads them: which file holds an offset, and where the archive of a shard begins."""

from collections.abc import AsyncIterator
from typing import Final

from antiphon.archive.format import (
    ARCHIVE_TABLE,
    FILES_MAX,
    SCAN_ROWS,
    ArchivedFile,
    decode_row,
    scan_request,
    shard_prefix,
)
from antiphon.errors import AntiphonError, ArchiveError, UnavailableError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, TopicMeta
from antiphon.model.requests import TableGet, TableRows, TableScan
from antiphon.model.rows import Row

ASK_S: Final = 2.0
FLOOR: Final = 1  # comparisons of a `TableGet`
LOWER: Final = 3


class ArchiveRows:
    """Reads the catalog at its leader, whichever node that is. All calls raise ArchiveError."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def exists(self) -> bool:
        """Was anything ever archived?"""
        try:
            self._gateway.topic(ARCHIVE_TABLE)
        except UnknownTopicError:
            return False
        return True

    async def holder(self, topic: TopicMeta, shard: int, offset: int) -> ArchivedFile | None:
        """The file that holds an offset of a shard."""
        file = await self._next_to(topic, shard, b"%020d" % offset, FLOOR)
        return file if file is not None and offset < file.end else None

    async def last(self, topic: TopicMeta, shard: int) -> ArchivedFile | None:
        """The file of a shard with the highest offsets."""
        return await self._next_to(topic, shard, b":", LOWER)  # ":" follows all digits

    async def files(self, topic: TopicMeta, shard: int) -> AsyncIterator[ArchivedFile]:
        """The files of a shard in the order of their offsets; a thousand are in memory at a time."""
        prefix, after = shard_prefix(topic.topic_id, shard), b""
        for _ in range(FILES_MAX // SCAN_ROWS):
            found = await self._ask(scan_request(self._shard(), prefix, after))
            rows = [row for row in found.rows if row is not None]
            for row in rows:
                yield decode_row(row)
            if not found.more or not rows:
                return
            after = rows[-1].key

    async def run(self, topic: TopicMeta, shard: int, log_start: int) -> tuple[int, int]:
        """(start, end) of the offsets that files hold without a gap and a log reaches that begins at `log_start`.

        Both are `log_start` where no file reaches it.
        """
        start = end = -1
        async for file in self.files(topic, shard):
            if file.start > end:
                if end >= log_start:
                    break
                start = file.start
            end = max(end, file.end)
        return (start, end) if start < log_start <= end else (log_start, log_start)

    async def _next_to(
        self, topic: TopicMeta, shard: int, place: bytes, comparison: int
    ) -> ArchivedFile | None:
        prefix = shard_prefix(topic.topic_id, shard)
        asked = TableGet(self._shard().shard_id, (prefix + place,), comparison=comparison)
        rows = (await self._ask(asked)).rows
        row = rows[0] if rows else None
        return decode_row(row) if isinstance(row, Row) and row.key.startswith(prefix) else None

    def _shard(self) -> ShardMeta:
        try:
            shards = self._gateway.topic(ARCHIVE_TABLE).shards
        except UnknownTopicError:
            raise ArchiveError("this node knows of no catalog of archived files") from None
        if len(shards) != 1:
            raise ArchiveError(
                f"table {ARCHIVE_TABLE} is not the catalog: it has {len(shards)} shards, not 1"
            )
        return shards[0]

    async def _ask(self, asked: TableGet | TableScan) -> TableRows:
        leader = self._shard().leader
        try:
            if leader == self._gateway.node_id:
                if isinstance(asked, TableGet):
                    return await self._gateway.table_get(asked)
                return await self._gateway.table_scan(asked)
            if leader == ABSENT_NODE:
                raise UnavailableError("it has no leader now")
            reply, _ = await self._gateway.questions.ask_bulk(leader, asked, ASK_S)
        except ArchiveError:
            raise
        except AntiphonError as error:
            raise ArchiveError(
                f"the catalog of archived files cannot be read now: {error.message}"
            ) from error
        if not isinstance(reply, TableRows):
            raise ArchiveError(
                f"node {leader} was asked for rows of the catalog, and sent {type(reply).__name__}"
            )
        return reply
