"""The WAL worker of a simulated node: groups begin and end at drawn moments of virtual time."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Final

from antiphon.log.disk import Disk
from antiphon.log.group_commit import Completion
from antiphon.log.operations import LogOp
from antiphon.log.wal import Wal

BEGIN_S: Final = (0.00002, 0.0003)  # from the first operation to the group's begin: a thread wakes up
END_S: Final = (0.0001, 0.002)  # from the write and sync to the news of it


class SimulatedWal(Wal):
    """`took_s` says how long the disk took for what the last group did, beyond the usual."""

    def __init__(
        self, disk: Disk, rng: Random, *, took_s: Callable[[], float] = lambda: 0.0, **limits: Any
    ) -> None:
        super().__init__(disk, **limits)
        self._rng = rng
        self._took_s = took_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: list[LogOp] = []
        self._busy = False  # a group is being carried out
        self._timer: asyncio.TimerHandle | None = None
        self._stopping: asyncio.Future[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Wal`."""
        self._loop = loop

    def _hand_over(self, op: LogOp) -> None:
        self._inbox.append(op)
        self._wake(self._rng.uniform(*BEGIN_S))

    def _wake(self, delay_s: float) -> None:
        if self._busy or self._loop is None:
            return
        if self._timer is not None:
            if self._timer.when() <= self._loop.time() + delay_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_later(delay_s, self._begin)

    def _begin(self) -> None:
        """Carry a group out; its outcome is known later."""
        loop = self._loop
        if loop is None:
            return
        self._timer, self._busy = None, True
        ops, self._inbox = self._inbox, []
        stopping = self._stopping is not None
        done = self.round(ops, loop.time(), last=stopping)
        loop.call_later(self._rng.uniform(*END_S) + self._took_s(), self._end, done, stopping)

    def _end(self, done: list[Completion], stopping: bool) -> None:
        self._busy = False
        if self.has_news:
            self.deliver(done, self.committer.disk_full)
        if self._inbox:
            self._wake(self._rng.uniform(*BEGIN_S))
        elif stopping:
            self.deliver(self.given_up(), False)
            if self._stopping is not None and not self._stopping.done():
                self._stopping.set_result(None)
        elif self._stopping is not None:
            self._wake(0.0)
        elif self.waits_s is not None:
            self._wake(self.waits_s)

    def _report(self, error: Exception, message: str) -> None:
        if self._loop is not None:
            self._loop.call_exception_handler({"message": message, "exception": error})

    async def stop(self) -> None:
        """See `Wal`."""
        if self._loop is None or self._stopping is not None:
            return
        self._stopping = self._loop.create_future()
        self._wake(0.0)
        await self._stopping
