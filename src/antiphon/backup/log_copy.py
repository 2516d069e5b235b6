"""Copies logs and states out of a running cluster, as bytes: batches are neither decoded nor changed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

from crc32c import crc32c

from antiphon.client.aio import AsyncClient
from antiphon.client.tasks import end_tasks
from antiphon.errors import (
    BackupError,
    CorruptBatchError,
    OffsetOutOfRangeError,
    ProtocolViolationError,
    UnavailableError,
)
from antiphon.model.backup import (
    NOBODY,
    CopyState,
    DropState,
    HoldShard,
    ReadState,
    ShardHeld,
    StateCopied,
    StateFile,
)
from antiphon.model.body import reply_as
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import Done, Fetch, Fetched
from antiphon.model.results import STORED
from antiphon.records.batch import UNCHECKED_BYTES, Buffer, iter_batches
from antiphon.records.compacted import filler, is_filler

FETCH_BYTES: Final = 4 * 1024 * 1024
ISOLATION: Final = "read_uncommitted"  # the log as it is, up to what is committed by the log alone
EMPTY_TRIES: Final = 200  # a leader that has just been elected may not know yet how far its log is committed
EMPTY_S: Final = 0.05
COPY_S: Final = 600.0  # a large store takes long to copy


class TrimmedError(BackupError):
    """The log begins later by now, at `log_start`: retention, or somebody, removed what was to be copied."""


async def read_batches(
    client: AsyncClient, shard_id: int, start: int, end: int
) -> AsyncGenerator[memoryview, None]:
    """The log's batches from `start` to `end`, as they are, in chunks; the next is asked for while the caller works.

    Both must be bounds of batches. Each batch is checked: its checksum, and that it follows the one before. Raises
    TrimmedError, CorruptBatchError.
    """
    at, empty = start, 0
    asked = asyncio.ensure_future(_fetch(client, shard_id, at)) if at < end else None
    try:
        while asked is not None:
            payload = await asked
            asked = None
            chunk, following = _up_to(shard_id, payload, at, end)
            empty = 0 if following > at else empty + 1
            if empty > EMPTY_TRIES:
                raise UnavailableError(f"shard {shard_id} gives nothing from {at} on, and was to reach {end}")
            if empty:
                await asyncio.sleep(EMPTY_S)
            at = following
            if at < end:
                asked = asyncio.ensure_future(_fetch(client, shard_id, at))
            if len(chunk):
                yield chunk
    finally:
        await end_tasks(asked)


async def log_start_of(client: AsyncClient, shard_id: int) -> tuple[int, int]:
    """Where a shard's log starts, a batch's first offset, and up to where it is committed."""
    reply, _ = await client.whole.ask_shard(shard_id, HoldShard(shard_id, NOBODY, 0))
    reply = reply_as(ShardHeld, reply, "where a log begins")
    return reply.log_start, reply.end


async def term_at(client: AsyncClient, shard_id: int, offset: int) -> int:
    """The term of the batch that holds an offset; -1 where there is none."""
    _, payload = await _stored(client, shard_id, offset, 1)
    return next((header.leader_epoch for header, _ in iter_batches(payload)), -1)


async def _fetch(client: AsyncClient, shard_id: int, at: int) -> memoryview:
    try:
        if shard_id == CLUSTER_SHARD_ID:
            reply, payload = await client.whole.ask_coordinator(
                Fetch(CLUSTER_SHARD_ID, at, FETCH_BYTES, isolation=ISOLATION)
            )
        else:
            reply, payload = await _stored(client, shard_id, at, FETCH_BYTES)
    except OffsetOutOfRangeError as error:
        start = error.details.get("start")
        if isinstance(start, int) and start > at:
            raise TrimmedError(
                f"the log of shard {shard_id} begins at {start} by now, offset {at} was to be copied",
                log_start=start,
            ) from error
        raise
    reply = reply_as(Fetched, reply, "for batches")
    return payload


async def _stored(client: AsyncClient, shard_id: int, at: int, max_bytes: int) -> tuple[Fetched, memoryview]:
    """Batches from the one that holds an offset, also where its first records were deleted, which no other reader is shown.

    It is asked for by its name only then: earlier versions know no such deletions.
    """
    try:
        return await client.fetch(shard_id, at, max_bytes=max_bytes, isolation=ISOLATION)
    except OffsetOutOfRangeError as error:
        begins, start = error.details.get("stored"), error.details.get("start")
        if not isinstance(begins, int) or not isinstance(start, int) or not begins <= at < start:
            raise
    return await client.fetch(shard_id, at, max_bytes=max_bytes, isolation=STORED)


def _up_to(shard_id: int, payload: memoryview, at: int, end: int) -> tuple[memoryview, int]:
    """The batches from `at` to before `end`, and where the next one begins.

    Compaction may have made one filler of several since these offsets were bounds of batches: then a part of it is taken.
    """
    parts: list[Buffer] = []
    first = size = 0
    for header, batch in iter_batches(payload):
        if at >= end:
            break
        is_within = header.base_offset == at and header.next_offset <= end
        if not is_within and is_filler(header) and header.base_offset <= at < header.next_offset:
            part = filler(at, min(end, header.next_offset), header.leader_epoch)
            parts += [payload[first:size], part]
            at, size = min(end, header.next_offset), size + len(batch)
            first = size
            continue
        if not is_within or crc32c(batch[UNCHECKED_BYTES:]) != header.crc:
            raise CorruptBatchError(
                f"shard {shard_id} was to go on at {at}, up to {end}, and gave a batch of {header.base_offset} to "
                f"{header.next_offset}, or one with a wrong checksum: `antiphon status` shows damaged replicas"
            )
        at, size = header.next_offset, size + len(batch)
    if not parts:
        return payload[:size], at
    return memoryview(b"".join([*parts, payload[first:size]])), at


async def copy_state(client: AsyncClient, shard_id: int) -> StateCopied:
    """Have the shard's leader copy the state that its log continues from."""
    reply, _ = await client.whole.ask_shard(shard_id, CopyState(shard_id), timeout_s=COPY_S)
    return reply_as(StateCopied, reply, "for a copy")


async def read_state_file(
    client: AsyncClient, shard_id: int, copied: StateCopied, number: int
) -> AsyncIterator[memoryview]:
    """A file of the copy, in pieces, checked as a whole at its end. Raises CorruptBatchError."""
    file, position, crc = copied.files[number], 0, 0
    while position < file.size_bytes:
        body = ReadState(shard_id, copied.copy_id, number, position)
        reply, piece = await client.whole.ask_shard(shard_id, body)
        if not isinstance(reply, Done) or not len(piece):
            raise ProtocolViolationError(f"file {file.name} of shard {shard_id} ends at {position} already")
        position, crc = position + len(piece), int(crc32c(piece, crc))
        yield piece
    _check_file(shard_id, file, position, crc)


def _check_file(shard_id: int, file: StateFile, size_bytes: int, crc: int) -> None:
    if (size_bytes, crc) != (file.size_bytes, file.crc):
        raise CorruptBatchError(
            f"file {file.name} of the copied state of shard {shard_id} is not what was announced"
        )


async def drop_state(client: AsyncClient, shard_id: int, copied: StateCopied) -> None:
    """The copy was read. Where that cannot be said it goes by itself."""
    work: Any = client.whole.ask_shard(shard_id, DropState(shard_id, copied.copy_id), timeout_s=2.0)
    await asyncio.gather(work, return_exceptions=True)
