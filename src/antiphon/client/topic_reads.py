"""Reading a topic, as the pieces that are wanted: one shard or all; what left the log comes from the archive."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Final, NamedTuple, TypeVar

from antiphon.archive.reading import Pieces, archived_start, read_through
from antiphon.client.handles import Handle
from antiphon.client.log_reader import (
    EARLIEST,
    FETCH_BYTES,
    LATEST,
    committed_end,
    fetch,
    list_offset,
    read_batches,
)
from antiphon.client.merging import Merged
from antiphon.client.on_unreadable import OnCorrupt, PassOver
from antiphon.client.tasks import end_tasks
from antiphon.errors import AntiphonError, InvalidRequestError, OffsetOutOfRangeError, UnknownShardError
from antiphon.model.metadata import TopicMeta

P = TypeVar("P")

SHARDS_AT_ONCE: Final = 32  # that a read which ends fetches from at the same time
BYTES_AT_ONCE: Final = 8 * 1024 * 1024  # that a read of all shards asks for at the same time
FETCH_BYTES_MIN: Final = 64 * 1024
LOOK_S: Final = 5.0  # how often a follow of a whole topic looks for shards that were added

Where = int | Mapping[int, int] | None
"""An offset in the one shard that is read, or offsets by shard. None: the first that is there, or the end."""


class Span(NamedTuple):
    """What to read of a shard. `end` of None: to the end, or for ever where it is followed.

    `first`: where records of its own begin, among those that are there.
    """

    shard: int
    start: int
    end: int | None
    isolation: str = ""
    follow: bool = False
    fetch_bytes: int = FETCH_BYTES
    first: int = 0


class Wanted(NamedTuple):
    """What to read of a topic, as `AsyncTopic.read` says it. `shard` of None: of all."""

    shard: int | None
    start: Where
    end: Where
    isolation: str = ""
    follow: bool = False

    def spans(self, topic: TopicMeta) -> list[Span]:
        """The same by shard. Raises InvalidRequestError, UnknownShardError."""
        shards = range(len(topic.shards)) if self.shard is None else (self.shard,)
        many = self.shard is None and len(topic.shards) > 1
        place = isinstance(self.start, int) and self.start in {LATEST, EARLIEST}
        starts = _by_shard(topic, "start", self.start, several=many and not place)
        ends = _by_shard(topic, "end", self.end, several=many)
        at_once = len(shards) if self.follow else min(len(shards), SHARDS_AT_ONCE)
        size = max(FETCH_BYTES_MIN, min(FETCH_BYTES, BYTES_AT_ONCE // at_once)) if shards else FETCH_BYTES
        spans: list[Span] = []
        for index in shards:
            start = starts.get(index, EARLIEST)
            # A table's shard that was split off begins with a copy of what the other one has.
            first = topic.shards[index].own_start if self.shard is None else 0
            spans.append(Span(index, start, ends.get(index), self.isolation, self.follow, size, first))
        return spans


def _by_shard(topic: TopicMeta, name: str, given: Where, *, several: bool) -> Mapping[int, int]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        if several:
            raise InvalidRequestError(
                f"{topic.name!r} has {len(topic.shards)} shards, each with offsets of its own: give shard=, or an offset by "
                f"shard, such as {name}={{0: {given}, 1: {given}}}"
            )
        return dict.fromkeys(range(len(topic.shards)), _offset(name, given))
    for index in given:
        if index not in range(len(topic.shards)):
            raise UnknownShardError(
                f"{name}: {topic.name!r} has shards 0..{len(topic.shards) - 1}, not {index!r}",
                name=topic.name,
            )
    return {index: _offset(name, offset) for index, offset in given.items()}


def _offset(name: str, given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise InvalidRequestError(f"{name} is an offset, or a mapping from shard to offset, not {given!r}")
    return given


class TopicReads(Handle):
    """A topic, as readers see it. `unreadable_batches` counts those that reads have passed over (`on_corrupt`)."""

    unreadable_batches = 0

    async def _pieces(
        self,
        pieces: Callable[[PassOver], Pieces[P]],
        wanted: Wanted,
        on_corrupt: OnCorrupt,
        timeout_s: float | None,
    ) -> AsyncGenerator[P, None]:
        """Of each shard in the order of its log; of several as they come."""
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        meta = await self._resolved()

        def of_shard(meta: TopicMeta, shard: int) -> Pieces[P]:
            return pieces(PassOver(self._cluster, meta, shard, on_corrupt, self._passed_over, limit_s))

        spans = wanted.spans(meta)
        if wanted.shard is not None or (len(spans) == 1 and not wanted.follow):
            found = self._of_shard(of_shard, await self._bounded(meta, spans[0], limit_s), limit_s)
        else:
            found = self._of_all(of_shard, meta, spans, limit_s)
        async with aclosing(found):
            async for piece in found:
                yield piece

    def _passed_over(self) -> None:
        self.unreadable_batches += 1

    async def _of_all(
        self,
        pieces: Callable[[TopicMeta, int], Pieces[P]],
        meta: TopicMeta,
        spans: list[Span],
        timeout_s: float,
    ) -> AsyncGenerator[P, None]:
        """One or more shards. What is followed may get more of them."""
        bounded: list[Span] = []
        for at in range(0, len(spans), SHARDS_AT_ONCE):
            some = spans[at : at + SHARDS_AT_ONCE]
            bounded += await asyncio.gather(*(self._bounded(meta, span, timeout_s) for span in some))
        follow = spans[0].follow
        sources = [self._of_shard(pieces, span, timeout_s) for span in bounded]
        merged = Merged(sources, len(sources) if follow else SHARDS_AT_ONCE)
        looking: asyncio.Task[None] | None = None
        if any(span.end is None for span in bounded):
            looking = asyncio.create_task(self._take_up_new(pieces, meta, merged, spans[0], timeout_s))
        try:
            async with aclosing(merged.pieces()) as found:
                async for piece in found:
                    yield piece
        finally:
            await end_tasks(looking)

    async def _take_up_new(
        self,
        pieces: Callable[[TopicMeta, int], Pieces[P]],
        meta: TopicMeta,
        merged: Merged[P],
        like: Span,
        timeout_s: float,
    ) -> None:
        """Follow shards that are added to the topic, from their beginnings: they are younger than the read."""
        known = len(meta.shards)
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self._cluster.refresh()
            except AntiphonError:
                continue  # whoever reads hears of it
            now = self._cluster.topics.get(self.name)
            if now is None or now.topic_id != meta.topic_id:
                continue
            for index in range(known, len(now.shards)):
                first = now.shards[index].own_start
                span = like._replace(shard=index, start=EARLIEST, end=None, first=first)
                merged.add(self._of_shard(pieces, span, timeout_s))
            known = max(known, len(now.shards))

    async def _bounded(self, meta: TopicMeta, span: Span, timeout_s: float) -> Span:
        """With the end as it is now, where the read is to end there."""
        if span.end is not None or span.follow:
            return span
        shard_id = self._shard_id(meta, span.shard)
        return span._replace(end=await self._end_of(shard_id, span.isolation, span.start, timeout_s))

    async def _of_shard(
        self, pieces: Callable[[TopicMeta, int], Pieces[P]], span: Span, timeout_s: float
    ) -> AsyncGenerator[P, None]:
        meta = await self._resolved()
        shard, shard_id = span.shard, self._shard_id(meta, span.shard)
        log = partial(
            read_batches,
            self._cluster,
            shard_id,
            isolation=span.isolation,
            timeout_s=timeout_s,
            patient=span.follow,
            fetch_bytes=span.fetch_bytes,
        )
        given = False
        while True:
            start = await self._start_of(shard_id, span.start)
            if span.start == EARLIEST:
                start = max(span.first, await archived_start(self._cluster, meta, shard, start, timeout_s))
            found = read_through(
                self._cluster,
                log,
                meta,
                shard,
                start,
                span.end,
                pieces=pieces(meta, shard),
                timeout_s=timeout_s,
            )
            try:
                async with aclosing(found):
                    async for piece in found:
                        given = True
                        yield piece
                return
            except OffsetOutOfRangeError as error:
                # Trimmed between the question where the log begins and the first fetch: ask again.
                moved = int(error.details.get("start", -1)) > start
                if given or span.start != EARLIEST or not moved:
                    raise

    async def _end_of(self, shard_id: int, isolation: str, start: int, timeout_s: float) -> int:
        latest = await list_offset(self._cluster, shard_id, LATEST, timeout_s)
        if isolation != "uncommitted":
            if not isolation:
                return max(latest.default_end, committed_end(latest))
            return committed_end(latest) if isolation == "committed" else latest.high_watermark
        start = {LATEST: committed_end(latest), EARLIEST: latest.log_start}.get(start, start)
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
