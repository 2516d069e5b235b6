"""Power failures while a compacted segment takes the place of others."""

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from antiphon.log.compacted_files import COMPACTED_SUFFIX, SWAP_NAME
from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.faults import Fault, Faults, register
from antiphon.simulation.cluster.shell_faults import CALLS_MAX, Waiting, interrupt

BEGINS: Final = (COMPACTED_SUFFIX, f"/{SWAP_NAME}.tmp")


def _where_logs_are_compacted(draw: Random, world: Mapping[str, Any]) -> int:
    return int(draw.choice((0, 2))) if world["compacted_writers"] else 0


@register(
    "swap",
    29,
    Drawn(_where_logs_are_compacted, "compaction", 1),
    then="the machine is started again",
)
def _swap(faults: Faults, fault: Fault, draw: Random) -> None:
    """The power fails at one of the next 25 calls after a compacted segment begins to take the place of others."""
    machine = faults.machine(fault)
    waiting = Waiting(after=draw.randrange(CALLS_MAX), machine=machine, begins=BEGINS)
    interrupt(faults, fault, waiting, machine)
