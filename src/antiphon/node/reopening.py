"""Opens replicas anew that stopped because a read found their log damaged, while the node runs.

It goes as at a start: the damaged part is left out, the replica follows as damaged and gets from its leader what it lost. A
leader does not expect a follower to have less than it acknowledged in this term, so where a coordinator appoints leaders it
is asked for a new term; replicas that vote ask for one themselves.

`__cluster` is not opened anew: the coordinator rests on its replica, which is mended at the next start.
"""

from typing import TYPE_CHECKING, Final

import structlog

from antiphon.errors import DamagedLogError
from antiphon.replication.replica import Replica
from antiphon.wire.metadata import CLUSTER_SHARD_ID

if TYPE_CHECKING:
    from antiphon.node.node import Node

REOPEN_EVERY_S: Final = 60.0  # a disk that damages files again and again is not given more work than that


class Reopening:
    """See the module's text."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._not_before_s: dict[int, float] = {}
        self._to_mend: set[int] = set()
        self._log = structlog.get_logger()

    def look(self) -> int | None:
        """Open damaged replicas anew, now and then; returns a shard that needs a new term for what it lost."""
        node = self._node
        now_s = node.now_s()
        for shard_id, host in list(node.hosts.items()):
            if not isinstance(host.failed, DamagedLogError) or shard_id == CLUSTER_SHARD_ID:
                continue
            if now_s >= self._not_before_s.get(shard_id, now_s):
                self._not_before_s[shard_id] = now_s + REOPEN_EVERY_S
                self._to_mend.add(shard_id)
                self._log.warning("reopening_damaged_replica", shard=shard_id)
                node.shards.reopen(shard_id, host)
        return next(filter(self._is_to_mend, sorted(self._to_mend)), None)

    def _is_to_mend(self, shard_id: int) -> bool:
        host = self._node.hosts.get(shard_id)
        if host is None:
            return False  # not open yet
        self._to_mend.discard(shard_id)
        return host.failed is None and isinstance(host.replica, Replica) and host.replica.damaged
