"""Writes one file of the archive, and makes sure that it stays."""

import base64
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from xxhash import xxh3_128

from antiphon.archive.files import (
    META_FILE,
    META_SPLITS,
    Options,
    describe,
    file_system,
    footer_bytes_of,
    read_footer,
)
from antiphon.archive.format import ArchivedFile
from antiphon.archive.places import make_directory

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS: Final = 65_536
GROUP_BYTES: Final = 32 * 1024 * 1024
PAGE_BYTES: Final = 256 * 1024
_BOUNDED: Final = ["offset", "timestamp"]
_REPEATED: Final = ["topic", "partition", "timestampType", "term"]


class _Hashing:
    """A file to write to that also hashes what it is given."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.hasher = xxh3_128()
        self.size_bytes = 0

    @property
    def closed(self) -> bool:
        return bool(self._handle.closed)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.hasher.update(view)
        self.size_bytes += len(view)
        self._handle.write(view)
        return len(view)

    def flush(self) -> None:
        self._handle.flush()

    def tell(self) -> int:
        return self.size_bytes

    def close(self) -> None:
        self._handle.close()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class FileWriter:
    """Takes the rows of `file` in order; `finish` completes it and fills in what is known then. Use as a context."""

    def __init__(self, file: ArchivedFile, options: Options | None, group_rows: int = GROUP_ROWS) -> None:
        import pyarrow.parquet as pq

        from antiphon.records.arrow import SCHEMA_WITH_HEADERS

        self.file = file
        self._group_rows = group_rows
        self._system, self._path = file_system(file.uri, options)
        make_directory(self._system, os.path.dirname(self._path))
        self._sink = _Hashing(self._system.open(self._path, "wb"))
        self._writer = pq.ParquetWriter(
            self._sink,
            SCHEMA_WITH_HEADERS,
            compression="zstd",
            use_dictionary=_REPEATED,
            write_statistics=_BOUNDED,
            data_page_size=PAGE_BYTES,
            write_page_checksum=True,
        )
        self._splits = bytearray()
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._rows = 0
        self._earliest_us: int | None = None
        self._latest_us: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._sink.closed:
            self._writer.close()
            self._sink.close()

    def add(self, batch: "pa.RecordBatch") -> None:
        """Rows that follow those before."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not batch.num_rows:
            return
        bounds = pc.min_max(batch.column("timestamp").cast(pa.int64())).as_py()
        self._earliest_us = _least(self._earliest_us, bounds["min"])
        self._latest_us = bounds["max"] if self._latest_us is None else max(self._latest_us, bounds["max"])
        self._rows += batch.num_rows
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= self._group_rows or self._waiting_bytes >= GROUP_BYTES:
            self._write_group()

    def add_split_entries(self, batches: Iterable[bytes]) -> None:
        """Control batches of splits, which folds of a table's past need."""
        for batch in batches:
            self._splits += batch

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=max(1, self._waiting_rows))
        self._waiting = []
        self._waiting_rows = self._waiting_bytes = 0

    def finish(self, controls: int, digest: str) -> ArchivedFile:
        """Complete the file, so that it outlives a crash of this machine; returns its row for the catalog."""
        self._write_group()
        said = {META_FILE: describe(self.file)}
        if self._splits:
            said[META_SPLITS] = base64.b64encode(self._splits)
        self._writer.add_key_value_metadata(said)
        self._writer.close()
        self._sink.close()
        make_durable(self._system, self._path)
        with self._system.open(self._path, "rb") as handle:
            footer_bytes = footer_bytes_of(handle)
            footer = read_footer(handle, footer_bytes)
        return msgspec.structs.replace(
            self.file,
            rows=self._rows,
            controls=controls,
            size_bytes=self._sink.size_bytes,
            checksum=self._sink.hasher.hexdigest(),
            digest=digest,
            footer_bytes=footer_bytes,
            footer_checksum=xxh3_128(footer).hexdigest(),
            earliest_ms=-1 if self._earliest_us is None else self._earliest_us // 1000,
            latest_ms=-1 if self._latest_us is None else self._latest_us // 1000,
        )


def _least(before: int | None, value: int) -> int:
    return value if before is None else min(before, value)


def make_durable(system: Any, path: str) -> None:
    """On a local disk a closed file may still be in memory only; object stores answer when it is safe."""
    from fsspec.implementations.local import LocalFileSystem

    if not isinstance(system, LocalFileSystem):
        return
    directory = os.path.dirname(path)
    for name, flags in ((path, os.O_RDONLY), (directory, os.O_RDONLY | os.O_DIRECTORY)):
        handle = os.open(name, flags)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
