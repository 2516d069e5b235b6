"""A shard of a table is split while one of its replicas is away, and goes on from that one when the others are lost.

What the one that is left does not know is how far the split was: the entries by which the parent let go of keys, and what
was copied into the shard that was split off. The metadata knows it, and clients that were away meanwhile do not.
"""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.model.metadata import Kind, SplitPhase
from antiphon.replication.quorum import majority
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.faults import Fault, Faults, register
from antiphon.simulation.cluster.replica_faults import (
    Loss,
    can_spare,
    is_whole,
    lose,
    lost_with,
    may_be_lost,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from antiphon.model.metadata import ShardMeta
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine

SHARDS_MAX: Final = 4  # of a table; it is not split further
LOOK_S: Final = 0.002
PATIENCE_S: Final = 4.0
AWAY: Final = ("before", SplitPhase.COPY, SplitPhase.FREEZE, SplitPhase.RELEASE)
"""When the replica that is left goes away: before the split begins, or once the metadata has this phase."""


def _where_tables_are_lost(draw: Random, world: "Mapping[str, Any]") -> int:
    return int(draw.choice((0, 3))) * int(world["recovered_putters"] > 0)


class _Split:
    """One split, and who is away while it goes on."""

    def __init__(self, faults: Faults, fault: Fault, draw: Random, loss: Loss) -> None:
        self._faults, self._cluster = faults, faults.cluster
        self._fault, self._draw, self._loss = fault, draw, loss
        self._parent = loss.lost[0].shard
        self._away = draw.choice((*AWAY, AWAY[0], AWAY[-1]))
        self._over_s = self._cluster.loop.now + PATIENCE_S
        self._paused: list[Any] = []

    def begin(self) -> None:
        """Ask for it, and look how far it is from now on."""
        if self._away == AWAY[0]:
            self._leave()
        for workload in self._faults.workloads:
            for client in workload.clients:
                if workload.name.startswith("recovered-rows") and client.work and self._draw.random() < 0.6:
                    client.process.pause()
                    self._paused.append(client.process)
        if self._cluster.operator is not None:
            self._cluster.operator.split(self._parent.shard_id, lambda: self._is_over)
        self._faults.later(LOOK_S, self._look)

    @property
    def _is_over(self) -> bool:
        return self._faults.stopped or self._cluster.loop.now >= self._over_s

    def _leave(self) -> None:
        if self._loss.left.is_up:
            self._loss.left.kill()

    def _look(self) -> None:
        """Lose the others as soon as all nodes could know that the split is done."""
        if _has_given_keys_away(self._cluster, self._parent):
            self._leave()
            self._cluster.tell("split-and-lost", self._parent.shard_id, str(self._away))
            self._faults.later(self._draw.choice((0.0, 0.01, 0.05)), self._lose)
        elif self._is_over:
            if not self._loss.left.is_up:
                self._loss.left.start()
            self._resume()
        else:
            if self._away in _phases(self._cluster, self._parent):
                self._leave()
            self._faults.later(LOOK_S, self._look)

    def _lose(self) -> None:
        lose(self._faults, self._fault, self._draw, self._loss)
        self._faults.later(PATIENCE_S, self._resume)
        self._look_again()

    def _look_again(self) -> None:
        if not self._loss.waiting:
            self._faults.later(self._draw.choice((0.0, 0.1, 0.5)), self._resume)
        elif not self._faults.stopped:
            self._faults.later(LOOK_S, self._look_again)

    def _resume(self) -> None:
        paused, self._paused = self._paused, []
        for process in paused:
            process.resume()


def _has_given_keys_away(cluster: "SimulatedCluster", parent: "ShardMeta") -> bool:
    """Does any node know that the split is done?"""
    now = [shard for _, shard in may_be_lost(cluster) if shard.shard_id == parent.shard_id]
    return bool(now) and now[0].hashes != parent.hashes


def _phases(cluster: "SimulatedCluster", parent: "ShardMeta") -> list[SplitPhase]:
    views = [node.view for node in cluster.nodes]
    splits = [change.shard.split for view in views for change in view.joining.values()]
    return [one.phase for one in splits if one is not None and one.parent == parent.shard_id]


def _left_and_gone(
    cluster: "SimulatedCluster", shard: "ShardMeta", draw: Random
) -> "tuple[Machine, list[Machine]]":
    """Who leads is left more often than others: clients that were away meanwhile ask it again."""
    machines = [cluster.machines[node] for node in shard.ensemble]
    draw.shuffle(machines)
    if shard.leader in shard.ensemble and draw.random() < 0.7:
        machines.sort(key=lambda one: one.node_id != shard.leader)
    left, *others = machines
    return left, others[: len(machines) - majority(len(machines)) + 1]


@register(
    "split_loss",
    43,
    Drawn(_where_tables_are_lost, "recoveries", 4),
    then="as for `most_replicas_gone`",
    told="a shard was split, and lost most replicas",
    renews=True,
)
def _split_loss(faults: Faults, fault: Fault, draw: Random) -> None:
    """A shard of a table named `recovered...` is split while one of three replicas, mostly its leader, is away, from before
    the split or from one of its phases on, and while some of the table's clients stand still. As soon as the split is
    done, the others lose their disks, or are gone for a while.
    """
    cluster = faults.cluster
    found = [
        shard
        for topic, shard in may_be_lost(cluster)
        if topic.kind is Kind.TABLE and len(topic.shards) < SHARDS_MAX and is_whole(cluster, shard)
    ]
    if not found or cluster.operator is None or cluster.evidence.hurt:
        return
    shard = draw.choice(found)
    left, gone = _left_and_gone(cluster, shard, draw)
    if len(shard.ensemble) < 3 or not can_spare(cluster, [one.node_id for one in gone]):
        return
    lost = lost_with(cluster, shard, left, gone)
    if lost is not None:
        _Split(faults, fault, draw, Loss(lost, left, gone)).begin()
