"""Reading one shard of a topic, as the pieces that are wanted; what left the log comes from the archive."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, TypeVar

from antiphon.archive.reading import Pieces, archived_start, read_through
from antiphon.client.handles import Handle
from antiphon.client.log_reader import EARLIEST, LATEST, committed_end, fetch, list_offset, read_batches
from antiphon.client.on_unreadable import OnCorrupt, PassOver
from antiphon.errors import OffsetOutOfRangeError

P = TypeVar("P")


class Span(NamedTuple):
    """What to read, as `AsyncTopic.read` says it."""

    shard: int
    start: int
    end: int | None
    isolation: str = ""
    follow: bool = False


class TopicReads(Handle):
    """A topic, as readers see it. `unreadable_batches` counts those that reads have passed over (`on_corrupt`)."""

    unreadable_batches = 0

    async def _pieces(
        self,
        pieces: Callable[[PassOver], Pieces[P]],
        span: Span,
        on_corrupt: OnCorrupt,
        timeout_s: float | None,
    ) -> AsyncGenerator[P, None]:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        meta = await self._resolved()
        passing = PassOver(self._cluster, meta, span.shard, on_corrupt, self._passed_over, timeout_s)
        shard, end, isolation = span.shard, span.end, span.isolation
        shard_id = self._shard_id(meta, shard)
        start = await self._start_of(shard_id, span.start)
        if end is None and not span.follow:
            end = await self._end_of(shard_id, isolation, start, timeout_s)
        if span.start == EARLIEST:
            start = await archived_start(self._cluster, meta, shard, start, timeout_s)
        log = partial(read_batches, self._cluster, shard_id, isolation=isolation, timeout_s=timeout_s)
        found = read_through(
            self._cluster, log, meta, shard, start, end, pieces=pieces(passing), timeout_s=timeout_s
        )
        async with aclosing(found):
            async for piece in found:
                yield piece

    def _passed_over(self) -> None:
        self.unreadable_batches += 1

    async def _end_of(self, shard_id: int, isolation: str, start: int, timeout_s: float) -> int:
        if isolation != "uncommitted":
            latest = await list_offset(self._cluster, shard_id, LATEST, timeout_s)
            if not isolation:
                return max(latest.default_end, committed_end(latest))
            return committed_end(latest) if isolation == "committed" else latest.high_watermark
        try:
            reply, _ = await fetch(
                self._cluster, shard_id, start, isolation=isolation, max_bytes=1, timeout_s=timeout_s
            )
        except OffsetOutOfRangeError as error:
            log_start = int(error.details.get("start", -1))
            if not start < log_start:
                raise
            return await self._end_of(shard_id, isolation, log_start, timeout_s)  # `start` may be archived
        return reply.log_end
