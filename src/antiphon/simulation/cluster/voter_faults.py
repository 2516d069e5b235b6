"""The voters of `__cluster` are changed by an operator, also because the disk of one is gone."""

from random import Random
from typing import TYPE_CHECKING, Final

from antiphon.simulation.cluster.disk_view import DIRECTORY
from antiphon.simulation.cluster.drawing import Drawn, seldom
from antiphon.simulation.cluster.faults import Fault, Faults, register, restart_later
from antiphon.simulation.cluster.hurt_machines import hurt, may_be_hurt, newest_metadata

if TYPE_CHECKING:
    from antiphon.simulation.cluster.machine import Machine

AGAIN_S: Final = 1.0  # until a replacement that was refused is ordered again


@register(
    "voters",
    36,
    Drawn(seldom(0.12, 3)),
    told="an operator changed the voters of the cluster's own log",
)
def _voters(faults: Faults, _fault: Fault, draw: Random) -> None:
    """An operator adds a voter of `__cluster`, removes or replaces one, or takes such a change back."""
    if faults.cluster.operator is not None:
        faults.cluster.operator.change_voters(draw)


@register(
    "voter_gone",
    37,
    Drawn(seldom(0.08)),
    then="the machine is *hurt*. The node comes back with the empty disk, before or after it was replaced",
    renews=True,
)
def _voter_gone(faults: Faults, fault: Fault, draw: Random) -> None:
    """A voter of `__cluster` loses its disk, and an operator has another node vote in its place."""
    machine, meta = faults.machine(fault), newest_metadata(faults.cluster)
    known = None if meta is None else meta.voters
    spare = [] if meta is None or known is None else [
        node.node_id for node in meta.nodes if node.node_id not in known.everybody
    ]  # fmt: skip
    if not machine.is_up or known is None or machine.node_id not in known.ensemble or not spare:
        return
    if not may_be_hurt(faults.cluster, machine):
        return
    lose_disk(faults, machine)
    _replace(faults, machine.node_id, draw.choice(spare))
    restart_later(faults, machine, fault.lasts_ms)


def lose_disk(faults: Faults, machine: "Machine") -> None:
    """The process ends, and the next one finds an empty disk."""
    faults.cluster.watch.note_held(machine)
    machine.kill()
    hurt(faults, machine, "a new disk")
    faults.cluster.watch.disk_is_new(machine)
    machine.has_new_disk, machine.disk_is_known = True, False
    machine.disk.lose(DIRECTORY)


def _replace(faults: Faults, old: int, new: int) -> None:
    """Order it until it is done, or nobody mends anything any more."""
    meta, operator = newest_metadata(faults.cluster), faults.cluster.operator
    if faults.stopped or operator is None:
        return
    known = None if meta is None else meta.voters
    if known is not None and old not in known.aim:
        return
    operator.replace_voter(old, new)
    faults.later(AGAIN_S, _replace, faults, old, new)
