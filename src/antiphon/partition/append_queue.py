"""Bounded appends in flight (C8): with `max.in.flight` set, what comes beyond it waits here, in order of arrival.

With 1 the head of the log is at most one entry beyond what is committed (S0.14, S2.8). An append, a conditional append and
a table's write wait in the same line, so what was sent first is judged first: a chain of expected offsets keeps its order.
What waits is not in the log: when the shard's leadership ends, or the time is over, it certainly was not appended.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from antiphon.errors import AntiphonError, OverloadedError, TimedOutError

QUEUE_MAX: Final = 10_000

Done = Callable[[Any], None]


class Waiting(NamedTuple):
    """A request that waits for its turn. `run` gets the seconds that are left of its time."""

    run: Callable[[float], None]
    done: Done
    size_bytes: int
    deadline_s: float


class AppendQueue:
    """The line of one shard. `limit` 0: nobody ever waits, and nothing is counted."""

    def __init__(self, shard_id: int) -> None:
        self.limit = 0
        self.waiting: deque[Waiting] = deque()
        self._shard_id = shard_id
        self._ends: deque[int] = deque()  # of the appends that are in the log and not committed

    @property
    def is_busy(self) -> bool:
        """Must the next append wait?"""
        return self.limit > 0 and (bool(self.waiting) or len(self._ends) >= self.limit)

    @property
    def may_go_on(self) -> bool:
        """Waits somebody who need not?"""
        return bool(self.waiting) and (not self.limit or len(self._ends) < self.limit)

    def set_limit(self, limit: int, ends: list[int]) -> None:
        """Bound the appends from now on; `ends` are those that are underway already."""
        if limit != self.limit:
            self.limit = limit
            self._ends = deque(ends if limit else ())

    def wait(self, one: Waiting) -> None:
        """Stand in line; OverloadedError when it is too long."""
        if len(self.waiting) >= QUEUE_MAX:
            raise OverloadedError(
                f"{QUEUE_MAX} appends wait for their turn at shard {self._shard_id}, which takes {self.limit} at a time"
            )
        self.waiting.append(one)

    def staged(self, next_offset: int) -> None:
        """An append that ends at `next_offset` is in the log."""
        self._ends.append(next_offset)

    def committed(self, high_watermark: int) -> None:
        """Everything up to here is underway no more."""
        ends = self._ends
        while ends and ends[0] <= high_watermark:
            ends.popleft()

    def clear(self) -> list[Waiting]:
        """Leadership ended: nothing is underway; returns who waited."""
        waiting, self.waiting = list(self.waiting), deque()
        self._ends.clear()
        return waiting

    def overdue(self, now_s: float) -> list[tuple[Waiting, AntiphonError]]:
        """Take out whose time is over, each with its error."""
        late = [one for one in self.waiting if one.deadline_s <= now_s]
        if late:
            self.waiting = deque(one for one in self.waiting if one.deadline_s > now_s)
        error = TimedOutError(
            f"shard {self._shard_id} takes {self.limit} appends at a time (max.in.flight) and those before this one are not "
            "committed: nothing was appended",
            shard_id=self._shard_id,
        )
        return [(one, error) for one in late]
