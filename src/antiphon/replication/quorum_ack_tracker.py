"""The leader's book of who holds what: head offset, commit offset and one durable end per voting member (S0.12).

Theory: the leader's own disk is a member like any other (S0.11) and counts only after its write is durable. A slow member
never delays the commit when others make the quorum (S0.30). Acknowledgements of nodes outside the ensemble (a replica that
is being added) are not recorded here at all: they are fed, but they do not vote.
"""

from collections.abc import Sequence

from antiphon.replication.messages import NodeId
from antiphon.replication.quorum import commit_point, majority

NOT_VOTING = -1


class QuorumAckTracker:
    """Durable ends of the voting members of one shard during one leadership."""

    __slots__ = ("_slots", "acks", "k", "members", "term_start")

    def __init__(self, members: Sequence[NodeId], term_start: int) -> None:
        self.members = tuple(members)
        self.k = majority(len(self.members))
        self.term_start = term_start
        self.acks = [0] * len(self.members)
        self._slots = {node: slot for slot, node in enumerate(self.members)}

    def slot(self, node: NodeId) -> int:
        """Index of a member in `acks`, or NOT_VOTING."""
        return self._slots.get(node, NOT_VOTING)

    def record(self, slot: int, durable_end: int) -> None:
        """The member at `slot` holds the leader's log durably up to `durable_end`."""
        if slot != NOT_VOTING:
            self.acks[slot] = durable_end

    def commit_offset(self, high_watermark: int) -> int:
        """The high watermark that the recorded acknowledgements allow (S0.34)."""
        return commit_point(self.acks, self.k, high_watermark, self.term_start)
