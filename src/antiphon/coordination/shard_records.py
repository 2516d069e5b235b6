"""Writes the records of shards: what elections, members that come and go, and leaders' reports change in them."""

import msgspec

from antiphon.coordination import live_sets
from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.fences import Fence, in_order, voting
from antiphon.coordination.ledger import Ledger
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, ShardStatus
from antiphon.replication.messages import NodeId


class ShardRecords:
    """Each method takes a shard's newest record and writes the next one, if anything changes."""

    def __init__(self, ledger: Ledger) -> None:
        self.is_alive = ledger.model.is_alive
        self._ledger = ledger

    def set(self, record: ShardRecord, **changes: object) -> ShardRecord:
        """Change fields of the shard's metadata."""
        return self.put(record, msgspec.structs.replace(record.meta, **changes))

    def put(self, record: ShardRecord, meta: ShardMeta, **changes: object) -> ShardRecord:
        """Put `meta` in the place of the shard's metadata, and change fields of the record beside it.

        A recovery of the shard is over when it is led again.
        """
        if meta.recovery is not None and not meta.recovery.done and meta.status == ShardStatus.ONLINE:
            done = msgspec.structs.replace(meta.recovery, done=True)
            meta = msgspec.structs.replace(meta, recovery=done)
        changed = msgspec.structs.replace(record, meta=meta, **changes)
        if changed != record:
            self._ledger.put_shard(changed)
        return changed

    def take_offline(self, record: ShardRecord, fence: str | None = None) -> None:
        """Nobody leads. A live set that elections depend on stays as it is."""
        fence = record.meta.fence if fence is None else fence
        live = () if fence == Fence.MAJORITY else record.meta.live
        self.set(record, status=ShardStatus.OFFLINE, leader=ABSENT_NODE, live=live, fence=fence)

    def leave_out_the_dead(self, record: ShardRecord) -> None:
        """Remove members from the live set that were lost while nobody coordinated."""
        meta = record.meta
        dead = tuple(node for node in meta.live if not self.is_alive(node))
        if dead and meta.fence == Fence.LIVE:
            self.put(record, live_sets.without(meta, dead))
        elif dead:
            self.set(record, live=tuple(node for node in meta.live if node not in dead))

    def distrust(self, record: ShardRecord, node: NodeId) -> ShardRecord:
        """The member's entries and promises were lost with its disk."""
        meta = record.meta
        if meta.fence != Fence.MAJORITY:
            meta = live_sets.without(meta, (node,))
        untrusted = record.untrusted
        if node not in untrusted and node in voting(meta):
            untrusted = (*untrusted, node)
        return self.put(record, meta, untrusted=untrusted)

    def report(self, record: ShardRecord, sender: NodeId, report: LiveSet, *, by_live: bool) -> None:
        """The leader reports who keeps up; `by_live`: it commits by the live set, and proposes one."""
        meta = record.meta
        if by_live:
            changed = live_sets.accept(meta, report, sender, self.is_alive)
        else:
            keeping_up = (node for node in report.live if self.is_alive(node))
            changed = msgspec.structs.replace(meta, live=in_order(meta, (sender, *keeping_up)))
        untrusted = tuple(node for node in record.untrusted if node not in changed.live)
        self.put(record, changed, untrusted=untrusted)
