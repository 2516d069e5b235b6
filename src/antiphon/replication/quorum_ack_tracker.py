"""The leader's book of who holds what: a durable end for each node that it replicates to, counted by voting sets (S0.12).

Theory: the leader's own disk is a member like any other (S0.11) and counts only after its write is durable. A slow
member never delays the commit when others make the quorum (S0.30). Every node that it replicates to has a slot,
whether it counts or not, so that what a learner holds is known at the moment when it becomes a voter.

Who counts is said by *quorums*: a quorum is some slots and the number of them that must agree, and all quorums must agree.
One quorum is the usual case; while members change there are two, the voters and the outgoing ones (S0.2). Three questions
are asked of the same book, each with quorums of its own:

| question | `quorum` | `at_least(k)` | `local` | `live` |
|---|---|---|---|---|
| what is committed? | majorities | k of each set | the own disk | all of the live set |
| what is settled, so that no election loses it? | majorities | majorities | majorities | all of the live set |
| who confirms that no newer leader exists? | majorities | majorities | majorities | all of the live set |

The third row under `live`: a later leader comes from the live set that is recorded, which is within the set that counts
here, and it has promised its term before it leads. When *all* of this set answer in this term, none has promised a
later one yet. A majority would not do: the next leader may be the one that did not answer, and one of the live set is
enough to elect it. Nor need it be more: whoever is outside the set can be elected only by an unclean election, which
gives up what was acknowledged anyway.
"""

from collections.abc import Sequence

from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId
from antiphon.replication.quorum import commit_point, committed_offset, majority

Quorum = tuple[tuple[int, ...], int]  # slots, and how many of them must agree

NOT_FED = -1


class QuorumAckTracker:
    """Durable ends of the nodes of one shard during one leadership of `own`."""

    __slots__ = (
        "_committing",
        "_confirming",
        "_settling",
        "_slots",
        "_whole_majority",
        "acks",
        "counted",
        "own_slot",
        "settles_apart",
        "term_start",
    )

    def __init__(self, own: NodeId, members: Members, term_start: int) -> None:
        self.term_start = term_start
        self.acks: list[int] = []
        self._slots: dict[NodeId, int] = {}
        for node in (*members.voting, own):
            if node not in self._slots:
                self.add(node)
        self.own_slot = self._slots[own]
        self._whole_majority = 0
        self.settles_apart = False  # is less settled than committed?
        self.counted: frozenset[int] = frozenset()  # slots that confirm leadership
        self.go_by_sets(members, CommitRule())

    # -- who counts ------------------------------------------------------------------------------------------------

    def add(self, node: NodeId) -> int:
        """The slot of a node that it replicates to from now on; whatever it acknowledged before does not count."""
        slot = self._slots.setdefault(node, len(self.acks))
        if slot == len(self.acks):
            self.acks.append(0)
            self._whole_majority = 0
        self.acks[slot] = 0
        return slot

    def drop(self, node: NodeId) -> None:
        """The node is sent no more entries."""
        slot = self.slot(node)
        if slot != NOT_FED:
            self.acks[slot] = 0

    def slot(self, node: NodeId) -> int:
        """Index of a node in `acks`, or NOT_FED."""
        return self._slots.get(node, NOT_FED)

    def go_by_sets(self, members: Members, rule: CommitRule) -> None:
        """Count the voting sets of `members` by `rule`; `live` counts as `quorum`, since no live set is given here."""
        sets = [tuple(self._slot_of(node) for node in one) for one in members.sets]
        majorities = [(slots, majority(len(slots))) for slots in sets]
        quorums: list[Quorum] = [(slots, rule.enough(len(slots))) for slots in sets]
        if rule.is_local:
            quorums = [((self.own_slot,), 1)]
        self._go_by(quorums, majorities, majorities)
        self.settles_apart = rule.is_local or any(
            k < enough for (_, k), (_, enough) in zip(quorums, majorities, strict=False)
        )

    def go_by_live(self, live: Sequence[NodeId], *, enough: bool) -> None:
        """Count all of the live set (S3.24); commit nothing unless there are `enough` of them."""
        quorums: list[Quorum] = [(tuple(self._slot_of(node) for node in live), len(live))] if live else []
        self._go_by(quorums if enough else [], quorums, quorums)
        self.settles_apart = False

    def _slot_of(self, node: NodeId) -> int:
        """A member has a slot before it is sent anything, too."""
        return self._slots[node] if node in self._slots else self.add(node)

    def _go_by(self, quorums: list[Quorum], settling: list[Quorum], confirming: list[Quorum]) -> None:
        self._committing, self._settling, self._confirming = (
            tuple(quorums),
            tuple(settling),
            tuple(confirming),
        )
        self.counted = frozenset(slot for slots, _ in confirming for slot in slots)
        is_whole = len(quorums) == 1 and sorted(quorums[0][0]) == list(range(len(self.acks)))
        self._whole_majority = quorums[0][1] if is_whole else 0

    # -- what is held ----------------------------------------------------------------------------------------------

    def record(self, slot: int, durable_end: int) -> None:
        """The node at `slot` holds the leader's log durably up to `durable_end`."""
        self.acks[slot] = durable_end

    def commit_offset(self, high_watermark: int) -> int:
        """The high watermark that the recorded acknowledgements allow (S0.34)."""
        if self._whole_majority:  # everybody counts, in one set
            return commit_point(self.acks, self._whole_majority, high_watermark, self.term_start)
        return self._point(self._committing, high_watermark)

    def settled_offset(self, settled: int) -> int:
        """As `commit_offset`, for what no election can lose."""
        return self._point(self._settling, settled)

    def _point(self, quorums: tuple[Quorum, ...], mark: int) -> int:
        acks, term_start = self.acks, self.term_start
        points = [commit_point([acks[slot] for slot in slots], k, mark, term_start) for slots, k in quorums]
        return min(points, default=mark)

    def held_by_majority(self, nodes: Sequence[NodeId], offset: int) -> bool:
        """Does a majority of `nodes` hold the log up to `offset`?"""
        return (
            committed_offset([self.acks[self._slots[node]] for node in nodes], majority(len(nodes))) >= offset
        )

    def confirmed(self, values: Sequence[int]) -> int:
        """The largest value that enough nodes have reached to prove that nobody else leads; `values` go by slot."""
        reached = [committed_offset([values[slot] for slot in slots], k) for slots, k in self._confirming]
        return min(reached, default=0)
