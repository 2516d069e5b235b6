"""What a bug is that is put into whole nodes, and how it is there while a run lasts.

A mutant replaces functions of the code that ships, in this process, until the run is over: by another function
(`Patch`), or by the function's own source with one piece of it changed (`Edit`). The changed piece must be there exactly
once, so that a bug cannot silently become none when the code around it moves on.
"""

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from antiphon.invariants import invariant
from antiphon.simulation.cluster.options import ClusterOptions, draw_options
from antiphon.simulation.mutant import Patch, patched


@dataclass(frozen=True, slots=True)
class Edit:
    """A mistake in one function: `find` in its source becomes `replace`. `where`: its class or module.

    The function may be a method, a class method, a static method or a property. It cannot use `super()`.
    """

    where: Any
    name: str
    find: str
    replace: str


def _edited(edits: Sequence[Edit]) -> Patch:
    """One function with mistakes in it; InvariantError where one is not to be made exactly once."""
    where, name = edits[0].where, edits[0].name
    found = vars(where).get(name)
    invariant(found is not None, f"there is no {name} of its own in {where}")
    function = _function_of(found)
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        count = source.count(edit.find)
        invariant(count == 1, f"{edit.find!r} is {count} times in {where}.{name}, not once")
        source = source.replace(edit.find, edit.replace)
    made: dict[str, Any] = {}
    exec(compile(source, inspect.getfile(function), "exec"), function.__globals__, made)  # noqa: S102 - our own source
    return where, name, made[name]


def _function_of(found: Any) -> FunctionType:
    function: Any = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
    invariant(isinstance(function, FunctionType), f"{found!r} is no function")
    return function  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ClusterMutant:
    """One mutant and the worlds in which it has a chance to show.

    Attributes:
        name: for the command line.
        description: what is done wrong, as a sentence without its full stop.
        patches: what is replaced; a mistake that is alone stands by itself.
        profile: of the worlds.
        options: `ClusterOptions` that make the bug's conditions arise, in the place of those that are drawn.
        rare: it takes many seeds, or long ones, so the tests that look for all of a kind leave it out.
        quick: the quick tests look for it; those of sessions, logins and the like look for all of theirs anyhow.
        first_seed: where tests begin to look; most often it shows the bug.
        script: the scenario that shows it, where no world does.
    """

    name: str
    description: str
    patches: Edit | tuple[Patch | Edit, ...]
    profile: str = "oxia"
    options: dict[str, Any] = field(default_factory=dict)
    rare: bool = False
    quick: bool = False
    first_seed: int = 1
    script: str = ""

    @property
    def all_patches(self) -> tuple[Patch | Edit, ...]:
        """All that is replaced."""
        return (self.patches,) if isinstance(self.patches, Edit) else self.patches

    @property
    def is_of_protocol(self) -> bool:
        """Does it change nothing but the replicas' own objects, which scripts run too?"""
        places = [one.where if isinstance(one, Edit) else one[0] for one in self.all_patches]
        names = [getattr(where, "__module__", None) or where.__name__ for where in places]
        return all(name.startswith("antiphon.replication.") for name in names)

    def world(self, seed: int) -> ClusterOptions:
        """The options of a seed in which the bug has its chance."""
        return draw_options(seed, self.profile, **self.options)


def _patches(chosen: Sequence[Patch | Edit]) -> list[Patch]:
    edits: dict[tuple[int, str], list[Edit]] = {}
    for one in chosen:
        if isinstance(one, Edit):
            edits.setdefault((id(one.where), one.name), []).append(one)
    return [*(one for one in chosen if not isinstance(one, Edit)), *map(_edited, edits.values())]


@contextmanager
def mutated(mutant: ClusterMutant | None) -> Iterator[None]:
    """Replace what the mutant replaces, and put it back."""
    with patched(_patches(() if mutant is None else mutant.all_patches)):
        yield
