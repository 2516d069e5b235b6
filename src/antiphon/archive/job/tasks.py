"""The part of archiving that runs in Spark's tasks: write a range of a log to one file, and prove that it is all there.

The rows come out of the batches by way of Arrow. Then the range is fetched once more, and taken apart by the decoder of
consumers; the digest of that is what the file, read back from where it was put, must have. The file's bytes are read back
too, against the checksum of what was written.
"""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from antiphon.archive.digest import digest_of_batches
from antiphon.archive.files import Options, verify
from antiphon.archive.format import ArchivedFile
from antiphon.archive.job.plan import named, remove_file
from antiphon.archive.writer import GROUP_ROWS, FileWriter
from antiphon.client.blocking import Cluster
from antiphon.client.blocking_link import Address
from antiphon.errors import AntiphonError, ArchiveError, OffsetOutOfRangeError
from antiphon.records.arrow import to_arrow
from antiphon.records.batch import iter_batches
from antiphon.records.split_entries import split_entry_of
from antiphon.spark.read.fetching import FetchPlan, fetch_range

FETCH_BYTES = 4 * 1024 * 1024


class ArchiveTask(NamedTuple):
    """One file to be written. `file.uri` is without its last part, which each attempt chooses."""

    servers: tuple[Address, ...]
    timeout_ms: int
    shard_id: int
    file: ArchivedFile
    options: Options | None
    group_rows: int = GROUP_ROWS


def run_task(task: ArchiveTask) -> ArchivedFile | None:
    """Write and verify a file; returns its row for the catalog. What went wrong leaves no file, if that can be helped.

    None where the log was trimmed meanwhile: another run was first, and what is left to do is to be planned anew.
    """
    file = msgspec.structs.replace(task.file, uri=named(task.file.uri, uuid.uuid4().hex[:8]))
    try:
        with Cluster(task.servers, task.timeout_ms) as cluster:
            written = _write(task, cluster, file)
            proven = _prove(task, cluster, written)
        verify(proven, task.options)
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


def _write(task: ArchiveTask, cluster: Cluster, file: ArchivedFile) -> ArchivedFile:
    with FileWriter(file, task.options, task.group_rows) as writer:
        for batches in _fetched(task, cluster):
            writer.add(
                to_arrow(
                    batches,
                    start=file.start,
                    end=file.end,
                    topic=file.topic,
                    partition=file.shard,
                    include_headers=True,
                )
            )
            writer.add_split_entries(_split_entries(batches, file))
        return writer.finish(file.controls, file.digest)


def _prove(task: ArchiveTask, cluster: Cluster, file: ArchivedFile) -> ArchivedFile:
    """The file with the digest and the counts that the log has, by another way than that by which it was written."""
    aborted: list[int] = []  # offsets of aborted transactions, which are no rows either
    batches = (batch for chunk in _fetched(task, cluster, aborted.append) for batch in chunk)
    digest, rows, controls = digest_of_batches(batches, file.start, file.end)
    controls += sum(aborted)
    if rows != file.rows or rows + controls != file.end - file.start:
        raise ArchiveError(
            f"the log has {rows} records and {controls} other entries in {file.name}, {file.rows} records were written: "
            "nothing was archived of it"
        )
    return msgspec.structs.replace(file, digest=digest, controls=controls)


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
