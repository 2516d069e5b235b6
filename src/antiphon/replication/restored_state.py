"""What a replica begins with: the state that its disk gave back."""

from dataclasses import dataclass

from antiphon.invariants import invariant
from antiphon.records.entry_id import TermIndex
from antiphon.replication.members import MembersIndex
from antiphon.replication.messages import NodeId
from antiphon.replication.replica_state import LogCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredState:
    """What is on the disk of one replica when it opens; of a new replica nothing, which the defaults say.

    The object is read once, by the replica's constructor. The replica keeps the two indexes for itself and changes them.

    Attributes:
        terms: index of the log as recovered: the sound part before the damage, where it is damaged.
        term: the latest term that was promised; 0 if none.
        voted_for: who got the vote in `term`; None if nobody did.
        high_watermark: the offset up to which entries were known to be committed. It may be older than the truth, and beyond
            the end of a log that lost its unsynced end.
        acknowledged: the offset up to which an earlier self, as a leader, told clients that entries are committed. It
            matters only where a rule acknowledges what an election can lose, for `LostTail` to be complete.
        condition: whether the log and the promises are whole.
        members: index of the members entries of the log. None: no entry changes the members, they are fixed by configuration
            or told by a coordinator.
        bound_until_us: by the host's clock, the replica may have promised, before it was opened, to support nobody but a
            leader until then; 0: it has not. Promises are not on the disk: this is the longest that there may be.
    """

    terms: TermIndex
    term: int = 0
    voted_for: NodeId | None = None
    high_watermark: int = 0
    acknowledged: int = 0
    condition: LogCondition = LogCondition.SOUND
    members: MembersIndex | None = None
    bound_until_us: int = 0

    def __post_init__(self) -> None:
        end = self.terms.end
        invariant(self.term >= end.term, f"log of term {end.term}, but only term {self.term} was promised")
