"""Reads a range of one shard's offsets as Arrow record batches, wherever its records are: in the log or in the archive.

Where the log's start has moved up is found out by reading, not by planning: records may be archived and trimmed at any
moment between the two. A range that begins before the log's start is read from the archive up to there.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.archive import catalog as archived
from antiphon.client.blocking import Cluster
from antiphon.errors import CorruptBatchError, DataLossError, OffsetOutOfRangeError
from antiphon.records.batch import iter_batches
from antiphon.records.compression import DECOMPRESSED_BYTES_MAX
from antiphon.records.decode import BadBatch
from antiphon.records.unreadable import FAIL, SKIP, each_batch, placed
from antiphon.spark.read import columns
from antiphon.spark.read.fetching import FetchPlan, fetch_range
from antiphon.spark.read.options import ReadOptions
from antiphon.spark.read.replica_reads import ReplicaReads
from antiphon.spark.read.unreadable_batches import pass_over

if TYPE_CHECKING:
    import pyarrow as pa


_HINT: Final = (
    ". Another replica may have it whole: elect another leader or read with readFrom=follower, and see what "
    "`antiphon audit` finds. To go on without it, set onCorrupt=skip, or onCorrupt=deadletter and deadLetters"
)


class Place(NamedTuple):
    """One shard of a topic or table."""

    topic: str
    shard: int
    shard_id: int


class Range(NamedTuple):
    """Offsets [start, end) of one shard."""

    place: Place
    start: int
    end: int


class Decoder(NamedTuple):
    """How rows are made of batches of the log (batches, start, end, (topic, shard)), and of archived rows."""

    from_log: "Callable[[Sequence[memoryview], int, int, tuple[str, int]], pa.RecordBatch]"
    from_archive: "Callable[[pa.RecordBatch], pa.RecordBatch]"


def log_decoder(schema: "pa.Schema", limit_bytes: int = DECOMPRESSED_BYTES_MAX) -> Decoder:
    """Records of a topic; `schema` is any choice of their columns. A batch unpacks to at most `limit_bytes`."""
    return Decoder(
        lambda batches, start, end, place: columns.log_rows(batches, start, end, place, schema, limit_bytes),
        lambda found: columns.fit_log_rows(found, schema),
    )


def change_decoder(schema: "pa.Schema") -> Decoder:
    """Changes of a table; `schema` is any choice of their columns."""
    return Decoder(
        lambda batches, start, end, place: columns.change_rows(batches, start, end, place, schema),
        lambda found: columns.fit_change_rows(found, schema),
    )


def connect(options: ReadOptions) -> Cluster:
    """A task's connections."""
    return Cluster(options.target.servers, options.target.timeout_ms, options.retries)


def read_range(
    cluster: Cluster, options: ReadOptions, wanted: Range, decoder: Decoder
) -> "Iterator[pa.RecordBatch]":
    """The rows of a range, in the order of their offsets; batches may be empty.

    Raises DataLossError, CorruptBatchError, TimedOutError and what `Cluster.call` raises.
    """
    place, at, end = wanted
    source = ReplicaReads(cluster, place.shard_id) if options.read_from == "follower" else cluster
    while at < end:
        plan = FetchPlan(
            place.shard_id, at, end, options.fetch_bytes, options.isolation, log_start_moves=False
        )
        seen: Sequence[memoryview] = ()
        try:
            for batches in fetch_range(source, plan, options.target.timeout_ms):
                yield from _decoded(cluster, options, batches, wanted._replace(start=at), decoder)
                seen = batches
            return
        except OffsetOutOfRangeError as error:
            at = _end_of(seen, at)
            log_start, deleted = int(error.details.get("start", -1)), int(error.details.get("deleted", 0))
            if log_start <= at:
                raise DataLossError(
                    f"{place.topic} shard {place.shard}: {error.message}; offsets {at} to {end} were to be read"
                ) from error
        except CorruptBatchError as error:
            raise _named(error, place, f"at or after offset {_end_of(seen, at)}") from error
        rest = wanted._replace(start=at)
        at = yield from _read_archive(cluster, options, rest, (log_start, deleted), decoder)


def _decoded(
    cluster: Cluster, options: ReadOptions, batches: Sequence[memoryview], wanted: Range, decoder: Decoder
) -> "Iterator[pa.RecordBatch]":
    """The rows of batches at once, or batch by batch where one of them cannot be read."""
    place, at, end = wanted
    shard = (place.topic, place.shard)
    try:
        yield decoder.from_log(batches, at, end, shard)
        return
    except CorruptBatchError as error:
        problem = error
    for piece in batches:
        for found in each_batch(piece, lambda batch: decoder.from_log([memoryview(batch)], at, end, shard)):
            if not isinstance(found, BadBatch):
                yield found
            elif options.on_corrupt == FAIL:
                raise placed(*shard, found.offset, found.error, _HINT) from problem
            else:
                pass_over(cluster, shard, found, options.on_corrupt if found.offset >= at else SKIP)


def _end_of(batches: Sequence[memoryview], start: int) -> int:
    """The offset after the last of these batches; `start` where there are none."""
    end = start
    for header, _ in iter_batches(batches[-1]) if batches else ():
        end = max(end, header.next_offset)
    return end


def _named(error: CorruptBatchError, place: Place, where: str) -> CorruptBatchError:
    if "topic" in error.details:
        return error
    return CorruptBatchError(
        f"{place.topic} shard {place.shard}, {where}: {error.message}{_HINT}",
        topic=place.topic,
        shard=place.shard,
    )


def _read_archive(
    cluster: Cluster, options: ReadOptions, wanted: Range, begins: tuple[int, int], decoder: Decoder
) -> "Generator[pa.RecordBatch, None, int]":
    """Rows before the log's start; returns where to go on. `begins`: that start, and before where records were deleted."""
    place, start, _ = wanted
    log_start, deleted = begins
    end = min(wanted.end, log_start)
    first = min(end, archived.archived_start(cluster, place.topic, place.shard, log_start, deleted))
    if first > start:
        if options.fail_on_data_loss:
            raise DataLossError(
                f"{place.topic} shard {place.shard} begins at offset {first} now, {start} was to be read: retention, or a "
                "deletion, removed the records in between. To go on with what is there, set failOnDataLoss=false"
            )
        start = first
    for found in archived.archived_rows(cluster, place.topic, place.shard, start, end):
        yield decoder.from_archive(found)
    return end
