"""Power failures while what a lost history left is removed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from antiphon.simulation.cluster.drawing import Drawn
from antiphon.simulation.cluster.faults import Fault, Faults, register
from antiphon.simulation.cluster.shell_faults import CALLS_MAX, Waiting, interrupt

REPLICA: Final = re.compile(r"/shards/\d+$")


@dataclass(slots=True)
class _Removal(Waiting):
    """Waits until a replica's folder is put aside, to be removed."""

    def is_begun(self, kind: str, path: str) -> bool:
        """See `Waiting`."""
        return kind == "rename" and REPLICA.search(path) is not None


def _where_replicas_are_lost(draw: Random, world: Mapping[str, Any]) -> int:
    return int(draw.choice((0, 2))) if world["most_replicas_gone_weight"] else 0


@register(
    "removal",
    41,
    Drawn(_where_replicas_are_lost, "recoveries", 3),
    then="the machine is started again",
    told="power failed while a replica was removed",
)
def _removal(faults: Faults, fault: Fault, draw: Random) -> None:
    """The power fails at one of the next 25 calls after a replica begins to be removed."""
    machine = faults.machine(fault)
    interrupt(faults, fault, _Removal(after=draw.randrange(CALLS_MAX), machine=machine), machine)
