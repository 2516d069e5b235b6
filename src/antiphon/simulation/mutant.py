"""How a mutant is put in: functions are replaced while a run lasts, and put back."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from antiphon.invariants import invariant

Patch = tuple[Any, str, Any]  # module or class, attribute, replacement
_INHERITED: Final = object()


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
