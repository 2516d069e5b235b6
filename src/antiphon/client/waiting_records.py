"""Records of a transaction that wait to be sent, by shard."""

import asyncio
from typing import NamedTuple

from antiphon.client.topic import Placed
from antiphon.client.topic_writer import BYTES_PER_BATCH, RECORDS_PER_BATCH


class Waiting(NamedTuple):
    """A record that waits to be sent, and its place among the positions."""

    placed: Placed
    at: int
    expected_offset: int | None = None


class Part:
    """What waits to be sent to a shard."""

    def __init__(self, shard_id: int) -> None:
        self.shard_id = shard_id
        self.lock = asyncio.Lock()
        self.waiting: list[Waiting] = []
        self.size_bytes = 0

    def add(self, one: Waiting) -> None:
        """One more, after the others."""
        self.waiting.append(one)
        self.size_bytes += one.placed.size_bytes

    def take(self) -> list[Waiting]:
        """As many as fit into a batch, at least one. One with a condition is a batch of its own."""
        size_bytes = count = 0
        for one in self.waiting[:RECORDS_PER_BATCH]:
            size_bytes += one.placed.size_bytes
            too_large = size_bytes > min(BYTES_PER_BATCH, one.placed.batch_bytes_max)
            if count and (too_large or one.expected_offset is not None):
                break
            count += 1
            if one.expected_offset is not None:
                break
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        self.size_bytes -= sum(one.placed.size_bytes for one in taken)
        return taken
