"""A disk in memory that can crash at any call, lose or tear what was not synced, fill up and fail; seeded by the caller.

It keeps, for every file, what is durable and the writes since, and for every directory the names that are durable and the
changes since. `crash()` gives what a machine finds after a power failure:

- of the unsynced writes of a file, each page survives or not, independently (`tear=True`), or a prefix of them survives;
- of the unsynced changes of names, a prefix survives (as in a journalling file system).

Faults are armed by `fail_after`, `capacity_bytes` and `crash_after`.
"""

import errno
import os
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from antiphon.log.disk import outcome_of
from antiphon.records.batch import Buffer

PAGE_BYTES: Final = 512


class SimulatedCrash(BaseException):
    """The process ended at this call."""


class _Node:
    """Content of one file, whatever names lead to it."""

    __slots__ = ("data", "durable", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.pending: list[
            tuple[int, bytes | None]
        ] = []  # (position, bytes), or (size, None) for a truncation


class SimulatedFile:
    """An open file of a `SimulatedDisk`."""

    def __init__(self, disk: "SimulatedDisk", node: _Node) -> None:
        self._disk = disk
        self._node = node

    def pwritev(self, buffers: Sequence[Buffer], at: int) -> None:
        """See `File`. A write that meets the capacity or a crash may have written any part."""
        data = b"".join(buffers)
        allowed = self._disk.allow_write(data, len(self._node.data), at)
        written = data[: len(data) if allowed is None else allowed]
        self._write(written, at)
        if allowed is not None:
            self._disk.refuse()

    def _write(self, data: bytes, at: int) -> None:
        node = self._node
        if len(node.data) < at:
            node.data.extend(bytes(at - len(node.data)))
        node.data[at : at + len(data)] = data
        node.pending.append((at, data))

    def pread(self, size: int, at: int) -> bytes:
        """See `File`."""
        return bytes(self._node.data[at : at + size])

    def fdatasync(self) -> None:
        """See `File`."""
        self._disk.step("fdatasync")
        self._node.durable = bytes(self._node.data)
        self._node.pending.clear()

    def truncate(self, size: int) -> None:
        """See `File`."""
        self._disk.step("truncate")
        node = self._node
        del node.data[size:]
        node.data.extend(bytes(size - len(node.data)))
        node.pending.append((size, None))

    def size(self) -> int:
        """See `File`."""
        return len(self._node.data)


class SimulatedDisk:
    """See the module's text. `calls` counts the calls that change something; faults name one of them by its number."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.calls = 0
        self.crash_after: int | None = None  # crash instead of the call with this number
        self.fail_after: int | None = None  # OSError(fail_errno) from that call on
        self.fail_calls = 1 << 60  # how many calls fail
        self.fail_errno = errno.EIO
        self.fail_kind = ""  # only calls of this kind fail ("write", "fdatasync", ...); empty: all
        self.capacity_bytes: int | None = None
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._pending_names: list[
            tuple[str, str, _Node | None]
        ] = []  # (directory, path, node or None if removed)
        self._directories: set[str] = {"/"}
        self._crash_write: int | None = None

    # -- faults ---------------------------------------------------------------------------------------------------------

    def step(self, kind: str) -> None:
        """Count a call; crash or fail if that is due."""
        number = self.calls
        self.calls += 1
        if self.crash_after is not None and number >= self.crash_after:
            raise SimulatedCrash
        due = self.fail_after is not None and self.fail_after <= number < self.fail_after + self.fail_calls
        if due and self.fail_kind in {"", kind}:
            raise OSError(self.fail_errno, os.strerror(self.fail_errno))

    def allow_write(self, data: bytes, size: int, at: int) -> int | None:
        """Count a write: None if it may be done in full, else how many of its bytes get through before it fails."""
        try:
            self.step("write")
        except (SimulatedCrash, OSError) as reason:
            self._refusal: BaseException = reason
            return self.rng.randint(0, len(data))
        grown = max(0, at + len(data) - size)
        if self.capacity_bytes is not None and self.used_bytes() + grown > self.capacity_bytes:
            self._refusal = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            room = max(0, self.capacity_bytes - self.used_bytes())
            return min(len(data), max(0, size - at) + room)
        return None

    def refuse(self) -> None:
        """Raise what `allow_write` decided."""
        raise self._refusal

    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(node.data) for node in self._names.values())

    def crash(self, *, tear: bool = True) -> "SimulatedDisk":
        """The disk as it is found after a power failure now; this one must not be used any more."""
        found = SimulatedDisk(self.rng)
        found._directories = set(self._directories)
        names = dict(self._durable_names)
        for _, path, node in self._pending_names[: self.rng.randint(0, len(self._pending_names))]:
            if node is None:
                names.pop(path, None)
            else:
                names[path] = node
        survivors: dict[int, _Node] = {}
        for path, node in names.items():
            if id(node) not in survivors:
                survivors[id(node)] = self._survivor(node, tear)
            found._names[path] = survivors[id(node)]
        found._durable_names = dict(found._names)
        return found

    def kill(self) -> "SimulatedDisk":
        """The disk as a new process finds it after the old one was killed: everything written is there."""
        found = SimulatedDisk(self.rng)
        found._directories = self._directories
        found._names, found._durable_names = self._names, self._durable_names
        found._pending_names = self._pending_names
        return found

    def _survivor(self, node: _Node, tear: bool) -> _Node:
        content = bytearray(node.durable)
        count = len(node.pending) if tear else self.rng.randint(0, len(node.pending))
        loss = self.rng.choice((0.0, 0.3, 0.7, 1.0))
        for at, data in node.pending[:count]:
            if data is None:
                if not tear or self.rng.random() >= loss:
                    del content[at:]
                    content.extend(bytes(at - len(content)))
                continue
            pages = range(0, len(data), PAGE_BYTES) if tear else (0,)
            for start in pages:
                piece = data[start : start + PAGE_BYTES] if tear else data
                if tear and self.rng.random() < loss:
                    continue
                end = at + start + len(piece)
                content.extend(bytes(max(0, end - len(content))))
                content[at + start : end] = piece
        survivor = _Node()
        survivor.data = content
        survivor.durable = bytes(content)
        return survivor

    def flip_bit(self, path: str, bit: int) -> None:
        """Rot: flip one bit of a file, durably."""
        node = self._names[path]
        node.data[bit // 8] ^= 1 << (bit % 8)
        node.durable = bytes(node.data)

    # -- Disk -----------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        """See `Disk`."""
        node = self._names.get(path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            self.step("create")
            node = self._names[path] = _Node()
            self._pending_names.append((os.path.dirname(path), path, node))
        return SimulatedFile(self, node)

    def rename(self, source: str, target: str) -> None:
        """See `Disk`."""
        self.step("rename")
        node = self._names.pop(source)
        self._names[target] = node
        # One change of the journal: seen whole or not at all.
        self._pending_names.append((os.path.dirname(target), target, node))
        self._pending_names.append((os.path.dirname(source), source, None))

    def remove(self, path: str) -> None:
        """See `Disk`."""
        self.step("remove")
        if self._names.pop(path, None) is not None:
            self._pending_names.append((os.path.dirname(path), path, None))

    def listdir(self, path: str) -> list[str]:
        """See `Disk`."""
        return sorted(os.path.basename(name) for name in self._names if os.path.dirname(name) == path)

    def makedirs(self, path: str) -> bool:
        """See `Disk`. Directories themselves are never lost here."""
        made = path not in self._directories
        self._directories.add(path)
        return made

    def run_all(self, calls: Sequence[Callable[[], None]]) -> list[OSError | None]:
        """See `Disk`: one after the other, so that a seed decides everything."""
        return [outcome_of(call) for call in calls]

    def fsync_dir(self, path: str) -> None:
        """See `Disk`."""
        self.step("fsync_dir")
        kept: list[tuple[str, str, _Node | None]] = []
        for change in self._pending_names:
            directory, name, node = change
            if directory != path:
                kept.append(change)
            elif node is None:
                self._durable_names.pop(name, None)
            else:
                self._durable_names[name] = node
        self._pending_names = kept
