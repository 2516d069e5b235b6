"""A leader that serves reads under a lease is cut off, or stands still, while others elect; replicas restart meanwhile."""

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.raft import RaftReplica
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

LOOK_S: Final = 0.0005
LOOKS: Final = 400
LASTS_MAX_MS: Final = 1_500
RESTART_MS: Final = 1


def _where_leases_are(draw: Random, world: Mapping[str, Any]) -> int:
    return int(draw.choice((0, 3))) if world["read_lease_ms"] else 0


def leased_leaders(faults: Faults) -> "list[tuple[Machine, SingleWriterPartition]]":
    """Who leads a shard of a table with a lease."""
    return [
        (machine, host)
        for machine in faults.cluster.machines
        if machine.node is not None
        for host in machine.node.hosts.values()
        if isinstance(host, SingleWriterPartition)
        and host.state.is_serving
        and host.replica.config.lease_ms > 0
    ]


@register(
    "lease",
    42,
    Drawn(_where_leases_are, "leases", 2),
    then="the links are healed after a while, and the node is started again",
    told="the leader of a table with leases was cut off while another one was elected",
)
def _lease(faults: Faults, fault: Fault, draw: Random) -> None:
    """The leader of a table with leases is cut off, or stands still, while another one is to lead."""
    leaders = leased_leaders(faults)
    if not leaders:
        return
    machine, host = draw.choice(leaders)
    others = [one for one in faults.cluster.machines if one is not machine]
    lasts_s = min(fault.lasts_ms, LASTS_MAX_MS) / 1000
    how, breaks = draw.choice(("cut", "cut", "late", "pause", "transfer")), draw.random() < 0.5
    if how == "transfer":
        _elect(faults, host, draw)
        _when_told(faults, machine, host, others, lasts_s)
        return
    if how == "pause":
        process = machine.process
        if process is not None:
            process.pause()
            faults.later(min(lasts_s, 0.25), process.resume)
    elif how == "late":
        _delay(faults, machine, others, lasts_s)
        faults.later(0.15, _isolate, faults, machine, others, lasts_s)
    else:
        _isolate(faults, machine, others, lasts_s)
    if breaks:
        _break(faults, machine)
    begins_s = draw.choice((0.0, 0.02, 0.15))
    if draw.random() < 0.4:
        faults.later(begins_s, _restart, faults, draw.choice(others))
    for delay_s in (0.0, 0.03):
        faults.later(begins_s + delay_s, _elect, faults, host, Random(draw.getrandbits(32)))


def _elect(faults: Faults, host: SingleWriterPartition, draw: Random) -> None:
    operator = faults.cluster.operator
    if operator is not None and not faults.stopped:
        operator.elect(host.shard_id, draw)


def _links(machine: "Machine", others: "list[Machine]") -> list[tuple[str, str]]:
    return [pair for one in others for pair in ((machine.host, one.host), (one.host, machine.host))]


def _isolate(faults: Faults, machine: "Machine", others: "list[Machine]", lasts_s: float) -> None:
    if faults.stopped:
        return
    network = faults.cluster.network
    for source, target in _links(machine, others):
        network.cut(source, target)
        faults.later(lasts_s, network.heal, source, target)


def _delay(faults: Faults, machine: "Machine", others: "list[Machine]", lasts_s: float) -> None:
    """What the others answer takes long."""
    network = faults.cluster.network
    for one in others:
        link = network.link(one.host, machine.host)
        link.delay_s = (0.03, 0.08)
        faults.later(lasts_s + 0.2, link.usual, network.delay_s)


def _break(faults: Faults, machine: "Machine") -> None:
    """Its connections to other nodes break: those that vote take that for a hint."""
    for transport in faults.cluster.network.transports():
        ends = {transport.local[0], transport.other.local[0]}
        if machine.host in ends and all(end.startswith("node-") for end in ends):
            transport.reset()


def _restart(faults: Faults, machine: "Machine") -> None:
    if not faults.stopped and machine.is_up:
        machine.kill()
        restart_later(faults, machine, RESTART_MS)


def _when_told(
    faults: Faults,
    machine: "Machine",
    host: SingleWriterPartition,
    others: "list[Machine]",
    lasts_s: float,
    looks: int = 0,
) -> None:
    """Cut the leader off as soon as it has asked another one to take over."""
    replica = host.replica
    if isinstance(replica, RaftReplica) and replica.transfer.target is not None:
        faults.later(LOOK_S, _isolate, faults, machine, others, lasts_s)
    elif looks < LOOKS and host.state.is_leader:
        faults.later(LOOK_S, _when_told, faults, machine, host, others, lasts_s, looks + 1)
