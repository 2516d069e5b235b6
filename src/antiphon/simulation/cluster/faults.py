"""What goes wrong, when: faults drawn from the seed, or taken from a list.

Every fault that happens is written down as a `Fault` that says all about it, so that the faults of a run are a list that can
be replayed, also with entries taken out: that is how a failing seed is shrunk. What a fault draws while it is carried out
comes from a source of its own.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon.invariants import invariant
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.replica_state import Role

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.cluster.machine import Machine
    from antiphon.simulation.cluster.workloads.workload import Workload


class Fault(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that goes wrong, or one command of an operator.

    Attributes:
        at_ms: when, after the phase with faults began.
        kind: one of `KINDS`.
        nodes: whom it concerns.
        lasts_ms: until it is over.
        seed: of what is drawn while it is carried out.
    """

    at_ms: int
    kind: str
    nodes: tuple[int, ...] = ()
    lasts_ms: int = 0
    seed: int = 0


Effect = Callable[["Faults", Fault, Random], None]
KINDS: Final[dict[str, Effect]] = {}
"""By kind; `register` adds one. The option `<kind>_weight` says how often it is drawn."""


def register(kind: str) -> Callable[[Effect], Effect]:
    """Make a function the effect of a kind of fault."""

    def add(effect: Effect) -> Effect:
        invariant(kind not in KINDS, f"there are two faults of kind {kind}")
        KINDS[kind] = effect
        return effect

    return add


class Faults:
    """Draws faults one after the other, or takes them from `schedule`, and carries them out."""

    def __init__(self, cluster: "SimulatedCluster", schedule: tuple[Fault, ...] | None = None) -> None:
        self.cluster = cluster
        self.workloads: Sequence[Workload] = ()  # whose clients things happen to, too
        self.happened: list[Fault] = []
        self._draw = cluster.stream("faults")
        self._schedule = schedule
        self._stopped = False
        self._began_s = 0.0
        weights = {kind: getattr(cluster.options, f"{kind}_weight") for kind in KINDS}
        self._menu = [(kind, weight) for kind, weight in weights.items() if weight]

    def begin(self) -> None:
        """From now on things go wrong."""
        self._began_s = self.cluster.loop.now
        if self._schedule is not None:
            for fault in self._schedule:
                self._at(fault.at_ms, self._carry_out, fault)
        elif self._menu and self.cluster.options.fault_every_ms:
            self._plan()

    def later(self, delay_s: float, work: Callable[..., None], *args: Any) -> None:
        """Do something at a later time of the world."""
        self.cluster.loop.call_later(delay_s, work, *args)

    def _at(self, at_ms: int, work: Callable[..., None], *args: Any) -> None:
        """A drawn fault and one from a list happen at the same instant, so that a list repeats its run."""
        self.cluster.loop.call_at(self._began_s + at_ms / 1000, work, *args)

    def _plan(self, after_ms: int = 0) -> None:
        at_ms = after_ms + round(self._draw.expovariate(1 / self.cluster.options.fault_every_ms))
        self._at(at_ms, self._strike, at_ms)

    def _strike(self, at_ms: int) -> None:
        if self._stopped:
            return
        draw, options = self._draw, self.cluster.options
        kinds, weights = zip(*self._menu, strict=True)
        kind = draw.choices(kinds, weights)[0]
        longest = options.fault_lasts_ms
        lasts = 1 + int(draw.expovariate(1 / draw.choice((longest / 20, longest / 4, longest))))
        others = draw.sample(range(options.nodes), options.nodes)
        self._carry_out(Fault(at_ms, kind, (self._victim(), *others), lasts, draw.getrandbits(32)))
        self._plan(at_ms)

    def _victim(self) -> int:
        """Any node; often one that leads, because that is where it hurts."""
        draw = self._draw
        if draw.random() < 0.4:
            leading = [
                machine.node_id
                for machine in self.cluster.machines
                if machine.node is not None
                and any(
                    host.replica.role is Role.LEADER
                    for host in machine.node.hosts.values()
                    if isinstance(host, SingleWriterPartition)
                )
            ]
            if leading:
                return draw.choice(leading)
        return draw.randrange(self.cluster.options.nodes)

    def _carry_out(self, fault: Fault) -> None:
        if self._stopped:
            return
        self.happened.append(fault)
        self.cluster.tell("fault", fault.kind, tuple(dict.fromkeys(fault.nodes)), fault.lasts_ms)
        KINDS[fault.kind](self, fault, Random(fault.seed))

    @property
    def stopped(self) -> bool:
        """Is the phase with faults over?"""
        return self._stopped

    def machine(self, fault: Fault) -> "Machine":
        """Whom the fault concerns first."""
        return self.cluster.machines[fault.nodes[0]]

    def stop(self) -> None:
        """No more faults; what is broken is mended: every node runs, every link works, every disk has room."""
        self._stopped = True
        cluster = self.cluster
        cluster.network.heal_all()
        for machine in cluster.machines:
            machine.mend()
        for workload in self.workloads:
            for client in workload.clients:
                client.process.resume()


def restart_later(faults: Faults, machine: "Machine", after_ms: int) -> None:
    """Start the node again after a while, unless somebody did."""

    def start() -> None:
        if not machine.is_up:
            machine.start()

    faults.later(after_ms / 1000, start)


@register("kill")
def _kill(faults: Faults, fault: Fault, _draw: Random) -> None:
    machine = faults.machine(fault)
    machine.kill()
    restart_later(faults, machine, fault.lasts_ms)


@register("power")
def _power(faults: Faults, fault: Fault, draw: Random) -> None:
    """The machine goes down, at once or in the middle of one of its next calls to the disk."""
    machine = faults.machine(fault)
    if draw.random() < 0.5:
        machine.power_off()
    else:
        machine.disk.crash_after = machine.disk.calls + draw.randrange(40)
        faults.later(0.5, machine.power_off_if, machine.process)
    restart_later(faults, machine, fault.lasts_ms + 500)


@register("power_all")
def _power_all(faults: Faults, fault: Fault, draw: Random) -> None:
    for machine in faults.cluster.machines:
        machine.power_off()
        restart_later(faults, machine, draw.randint(1, fault.lasts_ms))


@register("pause")
def _pause(faults: Faults, fault: Fault, _draw: Random) -> None:
    process = faults.machine(fault).process
    if process is not None:
        process.pause()
        faults.later(fault.lasts_ms / 1000, process.resume)


def _cut(faults: Faults, links: list[tuple[str, str]], lasts_ms: int) -> None:
    network = faults.cluster.network
    for source, target in links:
        network.cut(source, target)
        faults.later(lasts_ms / 1000, network.heal, source, target)


@register("cut")
def _partition(faults: Faults, fault: Fault, draw: Random) -> None:
    """The first node, or the first two, see none of the others; clients see all."""
    hosts = [faults.cluster.machines[node].host for node in dict.fromkeys(fault.nodes)]
    size = draw.choice((1, 1, 2))
    inside, outside = hosts[:size], hosts[size:]
    faults.cluster.tell_only("cut-off", inside, outside, fault.lasts_ms)
    _cut(faults, [pair for a in inside for b in outside for pair in ((a, b), (b, a))], fault.lasts_ms)


@register("one_way")
def _one_way(faults: Faults, fault: Fault, draw: Random) -> None:
    """Nothing gets from the first node to the others, or the other way round."""
    first, *others = [faults.cluster.machines[node].host for node in dict.fromkeys(fault.nodes)]
    outward = draw.random() < 0.5
    faults.cluster.tell_only("one-way", *((first, others) if outward else (others, first)), fault.lasts_ms)
    _cut(faults, [(first, other) if outward else (other, first) for other in others], fault.lasts_ms)


@register("reset")
def _reset(faults: Faults, _fault: Fault, draw: Random) -> None:
    """Some connections break, in the middle of what is under way on them."""
    for transport in faults.cluster.network.transports():
        if draw.random() < 0.3:
            transport.reset()


@register("late")
def _late(faults: Faults, _fault: Fault, draw: Random) -> None:
    """Nodes take connections for broken and make others; what was under way on the old ones arrives after that."""
    for transport in faults.cluster.network.transports():
        if (
            all(end.local[0].startswith("node-") for end in (transport, transport.other))
            and draw.random() < 0.3
        ):
            draw.choice((transport, transport.other)).break_off(draw.choice((0.01, 0.05, 0.5)))


@register("slow")
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
