"""DescribeShareGroupOffsets, AlterShareGroupOffsets and DeleteShareGroupOffsets: where share groups are in topics."""

import asyncio
from contextlib import suppress
from typing import Final

from antiphon import system
from antiphon.coordination.share_terms import ShareRow
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.handlers.refusals import RefusedError, coordinator_errors, telling, told
from antiphon.kafka.handlers.rights import check, check_topic, may
from antiphon.kafka.messages import share_groups as m
from antiphon.kafka.messages.shared import PartitionOutcome
from antiphon.model.access import Operation, Resource
from antiphon.model.cluster import AskShareStates, PutShareState
from antiphon.model.internal import is_internal
from antiphon.model.metadata import Kind, ShardMeta, TopicMeta
from antiphon.model.requests import ListOffset, OffsetReply
from antiphon.security.authorizer import Rights
from antiphon.transactions.share_rows import encoded, place_of_key, state_of
from antiphon.transactions.share_states import ABSENT, ShareStateKeeper
from antiphon.transactions.told_groups import reached

ASK_S: Final = 3.0
AT_ONCE: Final = 64  # partitions that are asked for at a time
Wanted = list[tuple[str, list[int]]]


class ShareOffsetsHandler:
    """Reads and changes rows of groups that this node coordinates."""

    def __init__(self, gateway: Gateway, coordinator: GroupCoordinator, keeper: ShareStateKeeper) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._keeper = keeper

    # -- describing -------------------------------------------------------------------------------------------------

    async def describe(
        self, request: m.DescribeShareGroupOffsetsRequest, context: RequestContext
    ) -> m.DescribeShareGroupOffsetsResponse:
        """DescribeShareGroupOffsets."""
        groups = []
        for asked in request.groups:
            group = m.ShareOffsetsGroup(group_id=asked.group_id)
            groups.append(await told(group, self._describe(group, asked, context.rights)))
            await asyncio.sleep(0)  # others first
        return m.DescribeShareGroupOffsetsResponse(groups=groups)

    async def _describe(
        self, group: m.ShareOffsetsGroup, asked: m.ShareOffsetsGroupAsked, rights: Rights
    ) -> None:
        with coordinator_errors():
            _check(rights, Operation.DESCRIBE, asked.group_id)
            await self._known(asked.group_id)
            group.topics = await self._topics(asked, rights)

    async def _topics(self, asked: m.ShareOffsetsGroupAsked, rights: Rights) -> list[m.ShareOffsetsTopic]:
        shard_id, _ = self._coordinator.home(asked.group_id)
        rows: dict[tuple[bytes, int], ShareRow] = {}
        for found in await self._keeper.rows(shard_id, asked.group_id):
            try:
                rows[place_of_key(found.key)] = state_of(found.value or b"")
            except ValueError:
                continue  # whoever leads the partition tells of it
        topics = []
        for name, partitions in self._wanted(asked, rows, rights):
            try:
                topic = self._topic(rights, Operation.DESCRIBE, name)
            except RefusedError as refused:
                denied = [
                    m.ShareOffset(
                        partition_index=each, error_code=refused.error_code, error_message=refused.reason
                    )
                    for each in partitions
                ]
                topics.append(m.ShareOffsetsTopic(topic_name=name, partitions=denied))
                continue
            offsets: list[m.ShareOffset] = []
            for at in range(0, len(partitions), AT_ONCE):
                work = (
                    self._offset(topic, each, rows.get((topic.topic_id, each)))
                    for each in partitions[at : at + AT_ONCE]
                )
                offsets += await asyncio.gather(*work)
            topics.append(m.ShareOffsetsTopic(topic_name=name, topic_id=topic.topic_id, partitions=offsets))
        return topics

    def _wanted(
        self, asked: m.ShareOffsetsGroupAsked, rows: dict[tuple[bytes, int], ShareRow], rights: Rights
    ) -> Wanted:
        if asked.topics is not None:
            return [(topic.name, list(topic.partitions)) for topic in asked.topics]
        found: dict[str, list[int]] = {}
        for topic_id, partition in sorted(rows):
            try:
                name = self._gateway.topic_by_id(topic_id).name
            except UnknownTopicError:
                continue  # it was deleted
            if may(self._gateway, rights, Operation.DESCRIBE, name):
                found.setdefault(name, []).append(partition)
        return list(found.items())

    async def _offset(self, topic: TopicMeta, partition: int, row: ShareRow | None) -> m.ShareOffset:
        shard = next((shard for shard in topic.shards if shard.index == partition), None)
        if shard is None:
            message = f"{topic.name!r} has no partition {partition}"
            return m.ShareOffset(
                partition_index=partition,
                error_code=code.UNKNOWN_TOPIC_OR_PARTITION,
                error_message=message,
            )
        if row is None or row.start < 0:
            return m.ShareOffset(partition_index=partition)
        try:
            start, done = reached(row)
            lag = max(0, await self._end(shard) - start - done)
        except (ValueError, AntiphonError):
            lag = -1  # not known now
        return m.ShareOffset(
            partition_index=partition, start_offset=row.start, leader_epoch=row.term, lag=lag
        )

    async def _end(self, shard: ShardMeta) -> int:
        """Where the partition ends, whoever leads it."""
        if shard.leader == self._gateway.node_id:
            return self._gateway.list_offset(shard.shard_id, -1).high_watermark
        asked = ListOffset(shard.shard_id, -1)
        reply, _ = await self._gateway.questions.ask_bulk(shard.leader, asked, ASK_S)
        return reply.high_watermark if isinstance(reply, OffsetReply) else -1

    # -- changing ---------------------------------------------------------------------------------------------------

    async def alter(
        self, request: m.AlterShareGroupOffsetsRequest, context: RequestContext
    ) -> m.AlterShareGroupOffsetsResponse:
        """AlterShareGroupOffsets: of a group without members."""
        with coordinator_errors():
            _check(context.rights, Operation.READ, request.group_id)
            await self._empty(request.group_id)
            responses = [
                await self._alter_topic(request.group_id, topic, context.rights) for topic in request.topics
            ]
        return m.AlterShareGroupOffsetsResponse(responses=responses)

    async def _alter_topic(
        self, group: str, asked: m.ShareOffsetsTopicAltered, rights: Rights
    ) -> m.AlteredShareOffsetsTopic:
        answer = m.AlteredShareOffsetsTopic(topic_name=asked.topic_name)
        for each in asked.partitions:
            done = PartitionOutcome(partition_index=each.partition_index)
            answer.partitions.append(done)
            with telling(done):
                topic = self._topic(rights, Operation.READ, asked.topic_name)
                answer.topic_id = topic.topic_id
                await self._alter_one(group, topic, each)
        return answer

    async def _alter_one(self, group: str, topic: TopicMeta, asked: m.ShareOffsetAltered) -> None:
        partition = asked.partition_index
        if all(shard.index != partition for shard in topic.shards):
            raise RefusedError(
                code.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name!r} has no partition {partition}"
            )
        if asked.start_offset < 0:
            raise RefusedError(code.INVALID_REQUEST, f"{asked.start_offset} is no offset")
        place = (topic.topic_id, partition)
        kept = await self._keeper.answer(AskShareStates(group, reads=(place,)))
        version, value = kept.rows[0]
        term = 0
        if version != ABSENT:
            try:
                term = state_of(value).term
            except ValueError:
                term = 0  # it is made anew
        owner = system.new_uuid().bytes
        row = ShareRow(owner, term, 0, self._gateway.metadata.version, asked.start_offset)
        put = PutShareState(*place, encoded(row), version, kept.group_version)
        if (await self._keeper.answer(AskShareStates(group, (put,)))).versions[0] == ABSENT:
            raise RefusedError(code.COORDINATOR_NOT_AVAILABLE, "somebody else changed it just now; ask again")

    async def delete(
        self, request: m.DeleteShareGroupOffsetsRequest, context: RequestContext
    ) -> m.DeleteShareGroupOffsetsResponse:
        """DeleteShareGroupOffsets: of a group without members. It begins anew in these topics."""
        responses = []
        with coordinator_errors():
            _check(context.rights, Operation.DELETE, request.group_id)
            await self._empty(request.group_id)
            shard_id, _ = self._coordinator.home(request.group_id)
            for asked in request.topics:
                done = m.DeletedShareOffsetsTopic(topic_name=asked.topic_name)
                responses.append(done)
                with telling(done):
                    done.topic_id = self._topic(context.rights, Operation.READ, asked.topic_name).topic_id
                    await self._keeper.forget(shard_id, request.group_id, done.topic_id)
        return m.DeleteShareGroupOffsetsResponse(responses=responses)

    # -- what is looked at first ------------------------------------------------------------------------------------

    async def _known(self, group: str) -> bool:
        """Is there such a share group (or a refusal), and has it members?"""
        found = None
        with suppress(UnknownTopicError):
            await self._coordinator.ready(group)
            found = self._coordinator.shares.find(group)
        if found is None:
            raise RefusedError(code.GROUP_ID_NOT_FOUND, f"no share group is called {group!r}")
        return bool(found.members)

    async def _empty(self, group: str) -> None:
        if await self._known(group):
            raise RefusedError(code.NON_EMPTY_GROUP, f"share group {group!r} has members")

    def _topic(self, rights: Rights, operation: Operation, name: str) -> TopicMeta:
        reason = f"{rights.principal} may not {operation} topic {name!r}"
        check_topic(self._gateway, rights, operation, name, reason)
        try:
            topic = self._gateway.topic(name)
        except UnknownTopicError as error:
            raise RefusedError(code.UNKNOWN_TOPIC_OR_PARTITION, error.message) from error
        if topic.kind is not Kind.TOPIC or is_internal(topic):
            raise RefusedError(code.UNKNOWN_TOPIC_OR_PARTITION, f"share groups do not read {name!r}")
        return topic


def _check(rights: Rights, operation: Operation, group: str) -> None:
    check(rights, operation, Resource.GROUP, group, f"{rights.principal} may not {operation} this group")
