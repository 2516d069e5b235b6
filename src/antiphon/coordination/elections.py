"""All open elections: from a lost leader to a new one that answers, one shard at a time, any number at once.

    Online --leader lost--> Election --fence met, best chosen--> CandidateFound --it leads--> Online             (S3.8-S3.14)
       every state --too few left to meet the fence--> Offline --enough back--> Election
    CandidateFound --no answer--> Election, the next candidate; none left --> Offline for a while                     (S3.15)

Each arrow is first a record of `__cluster`; messages are sent only when the record is committed
(`Elections.committed`). So a coordinator that dies at any point leaves a term that nobody leads in yet, or a leader
that the log names. Its successor can always elect in a higher term.

`fences` says what a fence is and whom it lets lead. `live_sets` has the recorded live sets. Shards that choose their
own leader, by vote or because every replica writes, are handled by `self_led`.
"""

from collections import Counter
from typing import Literal

import msgspec

from antiphon.coordination import deletions, live_sets
from antiphon.coordination.actions import UncleanElection
from antiphon.coordination.candidacies import Candidacies
from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.election import (
    Election,
    appointed,
    can_commit,
    choose_leader,
    goes_by_live,
    may_be_unclean,
)
from antiphon.coordination.fences import Fence, can_be_met, in_order, least_promises, voting
from antiphon.coordination.followers import Followers
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.profiles import Options, Replication
from antiphon.coordination.rule_changes import RuleChanges
from antiphon.coordination.self_led import SelfLed, is_self_led
from antiphon.coordination.shard_records import ShardRecords
from antiphon.coordination.state import has_leader
from antiphon.coordination.timers import Timers
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ABSENT_NODE, ShardStatus, TopicMeta
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import BecomeLeaderReply, NewTerm, NewTermReply, NodeId

RESEND_MS = 200
RESEND_MS_MAX = 5_000
GRACE_MS = 250  # for the promises of members that are alive, once there are enough
STRANGER_MS = 1_000  # a member that the leader was not told of is fenced and added after this
REFUSALS_AT_ONCE = 3  # candidates that refuse are asked in a new term at once, so many times in a row
PAUSE_MS = 1_000  # Offline, after every candidate has failed
UNCLEAN_AFTER_MS = 3_000  # a live member may come back for so long before one that is not live is elected
OPEN_PER_MS = 20  # elections going on, for each of which every time-out is a little longer
TIMERS_PER_TICK = 5_000

_Kind = Literal["resend", "grace", "promote", "pause"]


class Elections:
    """Starts, drives and ends elections. It decides on `ledger.model` and sends messages once a decision is committed."""

    def __init__(self, ledger: Ledger) -> None:
        self.followers = Followers(ledger)
        self.begun: Counter[str] = Counter()  # since this coordinator began, by reason
        # Shards whose members all answered, and too few of them remember everything
        self.hopeless: set[int] = set()
        self._ledger = ledger
        self._model = ledger.model
        self._shards = ShardRecords(ledger)
        self._candidacies = Candidacies(ledger.model)
        self._options = Options(ledger.model.topics, ledger.model.names)
        self._self_led = SelfLed(self._shards)
        self._rules = RuleChanges(self._options, ledger.model)
        self._open: dict[int, Election] = {}
        self._pauses: dict[int, Election] = {}  # shard -> what marks the timer of its pause
        self._timers: Timers[tuple[_Kind, Election]] = Timers()
        self._now_ms = 0

    def __len__(self) -> int:
        return len(self._open)

    def options_of(self, record: ShardRecord) -> Replication:
        """How the shard's topic is replicated."""
        return self._options.of(record.topic_id)

    # -- decisions ----------------------------------------------------------------------------------------------

    def begin(
        self,
        shard_id: int,
        reason: str,
        *,
        wanted: NodeId | None = None,
        above: int = 0,
        ordered: bool = False,
        waited: bool = False,
    ) -> None:
        """Elect in a new term, or take the shard offline if too few members are available.

        Args:
            shard_id: the shard.
            reason: why, in a word, for those who count.
            wanted: the node that should lead, if the promises allow it.
            above: the term will be above this one.
            ordered: an operator asks: with manual appointment any member may lead (C4); an unclean election does not wait.
            waited: live members had their time to come back (C10).
        """
        record = self._model.shards[shard_id]
        options = self.options_of(record)
        self.begun[reason] += 1
        self.forget(shard_id)
        if is_self_led(options):
            self._self_led.begin(record, options)
            return
        meta = record.meta
        if meta.fence == Fence.LIVE and not options.is_live:
            meta = msgspec.structs.replace(meta, fence=Fence.BOTH)
        there = [n for n in voting(meta) if self._model.is_alive(n) and n not in record.untrusted]
        only = appointed(record, wanted) if options.election == "manual" and not ordered else None
        enough = can_be_met(meta, there) and (only is None or only in there)
        unclean = not enough and may_be_unclean(meta, options, only, self._model.is_alive)
        if unclean and not (ordered or waited):
            self._pause(shard_id, UNCLEAN_AFTER_MS)
        if not enough and not (unclean and (ordered or waited)):
            self._shards.take_offline(record, fence=meta.fence)
            return
        self._pauses.pop(shard_id, None)
        term = max(meta.term, above) + 1
        failed = self._candidacies.failed(shard_id)
        self._open[shard_id] = Election(
            shard_id, term, wanted=wanted, only=only, failed=failed, unclean=unclean
        )
        self._shards.set(record, term=term, status=ShardStatus.ELECTION, leader=ABSENT_NODE, fence=meta.fence)

    def forget(self, shard_id: int) -> None:
        """Drop the shard's open election."""
        self.hopeless.discard(shard_id)
        election = self._open.pop(shard_id, None)
        if election is not None and election.candidate is not None:
            self._candidacies.ended(election.candidate)
        record = self._model.shards.get(shard_id)
        if record is not None:
            self.followers.forget(shard_id, record.meta.everybody)

    def deleted(self, shard_id: int) -> None:
        """The shard is about to be deleted."""
        self.forget(shard_id)
        self._candidacies.forget(shard_id)
        self._pauses.pop(shard_id, None)

    def resume(self, now_ms: int) -> None:
        """Take over from another coordinator: finish what it left open, leave alone what works."""
        self._now_ms = now_ms
        for shard_id, record in list(self._model.shards.items()):
            meta = record.meta
            options = self.options_of(record)
            if is_self_led(options):
                self._self_led.resume(record, options)
            elif has_leader(meta) and self._model.is_alive(meta.leader):
                self._rules.check(record)
                self._shards.leave_out_the_dead(record)
                for node in meta.everybody:
                    if node not in meta.live and self._model.is_alive(node):
                        self.followers.bring_back(shard_id, node, meta.leader, now_ms, STRANGER_MS)
            else:
                self.begin(shard_id, "resumed")

    def options_changed(self, topic: TopicMeta) -> None:
        """A topic's settings were changed: shards whose terms use the wrong rule now get a new term, a few at a time."""
        for shard_id in list(self._model.shards_of[topic.topic_id]):
            record = self._model.shards[shard_id]
            if is_self_led(self.options_of(record)):
                continue
            if record.meta.status == ShardStatus.OFFLINE:
                self.begin(shard_id, "settings")  # what was not allowed may be now
            else:
                self._rules.check(record)

    def node_lost(self, node: NodeId, now_ms: int) -> None:
        """The node was just marked as dead: elect where it led, and do without it elsewhere (S3.7)."""
        self._now_ms = now_ms
        for shard_id in list(self._model.shards_on.get(node, ())):
            record = self._model.shards[shard_id]
            options = self.options_of(record)
            self.followers.arrived(shard_id, node)
            if is_self_led(options):
                self._self_led.node_lost(record, options, node)
            elif record.meta.status != ShardStatus.OFFLINE:
                self._member_lost(record, options, node, now_ms)

    def _member_lost(self, record: ShardRecord, options: Replication, node: NodeId, now_ms: int) -> None:
        meta = record.meta
        election = self._open.get(meta.shard_id)
        leads = meta.leader == node or (election is not None and election.candidate == node)
        undecided = election is not None and election.candidate is None
        by_live = goes_by_live(meta, election)
        there = [n for n in voting(meta) if self._model.is_alive(n)]
        if undecided and election is not None:
            goes_on = election.unclean or can_be_met(meta, there)
        else:
            goes_on = by_live or can_commit(meta, options, there)
        if leads or not goes_on:
            self.begin(meta.shard_id, "member_lost")
        elif undecided and election is not None:
            self._decide(election, now_ms)
        elif by_live:
            self._shards.put(record, live_sets.without(meta, (node,)))
        elif meta.fence == Fence.MAJORITY and node in meta.live:
            self._shards.set(record, live=tuple(member for member in meta.live if member != node))

    def node_returned(self, node: NodeId, *, restarted: bool, disk_replaced: bool) -> None:
        """The node was just marked as alive, or has a new process: elect in shards that waited for it or that it led
        before.

        If its disk was replaced, its promises are no evidence until a leader of a new term has brought it up to date.
        """
        for shard_id in list(self._model.shards_on.get(node, ())):
            record = self._model.shards[shard_id]
            options = self.options_of(record)
            if is_self_led(options):
                self._self_led.node_returned(
                    record, options, node, restarted=restarted, replaced=disk_replaced
                )
            else:
                self._member_returned(record, node, restarted=restarted, replaced=disk_replaced)

    def _member_returned(self, record: ShardRecord, node: NodeId, *, restarted: bool, replaced: bool) -> None:
        shard_id = record.meta.shard_id
        self._candidacies.returned(shard_id, node)
        if replaced:
            record = self._shards.distrust(record, node)
        meta = record.meta
        election = self._open.get(shard_id)
        leads = meta.leader == node or (election is not None and election.candidate == node)
        if restarted and election is not None and election.candidate is None:
            # A process that is gone has promised. One that has forgotten its promises waits to be asked.
            election.replies.pop(node, None)
        if meta.status == ShardStatus.OFFLINE or (restarted and leads) or replaced:
            self.begin(shard_id, "member_returned")
        elif restarted and node in meta.live and meta.fence == Fence.MAJORITY:
            # The leader must see it again before it counts as keeping up. (In the live set it stays: all is on its disk.)
            self._shards.set(record, live=tuple(member for member in meta.live if member != node))

    # -- what is committed may be spoken -------------------------------------------------------------------------

    def node_joined(self, node: NodeId, now_ms: int) -> None:
        """The node's return is committed: bring it back into every shard that it belongs to."""
        for shard_id in self._model.shards_on.get(node, ()):
            record = self._model.shards[shard_id]
            meta = record.meta
            if is_self_led(self.options_of(record)):
                continue
            election = self._open.get(shard_id)
            if election is None:
                if has_leader(meta):
                    self.followers.bring_back(shard_id, node, meta.leader, now_ms)
            elif election.promoted and election.candidate is not None:
                self.followers.bring_back(shard_id, node, election.candidate, now_ms)
            elif election.spoken and node not in election.replies:
                self._ledger.send(node, NewTerm(shard_id, election.term))

    def committed(self, record: ShardRecord, now_ms: int) -> None:
        """A shard's after-image is committed: send what follows from it, unless it is out of date."""
        shard_id = record.meta.shard_id
        election = self._open.get(shard_id)
        if election is None:
            newest = self._model.shards.get(shard_id)
            if newest is not None and has_leader(newest.meta):
                self._rules.check(newest)
            return
        if election.term != record.meta.term:
            return
        if record.meta.status == ShardStatus.ELECTION and not election.spoken:
            election.spoken = True
            self._send_new_term(election, now_ms)
        elif record.meta.status == ShardStatus.CANDIDATE_FOUND and not election.promoted:
            self._send_become_leader(election, record, now_ms)

    def _send_new_term(self, election: Election, now_ms: int) -> None:
        for node in self._model.shards[election.shard_id].meta.everybody:
            if self._model.is_alive(node) and node not in election.replies:
                self._ledger.send(node, NewTerm(election.shard_id, election.term))
        wait_ms = min(RESEND_MS << min(election.resends, 10), RESEND_MS_MAX)
        election.resends += 1
        self._timers.add(now_ms + wait_ms + self._backlog_ms(), ("resend", election))

    def _send_become_leader(self, election: Election, record: ShardRecord, now_ms: int) -> None:
        """Tell the candidate to lead with the members committed in `record`; it receives later changes as any leader
        does.
        """
        candidate = election.candidate
        if candidate is None:
            return
        election.promoted = True
        if election.unclean:
            self._ledger.act(UncleanElection(election.shard_id, election.term, candidate))
        message = election.become_leader(record)
        self._ledger.send(candidate, message)
        self.followers.not_told(election, record.meta, {node for node, _ in message.heads}, now_ms)
        wait_ms = self._candidacies.wait_ms(election.shard_id)
        self._timers.add(now_ms + wait_ms + self._backlog_ms(), ("promote", election))

    # -- answers --------------------------------------------------------------------------------------------------

    def promise(self, sender: NodeId, reply: NewTermReply, now_ms: int) -> None:
        """A replica has durably promised a term. Late, repeated and old answers do no harm."""
        record = self._model.shards.get(reply.shard)
        if record is None or sender not in record.meta.everybody or not self._model.is_alive(sender):
            return
        if reply.term != record.meta.term or is_self_led(self.options_of(record)):
            return
        election = self._open.get(reply.shard)
        leader = record.meta.leader if has_leader(record.meta) else ABSENT_NODE
        if election is not None and election.promoted and election.candidate is not None:
            leader = election.candidate
        elif election is not None:
            election.replies[sender] = reply
            if election.candidate is None:
                self._decide(election, now_ms)
            return
        if leader == ABSENT_NODE:
            return
        if reply.damaged and goes_by_live(record.meta, election):
            self._shards.put(record, live_sets.without(record.meta, (sender,)))
        known = sender in (record.meta.live if election is None else election.replies)
        self.followers.promised(sender, reply, leader, now_ms, known=known)

    def leads(self, sender: NodeId, reply: BecomeLeaderReply) -> None:
        """The candidate leads: its term's first entry is committed by the rule that the term goes by (S3.14)."""
        election = self._open.get(reply.shard)
        if (
            election is None
            or not election.promoted
            or election.term != reply.term
            or election.candidate != sender
        ):
            return
        record = self._model.shards[reply.shard]
        meta = record.meta
        del self._open[reply.shard]
        self._candidacies.ended(sender)
        self._candidacies.forget(reply.shard)
        live, fence = meta.live, Fence.LIVE
        if not election.by_live:
            told = {node for node, _ in election.heads(record)} - election.damaged()
            caught_up = (n for n in told if n not in record.untrusted and self._model.is_alive(n))
            live, fence = in_order(meta, (sender, *caught_up)), Fence.MAJORITY
        self._shards.set(record, status=ShardStatus.ONLINE, leader=sender, live=live, fence=fence)

    def stale(self, sender: NodeId, shard_id: int, term: int) -> None:
        """A replica refused a message: it knows a higher term than was ever decided here, or it does not lead (any
        more).

        A candidate that was restarted meanwhile refuses to lead in this term. A former leader refuses to send entries
        to a follower. They get a new term at once; a replica that keeps refusing waits for the time-out.
        """
        record = self._model.shards.get(shard_id)
        if record is None or term < record.meta.term or is_self_led(self.options_of(record)):
            return
        if term > record.meta.term:
            self.begin(shard_id, "higher_term", above=term)
            return
        election = self._open.get(shard_id)
        refused = election is not None and election.promoted and election.candidate == sender
        if refused or (election is None and has_leader(record.meta) and record.meta.leader == sender):
            in_a_row = self._candidacies.refused(shard_id)
            if in_a_row <= REFUSALS_AT_ONCE:
                self.begin(shard_id, "refused")

    def live_set(self, sender: NodeId, report: LiveSet, now_ms: int) -> None:
        """A leader reports its followers: a member that keeps up is trusted again, an unknown member is brought back.

        If commits use the live set, the report is a proposal. A candidate may also send one: it becomes ready only when
        enough members are live.
        """
        record = self._model.shards.get(report.shard_id)
        if record is None:
            return
        options = self.options_of(record)
        if is_self_led(options):
            self._self_led.report(record, options, sender, report)
            return
        meta = record.meta
        election = self._open.get(meta.shard_id)
        leads = meta.leader == sender and has_leader(meta)
        if election is not None and election.promoted and election.by_live and election.candidate == sender:
            leads = True
        if not leads or meta.term != report.term:
            return
        self._shards.report(record, sender, report, by_live=goes_by_live(meta, election))
        replicating = {sender, *report.lagging, *live_sets.vouched_for(meta, report)}
        for node in meta.everybody:
            if node in replicating:
                self.followers.arrived(meta.shard_id, node)
            elif self._model.is_alive(node) and not self.followers.is_returning(meta.shard_id, node):
                self.followers.bring_back(meta.shard_id, node, sender, now_ms, delay_ms=STRANGER_MS)

    # -- time -----------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Repeat messages, decide without late members, and give up on candidates that do not answer (S3.15)."""
        self._now_ms = now_ms
        for kind, election in self._timers.due(now_ms, TIMERS_PER_TICK):
            shard_id = election.shard_id
            if kind == "pause":
                if self._pauses.get(shard_id) is election:
                    del self._pauses[shard_id]
                    self.begin(shard_id, "retried", waited=True)
                continue
            if self._open.get(shard_id) is not election:
                continue
            if kind == "promote" and election.candidate is not None:
                self._candidacies.unanswered(election, election.candidate)
                self.begin(shard_id, "unanswered")
            elif election.candidate is None:
                if kind == "grace":
                    election.grace_over = True
                    self._decide(election, now_ms)
                else:
                    self._send_new_term(election, now_ms)
        for shard_id, leader in self._rules.due(self._open):
            self.begin(shard_id, "settings", wanted=leader)
        self.followers.tick(now_ms)

    def _pause(self, shard_id: int, wait_ms: int) -> None:
        """Try again after a while, unless something happens before."""
        if shard_id not in self._pauses:
            mark = self._pauses[shard_id] = Election(shard_id, 0)
            self._timers.add(self._now_ms + wait_ms, ("pause", mark))

    # -- parts ----------------------------------------------------------------------------------------------------

    def _decide(self, election: Election, now_ms: int) -> None:
        """Choose when all members that are alive have promised, or when enough have and the others had their time."""
        record = self._model.shards[election.shard_id]
        waiting = any(
            node not in election.replies and self._model.is_alive(node)
            for node in election.awaited(record.meta)
        )
        if waiting and (
            (election.grace and not election.grace_over)
            or len(election.replies) < least_promises(record.meta)
        ):
            return
        votes = election.counted(record, self._model.is_alive)
        if not election.able(record, votes):
            if not waiting:
                self._nobody(election, record)
            return
        if waiting and not election.grace_over:
            election.grace = True
            self._timers.add(now_ms + GRACE_MS + self._backlog_ms(), ("grace", election))
            return
        candidate = choose_leader(election, record, votes, self._candidacies.load)
        if candidate is None:  # exhausted (S3.15)
            self.forget(election.shard_id)
            self._candidacies.exhausted(election.shard_id)
            self._shards.take_offline(record)
            self._pause(election.shard_id, PAUSE_MS)
            return
        self._found(election, record, votes, candidate)

    def _found(
        self, election: Election, record: ShardRecord, votes: dict[NodeId, EntryId], candidate: NodeId
    ) -> None:
        """Record the candidate, and with it the live set at the beginning of its term."""
        meta = record.meta
        wants_live = self.options_of(record).is_live and not meta.outgoing
        election.by_live = meta.fence == Fence.LIVE or wants_live
        election.candidate = candidate
        self._candidacies.began(candidate)
        changed = deletions.of_new_term(live_sets.of_new_term(election, record, votes, candidate), election)
        manual = self.options_of(record).election == "manual"
        self._shards.put(
            record,
            msgspec.structs.replace(changed, status=ShardStatus.CANDIDATE_FOUND),
            appointed=candidate if manual else record.appointed,
        )

    def _nobody(self, election: Election, record: ShardRecord) -> None:
        """All answered, and none may lead: too few remember everything."""
        self.forget(election.shard_id)
        if election.only is not None and election.only != appointed(record, None):
            self.begin(election.shard_id, "retried")  # who was to take over could not: back to who led
            return
        if record.meta.fence != Fence.MAJORITY:
            kept = live_sets.without(record.meta, election.damaged())
            if kept is not record.meta:
                self._shards.put(record, kept)  # a damaged log holds no longer all that was committed
                self.begin(election.shard_id, "damaged")
                return
        self._shards.take_offline(record)
        if election.only is None:  # else an operator may appoint another one
            self.hopeless.add(election.shard_id)

    def _backlog_ms(self) -> int:
        """How long the answers of all open elections may take to process: no member counts as late before that."""
        return len(self._open) // OPEN_PER_MS
