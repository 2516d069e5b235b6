"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the consumer protocol (KIP-848)."""

from typing import Final

from antiphon import system
from antiphon.coordination import consumer_terms as t
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import Beat, Beaten, Member, Refused
from antiphon.coordination.patterns import REGEX_BYTES_MAX, BadRegexError
from antiphon.gateway.interface import Gateway
from antiphon.kafka import error_codes as code
from antiphon.kafka.api import RequestContext
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.handlers.group_outcomes import beaten, check_reads, each_described, group_for
from antiphon.kafka.handlers.group_places import assignment, named_assignment
from antiphon.kafka.handlers.group_topics import GroupTopics
from antiphon.kafka.handlers.refusals import RefusedError
from antiphon.kafka.handlers.rights import check_topic
from antiphon.kafka.messages import consumer_groups as m
from antiphon.model.access import Operation

GROUP_ID_BYTES_MAX: Final = 1024
ID_BYTES_MAX: Final = 256  # of a member, an instance or a rack
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
FIRST_OWN_IDS: Final = 1  # version from which a client makes its member id


class ConsumerGroupHandler:
    """Takes requests to the groups' state, and their answers back."""

    def __init__(self, gateway: Gateway, coordinator: GroupCoordinator, subscription_bytes_max: int) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._subscription_bytes_max = subscription_bytes_max
        self._topics = GroupTopics(gateway)

    # -- heartbeats -----------------------------------------------------------------------------------------------

    async def heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> m.ConsumerGroupHeartbeatResponse:
        """ConsumerGroupHeartbeat: stored, as far as it changes anything, when it is answered."""
        found = await beaten(self._heartbeat(request, context))
        assigned = None if found.assigned is None else assignment(found.assigned)
        return m.ConsumerGroupHeartbeatResponse(
            error_code=code.NONE,
            member_id=found.member_id,
            member_epoch=found.epoch,
            heartbeat_interval_ms=found.interval_ms,
            assignment=assigned,
        )

    async def _heartbeat(
        self, request: m.ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> Beaten | Refused:
        group_id, rights = request.group_id, context.rights
        check_reads(rights, group_id)
        self._check(request, context.version)
        for name in request.subscribed_topic_names or ():
            reason = f"{rights.principal} may not describe topic {name!r}"
            check_topic(self._gateway, rights, Operation.DESCRIBE, name, reason)
        await self._coordinator.ready(group_id)
        member_id = request.member_id or str(system.new_uuid())
        regex = self._regex_of(request, member_id)
        owned = request.topic_partitions
        asked = Beat(
            member_id,
            request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            client_id=context.client_id[:ID_BYTES_MAX],
            client_host=context.client_host,
            rebalance_ms=request.rebalance_timeout_ms,
            topics=_optional(request.subscribed_topic_names),
            regex=request.subscribed_topic_regex,
            regex_topics=await self._matching(regex, context) if regex else None,
            assignor=request.server_assignor,
            owned=None
            if owned is None
            else frozenset((each.topic_id, partition) for each in owned for partition in each.partitions),
        )
        return await self._coordinator.heartbeat_consumer(group_id, asked, self._topics.catalog())

    def _regex_of(self, request: m.ConsumerGroupHeartbeatRequest, member_id: str) -> str | None:
        """The expression that the member reads by: what it says now, or said before."""
        if request.subscribed_topic_regex is not None:
            return request.subscribed_topic_regex
        group = self._coordinator.consumers.find(request.group_id)
        member = None if group is None else group.members.get(member_id)
        return None if member is None else member.regex

    async def _matching(self, regex: str, context: RequestContext) -> tuple[str, ...]:
        try:
            return await self._topics.matching(regex, context.rights, context.turn)
        except BadRegexError as error:
            raise RefusedError(code.INVALID_REGULAR_EXPRESSION, str(error)) from error

    def _check(self, request: m.ConsumerGroupHeartbeatRequest, version: int) -> None:
        """Refuse what makes no sense by itself."""
        problem = _problem(request, version)
        if problem is None:
            names = request.subscribed_topic_names or ()
            size = sum(len(name.encode()) for name in names)
            if size > self._subscription_bytes_max:
                problem = f"{size} bytes of names of topics, {self._subscription_bytes_max} at most"
        if problem is not None:
            raise RefusedError(code.INVALID_REQUEST, problem)
        known = self._coordinator.consumers.bounds.assignors
        if request.server_assignor is not None and request.server_assignor not in known:
            raise RefusedError(
                code.UNSUPPORTED_ASSIGNOR,
                f"assignor {request.server_assignor!r} is not supported; there are {', '.join(known)}",
            )

    # -- describing -----------------------------------------------------------------------------------------------

    async def describe(
        self, request: m.ConsumerGroupDescribeRequest, context: RequestContext
    ) -> m.ConsumerGroupDescribeResponse:
        """ConsumerGroupDescribe; a group that is named more than once is described once."""
        groups = await each_described(
            m.DescribedConsumerGroup,
            request.group_ids,
            self._describe,
            context,
            with_operations=request.include_authorized_operations,
        )
        return m.ConsumerGroupDescribeResponse(groups=groups)

    async def _describe(self, group_id: str, context: RequestContext) -> m.DescribedConsumerGroup:
        consumers = self._coordinator.consumers
        missing = f"no group of the consumer protocol is called {group_id!r}"
        group = await group_for(self._gateway, consumers, group_id, context.rights, missing)
        return m.DescribedConsumerGroup(
            error_code=code.NONE,
            group_id=group_id,
            group_state=str(group.state),
            group_epoch=group.epoch,
            assignment_epoch=group.row.target_epoch,
            assignor_name=group.row.assignor or consumers.bounds.assignors[0],
            members=[self._described(group, member) for member in group.members.values()],
        )

    def _described(self, group: ConsumerGroup, member: Member) -> m.DescribedConsumer:
        return m.DescribedConsumer(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
            subscribed_topic_names=list(member.topics),
            subscribed_topic_regex=member.regex,
            assignment=named_assignment(self._gateway, member.assigned),
            target_assignment=named_assignment(
                self._gateway, group.targets.get(member.member_id, t.NO_PLACES)
            ),
        )


def _optional(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _problem(request: m.ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    """What is wrong with a request, whatever the group is."""
    epoch = request.member_epoch
    if not 0 < len(request.group_id.encode()) <= GROUP_ID_BYTES_MAX:
        return f"a group id has 1 to {GROUP_ID_BYTES_MAX} bytes"
    if not request.member_id and (version >= FIRST_OWN_IDS or epoch != t.JOIN_EPOCH):
        return "MemberId must not be empty"
    for what, value in (
        ("MemberId", request.member_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        if value is not None and len(value.encode()) > ID_BYTES_MAX:
            return f"{what} has {ID_BYTES_MAX} bytes at most"
    if request.instance_id == "" or request.rack_id == "" or request.server_assignor == "":
        return "InstanceId, RackId and ServerAssignor are null or not empty"
    if epoch < t.AWAY_EPOCH or (epoch == t.AWAY_EPOCH and request.instance_id is None):
        return f"MemberEpoch {epoch} is none that such a member has"
    if len((request.subscribed_topic_regex or "").encode()) > REGEX_BYTES_MAX:
        return f"SubscribedTopicRegex has {REGEX_BYTES_MAX} bytes at most"
    return _join_problem(request) if epoch == t.JOIN_EPOCH else None


def _join_problem(request: m.ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "RebalanceTimeoutMs must be given to join"
    if request.topic_partitions:
        return "TopicPartitions must be empty to join"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "SubscribedTopicNames or SubscribedTopicRegex must be given to join"
    return None
