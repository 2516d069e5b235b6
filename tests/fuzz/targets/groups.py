"""Rows of `__groups` that say who is in a group, and what members of the classic protocol say of themselves."""

from typing import Any, Final

import msgspec

from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.coordination.consumer_terms import (
    Catalog,
    ClassicPart,
    GroupBounds,
    GroupRow,
    Kind,
    Member,
    TopicFacts,
)
from antiphon.coordination.mixed_group import ClassicBeat, MixedGroup, is_all_classic
from antiphon.errors import UNDECODABLE, ProtocolViolationError, UnknownTopicError
from antiphon.kafka.groups import mixed
from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_row import ClassicMember, ClassicRow, decoded, encoded
from antiphon.kafka.groups.consumer_rows import _decoded, _encoded
from antiphon.kafka.groups.subscription import assigned_partitions, assignment_bytes, subscription_of
from antiphon.kafka.groups.types import GroupConfig, Join
from tests.fuzz.target import Target, check

TOPIC: Final = b"t" * 16
NAME: Final = "m"  # of the member that a row is about, by its key
CATALOG: Final = Catalog(1, {"t": TopicFacts(TOPIC, 4)})
SUBSCRIPTION: Final = b"\0\3\0\0\0\1\0\1t\xff\xff\xff\xff\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\7\0\1r"
CLASSIC: Final = ClassicPart(10_000, (("range", SUBSCRIPTION), ("sticky", b"\0\0\0\0\0\0\xff\xff\xff\xff")))


class _Topics:
    """What is asked of a gateway: the names of topics."""

    def topic_by_id(self, topic_id: bytes) -> Any:
        if topic_id != TOPIC:
            raise UnknownTopicError("no topic has this id")
        return msgspec.defstruct("Named", [("name", str)])("t")


TOPICS: Final[Any] = _Topics()


class GroupRows(Target):
    """A row of a group of the consumer protocol, as a coordinator reads it; the first byte says of what kind.

    A group of such a member answers both protocols, and becomes a classic one where it can.
    """

    _kinds = tuple(Kind)

    def seeds(self) -> list[bytes]:
        member = Member(NAME, 3, 2, topics=("t",), assigned=frozenset({(TOPIC, 0), (TOPIC, 2)}))
        classic = msgspec.structs.replace(member, classic=CLASSIC, rebalance_ms=5_000, instance_id="i")
        away = msgspec.structs.replace(classic, epoch=-2, revoking=frozenset({(TOPIC, 3)}))
        bodies: dict[Kind, list[Any]] = {
            Kind.GROUP: [GroupRow(4, 3)],
            Kind.MEMBER: [classic, member, away],
            Kind.TARGET: [member.assigned],
            Kind.REGEX: [("t", "u")],
        }
        return [
            bytes([self._kinds.index(kind)]) + _encoded(body)
            for kind, found in bodies.items()
            for body in found
        ]

    def run(self, data: bytes) -> None:
        kind = self._kinds[data[0] % len(self._kinds)] if data else Kind.GROUP
        name = (kind, NAME if kind in {Kind.MEMBER, Kind.TARGET} else "")
        try:
            body = _decoded(name, data[1:])
        except (*UNDECODABLE, ValueError):
            return
        check(_decoded(name, _encoded(body)) == body, "a row is another one after it was written")
        if isinstance(body, Member):
            group = MixedGroup.restored(0, GroupBounds(), {name: body})
            self._goes_over(group)
            self._goes_on(group, body)

    def _goes_over(self, group: ConsumerGroup) -> None:
        """The group as a classic one: what a coordinator would not read, it would not write."""
        if not isinstance(group, MixedGroup) or not is_all_classic(group):
            return
        row = mixed.row_of(group, TOPICS, 0)
        check(row is not None, "a member has no protocol in common with itself")
        if row is None:
            return
        try:
            kept = decoded(encoded(row))
        except (*UNDECODABLE, ValueError):
            return
        check(kept == row, "a classic row is another one after it was written")
        ClassicGroup.restored("g", GroupConfig(), 0, kept)

    def _goes_on(self, group: ConsumerGroup, member: Member) -> None:
        check(isinstance(group, MixedGroup), "it is no group of members of both protocols")
        if not isinstance(group, MixedGroup):
            return
        asked = ClassicBeat(member.member_id, member.instance_id, member.epoch)
        group.beat(1, asked, CATALOG)
        group.sync(1, asked, None, None)
        group.check_classic(asked)
        mixed.assignment_of(member, member.assigned, TOPICS)
        group.tick(2**40)
        check(not group.members, "a silent member stays for ever")


class ClassicRows(Target):
    """The row of a classic group, as a coordinator reads it, and as one that the group brings to the other protocol."""

    def seeds(self) -> list[bytes]:
        given = assignment_bytes(3, (("t", (0, 2)),))
        member = ClassicMember(NAME, "i", "c", "h", 10_000, 60_000, CLASSIC.protocols, given)
        row = ClassicRow(7, "consumer", "range", NAME, 1_700_000_000_000, (member,), True, True)
        other = msgspec.structs.replace(member, member_id="n", instance_id=None, assignment=b"")
        return [
            encoded(row),
            encoded(msgspec.structs.replace(row, members=(member, other), rejoins=False)),
            encoded(ClassicRow(7, "consumer", None, None, 1)),
            encoded(row.without_members),
        ]

    def run(self, data: bytes) -> None:
        try:
            row = decoded(data)
        except (*UNDECODABLE, ValueError):
            return
        check(decoded(encoded(row)) == row, "a row is another one after it was written")
        group = ClassicGroup.restored("g", GroupConfig(), 0, row)
        try:
            members = mixed.adopted(group, CATALOG) if group.protocol_name is not None else ()
        except ProtocolViolationError:
            return
        found = MixedGroup()
        found.adopt(0, group.generation, members)
        for name, body in found.take_changes().items():
            if body is not None:
                check(_decoded(name, _encoded(body)) == body, "what it brings cannot be read")


class Subscriptions(Target):
    """What a classic member says of itself in JoinGroup (first byte even), and what a leader gives it (odd)."""

    def seeds(self) -> list[bytes]:
        given = assignment_bytes(3, (("t", (0, 2)), ("u", ())))
        return [b"\0" + SUBSCRIPTION, b"\0\0\1\0\0\0\0\xff\xff\xff\xff\0\0\0\0", b"\1" + given]

    def run(self, data: bytes) -> None:
        try:
            if data[:1] and data[0] % 2:
                given = assigned_partitions(data[1:], mixed.PARTITIONS_MAX)
                again = assigned_partitions(assignment_bytes(3, given), mixed.PARTITIONS_MAX)
                check(again == given, "an assignment is another one after it was written")
                return
            said = subscription_of(data[1:])
            join = mixed.join_of(_join(data[1:]), CATALOG, lambda _: True)
        except ProtocolViolationError:
            return
        check(said.version >= 0, "a version below 0")
        check(
            all(topic == TOPIC and 0 <= at < 4 for topic, at in join.owned), "what is not there is somebody's"
        )
        found = MixedGroup().join(0, join, CATALOG)
        if isinstance(found, Member):
            check(found.assigned <= {(TOPIC, at) for at in range(4)}, "it is given what is not there")


def _join(metadata: bytes) -> Join:
    return Join("", None, "c", "h", 10_000, 60_000, "consumer", (("range", metadata),), "n")
