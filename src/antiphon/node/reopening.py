"""Opens replicas anew that stopped for what may pass or can be mended, while the node runs.

One that found no room on the disk or no file descriptor is opened again every few seconds, from what is in its files.

For one that stopped because a read found its log damaged it goes as at a start: the damaged part is left out, the replica
follows as damaged and gets from its leader what it lost. A leader does not expect a follower to have less than it
acknowledged in this term, so where a coordinator appoints leaders it is asked for a new term; replicas that vote ask for one
themselves. One whose table's store was found damaged is opened again too: the log makes the store anew, or, where the log
was trimmed, `mending` sees to it. With the replica of `__cluster` goes the coordinator that rests on it; another voter leads
meanwhile.
"""

from typing import TYPE_CHECKING, Final, Protocol

import structlog

from antiphon.errors import (
    AntiphonError,
    DamagedLogError,
    DamagedStoreError,
    ResourceExhaustedError,
    TimedOutError,
    UnavailableError,
)
from antiphon.model.requests import ElectLeader
from antiphon.node.context import NodeContext

if TYPE_CHECKING:
    import asyncio

    from antiphon.node.agent import ClusterAgent
    from antiphon.partition.partition import Partition

REOPEN_EVERY_S: Final = 60.0  # a disk that damages files again and again is not given more work than that
RETRY_EVERY_S: Final = 5.0  # where room or descriptors were missing
MEND_TIMEOUT_S: Final = 30.0


class MendingNode(NodeContext, Protocol):
    """What it takes to ask for a new term."""

    agent: "ClusterAgent"


class Reopened(Protocol):
    """Who opens replicas.

    Attributes:
        broken: shards whose replica cannot be opened, and why.
    """

    broken: dict[int, AntiphonError]

    def reopen(self, shard_id: int, host: "Partition") -> None:
        """Close a replica that stopped and open it again."""

    def open_again(self, shard_id: int) -> None:
        """Try again to open a replica that could not be opened."""


class Reopening:
    """See the module's text."""

    def __init__(self, node: "MendingNode", shards: Reopened) -> None:
        self._node = node
        self._shards = shards
        self._not_before_s: dict[int, float] = {}
        self._to_mend: set[int] = set()
        self._mending: asyncio.Task[None] | None = None
        self._log = structlog.get_logger()

    def look(self) -> list[int]:
        """Open replicas anew, now and then; returns shards that need a new term, for what was lost or to be led again."""
        shards = self._shards
        for shard_id in sorted(self._node.suspects):
            host = self._node.hosts.get(shard_id)
            if host is not None and self._is_time(shard_id, host.state.failed):
                host.state.lines.warning("reopening_replica", reason=str(host.state.failed))
                shards.reopen(shard_id, host)
        for shard_id, error in list(shards.broken.items()):
            if isinstance(error, ResourceExhaustedError) and self._is_time(shard_id, error):
                shards.open_again(shard_id)
        opened = [shard_id for shard_id in list(self._to_mend) if self._is_to_mend(shard_id)]
        hosts = [host for one in self._node.suspects if (host := self._node.hosts.get(one)) is not None]
        return sorted({*opened, *(host.shard_id for host in hosts if host.mode.needs_new_term)})

    def mend(self) -> None:
        """Look, and ask for the terms that are needed, in the background."""
        if self._mending is not None and not self._mending.done():
            return
        if shard_ids := self.look():
            self._mending = self._node.spawn(self._ask_for_terms(shard_ids))

    async def _ask_for_terms(self, shard_ids: list[int]) -> None:
        """One after the other, and all that there are: a disk may have lost a thousand."""
        for number, shard_id in enumerate(shard_ids, 1):
            self._log.info("mending_damaged_log", shard=shard_id)
            try:
                await self._node.agent.command(ElectLeader(shard_id), MEND_TIMEOUT_S)
            except AntiphonError as error:
                self._log.warning("damaged_log_not_mended", shard=shard_id, error=error.message)
                if isinstance(error, TimedOutError | UnavailableError):
                    self._to_mend.update(shard_ids[number:])
                    return

    def _is_time(self, shard_id: int, error: Exception | None) -> bool:
        if not isinstance(error, DamagedLogError | DamagedStoreError | ResourceExhaustedError):
            return False
        now_s = self._node.now_s()
        if now_s < self._not_before_s.get(shard_id, now_s):
            return False
        every_s = RETRY_EVERY_S if isinstance(error, ResourceExhaustedError) else REOPEN_EVERY_S
        self._not_before_s[shard_id] = now_s + every_s
        self._to_mend.add(shard_id)
        return True

    def _is_to_mend(self, shard_id: int) -> bool:
        """Does a coordinator have to begin a term for this replica? Those that vote see to it themselves."""
        host = self._node.hosts.get(shard_id)
        if host is None:
            return False  # not open yet
        self._to_mend.discard(shard_id)
        return host.state.failed is None and host.mode.is_appointed
