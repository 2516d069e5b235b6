"""DescribeGroups, ListGroups and DeleteGroups."""

from contextlib import suppress
from typing import Final

from antiphon.coordination.consumer_terms import GroupState as ConsumerState
from antiphon.errors import AntiphonError, UnknownTopicError
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.types import GroupState
from antiphon.kafka.handlers.group_outcomes import each_described
from antiphon.kafka.handlers.refusals import coordinator_errors
from antiphon.kafka.messages import groups as m
from antiphon.model.access import Operation, Resource
from antiphon.transactions.group_offsets import GroupOffsets
from antiphon.transactions.pending_offsets import PendingOffsets

FIRST_ID_NOT_FOUND: Final = 6  # DescribeGroups version that says GROUP_ID_NOT_FOUND instead of Dead alone
CONSUMER: Final = "consumer"
CLASSIC: Final = "classic"
SHARE: Final = "share"


class GroupAdminHandler:
    """A group is known by its members, or by offsets that it left."""

    def __init__(self, coordinator: GroupCoordinator, offsets: GroupOffsets, pending: PendingOffsets) -> None:
        self._coordinator = coordinator
        self._offsets = offsets
        self._pending = pending

    async def describe(
        self, request: m.DescribeGroupsRequest, context: RequestContext
    ) -> m.DescribeGroupsResponse:
        """DescribeGroups; a group that is named more than once is described once."""
        groups = await each_described(
            m.DescribedGroup,
            request.groups,
            self._describe,
            context,
            with_operations=request.include_authorized_operations,
        )
        return m.DescribeGroupsResponse(groups=groups)

    async def _describe(self, group_id: str, context: RequestContext) -> m.DescribedGroup:
        with coordinator_errors(), suppress(UnknownTopicError):  # no group ever committed an offset
            await self._coordinator.ready(group_id)
            group = self._coordinator.find(group_id)
            if group is not None:
                return _described(group)
            is_classic = self._coordinator.consumers.find(group_id) is None
            kept = await self._coordinator.classic.kept(group_id) if is_classic else None
            if kept is not None or (is_classic and await self._offsets.fetch_all(group_id)):
                return m.DescribedGroup(
                    error_code=code.NONE,
                    group_id=group_id,
                    group_state=str(GroupState.EMPTY),
                    protocol_type=(kept and kept.protocol_type) or CONSUMER,
                )
        told = context.version >= FIRST_ID_NOT_FOUND
        return m.DescribedGroup(
            error_code=code.GROUP_ID_NOT_FOUND if told else code.NONE,
            error_message=f"no group {group_id!r}" if told else None,
            group_id=group_id,
            group_state=str(GroupState.DEAD),
        )

    async def list_groups(
        self, request: m.ListGroupsRequest, context: RequestContext
    ) -> m.ListGroupsResponse:
        """ListGroups: groups with members here, and those that have left offsets in shards that this node leads."""
        states = {
            group.group_id: (str(group.state), group.protocol_type or "", CLASSIC)
            for group in self._coordinator.hosted()
        }
        for name, found in self._coordinator.consumers.found().items():
            states.setdefault(name, (str(found.state), CONSUMER, CONSUMER))
        for name, found in self._coordinator.shares.found().items():
            states[name] = (str(found.state if not found.members else ConsumerState.STABLE), SHARE, SHARE)
        error = code.NONE
        try:
            for shard in self._coordinator.led_shards():
                for group_id in await self._offsets.groups_of(shard.shard_id):
                    states.setdefault(group_id, (str(GroupState.EMPTY), CONSUMER, CLASSIC))
        except AntiphonError as refused:
            error = code.coordinator_code_of(refused)
        everything = context.rights.sees(Operation.DESCRIBE, Resource.CLUSTER)
        wanted_states = {state.lower() for state in request.states_filter}
        wanted_types = {wanted.lower() for wanted in request.types_filter}
        return m.ListGroupsResponse(
            error_code=error,
            groups=[
                m.ListedGroup(group_id=group_id, protocol_type=protocol, group_state=state, group_type=kind)
                for group_id, (state, protocol, kind) in sorted(states.items())
                if (everything or context.rights.sees(Operation.DESCRIBE, Resource.GROUP, group_id))
                and (not wanted_states or state.lower() in wanted_states)
                and (not wanted_types or kind in wanted_types)
            ],
        )

    async def delete(self, request: m.DeleteGroupsRequest, context: RequestContext) -> m.DeleteGroupsResponse:
        """DeleteGroups."""
        return m.DeleteGroupsResponse(
            results=[
                m.DeletedGroup(
                    group_id=group_id,
                    error_code=await self._delete(group_id)
                    if context.rights.may(Operation.DELETE, Resource.GROUP, group_id)
                    else code.GROUP_AUTHORIZATION_FAILED,
                )
                async for group_id in context.turn_budget.each(request.groups_names)
            ]
        )

    async def _delete(self, group_id: str) -> int:
        try:
            await self._coordinator.ready(group_id)
            if self._coordinator.find(group_id) is not None:
                return code.NON_EMPTY_GROUP
            if self._coordinator.shares.find(group_id) is not None:
                gone = await self._coordinator.shares.forget(group_id)
                return code.NONE if gone else code.NON_EMPTY_GROUP
            of_consumers = self._coordinator.consumers.find(group_id) is not None
            if of_consumers and not await self._coordinator.consumers.forget(group_id):
                return code.NON_EMPTY_GROUP
            was_kept = await self._coordinator.classic.forget(group_id)
            if was_kept is False:
                return code.NON_EMPTY_GROUP
            if not await self._offsets.fetch_all(group_id):
                return code.NONE if of_consumers or was_kept else code.GROUP_ID_NOT_FOUND
            await self._pending.forget(group_id)
            await self._offsets.delete(group_id)
        except UnknownTopicError:
            return code.GROUP_ID_NOT_FOUND
        except AntiphonError as refused:
            return code.coordinator_code_of(refused)
        return code.NONE


def _described(group: ClassicGroup) -> m.DescribedGroup:
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
