"""Keys in an order that are not in a store, or not as the store has them: found by range, sorted in pieces."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

RUN_KEYS: Final = 4096  # at most, that are sorted together


class KnownKeys:
    """Sorted runs of keys. All of them are found once `sort` has said that no more are left.

    With `sort_key` each stands here by what that makes of it; those of which it makes None are left out.
    """

    def __init__(
        self, keys: Sequence[bytes], sort_key: Callable[[bytes], bytes | None] | None = None
    ) -> None:
        self._keys = keys
        self._sort_key = sort_key
        self._sorted = 0
        self._runs: list[list[bytes]] = []

    def sort(self, count: int) -> bool:
        """Sort `count` more keys, and a run at most; says whether more are left."""
        at = self._sorted
        end = self._sorted = min(at + min(count, RUN_KEYS), len(self._keys))
        if at < end:
            run = self._keys[at:end]
            if self._sort_key is not None:
                run = [one for one in map(self._sort_key, run) if one is not None]
            self._runs.append(sorted(run))
        return end < len(self._keys)

    def between(self, start: bytes, end: bytes) -> Iterator[bytes]:
        """The keys from `start` to before `end` (empty: to the end); one that is there twice comes twice."""
        for run in self._runs:
            first = bisect_left(run, start)
            yield from run[first : bisect_left(run, end, first) if end else len(run)]
