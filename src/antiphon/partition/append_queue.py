"""Bounded appends in flight (C8): with `max.in.flight` set, what comes beyond it waits here, in order of arrival.

With 1 the head of the log is at most one entry beyond what is committed (S0.14, S2.8). An append, a conditional append and
a table's write wait in the same line, so what was sent first is judged first: a chain of expected offsets keeps its order.
What waits is not in the log: when the shard's leadership ends, or the time is over, it certainly was not appended.

Writes to a table wait here, too, while a large one is judged in pieces, as nothing may be appended in between. Then each
sender's requests keep their order, and nobody waits for all that others have sent: the small ones that stand first in their
sender's line go first, then one large one.

Everything waits here while a backup takes its cut (`partition.hold`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from antiphon.errors import AntiphonError, OverloadedError, TimedOutError, UnavailableError
from antiphon.model.sender import Sender

QUEUE_MAX: Final = 10_000
QUEUE_BYTES_MAX: Final = 32 * 1024 * 1024

NOT_BEGUN: Final = UnavailableError("whoever sent this has hung up: it was not begun")

Done = Callable[[Any], None]


class Waiting(NamedTuple):
    """A request that waits for its turn. `run` gets the seconds that are left of its time."""

    run: Callable[[float], None]
    done: Done
    size_bytes: int
    deadline_s: float
    sender: Sender | None = None
    is_large: bool = False

    @property
    def is_for_nobody(self) -> bool:
        """Has its sender hung up meanwhile?"""
        return self.sender is not None and self.sender.is_gone


class Line:
    """Requests that wait, `count` of them with about `size_bytes`. Those of one sender keep their order."""

    def __init__(self) -> None:
        self.count = 0
        self.size_bytes = 0
        self._by_sender: dict[Sender | None, deque[Waiting]] = {}
        # Senders whose first request is small, or large, in the order of their turns.
        self._small: dict[Sender | None, None] = {}
        self._large: dict[Sender | None, None] = {}
        self._small_first = 0  # that go before the next large one

    def add(self, one: Waiting) -> None:
        """Stand in line."""
        mine = self._by_sender.get(one.sender)
        if mine is None:
            self._by_sender[one.sender] = deque((one,))
            self._turn(one)
        else:
            mine.append(one)
        self.count += 1
        self.size_bytes += one.size_bytes

    def pop(self) -> Waiting:
        """Take out who goes next. Small ones that waited when a large one ended go before the next large one."""
        senders = self._small if self._small and (self._small_first or not self._large) else self._large
        sender = next(iter(senders))
        del senders[sender]
        mine = self._by_sender[sender]
        one = mine.popleft()
        self.count -= 1
        self.size_bytes -= one.size_bytes
        if mine:
            self._turn(mine[0])
        else:
            del self._by_sender[sender]
        self._small_first = max(0, self._small_first - 1)
        return one

    def large_ended(self) -> None:
        """All that wait now, and are small, go before the next large one."""
        self._small_first = self.count

    def _turn(self, first: Waiting) -> None:
        (self._large if first.is_large else self._small)[first.sender] = None

    def take_all(self, wanted: Callable[[Waiting], bool]) -> list[Waiting]:
        """Take out all of a kind."""
        everybody = [one for mine in self._by_sender.values() for one in mine]
        taken = [one for one in everybody if wanted(one)]
        if taken:
            self._start_with(one for one in everybody if not wanted(one))
        return taken

    def _start_with(self, left: Iterable[Waiting]) -> None:
        self.count = self.size_bytes = 0
        for part in (self._by_sender, self._small, self._large):
            part.clear()
        for one in left:
            self.add(one)


class AppendQueue:
    """The line of one shard. `limit` 0: nobody waits unless somebody `holds` the log, and nothing is counted."""

    def __init__(self, shard_id: int) -> None:
        self.limit = 0
        self.waiting = Line()
        self.holds = 0  # who holds the log: a write that is judged in pieces, a backup (`partition.hold`)
        self._shard_id = shard_id
        self._ends: deque[int] = deque()  # of the appends that are in the log and not committed

    @property
    def is_busy(self) -> bool:
        """Must the next append wait?"""
        return self.holds > 0 or self.waiting.count > 0 or 0 < self.limit <= len(self._ends)

    @property
    def may_go_on(self) -> bool:
        """Waits somebody who need not?"""
        return self.waiting.count > 0 and not self.holds and (not self.limit or len(self._ends) < self.limit)

    def set_limit(self, limit: int, ends: list[int]) -> None:
        """Bound the appends from now on; `ends` are those that are underway already."""
        if limit != self.limit:
            self.limit = limit
            self._ends = deque(ends if limit else ())

    def wait(self, one: Waiting) -> None:
        """Stand in line; OverloadedError when it is too long. With a limit all stand in one line."""
        if self.waiting.count >= QUEUE_MAX:
            most = f", which takes {self.limit} at a time" if self.limit else ""
            raise OverloadedError(f"{QUEUE_MAX} appends wait for their turn at shard {self._shard_id}{most}")
        if self.waiting.count and self.waiting.size_bytes + one.size_bytes > QUEUE_BYTES_MAX:
            raise OverloadedError(
                f"{self.waiting.count} appends of {self.waiting.size_bytes} bytes wait for their turn at shard "
                f"{self._shard_id}; {QUEUE_BYTES_MAX} bytes are the most: send it again later"
            )
        self.waiting.add(one._replace(sender=None, is_large=False) if self.limit else one)

    def staged(self, next_offset: int) -> None:
        """An append that ends at `next_offset` is in the log."""
        self._ends.append(next_offset)

    def committed(self, high_watermark: int) -> None:
        """Everything up to here is underway no more."""
        ends = self._ends
        while ends and ends[0] <= high_watermark:
            ends.popleft()

    def clear(self) -> list[Waiting]:
        """Leadership ended: nothing is underway; returns who waited. Who holds the log lets go of it by himself."""
        self._ends.clear()
        return self.waiting.take_all(lambda _one: True)

    def overdue(self, now_s: float) -> list[tuple[Waiting, AntiphonError]]:
        """Take out whose time is over, and whose sender has hung up, each with an error."""
        late = self.waiting.take_all(lambda one: one.deadline_s <= now_s or one.is_for_nobody)
        reason = (
            f"takes {self.limit} appends at a time (max.in.flight) and those before this one are not committed"
            if self.limit
            else "is at other clients' large writes, or is held for the moment of a backup"
        )
        error = TimedOutError(
            f"shard {self._shard_id} {reason}: nothing was appended", shard_id=self._shard_id
        )
        return [(one, NOT_BEGUN if one.is_for_nobody else error) for one in late]
