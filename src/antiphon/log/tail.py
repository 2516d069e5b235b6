"""The newest batches of a shard, in memory: those that are staged and not yet written, and a bounded part of the
written ones.
"""

from bisect import bisect_right
from typing import Final

from antiphon.records.batch import Buffer

_COMPACT_AT: Final = 1024
# What a batch costs in memory beside its bytes, about: a view of the message that it came in, its offset and its place.
BATCH_COSTS_BYTES: Final = 512


class MemoryTail:
    """Whole, contiguous batches from `start` to `end` (exclusive offsets), each with its place in its segment.

    `held_bytes` are what they take of the process's memory: for small batches much more than their own bytes.
    """

    __slots__ = ("_bases", "_batches", "_head", "_places", "end", "held_bytes")

    def __init__(self, start: int) -> None:
        self._bases: list[int] = []
        self._batches: list[Buffer] = []
        self._places: list[tuple[int, int]] = []
        self._head = 0
        self.end = start
        self.held_bytes = 0

    def __len__(self) -> int:
        return len(self._bases) - self._head

    @property
    def start(self) -> int:
        """Offset of the first batch held; `end` when none is."""
        return self._bases[self._head] if self._head < len(self._bases) else self.end

    def append(self, base_offset: int, next_offset: int, batch: Buffer, place: tuple[int, int]) -> None:
        """Add the next batch; `place`: its position in its segment, and its number there."""
        self._bases.append(base_offset)
        self._batches.append(batch)
        self._places.append(place)
        self.end = next_offset
        self.held_bytes += len(batch) + BATCH_COSTS_BYTES

    def read(self, offset: int, max_bytes: int, end: int, *, at_least_one: bool) -> list[memoryview]:
        """Batches from the one that holds `offset`, which must be held, none reaching beyond `end`."""
        bases, batches = self._bases, self._batches
        last = len(bases) - 1
        at = bisect_right(bases, offset, lo=self._head) - 1
        found: list[memoryview] = []
        size = 0
        while at <= last:
            if (bases[at + 1] if at < last else self.end) > end:
                break
            batch = batches[at]
            size += len(batch)
            if size > max_bytes and (found or not at_least_one):
                break
            found.append(memoryview(batch))
            at += 1
        return found

    def place_of(self, offset: int) -> tuple[int, int] | None:
        """(position in its segment, number there) of the batch that starts at `offset`; None if none does."""
        at = bisect_right(self._bases, offset, lo=self._head) - 1
        if at < self._head or self._bases[at] != offset:
            return None
        return self._places[at]

    def last(self) -> tuple[Buffer, tuple[int, int]] | None:
        """The newest batch and its place; None when none is held."""
        return (self._batches[-1], self._places[-1]) if len(self) else None

    def batches(self) -> list[Buffer]:
        """All batches held, in order."""
        return self._batches[self._head :]

    def evict(self, keep_bytes: int, before: int) -> None:
        """Let go of the oldest batches that end at or before offset `before`, until `keep_bytes` are held."""
        if self.held_bytes <= keep_bytes:
            return
        bases, batches = self._bases, self._batches
        head, last = self._head, len(bases) - 1
        while self.held_bytes > keep_bytes and head <= last:
            if (bases[head + 1] if head < last else self.end) > before:
                break
            self.held_bytes -= len(batches[head]) + BATCH_COSTS_BYTES
            batches[head] = b""
            head += 1
        self._head = head
        if head > last:
            self.clear(self.end)
        elif head >= _COMPACT_AT and head * 2 >= len(bases):
            del bases[:head], batches[:head], self._places[:head]
            self._head = 0

    def truncate(self, to_offset: int) -> None:
        """Let go of the batches from `to_offset` on."""
        while len(self) and self._bases[-1] >= to_offset:
            self._bases.pop()
            self._places.pop()
            self.held_bytes -= len(self._batches.pop()) + BATCH_COSTS_BYTES
        if not len(self):
            self.clear(to_offset)
        self.end = to_offset

    def clear(self, at: int) -> None:
        """Hold nothing; the next batch starts at `at`."""
        self._bases, self._batches, self._places = [], [], []
        self._head = 0
        self.held_bytes = 0
        self.end = at
