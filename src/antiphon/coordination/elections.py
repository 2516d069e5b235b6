"""All elections that are going on: from a lost leader to a new one that answers, a shard at a time, any number at once.

    Online --leader lost--> Election --majority promised, best chosen--> CandidateFound --it leads--> Online     (S3.8-S3.14)
       every state --majority of the ensemble gone--> Offline --enough back--> Election

Each arrow is a record of `__cluster` first; only when that is committed is it spoken (`Elections.committed`). So a
coordinator that dies at any point leaves behind a term that nobody leads in yet, or a leader that the log names, and its
successor can always go on by electing in a higher term.
"""

from typing import Literal

import msgspec

from antiphon.coordination.election import Election, choose_leader
from antiphon.coordination.fences import can_be_met, electable, in_order, voting
from antiphon.coordination.followers import Followers
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.state import ShardRecord, has_leader
from antiphon.coordination.timers import Timers
from antiphon.replication.messages import BecomeLeader, BecomeLeaderReply, NewTerm, NewTermReply, NodeId
from antiphon.wire.cluster import LiveSet
from antiphon.wire.metadata import ABSENT_NODE, ShardMeta, ShardStatus

RESEND_MS = 200
RESEND_MS_MAX = 5_000
GRACE_MS = 250  # for the promises of members that are alive, once there is a majority
PROMOTE_MS = 1_500
PROMOTE_MS_MAX = 60_000
STRANGER_MS = 1_000  # a member that the leader was not told of is fenced and added after this
REFUSALS_AT_ONCE = 3  # candidates that refuse are asked in a new term at once, so many times in a row
TIMERS_PER_TICK = 5_000

_Kind = Literal["resend", "grace", "promote"]


class Elections:
    """Starts, drives and ends elections; decides on `ledger.model`, speaks when told that a decision is committed."""

    def __init__(self, ledger: Ledger) -> None:
        self.followers = Followers(ledger)
        self._ledger = ledger
        self._model = ledger.model
        self._open: dict[int, Election] = {}
        self._failures: dict[int, int] = {}  # shard -> promotions in a row that were not answered
        self._promised_to_lead: dict[
            NodeId, int
        ] = {}  # candidates that have not answered yet, for an even spread
        self._timers: Timers[tuple[_Kind, Election]] = Timers()

    def __len__(self) -> int:
        return len(self._open)

    # -- decisions ----------------------------------------------------------------------------------------------

    def begin(
        self, shard_id: int, *, wanted: NodeId | None = None, avoid: NodeId | None = None, above: int = 0
    ) -> None:
        """Elect in a new term (above `above`), or take the shard offline when too few members are there to ask."""
        record = self._model.shards[shard_id]
        self.forget(shard_id)
        there = [n for n in voting(record.meta) if self._model.is_alive(n) and n not in record.untrusted]
        if not can_be_met(record.meta, there):
            self._take_offline(record)
            return
        term = max(record.meta.term, above) + 1
        self._open[shard_id] = Election(shard_id, term, wanted=wanted, avoid=avoid)
        self._set(record, term=term, status=ShardStatus.ELECTION, leader=ABSENT_NODE)

    def forget(self, shard_id: int) -> None:
        """Drop what is going on for the shard."""
        election = self._open.pop(shard_id, None)
        if election is not None and election.candidate is not None:
            self._promised_to_lead[election.candidate] -= 1
        record = self._model.shards.get(shard_id)
        if record is not None:
            self.followers.forget(shard_id, record.meta.everybody)

    def deleted(self, shard_id: int) -> None:
        """The shard is about to be deleted."""
        self.forget(shard_id)
        self._failures.pop(shard_id, None)

    def resume(self, now_ms: int) -> None:
        """Take over from a coordinator that is gone: finish what it left open, leave alone what works."""
        for shard_id, record in list(self._model.shards.items()):
            meta = record.meta
            if has_leader(meta) and self._model.is_alive(meta.leader):
                for node in meta.everybody:
                    if node not in meta.live and self._model.is_alive(node):
                        self.followers.bring_back(shard_id, node, meta.leader, now_ms, STRANGER_MS)
            else:
                self.begin(shard_id)

    def node_lost(self, node: NodeId, now_ms: int) -> None:
        """The node was just marked as not alive: elect wherever it led, do without it elsewhere (S3.7)."""
        for shard_id in list(self._model.shards_on.get(node, ())):
            record = self._model.shards[shard_id]
            meta = record.meta
            election = self._open.get(shard_id)
            self.followers.arrived(shard_id, node)
            alive = [member for member in voting(meta) if self._model.is_alive(member)]
            if meta.status == ShardStatus.OFFLINE:
                continue
            leads = meta.leader == node or (election is not None and election.candidate == node)
            if leads or not can_be_met(meta, alive):
                self.begin(shard_id)
            elif election is not None and election.candidate is None:
                self._decide(election, now_ms)
            elif node in meta.live:
                self._set(record, live=tuple(member for member in meta.live if member != node))

    def node_returned(self, node: NodeId, *, restarted: bool, disk_replaced: bool) -> None:
        """The node was just marked as alive, or has a new process: elect what waited for it, or what it no longer leads.

        Where its disk was replaced, its promises are no evidence until a leader of a new term has brought it up to date.
        """
        for shard_id in list(self._model.shards_on.get(node, ())):
            record = self._model.shards[shard_id]
            if disk_replaced and node not in record.untrusted:
                record = self._set(record, untrusted=(*record.untrusted, node))
            election = self._open.get(shard_id)
            leads = record.meta.leader == node or (election is not None and election.candidate == node)
            if record.meta.status == ShardStatus.OFFLINE or (restarted and leads) or disk_replaced:
                self.begin(shard_id)
            elif restarted and node in record.meta.live:
                # The leader must see it again before it counts as keeping up.
                self._set(record, live=tuple(member for member in record.meta.live if member != node))

    # -- what is committed may be spoken -------------------------------------------------------------------------

    def node_joined(self, node: NodeId, now_ms: int) -> None:
        """The node's return is committed: bring it back into every shard that it belongs to."""
        for shard_id in self._model.shards_on.get(node, ()):
            meta = self._model.shards[shard_id].meta
            election = self._open.get(shard_id)
            if election is None:
                if has_leader(meta):
                    self.followers.bring_back(shard_id, node, meta.leader, now_ms)
            elif election.promoted and election.candidate is not None:
                self.followers.bring_back(shard_id, node, election.candidate, now_ms)
            elif election.spoken and node not in election.replies:
                self._ledger.send(node, NewTerm(shard_id, election.term))

    def committed(self, record: ShardRecord, now_ms: int) -> None:
        """A shard's after-image is committed: say what follows from it, unless it is out of date already."""
        shard_id = record.meta.shard_id
        election = self._open.get(shard_id)
        if election is None or election.term != record.meta.term:
            return
        if record.meta.status == ShardStatus.ELECTION and not election.spoken:
            election.spoken = True
            self._send_new_term(election, now_ms)
        elif record.meta.status == ShardStatus.CANDIDATE_FOUND and not election.promoted:
            self._send_become_leader(election, now_ms)

    def _send_new_term(self, election: Election, now_ms: int) -> None:
        for node in self._model.shards[election.shard_id].meta.everybody:
            if self._model.is_alive(node) and node not in election.replies:
                self._ledger.send(node, NewTerm(election.shard_id, election.term))
        wait_ms = min(RESEND_MS << min(election.resends, 10), RESEND_MS_MAX)
        election.resends += 1
        self._timers.add(now_ms + wait_ms, ("resend", election))

    def _send_become_leader(self, election: Election, now_ms: int) -> None:
        record = self._model.shards[election.shard_id]
        candidate = election.candidate
        if candidate is None:
            return
        election.promoted = True
        meta = record.meta
        message = BecomeLeader(
            election.shard_id,
            election.term,
            ensemble=meta.ensemble,
            heads=election.heads(record),
            outgoing=meta.outgoing,
            learners=meta.learners,
            members_version=meta.members_version,
        )
        self._ledger.send(candidate, message)
        told = {node for node, _ in message.heads}
        for node, reply in election.replies.items():
            if node not in told:
                self.followers.promised(node, reply, candidate, now_ms, known=False)
        for node in meta.everybody:
            if node not in election.replies and self._model.is_alive(node):
                # The election did without it. The leader will not miss it either: it was never told of it.
                self.followers.bring_back(election.shard_id, node, candidate, now_ms)
        wait_ms = min(PROMOTE_MS << min(self._failures.get(election.shard_id, 0), 10), PROMOTE_MS_MAX)
        self._timers.add(now_ms + wait_ms, ("promote", election))

    # -- answers --------------------------------------------------------------------------------------------------

    def promise(self, sender: NodeId, reply: NewTermReply, now_ms: int) -> None:
        """A replica has durably promised a term. Late, repeated and old answers do no harm."""
        record = self._model.shards.get(reply.shard)
        if record is None or sender not in record.meta.everybody or not self._model.is_alive(sender):
            return
        if reply.term != record.meta.term:
            return
        election = self._open.get(reply.shard)
        if election is None:
            if has_leader(record.meta):
                self.followers.promised(
                    sender, reply, record.meta.leader, now_ms, known=sender in record.meta.live
                )
        elif election.promoted and election.candidate is not None:
            known = sender in election.replies
            self.followers.promised(sender, reply, election.candidate, now_ms, known=known)
        else:
            election.replies[sender] = reply
            if election.candidate is None:
                self._decide(election, now_ms)

    def leads(self, sender: NodeId, reply: BecomeLeaderReply) -> None:
        """The candidate leads: its term's first entry is committed by a majority (S3.14)."""
        election = self._open.get(reply.shard)
        if (
            election is None
            or not election.promoted
            or election.term != reply.term
            or election.candidate != sender
        ):
            return
        record = self._model.shards[reply.shard]
        told = {node for node, _ in election.heads(record)}
        live = in_order(
            record.meta,
            [
                sender,
                *(n for n in told if n not in record.untrusted and self._model.is_alive(n)),
            ],
        )
        del self._open[reply.shard]
        self._promised_to_lead[sender] -= 1
        self._failures.pop(reply.shard, None)
        self._set(record, status=ShardStatus.ONLINE, leader=sender, live=live)

    def stale(self, sender: NodeId, shard_id: int, term: int) -> None:
        """A replica refused something: it knows a higher term than was ever decided here, or it does not (any more) lead.

        A candidate that was restarted in between refuses to lead in this term, a leader that was refuses to feed. They get a
        new term at once, but who keeps refusing waits for the time-out.
        """
        record = self._model.shards.get(shard_id)
        if record is None or term < record.meta.term:
            return
        if term > record.meta.term:
            self.begin(shard_id, above=term)
            return
        election = self._open.get(shard_id)
        refused = election is not None and election.promoted and election.candidate == sender
        if refused or (election is None and has_leader(record.meta) and record.meta.leader == sender):
            failures = self._failures[shard_id] = self._failures.get(shard_id, 0) + 1
            if failures <= REFUSALS_AT_ONCE:
                self.begin(shard_id)

    def live_set(self, sender: NodeId, report: LiveSet, now_ms: int) -> None:
        """A leader's word on its followers: who keeps up is trusted again, whom it does not know is brought back."""
        record = self._model.shards.get(report.shard_id)
        if record is None or not has_leader(record.meta):
            return
        meta = record.meta
        if meta.leader != sender or meta.term != report.term:
            return
        live = tuple(
            n for n in meta.everybody if n == sender or (n in report.live and self._model.is_alive(n))
        )
        untrusted = tuple(n for n in record.untrusted if n not in live)
        if live != meta.live or untrusted != record.untrusted:
            self._set(record, live=live, untrusted=untrusted)
        for node in meta.everybody:
            if node in live or node in report.lagging:
                self.followers.arrived(meta.shard_id, node)
            elif self._model.is_alive(node) and not self.followers.is_returning(meta.shard_id, node):
                self.followers.bring_back(meta.shard_id, node, sender, now_ms, delay_ms=STRANGER_MS)

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Repeat, decide without those who are late, and give up on candidates that do not answer (S3.15)."""
        for kind, election in self._timers.due(now_ms, TIMERS_PER_TICK):
            if self._open.get(election.shard_id) is not election:
                continue
            if kind == "promote":
                failures = self._failures.get(election.shard_id, 0) + 1
                self._failures[election.shard_id] = failures
                self.begin(election.shard_id, avoid=election.candidate)
            elif election.candidate is None:
                if kind == "grace":
                    election.grace_over = True
                    self._decide(election, now_ms)
                else:
                    self._send_new_term(election, now_ms)
        self.followers.tick(now_ms)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _decide(self, election: Election, now_ms: int) -> None:
        """Choose when all that are alive have promised, or a majority has and the others had their time."""
        record = self._model.shards[election.shard_id]
        votes = election.votes(record, self._model.is_alive)
        waiting = any(
            self._model.is_alive(node) and node not in election.replies for node in voting(record.meta)
        )
        if not electable(record.meta, votes):
            if not waiting:
                self.forget(election.shard_id)  # everybody answered, and too few remember everything
                self._take_offline(record)
            return
        if waiting and not election.grace_over:
            if not election.grace:
                election.grace = True
                self._timers.add(now_ms + GRACE_MS, ("grace", election))
            return
        candidate = choose_leader(election, record, votes, self._leadership)
        election.candidate = candidate
        self._promised_to_lead[candidate] = self._promised_to_lead.get(candidate, 0) + 1
        self._set(record, status=ShardStatus.CANDIDATE_FOUND)

    def _leadership(self, node: NodeId) -> int:
        return self._model.led_by.get(node, 0) + self._promised_to_lead.get(node, 0)

    def _take_offline(self, record: ShardRecord) -> None:
        if record.meta.status != ShardStatus.OFFLINE or record.meta.leader != ABSENT_NODE:
            self._set(record, status=ShardStatus.OFFLINE, leader=ABSENT_NODE, live=())

    def _set(
        self, record: ShardRecord, *, untrusted: tuple[int, ...] | None = None, **changes: object
    ) -> ShardRecord:
        meta: ShardMeta = msgspec.structs.replace(record.meta, **changes)
        kept = record.untrusted if untrusted is None else untrusted
        changed = msgspec.structs.replace(record, meta=meta, untrusted=kept)
        self._ledger.put_shard(changed)
        return changed
