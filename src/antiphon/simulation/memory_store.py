"""A table's store for simulated nodes: rows in memory, flushed to a simulated disk that can crash and rot.

It keeps the promises of `table.store` in the same way as RocksDB does, and each of its decisions comes from a seed. A flush
writes the rows that were changed since the last one into a new file, a *run*, and then names it in the manifest, which is
replaced atomically. After a crash the store is as of the last flush. When there are `RUNS_MAX` runs, a flush writes all rows
into one as soon as that does not cost more than what was written before. Flushes also happen by themselves, after a random
number of changed rows, so that a crash may find a store that is ahead of what anybody asked to be flushed.

Files of a store, all directly in its directory:

- `MANIFEST`: one block, msgpack: the number of the next run, and name and size of each run, oldest first;
- `<number>.run`: blocks of about 4 KiB with pairs of key and value (nil: removed); then a block that is the index of them,
  with first and last key, position and size of each; then position and size of the index (uint64) and "ANTIPHMR".

A block is a CRC-32C (uint32, all numbers big-endian) and msgpack.

Opening reads everything, and fails where nothing could be read without what is damaged: a manifest or an index that is not
whole, a file that is missing. A damaged block is told to whoever reads keys of its range. Rot that comes while a store is
open is found when it is opened again, as behind RocksDB's block cache.

For one thread. A batch that is written while an iterator or a cursor is alive costs a copy of the rows.
"""

import os
import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, NamedTuple, cast

import msgspec
from crc32c import crc32c

from antiphon.errors import DamagedStoreError, ResourceExhaustedError, StorageFailedError
from antiphon.invariants import invariant
from antiphon.log.disk import PASSING, Disk, make_directory, read_whole, replace_file
from antiphon.table.store import Batch

MANIFEST: Final = "MANIFEST"
RUN_MAGIC: Final = b"ANTIPHMR"
BLOCK_BYTES: Final = 4096
RUNS_MAX: Final = 6  # more, and they are merged as soon as that is worth it
RUNS_LIMIT: Final = 64  # no more than these in any case
FLUSH_EVERY_ROWS: Final = (200, 4000)
_CRC: Final = struct.Struct(">I")
_END: Final = struct.Struct(">QQ8s")

_encode = msgspec.msgpack.Encoder().encode
_rows = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]])


class _Manifest(NamedTuple):
    next_number: int
    runs: list[tuple[str, int]]


class _Block(NamedTuple):
    first: bytes
    last: bytes
    position: int
    size: int


_manifest = msgspec.msgpack.Decoder(_Manifest)
_index = msgspec.msgpack.Decoder(list[_Block])


class MemoryBatch:
    """See `Batch`."""

    def __init__(self) -> None:
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, key: bytes, value: bytes) -> None:
        """See `Batch`."""
        self.changes.append((key, value))

    def delete(self, key: bytes) -> None:
        """See `Batch`."""
        self.changes.append((key, None))


class MemoryEngine:
    """See `StoreEngine`: the stores of one process on one disk. A new process has a new engine.

    Args:
        disk: where the files are.
        rng: decides when stores flush by themselves.
        flush_every: bounds of the number of changed rows after which they do.
        block_bytes: about what a block of a run holds.
    """

    def __init__(
        self,
        disk: Disk,
        rng: Random,
        flush_every: tuple[int, int] = FLUSH_EVERY_ROWS,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.disk = disk
        self.rng = rng
        self.flush_every = flush_every
        self.block_bytes = block_bytes
        self.paths: set[str] = set()  # of the stores that are open

    def open(self, path: str) -> "MemoryStore":
        """See `StoreEngine`."""
        if path in self.paths:
            raise StorageFailedError(f"table store {path} cannot be opened: it is open already", path=path)
        store = MemoryStore(self, path)
        self.paths.add(path)
        return store

    def check(self, path: str) -> Iterator[int]:
        """See `StoreEngine`. A run that is gone is missed only where the manifest still names it."""
        for name, size in _named(self.disk, path).runs:
            try:
                data = read_whole(self.disk, os.path.join(path, name))
                still_named = (name, size) in _named(self.disk, path).runs
            except OSError as error:
                raise storage_failed(error, f"table store {path} cannot be read", path) from error
            if still_named and (data is None or len(data) != size or not is_whole_run(data)):
                raise DamagedStoreError(f"table store {path} is damaged: {name}", path=path)
            yield size


class MemoryStore:
    """See `Store`."""

    def __init__(self, engine: MemoryEngine, path: str) -> None:
        self.engine = engine
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []
        self.damaged: list[tuple[bytes, bytes, str]] = []  # first and last key of blocks that cannot be read
        self._path = path
        self._disk = engine.disk
        self._unflushed: dict[bytes, bytes | None] = {}
        self._left = engine.rng.randint(*engine.flush_every)  # changed rows until it flushes by itself
        self._seen = False  # does anybody look at `rows` and `keys` as they are now?
        self._closed = False
        self._broken: StorageFailedError | None = None
        self._recover()

    def __repr__(self) -> str:
        return f"MemoryStore({self._path!r}, {len(self.rows)} rows, {len(self._unflushed)} not flushed)"

    # -- opening ------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        path = self._path
        try:
            make_directory(self._disk, path)
            names = self._disk.listdir(path)
            self._manifest = self._read_manifest(names)
            for name, size in self._manifest.runs:
                self._load(name, size)
            self.keys = sorted(self.rows)
            named = {name for name, _ in self._manifest.runs}
            for name in names:
                if name not in named and name.endswith((".run", ".tmp")):  # of a flush that did not end
                    self._disk.remove(os.path.join(path, name))
        except OSError as error:
            raise storage_failed(error, f"table store {path} cannot be opened", path) from error

    def _read_manifest(self, names: list[str]) -> _Manifest:
        data = read_whole(self._disk, os.path.join(self._path, MANIFEST))
        if data is None:
            if any(name.endswith(".run") for name in names):
                raise self._error("the manifest is missing")
            empty = _Manifest(1, [])
            self._put_manifest(self._path, empty)  # before there is any run: one without it was lost
            return empty
        content = _content(data, 0, len(data))
        if content is None:
            raise self._error("the manifest is not whole")
        return _manifest.decode(content)

    def _load(self, name: str, size: int) -> None:
        """Fold one run into the rows."""
        data = read_whole(self._disk, os.path.join(self._path, name))
        if data is None:
            raise self._error(f"{name} is missing")
        if len(data) != size:
            raise self._error(f"{name} has {len(data)} bytes, written were {size}")
        blocks = _blocks_of(data)
        if blocks is None:
            raise self._error(f"the index of {name} is damaged")
        for block in blocks:
            content = _content(data, block.position, block.size)
            if content is None:
                self.damaged.append((block.first, block.last, name))
                continue
            for key, value in _rows.decode(content):
                if value is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value

    def _error(self, what: str, first: bytes = b"", last: bytes | None = None) -> DamagedStoreError:
        return DamagedStoreError(
            f"table store {self._path} is damaged: {what}",
            path=self._path,
            first_key=first.hex(),
            last_key=None if last is None else last.hex(),
        )

    def check(self, first: bytes, last: bytes | None) -> None:
        """Raise DamagedStoreError if a read from key `first` to key `last` (None: the end) meets a damaged block."""
        for low, high, name in self.damaged:
            if first <= high and (last is None or low <= last):
                raise self._error(f"a block of {name}", low, high)

    # -- writing ------------------------------------------------------------------------------------------------

    def batch(self) -> MemoryBatch:
        """See `Store`."""
        return MemoryBatch()

    def write(self, batch: Batch) -> None:
        """See `Store`."""
        self._check_open()
        if self._seen:
            self.rows, self.keys, self._seen = self.rows.copy(), self.keys.copy(), False
        rows, changes = self.rows, dict(cast("MemoryBatch", batch).changes)
        added = [key for key, value in changes.items() if value is not None and key not in rows]
        gone = [key for key, value in changes.items() if value is None and key in rows]
        for key, value in changes.items():
            if value is not None:
                rows[key] = value
        for key in gone:
            del rows[key]
        self._change_keys(added, gone)
        self._unflushed.update(changes)
        self._left -= len(changes)
        if self._left <= 0:
            self.flush()

    def _change_keys(self, added: list[bytes], gone: list[bytes]) -> None:
        keys = self.keys
        if len(added) + len(gone) > len(keys) // 64 + 8:
            self.keys = sorted(self.rows)
            return
        for key in gone:
            del keys[bisect_left(keys, key)]
        for key in added:
            insort(keys, key)

    # -- reading ------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        self._check_open()
        if self.damaged:
            self.check(key, key)
        return self.rows.get(key)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`."""
        if self.damaged:
            return [self.get(key) for key in keys]
        self._check_open()
        return list(map(self.rows.get, keys))

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store`."""
        self._check_open()
        self._seen = True
        rows, keys, damaged = self.rows, self.keys, self.damaged
        for place in range(bisect_left(keys, start), len(keys)):
            key = keys[place]
            if damaged:
                self.check(start, key)
            yield key, rows[key]
        self.check(start, None)

    def cursor(self) -> "MemoryCursor":
        """See `Store`."""
        self._check_open()
        self._seen = True
        return MemoryCursor(self)

    def size_bytes(self) -> int:
        """See `Store`."""
        unflushed = sum(len(key) + len(value or b"") for key, value in self._unflushed.items())
        return sum(size for _, size in self._manifest.runs) + unflushed

    # -- disk ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """See `Store`."""
        self._check_open()
        if not self._unflushed:
            return
        self._left = self.engine.rng.randint(*self.engine.flush_every)
        number, runs = self._manifest
        changes: list[tuple[bytes, bytes | None]] = sorted(self._unflushed.items())
        merged = self._wants_merge(runs)
        if merged:
            self.check(b"", None)  # nothing is written anew from what cannot be read
            changes = [(key, self.rows[key]) for key in self.keys]
        name = f"{number:06}.run"
        data = _run(changes, self.engine.block_bytes)
        manifest = _Manifest(number + 1, [*([] if merged else runs), (name, len(data))])
        try:
            self._put_file(os.path.join(self._path, name), data)
            self._put_manifest(self._path, manifest)
            for old, _ in runs if merged else ():
                self._disk.remove(os.path.join(self._path, old))
        except OSError as error:
            self._closed = True  # what of this is on the disk, nobody knows
            self._broken = storage_failed(error, f"table store {self._path}: flush failed", self._path)
            raise self._broken from error
        self._manifest = manifest
        self._unflushed = {}

    @staticmethod
    def _wants_merge(runs: list[tuple[str, int]]) -> bool:
        """Write all rows anew when there are several runs and the later ones together are as large as the first one."""
        if len(runs) + 1 < RUNS_MAX:
            return False
        sizes = [size for _, size in runs]
        return sum(sizes[1:]) >= sizes[0] or len(runs) >= RUNS_LIMIT

    def _put_file(self, path: str, data: bytes) -> None:
        file = self._disk.open(path, create=True)
        file.truncate(0)
        file.pwritev([data], 0)
        file.fdatasync()

    def _put_manifest(self, path: str, manifest: _Manifest) -> None:
        """Replace it, after the runs: a directory's changes are durable in their order, as in a journalling file system."""
        replace_file(self._disk, os.path.join(path, MANIFEST), _block(_encode(manifest)))

    def checkpoint(self, path: str) -> None:
        """See `Store`."""
        self.flush()
        try:
            if self._disk.makedirs(path):
                self._disk.fsync_dir(os.path.dirname(path))
            elif self._disk.listdir(path):
                raise StorageFailedError(f"checkpoint {path}: the directory is there already", path=path)
            for name, size in self._manifest.runs:
                data = read_whole(self._disk, os.path.join(self._path, name))
                if data is None or len(data) != size:
                    raise self._error(f"{name} is missing or not whole")
                self._put_file(os.path.join(path, name), data)
            self._put_manifest(path, self._manifest)
        except OSError as error:
            raise storage_failed(error, f"checkpoint {path} failed", path) from error

    def close(self) -> None:
        """See `Store`."""
        self.engine.paths.discard(self._path)
        if not self._closed:
            try:
                self.flush()
            finally:
                self._closed = True

    def _check_open(self) -> None:
        if self._broken is not None:  # RocksDB, too, says again why it does no more
            raise type(self._broken)(self._broken.message, path=self._path)
        if self._closed:
            raise StorageFailedError(f"table store {self._path} is closed", path=self._path)


class MemoryCursor:
    """See `Cursor`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._rows, self._keys = store.rows, store.keys
        self._at = -1
        self._read: tuple[bytes, bytes | None] = (
            b"",
            b"",
        )  # the range of keys that the last move passed over

    def _key(self, at: int) -> bytes | None:
        return self._keys[at] if 0 <= at < len(self._keys) else None

    def seek(self, key: bytes) -> None:
        """See `Cursor`."""
        self._at = bisect_left(self._keys, key)
        self._read = (key, self._key(self._at))

    def seek_for_prev(self, key: bytes) -> None:
        """See `Cursor`."""
        self._at = bisect_right(self._keys, key) - 1
        self._read = (self._key(self._at) or b"", key)

    def next(self) -> None:
        """See `Cursor`."""
        before = self.key()
        self._at += 1
        self._read = (before, self._key(self._at))

    def prev(self) -> None:
        """See `Cursor`."""
        before = self.key()
        self._at -= 1
        self._read = (self._key(self._at) or b"", before)

    def valid(self) -> bool:
        """See `Cursor`."""
        if self._store.damaged:
            self._store.check(*self._read)
        return 0 <= self._at < len(self._keys)

    def key(self) -> bytes:
        """See `Cursor`."""
        found = self._key(self._at)
        invariant(found is not None, "a cursor is used where it is valid")
        return found or b""

    def value(self) -> bytes:
        """See `Cursor`."""
        return self._rows[self.key()]


def _named(disk: Disk, path: str) -> _Manifest:
    """What the manifest on the disk says. Raises DamagedStoreError, StorageFailedError."""
    try:
        data = read_whole(disk, os.path.join(path, MANIFEST))
    except OSError as error:
        raise storage_failed(error, f"table store {path} cannot be read", path) from error
    content = None if data is None else _content(data, 0, len(data))
    if content is None:
        raise DamagedStoreError(f"table store {path} is damaged: the manifest is not whole", path=path)
    return _manifest.decode(content)


def runs_named_in(manifest: bytes) -> set[str] | None:
    """The names of the runs of which a store is made; None if the manifest is not what was written."""
    content = _content(manifest, 0, len(manifest))
    return None if content is None else {name for name, _ in _manifest.decode(content).runs}


def is_whole_run(data: bytes) -> bool:
    """Is every block of a run what was written?"""
    blocks = None if len(data) < _END.size else _blocks_of(data)
    return blocks is not None and all(
        _content(data, block.position, block.size) is not None for block in blocks
    )


def _blocks_of(data: bytes) -> list[_Block] | None:
    """The index of a run; None if it is not what was written."""
    position, length, magic = _END.unpack_from(data, len(data) - _END.size)
    index = _content(data, position, length) if magic == RUN_MAGIC else None
    return None if index is None else _index.decode(index)


def storage_failed(error: OSError, what: str, path: str) -> StorageFailedError:
    """What a table store raises for an error of its disk."""
    kind = ResourceExhaustedError if error.errno in PASSING else StorageFailedError
    return kind(f"{what}: {error}", path=path)


def _run(changes: list[tuple[bytes, bytes | None]], block_bytes: int) -> bytes:
    """A run's file. `changes` are sorted by key."""
    parts: list[bytes] = []
    index: list[_Block] = []
    position = 0
    start, size = 0, 0
    for at, (key, value) in enumerate(changes):
        size += len(key) + len(value or b"") + 8
        if size >= block_bytes or at == len(changes) - 1:
            block = _block(_encode(changes[start : at + 1]))
            parts.append(block)
            index.append(_Block(changes[start][0], key, position, len(block)))
            position += len(block)
            start, size = at + 1, 0
    last = _block(_encode(index))
    return b"".join([*parts, last, _END.pack(position, len(last), RUN_MAGIC)])


def _block(content: bytes) -> bytes:
    return _CRC.pack(crc32c(content)) + content


def _content(data: bytes, position: int, size: int) -> bytes | None:
    """What a block holds; None if it is not what was written."""
    if position + size > len(data) or size < _CRC.size:
        return None
    content = data[position + _CRC.size : position + size]
    return content if crc32c(content) == _CRC.unpack_from(data, position)[0] else None
