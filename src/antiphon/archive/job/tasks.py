"""The part of archiving that runs in Spark's tasks: write a range of a log to one file, and prove that it is all there.

The rows come out of the batches by way of Arrow. Then the range is fetched once more, and taken apart by the decoder of
consumers; the digest of that is what the file, read back from where it was put, must have. The file's bytes are read back
too, against the checksum of what was written.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from antiphon.archive.digest import digest_of_batches
from antiphon.archive.files import Options, verify
from antiphon.archive.format import ArchivedFile
from antiphon.archive.job.plan import named, remove_file
from antiphon.archive.writer import GROUP_ROWS, FileWriter
from antiphon.client.addresses import Address
from antiphon.client.blocking import Cluster
from antiphon.errors import AntiphonError, ArchiveError, CorruptBatchError, OffsetOutOfRangeError
from antiphon.records.arrow import to_arrow
from antiphon.records.batch import Buffer, iter_batches, read_header
from antiphon.records.decode import BadBatch
from antiphon.records.split_entries import split_entry_of
from antiphon.records.unreadable import FAIL, Choice, each_batch, placed
from antiphon.spark.read.fetching import FetchPlan, fetch_range
from antiphon.spark.read.unreadable_batches import pass_over

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_BYTES: Final = 4 * 1024 * 1024
_HINT: Final = (
    ". Nothing of this file was archived, and the log keeps it. Another replica may have the batch whole: elect another "
    "leader, and see what `antiphon audit` finds. To archive without it, choose on_corrupt='skip', or "
    "on_corrupt=antiphon.dead_letters(TOPIC) (--on-corrupt, --dead-letters)"
)


class ArchiveTask(NamedTuple):
    """One file to be written. `file.uri` is without its last part, which each attempt chooses."""

    servers: tuple[Address, ...]
    timeout_ms: int
    shard_id: int
    file: ArchivedFile
    options: Options | None
    on_corrupt: Choice = FAIL
    group_rows: int = GROUP_ROWS


def run_task(task: ArchiveTask) -> ArchivedFile | None:
    """Write and verify a file; returns its row for the catalog. What went wrong leaves no file, if that can be helped.

    None where the log was trimmed meanwhile: another run was first, and what is left to do is to be planned anew.
    """
    file = msgspec.structs.replace(task.file, uri=named(task.file.uri, uuid.uuid4().hex[:8]))
    try:
        with Cluster(task.servers, task.timeout_ms) as cluster:
            passed: dict[int, BadBatch] = {}
            while True:
                written = _write(task, cluster, file, passed)
                known = len(passed)
                proven = _prove(task, cluster, written, passed)
                if len(passed) == known:
                    break
                # Some batches cannot be read. Both ways must leave out the same, so that the proof means something.
            verify(proven, task.options)
            proven = _pass_over(task, cluster, proven, passed)
    except BaseException as error:
        with contextlib.suppress(
            Exception
        ):  # what went wrong before is what matters; a later run removes the file
            remove_file(file, task.options)
        if isinstance(error, OffsetOutOfRangeError) and error.details.get("start", -1) > task.file.start:
            return None
        if isinstance(error, OSError) and not isinstance(error, AntiphonError):
            raise ArchiveError(f"{file.uri} could not be written: {error}", uri=file.uri) from error
        raise
    return proven


def _write(
    task: ArchiveTask, cluster: Cluster, file: ArchivedFile, passed: dict[int, BadBatch]
) -> ArchivedFile:
    """Write the file without the batches in `passed`; those that cannot be read are entered there."""
    one_by_one = bool(passed)
    with FileWriter(file, task.options, task.group_rows) as writer:
        for batches in _fetched(task, cluster):
            for rows in _rows(task, batches, passed, one_by_one=one_by_one):
                writer.add(rows)
            writer.add_split_entries(_split_entries(batches, file))
        return writer.finish(file.controls, file.digest)


def _rows(
    task: ArchiveTask, batches: list[memoryview], passed: dict[int, BadBatch], *, one_by_one: bool
) -> "Iterator[pa.RecordBatch]":
    """The rows of batches at once, or batch by batch where one of them is not to be in the file."""
    file = task.file

    def decode(some: Sequence[Buffer]) -> "pa.RecordBatch":
        return to_arrow(
            some, start=file.start, end=file.end, topic=file.topic, partition=file.shard, include_headers=True
        )

    def decode_one(batch: Buffer) -> "pa.RecordBatch | None":
        return None if read_header(batch, 0).base_offset in passed else decode([batch])

    if not one_by_one:
        try:
            yield decode(batches)
            return
        except CorruptBatchError:
            pass
    for buffer in batches:
        for found in each_batch(buffer, decode_one):
            if isinstance(found, BadBatch):
                if task.on_corrupt == FAIL:
                    raise placed(file.topic, file.shard, found.offset, found.error, _HINT) from found.error
                passed[found.offset] = found
            elif found is not None:
                yield found


def _prove(
    task: ArchiveTask, cluster: Cluster, file: ArchivedFile, passed: dict[int, BadBatch]
) -> ArchivedFile:
    """The file with the digest and the counts that the log has, by another way than that by which it was written.

    Where that way meets batches that it cannot read, they are in `passed` then, and the file is to be written again.
    """
    aborted: list[int] = []  # offsets of aborted transactions, which are no rows either
    before = len(passed)
    batches = (batch for chunk in _fetched(task, cluster, aborted.append) for batch in chunk)
    digest, rows, controls = digest_of_batches(batches, file.start, file.end, passed)
    if len(passed) > before:
        bad = list(passed.values())[before]
        if task.on_corrupt == FAIL:
            raise placed(file.topic, file.shard, bad.offset, bad.error, _HINT) from bad.error
        return file
    controls += sum(aborted)
    if rows != file.rows or rows + controls != file.end - file.start:
        raise ArchiveError(
            f"the log has {rows} records and {controls} other entries in {file.name}, {file.rows} records were written: "
            "nothing was archived of it"
        )
    return msgspec.structs.replace(file, digest=digest, controls=controls)


def _pass_over(
    task: ArchiveTask, cluster: Cluster, file: ArchivedFile, passed: dict[int, BadBatch]
) -> ArchivedFile:
    """Tell of the batches that begin in this file and are not in it, and keep them as was chosen, before the file counts."""
    begun = [bad for at, bad in sorted(passed.items()) if at >= file.start]
    for bad in begun:
        pass_over(cluster, (file.topic, file.shard), bad, task.on_corrupt)
    return msgspec.structs.replace(file, unreadable=len(begun))


def _fetched(
    task: ArchiveTask, cluster: Cluster, left_out: Callable[[int], None] = lambda _count: None
) -> Iterator[list[memoryview]]:
    plan = FetchPlan(
        shard_id=task.shard_id,
        start=task.file.start,
        end=task.file.end,
        max_bytes=FETCH_BYTES,
        isolation="committed",
        log_start_moves=False,
    )
    return fetch_range(cluster, plan, task.timeout_ms, left_out)


def _split_entries(batches: list[memoryview], file: ArchivedFile) -> Iterator[bytes]:
    for buffer in batches:
        for header, batch in iter_batches(buffer):
            if header.is_control and file.start <= header.base_offset < file.end and split_entry_of(batch):
                yield bytes(batch)
