"""What a bug is that is planted in whole nodes, and how it is there while a run lasts.

A planted bug replaces functions of the code that ships, in this process, until the run is over: by another function
(`Patch`), or by the function's own source with one piece of it changed (`Edit`). The changed piece must be there exactly
once, so that a bug cannot silently become none when the code around it moves on.
"""

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Final

from antiphon.invariants import invariant
from antiphon.simulation.cluster.options import ClusterOptions, draw_options
from antiphon.simulation.plant import Patch

_INHERITED: Final = object()


@dataclass(frozen=True, slots=True)
class Edit:
    """A mistake in one function: `find` in its source becomes `replace`. `where`: its class or module.

    The function may be a method, a class method, a static method or a property. It cannot use `super()`.
    """

    where: Any
    name: str
    find: str
    replace: str

    def patch(self) -> Patch:
        """The function with the mistake in it, as a patch; InvariantError where `find` is not there exactly once."""
        found = vars(self.where).get(self.name)
        invariant(found is not None, f"there is no {self.name} of its own in {self.where}")
        function = _function_of(found)
        source = textwrap.dedent(inspect.getsource(function))
        count = source.count(self.find)
        invariant(count == 1, f"{self.find!r} is {count} times in {self.where}.{self.name}, not once")
        made: dict[str, Any] = {}
        changed = compile(source.replace(self.find, self.replace), inspect.getfile(function), "exec")
        exec(changed, function.__globals__, made)  # noqa: S102 - the project's own source, with a mistake
        return self.where, self.name, made[self.name]


def _function_of(found: Any) -> FunctionType:
    function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    invariant(isinstance(function, FunctionType), f"{found!r} is no function")
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ClusterPlant:
    """One planted bug and the worlds in which it has a chance to show.

    Attributes:
        name: for the command line.
        description: what is done wrong, as a sentence without its full stop.
        patches: what is replaced.
        profile: of the worlds.
        options: `ClusterOptions` that make the bug's conditions arise, in the place of those that are drawn.
        rare: it takes many seeds, so the quick tests leave it out.
    """

    name: str
    description: str
    patches: tuple[Patch | Edit, ...]
    profile: str = "oxia"
    options: dict[str, Any] = field(default_factory=dict)
    rare: bool = False

    def world(self, seed: int) -> ClusterOptions:
        """The options of a seed in which the bug has its chance."""
        return draw_options(seed, self.profile, **self.options)


@contextmanager
def planted(plant: ClusterPlant | None) -> Iterator[None]:
    """Replace what the plant replaces, and put it back."""
    chosen = () if plant is None else plant.patches
    patches = [one.patch() if isinstance(one, Edit) else one for one in chosen]
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
