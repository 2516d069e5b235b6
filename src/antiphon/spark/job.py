"""Who writes: the identity that makes a Spark task's writes harmless to repeat.

Spark runs a micro-batch (an *epoch*) again, with the same rows, whenever it cannot know that it was finished: a task that
died is tried again, a query that stopped in the middle starts with its last epoch. So every task writes as a producer of its
own, whose id is made of the query and the partition, with the epoch as the producer's epoch and the row's place as the
sequence. The shard's leader then knows a repeated batch from a new one, whoever leads by then.

Producer epochs have 15 bits. Every 2^14 epochs a task changes its producer id, so that a shard which sees rows of a query
only now and then never mistakes a later epoch for an earlier one.
"""

import hashlib
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from antiphon.errors import InvalidRequestError

JOB_ID_BIT: Final = 1 << 62  # an epoch's batches are recognised when they come again
TABLE_ID_BIT: Final = 1 << 61  # to tables, besides: the sequence holds a checksum of the content
EPOCH_BITS: Final = 14


class Job(NamedTuple):
    """One task's part of an epoch. `query_id` is Spark's for streams, the transaction's for batch writes."""

    query_id: str
    epoch: int
    partition: int

    @property
    def producer_epoch(self) -> int:
        """0 .. 2^14-1."""
        return self.epoch & ((1 << EPOCH_BITS) - 1)

    def producer_id(self, *, table: bool) -> int:
        """The same for all attempts of the task; nobody else has it but by a collision of 61-bit hashes."""
        text = f"{self.query_id}/{self.partition}/{self.epoch >> EPOCH_BITS}"
        hashed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
        return JOB_ID_BIT | (TABLE_ID_BIT if table else 0) | (hashed & (TABLE_ID_BIT - 1))

    def __str__(self) -> str:
        return f"epoch {self.epoch} of {self.query_id}, partition {self.partition}"


class EpochTime(NamedTuple):
    """The time of day that an epoch's records carry; `epoch` None: it holds for whichever is planned."""

    epoch: int | None
    time_ms: int


def epoch_time(checkpoint: str | None) -> EpochTime:
    """When the epoch that is about to be written was planned, in a way that a replay finds the same time again.

    Spark writes an epoch's offsets, with the time, to `CHECKPOINT/offsets/N` before it runs it, and takes them from there
    when it runs it again. Without a `checkpointLocation` option a query cannot be continued, so that the present will do.
    """
    if checkpoint is None:
        return EpochTime(None, time.time_ns() // 1_000_000)
    newest = _newest_offsets_file(checkpoint)
    if newest is None:
        return EpochTime(-1, 0)
    epoch, text = newest
    try:
        stamp = json.loads(text.splitlines()[1])["batchTimestampMs"]
        return EpochTime(epoch, int(stamp))
    except (IndexError, KeyError, TypeError, ValueError):
        return EpochTime(-1, 0)


def plan_of(checkpoint: str | None, epoch: int) -> bytes:
    """A digest of what Spark noted about an epoch before it ran it: offsets, and the time; empty where it cannot be read.

    A repeat of the epoch finds the same there. An epoch of the same number that was planned anew, after the query went back
    to an old copy of its checkpoint, has another one.
    """
    if checkpoint is None:
        return b""
    text = _offsets_file(checkpoint, epoch)
    return b"" if text is None else hashlib.sha256(text).digest()[:16]


def record_time_ms(planned: EpochTime, job: Job) -> int:
    """The timestamp of records that bring none; raises InvalidRequestError where a replay could not find it again."""
    if planned.epoch is not None and planned.epoch != job.epoch:
        raise InvalidRequestError(
            f"the checkpoint's offsets of epoch {job.epoch} cannot be read here, so records have no time that a replay "
            'would repeat; add a column: df.withColumn("timestamp", current_timestamp()), which within a streaming query is '
            "the epoch's own time"
        )
    return planned.time_ms


def _newest_offsets_file(checkpoint: str) -> tuple[int, str] | None:
    """(epoch, text) of the newest file in the checkpoint's `offsets`; None: there is none that can be read."""
    from pyarrow import fs

    try:
        files, path = _file_system(checkpoint)
        found = files.get_file_info(fs.FileSelector(f"{path}/offsets", allow_not_found=True))
        epochs = [int(entry.base_name) for entry in found if entry.base_name.isdigit()]
    except (OSError, ValueError):
        return None
    if not epochs:
        return None
    text = _offsets_file(checkpoint, max(epochs))
    try:
        return None if text is None else (max(epochs), text.decode())
    except ValueError:
        return None


def _offsets_file(checkpoint: str, epoch: int) -> bytes | None:
    """What is in the checkpoint's `offsets` for an epoch; None where that cannot be read."""
    local = checkpoint.removeprefix("file://").removeprefix("file:")
    try:
        if "://" not in local:  # without Arrow, which takes a while to load in the process that commits
            return (Path(local) / "offsets" / str(epoch)).read_bytes()
        files, path = _file_system(checkpoint)
        with files.open_input_stream(f"{path}/offsets/{epoch}") as stream:
            text: bytes = stream.read()
            return text
    except (OSError, ValueError):
        return None


def _file_system(checkpoint: str) -> tuple[Any, str]:
    """The file system of a checkpoint, any that Arrow knows, and the path there; raises OSError, ValueError."""
    from pyarrow import ArrowException, fs

    if "://" in checkpoint:
        try:
            files, path = fs.FileSystem.from_uri(checkpoint)
        except ArrowException as error:  # a kind that Arrow was built without
            raise OSError(f"{checkpoint} cannot be read: {error}") from error
        return files, path
    return fs.LocalFileSystem(), str(Path(checkpoint.removeprefix("file:")).absolute())
