"""Group commit (S4.17): all waiting operations are written with one write and one fdatasync per file.

This module has no threads, so that tests and the simulator can run it step by step; `WalThread` runs it in one.

- A failed fsync, or any failed write other than "disk full", is final for that shard. Its operations get
  `StorageFailedError`, and so does every later one. It is never tried again: after a failed fsync the kernel may have
  dropped the data, and the next fsync would report success.
- A full disk is not a failure. The file is truncated to its last good size, and the operation stays at the head of its
  shard's queue and is tried again later. Trims (which make room) overtake the appends that wait.
- A process without free file descriptors is no failure either: nothing was written, and the operation is tried again in
  the same way.
"""

import math
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import AntiphonError, StorageFailedError
from antiphon.invariants import unreachable
from antiphon.log.disk import FULL_DISK, PASSING, Disk, File, outcome_of
from antiphon.log.index import entry_position
from antiphon.log.operations import APPEND, TRIM, CallStep, LogOp, OpQueue, WriteStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.records.batch import Buffer

RUN_BYTES_MAX: Final = 8 * 1024 * 1024
PADDED_WRITE_MAX: Final = 32 * 1024  # larger ones gain nothing, and would have the disk write twice as much
PADDING_MAX: Final = 1024 * 1024
# Of a disk that is nearly full, what is left is for what has to be written.
PADDED_FROM_FREE_BYTES: Final = 256 * 1024 * 1024
_BLOCK: Final = 4096
_ZEROS: Final = memoryview(bytes(PADDING_MAX + _BLOCK))
Completion = tuple[LogOp, AntiphonError | None]


class _Run:
    """Consecutive write steps of one shard into one segment: one write, one sync."""

    __slots__ = ("buffers", "end", "entries", "file", "first", "ops", "size_bytes")

    def __init__(self, first: WriteStep) -> None:
        self.first = first
        self.end = first.position
        self.buffers: list[Buffer] = []
        self.entries: list[bytes] = []
        self.ops: list[LogOp] = []  # one element per step
        self.size_bytes = 0
        self.file: File  # once it is written

    def takes(self, step: WriteStep) -> bool:
        return (
            step.data_path == self.first.data_path
            and step.position == self.end
            and self.size_bytes + step.size_bytes <= RUN_BYTES_MAX
        )


class _Dirty(NamedTuple):
    """A file that was written and not synced (`flush = interval`), and when it has to be."""

    file: File
    queue: OpQueue
    due_s: float


class GroupCommitter:
    """Carries out queued operations; the module docstring has the rules."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._active: dict[OpQueue, None] = {}  # queues with operations, in order of arrival
        self.dirty: dict[str, _Dirty] = {}  # files that wait for their periodic fdatasync, by path
        self.disk_full = False  # some operation waits for room, as of the last commit
        self.waits_for_room = True  # what the last operation that had to wait lacked; else file descriptors
        self._now_s = 0.0
        self.groups = 0
        self.syncs = 0

    @property
    def next_sync_s(self) -> float:
        """When the next of the `dirty` files is due for its periodic fdatasync."""
        return min(one.due_s for one in self.dirty.values())

    def add(self, op: LogOp) -> None:
        """Queue an operation behind those of its shard."""
        op.queue.ops.append(op)
        self._active[op.queue] = None

    def commit(self, now_s: float = 0.0, *, retry_full: bool = True) -> list[Completion]:
        """Do all that can be done now; returns what is finished, in order per shard.

        Periodic syncs are counted from `now_s` on. With `retry_full` the operations that wait for room are tried again.
        """
        done: list[Completion] = []
        self._now_s = now_s
        self.groups += 1
        for queue in self._active:
            if queue.blocked:
                self._succeeded(queue, outcome_of(partial(self._run_trims, queue, done)), done)
                queue.blocked = bool(queue.ops) and not retry_full
        runnable = list(self._active)
        while True:
            left = []
            for queue in runnable:
                if not queue.ops:
                    del self._active[queue]
                elif not queue.blocked:
                    left.append(queue)
            if not left:
                break
            self._round(left, done)
            runnable = left
        self.disk_full = bool(self._active)  # whoever is left waits for room
        return done

    def _round(self, queues: list[OpQueue], done: list[Completion]) -> None:
        """One unit of every queue: first all writes, then all syncs, then all index entries."""
        runs: list[tuple[OpQueue, _Run]] = []
        calls: list[tuple[OpQueue, Callable[[], None]]] = []
        for queue in queues:
            if queue.failed is not None:
                self._fail(queue, queue.failed, done)
                continue
            unit = _next_unit(queue)
            if not isinstance(unit, _Run):
                queue.padded_path = ""  # it may be cut, or gone
                calls.append((queue, unit.run))
            else:
                problem = self._write(queue, unit)
                if problem is None or self._succeeded(queue, problem, done):
                    runs.append((queue, unit))
        if calls:
            self._call(calls, done)
        due = [(queue, run.file) for queue, run in runs if queue.flush == "always"]
        if len(due) < len(runs):
            self._note_dirty(runs)
        self._fdatasync(due, done)
        for queue, run in runs:
            if queue.failed is None:
                problem = self._write_index(run)
                if problem is None or self._succeeded(queue, problem, done):
                    for op in run.ops:
                        _advance(queue, op, done)

    def _call(self, calls: "list[tuple[OpQueue, Callable[[], None]]]", done: list[Completion]) -> None:
        outcomes = self.disk.run_all([call for _, call in calls])
        for (queue, _), outcome in zip(calls, outcomes, strict=True):
            if self._succeeded(queue, outcome, done):
                _advance(queue, queue.ops[0], done)

    def _write(self, queue: OpQueue, run: _Run) -> OSError | None:
        try:
            file = run.file = self.disk.open(run.first.data_path)
            has_room = queue.padded_to >= run.end and queue.padded_path == run.first.data_path
            try:
                if has_room or not self._made_room(file, queue, run):
                    file.pwritev(run.buffers, run.first.position)
            except OSError as error:
                if error.errno in FULL_DISK:
                    file.truncate(run.first.position)
                    queue.padded_path = ""
                raise
        except OSError as error:
            return error
        return None

    def _made_room(self, file: File, queue: OpQueue, run: _Run) -> bool:
        """Write with room behind it; False where none is wanted, or the disk has little, and perhaps none for the run."""
        zeros = padding(queue, run.size_bytes, run.end)
        if not zeros or self.disk.free_bytes(run.first.data_path) < PADDED_FROM_FREE_BYTES:
            return False
        try:
            file.pwritev([*run.buffers, zeros], run.first.position)
        except OSError as error:
            if error.errno not in FULL_DISK:
                raise
            file.truncate(run.first.position)
            return False
        queue.padded_path, queue.padded_to = run.first.data_path, run.end + len(zeros)
        return True

    def _note_dirty(self, runs: list[tuple[OpQueue, _Run]]) -> None:
        """Files are due for their periodic fdatasync, each counted from the first write that it was not synced after."""
        for queue, run in runs:
            if queue.flush == "interval":
                path, due_s = run.first.data_path, self._now_s + queue.flush_interval_s
                known = self.dirty.get(path)
                self.dirty[path] = _Dirty(
                    run.file, queue, due_s if known is None else min(due_s, known.due_s)
                )

    def _fdatasync(self, due: "list[tuple[OpQueue, File]]", done: list[Completion]) -> None:
        self.syncs += len(due)
        outcomes = self.disk.run_all([file.fdatasync for _, file in due])
        for (queue, _), error in zip(due, outcomes, strict=True):
            if error is not None:  # whatever its errno: never again
                self._fail(queue, _storage_failed(queue, "fdatasync", error), done)

    def _write_index(self, run: _Run) -> OSError | None:
        try:
            index = self.disk.open(run.first.index_path)
            index.pwritev([b"".join(run.entries)], entry_position(run.first.first_entry))
        except OSError as error:
            return error
        return None

    def _run_trims(self, queue: OpQueue, done: list[Completion]) -> None:
        """Let trims overtake appends that wait for room; nothing else may be overtaken."""
        for op in list(queue.ops):
            if op.kind == TRIM:
                for step in op.steps:
                    if isinstance(step, CallStep):
                        step.run()
                queue.ops.remove(op)
                done.append((op, None))
            elif op.kind != APPEND:
                return

    def sync_dirty(self, now_s: float = math.inf) -> list[Completion]:
        """The periodic fdatasync of `flush = interval`, of the files that are due by now."""
        done: list[Completion] = []
        due = {path: one for path, one in self.dirty.items() if one.due_s <= now_s}
        for path in due:
            del self.dirty[path]
        self._fdatasync([(one.queue, one.file) for one in due.values() if one.queue.failed is None], done)
        return done

    def fail_all(self, error: StorageFailedError) -> list[Completion]:
        """Give up every queued operation."""
        done: list[Completion] = []
        for queue in self._active:
            self._fail(queue, error, done)
        self._active.clear()
        self.disk_full = False
        return done

    def take_waiting(self) -> list[LogOp]:
        """Take back the operations that wait for room."""
        waiting = [op for queue in self._active for op in queue.ops]
        for queue in self._active:
            queue.ops.clear()
            queue.blocked = False
        self._active.clear()
        self.disk_full = False
        return waiting

    def _succeeded(self, queue: OpQueue, error: OSError | None, done: list[Completion]) -> bool:
        if error is None:
            return True
        if error.errno in PASSING:
            self.waits_for_room = error.errno in FULL_DISK
            queue.blocked = True
        else:
            self._fail(queue, _storage_failed(queue, "write", error), done)
        return False

    def _fail(self, queue: OpQueue, error: StorageFailedError, done: list[Completion]) -> None:
        queue.failed = error
        queue.blocked = False
        done += [(op, error) for op in queue.ops]
        queue.ops.clear()


def padding(queue: OpQueue, size_bytes: int, end: int) -> memoryview:
    """Zeros to write behind a write of that many bytes that ends at `end`, so that the next ones find their blocks there.

    A sync of a file that grows has to commit the file system's journal, which all files of all nodes of a disk share; a
    sync of blocks that are there already only writes them. A file's padding grows with it: small logs stay small.
    """
    if queue.flush != "always" or size_bytes > PADDED_WRITE_MAX:
        return _ZEROS[:0]
    size = min(PADDING_MAX, end)
    return _ZEROS[: size + -(end + size) % _BLOCK]


_NO_STEP: Final = CallStep(lambda: None)
"""The unit of an operation without steps."""


def _next_unit(queue: OpQueue) -> _Run | CallStep:
    """The first step that is not done; a write together with all writes that can join it."""
    head = queue.ops[0]
    if head.next_step >= len(head.steps):
        return _NO_STEP
    step = head.steps[head.next_step]
    if isinstance(step, CallStep):
        return step
    run = _Run(step)
    for op in queue.ops:
        if op.next_step >= len(op.steps):  # nothing to write, but it must not be overtaken
            return run
        for later in op.steps[op.next_step :]:
            if not isinstance(later, WriteStep) or (run.ops and not run.takes(later)):
                return run
            run.buffers += later.buffers
            run.entries += later.entries
            run.end += later.size_bytes
            run.size_bytes += later.size_bytes
            run.ops.append(op)
    return run


def _advance(queue: OpQueue, op: LogOp, done: list[Completion]) -> None:
    op.next_step += 1
    if op.next_step >= len(op.steps):
        if queue.ops.popleft() is not op:
            unreachable("operations finish in order")
        done.append((op, None))


def _storage_failed(queue: OpQueue, what: str, error: OSError) -> StorageFailedError:
    return StorageFailedError(
        f"{what} failed for {queue.name}: {error}; this replica stops, its disk cannot be trusted",
        what=what,
        errno=error.errno,
        path=queue.name,
    )
