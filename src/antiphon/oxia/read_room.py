"""Which answers of a connection may be read now: those for which there is room, in the order in which they are wanted.

An answer is counted before it is read, with as many bytes as one of its kind may have, then with those that it has. So
many calls at once never read more together than the connection may hold. One answer of the node may be larger than the
room, where its client has taken all others.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from antiphon.gateway.budget import FLOOR_BYTES

if TYPE_CHECKING:
    from antiphon.gateway.budget import Account
    from antiphon.gateway.turns import Turns

WAKE_WORK: Final = (
    16  # units of `Turns.did` that a call takes about which hears of something: 16 of them are a turn
)


class RoomOwner(Protocol):
    """The connection, as its room sees it.

    Attributes:
        calls_bytes: that are counted for its calls themselves.
        client: whose turn it is when it is this connection's.
    """

    account: "Account"
    calls_bytes: int

    @property
    def client(self) -> object:
        """See the class."""

    def when_room(self) -> None:
        """Have `look` called when there may be more room."""


class ReadRoom:
    """See the module's text; of one connection."""

    def __init__(self, owner: RoomOwner, turns: "Turns") -> None:
        self._owner = owner
        self._account = owner.account
        self._turns = turns
        self.glancing = asyncio.Lock()  # held by a get that looks how large its rows are
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._waking: deque[asyncio.Future[None]] = deque()

    def is_there(self, size_bytes: int) -> bool:
        """Is there room for so many bytes, and nobody who waits for some?"""
        return not self._waiting and self._account.fits(size_bytes)

    async def enter(self, size_bytes: int) -> None:
        """Return when there is room for so many bytes. They are counted then."""
        if self.is_there(size_bytes):
            self._account.add(size_bytes)
            return
        entered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, entered))
        self.look()
        try:
            await entered
        except asyncio.CancelledError:
            if entered.done() and not entered.cancelled():
                self._account.add(-size_bytes)
            raise

    def look(self) -> None:
        """Let those in for whom there is room by now."""
        waiting, account = self._waiting, self._account
        while waiting:
            size_bytes, entered = waiting[0]
            if not entered.done():
                if not account.fits(size_bytes) and not self._may_be_large():
                    self._owner.when_room()
                    return
                account.add(size_bytes)
                entered.set_result(None)
            waiting.popleft()

    def _may_be_large(self) -> bool:
        """May an answer be read that is larger than the room? One, where nothing else is held."""
        account = self._account
        others = account.held_bytes - self._owner.calls_bytes
        return not account.outgoing_bytes and others <= FLOOR_BYTES and account.is_large

    def admit(self, read: Callable[[], None]) -> None:
        """Read now, or in the connection's turn where so much was read in this one that more should wait."""
        if self._turns.is_spent:
            self._turns.add(self, read, self._owner.client)
        else:
            read()

    async def turn(self) -> None:
        """Return when it is the connection's turn."""
        await self._turns.next(self, self._owner.client)

    def wake(self, waiting: Iterable[asyncio.Future[None]]) -> None:
        """Wake those who wait for the same thing, a few in each of the connection's turns."""
        if not self._waking:
            self._turns.add(self, self._wake_some, self._owner.client)
        self._waking.extend(waiting)

    def _wake_some(self) -> None:
        waking, turns = self._waking, self._turns
        woken_now = min(len(waking), max(1, turns.work_max // WAKE_WORK))
        for _ in range(woken_now):
            woken = waking.popleft()
            if not woken.done():
                woken.set_result(None)
        turns.did(woken_now * WAKE_WORK)
        if waking:
            turns.add(self, self._wake_some, self._owner.client)

    def spent(self, size_bytes: int) -> None:
        """So much was read in this turn of the loop."""
        self._turns.spend(size_bytes)

    def close(self) -> None:
        """The connection is gone; its calls are cancelled."""
        self._waiting.clear()
        self._waking.clear()
