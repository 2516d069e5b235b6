"""Changes of the commit rule that need a new term: to the live set, and from it (C1).

`quorum`, `local` and `at_least(k)` replace each other within a term. A term uses the live set from its first entry to
its last, so a change to or from it is an election, in which the present leader is preferred. A topic's shards are
changed a few at a time. Only the topic's settings and each shard's fence have to be remembered, so a new coordinator
continues where the last one was.
"""

from collections.abc import Container

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.fences import Fence
from antiphon.coordination.profiles import Options
from antiphon.coordination.state import ClusterState, has_leader
from antiphon.replication.messages import NodeId

CHANGES_AT_ONCE = 64


class RuleChanges:
    """The shards whose terms use another rule than their topic asks for, in the order in which they were found."""

    def __init__(self, options: Options, model: ClusterState) -> None:
        self._options = options
        self._model = model
        self._waiting: dict[int, None] = {}
        self._going: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def check(self, record: ShardRecord) -> None:
        """Remember the shard if it is led by the wrong rule."""
        if self._is_wrong(record):
            self._waiting[record.meta.shard_id] = None

    def due(self, elections: Container[int]) -> list[tuple[int, NodeId]]:
        """Shards to elect in now, and their leaders; `elections` has those that are still being elected in."""
        if not self._waiting:
            return []
        self._going = {shard_id for shard_id in self._going if shard_id in elections}
        found = []
        while self._waiting and len(self._going) < CHANGES_AT_ONCE:
            shard_id = next(iter(self._waiting))
            del self._waiting[shard_id]
            record = self._model.shards.get(shard_id)
            if record is not None and self._is_wrong(record):
                self._going.add(shard_id)
                found.append((shard_id, record.meta.leader))
        return found

    def _is_wrong(self, record: ShardRecord) -> bool:
        """A shard whose voters are changing is left alone until that is done, and then checked again."""
        meta = record.meta
        if not has_leader(meta) or meta.outgoing:
            return False
        options = self._options.of(record.topic_id)
        return options.election != "raft" and options.is_live != (meta.fence == Fence.LIVE)
