"""Records of a shard's log."""

from typing import Final

from antiphon.errors import UnknownShardError
from antiphon.http.api.answers import BadBatchInfo, HeaderInfo, RecordInfo, Records
from antiphon.http.api.asked import ReadRecords
from antiphon.http.api.call import Call, data
from antiphon.http.api.problems import AskedWronglyError
from antiphon.http.pages.asking import BEGINNING, topic_for
from antiphon.http.pages.log_pages import read_records
from antiphon.model.access import Operation
from antiphon.model.metadata import ShardMeta, TopicMeta
from antiphon.records.decode import Record

TOLD_BYTES_MAX: Final = (
    512 * 1024
)  # of one answer's keys, values and headers; JSON makes up to six times as many
HEADERS_MAX: Final = 100  # of a record
HEADER_NAME_MAX: Final = 1_024
LOOKED_BACK: Final = 2_000  # offsets, where a text is looked for and no place is named


def find_shard(topic: TopicMeta, index: int) -> ShardMeta:
    """A shard by its number. Raises UnknownShardError."""
    found = next((one for one in topic.shards if one.index == index), None)
    if found is None:
        raise UnknownShardError(
            f"{topic.name!r} has shards 0 to {len(topic.shards) - 1}, and no {index}", shard=index
        )
    return found


async def read_log(call: Call, asked: ReadRecords) -> Records:
    """Records of one shard: from an offset, a time, or the newest; with a text that they contain."""
    if asked.offset is not None and asked.timestamp_ms is not None:
        raise AskedWronglyError("give offset or timestamp_ms, not both", parameter="timestamp_ms")
    topic = topic_for(call.gateway, call.rights, asked.topic, Operation.READ)
    shard = find_shard(topic, asked.shard)
    first = await call.asker.offset_at(shard.shard_id, BEGINNING)
    end = first.high_watermark
    start = max(first.log_start, end - (LOOKED_BACK if asked.q else asked.limit))
    if asked.timestamp_ms is not None:
        found = await call.asker.offset_at(shard.shard_id, asked.timestamp_ms)
        start = found.offset if found.offset >= 0 else end
    elif asked.offset is not None:
        start = min(max(asked.offset, first.log_start), end)
    seen = await read_records(call.asker, shard.shard_id, start, end, asked.q, asked.limit)
    told, following = _fitting(seen.records, asked.max_bytes, seen.next_offset)
    piece = seen.piece
    return Records(
        topic=topic.name,
        shard=shard.index,
        items=told,
        unreadable=[BadBatchInfo(offset=one.offset, why=one.error.message) for one in seen.bad],
        start=start,
        next=following if following < end else None,
        log_start=first.log_start,
        high_watermark=end,
        by_node=None if piece is None else piece.by_node,
        is_stale=piece is not None and piece.is_stale,
    )


def _fitting(records: list[Record], max_bytes: int, following: int) -> tuple[list[RecordInfo], int]:
    """As many as fit into an answer, and where the next piece begins."""
    found: list[RecordInfo] = []
    size_bytes = 0
    for one in records:
        parts = [one.key, one.value, *(value for _, value in one.headers[:HEADERS_MAX])]
        most = min(max_bytes, TOLD_BYTES_MAX // len(parts))  # also of a record that is told alone
        size_bytes += sum(min(len(part), most) for part in parts if part is not None)
        if found and size_bytes > TOLD_BYTES_MAX:
            return found, one.offset
        headers = [
            HeaderInfo(name=name[:HEADER_NAME_MAX], value=None if value is None else data(value, most))
            for name, value in one.headers[:HEADERS_MAX]
        ]
        found.append(
            RecordInfo(
                offset=one.offset,
                timestamp_ms=one.timestamp_ms,
                key=None if one.key is None else data(one.key, most),
                value=None if one.value is None else data(one.value, most),
                headers=headers,
            )
        )
    return found, following
