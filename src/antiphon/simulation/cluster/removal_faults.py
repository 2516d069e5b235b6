"""Power failures while what a lost history left is removed."""

import re
from dataclasses import dataclass
from random import Random
from typing import Final

from antiphon.simulation.cluster.drawing import Drawn, where
from antiphon.simulation.cluster.faults import Fault, Faults, register
from antiphon.simulation.cluster.shell_faults import CALLS_MAX, Waiting, interrupt

REPLICA: Final = re.compile(r"/shards/\d+$")


@dataclass(slots=True)
class _Removal(Waiting):
    """Waits until a replica's folder is put aside, to be removed."""

    def is_begun(self, kind: str, path: str) -> bool:
        """See `Waiting`."""
        return kind == "rename" and REPLICA.search(path) is not None


@register(
    "removal",
    41,
    Drawn(where("most_replicas_gone_weight", 0, 2), "recoveries", 3),
    then="the machine is started again",
    told="power failed while a replica was removed",
)
def _removal(faults: Faults, fault: Fault, draw: Random) -> None:
    """The power fails at one of the next 25 calls after a replica begins to be removed."""
    machine = faults.machine(fault)
    interrupt(faults, fault, _Removal(after=draw.randrange(CALLS_MAX), machine=machine), machine)
