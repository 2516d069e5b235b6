"""Tables' stores in RocksDB; only this module uses `rocksdict`.

RocksDB's own write-ahead log is off, because the shard's log is one. RocksDB checks a CRC on every block that it reads
from the disk. A get of a damaged block raises. An iterator over one ends, and only its status says that this was not
the end of the rows. So every iteration here checks the status.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from antiphon.errors import DamagedStoreError, ResourceExhaustedError, StorageFailedError
from antiphon.table.rocks_manifest import unreadable_manifest

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024  # per shard, allocated in small arenas as rows come
WRITE_BUFFERS_BYTES: Final = 64 * 1024 * 1024  # all shards of a node together
CACHE_BYTES: Final = 32 * 1024 * 1024  # all shards of a node together
# What may pass: no room, no descriptors. RocksDB gives them as texts.
PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
OPENING: Final = "opening it"
CHECK_BYTES: Final = 256 * 1024  # that a step of a check reads, and at most so many rows
CHECK_ROWS: Final = 2_000

_shared: tuple[Cache, WriteBufferManager] | None = None


def _options() -> Options:
    """Small per shard, because a node may hold hundreds that are idle; caches and buffers are shared by all of them."""
    global _shared  # noqa: PLW0603 - one cache and one budget a process is the point
    if _shared is None:
        _shared = (Cache(CACHE_BYTES), WriteBufferManager(WRITE_BUFFERS_BYTES, False))
    cache, buffers = _shared
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_bloom_filter(10, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_arena_block_size(64 * 1024)
    options.set_max_write_buffer_number(4)
    options.set_level_zero_file_num_compaction_trigger(6)
    options.set_level_zero_slowdown_writes_trigger(40)  # a slow-down would be felt by the event loop
    options.set_level_zero_stop_writes_trigger(80)
    options.set_compression_per_level([DBCompressionType.none()] * 2 + [DBCompressionType.lz4()] * 5)
    options.set_max_background_jobs(2)
    options.set_max_open_files(64)
    options.set_max_file_opening_threads(1)
    options.set_manifest_preallocation_size(32 * 1024)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(256 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _failed(path: str, what: str, error: Exception, first: bytes, last: bytes | None) -> StorageFailedError:
    """Our error for one of rocksdict, which raises bare exceptions whose text begins with the kind."""
    text = str(error)
    if not text.startswith("Corruption"):
        told = "cannot be opened" if what == OPENING else f"did not do {what}"
        passes = any(os.strerror(number) in text for number in PASSING)
        kind = ResourceExhaustedError if passes else StorageFailedError
        return kind(f"table store {path} {told}: {text}", path=path)
    keys = f"keys from {first!r}" + ("" if last is None else f" to {last!r}")
    return DamagedStoreError(
        f"table store {path} is damaged, found by {what}, {keys}: {text}",
        path=path,
        first_key=first.hex(),
        last_key=None if last is None else last.hex(),
    )


class RocksCursor:
    """See `Cursor`."""

    __slots__ = ("_cursor", "_path")

    def __init__(self, cursor: RdictIter, path: str) -> None:
        self._cursor = cursor
        self._path = path

    def seek(self, key: bytes) -> None:
        """See `Cursor`."""
        self._cursor.seek(key)

    def seek_for_prev(self, key: bytes) -> None:
        """See `Cursor`."""
        self._cursor.seek_for_prev(key)

    def next(self) -> None:
        """See `Cursor`."""
        self._cursor.next()

    def prev(self) -> None:
        """See `Cursor`."""
        self._cursor.prev()

    def valid(self) -> bool:
        """See `Cursor`."""
        if self._cursor.valid():
            return True
        try:
            self._cursor.status()
        except Exception as error:
            # Whoever keeps the error keeps frames that hold this; the files must not stay open for it
            del self._cursor
            raise _failed(self._path, "a cursor", error, b"", None) from error
        return False

    def key(self) -> bytes:
        """See `Cursor`."""
        found: bytes = self._cursor.key()
        return found

    def value(self) -> bytes:
        """See `Cursor`."""
        found: bytes = self._cursor.value()
        return found


class RocksStore:
    """See `Store`. Calls from several threads at once are safe, but for what reads or writes rows while `close` is called.

    `close` waits for a flush or a copy that another thread is at: rocksdict refuses to close a store that is in use.
    """

    def __init__(self, engine: "RocksEngine", db: Rdict, path: str) -> None:
        self.engine = engine
        self._db = db
        self._path = path
        self._long = threading.Lock()  # held by what may run in a thread, and by closing

    def batch(self) -> WriteBatch:
        """See `Store`."""
        return WriteBatch(raw_mode=True)

    def write(self, batch: WriteBatch) -> None:
        """See `Store`."""
        try:
            self._db.write(batch)
        except Exception as error:
            raise _failed(self._path, "a write", error, b"", None) from error

    def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:
            raise _failed(self._path, "a get", error, key, key) from error
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `Store`."""
        try:
            found: list[bytes | None] = self._db.get(keys)
        except Exception as error:
            raise _failed(self._path, "a get", error, min(keys), max(keys)) from error
        return found

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See `Store`."""
        row: tuple[bytes, bytes] | None = None
        try:
            for row in self._db.items(from_key=start):
                yield row
            self._check_end(start if row is None else row[0] + b"\x00")
        except Exception as error:
            raise _failed(
                self._path, "an iteration", error, start if row is None else row[0], None
            ) from error

    def _check_end(self, after: bytes) -> None:
        """An iterator ended there. rocksdict hides its status, so look once more: is this the end of the rows?"""
        cursor = self._db.iter()
        try:
            cursor.seek(after)
            cursor.status()
            if cursor.valid():
                raise StorageFailedError(f"rows from {after!r} on could not be read at first")
        finally:
            del cursor  # whoever keeps the error keeps this frame; the files must not stay open for that

    def cursor(self) -> RocksCursor:
        """See `Store`."""
        try:
            return RocksCursor(self._db.iter(), self._path)
        except Exception as error:
            raise _failed(self._path, "a cursor", error, b"", None) from error

    def size_bytes(self) -> int:
        """See `Store`."""
        total = 0
        for name in ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables"):
            total += int(self._db.property_int_value(name) or 0)
        return total

    def flush(self) -> None:
        """See `Store`."""
        try:
            with self._long:
                self._db.flush(True)
        except Exception as error:
            raise _failed(self._path, "a flush", error, b"", None) from error

    def checkpoint(self, path: str) -> None:
        """See `Store`. Hard links where that can be."""
        try:
            with self._long:
                Checkpoint(self._db).create_checkpoint(path)
        except Exception as error:
            raise _failed(self._path, "a checkpoint", error, b"", None) from error

    def close(self) -> None:
        """See `Store`."""
        try:
            with self._long:
                self._db.close()
        except DbClosedError:
            return
        except Exception as error:
            raise _failed(self._path, "closing", error, b"", None) from error


class RocksEngine:
    """See `StoreEngine`."""

    def open(self, path: str) -> RocksStore:
        """See `StoreEngine`."""
        _require_readable(path, OPENING)
        try:
            db = Rdict(path, _options())
            no_wal = WriteOptions()
            no_wal.disable_wal = True
            db.set_write_options(no_wal)
        except Exception as error:
            raise _failed(path, OPENING, error, b"", None) from error
        return RocksStore(self, db, path)

    def check(self, path: str) -> Iterator[int]:
        """See `StoreEngine`. RocksDB opens its files once more, to read only, and checks each block that the rows are in.

        The files' pages are dropped from the system's cache before, so that they come from the disk.
        """
        _drop_cached(path)
        _require_readable(path, "a check")
        try:
            db = Rdict(path, _check_options(), access_type=AccessType.read_only(False))
            cursor = db.iter(_check_reads())
            cursor.seek_to_first()
        except Exception as error:
            raise _failed(path, "a check", error, b"", None) from error
        try:
            while True:
                rows, size = 0, 0
                while cursor.valid() and size < CHECK_BYTES and rows < CHECK_ROWS:
                    size += len(cursor.key()) + len(cursor.value())
                    rows += 1
                    cursor.next()
                if not rows:
                    break
                yield size
            cursor.status()
        except Exception as error:
            raise _failed(path, "a check", error, b"", None) from error
        finally:
            del cursor
            db.close()


def _require_readable(path: str, what: str) -> None:
    """Raise DamagedStoreError where RocksDB would read for ever, StorageFailedError where nothing can be read."""
    try:
        found = unreadable_manifest(path)
    except OSError as error:
        raise _failed(path, what, error, b"", None) from error
    if found is not None:
        raise _failed(path, what, ValueError(f"Corruption: {found}"), b"", None)


def _check_options() -> Options:
    """Nothing is kept of what a check reads, and it shares no memory with the stores that serve."""
    blocks = BlockBasedOptions()
    blocks.disable_cache()
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_block_based_table_factory(blocks)
    options.set_max_file_opening_threads(1)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    return options


def _check_reads() -> ReadOptions:
    reads = ReadOptions()
    reads.set_verify_checksums(True)
    reads.set_readahead_size(CHECK_BYTES)
    return reads


def _drop_cached(path: str) -> None:
    """Let the system forget what it has cached of the store's files, where it can."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            if name.endswith(".sst"):
                handle = os.open(os.path.join(path, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(handle)
