"""Records of several shards as they come, fairly: one piece of each shard in turn."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from typing import TypeAlias

import antiphon
from antiphon.records.decode import Record

Pieces: TypeAlias = AsyncGenerator[Sequence[Record], None]


class MergedReads:
    """One reader per shard, each of which waits until its last piece was taken. Made and used on a client's loop."""

    def __init__(self, reads: Mapping[int, Pieces]) -> None:
        self._ready: deque[tuple[int, Sequence[Record], asyncio.Event]] = deque()
        self._wake = asyncio.Event()
        self._error: Exception | None = None
        self._left = len(reads)
        self._tasks = [asyncio.create_task(self._read(shard, pieces)) for shard, pieces in reads.items()]

    async def following(self, timeout_s: float | None) -> tuple[int, Sequence[Record]] | None:
        """A shard and some of its records; None once all shards have ended.

        Raises TimeoutError when nothing comes for so long, and what a reader failed with.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error
            if not self._left:
                return None
            self._wake.clear()
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        shard, records, taken = self._ready.popleft()
        taken.set()
        return shard, records

    async def _read(self, shard: int, pieces: Pieces) -> None:
        try:
            async with aclosing(pieces):
                async for records in pieces:
                    taken = asyncio.Event()
                    self._ready.append((shard, records, taken))
                    self._wake.set()
                    await taken.wait()
        except Exception as error:  # noqa: BLE001 - raised where the records are taken
            self._error = self._error or error
        finally:
            self._left -= 1
            self._wake.set()

    async def close(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def merged(
    db: antiphon.Client, open_all: Callable[[], Mapping[int, Pieces]], timeout_s: float | None
) -> Generator[tuple[int, Record], None, None]:
    """(shard, record) of all readers, for a program that blocks. Raises TimeoutError when nothing comes for so long."""

    async def begin() -> MergedReads:
        return MergedReads(open_all())

    reads = db.run(begin())
    try:
        while (piece := db.run(reads.following(timeout_s))) is not None:
            for record in piece[1]:
                yield piece[0], record
    finally:
        db.run(reads.close())
