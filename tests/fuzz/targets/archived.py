"""The archive: files that were damaged or exchanged, and rows of the catalog. The first byte says which of the two."""

import tempfile
from pathlib import Path
from typing import Final

from antiphon.archive.digest import digest_of_batches
from antiphon.archive.files import OpenFile, as_records, rows_of, verify
from antiphon.archive.format import ArchivedFile, decode_row, encode_row, holder, in_order, reaching
from antiphon.archive.writer import FileWriter
from antiphon.errors import ArchiveError
from antiphon.model.rows import Row, Version
from antiphon.records.arrow import to_arrow
from antiphon.records.builder import build_batch
from tests.fuzz.target import Target, check

TOPIC_ID: Final = bytes(range(16))
VERSION: Final = Version(0, 0, 0, 0)
RECORDS: Final = 24


class Archive(Target):
    """0: the bytes of a file; its row stays as it was. 1: a row of the catalog."""

    slow_s = 3.0

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._path = Path(self._folder.name) / "t" / "0" / "00000000000000000000.parquet"
        self._path.parent.mkdir(parents=True)
        batch = bytes(
            build_batch(
                [(b"k%d" % n, b"v" * n, (("h", b"x"),), 1000 + n) for n in range(RECORDS)], compression="gzip"
            )
        )
        digest, _, controls = digest_of_batches([batch], 0, RECORDS)
        planned = ArchivedFile(
            format=1, topic="t", topic_id=TOPIC_ID.hex(), shard=0, start=0, end=RECORDS, rows=0, controls=0,
            uri=str(self._path), size_bytes=0, checksum="", digest="", earliest_ms=-1, latest_ms=-1, archived_ms=7,
        )  # fmt: skip
        with FileWriter(planned, None, 8) as writer:
            writer.add(to_arrow([batch], start=0, end=RECORDS, topic="t", partition=0, include_headers=True))
            self._file = writer.finish(controls, digest)
        self._good = self._path.read_bytes()
        self._records = [record for rows in rows_of(self._file, 0, RECORDS) for record in as_records(rows)]

    def seeds(self) -> list[bytes]:
        return [b"\x00" + self._good, b"\x01" + encode_row(self._file)]

    def run(self, data: bytes) -> None:
        if data[:1] == b"\x01":
            self._row(data[1:])
        else:
            self._bytes(data[1:])

    def _row(self, value: bytes) -> None:
        row = Row(self._file.key, value, VERSION)
        try:
            file = decode_row(row)
        except ArchiveError:
            return
        check(
            decode_row(Row(row.key, encode_row(file), VERSION)) == file,
            "a row is another one after it was written",
        )
        files = in_order([file, self._file])
        reaching(files, file.end)
        holder(files, file.start)

    def _bytes(self, data: bytes) -> None:
        self._path.write_bytes(data)
        try:
            with OpenFile(self._file) as opened:
                opened.first_since(1005)
                opened.split_entries()
            found = [record for rows in rows_of(self._file, 0, RECORDS) for record in as_records(rows)]
            verify(self._file)
        except ArchiveError:
            return
        check(found == self._records, "a file that holds other records than were written passes for good")

    def close(self) -> None:
        self._folder.cleanup()
