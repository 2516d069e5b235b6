"""Which keys were removed lately, and where in the log: for who has read that a key is not there.

A row that was read is the same as long as its version is. A key that was not there has no version: it may have come and
gone since. The leader of a shard therefore remembers the keys that were removed while it leads, a bounded number of them,
and from which offset on it knows of all removals. Whatever it does not know for certain counts as a change.
"""

from collections.abc import Iterable
from typing import Final

GENERATION_KEYS: Final = 16_384


class RecentRemovals:
    """See the module's text; of one term of leadership. `known_from`: every removal from this offset on is known."""

    __slots__ = ("_before", "_before_end", "_recent", "known_from")

    def __init__(self, known_from: int) -> None:
        self.known_from = known_from
        self._recent: dict[bytes, int] = {}  # key -> end of the batch that removed it
        self._before: dict[bytes, int] = {}
        self._before_end = known_from  # no removal of that generation ends later

    def note(self, keys: Iterable[bytes], end: int) -> None:
        """A batch of the log that ends at `end` removes these keys."""
        recent = self._recent
        for key in keys:
            recent[key] = end
        if len(recent) > GENERATION_KEYS:
            self.known_from = self._before_end
            self._before, self._before_end = recent, end
            self._recent = {}

    def is_known_absent(self, key: bytes, since: int) -> bool:
        """Is it certain that a key which is not there was not there at any time since the log ended at `since`?"""
        if since < self.known_from:
            return False
        return max(self._recent.get(key, -1), self._before.get(key, -1)) <= since
