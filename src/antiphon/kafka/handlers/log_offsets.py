"""ListOffsets and OffsetForLeaderEpoch."""

from typing import Final

from antiphon.errors import AntiphonError, NotReadyError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.archived.reader import ArchiveReader
from antiphon.kafka.handlers.fetch import ISOLATIONS, epoch_mismatch
from antiphon.kafka.handlers.rights import may
from antiphon.kafka.messages import offsets as m
from antiphon.kafka.metadata_cache import MetadataCache
from antiphon.model.access import Operation
from antiphon.model.metadata import ShardMeta
from antiphon.model.results import OffsetResult
from antiphon.security.authorizer import Rights

LATEST: Final = -1
EARLIEST: Final = -2
EARLIEST_LOCAL: Final = -4  # tiered storage's "earliest on the broker's own disk"
LATEST_TIERED: Final = -5  # the last offset that is elsewhere
UNKNOWN: Final = -1
EPOCH_MAX: Final = (1 << 31) - 1
FIRST_OFFSET_NOT_AVAILABLE: Final = 5


class LogOffsetsHandler:
    """Answers about positions in shards that this node leads."""

    def __init__(self, gateway: Gateway, cache: MetadataCache, archive: ArchiveReader) -> None:
        self._gateway = gateway
        self._cache = cache
        self._archive = archive

    def _shard(self, topic: str, index: int) -> ShardMeta | None:
        try:
            return self._cache.shard_at(self._gateway.topic(topic), index)
        except UnknownTopicError:
            return None

    async def list_offsets(
        self, request: m.ListOffsetsRequest, context: RequestContext
    ) -> m.ListOffsetsResponse:
        """Offsets by timestamp or by name."""
        topics, budget = [], context.turn_budget
        isolation = ISOLATIONS[1 if request.isolation_level else 0]
        async for topic in budget.each(request.topics):
            allowed = may(self._gateway, context.rights, Operation.DESCRIBE, topic.name)
            found = [
                await self._list_one(topic.name, wanted, context, isolation)
                if allowed
                else m.ListedOffset(
                    partition_index=wanted.partition_index, error_code=code.TOPIC_AUTHORIZATION_FAILED
                )
                async for wanted in budget.each(topic.partitions)
            ]
            topics.append(m.ListedOffsetsTopic(name=topic.name, partitions=found))
        return m.ListOffsetsResponse(topics=topics)

    async def _list_one(
        self, topic: str, wanted: m.ListOffsetsPartition, context: RequestContext, isolation: str
    ) -> m.ListedOffset:
        index = wanted.partition_index
        shard = self._shard(topic, index)
        if shard is None:
            return m.ListedOffset(partition_index=index, error_code=code.UNKNOWN_TOPIC_OR_PARTITION)
        if wanted.timestamp < LATEST_TIERED:
            return m.ListedOffset(partition_index=index, error_code=code.INVALID_REQUEST)
        timestamp = EARLIEST if wanted.timestamp in {EARLIEST_LOCAL, LATEST_TIERED} else wanted.timestamp
        try:
            found = self._gateway.list_offset(shard.shard_id, timestamp, isolation)
        except NotReadyError:
            # The new leader's high watermark may still be behind what consumers have seen (KIP-207).
            late = context.version >= FIRST_OFFSET_NOT_AVAILABLE
            error = code.OFFSET_NOT_AVAILABLE if late else code.LEADER_NOT_AVAILABLE
            return m.ListedOffset(partition_index=index, error_code=error)
        except AntiphonError as error:
            return m.ListedOffset(partition_index=index, error_code=code.code_of(error))
        mismatch = epoch_mismatch(wanted.current_leader_epoch, found.term)
        if mismatch:
            return m.ListedOffset(partition_index=index, error_code=mismatch)
        try:
            archived = await self._archived(topic, index, wanted.timestamp, found, context.client)
        except AntiphonError as error:
            return m.ListedOffset(partition_index=index, error_code=code.code_of(error))
        if archived is not None:
            offset, time_ms = archived
            return m.ListedOffset(
                partition_index=index, error_code=code.NONE, timestamp=time_ms, offset=offset
            )
        if wanted.timestamp == LATEST_TIERED:
            return m.ListedOffset(partition_index=index, error_code=code.NONE, leader_epoch=UNKNOWN)
        by_name = wanted.timestamp in {LATEST, EARLIEST, EARLIEST_LOCAL}
        return m.ListedOffset(
            partition_index=index,
            error_code=code.NONE,
            timestamp=UNKNOWN if by_name else found.timestamp_ms,
            offset=found.offset,
            leader_epoch=found.term if found.offset >= 0 else UNKNOWN,
        )

    async def _archived(
        self, topic: str, index: int, timestamp: int, found: OffsetResult, client: object
    ) -> tuple[int, int] | None:
        """(offset, time in ms or -1) where the archive has what is asked for; None: what was found in the log counts."""
        if (timestamp not in {EARLIEST, LATEST_TIERED} and timestamp < 0) or not self._archive.serves():
            return None
        meta, log_start = self._gateway.topic(topic), found.log_start
        if timestamp == LATEST_TIERED:
            last = await self._archive.last_offset(meta, index)
            return None if last < 0 else (last, UNKNOWN)
        start = await self._archive.start(meta, index, log_start, found.deleted_before)
        if start >= log_start:
            return None
        if timestamp == EARLIEST:
            return start, UNKNOWN
        return await self._archive.offset_at(meta, index, timestamp, start, log_start, client=client)

    async def offset_for_leader_epoch(
        self, request: m.OffsetForLeaderEpochRequest, context: RequestContext
    ) -> m.OffsetForLeaderEpochResponse:
        """Where leader epochs end: how a consumer finds out that the log it read was cut (KIP-320)."""
        budget = context.turn_budget
        return m.OffsetForLeaderEpochResponse(
            topics=[
                m.EpochEndTopic(
                    topic=topic.topic,
                    partitions=[
                        self._end_of_epoch(topic.topic, wanted, context.rights)
                        async for wanted in budget.each(topic.partitions)
                    ],
                )
                async for topic in budget.each(request.topics)
            ]
        )

    def _end_of_epoch(self, topic: str, wanted: m.EpochPartition, rights: Rights) -> m.EpochEnd:
        def answer(error: int, epoch: int = UNKNOWN, end: int = UNKNOWN) -> m.EpochEnd:
            return m.EpochEnd(
                partition=wanted.partition, error_code=error, leader_epoch=epoch, end_offset=end
            )

        if not may(self._gateway, rights, Operation.DESCRIBE, topic):
            return answer(code.TOPIC_AUTHORIZATION_FAILED)
        shard = self._shard(topic, wanted.partition)
        if shard is None:
            return answer(code.UNKNOWN_TOPIC_OR_PARTITION)
        try:
            newest, _ = self._gateway.end_of_term(shard.shard_id, EPOCH_MAX)
            term, end = self._gateway.end_of_term(shard.shard_id, max(0, wanted.leader_epoch))
        except AntiphonError as error:
            return answer(code.code_of(error))
        newest = max(newest, shard.term)  # a log without entries knows of no term
        mismatch = epoch_mismatch(wanted.current_leader_epoch, newest)
        if mismatch:
            return answer(mismatch)
        if not 0 <= wanted.leader_epoch <= newest:
            return answer(code.NONE)
        # Where retention removed the epoch, everything that is left is newer: it ended where the log starts.
        return answer(code.NONE, term if term > 0 else wanted.leader_epoch, end)
