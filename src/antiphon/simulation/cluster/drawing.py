"""How a seed draws the options of its world, and those options that faults and workloads bring with them.

A fault or a workload says beside its code in how many worlds it is. `options.py` makes one class of these options and of
those of the world itself, and draws all of them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from random import Random
from types import ModuleType
from typing import Any, Final

from antiphon.invariants import invariant

Choose = Callable[[Random, Mapping[str, Any]], Any]
"""Chooses a value. It may look at `profile`, and at what was drawn before it in its stream."""


MAIN: Final = ""
"""The stream of most of a world's options. It has no name of its own, and nothing can be added to it."""

LISTENERS: Final = "+listeners"
"""Drawn as an option, and none: names that begin so are known to what is drawn after them, and to nothing else."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """How an option is drawn.

    Attributes:
        choose: what it becomes.
        stream: the name of the source of chance. None: one of its own, as each new option has, so that the world of a seed
            stays as it is in all else.
        place: in the stream; its options are drawn one after the other.
    """

    choose: Choose
    stream: str | None = None
    place: int = 0


def one_of(*values: Any) -> Choose:
    """Each of these as often as the others."""
    return lambda draw, _: draw.choice(values)


def seldom(chance: float, value: int = 1) -> Choose:
    """This number with a chance, else 0."""
    return lambda draw, _: value * int(draw.random() < chance)


def sometimes(chance: float) -> Choose:
    """A switch that is on with a chance."""
    return lambda draw, _: draw.random() < chance


def where(option: str, *values: int) -> Choose:
    """As `one_of`, in worlds that have this option, which is drawn before; else nothing is drawn, and it is 0."""
    return lambda draw, world: draw.choice(values) if world[option] else 0


def with_listeners(*values: int) -> Choose:
    """As `one_of`, in the half of the worlds that have clients of the other listeners."""
    return lambda draw, world: draw.choice(values) * world[LISTENERS]


def draw_all(seed: int, profile: str, wanted: Iterable[tuple[str, Drawn]]) -> dict[str, Any]:
    """The value of each option, by name."""
    names = set()
    streams: dict[str, list[tuple[int, str, Choose]]] = {}
    for name, drawn in wanted:
        if not name.startswith("+"):
            names.add(name)
        streams.setdefault(name if drawn.stream is None else drawn.stream, []).append(
            (drawn.place, name, drawn.choose)
        )
    found: dict[str, Any] = {}
    for stream, options in streams.items():
        draw = Random(" ".join(filter(None, ("antiphon cluster", stream, profile, str(seed)))))
        options.sort()
        places = [place for place, _, _ in options]
        invariant(len(set(places)) == len(places), f"two options have one place in the stream {stream!r}")
        known: dict[str, Any] = {"profile": profile}
        for _, name, choose in options:
            known[name] = choose(draw, known)
        found |= known
    return {name: value for name, value in found.items() if name in names}


def import_all(package: ModuleType, ending: str = "") -> None:
    """Import the modules of a package whose names end so: what is in them registers itself."""
    for found in iter_modules(package.__path__):
        if found.name.endswith(ending):
            import_module(f"{package.__name__}.{found.name}")
