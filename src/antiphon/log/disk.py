"""The interface between a node and a disk, and the real disk.

Every file that a node touches goes through `Disk` and `File` (only RocksDB opens its own files), so that
`SimulatedDisk` can crash, tear, fill up and fail at any call. Paths are strings. A write is on the disk only after
`fdatasync`. A created, renamed or removed name, also of a directory, is on the disk only after `fsync_dir` of its
directory. Every method may raise OSError.
"""

import contextlib
import errno
import fcntl
import os
import resource
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol, TypeVar

from antiphon.invariants import invariant
from antiphon.records.batch import Buffer

OPEN_FILES_MAX: Final = 256
FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)  # from opening a file, so before anything was written
PASSING: Final = (*FULL_DISK, *NO_DESCRIPTORS)  # the operation may be tried again, as it was
# The disk itself fails; other errors, such as a file that is not there, are mistakes of ours.
BROKEN_DISK: Final = (errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.ESTALE)
_IOV_MAX: Final = 1024
_SYNC_THREADS: Final = 8
_PARALLEL_FROM: Final = 4  # handing two or three syncs to threads costs more than it saves
_Opened = TypeVar("_Opened")
_WRITE_ROUNDS_MAX: Final = 1_000_000
_NOTE_BYTES_MAX: Final = 64
COPY_BYTES: Final = 8 * 1024 * 1024  # of a file that is copied, at a time


class LockHeldError(BlockingIOError):
    """Another process holds the lock. `note` is what it wrote there; empty if it has not written it yet."""

    def __init__(self, path: str, note: bytes) -> None:
        super().__init__(errno.EAGAIN, "another process holds the lock", path)
        self.note = note


class Lock(Protocol):
    """A lock that is held. It ends with `release`, or with the process."""

    def release(self) -> None:
        """Let go; a second release does nothing."""


class File(Protocol):
    """One open file. Positions and sizes in bytes. Reads may come from any thread at any time."""

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """Write all buffers, one after the other, from position `at`; on OSError any part may have been written."""

    def pread(self, size: int, at: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def fdatasync(self) -> None:
        """Return when everything written before is on the disk, and the size. A failure must never be retried."""

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros."""

    def size(self) -> int:
        """Size in bytes."""


class Disk(Protocol):
    """A directory tree."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; FileNotFoundError unless it is there or `create`. Cheap to call again and again."""

    def exists(self, path: str) -> bool:
        """Is there a file or a directory of this name?"""

    def is_dir(self, path: str) -> bool:
        """Is there a directory of this name?"""

    def rename(self, source: str, target: str) -> None:
        """Rename a file, replacing the target, or a directory, whose target must be absent or empty."""

    def remove(self, path: str) -> None:
        """Remove a file; no error when it is not there."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it, one name after the other; no error when it is not there."""

    def listdir(self, path: str) -> list[str]:
        """Names of the files and directories in a directory, sorted; FileNotFoundError where there is none."""

    def modified_s(self, path: str) -> float:
        """When the file or directory was changed last, in seconds since 1970."""

    def free_bytes(self, path: str) -> int:
        """Room that is left on the file system that holds `path`."""

    def lock(self, path: str, note: bytes) -> Lock:
        """Lock the file `path`, which is made where there is none, and leave a short note of who holds it.

        Raises LockHeldError when another process, or another lock of this one, holds it.
        """

    def makedirs(self, path: str) -> bool:
        """Make a directory and its parents; False when it was there.

        Parents that were missing are durable; the directory itself is after `fsync_dir` of its parent.
        """

    def fsync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""

    def sync_all(self) -> None:
        """Return when everything that was written before is on the disk, names included, whoever wrote it."""

    def run_all(self, calls: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """Make calls that do not depend on each other (syncs of several files), perhaps at once; their outcomes in order."""


class RealFile:
    """A file descriptor. It is closed when the last reference goes, so a reader in another thread is never cut off."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, *, create: bool) -> None:
        self._fd = -1
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._fd >= 0:
            try:  # nothing global is named here: at the interpreter's end modules may be empty
                close(self._fd)
            except OSError:
                return

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """See `File`."""
        todo = buffers
        for _ in range(_WRITE_ROUNDS_MAX):
            chunk = todo[:_IOV_MAX]
            expected = sum(map(len, chunk))
            written = os.pwritev(self._fd, chunk, at)
            at += written
            todo = todo[_IOV_MAX:] if written == expected else _skip(todo, written)
            if not todo:
                return
        invariant(False, "a write made no progress")

    def pread(self, size: int, at: int) -> bytes:
        """See `File`."""
        data = os.pread(self._fd, size, at)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            part = os.pread(self._fd, size - got, at + got)
            if not part:
                break
            parts.append(part)
            got += len(part)
        return b"".join(parts)

    def fdatasync(self) -> None:
        """See `File`."""
        os.fdatasync(self._fd)

    def truncate(self, size: int) -> None:
        """See `File`."""
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        """See `File`."""
        return os.fstat(self._fd).st_size


class RealLock:
    """A file locked with flock. The kernel ends the lock with the last descriptor."""

    def __init__(self, path: str, note: bytes) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # a full disk: the lock holds without saying whose it is
                os.ftruncate(self._fd, 0)
                os.pwrite(self._fd, note, 0)
        except BlockingIOError as error:
            found = os.pread(self._fd, _NOTE_BYTES_MAX, 0)
            self.release()
            raise LockHeldError(path, found) from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """See `Lock`."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _skip(buffers: Sequence[Buffer], written: int) -> list[Buffer]:
    """What is left of `buffers` after their first `written` bytes."""
    for i, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[i + 1 :]]
        written -= len(buffer)
    return []


class RealDisk:
    """The file system, with a bounded cache of open files: hundreds of idle shards hold no descriptors for long."""

    def __init__(self, open_files_max: int | None = None) -> None:
        """`open_files_max`: descriptors to keep open; by default a share of what the process is granted."""
        if open_files_max is None:
            open_files_max = open_files_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._open_files_max = open_files_max
        self._files: OrderedDict[str, RealFile] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def open(self, path: str, *, create: bool = False) -> File:
        """See `Disk`."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = self._opened(partial(RealFile, path, create=create))
                if len(self._files) > self._open_files_max:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def _opened(self, opens: "Callable[[], _Opened]") -> "_Opened":
        """Open something; where no descriptors are left, let go of half of those that are only kept for later."""
        try:
            return opens()
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._files:
                raise
        for _ in range((len(self._files) + 1) // 2):
            self._files.popitem(last=False)
        return opens()

    def _forget(self, path: str) -> None:
        with self._lock:
            self._files.pop(path, None)

    def _forget_under(self, path: str) -> None:
        """Forget the file, and the files in it if it is a directory."""
        inside = path + os.sep
        with self._lock:
            for known in [known for known in self._files if known == path or known.startswith(inside)]:
                del self._files[known]

    def exists(self, path: str) -> bool:
        """See `Disk`."""
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        """See `Disk`."""
        return os.path.isdir(path)

    def rename(self, source: str, target: str) -> None:
        """See `Disk`."""
        os.rename(source, target)
        self._forget_under(source)
        self._forget_under(target)

    def remove(self, path: str) -> None:
        """See `Disk`."""
        self._forget(path)
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_tree(self, path: str) -> None:
        """See `Disk`."""
        self._forget_under(path)
        shutil.rmtree(path, onerror=_raise_unless_gone)

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        return sorted(os.listdir(path))

    def modified_s(self, path: str) -> float:
        """See `Disk`."""
        return os.stat(path).st_mtime

    def free_bytes(self, path: str) -> int:
        """See `Disk`."""
        return shutil.disk_usage(path).free

    def lock(self, path: str, note: bytes) -> Lock:
        """See `Disk`."""
        return RealLock(path, note)

    def makedirs(self, path: str) -> bool:
        """See `Disk`."""
        missing: list[str] = []
        at = os.path.abspath(path)
        while not os.path.isdir(at):
            missing.append(at)
            at = os.path.dirname(at)
        for made in reversed(missing):
            os.makedirs(made, 0o700, exist_ok=True)
            if made != missing[0]:
                self.fsync_dir(os.path.dirname(made))
        return bool(missing)

    def fsync_dir(self, path: str) -> None:
        """See `Disk`."""
        with self._lock:
            fd = self._opened(partial(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        """See `Disk`."""
        os.sync()

    def run_all(self, calls: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """See `Disk`. Many syncs at once share the file system's journal commits: 4 times as fast here, measured."""
        if len(calls) < _PARALLEL_FROM:
            return [outcome_of(call) for call in calls]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="antiphon-sync")
        return list(self._pool.map(outcome_of, calls))

    def open_files(self) -> int:
        """How many descriptors the cache holds."""
        return len(self._files)

    def close(self) -> None:
        """Drop all cached descriptors and end the threads."""
        with self._lock:
            self._files.clear()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


def _raise_unless_gone(_call: object, _path: str, problem: tuple[type, BaseException, object]) -> None:
    if not isinstance(problem[1], FileNotFoundError):
        raise problem[1]


def open_files_for(descriptors: int) -> int:
    """How many files a log's disk keeps open, of a process that is granted so many descriptors (-1: any number)."""
    return OPEN_FILES_MAX if descriptors < 0 else max(8, min(OPEN_FILES_MAX, descriptors // 4))


def outcome_of(call: Callable[[], None]) -> OSError | None:
    """Make a call; the OSError that it raised, if it did."""
    try:
        call()
    except OSError as error:
        return error
    return None


def not_permitted(error: PermissionError) -> str:
    """What a person does about a file that this user may not open."""
    return f"{error.filename} cannot be opened: {error.strerror}; give the node's user the right to read and write it"


def read_whole(disk: Disk, path: str) -> bytes | None:
    """Content of a small file, None when it is not there."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    return file.pread(file.size(), 0)


def make_directory(disk: Disk, path: str) -> None:
    """Make a directory, durably, unless it is there."""
    if disk.makedirs(path):
        disk.fsync_dir(os.path.dirname(path))


def copy_tree(disk: Disk, source: str, target: str) -> None:
    """Copy a directory with all that is in it, not durably."""
    disk.makedirs(target)
    for name in disk.listdir(source):
        old, new = os.path.join(source, name), os.path.join(target, name)
        if disk.is_dir(old):
            copy_tree(disk, old, new)
            continue
        content, copy, at = disk.open(old), disk.open(new, create=True), 0
        while piece := content.pread(COPY_BYTES, at):
            copy.pwritev([piece], at)
            at += len(piece)


def discard_tree(disk: Disk, path: str) -> None:
    """Remove a directory that nobody needs any more; the next try removes what the disk refuses to remove now."""
    with contextlib.suppress(OSError):
        disk.remove_tree(path)


def write_whole(disk: Disk, path: str, data: Buffer) -> None:
    """Write a small file, neither atomically nor durably."""
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwritev([data], 0)


def replace_file(disk: Disk, path: str, data: Buffer, *, durable: bool = True) -> None:
    """Replace a small file atomically: the old content or the new, never a mixture; durable when this returns."""
    temporary = path + ".tmp"
    write_whole(disk, temporary, data)
    if durable:
        disk.open(temporary).fdatasync()
    disk.rename(temporary, path)
    if durable:
        disk.fsync_dir(os.path.dirname(path))
