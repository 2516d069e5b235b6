"""Brings members back under a running leader (S0.38): fences the member in the leader's term, then tells the leader.

A member that was away when its shard's leader was chosen gets `NewTerm` with the leader's term. Its promise goes to the
leader as `AddFollower`. Either message may be lost, so both are repeated, less and less often, until the leader's node
reports the member among its followers. There is one object per returning member, and none when all members follow.
"""

from collections.abc import Collection
from dataclasses import dataclass

from antiphon.coordination.election import Election, known_head
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.timers import Timers
from antiphon.model.metadata import ABSENT_NODE, ShardMeta
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import AddFollower, NewTerm, NewTermReply, NodeId

REPEAT_MS = 400
REPEAT_MS_MAX = 30_000
ADDS_BEFORE_FENCING_AGAIN = 3
REPEATS_PER_TICK = 1000


@dataclass(slots=True, eq=False)
class Return:
    """One member on its way back into one shard, under the leader of `term`."""

    shard_id: int
    node: NodeId
    term: int
    leader: NodeId
    head: EntryId | None = None  # None: it has not promised yet
    tries: int = 0


class Followers:
    """All members that are on their way back."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._returns: dict[tuple[int, NodeId], Return] = {}
        self._timers: Timers[Return] = Timers()

    def __len__(self) -> int:
        return len(self._returns)

    def bring_back(self, shard_id: int, node: NodeId, leader: NodeId, now_ms: int, delay_ms: int = 0) -> None:
        """Fence `node` in the term of `leader` and give it to the leader, starting after `delay_ms`."""
        meta = self._ledger.model.shards[shard_id].meta
        if node == leader or leader == ABSENT_NODE:
            return
        back = Return(shard_id, node, meta.term, leader)
        self._returns[shard_id, node] = back
        if delay_ms:
            self._timers.add(now_ms + delay_ms, back)
        else:
            self._repeat(back, now_ms)

    def not_told(self, election: Election, meta: ShardMeta, told: Collection[NodeId], now_ms: int) -> None:
        """A candidate is about to lead, and was told of these members only."""
        candidate = ABSENT_NODE if election.candidate is None else election.candidate
        for node, reply in election.replies.items():
            if node not in told:
                self.promised(node, reply, candidate, now_ms, known=False)
        for node in meta.everybody:
            if node not in election.replies and self._ledger.model.is_alive(node):
                # The election did without it. The leader will not miss it either: it was never told of it.
                self.bring_back(meta.shard_id, node, candidate, now_ms)

    def is_returning(self, shard_id: int, node: NodeId) -> bool:
        """Is the member being brought back?"""
        return (shard_id, node) in self._returns

    def promised(
        self, sender: NodeId, reply: NewTermReply, leader: NodeId, now_ms: int, *, known: bool
    ) -> None:
        """`sender` has promised the term of a shard that already has a leader: tell the leader.

        If the leader is `known` to have the member, this is a repeated answer, and telling the leader once is enough.
        """
        if sender == leader or leader == ABSENT_NODE:
            return
        back = self._returns.get((reply.shard, sender))
        if back is None and known:
            self._ledger.send(
                leader, AddFollower(reply.shard, reply.term, node=sender, head=known_head(reply))
            )
            return
        if back is None or back.term != reply.term or back.leader != leader:
            back = Return(reply.shard, sender, reply.term, leader)
            self._returns[reply.shard, sender] = back
            self._timers.add(now_ms + REPEAT_MS, back)
        back.head = known_head(reply)
        self._send(back)

    def arrived(self, shard_id: int, node: NodeId) -> None:
        """The leader has the member (or the member is gone): done."""
        self._returns.pop((shard_id, node), None)

    def forget(self, shard_id: int, ensemble: tuple[NodeId, ...]) -> None:
        """The shard's leader is gone, or the shard is."""
        for node in ensemble:
            self._returns.pop((shard_id, node), None)

    def tick(self, now_ms: int) -> None:
        """Repeat messages without an answer."""
        for back in self._timers.due(now_ms, REPEATS_PER_TICK):
            if self._returns.get((back.shard_id, back.node)) is back:
                self._repeat(back, now_ms)

    def _repeat(self, back: Return, now_ms: int) -> None:
        if back.tries and back.tries % ADDS_BEFORE_FENCING_AGAIN == 0:
            back.head = None  # what the leader was told may be out of date by now
        self._send(back)
        wait_ms = min(REPEAT_MS << min(back.tries, 10), REPEAT_MS_MAX)
        back.tries += 1
        self._timers.add(now_ms + wait_ms, back)

    def _send(self, back: Return) -> None:
        if back.head is None:
            self._ledger.send(back.node, NewTerm(back.shard_id, back.term))
        else:
            message = AddFollower(back.shard_id, back.term, node=back.node, head=back.head)
            self._ledger.send(back.leader, message)
