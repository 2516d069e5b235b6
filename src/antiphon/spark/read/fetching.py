"""Reads ranges of offsets from a shard's leader, one fetch ahead of whoever consumes them."""

import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from antiphon.client.blocking import Caller, ShardCall
from antiphon.errors import CorruptBatchError, OffsetOutOfRangeError, TimedOutError
from antiphon.model.requests import Fetch, Fetched
from antiphon.records.aborted import offsets_left_out, without_aborted
from antiphon.records.batch import HEADER_BYTES, LENGTH_PREFIX_BYTES, iter_batches, read_header

_START: Final = struct.Struct(">qi")  # of a batch: base offset, and the bytes that follow
WAIT_MS: Final = 500  # a leader that was just elected may not know yet how much is committed


class FetchPlan(NamedTuple):
    """What to read and how. `log_start_moves`: go on after records that retention removed instead of raising."""

    shard_id: int
    start: int
    end: int
    max_bytes: int
    isolation: str
    log_start_moves: bool


class _Chunk(NamedTuple):
    batches: list[memoryview]
    next_offset: int
    left_out: int = 0


def fetch_range(
    cluster: Caller, plan: FetchPlan, timeout_ms: int, left_out: Callable[[int], None] = lambda _count: None
) -> Iterator[list[memoryview]]:
    """Whole batches that hold the offsets [start, end), in order; the outermost may reach beyond them. Where only committed
    transactions are read, those of aborted ones are left out, and `left_out` is called with how many offsets they take.

    Each list is what one answer brought: a buffer of all its batches but the last one, and a buffer of that.
    While the consumer decodes one answer the next is on its way, in a thread of its own.

    Raises OffsetOutOfRangeError, TimedOutError and what `Cluster.call_all` raises.
    """
    offset = plan.start
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="antiphon-fetch") as ahead:
        waiting = ahead.submit(_fetch, cluster, plan, offset, timeout_ms)
        while True:
            chunk = waiting.result()
            offset = chunk.next_offset
            if chunk.left_out:
                left_out(chunk.left_out)
            if offset >= plan.end:
                if chunk.batches:
                    yield chunk.batches
                return
            waiting = ahead.submit(_fetch, cluster, plan, offset, timeout_ms)
            if chunk.batches:
                yield chunk.batches


def _fetch(cluster: Caller, plan: FetchPlan, offset: int, timeout_ms: int) -> _Chunk:
    """One answer that has something, from `offset` on."""
    deadline = time.monotonic() + timeout_ms / 1000
    request = Fetch(plan.shard_id, offset, plan.max_bytes, WAIT_MS, plan.isolation)
    while True:
        try:
            answer = cluster.call(ShardCall(plan.shard_id, request))
        except OffsetOutOfRangeError as error:
            log_start = int(error.details.get("start", -1))
            if plan.log_start_moves and log_start > offset:
                return _Chunk([], log_start)
            raise
        batches = _cut(answer.payload, plan.end)
        if batches:
            next_offset = read_header(batches[-1]).next_offset
            if next_offset <= offset:
                raise CorruptBatchError(f"asked from offset {offset} on, got batches up to {next_offset}")
            aborted = answer.body.aborted if plan.isolation == "committed" else ()
            if not aborted:
                return _Chunk(batches, next_offset)
            kept = [piece for batch in batches if (piece := without_aborted(batch, aborted))]
            gone = sum(offsets_left_out(batch, aborted, plan.start, plan.end) for batch in batches)
            return _Chunk(kept, next_offset, gone)
        if time.monotonic() >= deadline:
            reply: Fetched = answer.body
            raise TimedOutError(
                f"shard {plan.shard_id} gave nothing from offset {offset} for {timeout_ms / 1000:.0f} s; "
                f"its committed end is {reply.stable_end}"
            )


def _cut(payload: memoryview, end: int) -> list[memoryview]:
    """The batches that begin before offset `end`: all but the last one as one buffer, and the last one.

    Looks at no more of a batch than is needed to find the next one; who decodes the records checks the rest. Raises
    CorruptBatchError where no whole batch stands.
    """
    at = last = 0
    size = len(payload)
    while size - at >= HEADER_BYTES:
        base_offset, length = _START.unpack_from(payload, at)
        if base_offset >= end:
            return _pieces(payload, last, at)
        after = at + LENGTH_PREFIX_BYTES + length
        if not at + HEADER_BYTES <= after <= size:
            break
        last, at = at, after
    if at < size:
        next(iter_batches(payload[at:]))  # says what is wrong there
    return _pieces(payload, last, at)


def _pieces(payload: memoryview, last: int, end: int) -> list[memoryview]:
    return [piece for piece in (payload[:last], payload[last:end]) if piece]
