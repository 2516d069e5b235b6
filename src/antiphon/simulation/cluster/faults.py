"""What goes wrong, when: faults drawn from the seed, or taken from a list.

Every fault that happens is written down as a `Fault` that says all about it, so that the faults of a run are a list that can
be replayed, also with entries taken out: that is how a failing seed is shrunk. What a fault draws while it is carried out
comes from a source of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon.invariants import invariant
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.replica_state import Role
from antiphon.simulation.cluster.drawing import Drawn

if TYPE_CHECKING:
    from antiphon.log.simulated_faults import Fault as DiskFault
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
NEVER: Final = None
"""Of a kind that no seed draws: only worlds that ask for it have it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault. Its effect's docstring says in the docs what happens.

    Attributes:
        name: the option `<name>_weight` says how often it is drawn, as against others.
        number: the place among all kinds when a fault is drawn. Seeds depend on it, so that a new kind takes the next one.
        drawn: how a seed draws the weight.
        effect: carries it out.
        then: what the simulator does about it, for the docs.
        told: the sentence of a story about it; empty where what it does is told, None for a plain one.
        renews: may a replica begin anew from another one's log because of it?
        needs: the switch without which nobody finds what it does.
    """

    name: str
    number: int
    drawn: Drawn | None
    effect: Effect
    then: str
    told: str | None
    renews: bool
    needs: str

    @property
    def option(self) -> str:
        """See `name`."""
        return f"{self.name}_weight"


KINDS: Final[dict[str, Kind]] = {}
"""By name; `register` adds one. Complete once `options` is loaded, which loads all modules `..._faults`."""


def register(
    name: str,
    number: int,
    drawn: Drawn | None,
    *,
    then: str = "",
    told: str | None = None,
    renews: bool = False,
    needs: str = "",
) -> Callable[[Effect], Effect]:
    """Make a function the effect of a kind of fault: see `Kind`. All else follows from this."""

    def add(effect: Effect) -> Effect:
        invariant(name not in KINDS, f"there are two faults of kind {name}")
        invariant(all(number != kind.number for kind in KINDS.values()), f"two faults have number {number}")
        KINDS[name] = Kind(name, number, drawn, effect, then, told, renews, needs)
        return effect

    return add


def kinds_in_order() -> list[Kind]:
    """All kinds, as seeds number them."""
    return sorted(KINDS.values(), key=lambda kind: kind.number)


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
        weights = {kind.name: getattr(cluster.options, kind.option) for kind in kinds_in_order()}
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
                if any(
                    host.replica.role is Role.LEADER
                    for host in machine.hosts.values()
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
        KINDS[fault.kind].effect(self, fault, Random(fault.seed))

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


def trouble(
    faults: Faults, machine: "Machine", disk_fault: "DiskFault", lasts_s: float
) -> Callable[[], None]:
    """The machine's disk does this wrong for a while. Returns what ends it earlier."""
    machine.trouble.append(disk_fault)

    def over() -> None:
        if disk_fault in machine.trouble:
            machine.trouble.remove(disk_fault)

    faults.later(lasts_s, over)
    return over
