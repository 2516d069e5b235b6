"""A disk in memory that can crash at any call, lose or tear unsynced data, fill up and fail; the caller supplies the
seed.

For every file it keeps the durable content and the writes since; for every directory the durable names and the changes
since. `crash()` returns what a machine finds after a power failure:

- of the unsynced writes of a file, each page survives or not, independently (`tear=True`), or a prefix of them
  survives;
- of the unsynced changes of names, also of directories, a prefix survives (as in a journalling file system).

`crash_after` and `end_at` end a process or the machine at a call: the former counts calls that change something, the
latter also those that only look (open, read, listdir). Who runs the process says in `on_end` what happens then.
`fail_after` or `faults` make calls fail, `capacity_bytes` fills the disk and `duration_s` slows it. `lose`, `restore`
and `flip_bit` change files behind the node's back. The disk that `crash` or `kill` returns has none of these faults
armed.
"""

import errno
import os
from collections.abc import Callable, Sequence
from contextvars import Context
from random import Random
from typing import TYPE_CHECKING

from antiphon import system
from antiphon.log.disk import LockHeldError, outcome_of
from antiphon.log.simulated_tree import Copy, SimulatedContent, SimulatedDirectory, SimulatedTree, split
from antiphon.records.batch import Buffer

if TYPE_CHECKING:
    from antiphon.log.simulated_faults import Duration, Fault

UNBOUNDED_BYTES = 1 << 50  # room on a disk without a capacity


class SimulatedCrash(BaseException):
    """The process ended at this call."""


class SimulatedFile:
    """An open file of a `SimulatedDisk`. It stays readable and writable when its name is gone."""

    def __init__(self, disk: "SimulatedDisk", path: str, content: SimulatedContent) -> None:
        self._disk = disk
        self._path = path  # at which it was opened
        self._content = content

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """See `File`. A write that meets the capacity or a crash may have written any part."""
        data = b"".join(buffers)
        disk, content = self._disk, self._content
        size = len(content.data)
        allowed = disk.allow_write(self._path, data, size, at)
        content.write(data if allowed is None else data[:allowed], at)
        disk.changed(content, len(content.data) - size)
        if allowed is not None:
            disk.refuse()

    def pread(self, size: int, at: int) -> bytes:
        """See `File`."""
        data = bytes(self._content.data[at : at + size])
        self._disk.look("read", self._path, len(data))
        return data

    def fdatasync(self) -> None:
        """See `File`."""
        try:
            self._disk.step("fdatasync", self._path)
        except OSError:
            self._content.fail_sync(self._disk.rng)
            raise
        self._content.sync()

    def truncate(self, size: int) -> None:
        """See `File`."""
        self._disk.step("truncate", self._path)
        before = len(self._content.data)
        self._content.truncate(size)
        self._disk.changed(self._content, size - before)

    def size(self) -> int:
        """See `File`."""
        return len(self._content.data)

    def durable(self) -> bytes:
        """What of it would be found after a power failure now, whatever its name is. Not a call to the disk."""
        return bytes(self._content.durable)


class SimulatedLock:
    """A lock of a `SimulatedDisk`. It ends with the process: the disk after `kill` or `crash` knows nothing of it."""

    def __init__(self, locks: dict[str, bytes], path: str) -> None:
        self._locks = locks
        self._path = path
        self._held = True

    def release(self) -> None:
        """See `Lock`."""
        if self._held:
            self._held = False
            del self._locks[self._path]


class SimulatedDisk:
    """See the module's text. `calls` counts the calls that change something; faults name one of them by its number."""

    def __init__(self, rng: Random, clock_s: Callable[[], float] = system.wall_s) -> None:
        """`clock_s`: the time of day, in seconds since 1970, that changed files get."""
        self.rng = rng
        self.clock_s = clock_s
        self.calls = 0
        self.crash_after: int | None = None  # crash instead of the call with this number
        self.looks = 0  # calls of all kinds
        self.end_at: int | None = None  # the same, by the number among all calls
        # Told at once: what the process does after that is not done
        self.on_end: Callable[[], None] | None = None
        self.fail_after: int | None = None  # OSError(fail_errno) from that call on
        self.fail_calls = 1 << 60  # how many calls fail
        self.fail_errno = errno.EIO
        self.fail_kind = ""  # only calls of this kind fail ("write", "fdatasync", ...); empty: all
        self.capacity_bytes: int | None = None
        self.faults: list[Fault] = []
        self.duration_s: Duration | None = None
        self._spent_s = 0.0
        self._tree = SimulatedTree()
        self._locks: dict[str, bytes] = {}
        self._ended = False  # the process that used it was killed

    # -- faults ---------------------------------------------------------------------------------------------------------

    def look(self, kind: str, path: str, size_bytes: int = 0) -> None:
        """A call that changes nothing: it takes its time, and crashes or fails if that is due."""
        number = self.looks
        self.looks += 1
        if self.end_at is not None and number >= self.end_at:
            self._crash(kind)
        if self.duration_s is not None:
            self._spent_s += self.duration_s(kind, path, size_bytes)
        for fault in self.faults:
            if fault.hits(kind, path, self.rng):
                fault.raise_it(path)

    def take_spent_s(self) -> float:
        """Seconds that the calls since the last time took, by `duration_s`: for a simulator's clock."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def step(self, kind: str, path: str, size_bytes: int = 0) -> None:
        """A call that changes something: count it; crash or fail if that is due."""
        number = self.calls
        self.calls += 1
        if self._ended or (self.crash_after is not None and number >= self.crash_after):
            self._crash(kind)
        due = self.fail_after is not None and self.fail_after <= number < self.fail_after + self.fail_calls
        if due and self.fail_kind in {"", kind}:
            raise OSError(self.fail_errno, os.strerror(self.fail_errno))
        self.look(kind, path, size_bytes)

    def _crash(self, kind: str) -> None:
        if kind != "write":  # which may have written something, and says so itself
            self._end()
        raise SimulatedCrash

    def _end(self) -> None:
        """Whoever runs the process ends it now, before its `finally` blocks say or write anything."""
        if self.on_end is not None and not self._ended:
            self._ended = True
            Context().run(self.on_end)  # not in the name of the process that called

    def allow_write(self, path: str, data: bytes, size: int, at: int) -> int | None:
        """Count a write: None if it may be done in full, else how many of its bytes get through before it fails."""
        try:
            self.step("write", path, len(data))
        except (SimulatedCrash, OSError) as reason:
            self._refusal: BaseException = reason
            return 0 if self._ended else self.rng.randint(0, len(data))
        grown = max(0, at + len(data) - size)
        if self.capacity_bytes is not None and self.used_bytes() + grown > self.capacity_bytes:
            self._refusal = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            room = max(0, self.capacity_bytes - self.used_bytes())
            return min(len(data), max(0, size - at) + room)
        return None

    def refuse(self) -> None:
        """Raise what `allow_write` decided."""
        if isinstance(self._refusal, SimulatedCrash):
            self._end()
        raise self._refusal

    def changed(self, content: SimulatedContent, grown_bytes: int) -> None:
        """A file was written to."""
        content.modified_s = self.clock_s()
        self._tree.used_bytes += grown_bytes

    def used_bytes(self) -> int:
        """Bytes of all files."""
        return self._tree.used_bytes

    def crash(self, *, tear: bool = True) -> "SimulatedDisk":
        """The disk as it is found after a power failure now; this one must not be used any more."""
        found = SimulatedDisk(self.rng, self.clock_s)
        found._tree = self._tree.survivor(self.rng, tear)
        return found

    def kill(self) -> "SimulatedDisk":
        """The disk as a new process finds it after the old one was killed: everything written is there.

        What the old process still tries to change raises SimulatedCrash.
        """
        found = SimulatedDisk(self.rng, self.clock_s)
        found._tree = self._tree
        self._ended = True
        return found

    def durable(self, path: str) -> bytearray | None:
        """What of a file would be found after a power failure now; None where there is none. Not a call to the disk."""
        found = self._tree.durable(path)
        return found.durable if isinstance(found, SimulatedContent) else None

    def durable_names(self, path: str) -> list[str]:
        """Names that would be found in a directory after a power failure now. Not a call to the disk."""
        found = self._tree.durable(path)
        return sorted(found.durable) if isinstance(found, SimulatedDirectory) else []

    def flip_bit(self, path: str, bit: int) -> None:
        """Rot: flip one bit of a file, durably."""
        content = self._tree.content(path)
        for data in (content.data, content.durable):
            if bit // 8 < len(data):
                data[bit // 8] ^= 1 << (bit % 8)

    def write_back(self, path: str) -> None:
        """What was written to a file is durable, as it becomes by itself some time after. Nothing where there is no file."""
        if self.exists(path):
            self._tree.content(path).write_back()

    def lose(self, path: str) -> None:
        """A file or a directory is missing from now on, also after a crash."""
        self._tree.lose(path)

    def copy(self, path: str) -> Copy:
        """What an operator's backup of a file or a directory holds."""
        return self._tree.copy(path)

    def restore(self, path: str, copy: Copy) -> None:
        """Put back an old copy in the place of what is there, durably. No process may have files in it open."""
        self._tree.restore(path, copy, self.clock_s())

    # -- Disk -----------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        """See `Disk`. A file is made only in a directory that is there."""
        tree = self._tree
        if create and tree.find(path) is None:
            tree.directory(split(path)[0])
            self.step("create", path)
            tree.put(path, SimulatedContent(modified_s=self.clock_s()))
        else:
            self.look("open", path)
        return SimulatedFile(self, path, tree.content(path))

    def exists(self, path: str) -> bool:
        """See `Disk`."""
        return self._tree.find(path) is not None

    def is_dir(self, path: str) -> bool:
        """See `Disk`."""
        return isinstance(self._tree.find(path), SimulatedDirectory)

    def rename(self, source: str, target: str) -> None:
        """See `Disk`."""
        self.step("rename", source)
        self._tree.move(source, target)

    def remove(self, path: str) -> None:
        """See `Disk`."""
        self.step("remove", path)
        if self.exists(path):
            self._tree.content(path)
            self._tree.put(path, None)

    def remove_tree(self, path: str) -> None:
        """See `Disk`."""
        if not self.exists(path):
            return
        for name in self.listdir(path):
            inside = f"{path}/{name}"
            if self.is_dir(inside):
                self.remove_tree(inside)
            else:
                self.remove(inside)
        self.step("remove", path)
        self._tree.put(path, None)

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        names = sorted(self._tree.directory(path).names)
        self.look("listdir", path)
        return names

    def makedirs(self, path: str) -> bool:
        """See `Disk`."""
        if self.exists(path):
            self._tree.directory(path)
            return False
        parent = split(path)[0]
        if not self.is_dir(parent):
            self.makedirs(parent)
            self._tree.flush(split(parent)[0])
        self.step("mkdir", path)
        self._tree.put(path, SimulatedDirectory(self.clock_s()))
        return True

    def modified_s(self, path: str) -> float:
        """See `Disk`."""
        return self._tree.need(path).modified_s

    def free_bytes(self, path: str) -> int:
        """See `Disk`."""
        self._tree.need(path)
        room = UNBOUNDED_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return max(0, room - self.used_bytes())

    def lock(self, path: str, note: bytes) -> SimulatedLock:
        """See `Disk`."""
        held = self._locks.get(path)
        if held is not None:
            raise LockHeldError(path, held)
        file = self.open(path, create=True)
        file.truncate(0)
        file.pwritev([note], 0)
        self._locks[path] = note
        return SimulatedLock(self._locks, path)

    def sync_all(self) -> None:
        """See `Disk`."""
        self.step("sync", "/")
        self._tree.flush_all()

    def run_all(self, calls: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """See `Disk`: one after the other, so that a seed decides everything."""
        return [outcome_of(call) for call in calls]

    def fsync_dir(self, path: str) -> None:
        """See `Disk`."""
        self.step("fsync_dir", path)
        self._tree.flush(path)
