"""Writes to keys that moved to other shards: kept in order while the old shard may still carry out earlier ones.

A table's shards may be split while writes are in flight. Requests that were sent to the old shard are settled there
first: the shard carries each one out, or recognises that it did, or refuses it for good (`WrongShardError`), in the
order of its log. Only a request that was refused for good is sent to the new shard, as a new request. So no write is
carried out twice by any shard. Meanwhile later writes to the same keys must not overtake. All writes to new shards wait
in the table's `Handover` until the last request that was open at an old shard is settled. Then they are sent in the
order in which their callers made them.

Another split that becomes known meanwhile extends the handover.
"""

import asyncio
from collections.abc import Callable, Iterable

from antiphon.client.pipeline import Item, Request, fail_items, give_up


class Handover:
    """From the shards of a table that were split to those that took over some of their keys."""

    def __init__(self, deliver: Callable[[Item], None]) -> None:
        """`deliver` sends an item on its way, by the key and what is known of the table now."""
        self._deliver = deliver
        self._open: dict[int, Request] = {}
        self._fresh: set[int] = set()
        self._waiting: list[Item] = []
        self.done = False

    def extend(self, fresh: Iterable[int], open_requests: Iterable[Request], moved: Iterable[Item]) -> None:
        """New shards took keys from a shard that has these requests open; `moved` are writes that follow them there."""
        self._fresh.update(fresh)
        self._open.update((id(request), request) for request in open_requests)
        for item in moved:
            self.add(item)

    def holds_back(self, shard_id: int) -> bool:
        """Must a write to this shard wait?"""
        return not self.done and shard_id in self._fresh

    def add(self, item: Item) -> None:
        """A write that must wait: a new one, or one that an old shard refused for good. Its caller's time goes on."""
        self._waiting.append(item)
        asyncio.get_running_loop().call_at(item.deadline, self._late, item)

    def _late(self, item: Item) -> None:
        if not self.done:
            give_up(item, sent=False)

    def settled(self, request: Request) -> None:
        """The old shard is done with this request; when it is done with all of them, the waiting writes are sent."""
        if self._open.pop(id(request), None) is not None:
            self.finish_if_settled()

    def finish_if_settled(self) -> None:
        """Send on what waits if no request is open."""
        if self._open or self.done:
            return
        self.done = True
        waiting, self._waiting = self._waiting, []
        for item in sorted(waiting, key=lambda item: item.number):
            self._deliver(item)

    def fail(self, error: Exception) -> None:
        """The client is closed."""
        self.done = True
        fail_items(self._waiting, error)
        self._waiting = []
