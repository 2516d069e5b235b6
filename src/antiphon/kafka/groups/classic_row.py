"""What is kept of a group of the classic protocol: its last generation, who is in it, and what each member has.

Structures are arrays that only ever gain fields at the end: a version that knows fewer of them passes over the others.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from antiphon.kafka.groups.types import Member

_TEXT_BYTES_MAX: Final = 32_767  # of a string in Kafka's older protocol versions
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class ClassicMember(msgspec.Struct, frozen=True, array_like=True):
    """A member as it is kept; what a client says about itself is kept as it came."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class ClassicRow(msgspec.Struct, frozen=True, array_like=True):
    """The group.

    Attributes:
        changed_ms: the wall clock's time when it came to be stable, or empty.
        members: in the order in which they came; none where the group is empty.
        is_whole: False where the members were too large to be kept. They join again if the coordinator changes.
        rejoins: the members have to join again: somebody of another protocol went, and left partitions to nobody.
    """

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    changed_ms: int
    members: tuple[ClassicMember, ...] = ()
    is_whole: bool = True
    rejoins: bool = False

    @property
    def empty_since_ms(self) -> int | None:
        """Since when the group has no members; None where it has some."""
        return self.changed_ms if not self.members and self.is_whole else None

    @property
    def without_members(self) -> "ClassicRow":
        """As much as is kept where the members are too large."""
        return msgspec.structs.replace(self, leader=None, members=(), is_whole=False)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(ClassicRow)


def kept_of(members: Iterable[Member]) -> tuple[ClassicMember, ...]:
    """Members as they are kept."""
    return tuple(
        ClassicMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.session_ms,
            member.rebalance_ms,
            member.protocols,
            member.assignment,
        )
        for member in members
    )


def members_of(row: ClassicRow, now_ms: int) -> list[Member]:
    """The members, each of whose sessions begins now."""
    return [
        Member(
            kept.member_id,
            kept.instance_id,
            kept.client_id,
            kept.client_host,
            kept.session_ms,
            kept.rebalance_ms,
            kept.protocols,
            now_ms + kept.session_ms,
            kept.assignment,
        )
        for kept in row.members
    ]


def encoded(row: ClassicRow) -> bytes:
    """A row's value."""
    return _ENCODER.encode(row)


def decoded(value: bytes) -> ClassicRow:
    """What a row's value says, within what answers can carry; raises ValueError and what msgspec raises."""
    row = _DECODER.decode(value)
    if not 0 <= row.generation < _INT32_MAX or not 0 <= row.changed_ms <= _INT64_MAX:
        raise ValueError(f"generation {row.generation} or time {row.changed_ms} is out of range")
    if row.members:
        _check(row)
    return row


def _check(row: ClassicRow) -> None:
    ids = [member.member_id for member in row.members]
    instances = [member.instance_id for member in row.members if member.instance_id is not None]
    if len(set(ids)) < len(ids) or len(set(instances)) < len(instances):
        raise ValueError("two members have one id")
    if row.leader not in ids or not row.protocol_type:
        raise ValueError("the leader is no member, or there is no type of protocol")
    texts = [row.protocol_type, *ids, *instances]
    for member in row.members:
        names = [name for name, _ in member.protocols]
        if row.protocol_name not in names:
            raise ValueError(
                f"member {member.member_id!r} does not follow the protocol {row.protocol_name!r}"
            )
        if not (0 < member.session_ms <= _INT32_MAX and 0 <= member.rebalance_ms <= _INT32_MAX):
            raise ValueError(f"times of member {member.member_id!r} are out of range")
        texts += [member.client_id, member.client_host, *names]
    if any(len(text.encode()) > _TEXT_BYTES_MAX for text in texts):
        raise ValueError("a text that is too large")
