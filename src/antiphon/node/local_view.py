"""The metadata as this node has it: what the coordinator said, and what the replicas here know better.

Where replicas vote, the coordinator only hears who leads. A replica that follows, or leads, a term that is newer than the
metadata's is ahead of it, and for good where no coordinator is in reach: then clients are told what it knows.
"""

from typing import Final

import msgspec

from antiphon.coordination.cluster_records import ATTRIBUTES_FORMAT, PREPARED_FORMAT
from antiphon.errors import AntiphonError, InvalidRequestError, NotReadyError
from antiphon.model.cluster import MetadataDelta, MetadataView, ShardChange
from antiphon.model.metadata import CLUSTER_SHARD_ID, ShardMeta, ShardStatus, SplitPhase
from antiphon.node.events import Events
from antiphon.partition.services import Wanted

FORMAT_OF: Final = {Wanted.PREPARES: PREPARED_FORMAT, Wanted.ATTRIBUTES: ATTRIBUTES_FORMAT}


class LocalView(MetadataView):
    """See the module's text."""

    def __init__(self, cluster_id: str, founders: tuple[int, ...] = ()) -> None:
        super().__init__(cluster_id)
        self.founders = founders  # who holds `__cluster` as long as nobody says otherwise
        self.events = Events(self)
        # Shard id -> (term, leader), where newer than the metadata
        self._seen: dict[int, tuple[int, int]] = {}
        self._recorded: dict[int, ShardMeta] = {}  # the same shards as the coordinator has them

    def held_by(self) -> ShardMeta | None:
        """See MetadataView."""
        return self.voters or ShardMeta(CLUSTER_SHARD_ID, 0, self.founders)

    def recorded(self, shard_id: int) -> ShardMeta | None:
        """A shard as the coordinator has it."""
        found = self._recorded.get(shard_id)
        if found is not None:
            return found
        known = self.shard(shard_id)
        return None if known is None else known[1]

    def led_by(self, shard_id: int, term: int, leader: int) -> None:
        """A replica here knows who leads its shard in `term`."""
        found = self.shard(shard_id)
        recorded = self.recorded(shard_id)
        if (
            found is None
            or recorded is None
            or term < recorded.term
            or self._seen.get(shard_id, (-1,))[0] > term
        ):
            return
        if (term, leader) == (recorded.term, recorded.leader):
            return
        self._seen[shard_id] = (term, leader)
        change = ShardChange(found[0].topic_id, self._patched(recorded))
        with self.events.of_change():
            self.events.shard(change)
            super()._put_shards((change,))
        self._cluster = None

    def apply(self, delta: MetadataDelta) -> bool:
        """See MetadataView. What it changes is an event, unless it is all that this node is told at first."""
        if self.version < 0 or delta.base_version < 0:
            return super().apply(delta)
        with self.events.of_change():
            self.events.delta(delta)
            return super().apply(delta)

    def _put_shards(self, changes: tuple[ShardChange, ...]) -> None:
        if self._seen:
            changes = tuple(ShardChange(one.topic_id, self._patched(one.shard)) for one in changes)
        for change in changes:
            self.events.shard(change)
        super()._put_shards(changes)

    def _patched(self, shard: ShardMeta) -> ShardMeta:
        """The shard with the leader that is known here, while that is news."""
        term, leader = self._seen.get(shard.shard_id, (-1, -1))
        if term < shard.term or (term, leader) == (shard.term, shard.leader):
            self._seen.pop(shard.shard_id, None)
            self._recorded.pop(shard.shard_id, None)
            return shard
        self._recorded[shard.shard_id] = shard
        return msgspec.structs.replace(shard, term=term, leader=leader, status=ShardStatus.ONLINE)

    def all_read(self, number: int) -> bool:
        """Has every node of the cluster said that it reads records of `__cluster` of this format?"""
        return bool(self.nodes) and all(node.reads >= number for node in self.nodes.values())

    def refusal_of(self, shard_id: int, wanted: Wanted) -> AntiphonError | None:
        """See PartitionServices."""
        found = self.recorded(shard_id)
        members = () if found is None else found.everybody
        reads = FORMAT_OF[wanted]
        old = [one for one in members if one not in self.nodes or self.nodes[one].reads < reads]
        if old:
            return InvalidRequestError(
                f"shard {shard_id} has replicas on nodes whose version knows no {wanted}: "
                f"{', '.join(map(str, old))}; upgrade them first, and begin again"
            )
        if wanted is not Wanted.PREPARES:
            return None
        splits = (change.shard.split for change in self.joining.values())
        if any(one and one.parent == shard_id and one.phase is not SplitPhase.COPY for one in splits):
            return NotReadyError(
                f"keys of shard {shard_id} are about to move to another shard, which takes a moment: nothing is prepared "
                "meanwhile; retry"
            )
        return None

    def _clear(self) -> None:
        super()._clear()
        self._recorded.clear()
