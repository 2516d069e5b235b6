"""One election of one shard: which replicas have promised the term, and which may lead.

A majority of the ensemble that has durably promised the term intersects every set that could have committed an entry in
an earlier term. So the best log among its promises has every committed entry (S0.17). If commits use the live set, each
of its members has every committed entry (S3.24). `fences` says which promises are enough. Two kinds of promise are no
evidence of what was committed and do not count: that of a damaged log, and that of a member whose disk was replaced.

Of the replicas that may lead, the one with the longest log is asked first (smallest lag, S3.9). A candidate that does
not lead when asked is not asked again in this series (S3.15). An operator may name another one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.fences import Fence, electable, voting, voting_sets
from antiphon.coordination.profiles import Replication
from antiphon.coordination.state import has_leader, majority
from antiphon.model.metadata import ShardMeta
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.messages import BecomeLeader, NewTermReply, NodeId


@dataclass(slots=True, eq=False)
class Election:
    """What is known so far; the decision to hold it (term, status) is in the shard's record."""

    shard_id: int
    term: int
    wanted: NodeId | None = None  # named by an operator
    only: NodeId | None = None  # nobody else may lead, where leaders are appointed
    failed: frozenset[NodeId] = frozenset()  # did not lead when they were asked, in this series (S3.15)
    unclean: bool = False  # nobody who has everything is left: take the best of what there is (S3.18)
    by_live: bool = False  # the term that is about to begin commits by the live replica set
    spoken: bool = False  # the term is committed and NewTerm was sent
    promoted: bool = False  # the candidate is committed and BecomeLeader was sent
    candidate: NodeId | None = None
    grace: bool = False  # there are enough, the others are waited for
    grace_over: bool = False
    resends: int = 0
    replies: dict[NodeId, NewTermReply] = field(default_factory=dict)

    def votes(self, record: ShardRecord, is_alive: Callable[[NodeId], bool]) -> dict[NodeId, EntryId]:
        """The promises that count, in the order of the ensemble, outgoing members last."""
        return {
            node: self.replies[node].head
            for node in voting(record.meta)
            if node in self.replies
            and is_alive(node)
            and (self.unclean or node not in record.untrusted)
            and not self.replies[node].damaged
        }

    def counted(self, record: ShardRecord, is_alive: Callable[[NodeId], bool]) -> dict[NodeId, EntryId]:
        """The same; an unclean election becomes a clean one when a live member has come back in time."""
        was_unclean, self.unclean = self.unclean, False
        votes = self.votes(record, is_alive)
        if not was_unclean or self.able(record, votes):
            return votes
        self.unclean = True
        return self.votes(record, is_alive)

    def able(self, record: ShardRecord, votes: Mapping[NodeId, EntryId]) -> list[NodeId]:
        """The members that may lead by these votes, whether or not they failed before."""
        found = list(votes) if self.unclean else electable(record.meta, votes)
        return found if self.only is None else [node for node in found if node == self.only]

    def awaited(self, meta: ShardMeta) -> tuple[NodeId, ...]:
        """The members whose promises could still matter."""
        return meta.live if meta.fence == Fence.LIVE and not self.unclean else voting(meta)

    def damaged(self) -> set[NodeId]:
        """Members that promised and reported that their log has lost entries."""
        return {node for node, reply in self.replies.items() if reply.damaged}

    def heads(self, record: ShardRecord) -> tuple[tuple[NodeId, EntryId], ...]:
        """The log ends of the other promising members, for the candidate, in the order of the ensemble.

        A damaged log is to be fetched again from its start. Members with a longer log than the candidate's are left
        out, because a replica refuses to lead over a better log; they are given to the leader as followers later.
        """
        if self.candidate is None:
            return ()
        own = self.replies[self.candidate].head
        heads = ((n, known_head(self.replies[n])) for n in record.meta.everybody if n in self.replies)
        return tuple((node, head) for node, head in heads if node != self.candidate and head <= own)

    def become_leader(self, record: ShardRecord) -> BecomeLeader:
        """The message to the candidate, by the record that names it."""
        meta = record.meta
        return BecomeLeader(
            self.shard_id,
            self.term,
            ensemble=meta.ensemble,
            heads=self.heads(record),
            live=meta.live if self.by_live else (),
            live_version=meta.live_version,
            outgoing=meta.outgoing,
            learners=meta.learners,
            members_version=meta.members_version,
            deleted_before=meta.deleted_before,
        )


def known_head(reply: NewTermReply) -> EntryId:
    """The end of a replica's log, as far as it is reliable."""
    return EMPTY if reply.damaged else reply.head


def choose_leader(
    election: Election,
    record: ShardRecord,
    votes: Mapping[NodeId, EntryId],
    led_by: Callable[[NodeId], int],
) -> NodeId | None:
    """The member to promote, or None if all that may lead have failed.

    Ties go to the preferred leader while the shard is empty, and later to the node that leads least.
    """
    ensemble = voting(record.meta)
    able = election.able(record, votes)
    if election.wanted in able:
        return election.wanted
    willing = [node for node in able if node not in election.failed]
    if not willing:
        return None
    if max(votes.values()) == EMPTY and ensemble[0] in willing:
        return ensemble[0]
    longest = max(votes[node] for node in willing)
    return _least_loaded((node for node in willing if votes[node] == longest), ensemble, led_by)


def _least_loaded(
    nodes: Iterable[NodeId], ensemble: tuple[NodeId, ...], led_by: Callable[[NodeId], int]
) -> NodeId:
    return min(nodes, key=lambda node: (led_by(node), ensemble.index(node)))


def appointed(record: ShardRecord, wanted: NodeId | None) -> NodeId:
    """The leader of a shard with manual appointment: the last appointed one, at first the first of the ensemble."""
    if wanted is not None:
        return wanted
    last = record.appointed
    return last if last in voting(record.meta) else record.meta.ensemble[0]


def may_be_unclean(
    meta: ShardMeta, options: Replication, only: NodeId | None, is_alive: Callable[[NodeId], bool]
) -> bool:
    """Is a member available that may lead without everything that was committed (S3.18)?"""
    able = meta.ensemble if only is None else (only,)
    return options.unclean and meta.fence != Fence.MAJORITY and any(is_alive(node) for node in able)


def can_commit(meta: ShardMeta, options: Replication, there: Collection[NodeId]) -> bool:
    """Could a leader commit anything with these nodes, under a rule that counts voters?"""
    return all(
        sum(node in there for node in each) >= min(majority(each), options.commit.copies(len(each)))
        for each in voting_sets(meta)
    )


def goes_by_live(meta: ShardMeta, election: Election | None) -> bool:
    """Does the term that is led, or is about to be, commit by the live replica set?"""
    if election is None:
        return meta.fence == Fence.LIVE and has_leader(meta)
    return election.by_live and election.candidate is not None
