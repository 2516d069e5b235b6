"""What a planted bug is, and how it is there while a run lasts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from antiphon.invariants import invariant
from antiphon.simulation.options import SimulationOptions

if TYPE_CHECKING:
    from antiphon.simulation.disk import ReplicaFiles

Patch = tuple[Any, str, Any]  # module or class, attribute, replacement
_INHERITED: Final = object()


@dataclass(frozen=True)
class Plant:
    """One planted bug and the worlds in which it has a chance to show."""

    name: str
    description: str
    patches: tuple[Patch, ...] = ()
    profile: str = "raft"
    rare: bool = False  # it takes many seeds: left to the campaign, `make simulate-plants`
    options: dict[str, Any] = field(default_factory=dict)
    on_restart: "Callable[[ReplicaFiles], None] | None" = None

    def adapt(self, options: SimulationOptions) -> SimulationOptions:
        """The options of a seed, changed so that the bug's conditions arise."""
        commit = "live" if options.commit == "live" else "quorum"
        plain = {"commit": commit, "fault_lasts_ms": 400, "operator_weight": 0}
        return replace(options, **{**plain, **self.options})


@contextmanager
def planted(plant: Plant | None) -> Iterator[None]:
    """Replace what the plant replaces, and put it back."""
    with patched(() if plant is None else plant.patches):
        yield


@contextmanager
def patched(patches: Sequence[Patch]) -> Iterator[None]:
    """Carry out the patches in their order, and take them back in the other one."""
    originals = [(where, name, vars(where).get(name, _INHERITED)) for where, name, _ in patches]
    for where, name, _ in patches:
        invariant(hasattr(where, name), f"there is no {name} to be replaced in {where}")
    try:
        for where, name, replacement in patches:
            setattr(where, name, replacement)
        yield
    finally:
        for where, name, original in reversed(originals):
            if original is _INHERITED:
                delattr(where, name)
            else:
                setattr(where, name, original)
