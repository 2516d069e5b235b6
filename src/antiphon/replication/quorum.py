"""Quorum arithmetic: how many, and up to where (S0.11, S0.34, S1.11, hazards H1 and H4).

Everything here is a pure function of integers. An acknowledgement is the exclusive end of a log *prefix* that a member
holds durably, so the k-th largest acknowledgement is the end of the longest prefix that k members hold. Any two sets of
`majority(n)` members out of n share one, which is what the whole protocol rests on.
"""

from collections.abc import Sequence
from enum import StrEnum

from antiphon.invariants import invariant, unreachable


class VoteResult(StrEnum):
    """Where an election stands."""

    WON = "won"
    LOST = "lost"  # so many refused that it can no longer be won
    PENDING = "pending"


def majority(members: int) -> int:
    """The smallest number of members of which any two sets overlap: 1 of 1, 2 of 2, 2 of 3, 3 of 4, 3 of 5."""
    invariant(members > 0, "a quorum needs members")
    return members // 2 + 1


def committed_offset(acks: Sequence[int], k: int) -> int:
    """End of the longest prefix that at least `k` of the members hold: the k-th largest of `acks`.

    Ascending, that is index n - k, for a majority (n - 1) // 2; n // 2 would be wrong for even n (hazard H1).
    """
    if not 0 < k <= len(acks):
        unreachable(f"k must be within 1..{len(acks)}, is {k}")
    return sorted(acks)[len(acks) - k]


def commit_point(acks: Sequence[int], k: int, high_watermark: int, term_start: int) -> int:
    """The new high watermark of a leader, by S0.34; never below `high_watermark` (S1.12).

    Args:
        acks: durable end per voting member, the leader's own disk included.
        k: how many members make an entry committed.
        high_watermark: what is committed already.
        term_start: base offset of the leader's first entry of its own term. A prefix counts only when it ends with an
            entry of this term, that is beyond `term_start` (S1.34, hazard H4); the entries before are then committed with
            it (S1.35).
    """
    reached = committed_offset(acks, k)
    return reached if reached > term_start and reached > high_watermark else high_watermark


def vote_result(granted: int, refused: int, members: int) -> VoteResult:
    """Outcome of an election among `members`, of whom so many granted and so many refused."""
    needed = majority(members)
    if granted >= needed:
        return VoteResult.WON
    if members - refused < needed:
        return VoteResult.LOST
    return VoteResult.PENDING
