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

`submit` never blocks and never refuses. Operations of one shard finish in the order in which they were submitted; each
group of finished operations costs one `call_soon_threadsafe`. Callbacks run on the event loop with None, or with a
`StorageFailedError` (final for that shard: every later operation gets it too) or, when the thread is stopped while the disk
is full, a `DiskFullError`. While the disk is full, appends wait and are tried again every `retry_full_ms`; trims go ahead.
"""

import asyncio
import queue
import threading
import time
from typing import Final

from antiphon.errors import AntiphonError, DiskFullError, StorageFailedError
from antiphon.invariants import invariant
from antiphon.log.disk import Disk
from antiphon.log.group_commit import Completion, GroupCommitter
from antiphon.log.operations import Callback, LogOp

BACKLOG_BYTES_MAX: Final = 64 * 1024 * 1024
_GROUP_OPS_MAX: Final = 10_000


class WalThread:
    """See the module's text."""

    def __init__(
        self,
        disk: Disk,
        *,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        retry_full_ms: int = 200,
        flush_interval_ms: int = 1000,
    ) -> None:
        self.backlog_bytes_max = backlog_bytes_max
        self.backlog_bytes = 0  # submitted and not finished; event loop only
        self.disk_full = False  # event loop only; follows the thread's view by one turn
        self.committer = GroupCommitter(disk)
        self._retry_full_s = retry_full_ms / 1000
        self._flush_interval_s = flush_interval_ms / 1000
        self._inbox: queue.SimpleQueue[LogOp | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._posted_full = False  # thread only

    @property
    def overloaded(self) -> bool:
        """More bytes wait for the disk than `backlog_bytes_max`: refuse new client writes until this is False."""
        return self.backlog_bytes >= self.backlog_bytes_max

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; completions are delivered on `loop`."""
        invariant(self._thread is None, "a WAL thread starts once")
        self._loop = loop
        self._stopped = loop.create_future()
        self._thread = threading.Thread(target=self._main, name="antiphon-wal", daemon=True)
        self._thread.start()

    def submit(self, op: LogOp, callback: Callback | None = None) -> None:
        """Queue an operation (event loop only). `callback` runs on the event loop when it is finished."""
        op.callback = callback
        self.backlog_bytes += op.size_bytes
        self._inbox.put(op)

    async def stop(self) -> None:
        """Finish what was submitted (except what waits for room), sync, end the thread, deliver the last callbacks."""
        if self._thread is None or self._stopped is None:
            return
        self._inbox.put(None)
        await asyncio.shield(self._stopped)
        self._thread.join()

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        committer = self.committer
        next_retry = next_flush = 0.0
        running = True
        while running:
            running = self._receive()
            now = time.monotonic()
            retry = now >= next_retry
            try:
                done = committer.commit(retry_full=retry)
                if now >= next_flush or not running:
                    done += committer.sync_dirty()
                    next_flush = now + self._flush_interval_s
            except Exception as error:  # noqa: BLE001 - a bug; the shards must not go on as if they were durable
                done = committer.fail_all(StorageFailedError(f"the WAL thread broke: {error!r}"))
                self._post(done, committer.disk_full)
                self._report(error)
                continue
            if retry:
                next_retry = now + self._retry_full_s
            self._post(done, committer.disk_full)
        self._finish()

    def _receive(self) -> bool:
        """Wait for work and take all there is; False when told to stop."""
        waits = [self._retry_full_s] if self.committer.disk_full else []
        if self.committer.has_dirty:
            waits.append(self._flush_interval_s)
        try:
            op = self._inbox.get(timeout=min(waits) if waits else None)
            for _ in range(_GROUP_OPS_MAX):
                if op is None:
                    return False
                self.committer.add(op)
                op = self._inbox.get_nowait()
        except queue.Empty:
            return True
        if op is None:
            return False
        self.committer.add(op)
        return True

    def _post(self, done: list[Completion], disk_full: bool) -> None:
        if (done or disk_full != self._posted_full) and self._loop is not None and not self._loop.is_closed():
            self._posted_full = disk_full
            self._loop.call_soon_threadsafe(self._deliver, done, disk_full)

    def _report(self, error: Exception) -> None:
        if self._loop is not None and not self._loop.is_closed():
            context = {"message": "the WAL thread broke", "exception": error}
            self._loop.call_soon_threadsafe(self._loop.call_exception_handler, context)

    def _finish(self) -> None:
        error = DiskFullError("the node stopped while its disk was full")
        self._post([(op, error) for op in self.committer.take_waiting()], False)
        if self._loop is not None and self._stopped is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, self._stopped)

    # -- on the event loop --------------------------------------------------------------------------------------------

    def _deliver(self, done: list[Completion], disk_full: bool) -> None:
        self.disk_full = disk_full
        for op, error in done:
            self.backlog_bytes -= op.size_bytes
            self._finish_op(op, error)

    def _finish_op(self, op: LogOp, error: AntiphonError | None) -> None:
        try:
            op.finish(error)
        except Exception as problem:  # noqa: BLE001 - one shard's bug must not swallow the others' completions
            if self._loop is not None:
                self._loop.call_exception_handler(
                    {"message": f"completion of a write to {op.queue.name} failed", "exception": problem}
                )


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
