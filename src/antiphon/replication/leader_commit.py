"""The half of leading that decides what is committed: who counts, by which rule, and how far they have come.

`LeaderSide` feeds the followers and records what they acknowledge; here it is turned into a high watermark (S0.34), into
the news that the term is ready (S1.36), into confirmed reads, and into the answer that a change of members is settled.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection

from antiphon.replication.actions import Action, Commit, LeaderReady, ReadReady
from antiphon.replication.commit_marker import CommitMarker
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.config import ReplicaConfig
from antiphon.replication.entry_factory import MakeMarker
from antiphon.replication.follower_cursor import FollowerCursor
from antiphon.replication.live_set import LiveSet, Progress, Standing
from antiphon.replication.local_log import LocalLog
from antiphon.replication.members import Members
from antiphon.replication.messages import Entry, NodeId, ShardId
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.read_index import ReadIndex
from antiphon.replication.replica_state import LEADER_PHASES, LeaderEvent, LeaderPhase, next_state


class LeaderCommit(ABC):
    """What is committed in one leadership. See `LeaderSide`, which is this and the feeding."""

    def __init__(
        self,
        *,
        shard: ShardId,
        node_id: NodeId,
        term: int,
        members: Members,
        rule: CommitRule,
        live: LiveSet | None,
        log: LocalLog,
        config: ReplicaConfig,
        make_marker: MakeMarker | None,
        on_ready: Callable[[list[Action]], None],
        on_settled: Callable[[list[Action]], None],
    ) -> None:
        self._shard = shard
        self._node = node_id
        self._term = term
        self._log = log
        self._config = config
        self._on_ready = on_ready
        self._on_settled = on_settled
        self._make_marker = make_marker
        self._marker: CommitMarker | None = None
        self._unsettled: int | None = None  # end of what was committed when the members changed
        self._round = 1
        self._reads = ReadIndex(config.waiting_reads_max)
        self.phase = LeaderPhase.STARTING
        self.members = members
        self.rule = rule
        self.live = live  # where this term's commits go by it
        self.cursors: dict[NodeId, FollowerCursor] = {}
        self._unsent: list[Entry] = []  # appended, and not pushed to followers yet
        self._unsent_bytes = 0
        self._forgotten: set[NodeId] = set()  # fed in this term, and perhaps removed since
        self.tracker = QuorumAckTracker(node_id, members, term_start=log.terms.log_end)
        self._own_slot = self.tracker.own_slot
        self.tracker.record(self._own_slot, log.durable_end)
        self.set_config(config)
        self._count()

    def set_config(self, config: ReplicaConfig) -> None:
        """Other settings from now on; the commit rule is not among them."""
        self._config = config
        self._reads.waiting_max = config.waiting_reads_max
        if self.live is not None:
            self.live.config = config
        if not config.commit_marker or self._make_marker is None:
            self._marker = None
        elif self._marker is None:
            self._marker = CommitMarker(self._make_marker, self._log.commit_mark)

    # -- who counts --------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        if self.live is None:
            self.tracker.go_by_sets(self.members, self.rule)
        else:
            self.tracker.go_by_live(self.live.counting, enough=self.live.is_enough)

    def set_commit(self, rule: CommitRule, out: list[Action]) -> None:
        """Go by another rule from now on; what was committed stays so (C1)."""
        self.rule = rule
        self.recount(out)

    def set_members(self, members: Members, out: list[Action]) -> None:
        """These are the members from now on (S0.2).

        Those that are none any longer are not fed any more. New ones are fed once `add_follower` says that they have
        promised the term; as voters they count from now on all the same.
        """
        self.members = members
        self._forget_strangers()
        self.recount(out)
        if self.live is not None:
            self._ask_voters(out)
            self._propose_live(out)

    def _ask_voters(self, out: list[Action]) -> None:
        """Ask voters that are not live yet where they are; the answer may make them so."""
        for cursor in self._not_counting():
            self._beat(cursor, out)

    def _not_counting(self) -> list[FollowerCursor]:
        """Voters that are connected and not live."""
        counting = self.live.counting if self.live is not None else ()
        voters = self.members.voters
        return [
            c for node, c in self.cursors.items() if c.connected and node in voters and node not in counting
        ]

    def _forget_strangers(self) -> None:
        """Feed members only, and whoever counts until a record without it is known."""
        staying = {*self.members.everybody, *(self.live.counting if self.live is not None else ())}
        for node in [node for node in self.cursors if node not in staying]:
            del self.cursors[node]
            self.tracker.drop(node)
            self._forgotten.add(node)

    def recount(self, out: list[Action]) -> None:
        """Who counts, or how many are enough, has changed."""
        self._count()
        self._advance(out)
        if self._reads.is_waiting:
            self._confirm_reads(out)

    def watch_settling(self, out: list[Action]) -> None:
        """Call `on_settled` once all that was ever committed, before the members changed, is held by the new voters."""
        if self._unsettled is None:
            self._unsettled = self._ever_committed
        self._check_settled(out)

    @property
    def _ever_committed(self) -> int:
        """All that was ever committed lies before this.

        A new leader does not know how far its predecessors had come; but that lies before its own term's first entry.
        """
        return max(self._log.high_watermark, self.tracker.term_start)

    def _check_settled(self, out: list[Action]) -> None:
        mark = self._unsettled
        if mark is None:
            return
        if self.live is not None:
            # All who may lead next hold what is committed, as always. But while a former member counts, because a record
            # may yet name it, it must not come back: what it acknowledged is gone with its replica.
            is_settled = set(self.live.counting) <= set(self.members.voting)
        else:
            is_settled = self.tracker.held_by_majority(self.members.voters, mark)
        if is_settled:
            self._unsettled = None
            self._on_settled(out)

    # -- the live set ------------------------------------------------------------------------------------------------

    def live_recorded(self, version: int, live: Collection[NodeId], out: list[Action]) -> None:
        """The coordinator has recorded `live` as the live set (S3.28, S3.29)."""
        if self.live is not None and self.live.record(version, live):
            self._forget_strangers()
            self.recount(out)
            self._check_settled(out)
            self._ask_voters(out)  # one that was struck off may be back already
            self._propose_live(out)

    def _tick_live(self, out: list[Action]) -> None:
        """One tick passed: who lags, and who has come back?"""
        live = self.live
        if live is None:
            return
        counting = [self._progress(node) for node in live.counting if node != self._node]
        if live.tick(counting, self._log.terms.log_end, self._reads.round):
            self.recount(out)
        if live.is_to_ask():
            self._ask_voters(out)
        self._propose_live(out)

    def _heard_live(self, cursor: FollowerCursor, out: list[Action]) -> None:
        """A follower has answered: it may be about to be live again."""
        live, log = self.live, self._log
        if live is None or live.standing(cursor.node) is Standing.LIVE:
            return
        if cursor.connected and cursor.node in self.members.voters:
            if live.heard(cursor.progress(), self._ever_committed, log.terms.log_end):
                self._count()
            self._propose_live(out)

    def _propose_live(self, out: list[Action]) -> None:
        if self.live is not None:
            proposal = self.live.proposal(self.members.voters)
            if proposal is not None:
                out.append(proposal)

    def _progress(self, node: NodeId) -> Progress:
        cursor = self.cursors.get(node)
        return Progress(node, 0, connected=False) if cursor is None else cursor.progress()

    # -- how far they have come --------------------------------------------------------------------------------------

    def _advance(self, out: list[Action]) -> None:
        log = self._log
        if self.tracker.settles_apart:
            self._advance_apart(out)
            return
        high_watermark = self.tracker.commit_offset(log.high_watermark)
        if high_watermark == log.high_watermark:
            return
        log.high_watermark = high_watermark
        if high_watermark > log.acknowledged:
            out.append(Commit(high_watermark))
        if self.phase is LeaderPhase.STARTING:
            self._became_ready(out)
        if self._marker is not None:
            self._mark(self._marker, out)

    def _advance_apart(self, out: list[Action]) -> None:
        """More is committed than is settled (S4.18): two marks, the settled one never ahead of the other."""
        log = self._log
        before = log.commit_mark
        mark = self.tracker.commit_offset(before)
        # Where the followers were faster than the own disk, both marks move at once.
        log.high_watermark = min(mark, self.tracker.settled_offset(log.high_watermark))
        if mark == before:
            return
        log.acknowledged = mark
        out.append(Commit(mark))
        if self.phase is LeaderPhase.STARTING:
            self._became_ready(out)
        if self._marker is not None:
            self._mark(self._marker, out)

    def _mark(self, marker: CommitMarker, out: list[Action]) -> None:
        entry = marker.after(self._log.commit_mark, self._term, self._log.terms.log_end)
        if entry is not None:
            self.append(entry, out)

    def _became_ready(self, out: list[Action]) -> None:
        self.phase = next_state(LEADER_PHASES, self.phase, LeaderEvent.FIRST_COMMIT)
        out.append(LeaderReady(self._term))
        self._on_ready(out)

    # -- reads -------------------------------------------------------------------------------------------------------

    def request_read(self, token: int, out: list[Action]) -> None:
        """Serve a read once it is confirmed, after now, that this replica leads."""
        if self._confirms_alone():
            out.append(ReadReady(token, self._log.commit_mark))
        elif self._reads.add(token, self._log.commit_mark):
            self._start_reads(out)

    def _confirms_alone(self) -> bool:
        values = [0] * len(self.tracker.acks)
        values[self._own_slot] = 1
        return self.tracker.confirmed(values) == 1

    def _start_reads(self, out: list[Action]) -> None:
        self._round += 1
        self._reads.start(self._round)
        counted = self.tracker.counted
        for cursor in self.cursors.values():
            if cursor.connected and cursor.slot in counted:
                self._beat(cursor, out)

    def _confirm_reads(self, out: list[Action]) -> None:
        echoes = [0] * len(self.tracker.acks)
        for cursor in self.cursors.values():
            echoes[cursor.slot] = cursor.round_echoed
        echoes[self._own_slot] = self._round
        if self._reads.confirm(self.tracker.confirmed(echoes), out):
            self._start_reads(out)

    def fail_reads(self, out: list[Action]) -> None:
        """Leadership ends."""
        self._reads.fail(out)

    @abstractmethod
    def append(self, entry: Entry, out: list[Action]) -> None:
        """Append an entry of the protocol's own, made for the log's end, as if a client had proposed it."""

    @abstractmethod
    def _beat(self, cursor: FollowerCursor, out: list[Action]) -> None:
        """Send an empty Append, which the follower answers."""

    # -- is anybody there --------------------------------------------------------------------------------------------

    def heard_from_quorum(self) -> bool:
        """Did enough answer, the leader included, since this was last asked, to say that nobody else leads?"""
        heard = self._hears(without=None)
        for cursor in self.cursors.values():
            cursor.active = False
        return heard

    def hears_quorum_without(self, node: NodeId) -> bool:
        """Would enough be there without `node`, going by who answered since `heard_from_quorum` was last asked?"""
        return self._hears(without=node)

    def _hears(self, without: NodeId | None) -> bool:
        values = [0] * len(self.tracker.acks)
        values[self._own_slot] = 1
        for cursor in self.cursors.values():
            values[cursor.slot] = cursor.active and cursor.node != without
        return self.tracker.confirmed(values) == 1
