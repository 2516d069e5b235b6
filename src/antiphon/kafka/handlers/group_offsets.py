"""OffsetCommit, OffsetFetch and OffsetDelete: what consumer groups have read."""

from typing import Final

from antiphon import system
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.offsets import Committed, GroupOffsets, OffsetAt
from antiphon.kafka.messages import groups as m
from antiphon.model.metadata import TopicMeta

METADATA_BYTES_MAX: Final = 4096

_OffsetsByTopic = list[tuple[str, list[tuple[int, Committed | None]]]]


class GroupOffsetsHandler:
    """Offsets are kept where the group's coordinator is."""

    def __init__(self, gateway: Gateway, coordinator: GroupCoordinator, offsets: GroupOffsets) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._offsets = offsets

    async def commit(self, request: m.OffsetCommitRequest, _: RequestContext) -> m.OffsetCommitResponse:
        """OffsetCommit: durable when it is answered."""
        try:
            error = self._coordinator.check_commit(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
            )
        except AntiphonError as refused:
            error = code.coordinator_code_of(refused)
        outcomes, offsets = self._check_offsets(request, error)
        if offsets:
            try:
                await self._offsets.commit(request.group_id, offsets)
            except AntiphonError as refused:
                failed = code.coordinator_code_of(refused)
                for topic in outcomes:
                    for partition in topic.partitions:
                        partition.error_code = partition.error_code or failed
        return m.OffsetCommitResponse(topics=outcomes)

    def _check_offsets(
        self, request: m.OffsetCommitRequest, error: int
    ) -> tuple[list[m.CommittedTopic], list[OffsetAt]]:
        now_ms = system.wall_ms()
        outcomes: list[m.CommittedTopic] = []
        offsets: list[OffsetAt] = []
        for topic in request.topics:
            meta = self._topic(topic.name)
            partitions = []
            for each in topic.partitions:
                problem = error or _offset_problem(meta, each)
                partitions.append(
                    m.CommittedPartition(partition_index=each.partition_index, error_code=problem)
                )
                if not problem and meta is not None:
                    committed = Committed(
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                        now_ms,
                        meta.topic_id,
                    )
                    offsets.append(OffsetAt(topic.name, each.partition_index, committed))
            outcomes.append(m.CommittedTopic(name=topic.name, partitions=partitions))
        return outcomes, offsets

    def _topic(self, name: str) -> TopicMeta | None:
        try:
            return self._gateway.topic(name)
        except UnknownTopicError:
            return None

    async def fetch(self, request: m.OffsetFetchRequest, context: RequestContext) -> m.OffsetFetchResponse:
        """OffsetFetch."""
        if context.version >= 8:
            return m.OffsetFetchResponse(
                groups=[await self._fetch_group(each.group_id, each.topics) for each in request.groups]
            )
        found = await self._fetch_group(request.group_id, request.topics)
        if found.error_code and context.version < 2:
            for topic in request.topics or []:
                partitions = [
                    m.FetchedOffset(partition_index=index, error_code=found.error_code)
                    for index in topic.partition_indexes
                ]
                found.topics.append(m.FetchedOffsetsTopic(name=topic.name, partitions=partitions))
        return m.OffsetFetchResponse(topics=found.topics, error_code=found.error_code)

    async def _fetch_group(
        self, group_id: str, topics: list[m.FetchOffsetsTopic] | None
    ) -> m.FetchedOffsetsGroup:
        try:
            self._coordinator.home(group_id)
            if topics is None:
                by_topic = await self._fetch_all(group_id)
            else:
                by_topic = await self._fetch_some(group_id, topics)
        except AntiphonError as refused:
            return m.FetchedOffsetsGroup(
                group_id=group_id, topics=[], error_code=code.coordinator_code_of(refused)
            )
        return m.FetchedOffsetsGroup(
            group_id=group_id,
            topics=[
                m.FetchedOffsetsTopic(name=name, partitions=[_fetched(*each) for each in partitions])
                for name, partitions in by_topic
            ],
        )

    async def _fetch_all(self, group_id: str) -> _OffsetsByTopic:
        by_topic: dict[str, list[tuple[int, Committed | None]]] = {}
        for at in await self._offsets.fetch_all(group_id):
            by_topic.setdefault(at.topic, []).append((at.partition, at.committed))
        return list(by_topic.items())

    async def _fetch_some(self, group_id: str, topics: list[m.FetchOffsetsTopic]) -> _OffsetsByTopic:
        flat = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
        found = iter(await self._offsets.fetch(group_id, flat))
        return [(topic.name, [(index, next(found)) for index in topic.partition_indexes]) for topic in topics]

    async def delete(self, request: m.OffsetDeleteRequest, _: RequestContext) -> m.OffsetDeleteResponse:
        """OffsetDelete: forget offsets of a group that nobody is in."""
        flat = [(topic.name, each.partition_index) for topic in request.topics for each in topic.partitions]
        try:
            if self._coordinator.find(request.group_id) is not None:
                return m.OffsetDeleteResponse(error_code=code.NON_EMPTY_GROUP)
            await self._offsets.delete_some(request.group_id, flat)
        except UnknownTopicError:
            return m.OffsetDeleteResponse(error_code=code.GROUP_ID_NOT_FOUND)
        except AntiphonError as refused:
            return m.OffsetDeleteResponse(error_code=code.coordinator_code_of(refused))
        return m.OffsetDeleteResponse(
            error_code=code.NONE,
            topics=[
                m.CommittedTopic(
                    name=topic.name,
                    partitions=[
                        m.CommittedPartition(partition_index=each.partition_index, error_code=code.NONE)
                        for each in topic.partitions
                    ],
                )
                for topic in request.topics
            ],
        )


def _offset_problem(topic: TopicMeta | None, each: m.CommitPartition) -> int:
    if topic is None or not 0 <= each.partition_index < len(topic.shards):
        return code.UNKNOWN_TOPIC_OR_PARTITION
    if len((each.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return code.OFFSET_METADATA_TOO_LARGE
    return code.NONE


def _fetched(partition: int, committed: Committed | None) -> m.FetchedOffset:
    if committed is None:
        return m.FetchedOffset(partition_index=partition)
    return m.FetchedOffset(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
