"""Files of the archive: Parquet on any file system that fsspec knows, every page with a checksum.

A file holds the columns of `records.arrow.SCHEMA_WITH_HEADERS`, sorted by offset, in row groups of some ten thousand rows
with the bounds of offsets and timestamps, so that a reader fetches only the groups that it needs. What is read is held
against the catalog's row, the groups' bounds and the pages' checksums: a damaged or exchanged file raises ArchiveError.

pyarrow and fsspec are loaded when a file is touched: who never meets an archive does not need them.
"""

import json
import os
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from xxhash import xxh3_128

from antiphon.archive import places
from antiphon.archive.format import FORMAT_VERSION, ArchivedFile
from antiphon.errors import AntiphonError, ArchiveError, CorruptBatchError, InvalidRequestError
from antiphon.records.decode import NO_SHARD, Record

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

OPTIONS_VARIABLE: Final = "ANTIPHON_ARCHIVE_OPTIONS"
META_FILE: Final = b"antiphon.archive"
META_SPLITS: Final = b"antiphon.split_entries"
GROUP_BYTES_MAX: Final = (
    256 * 1024 * 1024
)  # of a row group that is read whole; those that are written have 32 MiB and a record
GROUP_ROWS_MAX: Final = 1_000_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
BATCH_ROWS: Final = 16_384

Options = Mapping[str, Any]
"""Keyword arguments of an fsspec file system, such as credentials."""


def options_from_environment() -> dict[str, Any]:
    """Options from ANTIPHON_ARCHIVE_OPTIONS, a JSON object. Raises InvalidRequestError."""
    text = os.environ.get(OPTIONS_VARIABLE, "")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{OPTIONS_VARIABLE} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequestError(
            f'{OPTIONS_VARIABLE} is a JSON object of options of the file system, such as {{"key": "..."}}'
        )
    return found


def file_system(uri: str, options: Options | None = None) -> tuple[Any, str]:
    """(fsspec file system, path in it) of a URI; a plain path is of this machine.

    Raises ArchiveError where fsspec or pyarrow is not installed, or the scheme's library is not.
    """
    scheme, _, path = uri.partition("://")
    if scheme in places.simulated:
        return places.simulated[scheme], path
    try:
        import fsspec
        import pyarrow.parquet  # noqa: F401 - whoever opens a file will need it
    except ImportError as error:
        raise ArchiveError(
            f"records at {uri} are archived, and {error.name} is not installed: pip install 'antiphon[archive]'"
        ) from error
    given = options_from_environment() if options is None else dict(options)
    try:
        found: tuple[Any, str] = fsspec.core.url_to_fs(uri, **given)
    except (ImportError, ValueError, TypeError) as error:
        raise ArchiveError(f"cannot open {uri}: {error}") from error
    return found


@contextmanager
def _blamed(file: ArchivedFile) -> Iterator[None]:
    """Turns what goes wrong with a file into an ArchiveError that names it."""
    import pyarrow as pa

    try:
        yield
    except (ArchiveError, InvalidRequestError):
        raise
    except FileNotFoundError as error:
        raise ArchiveError(
            f"archived file {file.name} is not there any more: restore it, or read from {file.end} on",
            uri=file.uri,
        ) from error
    except PermissionError as error:
        raise ArchiveError(f"archived file {file.name} may not be read: {error}", uri=file.uri) from error
    except (OSError, pa.ArrowException, AntiphonError, ValueError, KeyError, OverflowError) as error:
        raise ArchiveError(
            f"archived file {file.name} cannot be read: {error}. If it is damaged, restore it; `antiphon archive verify` "
            "checks all",
            uri=file.uri,
        ) from error


def footer_bytes_of(handle: Any) -> int:
    """Bytes of a Parquet file's footer, with its length and the magic number behind it."""
    handle.seek(-8, os.SEEK_END)
    return int.from_bytes(handle.read(4), "little") + 8


def read_footer(handle: Any, size_bytes: int) -> bytes:
    """The last bytes of a file."""
    handle.seek(-size_bytes, os.SEEK_END)
    return bytes(handle.read(size_bytes))


def describe(file: ArchivedFile) -> bytes:
    """What a file says of itself in its own footer, as JSON: that which is known before it is written."""
    known = {"format": FORMAT_VERSION, "topic_id": file.topic_id, "shard": file.shard}
    return json.dumps({**known, "start": file.start, "end": file.end}).encode()


class RowGroup(NamedTuple):
    """The rows of a file with start <= offset < end, in order. Offsets without a row are of control batches."""

    start: int
    end: int
    rows: "pa.Table"


class OpenFile:
    """A file that was opened and found to be what the catalog says; use as a context."""

    def __init__(self, file: ArchivedFile, options: Options | None = None) -> None:
        self.file = file
        self._options = options
        self._handle: Any = None
        self._parquet: pq.ParquetFile | None = None

    def __enter__(self) -> Self:
        system, path = file_system(self.file.uri, self._options)
        with _blamed(self.file):
            self._handle = system.open(path, "rb")
            try:
                self._parquet = self._checked()
            except BaseException:
                self._handle.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    @property
    def parquet(self) -> "pq.ParquetFile":
        """The file as Parquet."""
        if self._parquet is None:
            raise ArchiveError(f"archived file {self.file.name} is not open")
        return self._parquet

    def _checked(self) -> "pq.ParquetFile":
        import pyarrow.parquet as pq

        from antiphon.records.arrow import SCHEMA_WITH_HEADERS

        file = self.file
        size = self._handle.seek(0, os.SEEK_END)
        if size != file.size_bytes:
            raise ArchiveError(
                f"archived file {file.name} has {size} bytes, {file.size_bytes} were written", uri=file.uri
            )
        footer = read_footer(self._handle, file.footer_bytes)
        if (
            xxh3_128(footer).hexdigest() != file.footer_checksum
        ):  # the parser may abort the process over a bad one
            raise ArchiveError(
                f"archived file {file.name} cannot be read: its footer is damaged; restore it", uri=file.uri
            )
        self._handle.seek(0)
        parquet = pq.ParquetFile(self._handle, page_checksum_verification=True)
        said = (parquet.metadata.metadata or {}).get(META_FILE, b"")
        if said != describe(file) or parquet.metadata.num_rows != file.rows:
            raise ArchiveError(f"{file.name} holds something else: {said[:200]!r}", uri=file.uri)
        if not parquet.schema_arrow.equals(SCHEMA_WITH_HEADERS):
            raise ArchiveError(f"{file.name} has other columns: {parquet.schema_arrow}", uri=file.uri)
        return parquet

    def split_entries(self) -> bytes:
        """The control batches of splits among the offsets, one after the other, as they stood in the log."""
        import base64

        with _blamed(self.file):
            return base64.b64decode(
                (self.parquet.metadata.metadata or {}).get(META_SPLITS, b""), validate=True
            )

    def rows(self, start: int, end: int) -> "Iterator[pa.RecordBatch]":
        """Rows with start <= offset < end, in order of offset."""
        with _blamed(self.file):
            for number in self._groups(start, end - 1):
                yield from self._group(number, start, end)

    def group_at(self, offset: int) -> "RowGroup":
        """The row group that holds an offset of the file, with the offsets from its first row on to the next one's.

        One that is larger than the archive makes them is refused.
        """
        with _blamed(self.file):
            firsts = [bounds.min for bounds in map(self._bounds, range(self.parquet.metadata.num_row_groups))]
            number = max(0, bisect_right(firsts, offset) - 1)
            if firsts:
                self._check_size(number)
            rows = self._rows(number) if firsts else self.parquet.schema_arrow.empty_table()
            start = firsts[number] if number else self.file.start
            end = firsts[number + 1] if number + 1 < len(firsts) else self.file.end
            return RowGroup(start, end, rows)

    def _check_size(self, number: int) -> None:
        group = self.parquet.metadata.row_group(number)
        if group.total_byte_size > GROUP_BYTES_MAX or group.num_rows > GROUP_ROWS_MAX:
            raise CorruptBatchError(
                f"row group {number} has {group.num_rows} rows and {group.total_byte_size} bytes, which is more than is read"
            )

    def _bounds(self, number: int) -> Any:
        """The smallest and the largest offset of a row group, as the file's footer tells them."""
        at = self.parquet.schema_arrow.names.index("offset")
        at += 1 if at > self.parquet.schema_arrow.names.index("headers") else 0  # headers are two columns
        found = self.parquet.metadata.row_group(number).column(at).statistics
        if found is None or not found.has_min_max:
            raise CorruptBatchError(f"row group {number} has no bounds of its offsets")
        return found

    def _groups(self, lowest: int, highest: int) -> Iterator[int]:
        """Numbers of the row groups with offsets in [lowest, highest]."""
        for number in range(self.parquet.metadata.num_row_groups):
            bounds = self._bounds(number)
            if bounds.min <= highest and bounds.max >= lowest:
                yield number

    def _rows(self, number: int) -> "pa.Table":
        """All rows of a row group, which are in the order of their offsets."""
        import numpy as np

        table = self.parquet.read_row_group(number).combine_chunks()
        offsets = table.column("offset").to_numpy()
        if len(offsets) and (
            offsets[0] < self.file.start or offsets[-1] >= self.file.end or (np.diff(offsets) <= 0).any()
        ):
            raise CorruptBatchError(
                f"row group {number} is not in the order of its offsets, or of other offsets"
            )
        return table

    def _group(self, number: int, start: int, end: int) -> "Iterator[pa.RecordBatch]":
        import numpy as np
        import pyarrow as pa

        table = self._rows(number)
        first, last = np.searchsorted(table.column("offset").to_numpy(), (start, end))
        for batch in table.slice(first, last - first).to_batches(max_chunksize=BATCH_ROWS):
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self.parquet.schema_arrow)

    def first_since(self, timestamp_ms: int, offset: int) -> tuple[int, int] | None:
        """(offset, timestamp in ms) of the first record from an offset on that is at least that late; None if none is."""
        import pyarrow.compute as pc

        with _blamed(self.file):
            for number in range(self.parquet.metadata.num_row_groups):
                table = self.parquet.read_row_group(number, columns=["offset", "timestamp"])
                times = table.column("timestamp").cast("int64")
                is_late = pc.greater_equal(times, timestamp_ms * 1000)
                late = pc.index(
                    pc.and_(is_late, pc.greater_equal(table.column("offset"), offset)), True
                ).as_py()
                if late >= 0:
                    return int(table.column("offset")[late].as_py()), int(times[late].as_py()) // 1000
        return None


def rows_of(
    file: ArchivedFile, start: int, end: int, options: Options | None = None
) -> "Generator[pa.RecordBatch, None, None]":
    """Rows of a file with start <= offset < end."""
    with OpenFile(file, options) as opened:
        yield from opened.rows(start, end)


def verify(
    file: ArchivedFile, options: Options | None = None, look: Callable[[int], None] | None = None
) -> None:
    """Read a file whole: its bytes against their checksum, its records against their digest. Raises ArchiveError.

    `look(bytes)` is told of progress.
    """
    from antiphon.archive.digest import digest_of_rows

    found = checksum_of(file, options, look)
    if found != file.checksum:
        raise ArchiveError(
            f"archived file {file.name} has checksum {found}, {file.checksum} was written: it is damaged, restore it",
            uri=file.uri,
        )
    digest, rows = digest_of_rows(rows_of(file, file.start, file.end, options))
    if (digest, rows) != (file.digest, file.rows):
        raise ArchiveError(
            f"archived file {file.name} has {rows} records with digest {digest}, the log had {file.rows} with {file.digest}",
            uri=file.uri,
        )


def checksum_of(
    file: ArchivedFile, options: Options | None, look: Callable[[int], None] | None = None
) -> str:
    """The checksum of a file's bytes."""
    system, path = file_system(file.uri, options)
    hasher = xxh3_128()
    with _blamed(file), system.open(path, "rb") as handle:
        while data := handle.read(CHUNK_BYTES):
            hasher.update(data)
            if look is not None:
                look(len(data))
    return hasher.hexdigest()


def as_records(batch: "pa.RecordBatch", shard: int = NO_SHARD) -> list[Record]:
    """Rows as the records that consumers of a log get, which were read from that shard."""
    import pyarrow as pa

    times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
    return [
        Record(offset, time_ms, key, value, tuple((pair["key"], pair["value"]) for pair in headers), shard)
        for offset, time_ms, key, value, headers in zip(
            batch.column("offset").to_pylist(),
            times.tolist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            batch.column("headers").to_pylist(),
            strict=True,
        )
    ]
