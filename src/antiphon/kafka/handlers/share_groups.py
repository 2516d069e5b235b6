"""ShareGroupHeartbeat and ShareGroupDescribe: who is in a share group (KIP-932)."""

from antiphon.coordination import consumer_terms as t
from antiphon.coordination.consumer_terms import Beat, Beaten, Member, Refused
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka import features
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.handlers.consumer_groups import GROUP_ID_BYTES_MAX, ID_BYTES_MAX
from antiphon.kafka.handlers.group_outcomes import beaten, check_reads, each_described, group_for
from antiphon.kafka.handlers.group_places import assignment, named_assignment
from antiphon.kafka.handlers.group_topics import GroupTopics
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.rights import sees
from antiphon.kafka.messages import share_groups as m


class ShareGroupHandler:
    """Takes requests to the groups' state, and their answers back."""

    def __init__(self, gateway: Gateway, coordinator: GroupCoordinator, subscription_bytes_max: int) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._subscription_bytes_max = subscription_bytes_max
        self._topics = GroupTopics(gateway)

    # -- heartbeats -------------------------------------------------------------------------------------------------

    async def heartbeat(
        self, request: m.ShareGroupHeartbeatRequest, context: RequestContext
    ) -> m.ShareGroupHeartbeatResponse:
        """ShareGroupHeartbeat: stored, as far as it changes anything, when it is answered."""
        found = await beaten(self._heartbeat(request, context))
        return m.ShareGroupHeartbeatResponse(
            error_code=code.NONE,
            member_id=found.member_id,
            member_epoch=found.epoch,
            heartbeat_interval_ms=found.interval_ms,
            assignment=None if found.assigned is None else assignment(found.assigned),
        )

    async def _heartbeat(
        self, request: m.ShareGroupHeartbeatRequest, context: RequestContext
    ) -> Beaten | Refused:
        group_id, rights = request.group_id, context.rights
        check_reads(rights, group_id)
        if not features.FEATURES[features.SHARE].level(self._gateway.metadata):
            raise RefusedError(code.UNSUPPORTED_VERSION, "a node of the cluster knows no share groups yet")
        problem = self._problem(request)
        if problem is not None:
            raise RefusedError(code.INVALID_REQUEST, problem)
        names = request.subscribed_topic_names
        for name in names or ():
            if not sees(self._gateway, rights, name):
                raise RefusedError(
                    code.TOPIC_AUTHORIZATION_FAILED, f"{rights.principal} may not describe topic {name!r}"
                )
        coordinator = self._coordinator
        await coordinator.ready(group_id)
        if request.member_epoch == t.JOIN_EPOCH and coordinator.shares.find(group_id) is None:
            await coordinator.classic.forget(group_id)  # what was left by members of that protocol
        asked = Beat(
            request.member_id,
            request.member_epoch,
            rack_id=request.rack_id,
            client_id=context.client_id[:ID_BYTES_MAX],
            client_host=context.client_host,
            topics=None if names is None else tuple(names),
        )
        return await coordinator.shares.heartbeat(
            group_id, asked, self._topics.catalog(), lambda: coordinator.is_no_share(group_id)
        )

    def _problem(self, request: m.ShareGroupHeartbeatRequest) -> str | None:
        """What is wrong with a request, whatever the group is."""
        if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
            return f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes"
        for what, value in (("MemberId", request.member_id), ("RackId", request.rack_id)):
            if value is not None and not 0 < len(value.encode()) <= ID_BYTES_MAX:
                return f"{what} has 1 to {ID_BYTES_MAX} bytes"
        if request.member_epoch < t.LEAVE_EPOCH:
            return f"MemberEpoch {request.member_epoch} is none that a member has"
        names = request.subscribed_topic_names
        if request.member_epoch == t.JOIN_EPOCH and not names:
            return "SubscribedTopicNames must be given to join"
        size = sum(len(name.encode()) for name in names or ())
        if size > self._subscription_bytes_max:
            return f"{size} bytes of names of topics, {self._subscription_bytes_max} at most"
        return None

    # -- describing -------------------------------------------------------------------------------------------------

    async def describe(
        self, request: m.ShareGroupDescribeRequest, context: RequestContext
    ) -> m.ShareGroupDescribeResponse:
        """ShareGroupDescribe; a group that is named more than once is described once."""
        groups = await each_described(
            m.DescribedShareGroup,
            request.group_ids,
            self._describe,
            context,
            with_operations=request.include_authorized_operations,
        )
        return m.ShareGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str, context: RequestContext) -> m.DescribedShareGroup:
        shares, missing = self._coordinator.shares, f"no share group is called {group_id!r}"
        group = await group_for(self._gateway, shares, group_id, context.rights, missing)
        return m.DescribedShareGroup(
            error_code=code.NONE,
            group_id=group_id,
            group_state=str(t.GroupState.STABLE if group.members else t.GroupState.EMPTY),
            group_epoch=group.epoch,
            assignment_epoch=group.row.target_epoch,
            assignor_name=group.row.assignor or shares.bounds.assignors[0],
            members=[self._described(member) for member in group.members.values()],
        )

    def _described(self, member: Member) -> m.DescribedShareMember:
        return m.DescribedShareMember(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=list(member.topics),
            assignment=named_assignment(self._gateway, member.assigned),
        )
