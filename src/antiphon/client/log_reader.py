"""Reading a shard's log in order: whole batches, fetched ahead of what the caller has consumed by one request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from antiphon.client.cluster import Cluster
from antiphon.errors import InvalidRequestError
from antiphon.model.body import reply_as
from antiphon.model.requests import Fetch, Fetched, ListOffset, OffsetReply
from antiphon.records.aborted import without_aborted
from antiphon.records.batch import iter_batches

ISOLATIONS: Final = ("committed", "read_uncommitted", "uncommitted")
FETCH_BYTES: Final = 1024 * 1024
FOLLOW_WAIT_MS: Final = 500
LATEST: Final = -1
EARLIEST: Final = -2


async def list_offset(cluster: Cluster, shard_id: int, timestamp_ms: int, timeout_s: float) -> OffsetReply:
    """Offset by timestamp; LATEST: the end of what is committed, EARLIEST: the first that is still there."""
    reply, _ = await cluster.call_shard(shard_id, ListOffset(shard_id, timestamp_ms), timeout_s=timeout_s)
    return reply_as(OffsetReply, reply, "for an offset")


def committed_end(reply: OffsetReply) -> int:
    """Where reads of what is committed end now, transactions included."""
    return reply.stable_end if reply.stable_end >= 0 else reply.high_watermark


async def fetch(
    cluster: Cluster,
    shard_id: int,
    offset: int,
    *,
    isolation: str = "committed",
    wait_ms: int = 0,
    max_bytes: int = FETCH_BYTES,
    timeout_s: float = 30.0,
) -> tuple[Fetched, memoryview]:
    """Whole batches from the one that holds `offset`, as bytes; waits up to `wait_ms` for the first one."""
    reply, payload = await cluster.call_shard(
        shard_id, Fetch(shard_id, offset, max_bytes, wait_ms, isolation), timeout_s=timeout_s + wait_ms / 1000
    )
    reply = reply_as(Fetched, reply, "for batches")
    return reply, payload


async def read_batches(
    cluster: Cluster,
    shard_id: int,
    start: int,
    end: int | None,
    *,
    isolation: str = "committed",
    timeout_s: float = 30.0,
) -> AsyncIterator[memoryview]:
    """Chunks of whole batches from `start` up to `end` (exclusive), or for ever when that is None.

    The first and the last chunk may hold records outside the bounds. What aborted transactions wrote is left out. An empty
    isolation is the topic's default. The next chunk is asked for while the caller works on the one before.
    """
    if isolation not in {"", *ISOLATIONS}:
        raise InvalidRequestError(f"isolation is {', '.join(ISOLATIONS)}, not {isolation!r}")
    wait_ms = FOLLOW_WAIT_MS if end is None else 0

    def ask(offset: int) -> "asyncio.Task[tuple[Fetched, memoryview]]":
        return asyncio.create_task(
            fetch(cluster, shard_id, offset, isolation=isolation, wait_ms=wait_ms, timeout_s=timeout_s)
        )

    at = start
    asked: asyncio.Task[tuple[Fetched, memoryview]] | None = None
    try:
        while end is None or at < end:
            if asked is None:
                asked = ask(at)
            reply, payload = await asked
            asked = None
            for header, _ in iter_batches(payload):
                at = header.next_offset
            if len(payload):
                if end is None or at < end:
                    asked = ask(at)
                committed = without_aborted(payload, reply.aborted)
                if len(committed):
                    yield committed
            elif end is not None:
                await asyncio.sleep(
                    0.01
                )  # a leader that has not heard of everything that was committed before it
    finally:
        if asked is not None:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
