"""Archived records for Spark's planners and tasks, and the catalog that names their files.

A shard's records are one sequence whose older part stands in files (`antiphon.archive.files`) and whose newer part
stands in the log; both may hold the same stretch in between. Whoever reads asks for `archived_start` to know where the
sequence begins, and takes offsets below the log's start from `archived_rows`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from antiphon.archive.files import OpenFile, Options
from antiphon.archive.format import (
    ARCHIVE_TABLE,
    FILES_MAX,
    ArchivedFile,
    catalog_of,
    decode_row,
    encode_row,
    holder,
    in_order,
    not_archived,
    reaching,
    scan_request,
    shard_prefix,
)
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.client.blocking_topics import created
from antiphon.errors import (
    ArchiveError,
    DataLossError,
    InvalidRequestError,
    UnknownTopicError,
)
from antiphon.model.metadata import Kind, TopicMeta
from antiphon.model.requests import CreateTopic, OpStatus, Put, TableGet, TableRows, TableWrite, TableWritten
from antiphon.model.rows import Row

if TYPE_CHECKING:
    import pyarrow as pa

ABSENT: Final = -1


class _Known(NamedTuple):
    """What was found for a shard when its log began at `log_start`."""

    log_start: int
    start: int


_known: "WeakKeyDictionary[Cluster, dict[tuple[bytes, int], _Known]]" = WeakKeyDictionary()


class Catalog:
    """The rows of `__archive`, by way of one connection to the cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def exists(self) -> bool:
        """Was anything ever archived? Where the metadata at hand does not know the catalog, all nodes are asked."""
        return self._table() is not None

    def _table(self) -> TopicMeta | None:
        found = catalog_of(self._cluster.metadata(refresh=False))
        return found if found is not None else catalog_of(self._cluster.newest_metadata())

    def files(self, prefix: bytes = b"") -> list[ArchivedFile]:
        """The files whose keys begin so, in order of topic id, shard and offset. Raises ArchiveError."""
        table = self._table()
        found: list[ArchivedFile] = []
        for shard in table.shards if table is not None else ():
            after = b""
            for _ in range(FILES_MAX):
                reply: TableRows = self._cluster.call(
                    ShardCall(shard.shard_id, scan_request(shard, prefix, after))
                ).body
                rows = [row for row in reply.rows if row is not None]
                found += [decode_row(row) for row in rows]
                if not reply.more or not rows:
                    break
                after = rows[-1].key
        return sorted(found, key=lambda file: file.key)

    def of_shard(self, topic: TopicMeta, shard: int) -> list[ArchivedFile]:
        """The files of a shard in the order of their offsets."""
        return in_order(self.files(shard_prefix(topic.topic_id, shard)))

    def put(self, file: ArchivedFile) -> ArchivedFile:
        """Enter a file where no other begins at the same offset; returns the one that stands there now.

        A repeat after a lost answer finds its own row, and is as good as the first.
        """
        shard_id = self._shard_id()
        write = TableWrite(shard_id, (Put(file.key, encode_row(file), ABSENT),), internal=True)
        reply: TableWritten = self._cluster.call(ShardCall(shard_id, write)).body
        status = reply.results[0].status
        if status == OpStatus.OK:
            return file
        if status != OpStatus.UNEXPECTED_VERSION:
            raise ArchiveError(f"the catalog refused {file.name} with status {status}")
        rows: TableRows = self._cluster.call(ShardCall(shard_id, TableGet(shard_id, (file.key,)))).body
        row = rows.rows[0]
        if not isinstance(row, Row):
            raise ArchiveError(f"the catalog's row of {file.name} was removed just now; run again")
        return decode_row(row)

    def _shard_id(self) -> int:
        table = self._table() or created(
            self._cluster, CreateTopic(ARCHIVE_TABLE, Kind.TABLE, 1, internal=True)
        )
        if len(table.shards) != 1:
            raise ArchiveError(f"table {ARCHIVE_TABLE} is not the catalog: it has more than one shard")
        return table.shards[0].shard_id


def topic_named(cluster: Cluster, name: str, *, refresh: bool = False) -> TopicMeta:
    """A topic or table by name; raises UnknownTopicError."""
    for topic in cluster.metadata(refresh=refresh).topics:
        if topic.name == name:
            return topic
    raise UnknownTopicError(f"there is no topic or table {name!r}", name=name)


def archived_start(cluster: Cluster, topic: str, shard: int, log_start: int, deleted_before: int) -> int:
    """Where the records of a shard begin: the first offset of the archived range that reaches its log without a gap.

    That is `log_start` where nothing is archived. What is found is kept as long as `log_start` stays, so that a planner may
    ask at every turn. Records before `deleted_before` were deleted on request: they are read from no file any more.
    """
    if log_start <= 0:
        return log_start
    meta = topic_named(cluster, topic)
    known = _known.setdefault(cluster, {})
    found = known.get((meta.topic_id, shard))
    if found is None or found.log_start != log_start:
        start = reaching(Catalog(cluster).of_shard(meta, shard), log_start)
        found = known[meta.topic_id, shard] = _Known(log_start, start)
    return max(found.start, min(deleted_before, log_start))


def archived_offset_at(
    cluster: Cluster,
    topic: str,
    shard: int,
    timestamp_ms: int,
    log_start: int,
    first: int,
    storage_options: Options | None = None,
) -> int | None:
    """First archived offset from `first` on, where the records begin, with a timestamp that late; None if there is none."""
    start = first
    if start >= log_start:
        return None
    files = Catalog(cluster).of_shard(topic_named(cluster, topic), shard)
    while start < log_start:
        file = holder(files, start)
        if file is None:
            return None
        if file.latest_ms >= timestamp_ms:
            with OpenFile(file, storage_options) as opened:
                found = opened.first_since(timestamp_ms, start)
            if found is not None:
                return found[0] if found[0] < log_start else None
        start = file.end
    return None


def archived_rows(
    cluster: Cluster,
    topic: str,
    shard: int,
    start: int,
    end: int,
) -> "Iterator[pa.RecordBatch]":
    """Rows with start <= offset < end from the archive, as `records.arrow.SCHEMA_WITH_HEADERS` says, in order of offset.

    Offsets of control batches have no row. The options of the file system are those of ANTIPHON_ARCHIVE_OPTIONS.

    Raises DataLossError where the archive does not hold the range, ArchiveError for a file that is missing or damaged.
    """
    for opened, first, last in _opened(cluster, topic, shard, (start, end)):
        yield from opened.rows(first, last)


def archived_split_entries(
    cluster: Cluster,
    topic: str,
    shard: int,
    start: int,
    end: int,
) -> Iterator[bytes]:
    """The control batches of splits in a range of a table's archive, whole batches as they stood in the log."""
    from antiphon.records.batch import iter_batches

    for opened, first, last in _opened(cluster, topic, shard, (start, end)):
        for header, batch in iter_batches(opened.split_entries()):
            if first <= header.base_offset < last:
                yield bytes(batch)


def _opened(
    cluster: Cluster, topic: str, shard: int, span: tuple[int, int]
) -> Iterator[tuple[OpenFile, int, int]]:
    """The files that hold a range, one after the other, each with the part of the range that is its own."""
    at, end = span
    if at >= end:
        return
    meta = topic_named(cluster, topic)
    files = Catalog(cluster).of_shard(meta, shard)
    while at < end:
        file = holder(files, at)
        if file is None:
            raise DataLossError(not_archived(topic, shard, at, files, end))
        last = min(end, file.end)
        with OpenFile(file) as opened:
            yield opened, at, last
        at = last


def refuse_unfit(topic: TopicMeta) -> None:
    """InvalidRequestError for what cannot be archived."""
    if topic.internal:
        raise InvalidRequestError(f"{topic.name!r} is the cluster's own, and is not archived")
    if topic.is_compacted:
        raise InvalidRequestError(
            f"{topic.name!r} is compacted: its old records are the newest of their keys, and belong in the log"
        )
    if topic.config.get("writers") == "multi":
        raise InvalidRequestError(
            f"{topic.name!r} is written by every replica: each has an order of its own, so there is no one log to archive"
        )
