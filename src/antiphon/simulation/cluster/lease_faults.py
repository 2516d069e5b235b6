"""A leader that serves reads under a lease is cut off, or stands still, while others elect; replicas restart meanwhile."""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import Role
from antiphon.simulation.cluster.drawing import Drawn, where
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

LOOK_S: Final = 0.0005
LOOKS: Final = 4_000
LASTS_MAX_MS: Final = 1_500
HALF_S: Final = 2.0  # longer than a coordinator waits for a node
LATE_S: Final = (0.1, 0.16)
RESTART_MS: Final = 1


def leased_leaders(faults: Faults) -> "list[tuple[Machine, SingleWriterPartition]]":
    """Who leads a shard of a table with a lease."""
    return [
        (machine, host)
        for machine in faults.cluster.machines
        for host in machine.hosts.values()
        if isinstance(host, SingleWriterPartition)
        and host.state.is_serving
        and host.replica.config.lease_ms > 0
    ]


@register(
    "lease",
    42,
    Drawn(where("read_lease_ms", 0, 2), "leases", 2),
    then="the links are healed after a while, and the node is started again",
    told="the leader of a table with leases was cut off while another one was elected",
)
def _lease(faults: Faults, fault: Fault, draw: Random) -> None:
    """The leader of a table with leases is cut off, or stands still, at the moment at which others elect another one."""
    leaders = leased_leaders(faults)
    if not leaders:
        return
    machine, host = draw.choice(leaders)
    others = [one for one in faults.cluster.machines if one is not machine]
    lasts_s = min(fault.lasts_ms, LASTS_MAX_MS) / 1000
    attack = _Attack(faults, machine, host, others, lasts_s, Random(draw.getrandbits(32)))
    draw.choice(
        (attack.behind_its_back, attack.behind_its_back, attack.at_once, attack.pause, attack.transfer)
    )()


class _Attack:
    """One of them, on the leader of one shard."""

    def __init__(
        self,
        faults: Faults,
        machine: "Machine",
        host: SingleWriterPartition,
        others: "list[Machine]",
        lasts_s: float,
        draw: Random,
    ) -> None:
        self._faults = faults
        self._machine = machine
        self._host = host
        self._others = others
        self._lasts_s = lasts_s
        self._draw = draw
        self._term = host.replica.term

    def behind_its_back(self) -> None:
        """It does not hear from the coordinator, which gives it up; a follower that it hears from is needed to elect."""
        coordinator = next(
            (one for one in self._others if _coordinates(one)), self._draw.choice(self._others)
        )
        self._isolate([coordinator], HALF_S)
        is_late = self._draw.random() < 0.4
        if is_late:
            self._answer_late()
        if isinstance(self._host.replica, RaftReplica):
            self._faults.later(self._draw.uniform(0.1, 0.4), self._cut_off)
        else:
            self._watch(is_late, self._draw.random() < 0.4, coordinator)

    def at_once(self) -> None:
        """It is cut off from all, and an operator wants another one."""
        self._cut_off()
        self._elect()
        self._faults.later(0.03, self._elect)

    def pause(self) -> None:
        """It stands still for about as long as a lease."""
        process = self._machine.process
        if process is not None:
            process.pause()
            self._faults.later(self._draw.uniform(0.0, 0.3), process.resume)
        self._elect()

    def transfer(self) -> None:
        """It is cut off when it has asked another one to take over."""
        self._elect()
        self._when_told(LOOKS)

    # -- moments -----------------------------------------------------------------------------------------------------

    def _watch(self, is_late: bool, restarts: bool, coordinator: "Machine", looks: int = LOOKS) -> None:
        """Cut it off when others promise a newer term. One that answers late goes on doing so."""
        shard_id = self._host.shard_id
        hosts = [one.hosts[shard_id] for one in self._others if shard_id in one.hosts]
        if not any(host.state.term > self._term for host in hosts):
            if looks and not self._faults.stopped:
                self._faults.later(LOOK_S, self._watch, is_late, restarts, coordinator, looks - 1)
            return
        self._isolate(self._others, self._lasts_s, outward=is_late)
        if restarts:
            self._restart(self._draw.choice([one for one in self._others if one is not coordinator]))

    def _when_told(self, looks: int) -> None:
        replica = self._host.replica
        if isinstance(replica, RaftReplica) and replica.transfer.target is not None:
            self._faults.later(LOOK_S, self._isolate, self._others, self._lasts_s)
        elif looks and self._host.state.is_leader:
            self._faults.later(LOOK_S, self._when_told, looks - 1)

    # -- what is done ------------------------------------------------------------------------------------------------

    def _cut_off(self) -> None:
        """From all; those that vote take it for a hint that connections break."""
        self._isolate(self._others, self._lasts_s)
        for transport in self._faults.cluster.network.transports():
            ends = {transport.local[0], transport.other.local[0]}
            if self._machine.host in ends and all(end.startswith("node-") for end in ends):
                transport.reset()

    def _isolate(self, others: "list[Machine]", lasts_s: float, *, outward: bool = False) -> None:
        if self._faults.stopped:
            return
        network, own = self._faults.cluster.network, self._machine.host
        for one in others:
            for source, target in ((own, one.host), (one.host, own))[: 1 if outward else 2]:
                network.cut(source, target)
                self._faults.later(lasts_s, network.heal, source, target)

    def _answer_late(self) -> None:
        network = self._faults.cluster.network
        for one in self._others:
            link = network.link(one.host, self._machine.host)
            link.delay_s = LATE_S
            self._faults.later(HALF_S, link.usual, network.delay_s)

    def _elect(self) -> None:
        operator = self._faults.cluster.operator
        if operator is not None and not self._faults.stopped:
            operator.elect(self._host.shard_id, Random(self._draw.getrandbits(32)))

    def _restart(self, machine: "Machine") -> None:
        if machine.is_up:
            machine.kill()
            restart_later(self._faults, machine, RESTART_MS)


def _coordinates(machine: "Machine") -> bool:
    host = machine.hosts.get(CLUSTER_SHARD_ID)
    return host is not None and host.replica.role is Role.LEADER
