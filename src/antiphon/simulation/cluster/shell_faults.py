"""Power failures while a snapshot takes the place of a replica, elections in the cluster's own tables, other commands."""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.log.simulated_faults import Fault as DiskFault
from antiphon.partition.table_files import INSTALL_SUFFIX
from antiphon.simulation.cluster.drawing import MAIN, Drawn, one_of, seldom
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later, trouble

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

CALLS_MAX: Final = 25  # to the disk, from when an installation has begun until the power fails
LOOK_S: Final = 0.1
RESTART_MS_MAX: Final = 1_000
ARMED_S: Final = 3.0  # so long such a failure waits for a snapshot


@dataclass(slots=True)
class Waiting(DiskFault):
    """Fails no call: it waits for the one that begins something, and ends the machine some calls after it.

    `begins`: part of the names that are changed then, an installation's by default.
    """

    machine: "Machine | None" = None
    begins: tuple[str, ...] = (INSTALL_SUFFIX,)

    def hits(self, kind: str, path: str, rng: Random) -> bool:  # noqa: ARG002 (as every fault of a disk)
        """See `DiskFault`."""
        if self.calls > 0 and self.is_begun(kind, path) and self.machine is not None:
            self.calls = 0
            disk = self.machine.disk
            disk.crash_after = disk.calls + self.after
        return False

    def is_begun(self, kind: str, path: str) -> bool:
        """Does this call begin what is to be interrupted?"""
        return kind == "rename" and any(part in path for part in self.begins)


@register(
    "install",
    25,
    Drawn(seldom(0.15), "seldom", 2),
    then="the machine is started again",
    renews=True,
)
def _install(faults: Faults, fault: Fault, draw: Random) -> None:
    """The power fails at one of the next 25 calls after a snapshot begins to replace a replica."""
    machine = faults.machine(fault)
    interrupt(faults, fault, Waiting(after=draw.randrange(CALLS_MAX), machine=machine), machine)


def interrupt(faults: Faults, fault: Fault, waiting: Waiting, machine: "Machine") -> None:
    """Arm such a failure, for a while; what is interrupted is started again later."""

    def look() -> None:
        if waiting.calls == 0 and not machine.is_up:
            faults.cluster.tell_only(f"{fault.kind}-interrupted", machine.node_id)
            over()
            restart_later(faults, machine, min(fault.lasts_ms, RESTART_MS_MAX))
        elif waiting in machine.trouble:
            faults.later(LOOK_S, look)

    faults.later(LOOK_S, look)
    over = trouble(faults, machine, waiting, ARMED_S)


@register(
    "internal_elect",
    26,
    Drawn(seldom(0.1), "seldom", 4),
)
def _internal_elect(faults: Faults, _fault: Fault, draw: Random) -> None:
    """An operator has the shards of the cluster's own tables led by some node."""
    operator = faults.cluster.operator
    if operator is not None:
        operator.process.run(operator.elect_internal(draw))


@register(
    "operator",
    27,
    Drawn(one_of(0, 2, 4), MAIN, 30),
    told="",
    renews=True,
)
def _operator(faults: Faults, _fault: Fault, draw: Random) -> None:
    """An operator gives one of its commands (`operator.py`). A job that starts for the first time makes an internal topic,
    also while nodes are down.
    """
    operator = faults.cluster.operator
    if operator is not None:
        operator.order(draw)
