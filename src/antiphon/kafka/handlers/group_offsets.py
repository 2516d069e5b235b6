"""OffsetCommit, OffsetFetch and OffsetDelete: what consumer groups have read."""

from collections.abc import Sequence
from typing import Final

from antiphon import system
from antiphon.coordination.offset_expiry import NEVER
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.refusals import code_of_refused
from antiphon.kafka.groups.subscription import CONSUMER, subscribed_topics
from antiphon.kafka.handlers.refusals import RefusedError, alike, coordinator_errors
from antiphon.kafka.handlers.rights import check, may, sees
from antiphon.kafka.messages import groups as m
from antiphon.kafka.messages.shared import PartitionCode, PartitionsOfTopic, TopicCodes
from antiphon.kafka.messages.transactions import TxnOffsetCommitPartition, TxnOffsetCommitTopic
from antiphon.model.access import Operation, Resource
from antiphon.model.metadata import TopicMeta
from antiphon.security.authorizer import Rights
from antiphon.transactions.group_offsets import Committed, GroupOffsets, OffsetAt
from antiphon.transactions.pending_offsets import PendingOffsets

METADATA_BYTES_MAX: Final = 4096
FIRST_MEMBER_EPOCH: Final = 9  # version of OffsetCommit from which its generation may be a member epoch

AnyCommitTopic = m.CommitTopic | TxnOffsetCommitTopic
AnyCommitPartition = m.CommitPartition | TxnOffsetCommitPartition
_OffsetsByTopic = list[tuple[str, list[tuple[int, Committed | None]]]]


class GroupOffsetsHandler:
    """Offsets are kept where the group's coordinator is."""

    def __init__(
        self,
        gateway: Gateway,
        coordinator: GroupCoordinator,
        offsets: GroupOffsets,
        pending: PendingOffsets,
    ) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._offsets = offsets
        self._pending = pending

    async def commit(self, request: m.OffsetCommitRequest, context: RequestContext) -> m.OffsetCommitResponse:
        """OffsetCommit: durable when it is answered."""
        try:
            await self._coordinator.ready(request.group_id)
            error = self._coordinator.check_commit(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
            )
            if context.version < FIRST_MEMBER_EPOCH and self._has_epoch(request.group_id, request.member_id):
                error = code.UNSUPPORTED_VERSION
        except AntiphonError as refused:
            error = code.coordinator_code_of(refused)
        rights = context.rights
        if not rights.may(Operation.READ, Resource.GROUP, request.group_id):
            error = code.GROUP_AUTHORIZATION_FAILED
        outcomes, offsets = self.checked(request.topics, error, rights, request.retention_time_ms)
        if offsets:
            try:
                await self._offsets.commit(request.group_id, offsets)
            except AntiphonError as refused:
                failed = code.coordinator_code_of(refused)
                for topic in outcomes:
                    for partition in topic.partitions:
                        partition.error_code = partition.error_code or failed
        return m.OffsetCommitResponse(topics=outcomes)

    def _has_epoch(self, group_id: str, member_id: str) -> bool:
        """Is this a member of the consumer protocol?"""
        group = self._coordinator.consumers.find(group_id)
        member = None if group is None else group.members.get(member_id)
        return member is not None and member.classic is None

    def checked(
        self, topics: Sequence[AnyCommitTopic], error: int, rights: Rights, retention_ms: int = NEVER
    ) -> tuple[list[TopicCodes], list[OffsetAt]]:
        """Outcomes as far as they are known, and the offsets that may be written. `error`: of the request as a whole;
        `retention_ms`: for how long the client wants them kept, if it says so.
        """
        now_ms = system.wall_ms()
        outcomes: list[TopicCodes] = []
        offsets: list[OffsetAt] = []
        for topic in topics:
            meta = self._topic(topic.name)
            denied = not error and not may(self._gateway, rights, Operation.READ, topic.name)
            refusal = code.TOPIC_AUTHORIZATION_FAILED if denied else error
            partitions = []
            for each in topic.partitions:
                problem = refusal or _offset_problem(meta, each)
                partitions.append(PartitionCode(partition_index=each.partition_index, error_code=problem))
                if not problem and meta is not None:
                    committed = Committed(
                        each.committed_offset,
                        each.committed_leader_epoch,
                        each.committed_metadata or "",
                        now_ms,
                        meta.topic_id,
                        retention_ms=max(retention_ms, NEVER),
                    )
                    offsets.append(OffsetAt(topic.name, each.partition_index, committed))
            outcomes.append(TopicCodes(name=topic.name, partitions=partitions))
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
                groups=[
                    await self._fetch_group(each, context.rights, request.require_stable)
                    async for each in context.turn_budget.each(request.groups)
                ]
            )
        asked = m.FetchOffsetsGroup(group_id=request.group_id, topics=request.topics)
        found = await self._fetch_group(asked, context.rights, request.require_stable)
        if found.error_code and context.version < 2:
            for topic in request.topics or []:
                found.topics.append(fetched_alike(topic, found.error_code))
        return m.OffsetFetchResponse(topics=found.topics, error_code=found.error_code)

    async def _fetch_refusal(self, asked: m.FetchOffsetsGroup) -> int:
        """May a member that names itself, and its epoch, fetch offsets? Others may."""
        await self._coordinator.ready(asked.group_id)
        group = self._coordinator.consumers.find(asked.group_id)
        if group is None or (asked.member_id is None and asked.member_epoch < 0):
            return code.NONE
        return code_of_refused(group.check_offsets(asked.member_id or "", asked.member_epoch))

    async def _fetch_group(
        self, asked: m.FetchOffsetsGroup, rights: Rights, stable: bool
    ) -> m.FetchedOffsetsGroup:
        try:
            check(rights, Operation.DESCRIBE, Resource.GROUP, asked.group_id)
            with coordinator_errors():
                topics = await self._fetch_topics(asked, rights, stable)
        except RefusedError as refused:
            return m.FetchedOffsetsGroup(group_id=asked.group_id, error_code=refused.error_code)
        return m.FetchedOffsetsGroup(group_id=asked.group_id, topics=topics)

    async def _fetch_topics(
        self, asked: m.FetchOffsetsGroup, rights: Rights, stable: bool
    ) -> list[m.FetchedOffsetsTopic]:
        group_id, topics = asked.group_id, asked.topics
        refused_as = await self._fetch_refusal(asked)
        if refused_as:
            raise RefusedError(refused_as)
        # Asked first: what is not pending any more by now is among the offsets that are read next.
        unstable = await self._pending.unstable(group_id) if stable else set()
        denied: list[PartitionsOfTopic] = []
        if topics is None:
            everything = await self._fetch_all(group_id)
            by_topic = [one for one in everything if sees(self._gateway, rights, one[0])]
        else:
            allowed = {
                topic.name: may(self._gateway, rights, Operation.DESCRIBE, topic.name) for topic in topics
            }
            denied = [topic for topic in topics if not allowed[topic.name]]
            by_topic = await self._fetch_some(group_id, [one for one in topics if allowed[one.name]])
        found = [
            m.FetchedOffsetsTopic(
                name=name, partitions=[_fetched(name, *each, unstable) for each in partitions]
            )
            for name, partitions in by_topic
        ]
        return found + [fetched_alike(topic, code.TOPIC_AUTHORIZATION_FAILED) for topic in denied]

    async def _fetch_all(self, group_id: str) -> _OffsetsByTopic:
        by_topic: dict[str, list[tuple[int, Committed | None]]] = {}
        for at in await self._offsets.fetch_all(group_id):
            by_topic.setdefault(at.topic, []).append((at.partition, at.committed))
        return list(by_topic.items())

    async def _fetch_some(self, group_id: str, topics: list[PartitionsOfTopic]) -> _OffsetsByTopic:
        flat = [(topic.name, index) for topic in topics for index in topic.partitions]
        found = iter(await self._offsets.fetch(group_id, flat))
        return [(topic.name, [(index, next(found)) for index in topic.partitions]) for topic in topics]

    async def delete(self, request: m.OffsetDeleteRequest, context: RequestContext) -> m.OffsetDeleteResponse:
        """OffsetDelete: forget offsets that no member of the group reads on from."""
        rights = context.rights
        check(rights, Operation.DELETE, Resource.GROUP, request.group_id)
        with coordinator_errors():
            read = await self._read_by(request.group_id)
            refusals = {
                topic.name: self._delete_refusal(topic.name, read, rights) for topic in request.topics
            }
            outcomes = {
                (topic.name, index): refusals[topic.name]
                for topic in request.topics
                for index in topic.partitions
            }
            await self._offsets.delete_some(
                request.group_id, [place for place, error in outcomes.items() if not error]
            )
        topics = alike(request.topics, code.NONE, outcomes)
        return m.OffsetDeleteResponse(error_code=code.NONE, topics=topics)

    async def _read_by(self, group_id: str) -> frozenset[str] | None:
        """The topics that members of the group read; None where nobody knows. Raises RefusedError."""
        try:
            await self._coordinator.ready(group_id)
        except UnknownTopicError:
            raise RefusedError(code.GROUP_ID_NOT_FOUND) from None
        group = self._coordinator.find(group_id)
        if group is not None:
            if group.protocol_type != CONSUMER:
                raise RefusedError(code.NON_EMPTY_GROUP)
            return subscribed_topics(group.members.values(), group.protocol_name)
        consumers = self._coordinator.consumers.find(group_id)
        return frozenset() if consumers is None else consumers.subscribed

    def _delete_refusal(self, topic: str, read: frozenset[str] | None, rights: Rights) -> int:
        """`read`: as `_read_by` says it."""
        if not may(self._gateway, rights, Operation.READ, topic):
            return code.TOPIC_AUTHORIZATION_FAILED
        return code.GROUP_SUBSCRIBED_TO_TOPIC if read is None or topic in read else code.NONE


def _offset_problem(topic: TopicMeta | None, each: AnyCommitPartition) -> int:
    if topic is None or not 0 <= each.partition_index < len(topic.shards):
        return code.UNKNOWN_TOPIC_OR_PARTITION
    if len((each.committed_metadata or "").encode()) > METADATA_BYTES_MAX:
        return code.OFFSET_METADATA_TOO_LARGE
    return code.NONE


def fetched_alike(topic: PartitionsOfTopic, error: int) -> m.FetchedOffsetsTopic:
    """The same error for all partitions of a topic."""
    partitions = [m.FetchedOffset(partition_index=index, error_code=error) for index in topic.partitions]
    return m.FetchedOffsetsTopic(name=topic.name, partitions=partitions)


def _fetched(
    topic: str, partition: int, committed: Committed | None, unstable: set[tuple[str, int]]
) -> m.FetchedOffset:
    if (topic, partition) in unstable:
        return m.FetchedOffset(partition_index=partition, error_code=code.UNSTABLE_OFFSET_COMMIT)
    if committed is None:
        return m.FetchedOffset(partition_index=partition)
    return m.FetchedOffset(
        partition_index=partition,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
