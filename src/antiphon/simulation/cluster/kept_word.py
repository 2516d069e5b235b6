"""What a replica has said binds it, over restarts too: one vote in a term, and no word in a term below one it promised."""

from typing import Final

from antiphon.replication.messages import Ack, NewTermReply, RequestVote, VoteReply
from antiphon.simulation.violation import ViolationError, require

Word = Ack | NewTermReply | RequestVote | VoteReply
WORDS: Final = (Ack, NewTermReply, RequestVote, VoteReply)


class KeptWord:
    """By replica: what it has said. `may_move`: replicas may be removed from a node and come back as new ones."""

    def __init__(self, *, may_move: bool) -> None:
        self._may_move = may_move
        self._votes: dict[tuple[int, int], tuple[int, int]] = {}  # (node, shard) -> term and for whom
        self._promised: dict[tuple[int, int], int] = {}

    def forget(self, node_id: int) -> None:
        """The node's disk has lost something: what is said from now on is all that it can be held to."""
        for known in (self._votes, self._promised):
            for key in [key for key in known if key[0] == node_id]:
                del known[key]

    def check(self, node_id: int, message: Word, to: int) -> None:
        """A node says this to another: ViolationError where it has said something else."""
        kind = type(message)
        if kind is not Ack and isinstance(message, RequestVote | VoteReply) and message.pre_vote:
            return
        key, term = (node_id, message.shard), message.term
        promised = self._promised.get(key, 0)
        if term < promised and not self._may_move:
            raise ViolationError(
                "promise-kept",
                f"node {node_id} says {message!r} to node {to}, and has promised term {promised}",
                message.shard,
            )
        self._promised[key] = max(term, promised)
        if kind is Ack:
            return
        if isinstance(message, RequestVote):
            self._vote(key, term, node_id)
        elif isinstance(message, VoteReply) and message.granted:
            self._vote(key, term, to)

    def _vote(self, key: tuple[int, int], term: int, candidate: int) -> None:
        before, other = self._votes.get(key, (0, candidate))
        require(
            before != term or other == candidate,
            "one-vote",
            f"node {key[0]} votes for node {candidate} in term {term}, and has voted for node {other}",
            key[1],
        )
        if term >= before:
            self._votes[key] = (term, candidate)
