"""What a simulated disk holds: files with what of them is durable, directories, and a journal of changes of names.

A file keeps its content as processes see it (the page cache) and as it is durable; the writes in between wait for a sync.
A change of names is one transaction of the journal, seen whole or not at all after a crash. As in a journalling file system
a prefix of the transactions survives. `flush` makes those of one directory durable, with all that they follow from.
"""

import errno
import os
from functools import lru_cache
from random import Random
from typing import Final, NamedTuple

PAGE_BYTES: Final = 512
WRITTEN_CHANCE: Final = 0.3  # of a page in a failed sync to have got to the disk


class SimulatedContent:
    """Content of one file, whatever names lead to it."""

    __slots__ = ("data", "durable", "modified_s", "pending")

    def __init__(self, data: bytes = b"", modified_s: float = 0.0) -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.modified_s = modified_s
        # Not durable yet: (position, bytes), or (size, None) for a truncation.
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, data: bytes, at: int) -> None:
        """Write; not durable."""
        if len(self.data) < at:
            self.data.extend(bytes(at - len(self.data)))
        self.data[at : at + len(data)] = data
        self.pending.append((at, data))

    def truncate(self, size: int) -> None:
        """Cut, or extend with zeros; not durable."""
        _resize(self.data, size)
        self.pending.append((size, None))

    def sync(self) -> None:
        """Make durable what is pending. The cost goes by what was written, not by the size of the file."""
        sizes = [at for at, data in self.pending if data is None]
        if sizes:
            del self.durable[min(sizes) :]
        for at, data in self.pending:
            if data:
                self._keep_pages(at, len(data))
        if sizes:
            _resize(self.durable, len(self.data))
        self.pending.clear()

    def write_back(self) -> None:
        """Make durable all that processes see, also what a failed sync dropped."""
        self.durable = bytearray(self.data)
        self.pending.clear()

    def _keep_pages(self, at: int, size: int) -> None:
        """Whole pages go to the disk, so what an earlier failed sync left in them goes too."""
        start, end = at - at % PAGE_BYTES, -(-(at + size) // PAGE_BYTES) * PAGE_BYTES
        self.durable.extend(bytes(max(0, start - len(self.durable))))
        self.durable[start:end] = self.data[start:end]

    def fail_sync(self, rng: Random) -> None:
        """What a kernel does when the disk refuses: the pages count as clean, though some are nowhere but in memory.

        Processes go on reading them, and the next sync succeeds, until they are lost with the memory. Pages that are written
        again are synced again. Truncations stay in the file system's journal; the file may have its new size all the same.
        """
        for at, data in self.pending:
            for start in range(0, len(data or b""), PAGE_BYTES):
                if rng.random() < WRITTEN_CHANCE:
                    self._keep_pages(at + start, 1)
        if rng.random() < WRITTEN_CHANCE and len(self.durable) < len(self.data):
            _resize(self.durable, len(self.data))
        self.pending = [change for change in self.pending if change[1] is None]

    def survivor(self, rng: Random, tear: bool) -> "SimulatedContent":
        """The file after a power failure."""
        content = bytearray(self.durable)
        count = len(self.pending) if tear else rng.randint(0, len(self.pending))
        loss = rng.choice((0.0, 0.3, 0.7, 1.0))
        for at, data in self.pending[:count]:
            if data is None:
                if not tear or rng.random() >= loss:
                    _resize(content, at)
                continue
            pages = range(0, len(data), PAGE_BYTES) if tear else (0,)
            for start in pages:
                piece = data[start : start + PAGE_BYTES] if tear else data
                if tear and rng.random() < loss:
                    continue
                end = at + start + len(piece)
                content.extend(bytes(max(0, end - len(content))))
                content[at + start : end] = piece
        return SimulatedContent(bytes(content), self.modified_s)


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


class SimulatedDirectory:
    """Names in a directory, as processes see them and as they are durable."""

    __slots__ = ("durable", "modified_s", "names")

    def __init__(self, modified_s: float = 0.0) -> None:
        self.names: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.modified_s = modified_s


Entry = SimulatedContent | SimulatedDirectory
Copy = bytes | dict[str, "Copy"]


def _size(entry: Entry) -> int:
    if isinstance(entry, SimulatedContent):
        return len(entry.data)
    return sum(map(_size, entry.names.values()))


class _Change(NamedTuple):
    directory: SimulatedDirectory
    name: str
    entry: Entry | None

    def carry_out(self) -> None:
        if self.entry is None:
            self.directory.durable.pop(self.name, None)
        else:
            self.directory.durable[self.name] = self.entry


@lru_cache(4096)
def _names(path: str) -> tuple[str, ...]:
    """Those on the way; the same few paths are looked up again and again."""
    return tuple(name for name in path.split("/") if name)


class SimulatedTree:
    """All that is on a disk. Raises OSError as a file system does."""

    def __init__(self) -> None:
        self.root = SimulatedDirectory()
        self.used_bytes = 0
        self._journal: list[tuple[_Change, ...]] = []

    # -- finding --------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Entry | None:
        """What has this name now."""
        at: Entry | None = self.root
        for name in _names(path):
            if not isinstance(at, SimulatedDirectory):
                return None
            at = at.names.get(name)
        return at

    def durable(self, path: str) -> Entry | None:
        """What would have this name after a power failure now."""
        at: Entry | None = self.root
        for name in _names(path):
            if not isinstance(at, SimulatedDirectory):
                return None
            at = at.durable.get(name)
        return at

    def need(self, path: str) -> Entry:
        """The same; FileNotFoundError where there is nothing."""
        found = self.find(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return found

    def directory(self, path: str) -> SimulatedDirectory:
        """The directory of this name; FileNotFoundError, NotADirectoryError."""
        found = self.need(path)
        if not isinstance(found, SimulatedDirectory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return found

    def content(self, path: str) -> SimulatedContent:
        """The file of this name; FileNotFoundError, IsADirectoryError."""
        found = self.need(path)
        if isinstance(found, SimulatedDirectory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return found

    # -- changing names -------------------------------------------------------------------------------------------

    def put(self, path: str, entry: Entry | None, *, durable: bool = False) -> None:
        """Give the name to a new file or directory; None takes it away."""
        parent, name = split(path)
        self._note([_Change(self.directory(parent), name, entry)])
        if durable:
            self.flush(parent)

    def move(self, source: str, target: str) -> None:
        """Rename; what had the target's name is gone."""
        entry = self.need(source)
        found = self.find(target)
        if isinstance(found, SimulatedDirectory):
            if not isinstance(entry, SimulatedDirectory):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), target)
            if found.names:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), target)
        elif found is not None and isinstance(entry, SimulatedDirectory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
        if found is entry:
            return
        (from_parent, from_name), (to_parent, to_name) = split(source), split(target)
        change = _Change(self.directory(to_parent), to_name, entry)
        self._note([change, _Change(self.directory(from_parent), from_name, None)], moved=entry)

    def _note(self, changes: list[_Change], moved: Entry | None = None) -> None:
        for directory, name, entry in changes:
            before = directory.names.pop(name, None)
            if before is not None and before is not moved:
                self.used_bytes -= _size(before)
            if entry is not None:
                directory.names[name] = entry
                self.used_bytes += _size(entry) if moved is None else 0
        self._journal.append(tuple(changes))

    def flush(self, path: str) -> None:
        """Make the changes of a directory durable, whole, with the earlier ones that they build on."""
        needed = {id(self.directory(path))}
        kept: list[tuple[_Change, ...]] = []
        due: list[tuple[_Change, ...]] = []
        for transaction in reversed(self._journal):
            touched = {id(change.directory) for change in transaction}
            if needed.isdisjoint(touched):
                kept.append(transaction)
            else:
                needed |= touched
                due.append(transaction)
        for transaction in reversed(due):
            for change in transaction:
                change.carry_out()
        self._journal = kept[::-1]

    def flush_all(self) -> None:
        """Make everything durable: all names, and what is in all files that have one."""
        for transaction in self._journal:
            for change in transaction:
                change.carry_out()
        self._journal = []

        def write_back(entry: Entry) -> None:
            if isinstance(entry, SimulatedContent):
                entry.write_back()
                return
            for inside in entry.names.values():
                write_back(inside)

        write_back(self.root)

    # -- what happens while nobody runs ---------------------------------------------------------------------------

    def lose(self, path: str) -> None:
        """Remove a name at once, durably."""
        self.need(path)
        self.put(path, None, durable=True)

    def copy(self, path: str) -> "Copy":
        """All that is there now: the bytes of a file, or a directory's by name."""

        def copied(entry: Entry) -> Copy:
            if isinstance(entry, SimulatedContent):
                return bytes(entry.data)
            return {name: copied(inside) for name, inside in entry.names.items()}

        return copied(self.need(path))

    def restore(self, path: str, copy: "Copy", now_s: float) -> None:
        """Put a copy in the place of what is there, durably."""

        def restored(part: Copy) -> Entry:
            if isinstance(part, bytes):
                return SimulatedContent(part, now_s)
            directory = SimulatedDirectory(now_s)
            directory.names = {name: restored(inside) for name, inside in part.items()}
            directory.durable = dict(directory.names)
            return directory

        self.put(path, restored(copy), durable=True)

    # -- after a crash --------------------------------------------------------------------------------------------

    def survivor(self, rng: Random, tear: bool) -> "SimulatedTree":
        """What a machine finds after a power failure."""
        names: dict[int, dict[str, Entry]] = {}
        for transaction in self._journal[: rng.randint(0, len(self._journal))]:
            for directory, name, entry in transaction:
                found = names.setdefault(id(directory), dict(directory.durable))
                if entry is None:
                    found.pop(name, None)
                else:
                    found[name] = entry
        survivors: dict[int, SimulatedContent] = {}
        tree = SimulatedTree()

        def revive(before: SimulatedDirectory) -> SimulatedDirectory:
            after = SimulatedDirectory(before.modified_s)
            for name, entry in names.get(id(before), before.durable).items():
                if isinstance(entry, SimulatedDirectory):
                    after.names[name] = revive(entry)
                    continue
                if id(entry) not in survivors:
                    survivors[id(entry)] = entry.survivor(rng, tear)
                    tree.used_bytes += len(survivors[id(entry)].data)
                after.names[name] = survivors[id(entry)]
            after.durable = dict(after.names)
            return after

        tree.root = revive(self.root)
        return tree


def split(path: str) -> tuple[str, str]:
    """Parent and last name of a path."""
    return os.path.split(path.rstrip("/"))
