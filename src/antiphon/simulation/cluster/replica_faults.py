"""Most replicas of a shard are lost, and an operator lets it go on from the one that is left."""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.client.moves import is_on_its_way
from antiphon.coordination.fences import Fence
from antiphon.model.metadata import ShardStatus
from antiphon.replication.quorum import majority
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later
from antiphon.simulation.cluster.hurt_machines import lose_disk, newest_metadata, shards_on

if TYPE_CHECKING:
    from antiphon.model.metadata import ShardMeta, TopicMeta
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine

RECOVERED: Final = "recovered"
"""Topics whose names begin so may lose most replicas: those who use them expect that."""

LIVE_MIN: Final = 2
AGAIN_S: Final = 0.5  # until a command that was not answered, or not carried out, is given again


@register(
    "most_replicas_gone",
    39,
    Drawn(seldom(0.05), "recoveries", 0),
    then=(
        "an operator has the shard go on from the replica that is left, again and again until that is done. Then the others "
        "come back, with empty disks or as they were"
    ),
    told="most replicas of a shard were lost",
    renews=True,
)
def _most_replicas_gone(faults: Faults, fault: Fault, draw: Random) -> None:
    """Most replicas of a shard whose topic or table is named `recovered...` lose their disks, or are gone for a while.

    Any one that is left is named; it may have been away before, while the others wrote. Other such shards
    may be lost with it.
    """
    cluster = faults.cluster
    found = _victim(cluster, draw)
    if found is None or cluster.operator is None:
        return
    machines = [cluster.machines[node] for node in found.ensemble]
    draw.shuffle(machines)
    left, *others = machines
    gone = others[: len(machines) - majority(len(machines)) + 1]
    if not can_spare(cluster, [one.node_id for one in gone]):
        if len(gone) > 1:
            cluster.operator.spread()
        return
    lost = lost_with(cluster, found, left, gone)
    if lost is None:
        return
    behind_s = draw.choice((0.0, 0.0, 0.3, 1.0))
    if behind_s:
        left.kill()
    faults.later(behind_s, lose, faults, fault, draw, Loss(lost, left, gone))


class Lost:
    """A shard that loses most replicas, and whose is left. `number`: of its recovery."""

    def __init__(self, shard: "ShardMeta", left: "Machine") -> None:
        self.shard, self.left = shard, left
        self.number = 1 if shard.recovery is None else shard.recovery.number + 1


class Loss:
    """What is lost together, what is left, and which shards an operator has not been able to help yet."""

    def __init__(self, lost: list[Lost], left: "Machine", gone: "list[Machine]") -> None:
        self.lost, self.left, self.gone = lost, left, gone
        self.waiting = {one.shard.shard_id for one in lost}

    def split_off(self, cluster: "SimulatedCluster") -> list[Lost]:
        """Shards that were split off one of these and joined their table since, so that they are lost with it."""
        known, away = {one.shard.shard_id for one in self.lost}, {one.node_id for one in self.gone}
        found = []
        for _, shard in may_be_lost(cluster):
            there = [node for node in shard.ensemble if node not in away]
            if shard.shard_id not in known and there and len(there) < majority(len(shard.ensemble)):
                found.append(
                    Lost(shard, self.left if self.left.node_id in there else cluster.machines[there[0]])
                )
        self.lost += found
        self.waiting |= {one.shard.shard_id for one in found}
        return found


def lost_with(
    cluster: "SimulatedCluster", shard: "ShardMeta", left: "Machine", gone: "list[Machine]"
) -> list[Lost] | None:
    """The shard, and others that may lose most replicas and do so with it; None: one that is not whole would, too."""
    away = {one.node_id for one in gone}
    found = [Lost(shard, left)]
    for _, other in may_be_lost(cluster):
        there = [node for node in other.ensemble if node not in away]
        if other.shard_id == shard.shard_id or len(there) >= majority(len(other.ensemble)):
            continue
        if not there or not is_whole(cluster, other):
            return None
        one = left if left.node_id in there else cluster.machines[there[0]]
        found.append(Lost(other, one))
    return found


def may_be_lost(cluster: "SimulatedCluster") -> "list[tuple[TopicMeta, ShardMeta]]":
    """Shards of topics and tables that may lose most replicas."""
    meta = newest_metadata(cluster)
    topics = () if meta is None else meta.topics
    return [(topic, shard) for topic in topics if topic.name.startswith(RECOVERED) for shard in topic.shards]


def is_whole(cluster: "SimulatedCluster", shard: "ShardMeta") -> bool:
    """Has a shard all of its replicas?"""
    return (
        len(shard.ensemble) >= 2
        and not is_on_its_way(shard)
        and shard.status is ShardStatus.ONLINE
        and set(shard.live) == set(shard.ensemble)
        and all(cluster.machines[node].is_up for node in shard.ensemble)
    )


def _victim(cluster: "SimulatedCluster", draw: Random) -> "ShardMeta | None":
    """A shard that may lose most replicas, and has them all."""
    if cluster.evidence.hurt:
        return None
    found = [shard for _, shard in may_be_lost(cluster) if is_whole(cluster, shard)]
    return draw.choice(found) if found else None


def can_spare(cluster: "SimulatedCluster", gone: list[int]) -> bool:
    """Has every other shard, `__cluster` too, a majority without these nodes, and is everybody sound?"""
    meta = newest_metadata(cluster)
    if cluster.evidence.hurt or meta is None or meta.voters is None or is_on_its_way(meta.voters):
        return False
    sets = [meta.voters.ensemble]
    for node in gone:
        for topic, shard in shards_on(cluster, node):
            if topic.name.startswith(RECOVERED):
                continue
            if is_on_its_way(shard) or shard.split is not None:
                return False
            if shard.fence != Fence.MAJORITY and len(set(shard.live) - set(gone)) < LIVE_MIN:
                return False  # the last of the live set holds what nobody else has to have
            sets.append(shard.ensemble)
    return all(len(set(each) - set(gone)) >= majority(len(each)) for each in sets)


def lose(faults: Faults, fault: Fault, draw: Random, loss: Loss) -> None:
    """Those that are to be gone lose their disks or end, if all else can spare them; the one that is left is started."""
    cluster = faults.cluster
    if not faults.stopped and can_spare(cluster, [one.node_id for one in loss.gone]):
        votes = cluster.options.profile in {"raft", "tarantool"}
        sizes = [len(one.shard.ensemble) for one in loss.lost]
        whole = (
            min(map(majority, sizes)) - 1 if votes else max(sizes)
        )  # with the old history: never so many that they could elect
        for machine in loss.gone:
            if machine.is_up and (draw.random() < 0.6 or not whole):
                lose_disk(faults, machine)
            else:
                whole -= 1
                machine.kill()
        for one in loss.lost:
            cluster.tell("replicas-gone", one.shard.shard_id, one.left.node_id)
            faults.later(AGAIN_S, _recover, faults, fault, loss, one)
    if not loss.left.is_up:
        loss.left.start()


def _recover(faults: Faults, fault: Fault, loss: Loss, lost: Lost) -> None:
    """Order it until it is done, or the shard has a leader without it: then enough of the others have come back."""
    cluster = faults.cluster
    meta, operator = newest_metadata(cluster), faults.cluster.operator
    now = None if meta is None else next(
        (one for topic in meta.topics for one in topic.shards if one.shard_id == lost.shard.shard_id), None
    )  # fmt: skip
    if now is None or operator is None:  # no node is up, or none has heard anything yet
        faults.later(AGAIN_S, _recover, faults, fault, loss, lost)
        return
    for other in loss.split_off(cluster):
        faults.later(AGAIN_S, _recover, faults, fault, loss, other)
    is_done = now.recovery is not None and now.recovery.number >= lost.number and now.recovery.done
    if is_done and _is_splitting(cluster, now.shard_id):  # the other part may join the table yet
        faults.later(AGAIN_S, _recover, faults, fault, loss, lost)
        return
    if is_done or (now.status is ShardStatus.ONLINE and _has_enough(cluster, now)):
        cluster.tell("recovered" if is_done else "not-recovered", now.shard_id)
        loss.waiting.discard(now.shard_id)
        for machine in () if loss.waiting else loss.gone:
            restart_later(faults, machine, fault.lasts_ms)
        return
    # Who led last, as far as is known, is the only one to go on from: the command says so.
    led_last = now.leader >= 0 and now.leader not in {one.node_id for one in loss.gone}
    left = cluster.machines[now.leader] if led_last else lost.left
    if not left.is_up:
        restart_later(faults, left, 0)
    operator.recover(now.shard_id, left.node_id, lost.number)
    faults.later(AGAIN_S, _recover, faults, fault, loss, lost)


def _is_splitting(cluster: "SimulatedCluster", shard_id: int) -> bool:
    """Is a part of a shard being split off, as far as any node knows?"""
    views = [node.view for node in cluster.nodes]
    changes = [change for view in views for change in view.joining.values()]
    return any(one.shard.split is not None and one.shard.split.parent == shard_id for one in changes)


def _has_enough(cluster: "SimulatedCluster", shard: "ShardMeta") -> bool:
    hurt = cluster.evidence.hurt
    there = [node for node in shard.ensemble if cluster.machines[node].is_up and node not in hurt]
    if shard.fence == Fence.LIVE:
        return shard.leader in there  # it needs no other
    return len(there) >= majority(len(shard.ensemble))


@register(
    "needless_recovery",
    40,
    Drawn(seldom(0.05)),
    then="it is refused",
    told="an operator asked to recover a shard that had enough replicas",
)
def _needless_recovery(faults: Faults, _fault: Fault, draw: Random) -> None:
    """An operator asks that any shard go on from any one of its replicas, whatever the state of the others."""
    cluster = faults.cluster
    meta = newest_metadata(cluster)
    shards = [
        shard
        for topic in (() if meta is None else meta.topics)
        if not topic.name.startswith(RECOVERED)
        for shard in topic.shards
    ]
    if shards and cluster.operator is not None:
        shard = draw.choice(shards)
        cluster.operator.recover(shard.shard_id, draw.choice(shard.ensemble), 1)
