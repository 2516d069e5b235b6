"""Vector clocks: how much of each origin's writes a replica has (S4.21, S4.22, S4.23).

An *origin* is one writer's log within a shard whose every replica writes; its id is 1..31, and component 0 counts what is
local and never leaves the node. A clock is a tuple indexed by origin id: the last LSN of that origin, 0 where there is
none, without trailing zeros, so that equal clocks are equal tuples. LSNs of one origin rise by one, so "the last one" says
all that is had of it; LSNs of different origins say nothing about each other.
"""

from collections.abc import Iterable
from itertools import zip_longest
from typing import Annotated, Final

from msgspec import Meta

from antiphon.errors import InvalidRequestError

LOCAL: Final = 0  # the component that is not replicated
ORIGINS_MAX: Final = 31

Lsn = Annotated[int, Meta(ge=0)]
Vclock = Annotated[tuple[Lsn, ...], Meta(max_length=ORIGINS_MAX + 1)]
NOTHING: Final[Vclock] = ()


def clock_of(components: Iterable[int]) -> Vclock:
    """A clock from its components, the local one first. Raises InvalidRequestError for more than 32 or negative ones."""
    found = list(components)
    while found and found[-1] == 0:
        found.pop()
    if len(found) > ORIGINS_MAX + 1 or any(lsn < 0 for lsn in found):
        raise InvalidRequestError(
            f"a vector clock has a local component and up to {ORIGINS_MAX} origins, none of them negative: {found}"
        )
    return tuple(found)


def component(clock: Vclock, origin: int) -> int:
    """The last LSN of `origin`, 0 if there is none."""
    return clock[origin] if origin < len(clock) else 0


def covers(clock: Vclock, other: Vclock) -> bool:
    """Has the holder of `clock` all that the holder of `other` has?"""
    if len(clock) < len(other):
        return False
    return all(mine >= theirs for mine, theirs in zip(clock, other, strict=False))


def join(one: Vclock, other: Vclock) -> Vclock:
    """What two replicas have together."""
    return tuple(max(pair) for pair in zip_longest(one, other, fillvalue=0))


def meet(one: Vclock, other: Vclock) -> Vclock:
    """What both have."""
    return clock_of(min(pair) for pair in zip(one, other, strict=False))


def lag(ahead: Vclock, behind: Vclock) -> int:
    """How many replicated entries the holder of `ahead` has that the other lacks (S4.23)."""
    pairs = list(zip_longest(ahead, behind, fillvalue=0))[LOCAL + 1 :]
    return sum(max(0, have - lacks) for have, lacks in pairs)
