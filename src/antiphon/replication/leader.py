"""The leading half of a replica: it brings together the parts of one leadership.

It is made when leadership begins and thrown away when it ends, so nothing of an old leadership can be mistaken for the
new one's. An answer that was underway is recognised by its term (messages) or checked against the log (entries that were
read).

| part | is about |
|---|---|
| `Replicator` | the followers: what each was sent, and what goes out next |
| `QuorumAckTracker` | the book of acknowledgements |
| `CommitTracker` | what is committed (S0.34), and settled after a change of members |
| `LeaderReads` | whether this replica still leads, for reads and for itself |
| `LeaderLease` | until when nobody else can lead, by what the followers have promised |
| `LiveMembers` | the live set, where the term goes by one |
| `CommitMarker` | entries that tell of commits |

The high watermark rises when the acknowledgements say so, whoever's came last.
"""

from collections.abc import Callable, Collection, Sequence

from antiphon.invariants import invariant
from antiphon.records.entry_id import EMPTY, EntryId
from antiphon.replication.actions import Action, LeaderReady
from antiphon.replication.commit_marker import CommitMarker
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import MakeMarker
from antiphon.replication.leader_commit import CommitTracker
from antiphon.replication.leader_reads import LeaderReads
from antiphon.replication.leadership import Leadership
from antiphon.replication.lease import LeaderLease
from antiphon.replication.live_members import LiveMembers
from antiphon.replication.live_set import LiveSet
from antiphon.replication.members import Members
from antiphon.replication.messages import Ack, Entry, NodeId, Reject, TruncateReply
from antiphon.replication.progress import Progress
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.replica_state import LEADER_PHASES, LeaderEvent, LeaderPhase, next_state
from antiphon.replication.replicator import Replicator

Told = Callable[[list[Action]], None]


class Leader:
    """One leadership.

    Args:
        leadership: who leads what.
        members: who counts.
        live: the live set, if this term goes by one.
        config: settings.
        make_marker: makes commit markers, see `EntryFactory`.
        on_ready: called when the first entry of the term is committed (S1.36).
        on_settled: called when what `watch_settling` watches is settled.

    Attributes:
        phase: see `replica_state`.
        replicator, reads, lease, commits, tracker: the parts.
    """

    def __init__(
        self,
        leadership: Leadership,
        members: Members,
        live: LiveSet | None,
        config: ReplicaConfig,
        make_marker: MakeMarker | None,
        on_ready: Told,
        on_settled: Told,
    ) -> None:
        log = leadership.log
        self.phase = LeaderPhase.STARTING
        self.live = live
        self.tracker = QuorumAckTracker(leadership.node, members, term_start=log.terms.log_end)
        self.tracker.record(self.tracker.own_slot, log.durable_end)
        self.replicator = Replicator(leadership, self.tracker, live, config)
        self.commits = CommitTracker(self.tracker, log, members, live, config.commit)
        self.lease = LeaderLease(self.tracker, self.replicator)
        self.reads = LeaderReads(
            leadership, self.tracker, self.replicator, self.lease, config.waiting_reads_max
        )
        self._live_members = (
            None if live is None else LiveMembers(live, leadership.node, self.replicator, self.commits)
        )
        self._leadership = leadership
        self._log = log
        self._on_ready = on_ready
        self._on_settled = on_settled
        self._make_marker = make_marker
        self._marker: CommitMarker | None = None
        self.set_config(config)

    def start(self, entry: Entry, heads: Sequence[tuple[NodeId, EntryId]], out: list[Action]) -> None:
        """Append the term-start entry (S1.36) and begin to send to the followers that have promised the term."""
        log, term = self._log, self._leadership.term
        if log.terms.end == EMPTY and not self.replicator.config.term_start_on_empty:
            for node, head in heads:
                self.replicator.add_follower(node, head, out)
            self._become_ready(out)
            return
        invariant(
            entry.term == term and entry.base_offset == log.terms.log_end,
            f"term-start entry {entry!r:.80} does not fit term {term} at {log.terms.log_end}",
        )
        out.append(log.append((entry,)))
        for node, head in heads:
            self.replicator.add_follower(node, head, out)

    # -- settings and members --------------------------------------------------------------------------------------

    def set_config(self, config: ReplicaConfig) -> None:
        """Other settings from now on, the commit rule included (C1); what was committed stays so. `recount` follows."""
        self.replicator.config = config
        self.commits.rule = config.commit
        self.reads.set_waiting_max(config.waiting_reads_max)
        self.lease.set_ms(config.lease_ms)
        if self.live is not None:
            self.live.config = config
        if not config.commit_marker or self._make_marker is None:
            self._marker = None
        elif self._marker is None:
            self._marker = CommitMarker(self._make_marker, self._log.commit_mark)

    def set_members(self, members: Members, out: list[Action]) -> None:
        """These are the members from now on (S0.2).

        Those that are none any longer are not sent to any more. New ones are once `Replicator.add_follower` says that they
        have promised the term; as voters they count from now on all the same.
        """
        self.commits.members = members
        self._keep_members()
        self.lease.members_changed()
        self.recount(out)
        if self._live_members is not None:
            self._live_members.ask_voters(out)
            self._live_members.propose(out)

    def _keep_members(self) -> None:
        """Send to members only, and to whoever counts until a record without it is known."""
        counting = self.live.counting if self.live is not None else ()
        self.replicator.keep({*self.commits.members.everybody, *counting})

    def recount(self, out: list[Action]) -> None:
        """Who counts, or how many are enough, has changed."""
        self.commits.count()
        self._advance(out)
        self.reads.confirm(out)

    def watch_settling(self, out: list[Action]) -> None:
        """Call `on_settled` once all that was ever committed, before the members changed, is held by the new voters."""
        self.commits.watch_settling()
        self._check_settled(out)

    def _check_settled(self, out: list[Action]) -> None:
        if self.commits.newly_settled():
            self._on_settled(out)

    def live_recorded(self, version: int, live: Collection[NodeId], out: list[Action]) -> None:
        """The coordinator has recorded `live` as the live set (S3.28, S3.29)."""
        if self.live is not None and self._live_members is not None and self.live.record(version, live):
            self._keep_members()
            self.recount(out)
            self._check_settled(out)
            self._live_members.ask_voters(out)  # one that was struck off may be back already
            self._live_members.propose(out)

    # -- writing and committing ------------------------------------------------------------------------------------

    def persisted(self, out: list[Action]) -> None:
        """More of the own log is durable."""
        durable_end = self._log.durable_end
        self.tracker.acks[self.tracker.own_slot] = durable_end
        if durable_end > self._log.settled:
            self._advance(out)
        if self.commits.unsettled is not None:
            self._check_settled(out)

    def _advance(self, out: list[Action]) -> None:
        if not self.commits.advance(out):
            return
        if self.phase is LeaderPhase.STARTING:
            self._become_ready(out)
        if self._marker is not None:
            mark, end = self._log.commit_mark, self._log.terms.log_end
            entry = self._marker.after(mark, self._leadership.term, end)
            if entry is not None:
                self.replicator.append(entry, out)

    def _become_ready(self, out: list[Action]) -> None:
        self.phase = next_state(LEADER_PHASES, self.phase, LeaderEvent.FIRST_COMMIT)
        out.append(LeaderReady(self._leadership.term))
        self._on_ready(out)

    # -- answers ---------------------------------------------------------------------------------------------------

    def on_ack(self, sender: NodeId, message: Ack, out: list[Action]) -> None:
        """A follower holds a prefix durably (S1.11). It counts only if that prefix is this log's (S0.13)."""
        progress = self.replicator.progress.get(sender)
        if progress is None or message.round < progress.ack_floor:
            return
        if self._acknowledged(progress, message.end, message.round, out):
            progress.accepted(message.round)
            progress.damaged = message.damaged
            if message.promised_ms:
                self.lease.promised(progress, message.round, message.promised_ms)
            if message.high_watermark > progress.known_watermark:
                # of this log, not of one that it may have given up
                progress.known_watermark = min(message.high_watermark, progress.ack_offset)
            if self.reads.waiting.round:
                self.reads.confirm(out)

    def on_truncate_reply(self, sender: NodeId, message: TruncateReply, out: list[Action]) -> None:
        """The follower has cut its log to a prefix of this one."""
        progress = self.replicator.progress.get(sender)
        if progress is not None:
            is_answer = message.head.offset == progress.last_pushed
            self._acknowledged(progress, message.head, progress.probe_round if is_answer else 0, out)

    def _acknowledged(self, progress: Progress, end: EntryId, round_: int, out: list[Action]) -> bool:
        replicator = self.replicator
        if not replicator.is_ours(progress, end):
            return False
        is_progress = replicator.holds(progress, end, round_)
        if is_progress and end.offset > self._log.settled:
            self._advance(out)
        if self.commits.unsettled is not None:
            self._check_settled(out)
        if self._live_members is not None:
            self._live_members.heard(progress, self._log.terms.log_end, out)
        if progress.last_pushed < self._log.terms.log_end:
            replicator.send_next(progress, out)
        return True

    def on_reject(self, sender: NodeId, message: Reject, out: list[Action]) -> None:
        """The logs do not agree where we asked."""
        progress = self.replicator.progress.get(sender)
        if progress is None:
            return
        progress.active = progress.answers = True
        if message.round > progress.round_echoed:
            progress.round_echoed = message.round
            self.reads.confirm(out)
        self.replicator.step_back(progress, message, out)

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self, out: list[Action]) -> None:
        """One tick passed."""
        awaited_round = self.reads.waiting.round
        self.replicator.tick(awaited_round, out)
        live = self._live_members
        if live is not None:
            if live.tick(self._log.terms.log_end, awaited_round):
                self.recount(out)
            live.ask_again(out)
            live.propose(out)

    @property
    def needs_tick(self) -> bool:
        """Is anything outstanding that only time can mend?"""
        if self.reads.waiting.round or self.replicator.needs_tick:
            return True
        return self._live_members is not None and self._live_members.needs_tick(self._log.terms.log_end)
