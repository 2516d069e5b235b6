"""Replicas whose opening takes long are recovered in a thread, so that the node serves its other shards meanwhile.

Most replicas are opened from their newest snapshot, in milliseconds. Of one that is damaged the whole log is read, and a
table whose store is gone is made anew from the whole log. Those are recovered here, one at a time, in the order in which
they came. The metadata may change meanwhile: whoever is told that a replica is recovered decides what becomes of it.
"""

import asyncio
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from antiphon.log.layout import DAMAGE_NAME
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.partition.table_files import is_noted_damaged, store_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.log.directory import NodeDirectory
    from antiphon.log.disk import Disk
    from antiphon.node.context import NodeContext
    from antiphon.node.partition_opener import Recovered


class LongOpenings:
    """See the module's text; of one node, on its event loop.

    Args:
        node: the node.
        disk: where its files are.
        directory: of the node.
        plan: what recovers a replica in a thread, as of now; None for one that is not to be opened here.
        recovered: is told how it ended: the shard, and what was found in its files, or the error.
    """

    def __init__(
        self,
        node: "NodeContext",
        disk: "Disk",
        directory: "NodeDirectory",
        plan: "Callable[[int], Callable[[], Recovered] | None]",
        recovered: "Callable[[int, Recovered | Exception], None]",
    ) -> None:
        self._node = node
        self._disk = disk
        self._directory = directory
        self._tables = os.path.join(node.config.dir, "tables")
        self._plan = plan
        self._recovered = recovered
        self._again: set[int] = set()
        self._waiting: deque[int] = deque()
        self._shard_id: int | None = None  # is being recovered
        self._work: asyncio.Future[Recovered] | None = None

    def expect(self, shard_id: int) -> None:
        """This one stopped, or could not be opened, while the node ran: its next opening may take long."""
        self._again.add(shard_id)

    def takes(self, topic: TopicMeta, shard_id: int) -> bool:
        """May the opening of this replica, whose turn it is, take long? Then it is opened here."""
        exists, log = self._disk.exists, self._directory.shard_path(shard_id)
        store = store_path(self._tables, shard_id)
        is_long = shard_id in self._again or exists(os.path.join(log, DAMAGE_NAME))
        if topic.kind is Kind.TABLE and not is_long:
            is_long = is_noted_damaged(self._disk, store) or (exists(log) and not exists(store))
        if is_long:
            self.open(shard_id)
        return is_long

    def open(self, shard_id: int) -> None:
        """Open this one here, when its turn comes."""
        self._again.discard(shard_id)
        self._waiting.append(shard_id)
        self._begin()

    def has(self, shard_id: int) -> bool:
        """Does this replica wait to be recovered, or is it?"""
        return shard_id == self._shard_id or shard_id in self._waiting

    @property
    def is_busy(self) -> bool:
        """Is any replica on its way?"""
        return self._shard_id is not None or bool(self._waiting)

    async def ended(self) -> None:
        """For the end of the node: wait until no thread is at a replica's files any more."""
        self._waiting.clear()
        if self._work is not None:
            await asyncio.wait([self._work])

    def _begin(self) -> None:
        while self._work is None and self._waiting and not self._node.stopping:
            shard_id = self._waiting.popleft()
            recover = self._plan(shard_id)
            if recover is None:
                continue
            self._shard_id = shard_id
            self._work = self._node.loop.run_in_executor(None, recover)
            self._work.add_done_callback(partial(self._ended, shard_id))

    def _ended(self, shard_id: int, done: "asyncio.Future[Recovered]") -> None:
        self._shard_id = self._work = None
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, Exception) or error is None:
            self._recovered(shard_id, error or done.result())
        self._begin()
