"""How a member is given records of one share-partition: what is read of the log, and what of that is the member's."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from antiphon.coordination.share_terms import Acquired, LogBatch
from antiphon.errors import OffsetOutOfRangeError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.share_partitions import Share, SharePartitions, now_ms
from antiphon.model.results import COMMITTED, FetchResult
from antiphon.records.batch import BatchHeader, Buffer, iter_batches

READS_MAX: Final = 8  # of one share-partition for one answer, while they give nothing
UNCOMMITTED: Final = "read_uncommitted"


class Wanted(NamedTuple):
    """What may be given. `whole`: the first batch, however large it is. `strict`: never more than `records`."""

    member: str
    records: int
    size_bytes: int
    batch_size: int
    strict: bool
    whole: bool


class Given(NamedTuple):
    """What a member was given: batches that have it, among other things. `lacks_room`: there was more than fits."""

    acquired: Sequence[Acquired] = ()
    batches: Sequence[Buffer] = ()
    size_bytes: int = 0
    lacks_room: bool = False


NOTHING: Final = Given()


def isolation_of(share: Share) -> str:
    """How far the group reads."""
    return COMMITTED if share.settings.committed_only else UNCOMMITTED


async def give(gateway: Gateway, shares: SharePartitions, share: Share, wanted: Wanted) -> Given:
    """Acquire what there is. Raises what the gateway's fetch raises."""
    for _ in range(READS_MAX):
        share.machine.tick(now_ms())
        at = share.machine.next_offset()
        if at is None or not shares.has_room:
            return NOTHING
        try:
            found = await gateway.fetch(
                share.shard_id, at, wanted.size_bytes, isolation_of(share), at_least_one=wanted.whole
            )
        except OffsetOutOfRangeError as error:
            if at >= int(error.details["start"]):
                return NOTHING  # this leader has not heard yet how far the log is committed
            share.machine.trim(int(error.details["start"]))
            shares.changed(share)
            continue
        if share.gone is not None:
            raise share.gone
        share.machine.trim(found.log_start)
        if not found.batches:
            end = found.stable_end if share.settings.committed_only else found.high_watermark
            return Given(lacks_room=at < end)
        given = _acquired(share, at, found, wanted)
        shares.changed(share)
        if given.acquired:
            return given
    return NOTHING


def _acquired(share: Share, at: int, found: FetchResult, wanted: Wanted) -> Given:
    log: list[LogBatch] = []
    buffers: list[Buffer] = []
    for buffer in found.batches:
        for header, data in iter_batches(buffer):
            visible = not header.is_control and not _is_aborted(header, found)
            log.append(LogBatch(header.base_offset, header.next_offset, visible))
            buffers.append(data)
    acquired = share.machine.acquire(now_ms(), wanted.member, at, log, wanted.records, strict=wanted.strict)
    kept = [buffer for batch, buffer in zip(log, buffers, strict=True) if _has(batch, acquired)]
    return Given(_cut(acquired, wanted.batch_size), kept, sum(map(len, kept)))


def _is_aborted(header: BatchHeader, found: FetchResult) -> bool:
    return header.is_transactional and any(
        producer == header.producer_id and first <= header.base_offset < marker
        for producer, first, marker in found.aborted
    )


def _has(batch: LogBatch, acquired: Sequence[Acquired]) -> bool:
    return any(each.first < batch.end and batch.first < each.end for each in acquired)


def _cut(acquired: Sequence[Acquired], batch_size: int) -> list[Acquired]:
    """In pieces of so many records at most, which is how the client takes and acknowledges them."""
    most = max(1, batch_size)
    return [
        each._replace(first=first, end=min(first + most, each.end))
        for each in acquired
        for first in range(each.first, each.end, most)
    ]
