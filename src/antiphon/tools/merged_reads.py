"""Records of several shards as they come, for a program that blocks."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeAlias

from antiphon.client.merging import Merged
from antiphon.client.tasks import end_tasks
from antiphon.records.decode import Record

if TYPE_CHECKING:
    import antiphon

Pieces: TypeAlias = AsyncGenerator[Sequence[Record], None]
_Piece: TypeAlias = tuple[int, Sequence[Record]]


class NothingCameError(Exception):
    """No record of any shard came for as long as was to be waited. Errors of the client are TimeoutErrors, too."""


class MergedReads:
    """One reader per shard, asked in turn. Made and used on a client's loop."""

    def __init__(self, reads: Mapping[int, Pieces]) -> None:
        sources = [_with_shard(shard, pieces) for shard, pieces in reads.items()]
        self._pieces = Merged(sources, len(sources)).pieces()
        self._asked: asyncio.Future[_Piece | None] | None = None

    async def following(self, timeout_s: float | None) -> _Piece | None:
        """A shard and some of its records; None once all shards have ended.

        Raises NothingCameError when nothing comes for so long, and what a reader failed with.
        """
        asked = self._asked = asyncio.ensure_future(anext(self._pieces, None))
        done, _ = await asyncio.wait({asked}, timeout=timeout_s)
        if not done:
            raise NothingCameError
        return asked.result()

    async def close(self) -> None:
        """Stop reading, also where who asked was interrupted and never heard what came of it."""
        await end_tasks(self._asked)
        await self._pieces.aclose()


async def _with_shard(shard: int, pieces: Pieces) -> AsyncGenerator[_Piece, None]:
    async with aclosing(pieces):
        async for records in pieces:
            yield shard, records


def merged(
    db: "antiphon.Client", open_all: Callable[[], Mapping[int, Pieces]], timeout_s: float | None
) -> Generator[tuple[int, Record], None, None]:
    """(shard, record) of all readers. Raises NothingCameError when nothing comes for so long."""

    async def begin() -> MergedReads:
        return MergedReads(open_all())

    reads = db.run(begin())
    try:
        while (piece := db.run(reads.following(timeout_s))) is not None:
            for record in piece[1]:
                yield piece[0], record
    finally:
        db.run(reads.close())
