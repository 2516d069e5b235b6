"""The workloads that there are: each registers itself, and says in how many worlds it is.

The first paragraph of its docstring says in the docs what its clients do, and the one that begins with "Checked:" what must
be true of what they were told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from antiphon.invariants import invariant

if TYPE_CHECKING:
    from antiphon.simulation.cluster.drawing import Drawn
    from antiphon.simulation.cluster.workloads.workload import Workload

W = TypeVar("W", bound="type[Workload]")
ALWAYS: Final = ("topic", "table")
"""Modules of the workloads that every run has; others may read what they write."""


@dataclass(frozen=True, slots=True)
class Registered:
    """One workload.

    Attributes:
        option: of worlds, that asks for it.
        number: the place among all when they begin. Seeds depend on it, so that a new one takes the next number.
        drawn: how a seed draws the option.
        cls: is made with the cluster, and with the workload that it reads.
        reads: one of `ALWAYS`, or nothing.
        type: int where the option says how many clients there are, bool where it is a switch.
        logs_in: do its clients know how to log in? The others stay away where nodes ask for it.
    """

    option: str
    number: int
    drawn: "Drawn"
    cls: Any
    reads: str
    type: type[int] | type[bool]
    logs_in: bool


WORKLOADS: Final[dict[str, Registered]] = {}
"""By option; `workload` adds one. Complete once `options` is loaded, which loads all modules here."""


def workload(
    option: str,
    number: int,
    drawn: "Drawn",
    *,
    reads: str = "",
    switch: bool = False,
    logs_in: bool = True,
) -> Callable[[W], W]:
    """Make a class a workload of worlds: see `Registered`. All else follows from this."""

    def add(cls: W) -> W:
        invariant(option not in WORKLOADS, f"there are two workloads {option}")
        invariant(
            all(number != one.number for one in WORKLOADS.values()), f"two workloads have number {number}"
        )
        kind = bool if switch else int
        cls.option = option
        WORKLOADS[option] = Registered(option, number, drawn, cls, reads, kind, logs_in)
        return cls

    return add


def workloads_in_order() -> list[Registered]:
    """All workloads, in the order in which they begin."""
    return sorted(WORKLOADS.values(), key=lambda one: one.number)
