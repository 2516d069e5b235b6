"""The one thread of a node that writes and syncs, so that the event loop never waits for the disk.

How a node uses it, together with `ShardLog` (see there)::

    wal = WalThread(disk)
    wal.start(asyncio.get_running_loop())
    ...
    if wal.disk_full: raise DiskFullError(...)         # before staging client writes; reads go on
    if wal.overloaded: raise OverloadedError(...)      # the disk is slower than what comes in
    op = log.stage_append(batches)                     # readable and sendable to followers from now on
    wal.submit(op, lambda error: replica.persisted(write_id) if error is None else replica.storage_failed())
    ...
    await wal.stop()                                   # everything submitted is done first

What it promises is in `Wal`. Each group of finished operations costs one `call_soon_threadsafe`.
"""

import asyncio
import queue
import threading
import time
from typing import Final

from antiphon.invariants import invariant
from antiphon.log.disk import Disk
from antiphon.log.group_commit import Completion
from antiphon.log.operations import LogOp
from antiphon.log.wal import BACKLOG_BYTES_MAX, Wal

_GROUP_OPS_MAX: Final = 10_000


class WalThread(Wal):
    """See the module's text."""

    def __init__(
        self,
        disk: Disk,
        *,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        retry_full_ms: int = 200,
    ) -> None:
        super().__init__(
            disk,
            backlog_bytes_max=backlog_bytes_max,
            retry_full_ms=retry_full_ms,
        )
        self._inbox: queue.SimpleQueue[LogOp | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """See `Wal`."""
        invariant(self._thread is None, "a WAL thread starts once")
        self._loop = loop
        self._stopped = loop.create_future()
        self._thread = threading.Thread(target=self._main, name="antiphon-wal", daemon=True)
        self._thread.start()

    def _hand_over(self, op: LogOp) -> None:
        self._inbox.put(op)

    async def stop(self) -> None:
        """See `Wal`."""
        if self._thread is None or self._stopped is None:
            return
        self._inbox.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        running = True
        while running:
            ops, running = self._receive()
            self._post(self.round(ops, time.monotonic(), last=not running))
        self._finish()

    def _receive(self) -> tuple[list[LogOp], bool]:
        """Wait for work and take all there is; False when told to stop."""
        ops: list[LogOp] = []
        try:
            op = self._inbox.get(timeout=self.waits_s)
            while op is not None:
                ops.append(op)
                if len(ops) >= _GROUP_OPS_MAX:
                    return ops, True
                op = self._inbox.get_nowait()
        except queue.Empty:
            return ops, True
        return ops, False

    def _post(self, done: list[Completion]) -> None:
        if self.has_news and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.deliver, done, self.committer.disk_full)

    def _report(self, error: Exception, message: str) -> None:
        if self._loop is not None and not self._loop.is_closed():
            context = {"message": message, "exception": error}
            self._loop.call_soon_threadsafe(self._loop.call_exception_handler, context)

    def _finish(self) -> None:
        if self._loop is None or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self.deliver, self.given_up(), False)
        if self._stopped is not None:
            self._loop.call_soon_threadsafe(_resolve, self._stopped)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
