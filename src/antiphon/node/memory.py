"""Keeping the garbage collector away from what lives as long as the process.

A node of a large cluster holds a few objects for each shard there is. They are hardly ever garbage, and yet each full
collection walks over all of them: with 100,000 shards a coordinator spent two thirds of its time on that, and stood still
for two seconds at a time (docs/benchmarks.md). So full collections are not made when the collector feels like it but every
`COLLECT_EVERY_S`, and whenever the number of shards has doubled, what is there is set aside: later collections skip it.
Garbage in cycles that is around at such a moment is never freed, but there are only as many moments as doublings.

What is freed the C library keeps for later, in between what is still in use. Large requests, and large answers that clients
did not read, leave holes of that kind. They are given back to the system every `GIVE_BACK_EVERY_S`, which takes 0.3 ms where
there are none, and whenever the process has grown by `GROWN_BYTES`. Threads share two heaps, so that there are not as many
heaps with holes as threads.
"""

import ctypes
import gc
from collections.abc import Callable
from functools import cache
from typing import Final

from antiphon import system

YOUNG_OBJECTS: Final = 50_000
YOUNG_COLLECTIONS: Final = 5
NEVER_BY_ITSELF: Final = 1 << 30
COLLECT_EVERY_S: Final = 600.0
GIVE_BACK_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 0.5
GROWN_BYTES: Final = 48 * 1024 * 1024
HEAPS: Final = 2
_M_ARENA_MAX: Final = -8  # of glibc's mallopt
FIRST: Final = 5_000


def settle() -> None:
    """Young objects are looked at as always, only less often; the old generation is left to `collect`."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER_BY_ITSELF)
    _of_libc("mallopt")(_M_ARENA_MAX, HEAPS)


def collect() -> None:
    """A full collection of everything that was not set aside; what is free goes back to the system."""
    gc.collect()
    give_back()


def give_back() -> None:
    """What is free goes back to the system: 18 ms for 190 MiB of it."""
    _of_libc("malloc_trim")(0)


@cache
def _of_libc(name: str) -> Callable[..., object]:
    """A function of glibc; one that does nothing where the C library is another one, which has none of this name."""
    try:
        found: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return _nothing
    return found


def _nothing(*_: int) -> None:
    pass


class HeapTrimmer:
    """Gives back what is free when the process has grown."""

    def __init__(self) -> None:
        self._least_bytes = 0

    def look(self) -> bool:
        """True when something was given back: the process has grown by `GROWN_BYTES`."""
        resident = system.resident_bytes()
        if not self._least_bytes:
            self._least_bytes = resident
        if resident <= self._least_bytes + GROWN_BYTES:
            self._least_bytes = min(self._least_bytes, resident)
            return False
        give_back()
        self._least_bytes = system.resident_bytes()
        return True


class LongLived:
    """Sets long-lived objects aside as their number grows."""

    def __init__(self) -> None:
        self._aside = FIRST // 2

    def note_count(self, count: int) -> bool:
        """So many are there now. True when they were set aside."""
        if count < 2 * self._aside:
            return False
        self._aside = count
        gc.freeze()
        return True
