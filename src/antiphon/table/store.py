"""The interface of the store that keeps a table's rows: sorted keys and values, atomic batches, consistent copies.

Everything in `table/` and `node/` goes through `Store` and `StoreEngine`. A node runs on RocksDB (`table.rocks_store`);
the simulator of whole nodes runs on a store in memory that survives simulated crashes (`simulation.memory_store`). One
test runs over both.

A store has no write-ahead log. After a crash it is at its last flush, automatic flushes included, never inside a batch.

Every method may raise StorageFailedError. Reads raise its subclass DamagedStoreError if the disk did not return what
was written: a read never returns less than there is. Engines raise no other exceptions.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol


class Batch(Protocol):
    """Changes that are made together. The engine's own object, so that filling it costs no call of ours for each row."""

    def put(self, key: bytes, value: bytes) -> None:
        """Set a key; a later change of the same key in the batch wins."""

    def delete(self, key: bytes) -> None:
        """Remove a key; nothing happens where it is not there."""


class Cursor(Protocol):
    """A place in the sorted rows of one moment. Valid only after a seek that found a row."""

    def seek(self, key: bytes) -> None:
        """Go to the first row at or after `key`."""

    def seek_for_prev(self, key: bytes) -> None:
        """Go to the last row at or before `key`."""

    def next(self) -> None:
        """Go to the next row."""

    def prev(self) -> None:
        """Go to the row before."""

    def valid(self) -> bool:
        """Is there a row here? False means the end of the rows; damage raises DamagedStoreError."""

    def key(self) -> bytes:
        """Key of the row."""

    def value(self) -> bytes:
        """Value of the row."""


class Store(Protocol):
    """One open store."""

    @property
    def engine(self) -> "StoreEngine":
        """The engine that opened it, which opens its checkpoints too."""

    def batch(self) -> Batch:
        """An empty batch for `write`."""

    def write(self, batch: Batch) -> None:
        """Make all changes of a batch of this store, or none. Not durable before a flush."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, None where it is not there."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order, None where a key is not there."""

    def items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows from key `start` on, in byte order, as of the moment of the first one."""

    def cursor(self) -> Cursor:
        """A cursor over the rows of this moment. Let go of it before the store is closed."""

    def size_bytes(self) -> int:
        """Bytes on disk and in write buffers, about."""

    def flush(self) -> None:
        """Return when everything written before is on the disk. Blocks."""

    def checkpoint(self, path: str) -> None:
        """Flush, and make a store of the rows of one moment in the new directory `path`. Blocks.

        The copy consists of plain files directly in `path`, which may be sent elsewhere one by one.
        """

    def close(self) -> None:
        """Flush and let go of the files. A second close does nothing."""


class StoreEngine(Protocol):
    """Opens stores."""

    def open(self, path: str) -> Store:
        """Open the store in directory `path`, or make an empty one. One store at a time has a directory open."""

    def check(self, path: str) -> Iterator[int]:
        """Read the store in directory `path` from the disk and compare it with its checksums, a piece at each step.

        Yields about how many bytes a step has read. The store may be open and change meanwhile: what is read is as of some
        moment. The steps may run in any thread, one at a time. Raises DamagedStoreError; any other StorageFailedError says
        that it could not be read now.
        """
