"""Writes to keys that moved to another shard: kept in order while earlier ones may still be carried out where they were.

A table's shard may be split while writes are on their way to it. What was sent to the old shard is settled there first: the
shard carries it out, or recognises that it did, or refuses it for good (`WrongShardError`), in this order of its log. Only
what was refused for good is sent to the new shard, as a new request, so no write is carried out twice, by whichever shard.
Meanwhile later writes to the same keys must not overtake: they wait in a `Handover` until the last request that was open
when the split became known is settled.
"""

from collections.abc import Callable, Iterable

from antiphon.client.pipeline import Item, Request


class Handover:
    """From one shard's writer to those of the shards that took over some of its keys."""

    def __init__(self, open_requests: Iterable[Request], deliver: Callable[[Item], None]) -> None:
        """`deliver` sends an item on its way, by the key and what is known of the table now."""
        self._open = {id(request): request for request in open_requests}
        self._deliver = deliver
        self._refused: list[tuple[int, list[Item]]] = []  # with the sequences under which they were sent
        self._later: list[Item] = []
        self.done = False

    def add(self, item: Item) -> None:
        """A write that came later than the open requests."""
        if self.done:
            self._deliver(item)
        else:
            self._later.append(item)

    def refused(self, request: Request, items: list[Item]) -> None:
        """The old shard refused a request for good; `items` are those of it that are the new shards'."""
        if self.done:
            for item in items:
                self._deliver(item)
        else:
            self._refused.append((request.sequence, items))

    def settled(self, request: Request) -> None:
        """The old shard has nothing to do with this request any more; when that is so of all, the rest is sent on."""
        if self._open.pop(id(request), None) is not None:
            self.finish_if_settled()

    def finish_if_settled(self) -> None:
        """Send on what waits if no request is open."""
        if self._open or self.done:
            return
        self.done = True
        self._refused.sort(key=lambda one: one[0])
        for _, items in self._refused:
            for item in items:
                self._deliver(item)
        for item in self._later:
            self._deliver(item)
        self._refused, self._later = [], []

    def fail(self, error: Exception) -> None:
        """The client is closed."""
        self.done = True
        for item in [item for _, items in self._refused for item in items] + self._later:
            if not item.future.done():
                item.future.set_exception(error)
        self._refused, self._later = [], []
