"""Links that are cut or slow, and connections that break."""

from random import Random

from antiphon.simulation.cluster.drawing import MAIN, Drawn, one_of
from antiphon.simulation.cluster.faults import Fault, Faults, register


def _cut(faults: Faults, links: list[tuple[str, str]], lasts_ms: int) -> None:
    network = faults.cluster.network
    for source, target in links:
        network.cut(source, target)
        faults.later(lasts_ms / 1000, network.heal, source, target)


@register(
    "cut",
    5,
    Drawn(one_of(0, 3), MAIN, 20),
    then="the links are healed after a while",
    told="",
)
def _partition(faults: Faults, fault: Fault, draw: Random) -> None:
    """The first node, or the first two, see none of the others; clients see all."""
    hosts = [faults.cluster.machines[node].host for node in dict.fromkeys(fault.nodes)]
    size = draw.choice((1, 1, 2))
    inside, outside = hosts[:size], hosts[size:]
    faults.cluster.tell_only("cut-off", inside, outside, fault.lasts_ms)
    _cut(faults, [pair for a in inside for b in outside for pair in ((a, b), (b, a))], fault.lasts_ms)


@register(
    "one_way",
    6,
    Drawn(one_of(0, 2), MAIN, 21),
    then="the links are healed after a while",
    told="",
)
def _one_way(faults: Faults, fault: Fault, draw: Random) -> None:
    """Nothing gets from the first node to the others, or the other way round."""
    first, *others = [faults.cluster.machines[node].host for node in dict.fromkeys(fault.nodes)]
    outward = draw.random() < 0.5
    faults.cluster.tell_only("one-way", *((first, others) if outward else (others, first)), fault.lasts_ms)
    _cut(faults, [(first, other) if outward else (other, first) for other in others], fault.lasts_ms)


@register(
    "reset",
    7,
    Drawn(one_of(0, 2), MAIN, 22),
    told="some connections broke",
)
def _reset(faults: Faults, _fault: Fault, draw: Random) -> None:
    """Some connections break, in the middle of what is under way on them."""
    for transport in faults.cluster.network.transports():
        if draw.random() < 0.3:
            transport.reset()


@register(
    "late",
    8,
    Drawn(one_of(0, 0, 1), "networks"),
)
def _late(faults: Faults, _fault: Fault, draw: Random) -> None:
    """Nodes take connections for broken and make others; what was under way on the old ones arrives after that."""
    for transport in faults.cluster.network.transports():
        if (
            all(end.local[0].startswith("node-") for end in (transport, transport.other))
            and draw.random() < 0.3
        ):
            draw.choice((transport, transport.other)).break_off(draw.choice((0.01, 0.05, 0.5)))


@register(
    "slow",
    9,
    Drawn(one_of(0, 2), MAIN, 23),
    then="they are as usual after a while",
    told="",
)
def _slow(faults: Faults, fault: Fault, draw: Random) -> None:
    """A node's disk, or its links, become slow."""
    machine = faults.machine(fault)
    if draw.random() < 0.5:
        machine.slow_s = draw.choice((0.005, 0.05, 0.3))
        faults.cluster.tell_only("slow-disk", machine.node_id, machine.slow_s, fault.lasts_ms)
        faults.later(fault.lasts_ms / 1000, machine.fast_again)
        return
    network = faults.cluster.network
    faults.cluster.tell_only("slow-links", machine.node_id, fault.lasts_ms)
    for other in faults.cluster.machines:
        for link in (network.link(machine.host, other.host), network.link(other.host, machine.host)):
            link.delay_s = (0.02, 0.2)
            link.pieces = True
            faults.later(fault.lasts_ms / 1000, link.usual, network.delay_s)
