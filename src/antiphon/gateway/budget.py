"""The memory of a node that is at its clients' disposal: what they send, what is under work for them, what they do not read.

Each connection has an `Account`, each listener a `Pool` of accounts, the node one `Budget` of pools. Bytes are counted when
they are there, never when they are announced, and answers until the socket has taken them.

How much a connection may hold follows what is free (the rule of dynamic thresholds for shared buffers: Choudhury and Hahne,
1998): at most twice what is free in the node and in its pool, and never more than `connection_bytes`. So one heavy client
gets much while it is alone. Many of them share the room evenly and always leave some for those who come next. A connection
may hold `FLOOR_BYTES` in any case: small requests go on however full the node is.

While the node has too much in hand (`node.back_pressure`) only connections that hold less than `FLOOR_BYTES` go on.

A connection over its bound is not read and starts no request until there is room. One request that is larger than the bound
can still be received: one at a time on the whole node (`Account.finishes`), so that half requests never wait for each other.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from antiphon.gateway.turns import Turns

FLOOR_BYTES: Final = 16 * 1024
SHARE: Final = 2  # a connection's bound, in times what is free
WAKE_S: Final = 0.005  # how long room is collected before those who wait for it are woken
PATIENCE_S: Final = 30.0
SLOWEST_BYTES_S: Final = 16 * 1024


class Budget:
    """A node's memory for clients. `turns` are for requests that may take long."""

    def __init__(self, limit_bytes: int, turns: Turns | None = None) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.pools: dict[str, Pool] = {}
        self.turns = turns or Turns()
        self.waits = 0  # times that a connection had to wait for room
        self.large: Account | None = None  # receives a request beyond its bound
        self.holds: set[str] = set()  # why nobody has room now, whatever is free
        self._waiting: dict[Account, Callable[[], None]] = {}
        self._waking = False

    def pool(self, name: str, limit_bytes: int, connection_bytes: int) -> "Pool":
        """A listener's part: at most `limit_bytes`, and `connection_bytes` for a connection."""
        made = self.pools[name] = Pool(self, name, limit_bytes, connection_bytes)
        return made

    @property
    def waiting(self) -> int:
        """Connections that wait for room now."""
        return len(self._waiting)

    def wait(self, account: "Account", woken: Callable[[], None]) -> None:
        """Call `woken` once, when there may be room for the account again."""
        if account not in self._waiting:
            self.waits += 1
        self._waiting[account] = woken

    def forget(self, account: "Account") -> None:
        """It waits no more."""
        self._waiting.pop(account, None)

    def hold_clients(self) -> None:
        """See Intake."""
        self.holds.add("in flight")

    def release_clients(self) -> None:
        """See Intake."""
        self.holds.discard("in flight")
        self.freed()

    def hold_disk(self) -> None:
        """See Intake."""
        self.holds.add("disk")

    def release_disk(self) -> None:
        """See Intake."""
        self.holds.discard("disk")
        self.freed()

    def freed(self) -> None:
        """There is more room than before."""
        if self._waiting and not self._waking:
            self._waking = True
            asyncio.get_running_loop().call_later(WAKE_S, self._wake)

    def _wake(self) -> None:
        self._waking = False
        for account in list(self._waiting):
            if account.has_room or account.finishes:
                woken = self._waiting.pop(account, None)
                if woken is not None:
                    woken()


class Pool:
    """A listener's part of the budget."""

    def __init__(self, budget: Budget, name: str, limit_bytes: int, connection_bytes: int) -> None:
        self.budget = budget
        self.name = name
        self.limit_bytes = limit_bytes
        self.connection_bytes = connection_bytes
        self.held_bytes = 0
        self.accounts: set[Account] = set()
        self.closed_slow = 0  # connections that were closed because they did not send or read on
        self.closed_floods = 0  # and those because of what they sent

    def open(self) -> "Account":
        """The account of a new connection."""
        account = Account(self)
        self.accounts.add(account)
        return account

    @property
    def highest_bytes(self) -> int:
        """What the connection holds that holds most."""
        return max((account.held_bytes for account in self.accounts), default=0)


class Account:
    """What one connection holds. `close()` when the connection is gone.

    Attributes:
        held_bytes: all of it.
        outgoing_bytes: of that, answers that the socket has not taken.
        half: is a request half received?
    """

    __slots__ = ("_closed", "budget", "half", "held_bytes", "outgoing_bytes", "pool")

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.budget = pool.budget
        self.held_bytes = 0
        self.outgoing_bytes = 0
        self.half = False
        self._closed = False

    def add(self, change_bytes: int) -> None:
        """It holds so much more; negative: less."""
        if self._closed:
            return
        budget = self.budget
        self.held_bytes += change_bytes
        self.pool.held_bytes += change_bytes
        budget.held_bytes += change_bytes
        if change_bytes < 0:
            if budget.large is self and self.held_bytes <= FLOOR_BYTES:
                budget.large = None
            budget.freed()

    def outgoing(self, size_bytes: int) -> None:
        """So much waits to be sent now."""
        change = size_bytes - self.outgoing_bytes
        if change:
            self.outgoing_bytes = size_bytes
            self.add(change)

    @property
    def room_bytes(self) -> int:
        """How much more it may hold; 0 or less: it has to wait."""
        bound = min(self.pool.connection_bytes, max(FLOOR_BYTES, SHARE * self.free_bytes))
        return bound - self.held_bytes

    @property
    def free_bytes(self) -> int:
        """What nobody holds, of what this account may use."""
        pool, budget = self.pool, self.budget
        return min(budget.limit_bytes - budget.held_bytes, pool.limit_bytes - pool.held_bytes)

    @property
    def has_room(self) -> bool:
        """May it read and start requests?"""
        return self.held_bytes < FLOOR_BYTES or (not self.budget.holds and self.room_bytes > 0)

    def fits(self, size_bytes: int, own_bytes: int = 0) -> bool:
        """Is there room for an answer of so many bytes? `own_bytes`: of its request, which do not count."""
        small = self.held_bytes - own_bytes + size_bytes <= FLOOR_BYTES
        return small or size_bytes - own_bytes <= self.room_bytes

    @property
    def finishes(self) -> bool:
        """May it receive the rest of a request without room for it? One account of the node may."""
        return self.half and self.is_large

    @property
    def is_large(self) -> bool:
        """May it hold more than there is room for? One account of the node may, until it holds little again."""
        if self.budget.large is None:
            self.budget.large = self
        return self.budget.large is self

    def large_no_more(self, own_bytes: int = 0) -> None:
        """What it had no room for is done, if there was anything. `own_bytes`: held for other things."""
        if self.budget.large is self and self.held_bytes - own_bytes <= FLOOR_BYTES:
            self.budget.large = None
            self.budget.freed()

    def wait(self, woken: Callable[[], None]) -> None:
        """Call `woken` once, when there may be room again."""
        self.budget.wait(self, woken)

    def close(self) -> None:
        """The connection is gone with all that it held."""
        self.add(-self.held_bytes)
        self._closed = True
        self.pool.accounts.discard(self)
        if self.budget.large is self:
            self.budget.large = None
            self.budget.freed()
        self.budget.forget(self)


class Patience:
    """How long is waited for somebody who should send, or read, on: `PATIENCE_S`, refilled by `SLOWEST_BYTES_S`."""

    __slots__ = ("_last_s", "_left_s", "_seen_bytes")

    def __init__(self) -> None:
        self._last_s = -1.0
        self._left_s = PATIENCE_S
        self._seen_bytes = 0

    def rest(self) -> None:
        """There is nothing to wait for."""
        self._last_s = -1.0

    def is_over(self, now_s: float, moved_bytes: int) -> bool:
        """Something is waited for; `moved_bytes`: how much came or went since the connection began."""
        if self._last_s < 0:
            self._left_s = PATIENCE_S
        else:
            earned_s = (moved_bytes - self._seen_bytes) / SLOWEST_BYTES_S
            self._left_s = min(PATIENCE_S, self._left_s - (now_s - self._last_s) + earned_s)
        self._last_s, self._seen_bytes = now_s, moved_bytes
        return self._left_s <= 0
