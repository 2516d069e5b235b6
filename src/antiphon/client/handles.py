"""Common parts of topics and tables: resolved by name on first use, updated when the metadata changes."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, Self, TypeVar

from antiphon.archive.reading import archived_offset_at
from antiphon.client.cluster import Cluster
from antiphon.client.log_reader import EARLIEST, LATEST, committed_end, list_offset
from antiphon.errors import InvalidRequestError, UnknownShardError, UnknownTopicError, WrongKindError
from antiphon.model.metadata import ABSENT_NODE, Kind, TopicMeta
from antiphon.records.display import html_table

PartT = TypeVar("PartT")
"""What a handle keeps per shard: a writer, a reader."""


class PerShard(Generic[PartT]):
    """One part per shard id, made when it is first needed."""

    def __init__(self, make: Callable[[int], PartT]) -> None:
        self._make = make
        self.parts: dict[int, PartT] = {}

    def __getitem__(self, shard_id: int) -> PartT:
        part = self.parts.get(shard_id)
        if part is None:
            part = self.parts[shard_id] = self._make(shard_id)
        return part


class Handle:
    """Base of `AsyncTopic` and `AsyncTable`. Awaiting it checks that the topic or table exists, and returns it."""

    kind: Kind | None = None

    def __init__(self, cluster: Cluster, name: str, timeout_s: float) -> None:
        self.name = name
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._meta: TopicMeta | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self._checked().__await__()

    def belongs_to(self, cluster: Cluster) -> bool:
        """Is it a handle of the client that has this view of its cluster?"""
        return self._cluster is cluster

    async def _checked(self) -> Self:
        await self._resolved()
        return self

    def described(self, face: str) -> str:
        """One line for people, of what is known without asking."""
        values = getattr(self, "values", None)
        of = "" if values is None else f" of {values.type_name}"
        meta = self._cluster.topics.get(self.name)
        shards = "" if meta is None else f", {len(meta.shards)} shard{'s' * (len(meta.shards) != 1)}"
        return f"<{face} {self.name!r}{of}{shards}>"

    def __repr__(self) -> str:
        return self.described(f"antiphon.aio.{type(self).__name__}")

    def _repr_html_(self) -> str:
        """The shards as the client knows them now: nothing is asked for, so that showing it never waits."""
        meta = self._cluster.topics.get(self.name)
        if meta is None:
            return html_table([{"not known yet": self.name}])
        leaders = [None if shard.leader == ABSENT_NODE else shard.leader for shard in meta.shards]
        rows = [
            {"shard": shard.index, "leader": leader, "replicas": list(shard.ensemble)}
            for shard, leader in zip(meta.shards, leaders, strict=True)
        ]
        return html_table(rows, f"{meta.kind} {self.name}, profile {meta.profile}")

    def _known(self) -> TopicMeta | None:
        """The metadata if it is known without asking."""
        meta = self._cluster.topics.get(self.name)
        if meta is not self._meta:
            if meta is not None:
                self._check_kind(meta)
            self._meta = meta
        return meta

    async def _resolved(self) -> TopicMeta:
        """The metadata; asks when the name is not known. Raises UnknownTopicError, WrongKindError."""
        meta = self._known()
        if meta is None:
            await self._cluster.refresh()
            meta = self._known()
        if meta is None:
            what = "table" if self.kind is Kind.TABLE else "topic"
            raise UnknownTopicError(f"there is no {what} {self.name!r}; create it first", name=self.name)
        return meta

    def _check_kind(self, meta: TopicMeta) -> None:
        if self.kind is not None and meta.kind != self.kind:
            found = str(meta.kind)
            raise WrongKindError(f"{self.name!r} is a {found}: open it with .{found}()", name=self.name)

    def _shard_id(self, meta: TopicMeta, shard: int) -> int:
        if isinstance(shard, bool) or not hasattr(shard, "__index__"):
            raise InvalidRequestError(f"shard is a whole number, not {shard!r}")
        if not 0 <= shard < len(meta.shards):
            raise UnknownShardError(
                f"{self.name!r} has shards 0..{len(meta.shards) - 1}, not {shard}",
                name=self.name,
                shard=shard,
            )
        return meta.shards[shard].shard_id

    @property
    def shards(self) -> int:
        """Number of shards; raises InvalidRequestError before the handle was awaited or used."""
        meta = self._known()
        if meta is None:
            raise InvalidRequestError(
                f"await the handle of {self.name!r} first: its shards are not known yet"
            )
        return len(meta.shards)

    async def offsets(self, shard: int = 0) -> tuple[int, int]:
        """(first offset that is still there, end of what is committed) of a shard's log; the end is exclusive."""
        meta = await self._resolved()
        found = await list_offset(self._cluster, self._shard_id(meta, shard), LATEST, self._timeout_s)
        return found.log_start, committed_end(found)

    async def offset_at(self, timestamp_ms: int, shard: int = 0) -> int:
        """First offset whose timestamp is at least `timestamp_ms` (ms since 1970); the end where none is that late."""
        if timestamp_ms < 0:
            raise InvalidRequestError(f"a timestamp is ms since 1970, not {timestamp_ms}")
        meta = await self._resolved()
        found = await list_offset(self._cluster, self._shard_id(meta, shard), timestamp_ms, self._timeout_s)
        archived = await archived_offset_at(
            self._cluster, meta, shard, found.log_start, timestamp_ms, self._timeout_s
        )
        if archived is not None:
            return archived
        return found.offset if found.offset >= 0 else committed_end(found)

    async def _start_of(self, shard_id: int, start: int) -> int:
        """A start as callers give it: an offset, -1 for the end, -2 for the beginning."""
        if start in {LATEST, EARLIEST}:
            found = await list_offset(self._cluster, shard_id, start, self._timeout_s)
            return committed_end(found) if start == LATEST else found.log_start
        if start < EARLIEST:
            raise InvalidRequestError(
                f"start is an offset, -1 (from now on) or -2 (all that is there), not {start}"
            )
        return start

    def _deadline(self, timeout_s: float | None) -> float:
        return self._loop.time() + (self._timeout_s if timeout_s is None else timeout_s)
