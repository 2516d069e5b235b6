"""The nodes of public cluster scripts: the product's replica, and the liberties that the runner takes with it.

A liberty makes our replica do what a script takes for granted. Each is a rule of ours that is lifted at one point, or a step
of the application that the script does not name; the rest of the protocol stands, and the checker watches it. Every use is
counted. Where a run takes the replicas as they are, none is taken.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action, PersistTerm
from antiphon.replication.leader import Leader
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId, SnapshotOffer
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import LeaderPhase, Role
from antiphon.replication.term_state import TermState
from antiphon.simulation.replica_files import StorageAction
from antiphon.simulation.scripted_cluster import SHARD, ScriptedCluster, ScriptedReplica, Underway

EARLY_PROPOSAL = "a proposal was taken before the first entry of the leader's term was committed"
REPEATED_PRE_VOTE = "a pre-vote was repeated in a newer term"
GRANTED_PRE_VOTE = "a pre-vote was granted though the leader lives"
ONE_STEP = "a voter was added or removed without a joint step"
KEPT_JOINT = "a joint step was kept until the script ends it"
NEW_VOTER = "a voter was added that was no learner that has caught up"
EARLY_HEARTBEAT = "a leader's heartbeat, from which a new member hears of it, was brought forward"
EMPTY_ENTRY = "an empty entry was proposed in the place of a change of members that is refused"
EARLY_VOTE_SYNC = "a candidate's vote for itself was durable before the script's disk wrote it"


class Liberties:
    """What the runner may do and how often it did; shared by all nodes of a run."""

    def __init__(self, *, as_is: bool) -> None:
        self.as_is = as_is
        self.taken: dict[str, int] = {}
        self.kept_joint: set[Members] = set()  # asked for membership only
        self.leader_blocks_pre_vote = True

    def took(self, liberty: str) -> None:
        """Count a use."""
        self.taken[liberty] = self.taken.get(liberty, 0) + 1


class Hand:
    """What a script looks at in a replica or sets by hand, and the rules that a liberty lifts."""

    def __init__(self, replica: RaftReplica, state: TermState, liberties: Liberties) -> None:
        self._replica = replica
        self._state = state
        self._liberties = liberties
        members, election = replica.membership, replica.election
        if members is not None:
            members.step_settled = partial(self._step_settled, members.step_settled)  # type: ignore[method-assign]
        election.knows_live_leader = partial(  # type: ignore[method-assign]
            self._knows_live_leader, election.knows_live_leader
        )

    # -- what scripts look at and set --------------------------------------------------------------------------------

    @property
    def doubts_leader(self) -> bool:
        """Was this follower told that its leader may be gone, and has not heard from it since?"""
        return self._replica.role is Role.FOLLOWER and self._replica.election.timer.leader_lost

    @property
    def is_settled(self) -> bool:
        """Are the members that this replica goes by committed?"""
        return self._replica.membership is None or self._replica.membership.is_settled

    @property
    def waits_for_first_entry(self) -> bool:
        """Does it lead a term whose first entry is not committed?"""
        leading = self._state.leading
        return leading is not None and leading.phase is LeaderPhase.STARTING

    def has_caught_up(self, node: NodeId) -> bool:
        """Is it a learner that may become a voter?"""
        return self._replica.membership is not None and self._replica.membership.has_caught_up(node)

    def set_election_timeout(self, ticks: int) -> None:
        """Time out after so many ticks without a leader, until the time-out is drawn anew."""
        self._replica.election.timer.timeout = ticks

    def doubt_leader(self) -> None:
        """The connection to the leader is said to be broken."""
        if self._replica.leader is not None:
            self._replica.election.lost_connection(self._replica.leader)

    # -- liberties ---------------------------------------------------------------------------------------------------

    def propose_at_once(self, data: str) -> list[Action]:
        """Append one entry if this replica leads, though the first entry of its term may be uncommitted (lifts S1.36)."""
        out: list[Action] = []
        if self._state.leading is not None:
            self._state.leading.replicator.propose([(1, data)], out)
        return out

    def write_members(self, members: Members) -> list[Action]:
        """Append a members entry if this replica leads, whatever it says."""
        out: list[Action] = []
        if self._state.leading is not None and self._replica.membership is not None:
            self._replica.membership.write(members, out)
        return out

    def heartbeat_now(self) -> list[Action]:
        """What a leader says with its next heartbeat."""
        out: list[Action] = []
        if self._state.leading is not None:
            self._state.leading.replicator.send_heartbeats(out)
        return out

    def _step_settled(
        self, take_step: Callable[[Leader, list[Action]], None], leading: Leader, out: list[Action]
    ) -> None:
        if self._replica.members not in self._liberties.kept_joint:
            take_step(leading, out)

    def _knows_live_leader(self, knows_leader: Callable[[], bool]) -> bool:
        knows = knows_leader()
        if knows and not self._liberties.leader_blocks_pre_vote:
            self._liberties.took(GRANTED_PRE_VOTE)
            return False
        return knows


class ScriptReplica(RaftReplica):
    """`RaftReplica` with a hand on it."""

    def __init__(self, *, liberties: Liberties, **settings: Any) -> None:
        super().__init__(**settings)
        self.hand = Hand(self, self._state, liberties)


class PublicScriptReplica(ScriptedReplica):
    """A node whose disk and network wait for the script.

    Where a script separates its disk from the replica (`is_async`), `process_ready` hands over what is to be written, and
    `process_append` makes one such batch durable.
    """

    replica: ScriptReplica

    def __init__(
        self, stage: ScriptedCluster, node: NodeId, start: EntryId, *, liberties: Liberties, is_async: bool
    ) -> None:
        super().__init__(stage, node, start)
        self.auto_sync = False
        self.is_async = is_async
        self.batches: deque[deque[StorageAction]] = deque()
        self.snapshots: dict[NodeId, EntryId] = {}  # what each follower was sent last
        self.unreachable: set[NodeId] = set()  # asked for membership, and in order by `reconnect`
        self._liberties = liberties

    @property
    def is_busy(self) -> bool:
        """Has it anything to write or to say?"""
        return bool(self.outbox or self.writes or self.batches)

    def process_ready(self) -> None:
        """Hand what is to be written to the disk, and what was said to the network."""
        if not self.is_async:
            self.flush()
            return
        if self.writes:
            batch, self.writes = self.writes, deque()
            if self._is_vote_for_itself(batch):
                self._liberties.took(EARLY_VOTE_SYNC)
                self.make_durable(batch)
                batch.clear()  # the disk's step for it is still to come, and finds nothing to do
            self.batches.append(batch)
        self._send_all()

    def _is_vote_for_itself(self, batch: deque[StorageAction]) -> bool:
        """Theirs asks for votes at once and counts its own when it is durable; ours asks when it is durable."""
        is_first = not self.batches and all(isinstance(write, PersistTerm) for write in batch)
        return is_first and self.replica.is_candidate and not self._liberties.as_is

    def process_append(self) -> None:
        """The disk finishes one batch; what was waiting for it goes to the network at once."""
        if not self.batches:
            return
        said_before, self.outbox = self.outbox, []
        self.make_durable(self.batches.popleft())
        self._send_all()
        self.outbox = said_before

    def _send_all(self) -> None:
        sent, self.outbox = self.outbox, []
        for one in sent:
            self.stage.send(one)

    def snapshot(self) -> SnapshotOffer:
        """What this node would send now: all that it knows to be settled."""
        replica = self.replica
        at = EntryId(replica.log.terms.term_before(replica.settled), replica.settled)
        return SnapshotOffer(SHARD, replica.term, self.node, at, replica.members_at(at.offset))

    def send_snapshot(self, to: NodeId) -> None:
        """The replica wants a follower to have a snapshot. The message stands for the whole stream."""
        offer = self.snapshot()
        self.snapshots[to] = offer.at
        self.outbox.append(Underway(self.node, to, offer))

    def receive_snapshot(self, source: "PublicScriptReplica", offer: SnapshotOffer) -> None:
        """The stream arrived whole; both ends of it hear that."""
        self.run(self.replica.receive(source.node, offer))
        if self.replica.term != offer.term:
            return
        self.run(self.replica.snapshot_installed(offer.at, offer.members))
        if source.role is Role.LEADER and source.replica.term == offer.term:
            source.run(source.replica.snapshot_sent(self.node, offer.at))

    def compact(self, to_offset: int) -> None:
        """Forget the log before an offset, which lies within what is settled and durable."""
        if to_offset <= self.log.start.offset:
            return
        self.log.trim(to_offset)
        self.files.trim(to_offset)
        self.run(self.replica.trimmed(to_offset))

    def reconnect(self) -> None:
        """Connections that were reported broken are there again."""
        for peer in sorted(self.unreachable):
            self.run(self.replica.peer_connected(peer))
        self.unreachable.clear()
