"""What a leader's node tells the coordinator of its followers, in heartbeats (`model.cluster.LiveSet`).

Three kinds of shards, three meanings. Where an election has to meet a majority, the report is for people and for those who
move replicas: who keeps up, and is not damaged, for then its promise would be no vote. Where commits go by the live replica
set it is the set that is recorded, or a proposal to record another one in its place (S3.28, S3.29). Where replicas vote it
also names the members that the log has settled on, and the sender is thereby known as the leader.
"""

from typing import TYPE_CHECKING, Protocol

from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ShardMeta
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.mode import SingleWriterMode
from antiphon.replication.members import Members
from antiphon.replication.progress import FollowerStatus, ProgressState
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica import Replica

if TYPE_CHECKING:
    from antiphon.replication.actions import ProposeLiveSet

NOBODY = Members(())


class LeaderReports(Protocol):
    """What the coordinator is told of one shard."""

    def due(self, told: LiveSet | None) -> LiveSet | None:
        """What the coordinator is to be told of the followers here; `told`: what it was told last. None: nothing."""

    def was_told(self) -> None:
        """The coordinator was told."""


class LiveReports:
    """See the module's text. `proposed`: the live replica set that the coordinator is to be asked for."""

    def __init__(self, driver: ReplicaDriver, mode: SingleWriterMode, replica: Replica | RaftReplica) -> None:
        self._driver = driver
        self._state = driver.state
        self._mode = mode
        self._replica = replica
        self.proposed: ProposeLiveSet | None = None
        self._known_record = (0, 0)  # term and version of the live replica set that the replica was told of

    def recorded(self, shard: ShardMeta) -> None:
        """A leader that goes by its live set is told of the record (S3.29)."""
        if (
            shard.live_version
            and self._state.is_leader
            and (shard.term, shard.live_version) != self._known_record
        ):
            self._known_record = (shard.term, shard.live_version)
            if self.proposed is not None and self.proposed.version < shard.live_version:
                self.proposed = None  # it was made on top of an older record, and would be refused
            self._driver.call(self._replica.live_recorded, shard.term, shard.live_version, shard.live)

    def due(self, told: LiveSet | None) -> LiveSet | None:
        """See LeaderReports. By the live set, a leader may need a record before it can commit anything, and be ready."""
        return self.live_set(told) if self._state.is_serving or self._mode.live else None

    def was_told(self) -> None:
        """See LeaderReports. It is said once: the replica proposes again what is not recorded in time."""
        self.proposed = None

    def live_set(self, before: LiveSet | None) -> LiveSet:
        """What is to be told of the shard that is led here; `before` was told last."""
        state, replica = self._state, self._replica
        recorded = replica.live
        if recorded:
            return self._by_live_set(recorded)
        kept = set(before.live) if before is not None and before.term == state.term else set()
        voter = self._mode.voter
        live, lagging = [state.services.node_id], []
        for follower in replica.followers():
            # Once caught up in this term, a follower counts until its connection breaks, and again when it answers on the
            # next.
            is_sound = voter is not None or not follower.damaged
            if is_sound and _is_heard(follower) and (self._caught_up(follower) or follower.node in kept):
                live.append(follower.node)
            elif _is_fed(follower):
                lagging.append(follower.node)
        members = NOBODY
        if voter is not None:
            members = voter.settled_members or NOBODY
        return LiveSet(
            state.shard_id,
            state.term,
            tuple(sorted(live)),
            tuple(sorted(lagging)),
            voters=members.voters,
            outgoing=members.outgoing,
            learners=members.learners,
        )

    def _by_live_set(self, recorded: tuple[int, ...]) -> LiveSet:
        """The recorded live replica set, or the one that is proposed in its place; and learners that have caught up."""
        proposal, replica = self.proposed, self._replica
        live = set(recorded if proposal is None else proposal.live)
        voting = replica.members.voting
        learners, lagging = [], []
        for follower in replica.followers():
            if follower.node not in voting and _is_heard(follower) and self._caught_up(follower):
                learners.append(follower.node)
            elif follower.node not in live and _is_fed(follower):
                lagging.append(follower.node)
        version = -1 if proposal is None else proposal.version
        # Learners are named twice: as caught up, and as not proposed.
        return LiveSet(
            self._state.shard_id,
            self._state.term,
            tuple(sorted({*live, *learners})),
            tuple(sorted(lagging)),
            version,
            learners=tuple(sorted(learners)),
        )

    def _caught_up(self, follower: FollowerStatus) -> bool:
        is_fed = follower.state is ProgressState.REPLICATE
        return is_fed and follower.ack_offset >= self._state.high_watermark


class NoReports:
    """Where every replica writes, nobody leads, and nothing is to be told."""

    def due(self, _told: LiveSet | None) -> LiveSet | None:
        """See LeaderReports."""
        return None

    def was_told(self) -> None:
        """See LeaderReports."""


def _is_heard(follower: FollowerStatus) -> bool:
    return follower.connected and follower.answers


def _is_fed(follower: FollowerStatus) -> bool:
    """Does it take what it is sent? One that is back without its promises does not know this term, and says nothing."""
    return follower.answers or not follower.connected
