"""Commits an epoch that tasks have staged: decides what belongs to it, then appends that to the target.

Run by the driver, and by the cluster where a driver died in between (`housekeeper`). Any number of them may apply
one epoch at once: what one has appended already, the target's leaders recognise when it comes from another, and whoever
comes late is refused, once a later epoch has begun, which it never does before this one is applied.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.client.addresses import Address
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import (
    UNDECODABLE,
    CorruptBatchError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    ReplayConflictError,
    UnavailableError,
    UnknownTopicError,
)
from antiphon.model.metadata import TopicMeta
from antiphon.model.requests import AppendBatch, Appended
from antiphon.spark.job import Job
from antiphon.spark.pipelined import Pipeline
from antiphon.spark.shard_writers import TableRequest, TopicWriters
from antiphon.spark.staging.blobs import (
    STAGED_TOPIC,
    BlobHead,
    Wanted,
    encode_blob,
    ensure_internal,
    read_blobs,
)
from antiphon.spark.staging.deletes import EpochTableWriters
from antiphon.spark.staging.epochs import (
    ROW_BYTES_MAX,
    Epoch,
    Epochs,
    Part,
    Places,
    Stored,
    blobs_of,
    now_ms,
)
from antiphon.spark.staging.task import INDEX_NUMBER

DECIDE_TRIES_MAX: Final = 20
WORKING_S: Final = 15.0  # while an epoch is applied, that is said so often
SPILLED_ATTEMPT: Final = bytes(16)
_REQUEST: Final = msgspec.msgpack.Decoder(TableRequest)
_PARTS: Final = msgspec.msgpack.Decoder(tuple[Part, ...])
_BLOBS: Final = msgspec.msgpack.Decoder(Places)


class Place(NamedTuple):
    """The cluster, and how long to wait for it."""

    servers: Sequence[Address]
    timeout_ms: int


def commit_epoch(place: Place, epoch: Epoch, *, must_be_stored: bool = False) -> Stored:
    """Make an epoch's rows part of the target, exactly once; returns what is stored of it.

    Where the epoch was decided before, by another run of it, what was stored then is what counts: `epoch` is ignored. With
    `must_be_stored` that has to be so: a task found it stored and did not stage its rows.

    Raises:
        ProducerFencedError: a later epoch is stored, or this one was stored by another plan: the query went back to an old
            copy of its checkpoint.
        CorruptBatchError, OffsetOutOfRangeError: what was staged is not there any more; nothing was written.
        AntiphonError: what the target's leaders refuse with, and TimedOutError: do it again.
    """
    with Cluster(place.servers, place.timeout_ms) as cluster:
        cluster.metadata()
        epochs = Epochs(cluster, ensure_internal(cluster, 1)[1])
        stored = _decided(place, cluster, epochs, epoch, must_be_stored=must_be_stored)
        if not stored.epoch.is_applied:
            finish_epoch(place, cluster, epochs, stored)
        return stored


def _decided(place: Place, cluster: Cluster, epochs: Epochs, epoch: Epoch, *, must_be_stored: bool) -> Stored:
    """The epoch as it is stored, by now."""
    claim: Epoch | None = None
    for _ in range(DECIDE_TRIES_MAX):
        before = epochs.newest(epoch.target_id, epoch.query)
        if before is not None and before.epoch.number >= epoch.number:
            _check_same(before.epoch, epoch)
            return before
        if must_be_stored:
            raise UnavailableError(
                f"{epoch} was stored when its tasks ran, and is not any more; run it again"
            )
        if before is not None and not before.epoch.is_applied:
            finish_epoch(place, cluster, epochs, before)
            continue
        if claim is None:
            _check_staged(epochs, epoch)
            claim = _spilled(cluster, epoch)
        stored = epochs.decide(claim, before)
        if stored is not None:
            return stored
    raise UnavailableError(f"{epoch} could not be decided: how many queries run under this name?")


def _check_same(stored: Epoch, epoch: Epoch) -> None:
    if stored.number > epoch.number:
        raise ProducerFencedError(
            f"{epoch} comes too late, epoch {stored.number} is written already. Either this driver is left over from before "
            "another one took over, or the query went back to an old copy of its checkpoint; go on with the newest "
            "checkpoint, or with a new one",
            epoch=epoch.number,
            current=stored.number,
        )
    if stored.plan and epoch.plan and stored.plan != epoch.plan:
        raise ProducerFencedError(
            f"{epoch} was written already, from other offsets: the query went back to an old copy of its checkpoint, and "
            "planned this epoch anew; go on with the newest checkpoint, or with a new one",
            epoch=epoch.number,
            current=stored.number,
        )


def _check_staged(epochs: Epochs, epoch: Epoch) -> None:
    """Raise OffsetOutOfRangeError unless everything staged is there."""
    starts = epochs.starts(sorted(epoch.oldest)) if epoch.oldest else {}
    for shard_id, oldest in epoch.oldest.items():
        if starts[shard_id] > oldest:
            raise OffsetOutOfRangeError(
                f"{epoch}: what was staged from offset {oldest} on in shard {shard_id} of {STAGED_TOPIC} was trimmed, the "
                f"log starts at {starts[shard_id]} now; run the epoch again",
                asked=oldest,
                start=starts[shard_id],
                end=-1,
            )


def _spilled(cluster: Cluster, epoch: Epoch) -> Epoch:
    """The epoch as a row of bounded size: where there are too many parts, they go into a blob."""
    if len(msgspec.msgpack.encode(epoch)) <= ROW_BYTES_MAX:
        return epoch
    shard_id = epoch.parts[0].shard_id
    data = msgspec.msgpack.encode(epoch.parts)
    batch = encode_blob(BlobHead(SPILLED_ATTEMPT, INDEX_NUMBER, ((0, len(data)),)), [data], now_ms())
    appended: Appended = cluster.call(ShardCall(shard_id, AppendBatch(shard_id, internal=True), batch)).body
    at = (shard_id, appended.base_offset, sum(len(part) for part in batch))
    return msgspec.structs.replace(epoch, parts=(), spilled=at)


# -- applying -----------------------------------------------------------------------------------------------------


def finish_epoch(place: Place, cluster: Cluster, epochs: Epochs, stored: Stored) -> None:
    """Apply a stored epoch and mark it. Harmless where others do the same at the same time."""
    epoch = stored.epoch
    last_said_s = time.monotonic()

    def working() -> None:
        nonlocal last_said_s
        if time.monotonic() - last_said_s > WORKING_S:
            last_said_s = time.monotonic()
            epochs.working(epoch.target_id, epoch.query)

    def check_open() -> None:
        if _is_over(epochs, epoch):
            raise ProducerFencedError(f"{epoch} was applied by somebody else")

    try:
        apply_epoch(place, cluster, epoch, Watch(working, check_open))
    except (ProducerFencedError, OffsetOutOfRangeError, CorruptBatchError):
        if _is_over(epochs, epoch):
            return  # another one applied it meanwhile, and later epochs came, or what was staged was trimmed
        raise
    except ReplayConflictError as error:
        raise ReplayConflictError(
            f"{epoch} was staged, but some of it had been written with protocol=direct before, with other rows: change the "
            f"protocol of a query only when its last epoch is complete ({error.message})",
            **error.details,
        ) from error
    if not epochs.applied(stored) and not _is_over(epochs, epoch):
        raise UnavailableError(f"{epoch} is applied, but could not be marked so; do it again")


def _is_over(epochs: Epochs, epoch: Epoch) -> bool:
    now = epochs.newest(epoch.target_id, epoch.query)
    return now is None or now.epoch.number > epoch.number or now.epoch.is_applied


class Watch(NamedTuple):
    """How whoever applies an epoch keeps in touch with the others.

    `working` is to be called now and then; `check_open` raises ProducerFencedError when there is nothing left to do.
    """

    working: Callable[[], None]
    check_open: Callable[[], None]


def apply_epoch(place: Place, cluster: Cluster, epoch: Epoch, watch: Watch) -> None:
    """Append an epoch's staged rows to its target."""
    with (
        Pipeline(place.servers, place.timeout_ms) as reader,
        Pipeline(place.servers, place.timeout_ms) as pipeline,
    ):
        target = target_of(cluster, epoch)
        pipeline.adopt(cluster)
        reader.adopt(cluster)
        write, finish = (
            _to_table(cluster, target, epoch, place, watch.check_open)
            if epoch.is_table
            else _to_topic(pipeline, target, epoch, place)
        )
        parts = _parts_of(reader, epoch)
        wanted = [Wanted(part.shard_id, part.attempt, blobs_of(part.blobs)) for part in parts]
        for at, blob in read_blobs(reader, wanted):
            for shard, data in blob.parts():
                write(parts[at].partition, shard, data)
            watch.working()
        finish()


def target_of(cluster: Cluster, epoch: Epoch) -> TopicMeta:
    """The topic or table that an epoch goes to; raises UnknownTopicError where it is not there any more."""
    target = cluster.topic(epoch.target, table=epoch.is_table, refresh=False)
    if target.topic_id != epoch.target_id:
        raise UnknownTopicError(
            f"{epoch} was written to a {'table' if epoch.is_table else 'topic'} {epoch.target!r} that was deleted; the one "
            "of that name is another one",
            name=epoch.target,
        )
    return target


_Write = Callable[[int, int, memoryview], None]  # partition, shard of the target, data


def _to_topic(
    pipeline: Pipeline, target: TopicMeta, epoch: Epoch, place: Place
) -> tuple[_Write, Callable[[], None]]:
    writers = TopicWriters(pipeline, target, place.timeout_ms)
    numbers: dict[tuple[int, int], int] = {}

    def write(partition: int, shard: int, data: memoryview) -> None:
        number = numbers.get((partition, shard), 0)
        numbers[partition, shard] = number + 1
        writers.write(Job(epoch.query, epoch.number, partition), shard, number, data)

    return write, writers.finish


def _to_table(
    cluster: Cluster, target: TopicMeta, epoch: Epoch, place: Place, check_open: Callable[[], None]
) -> tuple[_Write, Callable[[], None]]:
    job = Job(epoch.query, epoch.number, 0)
    writers = EpochTableWriters(cluster, target, job, place.timeout_ms, check_open)

    def write(partition: int, shard: int, data: memoryview) -> None:
        try:
            request = _REQUEST.decode(data)
        except UNDECODABLE as error:
            raise CorruptBatchError(f"what was staged for {target.name} is no request: {error}") from error
        writers.write_request(shard, request, Job(epoch.query, epoch.number, partition))

    return write, writers.finish


def _parts_of(cluster: Cluster, epoch: Epoch) -> list[Part]:
    """The parts, each with all its blobs."""
    parts = list(epoch.parts)
    if epoch.spilled is not None:
        shard_id, offset, size = epoch.spilled
        (value,) = _values(cluster, [Wanted(shard_id, SPILLED_ATTEMPT, blobs_of([(offset, size)]))])
        parts = decode_parts(value)
    indexed = [at for at, part in enumerate(parts) if part.index is not None]
    wanted = [
        Wanted(parts[at].shard_id, parts[at].attempt, blobs_of([parts[at].index or (0, 0)])) for at in indexed
    ]
    for at, value in zip(indexed, _values(cluster, wanted), strict=True):
        parts[at] = msgspec.structs.replace(parts[at], blobs=decode_blobs(value), index=None)
    return parts


def _values(cluster: Cluster, wanted: Sequence[Wanted]) -> Iterator[memoryview]:
    for _, blob in read_blobs(cluster, wanted):
        yield blob.value


def decode_parts(value: memoryview) -> list[Part]:
    """A list of parts that is too long for a row; raises CorruptBatchError."""
    return list(_decode(_PARTS, value))


def decode_blobs(value: memoryview) -> Places:
    """A list of blobs that is too long for its part; raises CorruptBatchError."""
    found: Places = _decode(_BLOBS, value)
    return found


def _decode(decoder: "msgspec.msgpack.Decoder[Any]", value: memoryview) -> Any:
    try:
        return decoder.decode(value)
    except UNDECODABLE as error:
        raise CorruptBatchError(f"a list in {STAGED_TOPIC} cannot be read: {error}") from error
