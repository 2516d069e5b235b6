"""Work that is done once per turn of the event loop, however many events asked for it.

A turn of the loop hands the node many small events: frames of clients, acknowledgements, a finished group of the
disk. What they add up to is carried out once at the turn's end, in two phases: first the shards (propose what was
appended, read what followers lack), then the connections (one write of everything that goes to a peer). The whole node
pays for one `call_soon` a turn.
"""

import asyncio
from collections.abc import Callable

from antiphon.gateway.turns import Turns

Work = Callable[[], None]


class Turn:
    """Collects work for the end of the current turn. Each piece of work keeps its own "asked for" mark.

    Attributes:
        pieces: work that takes several turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_error: Callable[[Exception], None]) -> None:
        self._loop = loop
        self._on_error = on_error
        self._shards: list[Work] = []
        self._connections: list[Work] = []
        self._scheduled = False
        self.pieces = Turns()

    def for_shard(self, work: Work) -> None:
        """Run `work` in the first phase; work that a first phase asks for runs in the same phase."""
        self._shards.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def for_connection(self, work: Work) -> None:
        """Run `work` in the second phase."""
        self._connections.append(work)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = True  # nothing that runs below needs another turn by itself
        try:
            for work in self._shards:  # grows while it runs: local deliveries between shards of this node
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - one shard's failure must not take the others' work along
                    self._on_error(error)
            self._shards.clear()
            connections, self._connections = self._connections, []
            for work in connections:
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - nor one peer's
                    self._on_error(error)
        finally:
            self._scheduled = bool(self._shards or self._connections)
            if self._scheduled:
                self._loop.call_soon(self._run)
