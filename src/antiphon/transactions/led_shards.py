"""The shards of an internal table that this node leads, and what it holds of each in one term.

A shard is read when this node begins to lead it in a term. When its replica leads in another term, or not at all, what is
held is dropped: whoever leads has read it anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import structlog

from antiphon.errors import AntiphonError, NotLeaderError, NotReadyError
from antiphon.gateway.interface import Gateway
from antiphon.transactions.internal_table import InternalTable

LOAD_WAIT_S: Final = 3.0
LOOK_S: Final = 1.0  # between two looks at who leads
IDLE_S: Final = 60.0  # between looks while there is no table


class LedShard:
    """A shard in one term; a subclass has what is held of it."""

    def __init__(self, shard_id: int, term: int) -> None:
        self.shard_id = shard_id
        self.term = term
        self.loaded = asyncio.Event()
        self.loading: asyncio.Task[None] | None = None


Led = TypeVar("Led", bound=LedShard)
Rows = TypeVar("Rows")


class Holder(NamedTuple, Generic[Led, Rows]):
    """What is held, and how."""

    what: str  # "transactions": for errors
    begin: Callable[[int, int], Led]  # with shard and term
    load: Callable[[int], Awaitable[Rows]]  # reads a shard; AntiphonError: it is read again later
    take: Callable[[Led, Rows], None]  # is given what was read
    drop: Callable[[Led], None]  # ends what is under way


class LedShards(Generic[Led, Rows]):
    """See the module's text."""

    def __init__(self, gateway: Gateway, table: InternalTable, holder: Holder[Led, Rows]) -> None:
        self._gateway = gateway
        self._table = table
        self._holder = holder
        self._led: dict[int, Led] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def __iter__(self) -> Iterator[Led]:
        return iter(list(self._led.values()))

    def get(self, shard_id: int) -> Led | None:
        """What is held of a shard, whether or not this node still leads it."""
        return self._led.get(shard_id)

    def start(self, then: Callable[[], Awaitable[None]] | None = None) -> None:
        """Begin to follow who leads. `then`: what is done after each look."""
        self._task = asyncio.get_running_loop().create_task(self._follow(then), name=self._holder.what)

    async def stop(self) -> None:
        """Lead nothing any more."""
        self._stopping = True  # before Python 3.12 a cancellation can get lost in asyncio.wait_for
        for led in self:
            self._drop(led)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def leads(self, led: Led) -> bool:
        """Does this node lead that shard in that term now?"""
        return self._led.get(led.shard_id) is led and self._gateway.term_led(led.shard_id) == led.term

    def check(self, led: Led) -> None:
        """Raises NotLeaderError unless this node leads that shard in that term now."""
        if not self.leads(led):
            raise self.gone(led.shard_id)

    def gone(self, shard_id: int) -> NotLeaderError:
        """What is told to whoever asks for a shard that another node leads by now."""
        return NotLeaderError(f"node {self._gateway.node_id} leads shard {shard_id} no more", leader=None)

    def at(self, shard_id: int) -> Led | None:
        """What is held of a shard in its term of now, read or not; begins to read it, if that is new. None: not led."""
        term = self._gateway.term_led(shard_id)
        led = self._led.get(shard_id)
        if led is not None and led.term != term:
            self._drop(led)
            led = None
        if led is None and term is not None and not self._stopping:
            led = self._led[shard_id] = self._holder.begin(shard_id, term)
            name = f"read {self._holder.what}"
            led.loading = asyncio.get_running_loop().create_task(self._load(led), name=name)
        return led

    def read_one(self, shard_id: int) -> Led:
        """A shard that is led and read. Raises NotLeaderError, or NotReadyError while it is being read."""
        led = self.at(shard_id)
        if led is None:
            raise self.gone(shard_id)
        if not led.loaded.is_set():
            raise self._unread()
        return led

    async def wait_read(self, shard_id: int) -> None:
        """Wait until a shard is read, or is not led; raises NotReadyError after `LOAD_WAIT_S`."""
        led = self.at(shard_id)
        if led is not None and not led.loaded.is_set():
            try:
                await asyncio.wait_for(led.loaded.wait(), LOAD_WAIT_S)
            except TimeoutError:
                raise self._unread() from None

    async def _follow(self, then: Callable[[], Awaitable[None]] | None) -> None:
        while not self._stopping:
            await self._look()
            if then is not None:
                await then()

    async def _look(self) -> None:
        """Wait for the next change of metadata, or a second; then begin to lead, and stop to lead."""
        metadata = self._gateway.metadata
        await self._gateway.wait_metadata(metadata.version, LOOK_S if self._table.exists else IDLE_S)
        led_now = {shard.shard_id for shard in self._table.led_shards()}
        for shard_id in sorted(led_now | set(self._led)):
            self.at(shard_id)

    def _unread(self) -> NotReadyError:
        return NotReadyError(f"the {self._holder.what} of this shard are still being read; ask again")

    async def _load(self, led: Led) -> None:
        while self.leads(led):
            try:
                rows = await self._holder.load(led.shard_id)
            except AntiphonError as error:
                structlog.get_logger().warning(
                    "shard_not_read", of=self._holder.what, shard=led.shard_id, reason=error.message
                )
                await asyncio.sleep(LOOK_S)
                continue
            if self.leads(led):
                self._holder.take(led, rows)
                led.loaded.set()
            return

    def _drop(self, led: Led) -> None:
        """This node leads the shard no more in that term: whoever does goes on."""
        if self._led.get(led.shard_id) is led:
            del self._led[led.shard_id]
        if led.loading is not None and led.loading is not asyncio.current_task():
            led.loading.cancel()
        self._holder.drop(led)
        led.loaded.set()  # whoever waits finds that it is not led
