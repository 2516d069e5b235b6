"""The voters of `__cluster` are changed by an operator, also because the disk of one is gone."""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.client.moves import is_on_its_way
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.node.recovering import join, recover
from antiphon.simulation.cluster.disk_view import DIRECTORY
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.faults import NEVER, Fault, Faults, register, restart_later
from antiphon.simulation.cluster.hurt_machines import lose_disk, may_be_hurt, newest_metadata, shards_on
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

REFUSED_S: Final = 2.0  # after which an operator looks at a node that came back
AGAIN_S: Final = 1.0  # until a replacement that was refused is ordered again


@register(
    "voters",
    36,
    Drawn(seldom(0.12, 3)),
    told="an operator changed the voters of the cluster's own log",
)
def _voters(faults: Faults, _fault: Fault, draw: Random) -> None:
    """An operator adds a voter of `__cluster`, removes or replaces one, or takes such a change back."""
    if faults.cluster.operator is not None:
        faults.cluster.operator.change_voters(draw)


@register(
    "voter_gone",
    37,
    Drawn(seldom(0.08)),
    then="the machine is *hurt*. The node comes back with the empty disk, before or after it was replaced",
    renews=True,
)
def _voter_gone(faults: Faults, fault: Fault, draw: Random) -> None:
    """A voter of `__cluster` loses its disk, and an operator has another node vote in its place."""
    machine, meta = faults.machine(fault), newest_metadata(faults.cluster)
    known = None if meta is None else meta.voters
    spare = [] if meta is None or known is None else [
        node.node_id for node in meta.nodes if node.node_id not in known.everybody
    ]  # fmt: skip
    if not machine.is_up or known is None or machine.node_id not in known.ensemble or not spare:
        return
    if not may_be_hurt(faults.cluster, machine):
        return
    lose_disk(faults, machine)
    _replace(faults, machine.node_id, draw.choice(spare))
    restart_later(faults, machine, fault.lasts_ms)


@register(
    "most_voters_gone",
    38,
    NEVER,
    then=(
        "the last voter is recovered with the code of `antiphon node recover`. The others come back with empty disks, or as "
        "they were: then they are refused, and an operator has them join. Voters are added until there are three"
    ),
    told="all voters of the cluster's own log but one were lost",
    renews=True,
)
def _most_voters_gone(faults: Faults, fault: Fault, draw: Random) -> None:
    """All voters of `__cluster` but one lose their disks, or are gone for a while; any one of them is left."""
    cluster, meta = faults.cluster, newest_metadata(faults.cluster)
    voters = None if meta is None else meta.voters
    if voters is None or len(voters.ensemble) < 2 or is_on_its_way(voters) or cluster.operator is None:
        return
    machines = [cluster.machines[node] for node in voters.ensemble]
    draw.shuffle(machines)
    last, *gone = machines
    if not _can_spare(faults, [one.node_id for one in gone]):
        cluster.operator.spread()
        return
    if cluster.operator.may_change_voters or not all(machine.is_up for machine in machines):
        return
    whole = len(gone) // 2  # of those that have the old history: never so many that they could elect
    for machine in gone:
        if draw.random() < 0.7 or not whole:
            lose_disk(faults, machine)
        else:
            whole -= 1
            machine.kill()
            cluster.watch.word.forget(machine.node_id)
            cluster.watch.disk_is_new(machine)
            faults.later(fault.lasts_ms / 1000 + REFUSED_S, _have_join, faults, machine)
        restart_later(faults, machine, fault.lasts_ms)
    last.kill()
    recovery = recover(last.disk, DIRECTORY, (), int(cluster.loop.now * 1000))
    cluster.tell("recovered", last.node_id, recovery.term, recovery.at)
    cluster.evidence.disk_changed(last)
    cluster.evidence.truth(CLUSTER_SHARD_ID).cut(recovery.at)
    cluster.metadata.cut()
    last.start()
    _add_voters(faults, recovery.number)


def _can_spare(faults: Faults, gone: list[int]) -> bool:
    """Has every shard a majority without these nodes, and is everybody sound?"""
    cluster = faults.cluster
    if cluster.evidence.hurt:
        return False
    for node in gone:
        for _, shard in shards_on(cluster, node):
            left = set(shard.ensemble) - set(gone)
            if is_on_its_way(shard) or shard.fence != "majority" or len(left) <= len(shard.ensemble) // 2:
                return False
    return True


def _have_join(faults: Faults, machine: "Machine") -> None:
    """A voter with the old history is refused. An operator does what it says, unless it got an empty disk meanwhile."""
    node = machine.node
    if node is None or not node.voters.is_past:
        if not faults.stopped or node is None or not node.agent.registered.is_set():
            faults.later(REFUSED_S, _have_join, faults, machine)
        return
    require(
        CLUSTER_SHARD_ID not in node.hosts or not node.hosts[CLUSTER_SHARD_ID].state.is_serving,
        "old-history-refused",
        f"node {machine.node_id} is of the past, and coordinates",
        CLUSTER_SHARD_ID,
    )
    machine.kill()
    join(machine.disk, DIRECTORY)
    faults.cluster.evidence.disk_changed(machine)
    faults.cluster.tell("joins", machine.node_id)
    machine.start()


def _add_voters(faults: Faults, number: int) -> None:
    """Order it until there are three voters after this recovery, or nobody mends anything any more."""
    meta, operator = newest_metadata(faults.cluster), faults.cluster.operator
    voters = None if meta is None else meta.voters
    is_known = meta is not None and meta.recovery is not None and meta.recovery.number >= number
    if faults.stopped or operator is None or (is_known and voters is not None and len(voters.aim) >= 3):
        return
    if is_known and meta is not None and voters is not None and not is_on_its_way(voters):
        others = [one.node_id for one in meta.nodes if one.alive and one.node_id not in voters.ensemble]
        if others:
            operator.add_voter(others[0])
    faults.later(AGAIN_S, _add_voters, faults, number)


def _replace(faults: Faults, old: int, new: int) -> None:
    """Order it until it is done, or nobody mends anything any more."""
    meta, operator = newest_metadata(faults.cluster), faults.cluster.operator
    if faults.stopped or operator is None:
        return
    known = None if meta is None else meta.voters
    if known is not None and old not in known.aim:
        return
    operator.replace_voter(old, new)
    faults.later(AGAIN_S, _replace, faults, old, new)
