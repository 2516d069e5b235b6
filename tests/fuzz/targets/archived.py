"""The archive and backups: files that were damaged or exchanged, rows, manifests. The first byte says which of them."""

from typing import Final

from antiphon.archive.digest import digest_of_batches
from antiphon.archive.files import OpenFile, as_records, rows_of, verify
from antiphon.archive.format import ArchivedFile, decode_row, encode_row, holder, in_order, reaching
from antiphon.archive.writer import FileWriter
from antiphon.backup import manifest
from antiphon.backup.manifest import Backup, CutReport, Piece, ShardBackup, TopicBackup
from antiphon.backup.place import Place
from antiphon.backup.verify import batches_of
from antiphon.errors import ArchiveError, BackupError, NewerFormatError
from antiphon.model.rows import Row, Version
from antiphon.records.arrow import to_arrow
from antiphon.records.builder import build_batch
from tests.fuzz.target import FolderTarget, check

TOPIC_ID: Final = bytes(range(16))
VERSION: Final = Version(0, 0, 0, 0)
RECORDS: Final = 24
NAME: Final = "20260301T120000Z-0123abcd"


class Archive(FolderTarget):
    """0: the bytes of a file; its row stays as it was. 1: a row of the catalog."""

    slow_s = 3.0

    def __init__(self) -> None:
        super().__init__()
        self._path = self.folder / "t" / "0" / "00000000000000000000.parquet"
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
                opened.first_since(1005, 3)
                opened.split_entries()
            found = [record for rows in rows_of(self._file, 0, RECORDS) for record in as_records(rows)]
            verify(self._file)
        except ArchiveError:
            return
        check(found == self._records, "a file that holds other records than were written passes for good")


class Backups(FolderTarget):
    """0: the bytes of a manifest. 1: the bytes of a piece of a log; its manifest stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self._place = Place(str(self.folder))
        batches = [
            bytes(build_batch([(b"k", b"v", (), 1)] * 2, base_offset=2 * n, leader_epoch=1)) for n in range(3)
        ]
        self._good = b"".join(batches)
        with self._place.writing("logs/1/piece.log") as file:
            file.add(self._good)
        self._piece = Piece("logs/1/piece.log", 0, 6, file.size_bytes, file.checksum, 1)
        cluster, shard = ShardBackup(0, 0, 1, 0, 0, ()), ShardBackup(1, 0, 1, 0, 6, (self._piece,))
        topic = TopicBackup("t", TOPIC_ID.hex(), "topic", 1, "oxia", {}, False, (shard,))
        self._backup = Backup(NAME, "c", "1", 0, 0, CutReport(0, 0, 0.0, 1, 0.0), cluster, (topic,))
        manifest.save(self._place, self._backup)
        self._path = f"{manifest.MANIFESTS}/{NAME}.json"
        self._manifest = self._place.read(self._path, 1 << 20)

    def seeds(self) -> list[bytes]:
        return [b"\x00" + self._manifest, b"\x01" + self._good]

    def run(self, data: bytes) -> None:
        if data[:1] == b"\x01":
            self._place.write(self._piece.path, data[1:])
            try:
                read = b"".join(batch for _, batch in batches_of(self._place, self._piece))
            except BackupError:
                return
            check(read == self._good, "a piece that holds other batches than were written passes for good")
            return
        self._place.write(self._path, data[1:])
        try:
            found = manifest.load(self._place)
        except (BackupError, NewerFormatError):
            return
        check(found == self._backup, "a manifest that says something else than was written passes for good")
