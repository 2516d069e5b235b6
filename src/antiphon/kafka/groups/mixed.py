"""Members of the classic protocol as a group of the consumer protocol has them, and back.

What they say about themselves is bytes of their clients' making: names of topics that there are not, and partitions that
their topics do not have, are nobody's; what cannot be read raises ProtocolViolationError.
"""

from collections.abc import Callable, Iterable
from typing import Final

from antiphon.coordination.consumer_terms import Catalog, ClassicPart, Member, Place, Places
from antiphon.coordination.mixed_group import ClassicJoin, MixedGroup, common_protocol, generation_of
from antiphon.errors import ProtocolViolationError, UnknownTopicError
from antiphon.gateway.interface import Gateway
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_row import ClassicMember, ClassicRow
from antiphon.kafka.groups.consumer_rows import packed
from antiphon.kafka.groups.subscription import (
    CONSUMER,
    assigned_partitions,
    assignment_bytes,
    subscription_of,
)
from antiphon.kafka.groups.types import Join
from antiphon.kafka.primitives import ELEMENTS_MAX
from antiphon.model.groups import Assigned

PARTITIONS_MAX: Final = ELEMENTS_MAX  # that a member can have been told of


def join_of(request: Join, catalog: Catalog, may_see: Callable[[str], bool]) -> ClassicJoin:
    """A JoinGroup request for such a group. It reads of its topics those that it may know of."""
    said = subscription_of(request.protocols[0][1])
    return ClassicJoin(
        request.member_id,
        request.new_member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_ms,
        said.rack_id,
        tuple(name for name in dict.fromkeys(said.topics) if may_see(name)),
        _places(said.owned, catalog),
        ClassicPart(request.session_ms, request.protocols),
    )


def adopted(group: ClassicGroup, catalog: Catalog) -> tuple[Member, ...]:
    """The members of a group that is stable, with what it gave them. What one said that it had, and was not given again,
    it may be giving up just now.
    """
    return tuple(_adopted(group, member_id, catalog) for member_id in group.members)


def _adopted(group: ClassicGroup, member_id: str, catalog: Catalog) -> Member:
    member = group.members[member_id]
    said = subscription_of(member.metadata(group.protocol_name))
    given = assigned_partitions(member.assignment, PARTITIONS_MAX)
    assigned = _places(((topic, each) for topic, partitions in given for each in partitions), catalog)
    first = [one for one in member.protocols if one[0] == group.protocol_name]
    others = [one for one in member.protocols if one[0] != group.protocol_name]
    return Member(
        member_id,
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_ms=member.rebalance_ms,
        topics=tuple(sorted(set(said.topics))),
        assigned=assigned,
        revoking=_places(said.owned, catalog) - assigned,
        classic=ClassicPart(member.session_ms, (*first, *others)),
    )


def assignment_of(member: Member, places: Places, gateway: Gateway) -> bytes:
    """What SyncGroup tells a member: these partitions, in the version that it understands."""
    metadata = member.classic.protocols[0][1] if member.classic is not None else b""
    return assignment_bytes(_version(metadata), named(places, gateway))


def row_of(group: MixedGroup, gateway: Gateway, wall_ms: int) -> ClassicRow | None:
    """The group as a classic one, whose members have to join again; None where they have no protocol in common."""
    members = list(group.members.values())
    protocol = common_protocol(members)
    if protocol is None:
        return None
    kept = tuple(_kept(member, protocol, gateway) for member in members)
    return ClassicRow(
        generation_of(group),
        CONSUMER,
        protocol,
        kept[0].member_id,
        wall_ms,
        kept,
        is_whole=True,
        rejoins=True,
    )


def _kept(member: Member, protocol: str, gateway: Gateway) -> ClassicMember:
    part = member.classic or ClassicPart(0, ())
    metadata = next((data for name, data in part.protocols if name == protocol), b"")
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        part.session_ms,
        max(member.rebalance_ms, 0),
        part.protocols,
        assignment_bytes(_version(metadata), named(member.assigned, gateway)),
    )


def named(places: Places, gateway: Gateway) -> Assigned:
    """Partitions by their topics' names; without those of topics that are deleted."""
    found = []
    for topic_id, partitions in packed(places).items():
        try:
            found.append((gateway.topic_by_id(topic_id).name, tuple(partitions)))
        except UnknownTopicError:
            continue
    return tuple(sorted(found))


def _version(metadata: bytes) -> int:
    """Of what a member said, which was read when it came."""
    try:
        return subscription_of(metadata).version
    except ProtocolViolationError:
        return 0


def _places(partitions: Iterable[tuple[str, int]], catalog: Catalog) -> Places:
    found: set[Place] = set()
    for topic, partition in partitions:
        facts = catalog.topics.get(topic)
        if facts is not None and 0 <= partition < facts.partitions:
            found.add((facts.topic_id, partition))
    return frozenset(found)
