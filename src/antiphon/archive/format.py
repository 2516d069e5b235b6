"""The catalog of what was archived: which files hold which offsets of which shard.

Old records move from a shard's log to Parquet files. The catalog is the internal table `__archive` of the cluster: a row a
file, keyed by topic id, shard and first offset, put only if nothing stands there. A file counts from the moment that its row
is there; whoever archives puts rows in the order of their offsets, each where the one before ends, so the rows of a shard
follow each other whoever wrote them. A topic that is deleted and made again has another id, and no part in the files of the
old one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from antiphon.archive.places import address_problem
from antiphon.errors import UNDECODABLE, ArchiveError
from antiphon.model import internal
from antiphon.model.metadata import ClusterMeta, ShardMeta, TopicMeta
from antiphon.model.requests import TableScan
from antiphon.model.rows import Row

ARCHIVE_TABLE: Final = internal.ARCHIVE_TABLE
FORMAT_VERSION: Final = 1
SCAN_ROWS: Final = 1000
FILES_MAX: Final = 1_000_000  # of one shard


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the archive: the records of a shard with start <= offset < end.

    Attributes:
        format: version of the file's layout and of this row.
        topic: name of the topic or table when it was archived.
        topic_id: its id, as hexadecimal digits.
        shard: index of the shard.
        start: first offset.
        end: offset after the last one.
        rows: records in the file; the other offsets are those of control batches.
        controls: offsets that control batches take up, and batches that could not be read; rows + controls = end - start.
        uri: where the file is, with the scheme of an fsspec file system.
        size_bytes: of the file.
        checksum: of the file's bytes, XXH3 with 128 bits in hexadecimal digits.
        digest: of the records (`antiphon.archive.digest`).
        earliest_ms, latest_ms: the smallest and the largest timestamp, ms since 1970; -1 where there is no record.
        archived_ms: when it was written, ms since 1970.
        footer_bytes, footer_checksum: of the end of the file, which says where everything is: pages have checksums of their
            own, this has not.
        unreadable: batches that could not be read and begin here; they were passed over by choice (`on_corrupt`).
    """

    format: int
    topic: str
    topic_id: str
    shard: int
    start: int
    end: int
    rows: int
    controls: int
    uri: str
    size_bytes: int
    checksum: str
    digest: str
    earliest_ms: int
    latest_ms: int
    archived_ms: int
    footer_bytes: int = 0
    footer_checksum: str = ""
    unreadable: int = 0

    @property
    def key(self) -> bytes:
        """Key of its row."""
        return shard_prefix(bytes.fromhex(self.topic_id), self.shard) + b"%020d" % self.start

    @property
    def name(self) -> str:
        """What it is, for messages."""
        return f"{self.uri} ({self.topic} shard {self.shard}, offsets {self.start} to {self.end})"


_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[ArchivedFile] = msgspec.json.Decoder(ArchivedFile)


class _Version(msgspec.Struct):
    format: int


_version_decoder: msgspec.json.Decoder[_Version] = msgspec.json.Decoder(_Version)


def shard_prefix(topic_id: bytes, shard: int) -> bytes:
    """What the keys of a shard's files begin with; their order is that of the offsets."""
    return topic_prefix(topic_id) + b"%08d/" % shard


def topic_prefix(topic_id: bytes) -> bytes:
    """What the keys of a topic's files begin with."""
    return topic_id.hex().encode() + b"/"


def encode_row(file: ArchivedFile) -> bytes:
    """The row of a file: a JSON object."""
    return _encode(file)


def decode_row(row: Row) -> ArchivedFile:
    """The file of a row. Raises ArchiveError for one that is not understood, or says what cannot be."""
    where = f"row {row.key.decode('ascii', 'replace')!r} of table {ARCHIVE_TABLE}"
    try:
        version = _version_decoder.decode(row.value or b"").format
        if version > FORMAT_VERSION:
            raise ArchiveError(
                f"{where} has format {version}, this version knows up to {FORMAT_VERSION}: use a newer Antiphon"
            )
        file = _decoder.decode(row.value or b"")
        key = file.key
    except UNDECODABLE as error:
        raise ArchiveError(f"{where} does not describe an archived file: {error}") from error
    if key != row.key or not 0 <= file.start < file.end or file.rows + file.controls != file.end - file.start:
        raise ArchiveError(f"{where} contradicts itself: {file}")
    problem = address_problem(file.uri, file.topic, file.topic_id, file.shard, file.start, file.end)
    if problem is not None:
        raise ArchiveError(f"{where} names {file.uri!r}, which is not opened: {problem}", uri=file.uri)
    return file


def scan_request(shard: ShardMeta, prefix: bytes, after: bytes = b"") -> TableScan:
    """The request for the rows under `prefix`, behind the key `after`."""
    start = after + b"\0" if after else prefix
    return TableScan(shard.shard_id, start, _behind(prefix), SCAN_ROWS)


def _behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which ends with "/" or is empty."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b""


def catalog_of(meta: ClusterMeta) -> TopicMeta | None:
    """The catalog, if anything was ever archived."""
    return next((topic for topic in meta.topics if topic.name == ARCHIVE_TABLE), None)


def in_order(files: Iterable[ArchivedFile]) -> list[ArchivedFile]:
    """By their offsets."""
    return sorted(files, key=lambda file: (file.start, -file.end))


def reaching(files: Sequence[ArchivedFile], log_start: int) -> int:
    """First offset from which on the files, which are in order, hold all up to `log_start`; it itself if none does."""
    start = log_start
    for file in reversed(files):
        if file.start < start <= file.end:
            start = file.start
    return start


def archived_until(files: Sequence[ArchivedFile], offset: int) -> int:
    """The offset up to which the files, which are in order, hold everything from `offset` on; it itself if none does."""
    for file in files:
        if file.start <= offset < file.end:
            offset = file.end
    return offset


def holder(files: Sequence[ArchivedFile], offset: int) -> ArchivedFile | None:
    """The file that holds `offset` and reaches farthest."""
    found = [file for file in files if file.start <= offset < file.end]
    return max(found, key=lambda file: file.end, default=None)


def not_archived(topic: str, shard: int, offset: int, files: Sequence[ArchivedFile], log_start: int) -> str:
    """What to say to somebody who asks for an offset that is neither in the log nor in the archive."""
    first = reaching(files, log_start)
    there = (
        f"its archive begins at {first} and its log at {log_start}"
        if first < log_start
        else f"nothing of it is archived that reaches its log, which begins at {log_start}"
    )
    return f"{topic} shard {shard} has no offset {offset} any more: {there}; start at {first}"
