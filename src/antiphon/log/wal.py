"""The write-ahead log of a node, as its event loop sees it.

The event loop submits operations and is told when they are durable. A *worker* takes everything that was submitted and
writes and syncs it as one group (`round`), so that the event loop never waits for the disk. In a real process the
worker is a thread (`WalThread`). In the simulator it is called at drawn moments of virtual time. Both run the code
below.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Final

from antiphon.errors import DiskFullError, StorageFailedError
from antiphon.log.disk import Disk
from antiphon.log.group_commit import Completion, GroupCommitter
from antiphon.log.operations import Callback, LogOp

BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
REFUSED_FROM: Final = 2  # times as many bytes that wait


class Wal(ABC):
    """See the module docstring. `submit` never blocks and never refuses; the caller must respect the limits.

    Operations of one shard finish in the order of submission. Callbacks run on the event loop with None, with a
    `StorageFailedError` (final for that shard: every later operation gets it too) or, if the node stops while the disk
    is full, with a `DiskFullError`. While the disk is full, appends wait and are tried again every `retry_full_ms`;
    trims go ahead.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        retry_full_ms: int = 200,
    ) -> None:
        self.backlog_bytes_max = backlog_bytes_max
        # What clients write is refused from here on. Below that, what was read before reading stopped is written.
        self.refused_from_bytes = REFUSED_FROM * backlog_bytes_max
        self.backlog_bytes = 0  # submitted and not finished; event loop only
        self.disk_full = False  # event loop only; follows the worker's view by one turn
        self.is_low = False  # event loop only: there is too little room for what clients write
        self.room_bytes = 0  # and then, for entries of other nodes, until somebody looks again
        self.committer = GroupCommitter(disk)
        self._retry_full_s = retry_full_ms / 1000
        self.progressed: Callable[[], None] | None = (
            None  # event loop only: called when something was finished
        )
        self._next_retry_s = 0.0  # worker only
        self.waits_s: float | None = (
            None  # worker only: the next round is due then, whatever comes; None: it is not
        )
        self.has_news = False  # worker only: must the event loop be told anything after the last round?
        self._posted_full = False

    # -- on the event loop --------------------------------------------------------------------------------------------

    @property
    def refuses_clients(self) -> bool:
        """Is there no room for what clients write?"""
        return self.disk_full or self.is_low

    def has_room_for(self, size_bytes: int) -> bool:
        """Is there room for entries of another node? They count as taken then."""
        if self.disk_full:
            return not size_bytes
        if self.is_low:
            self.room_bytes -= size_bytes
        return not self.is_low or self.room_bytes >= 0

    @property
    def lacks(self) -> str:
        """What there is none of, where clients are refused."""
        return "room on the disk" if self.is_low or self.committer.waits_for_room else "file descriptors"

    @property
    def overloaded(self) -> bool:
        """More bytes wait for the disk than `backlog_bytes_max`: read nothing that brings more until half of it is left."""
        return self.backlog_bytes >= self.backlog_bytes_max

    @abstractmethod
    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the worker; completions are delivered on `loop`."""

    def submit(self, op: LogOp, callback: Callback | None = None) -> None:
        """Queue an operation (event loop only). `callback` runs on the event loop when it is finished."""
        op.callback = callback
        self.backlog_bytes += op.size_bytes
        self._hand_over(op)

    @abstractmethod
    async def stop(self) -> None:
        """Finish what was submitted (except what waits for room), sync, end the worker, deliver the last callbacks."""

    @abstractmethod
    def _hand_over(self, op: LogOp) -> None:
        """Give an operation to the worker."""

    @abstractmethod
    def _report(self, error: Exception, message: str) -> None:
        """A bug showed: tell the event loop's exception handler."""

    def deliver(self, done: list[Completion], disk_full: bool) -> None:
        """Operations of a group are finished: call their callbacks (event loop only)."""
        self.disk_full = disk_full
        for op, error in done:
            self.backlog_bytes -= op.size_bytes
            try:
                if op.settle is not None:
                    op.settle(error)
                if op.callback is not None:
                    op.callback(error)
            except Exception as problem:  # noqa: BLE001 - one shard's bug must not swallow the others' completions
                self._report(problem, f"completion of a write to {op.queue.name} failed")
        if self.progressed is not None:
            self.progressed()

    # -- in the worker ------------------------------------------------------------------------------------------------

    def round(self, ops: Iterable[LogOp], now_s: float, *, last: bool = False) -> list[Completion]:
        """Write and sync one group: `ops`, and what waited before them. `last`: the worker ends after this one."""
        committer = self.committer
        for op in ops:
            committer.add(op)
        retry = now_s >= self._next_retry_s
        try:
            done = committer.commit(now_s, retry_full=retry)
            if committer.dirty:
                done += committer.sync_dirty(math.inf if last else now_s)
        except Exception as error:  # noqa: BLE001 - a bug; the shards must not go on as if they were durable
            self._report(error, "the WAL worker broke")
            done = committer.fail_all(StorageFailedError(f"the WAL worker broke: {error!r}"))
        if retry:
            self._next_retry_s = now_s + self._retry_full_s
        self.waits_s = self._retry_full_s if committer.disk_full else None
        if committer.dirty:
            sync_s = max(0.0, committer.next_sync_s - now_s)
            self.waits_s = sync_s if self.waits_s is None else min(self.waits_s, sync_s)
        self.has_news = bool(done) or committer.disk_full != self._posted_full
        self._posted_full = committer.disk_full
        return done

    def given_up(self) -> list[Completion]:
        """Operations that still wait for room when the worker ends."""
        error = DiskFullError("the node stopped while its disk was full")
        return [(op, error) for op in self.committer.take_waiting()]
