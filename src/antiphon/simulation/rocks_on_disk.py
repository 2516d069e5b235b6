"""RocksDB itself as the tables' store of simulated nodes, with what is durable of it on their simulated disks.

RocksDB opens its own files, so an open store has a real folder of its own. Only RocksDB and this module see it. What a node
and its faults see is the store's directory on the simulated disk, which is brought up to date in RocksDB's own order
whenever RocksDB has made something durable: when a store was opened, flushed or copied. So a store is found, after a crash
of any kind, as it was when it was flushed last. What was only in its write buffers is gone, as in the product, where
RocksDB's write-ahead log is off. The real folder of a process that ended is never looked at again.

RocksDB puts identifiers and times of its own into its files. They would differ in every run, and go over the network in
snapshots. So the simulated disk has *stand-ins*: as many bytes as the file has, made from a number. `RealFiles` knows for
which bytes each stands. Where a stand-in was changed, torn or cut on the disk, the file is, in the same places.

What decides a run is never RocksDB's threads or clock: a flush waits until all compactions that it began are over, flushes
by themselves come after a drawn number of changed rows, long before RocksDB's buffers are full, and what errors say about
places and checksums is left out. A read of an open store never fails because of the simulated disk.
"""

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from hashlib import shake_128
from random import Random
from typing import Final

from rocksdict import Rdict, WriteBatch

from antiphon.errors import DamagedStoreError, StorageFailedError
from antiphon.invariants import invariant
from antiphon.log.disk import Disk, make_directory, read_whole, replace_file
from antiphon.simulation.memory_store import storage_failed
from antiphon.simulation.runtime import escapes
from antiphon.table.rocks_store import RocksCursor, RocksEngine, RocksStore

MEMORY: Final = "/dev/shm"  # noqa: S108 - RocksDB syncs a lot, and nothing here has to outlive the run
PIECE_BYTES: Final = 8  # by each of its first two pieces a stand-in is recognised
SMALL_BYTES: Final = 2 * PIECE_BYTES  # smaller files stand for themselves
BLOCK_BYTES: Final = 1024  # are made at once
CURRENT: Final = "CURRENT"
QUIET_ROUNDS_MAX: Final = 100_000
QUIET_S: Final = 0.0005
_BUSY: Final = (
    "rocksdb.num-running-flushes",
    "rocksdb.compaction-pending",
    "rocksdb.num-running-compactions",
)
_NUMBER: Final = re.compile(r"\d+")
_LOST: Final = re.compile(rb"\0{16,}")  # pages that never got to the disk


class RealFiles:
    """The folder of all stores of a simulated cluster, and what the stand-ins on its disks stand for."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(prefix="antiphon-rocks-", dir=MEMORY if os.path.isdir(MEMORY) else None)
        self.stores: list[RocksOnDisk] = []
        self._contents: list[bytes] = []  # by the number that the stand-in is made from
        self._known: dict[bytes, int] = {}  # by piece: the number
        self._folders = 0
        escapes.allowed_folders.add(self.path)

    def new_folder(self) -> str:
        """A path for a folder that is not there yet."""
        self._folders += 1
        return os.path.join(self.path, str(self._folders))

    def stand_in(self, content: bytes, number: int = -1, before_bytes: int = 0) -> tuple[int, bytes]:
        """What goes to a simulated disk for `content`, and its number.

        With the number of a file that has grown since it had `before_bytes`: what goes behind them.
        """
        if len(content) < SMALL_BYTES:
            return -1, content[before_bytes:]
        if number < 0:
            number = len(self._contents)
            self._contents.append(content)
        invariant(content.startswith(self._contents[number]), "a file that stands on a disk has only grown")
        self._contents[number] = content
        found = _made_from(number, 0, SMALL_BYTES)
        for at in range(0, SMALL_BYTES, PIECE_BYTES):
            self._known[found[at : at + PIECE_BYTES]] = number
        return number, _made_from(number, before_bytes, len(content))

    def behind(self, found: bytes) -> tuple[int, bytes, bool]:
        """Number and content of a file that was found on a simulated disk, and whether that is not what was written."""
        if len(found) < SMALL_BYTES:
            return -1, found, False
        number = self._known.get(found[:PIECE_BYTES], self._known.get(found[PIECE_BYTES:SMALL_BYTES], -1))
        if number < 0:
            return -1, found, True
        wanted, content = _made_from(number, 0, len(found)), self._contents[number][: len(found)]
        if found == wanted and len(content) == len(found):
            return number, content, False
        content = content.ljust(len(found), b"\0")
        changed = bytearray(a ^ b ^ c for a, b, c in zip(found, wanted, content, strict=True))
        for lost in _LOST.finditer(found):
            changed[lost.start() : lost.end()] = bytes(lost.end() - lost.start())
        return -1, bytes(changed), True

    def close(self) -> None:
        """Let go of everything."""
        for store in self.stores:
            store.abandon()
        self.stores.clear()
        escapes.allowed_folders.discard(self.path)
        shutil.rmtree(self.path, ignore_errors=True)


def _made_from(number: int, start: int, end: int) -> bytes:
    first = start // BLOCK_BYTES
    blocks = [
        shake_128(b"antiphon %d %d" % (number, block)).digest(BLOCK_BYTES)
        for block in range(first, -(-end // BLOCK_BYTES))
    ]
    return b"".join(blocks)[start - first * BLOCK_BYTES : end - first * BLOCK_BYTES]


class RocksOnDiskEngine(RocksEngine):
    """See `StoreEngine`: the stores of one process on one simulated disk. A new process has a new engine.

    Args:
        disk: where the files stand.
        files: what they stand for.
        rng: decides when stores flush by themselves.
        flush_every: bounds of the number of changed rows after which they do.
    """

    def __init__(self, disk: Disk, files: RealFiles, rng: Random, flush_every: tuple[int, int]) -> None:
        self.disk = disk
        self.files = files
        self.rng = rng
        self.flush_every = flush_every
        self.paths: set[str] = set()  # of the stores that are open

    def open(self, path: str) -> "RocksOnDisk":
        """See `StoreEngine`."""
        if path in self.paths:
            raise StorageFailedError(f"table store {path} cannot be opened: it is open already", path=path)
        folder = Folder(self, path)
        try:
            folder.fetch()
            opened = super().open(folder.real)
        except OSError as error:
            raise storage_failed(error, f"table store {path} cannot be opened", path) from error
        except StorageFailedError as error:
            raise _same_every_time(error, folder.real, path) from error
        store = RocksOnDisk(self, opened._db, folder)  # noqa: SLF001 - it is the same store, with more to its flushes
        self.files.stores.append(store)
        try:
            store.bring_over()
        except StorageFailedError:
            store.abandon()
            raise
        self.paths.add(path)
        return store

    def check(self, path: str) -> Iterator[int]:
        """See `StoreEngine`: is what stands on the disk what RocksDB has written?"""
        try:
            for name in self.disk.listdir(path):
                found = read_whole(self.disk, os.path.join(path, name)) or b""
                if not name.endswith(".tmp") and self.files.behind(found)[2]:
                    raise DamagedStoreError(f"table store {path} is damaged: {name}", path=path)
                yield len(found)
        except OSError as error:
            raise storage_failed(error, f"table store {path} cannot be read", path) from error


class Folder:
    """A real folder, and the directory on a simulated disk that it is brought over to."""

    def __init__(self, engine: RocksOnDiskEngine, path: str) -> None:
        self.path = path
        self.real = engine.files.new_folder()
        self._disk, self._files = engine.disk, engine.files
        self._there: dict[str, tuple[int, int]] = {}  # by name: number and size of what the disk has
        self._current = b""
        self._rotten: set[str] = set()

    @property
    def is_rotten(self) -> bool:
        """Was a file that is still there not what had been written?"""
        return bool(self._rotten & self._there.keys())

    def fetch(self) -> None:
        """Make the real folder from what the disk has. Raises OSError."""
        disk, path = self._disk, self.path
        make_directory(disk, path)
        os.mkdir(self.real)
        for name in disk.listdir(path):
            if name.endswith(".tmp"):  # of a flush that did not end
                disk.remove(os.path.join(path, name))
                continue
            found = read_whole(disk, os.path.join(path, name)) or b""
            number, content, changed = self._files.behind(found)
            with open(os.path.join(self.real, name), "wb") as file:
                file.write(content)
            self._there[name] = (number, len(content))
            if name == CURRENT:
                self._current = content
            if changed:
                self._rotten.add(name)

    def bring_over(self) -> None:
        """Make durable on the disk what RocksDB has: files, then the manifest, then its name. Raises OSError."""
        disk, path = self._disk, self.path
        names = sorted(
            name for name in os.listdir(self.real) if name != "LOCK" and not name.startswith("LOG")
        )
        manifests = [name for name in names if name.startswith("MANIFEST")]
        tables = [name for name in names if name not in manifests and name != CURRENT]
        for group in (tables, manifests):
            new = [name for name in group if name not in self._there]
            for name in group:
                self._bring_over(name)
            if new:
                disk.fsync_dir(path)
        if CURRENT in names:
            self._replace_current()
        for name in [name for name in self._there if name not in names]:
            disk.remove(os.path.join(path, name))
            del self._there[name]

    def _bring_over(self, name: str) -> None:
        """A file that is new, or that RocksDB has appended to: it changes none in another way."""
        number, before_bytes = self._there.get(name, (-1, -1))
        real = os.path.join(self.real, name)
        if os.path.getsize(real) == before_bytes:
            return
        content = _content(real)
        if number < 0:
            before_bytes = 0  # nobody knows what the disk has
        number, found = self._files.stand_in(content, number, before_bytes)
        file = self._disk.open(os.path.join(self.path, name), create=True)
        if not before_bytes:
            file.truncate(0)
        file.pwritev([found], before_bytes)
        file.fdatasync()
        self._there[name] = (number, len(content))
        self._rotten.discard(name)

    def _replace_current(self) -> None:
        content = _content(os.path.join(self.real, CURRENT))
        if content == self._current:
            return
        number, found = self._files.stand_in(content)
        replace_file(self._disk, os.path.join(self.path, CURRENT), found)
        self._there[CURRENT], self._current = (number, len(content)), content
        self._rotten.discard(CURRENT)

    def size_bytes(self) -> int:
        """Of what is on the disk."""
        return sum(size for _, size in self._there.values())


class RocksOnDisk(RocksStore):
    """See `Store`. For one thread."""

    engine: RocksOnDiskEngine

    def __init__(self, engine: RocksOnDiskEngine, db: Rdict, folder: Folder) -> None:
        super().__init__(engine, db, folder.path)
        self._folder = folder
        self._left = engine.rng.randint(*engine.flush_every)  # changed rows until it flushes by itself
        self._unflushed_bytes = 0
        self._closed = False

    def __repr__(self) -> str:
        return f"RocksOnDisk({self._path!r}, {self._unflushed_bytes} bytes not flushed)"

    @property
    def damaged(self) -> bool:
        """Was a file that is still there not what had been written?"""
        return self._folder.is_rotten

    def _said(self, error: StorageFailedError) -> StorageFailedError:
        return _same_every_time(error, self._folder.real, self._path)

    def write(self, batch: WriteBatch) -> None:
        """See `Store`."""
        self._check_open()
        rows, size_bytes = batch.len(), batch.size_in_bytes()
        try:
            super().write(batch)
        except StorageFailedError as error:
            raise self._said(error) from error
        self._unflushed_bytes += size_bytes
        self._left -= rows
        if self._left <= 0:
            self.flush()

    def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        self._check_open()
        try:
            return super().get(key)
        except StorageFailedError as error:
            raise self._said(error) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`."""
        self._check_open()
        try:
            return super().get_many(keys)
        except StorageFailedError as error:
            raise self._said(error) from error

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store`."""
        self._check_open()
        try:
            yield from super().items(start)
        except StorageFailedError as error:
            raise self._said(error) from error

    def cursor(self) -> "CursorOnDisk":
        """See `Store`."""
        self._check_open()
        try:
            return CursorOnDisk(self._db.iter(), self._path, self._folder.real)
        except StorageFailedError as error:
            raise self._said(error) from error

    def size_bytes(self) -> int:
        """See `Store`. What RocksDB says of its buffers depends on its threads."""
        return self._folder.size_bytes() + self._unflushed_bytes

    def flush(self) -> None:
        """See `Store`."""
        self._check_open()
        self._left = self.engine.rng.randint(*self.engine.flush_every)
        try:
            super().flush()
        except StorageFailedError as error:
            raise self._said(error) from error
        self.bring_over()
        self._unflushed_bytes = 0

    def bring_over(self) -> None:
        """Let the simulated disk have what RocksDB has on its own. Raises StorageFailedError."""
        self._wait_until_quiet()
        try:
            self._folder.bring_over()
        except OSError as error:
            self._closed = True  # what of this is on the disk, nobody knows
            raise storage_failed(error, f"table store {self._path} did not do a flush", self._path) from error

    def _wait_until_quiet(self) -> None:
        """Flushes and compactions that have begun are over, and what they replaced is gone."""
        for _ in range(QUIET_ROUNDS_MAX):
            if not any(self._db.property_int_value(name) for name in _BUSY):
                return
            threading.Event().wait(QUIET_S)  # of the real time, which nobody in the simulation sees
        invariant(False, f"RocksDB is never through with {self._path}")

    def checkpoint(self, path: str) -> None:
        """See `Store`."""
        self.flush()
        if self.engine.disk.is_dir(path) and self.engine.disk.listdir(path):
            raise StorageFailedError(f"checkpoint {path}: the directory is there already", path=path)
        copy = Folder(self.engine, path)
        try:
            super().checkpoint(copy.real)
            make_directory(self.engine.disk, path)
            copy.bring_over()
        except StorageFailedError as error:
            raise self._said(error) from error
        except OSError as error:
            raise storage_failed(error, f"checkpoint {path} failed", path) from error

    def close(self) -> None:
        """See `Store`."""
        self.engine.paths.discard(self._path)
        try:
            if not self._closed:
                self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """The process ended, or the run: the real folder does not count any more."""
        self._closed = True
        with contextlib.suppress(StorageFailedError):  # of a store whose files are damaged
            super().close()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageFailedError(f"table store {self._path} is closed", path=self._path)


class CursorOnDisk(RocksCursor):
    """See `Cursor`."""

    __slots__ = ("_real",)

    def __init__(self, cursor: object, path: str, real: str) -> None:
        super().__init__(cursor, path)
        self._real = real

    def valid(self) -> bool:
        """See `Cursor`."""
        try:
            return super().valid()
        except StorageFailedError as error:
            raise _same_every_time(error, self._real, self._path) from error


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _same_every_time(error: StorageFailedError, real: str, path: str) -> StorageFailedError:
    """The same error without the real folder, and without checksums and numbers of files, which differ from run to run."""
    message = _NUMBER.sub("#", error.message.replace(real, path).replace(path, "\0"))
    return type(error)(message.replace("\0", path), **{**error.details, "path": path})
