"""Follows a table's changes.

When a shard is split, its log says so: the released keys continue in the log of another shard, from the offset that the
entry names. A watch of the whole table follows them, so each change is delivered once, and changes of a key in order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, Self

from antiphon.client.closing import StartsAndCloses
from antiphon.client.cluster import Cluster
from antiphon.client.log_reader import read_batches
from antiphon.client.tasks import end_tasks
from antiphon.client.values import Values
from antiphon.errors import (
    AntiphonError,
    BadRecordError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownShardError,
)
from antiphon.model.metadata import KeyRanges, ShardMeta, TopicMeta
from antiphon.model.requests import TableScan
from antiphon.model.rows import Version
from antiphon.records.batch import iter_batches
from antiphon.records.changes import Change as LoggedChange
from antiphon.records.changes import ChangeKind, decode_changes
from antiphon.records.display import html_table, line
from antiphon.records.split_entries import Release, split_entry_of
from antiphon.records.value_type import ValueT, ValueT_co

QUEUE_CHUNKS_MAX: Final = 4  # per shard, about 1 MiB each
START_TIMEOUT_S: Final = 30.0
INDEX_PAUSE_S: Final = 0.02


class Change(NamedTuple, Generic[ValueT_co]):
    """A key was created, modified or deleted. `value` is the new one, None when deleted.

    `version` is the new row's, or that of the removed row. `shard` and `offset` are its position in the table's log;
    `timestamp_ms` (ms since 1970) is when the leader received the request. `session_id`: the session that the row belongs
    to, or whose end removed it.
    """

    key: bytes
    value: ValueT_co | None
    version: Version
    kind: ChangeKind
    shard: int
    offset: int
    timestamp_ms: int
    session_id: int | None = None

    def display(self) -> dict[str, Any]:
        """Its fields, as people see them: of the version its id."""
        return self._asdict() | {"version": self.version.id, "kind": str(self.kind)}

    def __repr__(self) -> str:
        return line("Change", self.display())

    def _repr_html_(self) -> str:
        return html_table([self.display()])


class Watch(StartsAndCloses, Generic[ValueT]):
    """An asynchronous iterator of `Change`; also an async context manager. Close it when it is no longer followed."""

    def __init__(
        self,
        cluster: Cluster,
        resolve: Callable[[], Awaitable[TopicMeta]],
        start_of: Callable[[int, int], Awaitable[int]],
        start: int | Sequence[int],
        shard: int | None,
        values: Values[ValueT] | None = None,
    ) -> None:
        self._cluster = cluster
        self._values = values
        self._resolve = resolve
        self._start_of = start_of
        self._start = start
        self._shard = shard
        self._tasks: list[asyncio.Task[None]] = []
        self._followed: set[int] = set()
        self._ready: deque[tuple[list[Change[ValueT]], asyncio.Semaphore]] = deque()
        self._current: deque[Change[ValueT]] = deque()
        self._wake = asyncio.Event()
        self._error: AntiphonError | None = None
        self._started = False
        self._closed = False

    async def start(self) -> None:
        """Fix the offsets from which changes are delivered."""
        if self._started:
            return
        self._started = True

        async def attempt() -> None:
            await self._begin_all(await self._resolve())

        await self._cluster.across_splits(attempt, self._cluster.tries(START_TIMEOUT_S))

    async def _begin_all(self, meta: TopicMeta) -> None:
        if self._shard is not None and not 0 <= self._shard < len(meta.shards):
            raise UnknownShardError(
                f"{meta.name!r} has shards 0..{len(meta.shards) - 1}, not {self._shard}",
                name=meta.name,
                shard=self._shard,
            )
        shards = meta.shards if self._shard is None else (meta.shards[self._shard],)
        starts = [self._start] * len(shards) if isinstance(self._start, int) else list(self._start)
        if len(starts) != len(shards):
            raise InvalidRequestError(f"{len(starts)} start offsets for {len(shards)} shards")
        offsets = await asyncio.gather(
            *(self._start_of(shard.shard_id, at) for shard, at in zip(shards, starts, strict=True))
        )
        if self._shard is None:
            await asyncio.gather(*(self._check_whole(meta, shard) for shard in shards))
        for shard, at in zip(shards, offsets, strict=True):
            # What stands before is in the log of the shard that it was split off, too.
            self._begin(shard.shard_id, at if self._shard is not None else max(at, shard.own_start))

    async def _check_whole(self, meta: TopicMeta, shard: ShardMeta) -> None:
        """Raise WrongShardError if the shard has released keys already: the entry that says so may lie before the start."""
        ranges = KeyRanges(meta.shards)
        hashes = ranges.range_of(shard) if ranges.is_split else ()
        question = TableScan(shard.shard_id, b"", b"", 1, include_value=False, hashes=hashes)
        await self._cluster.call_shard(shard.shard_id, question, timeout_s=START_TIMEOUT_S)

    def _begin(self, shard_id: int, at: int) -> None:
        if shard_id not in self._followed:
            self._followed.add(shard_id)
            self._tasks.append(asyncio.create_task(self._follow(shard_id, at)))

    async def _index_of(self, shard_id: int) -> int:
        """The shard's place in its table; one that was just split off may not be known yet."""
        while True:
            for shard in (await self._resolve()).shards:
                if shard.shard_id == shard_id:
                    return shard.index
            await asyncio.sleep(INDEX_PAUSE_S)
            await self._cluster.refresh()

    def _follow_released(self, chunk: memoryview, start: int) -> None:
        for header, batch in iter_batches(chunk):
            if header.is_control and header.base_offset >= start:
                entry = split_entry_of(batch)
                if isinstance(entry, Release):
                    self._begin(entry.child, entry.start)

    async def _follow(self, shard_id: int, start: int) -> None:
        try:
            index = await self._index_of(shard_id)
            await self._follow_log(shard_id, index, start)
        except AntiphonError as error:
            self._error = self._error or error
            self._wake.set()

    async def _follow_log(self, shard_id: int, index: int, start: int) -> None:
        room = asyncio.Semaphore(QUEUE_CHUNKS_MAX)
        try:
            async for chunk in read_batches(self._cluster, shard_id, start, None):
                changes, bad = self._changes(index, decode_changes([chunk], start))
                if changes:
                    await room.acquire()
                    self._ready.append((changes, room))
                    self._wake.set()
                if bad is not None:
                    raise bad
                if self._shard is None:
                    self._follow_released(chunk, start)
        except OffsetOutOfRangeError as error:
            error.details["shard"] = index  # who watches several would not know where to go on
            raise

    def _changes(
        self, shard: int, found: Iterable[LoggedChange]
    ) -> tuple[list[Change[ValueT]], BadRecordError | None]:
        """Changes of a shard as they are delivered; those before the first whose value cannot be decoded, and the error."""
        changes: list[Change[ValueT]] = []
        values = self._values
        for c in found:
            value: Any = c.value
            if values is not None and value is not None:
                try:
                    value = values.decode(c.key, value, shard=shard, offset=c.offset)
                except BadRecordError as error:
                    return changes, error
            changes.append(
                Change(c.key, value, Version(*c[4:8]), c.kind, shard, c.offset, c.timestamp_ms, c.session_id)
            )
        return changes, None

    async def next_chunk(self) -> list[Change[ValueT]]:
        """The changes that are there, at least one; waits for it. An empty list once the watch is closed."""
        await self.start()
        if self._current:
            changes = list(self._current)
            self._current.clear()
            return changes
        while not self._ready:
            if self._closed:
                return []
            if self._error is not None:
                raise self._error
            self._wake.clear()
            await self._wake.wait()
        chunk, room = self._ready.popleft()
        room.release()
        return chunk

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change[ValueT]:
        if not self._current:
            chunk = await self.next_chunk()
            if not chunk:
                raise StopAsyncIteration
            self._current.extend(chunk)
        return self._current.popleft()

    async def close(self) -> None:
        """Stop following; iteration ends. A second close does nothing."""
        self._closed = self._started = True
        self._wake.set()
        tasks, self._tasks = self._tasks, []
        await end_tasks(*tasks)
