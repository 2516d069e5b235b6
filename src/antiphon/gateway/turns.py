"""Requests that may take long: one in each turn of the event loop, so that what is quick waits for one of them at most.

Small pieces of work say what they cost. Of them a turn has as many as come to `WORK_MAX` together, whoever does them: also
what connections do at once, as soon as bytes arrive, is counted, and who comes when the turn has had that much waits.

Where small requests are begun as soon as they come, each client has a share of the turn, over all of its connections: what
comes beyond that waits as well, and nobody else's does.

Where a turn of the loop took long, the loop is left alone for as long. The machine has too much to do then, and what is
quick is to get half of the time at least.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

OPERATIONS: Final = 1_000
READ_BYTES: Final = 1024 * 1024  # that are read for answers in one turn
COUNTED_BYTES: Final = 16 * 1024  # smaller answers are not counted
WORK_MAX: Final = 256  # units of small pieces of work in one turn
UNIT_S: Final = 5e-6
SHARE_S: Final = 0.005
LONG_S: Final = 0.008  # a turn that takes longer is followed by a rest, unless it had small pieces only
REST_MAX_S: Final = 0.1


class Turns:
    """Pieces of work by who wants them. Everybody has one piece in turn, however many he has waiting.

    Connections of one client (a user, or else an address) are a group: the groups have a turn each, and within a group its
    connections. So it is of no use to have many. Without a group somebody is one by himself.

    Attributes:
        operations: of a table's write, or rows, that a piece is about.
        work_max: units of small pieces that a turn has.
        share_s: of a turn, for what one client's connections have received.
        had_s: how much of the turn that runs now clients had for what was done as soon as it came.
        begun: pieces that had their turn, since the start.
    """

    def __init__(self) -> None:
        self.operations = OPERATIONS
        self.work_max = WORK_MAX
        self.share_s = SHARE_S
        self.begun = 0
        self._waiting: dict[object, dict[object, deque[Callable[[], None]]]] = {}  # by group and owner
        self._running = False
        self._began_s: float | None = None  # the last piece, if the next one comes in the turn after it
        self._read_bytes = 0
        self._work = 0
        self._is_counting = False
        self.had_s: dict[object, float] = {}

    @property
    def is_spent(self) -> bool:
        """Was so much read for answers in this turn of the loop that more should be read in another one?"""
        return self._read_bytes >= READ_BYTES

    def spend(self, size_bytes: int) -> None:
        """So much was read in this turn, or what costs as much."""
        if size_bytes >= COUNTED_BYTES:
            self._count()
            self._read_bytes += size_bytes

    @property
    def is_busy(self) -> bool:
        """Was so much done in this turn of the loop that more should be done in another one?"""
        return self._work >= self.work_max

    @property
    def waiting(self) -> int:
        """Connections, and others, that wait for their turn."""
        return sum(map(len, self._waiting.values()))

    def took(self, client: object, seconds: float) -> None:
        """So much of this turn was taken for a client, whichever of its connections it was for."""
        if not self._is_counting:
            self._count()
        self.had_s[client] = self.had_s.get(client, 0.0) + seconds

    def did(self, units: int) -> None:
        """Small pieces of work were done in this turn, of about 5 us for each unit."""
        self._count()
        self._work += units

    def _count(self) -> None:
        if not self._is_counting:
            self._is_counting = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_counting = False
        self._read_bytes = self._work = 0
        self.had_s.clear()

    def add(self, owner: object, work: Callable[[], None], group: object = None) -> None:
        """Run `work` in a coming turn of the loop. It must not raise."""
        members = self._waiting.setdefault(owner if group is None else group, {})
        members.setdefault(owner, deque()).append(work)
        if not self._running:
            self._running = True
            self._soon()

    def _soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        now_s, began_s = loop.time(), self._began_s
        if began_s is not None and now_s - began_s > LONG_S:
            self._began_s = None
            loop.call_later(min(now_s - began_s, REST_MAX_S), self._run)
            return
        self._began_s = None
        try:
            self._pieces(now_s)
        finally:  # a mistake in one piece is not the others' trouble
            if self._waiting:
                self._soon()
            else:
                self._running, self._began_s = False, None

    def _pieces(self, now_s: float) -> None:
        """One piece, or several small ones."""
        while True:
            done = self._work
            self._next_piece()()
            if self._work == done:  # it did not say what it costs
                self._began_s = now_s
                return
            if self.is_busy or not self._waiting:
                return

    def _next_piece(self) -> Callable[[], None]:
        self.begun += 1
        group = next(iter(self._waiting))
        members = self._waiting.pop(group)
        owner = next(iter(members))
        works = members.pop(owner)
        work = works.popleft()
        if works:
            members[owner] = works  # behind all others of the group
        if members:
            self._waiting[group] = members  # behind all other groups
        return work

    async def next(self, owner: object, group: object = None) -> None:
        """Return when it is the turn of `owner`."""
        turn = asyncio.get_running_loop().create_future()
        self.add(owner, lambda: None if turn.done() else turn.set_result(None), group)
        await turn
