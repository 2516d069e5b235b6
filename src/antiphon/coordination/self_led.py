"""Shards that need no coordinator to have a leader: those whose replicas vote, and those with `writers=multi`.

Where replicas vote (`election=raft`) they open, elect, change members and serve when no coordinator can be reached. The
coordinator records what they report: a leader's node reports the shard with its term (`LiveSet`), and clients find the
leader that way. When that node is lost, the shard is in Election until a leader reports; Offline says that too few
members are alive to vote. The coordinator never fences such a shard: a term of its own would only depose a working
leader.

With `writers=multi` there is nothing to elect. The leader in the metadata is the first member of the ensemble that is
alive. Clients that can use any replica go there.
"""

import msgspec

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.fences import has_majorities, in_order, voting
from antiphon.coordination.profiles import Replication
from antiphon.coordination.shard_records import ShardRecords
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ABSENT_NODE, ShardStatus
from antiphon.replication.messages import NodeId

MULTI_TERM = 1  # of every shard that every replica writes


def is_self_led(options: Replication) -> bool:
    """Does the coordinator leave the shards of such a topic to themselves?"""
    return options.election == "raft" or options.is_multi


class SelfLed:
    """Records who is known to lead such shards; decides nothing."""

    def __init__(self, records: ShardRecords) -> None:
        self._records = records
        self._is_alive = records.is_alive

    def begin(self, record: ShardRecord, options: Replication) -> None:
        """The shard is new, or nobody is known to lead it."""
        if options.is_multi:
            self._choose_home(record)
        else:
            self._leaderless(record)

    def resume(self, record: ShardRecord, options: Replication) -> None:
        """A new coordinator finds the shard in the records."""
        if options.is_multi or record.meta.leader == ABSENT_NODE or not self._is_alive(record.meta.leader):
            self.begin(record, options)

    def node_lost(self, record: ShardRecord, options: Replication, node: NodeId) -> None:
        """A member was just marked as dead."""
        meta = record.meta
        if options.is_multi:
            self._choose_home(record)
        elif meta.leader == node or not self._may_vote(record):
            self._leaderless(record)
        elif node in meta.live:
            self._records.set(record, live=tuple(member for member in meta.live if member != node))

    def node_returned(
        self, record: ShardRecord, options: Replication, node: NodeId, *, restarted: bool, replaced: bool
    ) -> None:
        """A member was just marked as alive, or has a new process.

        That its disk was replaced is for the replicas to know, which vote. It is recorded for an operator's sake: whether
        those that remember are still a majority says if the shard can come back by itself.
        """
        if replaced and not options.is_multi:
            record = self._records.distrust(record, node)
        if options.is_multi:
            self._choose_home(record)
        elif record.meta.leader == node:
            if restarted:
                self._leaderless(record)
        elif record.meta.status == ShardStatus.OFFLINE:
            self._leaderless(record)

    def report(self, record: ShardRecord, options: Replication, sender: NodeId, report: LiveSet) -> None:
        """The sender says that it leads. The members in the report are recorded by the component that changes members."""
        meta = record.meta
        if options.is_multi or report.term < meta.term or sender not in meta.everybody:
            return
        if not self._is_alive(sender) or not (
            has_majorities(meta, (sender, *report.live)) or self._may_vote(record)
        ):
            return  # on its way down, and does not know it yet
        live = in_order(meta, (sender, *(node for node in report.live if self._is_alive(node))))
        untrusted = tuple(node for node in record.untrusted if node not in live)
        changed = msgspec.structs.replace(
            meta, term=report.term, status=ShardStatus.ONLINE, leader=sender, live=live
        )
        self._records.put(record, changed, untrusted=untrusted)

    def _may_vote(self, record: ShardRecord) -> bool:
        """Are enough alive that remember what they promised? Others vote only when these have a leader."""
        there = [n for n in voting(record.meta) if self._is_alive(n) and n not in record.untrusted]
        return has_majorities(record.meta, there)

    def _leaderless(self, record: ShardRecord) -> None:
        status = ShardStatus.ELECTION if self._may_vote(record) else ShardStatus.OFFLINE
        self._records.set(record, status=status, leader=ABSENT_NODE, live=())

    def _choose_home(self, record: ShardRecord) -> None:
        alive = tuple(node for node in record.meta.ensemble if self._is_alive(node))
        status = ShardStatus.ONLINE if alive else ShardStatus.OFFLINE
        leader = alive[0] if alive else ABSENT_NODE
        self._records.set(record, term=MULTI_TERM, status=status, leader=leader, live=alive)
