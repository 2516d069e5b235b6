"""The group APIs as Kafka's clients call them: requests to the coordinator's calls and back."""

from typing import Final

from antiphon import system
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.cluster_view import ClusterView
from antiphon.kafka.group_coordinator import GroupCoordinator
from antiphon.kafka.group_offsets import Committed, GroupOffsets, OffsetAt
from antiphon.kafka.group_types import GroupState, Join, Sync
from antiphon.kafka.groups import Group
from antiphon.kafka.messages import cluster as cm
from antiphon.kafka.messages import groups as m
from antiphon.model.metadata import TopicMeta

GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
GROUP_ID_BYTES_MAX: Final = 1024
METADATA_BYTES_MAX: Final = 4096
FIRST_ID_FIRST: Final = 4  # JoinGroup version from which a member is told its id before it joins
FIRST_SKIP_ASSIGNMENT: Final = 9
FIRST_PROTOCOL_TYPE: Final = 7
FIRST_ID_NOT_FOUND: Final = 6  # DescribeGroups version that says GROUP_ID_NOT_FOUND instead of Dead alone
CONSUMER: Final = "consumer"
CLASSIC: Final = "classic"

_OffsetsByTopic = list[tuple[str, list[tuple[int, Committed | None]]]]


class GroupApi:
    """Carries out FindCoordinator and everything about groups."""

    def __init__(self, gateway: Gateway, view: ClusterView, coordinator: GroupCoordinator) -> None:
        self._gateway = gateway
        self._view = view
        self._coordinator = coordinator
        self._offsets = GroupOffsets(gateway)

    # -- FindCoordinator ------------------------------------------------------------------------------------------

    async def find_coordinator(
        self, request: cm.FindCoordinatorRequest, context: RequestContext
    ) -> cm.FindCoordinatorResponse:
        """The node that leads a group's shard."""
        if context.version >= 4:
            found = [await self._locate(key, request.key_type) for key in request.coordinator_keys]
            return cm.FindCoordinatorResponse(coordinators=found)
        one = await self._locate(request.key, request.key_type)
        return cm.FindCoordinatorResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _locate(self, key: str, key_type: int) -> cm.FoundCoordinator:
        def failed(error: int, message: str) -> cm.FoundCoordinator:
            return cm.FoundCoordinator(
                key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message
            )

        if key_type == TRANSACTION_KEY:
            return failed(code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not served")
        if key_type != GROUP_KEY:
            return failed(code.INVALID_REQUEST, f"coordinators of type {key_type} do not exist here")
        if not _is_group_id(key):
            return failed(code.INVALID_GROUP_ID, "not a name for a group")
        try:
            shard = await self._coordinator.locate(key)
        except AntiphonError as error:
            return failed(code.COORDINATOR_NOT_AVAILABLE, error.message)
        node = self._view.endpoints.get(self._view.leader_of(shard))
        if node is None:
            return failed(code.COORDINATOR_NOT_AVAILABLE, "the group's shard has no leader now")
        return cm.FoundCoordinator(
            key=key, node_id=node.node_id, host=node.host, port=node.port, error_code=code.NONE
        )

    # -- membership -----------------------------------------------------------------------------------------------

    async def join(self, request: m.JoinGroupRequest, context: RequestContext) -> m.JoinGroupResponse:
        """JoinGroup."""
        version, client_id = context.version, context.client_id
        if not _is_group_id(request.group_id):
            return m.JoinGroupResponse(error_code=code.INVALID_GROUP_ID, member_id=request.member_id)
        rebalance_ms = request.rebalance_timeout_ms
        join = Join(
            request.member_id,
            request.group_instance_id,
            client_id,
            context.client_host,
            request.session_timeout_ms,
            rebalance_ms if rebalance_ms >= 0 else request.session_timeout_ms,
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            f"{request.group_instance_id or client_id}-{system.new_uuid()}",
            id_first=version >= FIRST_ID_FIRST,
            can_skip_assignment=version >= FIRST_SKIP_ASSIGNMENT,
        )
        try:
            joined = await self._coordinator.join(request.group_id, join)
        except AntiphonError as error:
            return m.JoinGroupResponse(
                error_code=code.coordinator_code_of(error), member_id=request.member_id
            )
        return m.JoinGroupResponse(
            error_code=joined.error_code,
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name
            if joined.protocol_name is not None or version >= FIRST_PROTOCOL_TYPE
            else "",
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=[
                m.JoinedMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
                for member_id, instance_id, metadata in joined.members
            ],
        )

    async def sync(self, request: m.SyncGroupRequest, _: RequestContext) -> m.SyncGroupResponse:
        """SyncGroup."""
        sync = Sync(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            tuple((each.member_id, each.assignment) for each in request.assignments),
        )
        try:
            synced = await self._coordinator.sync(request.group_id, sync)
        except AntiphonError as error:
            return m.SyncGroupResponse(error_code=code.coordinator_code_of(error))
        return m.SyncGroupResponse(
            error_code=synced.error_code,
            protocol_type=synced.protocol_type,
            protocol_name=synced.protocol_name,
            assignment=synced.assignment,
        )

    async def heartbeat(self, request: m.HeartbeatRequest, _: RequestContext) -> m.HeartbeatResponse:
        """Heartbeat."""
        try:
            error = self._coordinator.heartbeat(
                request.group_id, request.member_id, request.group_instance_id, request.generation_id
            )
        except AntiphonError as refused:
            error = code.coordinator_code_of(refused)
        return m.HeartbeatResponse(error_code=error)

    async def leave(self, request: m.LeaveGroupRequest, context: RequestContext) -> m.LeaveGroupResponse:
        """LeaveGroup."""
        many = context.version >= 3
        leaving = request.members if many else [m.LeavingMember(member_id=request.member_id)]
        left = []
        try:
            for each in leaving:
                error = self._coordinator.leave(request.group_id, each.member_id, each.group_instance_id)
                left.append(
                    m.LeftMember(
                        member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error
                    )
                )
        except AntiphonError as refused:
            return m.LeaveGroupResponse(error_code=code.coordinator_code_of(refused))
        return m.LeaveGroupResponse(error_code=code.NONE if many else left[0].error_code, members=left)

    # -- offsets --------------------------------------------------------------------------------------------------

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

    # -- administration -------------------------------------------------------------------------------------------

    async def describe(
        self, request: m.DescribeGroupsRequest, context: RequestContext
    ) -> m.DescribeGroupsResponse:
        """DescribeGroups."""
        return m.DescribeGroupsResponse(
            groups=[await self._describe(group_id, context.version) for group_id in request.groups]
        )

    async def _describe(self, group_id: str, version: int) -> m.DescribedGroup:
        try:
            group = self._coordinator.find(group_id)
            if group is not None:
                return _described(group)
            if await self._offsets.fetch_all(group_id):
                state = str(GroupState.EMPTY)
                return m.DescribedGroup(
                    error_code=code.NONE, group_id=group_id, group_state=state, protocol_type=CONSUMER
                )
        except UnknownTopicError:
            pass  # no group ever committed an offset
        except AntiphonError as refused:
            return m.DescribedGroup(error_code=code.coordinator_code_of(refused), group_id=group_id)
        told = version >= FIRST_ID_NOT_FOUND
        return m.DescribedGroup(
            error_code=code.GROUP_ID_NOT_FOUND if told else code.NONE,
            error_message=f"no group {group_id!r}" if told else None,
            group_id=group_id,
            group_state=str(GroupState.DEAD),
        )

    async def list_groups(self, request: m.ListGroupsRequest, _: RequestContext) -> m.ListGroupsResponse:
        """ListGroups: groups with members here, and those that have left offsets in shards that this node leads."""
        states = {
            group.group_id: (str(group.state), group.protocol_type or "")
            for group in self._coordinator.hosted()
        }
        error = code.NONE
        try:
            for shard in self._coordinator.led_shards():
                for group_id in await self._offsets.groups_of(shard.shard_id):
                    states.setdefault(group_id, (str(GroupState.EMPTY), CONSUMER))
        except AntiphonError as refused:
            error = code.coordinator_code_of(refused)
        wanted_states = {state.lower() for state in request.states_filter}
        wanted_types = {kind.lower() for kind in request.types_filter}
        return m.ListGroupsResponse(
            error_code=error,
            groups=[
                m.ListedGroup(
                    group_id=group_id, protocol_type=protocol, group_state=state, group_type=CLASSIC
                )
                for group_id, (state, protocol) in sorted(states.items())
                if (not wanted_states or state.lower() in wanted_states)
                and (not wanted_types or CLASSIC in wanted_types)
            ],
        )

    async def delete(self, request: m.DeleteGroupsRequest, _: RequestContext) -> m.DeleteGroupsResponse:
        """DeleteGroups."""
        return m.DeleteGroupsResponse(
            results=[
                m.DeletedGroup(group_id=group_id, error_code=await self._delete(group_id))
                for group_id in request.groups_names
            ]
        )

    async def _delete(self, group_id: str) -> int:
        try:
            if self._coordinator.find(group_id) is not None:
                return code.NON_EMPTY_GROUP
            if not await self._offsets.fetch_all(group_id):
                return code.GROUP_ID_NOT_FOUND
            await self._offsets.delete(group_id)
        except UnknownTopicError:
            return code.GROUP_ID_NOT_FOUND
        except AntiphonError as refused:
            return code.coordinator_code_of(refused)
        return code.NONE

    async def delete_offsets(
        self, request: m.OffsetDeleteRequest, _: RequestContext
    ) -> m.OffsetDeleteResponse:
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


def _is_group_id(group_id: str) -> bool:
    return 0 < len(group_id.encode()) <= GROUP_ID_BYTES_MAX


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


def _described(group: Group) -> m.DescribedGroup:
    stable = group.state is GroupState.STABLE
    protocol = group.protocol_name if stable else None
    return m.DescribedGroup(
        error_code=code.NONE,
        group_id=group.group_id,
        group_state=str(group.state),
        protocol_type=group.protocol_type or "",
        protocol_data=protocol or "",
        members=[
            m.DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(protocol),
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
