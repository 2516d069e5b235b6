"""Groups that this node hosts, and share-partitions that it holds, as operators are told of them (`GroupHost`)."""

from collections.abc import Iterator
from typing import Final

from antiphon.coordination import consumer_terms as t
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.share_terms import ShareCounts
from antiphon.errors import ProtocolViolationError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.consumer_rows import packed
from antiphon.kafka.groups.coordinator import GroupCoordinator
from antiphon.kafka.groups.share_partitions import SharePartitions
from antiphon.kafka.groups.subscription import CONSUMER, assigned_partitions, subscribed_topics
from antiphon.kafka.groups.types import Member
from antiphon.model.groups import Assigned, GroupKind, GroupMember, GroupState

ASSIGNED_MAX: Final = 20_000  # partitions of one group's members that are told


class HostedGroups:
    """See the module's text."""

    def __init__(self, gateway: Gateway, coordinator: GroupCoordinator, shares: SharePartitions) -> None:
        self._gateway = gateway
        self._coordinator = coordinator
        self._shares = shares

    async def known(self) -> dict[str, GroupState]:
        """See GroupHost."""
        found = {group.group_id: _classic(group) for group in self._coordinator.hosted()}
        for name, of_consumers in self._coordinator.consumers.found().items():
            found.setdefault(name, _stored(name, of_consumers, GroupKind.CONSUMER))
        for name, shared in self._coordinator.shares.found().items():
            found.setdefault(name, _stored(name, shared, GroupKind.SHARE))
        return found

    async def one(self, group: str) -> GroupState | None:
        """See GroupHost. Raises NotLeaderError where another node coordinates, and what is to be tried again."""
        await self._coordinator.ready(group)
        classic = self._coordinator.find(group)
        if classic is not None:
            return _classic(classic, _classic_members(classic))
        for kind, groups in (
            (GroupKind.SHARE, self._coordinator.shares),
            (GroupKind.CONSUMER, self._coordinator.consumers),
        ):
            found = groups.find(group)
            if found is not None:
                return _stored(group, found, kind, tuple(self._members(found)))
        return None

    def held(self, group: str) -> dict[tuple[bytes, int], int]:
        """See GroupHost."""
        return {
            (share.place.topic_id, share.place.partition): share.machine.locked()
            for share in self._shares
            if share.place.group == group and self._gateway.term_led(share.shard_id) == share.term
        }

    # -- for metrics ------------------------------------------------------------------------------------------------

    @property
    def share_counts(self) -> ShareCounts:
        """What became of records of share groups here, since the start."""
        return self._shares.counts

    def acknowledged(self) -> dict[str, float]:
        """Of those, by what members said of them: accept, release, ..."""
        return {kind.name.lower(): float(count) for kind, count in self.share_counts.acknowledged.items()}

    @property
    def share_partitions(self) -> int:
        """Share-partitions that this node holds."""
        return len(self._shares)

    def share_groups(self) -> dict[str, ConsumerGroup]:
        """Share groups that this node coordinates."""
        return self._coordinator.shares.found()

    def locked(self) -> int:
        """Records that members work on."""
        return sum(share.machine.locked() for share in self._shares)

    def lag_max(self) -> int:
        """Records that are not done, of the share-partition here that has most of them."""
        lags = (end - share.machine.start - share.machine.done() for share, end in self._shares.ends())
        return max(0, max(lags, default=0))

    # -- members ----------------------------------------------------------------------------------------------------

    def _members(self, group: ConsumerGroup) -> Iterator[GroupMember]:
        left = ASSIGNED_MAX
        for member in group.members.values():
            assigned = self._named(member.assigned) if left > 0 else ()
            left -= len(member.assigned)
            yield _told(member, member.epoch, member.topics, assigned)

    def _named(self, places: t.Places) -> Assigned:
        found = []
        for topic_id, partitions in packed(places).items():
            try:
                found.append((self._gateway.topic_by_id(topic_id).name, tuple(partitions)))
            except UnknownTopicError:
                continue  # it was deleted
        return tuple(sorted(found))


def _stored(
    name: str, group: ConsumerGroup, kind: GroupKind, members: tuple[GroupMember, ...] = ()
) -> GroupState:
    state = group.state
    if kind is GroupKind.SHARE:  # which has nothing to reconcile
        state = t.GroupState.STABLE if group.members else t.GroupState.EMPTY
    return GroupState(name, kind, str(state), len(group.members), group.epoch, members)


def _classic(group: ClassicGroup, members: tuple[GroupMember, ...] = ()) -> GroupState:
    return GroupState(
        group.group_id,
        GroupKind.CLASSIC,
        str(group.state),
        len(group.members),
        group.generation,
        members,
    )


def _told(member: Member | t.Member, epoch: int, topics: tuple[str, ...], assigned: Assigned) -> GroupMember:
    who = (member.member_id, member.instance_id or "", member.client_id, member.client_host)
    return GroupMember(*who, epoch, topics, assigned)


def _classic_members(group: ClassicGroup) -> tuple[GroupMember, ...]:
    def member_state(member: Member) -> GroupMember:
        topics: frozenset[str] | None = None
        assigned: Assigned = ()
        if group.protocol_type == CONSUMER:  # the bytes of others are nobody's but theirs
            topics = subscribed_topics([member], group.protocol_name)
            try:
                assigned = assigned_partitions(member.assignment, ASSIGNED_MAX)
            except ProtocolViolationError:
                assigned = ()
        return _told(member, group.generation, tuple(sorted(topics or ())), assigned)

    return tuple(member_state(member) for member in group.members.values())
