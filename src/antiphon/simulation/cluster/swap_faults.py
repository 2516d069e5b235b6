"""Power failures while a compacted segment takes the place of others."""

from random import Random
from typing import Final

from antiphon.log.compacted_files import COMPACTED_SUFFIX, SWAP_NAME
from antiphon.simulation.cluster.drawing import Drawn, where
from antiphon.simulation.cluster.faults import Fault, Faults, register
from antiphon.simulation.cluster.shell_faults import CALLS_MAX, Waiting, interrupt

BEGINS: Final = (COMPACTED_SUFFIX, f"/{SWAP_NAME}.tmp")


@register(
    "swap",
    29,
    Drawn(where("compacted_writers", 0, 2), "compaction", 1),
    then="the machine is started again",
)
def _swap(faults: Faults, fault: Fault, draw: Random) -> None:
    """The power fails at one of the next 25 calls after a compacted segment begins to take the place of others."""
    machine = faults.machine(fault)
    waiting = Waiting(after=draw.randrange(CALLS_MAX), machine=machine, begins=BEGINS)
    interrupt(faults, fault, waiting, machine)
