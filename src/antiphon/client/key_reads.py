"""Reads of single keys of a table: one reader per shard and consistency, and keys that moved to another shard."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from antiphon.client.cluster import Cluster
from antiphon.client.handles import PerShard
from antiphon.client.pipeline import Item, fail_items
from antiphon.client.table_reader import TableReader
from antiphon.client.tasks import begin_task
from antiphon.errors import AntiphonError, InvalidRequestError, TimedOutError, WrongShardError
from antiphon.model.metadata import KeyRanges

if TYPE_CHECKING:
    from antiphon.model.rows import Row

CONSISTENCIES: Final = ("linearizable", "leader", "local")


class KeyReads:
    """Sends each key to the shard that holds it, and to the next one if the shard was split meanwhile."""

    def __init__(
        self,
        cluster: Cluster,
        ranges: Callable[[], KeyRanges],
        tasks: set[asyncio.Task[None]],
    ) -> None:
        """`ranges` gives what the shards hold by the newest metadata; `tasks` are those that the table ends."""
        self._cluster = cluster
        self._ranges = ranges
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._readers: dict[str, PerShard[TableReader]] = {
            consistency: PerShard(partial(self._reader, consistency)) for consistency in CONSISTENCIES
        }

    def ask(
        self, key: bytes, ranges: KeyRanges, consistency: str, deadline: float
    ) -> "asyncio.Future[Row | None]":
        """The row of a key, or None. Raises InvalidRequestError for an unknown consistency."""
        readers = self._readers.get(consistency)
        if readers is None:
            raise InvalidRequestError(
                f"consistency is one of {', '.join(CONSISTENCIES)}, not {consistency!r}"
            )
        future: asyncio.Future[Row | None] = self._loop.create_future()
        readers[ranges.shard_of(key).shard_id].add(Item(key, len(key), deadline, future))
        return future

    async def close(self) -> None:
        """Stop asking; what is open fails."""
        for readers in self._readers.values():
            for reader in list(readers.parts.values()):
                await reader.close()

    def _reader(self, consistency: str, shard_id: int) -> TableReader:
        def moved(items: list[Item], shard_id: int) -> None:
            begin_task(self._ask_elsewhere(items, consistency, shard_id), self._tasks)

        return TableReader(self._cluster, shard_id, consistency, moved)

    async def _ask_elsewhere(self, items: list[Item], consistency: str, shard_id: int) -> None:
        """Ask for keys again that a shard does not hold any more, as soon as it is known which one does."""
        tries = self._cluster.tries_until(max(item.deadline for item in items))
        try:
            while True:
                ranges = self._ranges()
                places = [ranges.shard_of(item.what).shard_id for item in items]
                if any(place != shard_id for place in places):
                    break
                await self._cluster.learn(WrongShardError(f"shard {shard_id} was split"), tries)
        except (AntiphonError, asyncio.CancelledError) as error:
            gone = error if isinstance(error, AntiphonError) else TimedOutError("the client was closed")
            fail_items(items, gone)
            return
        for item, place in zip(items, places, strict=True):
            if not item.future.done():
                self._readers[consistency][place].add(item)
