"""One continuous topic for a single consumer: records that left the log come from the archive, then the log goes on.

Who reads from the log notices that an offset is below its start, also in the middle, when the log was trimmed meanwhile.
The stretch from there to the log's start is read from the files that the catalog names, and the log from there on; should it
have been trimmed again by then, the same happens again. Offsets only rise, so there is no gap and no repeat.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from antiphon.archive.format import (
    FILES_MAX,
    ArchivedFile,
    catalog_of,
    decode_row,
    holder,
    in_order,
    not_archived,
    reaching,
    scan_request,
    shard_prefix,
)
from antiphon.errors import OffsetOutOfRangeError, ProtocolViolationError
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import ListOffset, OffsetReply, TableRows
from antiphon.records.batch import iter_batches

if TYPE_CHECKING:
    import pyarrow as pa

    from antiphon.archive.files import OpenFile

EARLIEST: Final = -2

_T = TypeVar("_T")
_P = TypeVar("_P")

ReadLog = Callable[[int, int | None], AsyncIterator[memoryview]]
"""Chunks of whole batches of the log from a start to an end (exclusive; None: for ever), as the client reads them."""


class Pieces(Protocol[_P]):
    """What records are read as: lists of them, or columns."""

    def decode(self, chunk: memoryview, /) -> AsyncGenerator[_P, None]:
        """The records of a chunk of the log, in order."""

    def within(self, piece: _P, start: int, end: int | None, /) -> _P | None:
        """Those with start <= offset < end; None without any."""

    def archived(self, batch: "pa.RecordBatch", /) -> _P:
        """Rows of an archived file."""


class Cluster(Protocol):
    """What reading asks of a client's connections."""

    @property
    def meta(self) -> ClusterMeta | None:
        """The newest metadata that is known."""

    async def refresh_from_all(self) -> None:
        """Ask every node for metadata."""

    async def call_shard(self, shard_id: int, body: Any, *, timeout_s: float) -> tuple[Any, memoryview]:
        """One request to a shard's leader."""


async def archived_files(
    cluster: Cluster, topic: TopicMeta, shard: int, timeout_s: float
) -> list[ArchivedFile]:
    """The archived files of a shard in the order of their offsets. Raises ArchiveError."""
    table = None if cluster.meta is None else catalog_of(cluster.meta)
    if table is None:
        await cluster.refresh_from_all()  # the catalog may be newer than what is known here
        table = None if cluster.meta is None else catalog_of(cluster.meta)
    found: list[ArchivedFile] = []
    for part in table.shards if table is not None else ():
        found += await _scanned(cluster, part, shard_prefix(topic.topic_id, shard), timeout_s)
    return in_order(found)


async def _scanned(cluster: Cluster, part: ShardMeta, prefix: bytes, timeout_s: float) -> list[ArchivedFile]:
    found: list[ArchivedFile] = []
    after = b""
    while len(found) < FILES_MAX:
        request = scan_request(part, prefix, after)
        reply, _ = await cluster.call_shard(part.shard_id, request, timeout_s=timeout_s)
        if not isinstance(reply, TableRows):
            raise ProtocolViolationError(f"asked for rows of the catalog, got {type(reply).__name__}")
        rows = [row for row in reply.rows if row is not None]
        found += [decode_row(row) for row in rows]
        if not reply.more or not rows:
            break
        after = rows[-1].key
    return found


async def archived_start(
    cluster: Cluster, topic: TopicMeta, shard: int, log_start: int, timeout_s: float
) -> int:
    """Where the records of a shard begin whose log begins at `log_start`."""
    if log_start <= 0:
        return log_start
    start = reaching(await archived_files(cluster, topic, shard, timeout_s), log_start)
    if start < log_start:
        start = max(start, min(await _deleted_before(cluster, topic, shard, timeout_s), log_start))
    return start


async def _deleted_before(cluster: Cluster, topic: TopicMeta, shard: int, timeout_s: float) -> int:
    """Records before it were deleted on request: they are read from no file any more."""
    shard_id = next(one.shard_id for one in topic.shards if one.index == shard)
    reply, _ = await cluster.call_shard(shard_id, ListOffset(shard_id, EARLIEST), timeout_s=timeout_s)
    if not isinstance(reply, OffsetReply):
        raise ProtocolViolationError(f"asked for an offset, got {type(reply).__name__}")
    return reply.deleted_before


async def archived_offset_at(
    cluster: Cluster, topic: TopicMeta, shard: int, log_start: int, timestamp_ms: int, timeout_s: float
) -> int | None:
    """First archived offset, of those that reach the log, whose timestamp is at least that late; None if none is."""
    if log_start <= 0:
        return None
    files = await archived_files(cluster, topic, shard, timeout_s)
    at = reaching(files, log_start)
    if at < log_start:
        at = max(at, await _deleted_before(cluster, topic, shard, timeout_s))
    while at < log_start:
        file = holder(files, at)
        if file is None:
            return None
        if file.latest_ms >= timestamp_ms:
            found = await _with_file(file, partial(_first_since, timestamp_ms, at))
            if found is not None:
                return found[0] if found[0] < log_start else None
        at = file.end
    return None


def _first_since(timestamp_ms: int, offset: int, opened: "OpenFile") -> tuple[int, int] | None:
    return opened.first_since(timestamp_ms, offset)


async def _with_file(file: ArchivedFile, look: "Callable[[OpenFile], _T]") -> _T:
    from antiphon.archive.files import OpenFile

    def work() -> _T:
        with OpenFile(file) as opened:
            return look(opened)

    return await asyncio.to_thread(work)


async def read_archived(
    files: list[ArchivedFile], topic: str, shard: int, start: int, end: int, pieces: Pieces[_P]
) -> AsyncIterator[_P]:
    """Records with start <= offset < end from the archived files of a shard, which are in order.

    Raises OffsetOutOfRangeError where the archive does not hold them, ArchiveError for a missing or damaged file.
    """
    from antiphon.archive.files import rows_of

    at = start
    while at < end:
        file = holder(files, at)
        if file is None:
            raise OffsetOutOfRangeError(
                not_archived(topic, shard, at, files, end), asked=at, start=reaching(files, end), end=end
            )
        rows = rows_of(file, at, min(end, file.end))

        def following(rows: Any = rows) -> _P | None:
            batch = next(rows, None)
            return None if batch is None else pieces.archived(batch)

        try:
            while (piece := await asyncio.to_thread(following)) is not None:
                yield piece
        finally:
            await asyncio.to_thread(rows.close)
        at = file.end


async def read_through(
    cluster: Cluster,
    log: ReadLog,
    topic: TopicMeta,
    shard: int,
    start: int,
    end: int | None,
    *,
    pieces: Pieces[_P],
    timeout_s: float,
) -> AsyncGenerator[_P, None]:
    """Records with start <= offset < end (None: for ever), from the archive where the log does not have them any more."""
    at = start
    while end is None or at < end:
        chunks = log(at, end)
        try:
            async for chunk in chunks:
                first = at
                for header, _ in iter_batches(chunk):
                    at = max(at, header.next_offset)
                async with aclosing(pieces.decode(chunk)) as decoded:
                    async for piece in decoded:
                        if (wanted := pieces.within(piece, first, end)) is not None:
                            yield wanted
            return
        except OffsetOutOfRangeError as error:
            log_start = int(error.details.get("start", -1))
            if not at < log_start or at < int(error.details.get("deleted", 0)):
                raise
            files = await archived_files(cluster, topic, shard, timeout_s)
            if not files:
                raise
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
        until = log_start if end is None else min(log_start, end)
        async for archived in read_archived(files, topic.name, shard, at, until, pieces):
            yield archived
        at = until
