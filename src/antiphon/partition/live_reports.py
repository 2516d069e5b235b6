"""What a leader's node tells the coordinator of its followers, in heartbeats (`model.cluster.LiveSet`).

Three kinds of shards, three meanings. Where an election has to meet a majority, the report is for people and for those who
move replicas: who keeps up, and is not damaged, for then its promise would be no vote. Where commits go by the live replica
set it is the set that is recorded, or a proposal to record another one in its place (S3.28, S3.29). Where replicas vote it
also names the members that the log has settled on, and the sender is thereby known as the leader.
"""

from typing import TYPE_CHECKING

from antiphon.model.cluster import LiveSet
from antiphon.replication.members import Members
from antiphon.replication.progress import FollowerStatus, ProgressState

if TYPE_CHECKING:
    from antiphon.partition.single_writer import SingleWriterPartition

NOBODY = Members(())


def live_set(host: "SingleWriterPartition", before: LiveSet | None) -> LiveSet:
    """What is to be told of the shard that `host` leads; `before` was told last."""
    recorded = host.replica.live
    if recorded:
        return _by_live_set(host, recorded)
    kept = set(before.live) if before is not None and before.term == host.term else set()
    voter = host.voter
    live, lagging = [host.services.node_id], []
    for follower in host.replica.followers():
        # Once caught up in this term, a follower counts until its connection breaks, and again when it answers on the next.
        is_sound = voter is not None or not follower.damaged
        if is_sound and _is_heard(follower) and (_caught_up(host, follower) or follower.node in kept):
            live.append(follower.node)
        elif _is_fed(follower):
            lagging.append(follower.node)
    members = NOBODY
    if voter is not None:
        members = voter.settled_members or NOBODY
    return LiveSet(
        host.shard_id,
        host.term,
        tuple(sorted(live)),
        tuple(sorted(lagging)),
        voters=members.voters,
        outgoing=members.outgoing,
        learners=members.learners,
    )


def _by_live_set(host: "SingleWriterPartition", recorded: tuple[int, ...]) -> LiveSet:
    """The recorded live replica set, or the one that is proposed in its place; and learners that have caught up."""
    proposal = host.proposed_live
    live = set(recorded if proposal is None else proposal.live)
    voting = host.replica.members.voting
    learners, lagging = [], []
    for follower in host.replica.followers():
        if follower.node not in voting and _is_heard(follower) and _caught_up(host, follower):
            learners.append(follower.node)
        elif follower.node not in live and _is_fed(follower):
            lagging.append(follower.node)
    version = -1 if proposal is None else proposal.version
    # Learners are named twice: as caught up, and as not proposed.
    return LiveSet(
        host.shard_id,
        host.term,
        tuple(sorted({*live, *learners})),
        tuple(sorted(lagging)),
        version,
        learners=tuple(sorted(learners)),
    )


def _is_heard(follower: FollowerStatus) -> bool:
    return follower.connected and follower.answers


def _is_fed(follower: FollowerStatus) -> bool:
    """Does it take what it is sent? One that is back without its promises does not know this term, and says nothing."""
    return follower.answers or not follower.connected


def _caught_up(host: "SingleWriterPartition", follower: FollowerStatus) -> bool:
    return follower.state is ProgressState.REPLICATE and follower.ack_offset >= host.high_watermark
