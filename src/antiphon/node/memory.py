"""Keeping the garbage collector away from what lives as long as the process.

A node of a large cluster holds a few objects for each shard there is. They are hardly ever garbage, and yet each full
collection walks over all of them: with 100,000 shards a coordinator spent two thirds of its time on that, and stood still
for two seconds at a time (docs/benchmarks.md). So full collections are not made when the collector feels like it but every
`COLLECT_EVERY_S`, and whenever the number of shards has doubled, what is there is set aside: later collections skip it.
Garbage in cycles that is around at such a moment is never freed, but there are only as many moments as doublings.

What is freed the C library keeps for later, in between what is still in use. Large answers that clients did not read leave
holes of that kind, so with each full collection the holes are given back to the system.
"""

import ctypes
import gc
from collections.abc import Callable
from functools import cache
from typing import Final

YOUNG_OBJECTS: Final = 50_000
YOUNG_COLLECTIONS: Final = 5
NEVER_BY_ITSELF: Final = 1 << 30
COLLECT_EVERY_S: Final = 600.0
FIRST: Final = 5_000


def settle() -> None:
    """Young objects are looked at as always, only less often; the old generation is left to `collect`."""
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER_BY_ITSELF)


def collect() -> None:
    """A full collection of everything that was not set aside; what is free goes back to the system."""
    gc.collect()
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    """What gives it back in glibc, `malloc_trim`; other C libraries have none."""
    try:
        found: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return bool
    return found


class LongLived:
    """Sets long-lived objects aside as their number grows."""

    def __init__(self) -> None:
        self._aside = FIRST // 2

    def are(self, count: int) -> bool:
        """So many are there now. True when they were set aside."""
        if count < 2 * self._aside:
            return False
        self._aside = count
        gc.freeze()
        return True
