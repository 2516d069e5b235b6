"""Reading a shard's log in order: whole batches, fetched ahead of what the caller has consumed by one request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from antiphon.client.cluster import Cluster
from antiphon.client.tasks import end_tasks
from antiphon.errors import InvalidRequestError, TimedOutError
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


class _Waits:
    """How long a reader waits at the end of a log, in all and at the node. `patient`: as long as it takes."""

    def __init__(self, end: int | None, timeout_s: float, *, patient: bool) -> None:
        self._end = end
        self._timeout_s = timeout_s
        self._patient = patient
        self._until: float | None = None
        self.wait_ms = FOLLOW_WAIT_MS if end is None else 0

    def came(self) -> None:
        """Something did: the time for more begins anew, and as long as more is there nobody waits."""
        if self._end is not None:
            self._until, self.wait_ms = None, 0

    async def wait(self, at: int, cluster: Cluster, shard_id: int) -> None:
        """Nothing did: the end is not there yet, or the leader has not heard of all that was committed before it.

        Raises TimedOutError when that has lasted too long.
        """
        if self._end is None:
            return
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._timeout_s
        left_s = FOLLOW_WAIT_MS / 1000 if self._patient else self._until - now
        if left_s <= 0:
            raise TimedOutError(
                f"{_named(cluster, shard_id)} ends at offset {at}, the read is to end before {self._end}, and nothing was "
                f"appended within {self._timeout_s:.1f} s: without `end` a read stops at what is there"
            )
        self.wait_ms = min(FOLLOW_WAIT_MS, int(left_s * 1000))
        await asyncio.sleep(min(0.01, left_s))  # also where a node does not wait


async def read_batches(
    cluster: Cluster,
    shard_id: int,
    start: int,
    end: int | None,
    *,
    isolation: str = "committed",
    timeout_s: float = 30.0,
    patient: bool = False,
    fetch_bytes: int = FETCH_BYTES,
) -> AsyncIterator[memoryview]:
    """Chunks of whole batches from `start` up to `end` (exclusive), or for ever when that is None.

    Where the log ends before `end`, this waits for more: for `timeout_s` without any, then it raises TimedOutError; for ever
    if it is `patient`. The first and the last chunk may hold records outside the bounds. What aborted transactions wrote is
    left out. An empty isolation is the topic's default. The next chunk is asked for while the caller works on the last one.
    """
    if isolation not in {"", *ISOLATIONS}:
        raise InvalidRequestError(f"isolation is {', '.join(ISOLATIONS)}, not {isolation!r}")
    waits = _Waits(end, timeout_s, patient=patient)

    def ask(offset: int) -> "asyncio.Task[tuple[Fetched, memoryview]]":
        return asyncio.create_task(
            fetch(
                cluster,
                shard_id,
                offset,
                isolation=isolation,
                wait_ms=waits.wait_ms,
                max_bytes=fetch_bytes,
                timeout_s=timeout_s,
            )
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
                waits.came()
                if end is None or at < end:
                    asked = ask(at)
                committed = without_aborted(payload, reply.aborted)
                if len(committed):
                    yield committed
            else:
                await waits.wait(at, cluster, shard_id)
    finally:
        await end_tasks(asked)


def _named(cluster: Cluster, shard_id: int) -> str:
    for topic in cluster.topics.values():
        for shard in topic.shards:
            if shard.shard_id == shard_id:
                return f"shard {shard.index} of {topic.name!r}"
    return f"shard {shard_id}"
