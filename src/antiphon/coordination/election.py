"""One election of one shard: who has promised the term, and who may lead.

A majority of the ensemble that has durably promised the term intersects every set that could have committed an entry in an
earlier one, so the best log among its promises has every committed entry (S0.17). Two kinds of promise are no evidence of
what was committed and are not counted in that majority: a damaged log's, and that of a member whose disk was replaced.

More generally a member may lead when a majority of the counted promises, its own included, have no better log than it has:
those alone would have voted for it (S1.27). The best log always qualifies; others are chosen only when an operator
names one, or when the best has just failed to lead.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from antiphon.coordination.fences import electable, voting
from antiphon.coordination.state import ShardRecord
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.messages import NewTermReply, NodeId


@dataclass(slots=True, eq=False)
class Election:
    """What is known so far; the decision to hold it (term, status) is in the shard's record."""

    shard_id: int
    term: int
    wanted: NodeId | None = None  # named by an operator
    avoid: NodeId | None = None  # failed to lead the last time
    spoken: bool = False  # the term is committed and NewTerm was sent
    promoted: bool = False  # the candidate is committed and BecomeLeader was sent
    candidate: NodeId | None = None
    grace: bool = False  # there is a majority, the others are waited for
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
            and node not in record.untrusted
            and not self.replies[node].damaged
        }

    def heads(self, record: ShardRecord) -> tuple[tuple[NodeId, EntryId], ...]:
        """What the candidate is told about the others that promised, in the order of the ensemble.

        A damaged log is to be refetched from its start. Members with a longer log than the candidate's are left out: a
        replica refuses to lead over a better one, and those are given to it as followers once it leads.
        """
        if self.candidate is None:
            return ()
        own = self.replies[self.candidate].head
        heads = ((n, known_head(self.replies[n])) for n in record.meta.everybody if n in self.replies)
        return tuple((node, head) for node, head in heads if node != self.candidate and head <= own)


def known_head(reply: NewTermReply) -> EntryId:
    """How far a replica's log can be relied on."""
    return EMPTY if reply.damaged else reply.head


def choose_leader(
    election: Election,
    record: ShardRecord,
    votes: Mapping[NodeId, EntryId],
    led_by: Callable[[NodeId], int],
) -> NodeId:
    """The member to promote; by `votes` somebody is electable.

    Ties go to the preferred leader while the shard is empty, and to whoever leads least after that.
    """
    ensemble = voting(record.meta)
    best = max(votes.values())
    able = electable(record.meta, votes)
    if election.wanted in able:
        return election.wanted
    willing = [node for node in able if node != election.avoid] or able
    longest = max(votes[node] for node in willing)
    if best == EMPTY and ensemble[0] in willing:
        return ensemble[0]
    return _least_loaded((node for node in willing if votes[node] == longest), ensemble, led_by)


def _least_loaded(
    nodes: Iterable[NodeId], ensemble: tuple[NodeId, ...], led_by: Callable[[NodeId], int]
) -> NodeId:
    return min(nodes, key=lambda node: (led_by(node), ensemble.index(node)))
