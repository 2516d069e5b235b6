"""What members of type `consumer` say in JoinGroup and SyncGroup: the topics that they read, the partitions that they have.

The coordinator looks at it where it must not take away what somebody reads, and where operators ask.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.groups.types import Member
from antiphon.kafka.primitives import (
    Reader,
    put_count,
    put_i16,
    put_i32,
    put_nullable_bytes,
    put_nullable_string,
)
from antiphon.model.groups import Assigned

CONSUMER: Final = "consumer"  # the protocol type of such groups
LOOKED_AT_BYTES_MAX: Final = 1024 * 1024  # of what all members of a group say
FIRST_OWNED: Final = 1  # version of a subscription that says which partitions the member has
FIRST_GENERATION: Final = 2
FIRST_RACK: Final = 3
NEWEST: Final = 3
RACK_BYTES_MAX: Final = 256


class Subscription(NamedTuple):
    """What a member says in JoinGroup. `owned`: topics and partitions that it has; none where its version says nothing."""

    version: int
    topics: tuple[str, ...]
    owned: tuple[tuple[str, int], ...] = ()
    rack_id: str | None = None


def subscription_of(metadata: bytes) -> Subscription:
    """A ConsumerProtocolSubscription; of a later version what is known of it. Raises ProtocolViolationError."""
    reader = Reader(memoryview(metadata))
    version = reader.i16()
    if version < 0:
        raise ProtocolViolationError("a subscription has no version below 0")
    topics = tuple(filter(None, [reader.nullable_string() for _ in range(reader.count())]))
    if version < FIRST_OWNED:
        return Subscription(version, topics)
    reader.nullable_bytes()  # what assignors tell each other
    owned: list[tuple[str, int]] = []
    for _ in range(reader.count()):
        topic = reader.nullable_string() or ""
        owned.extend((topic, reader.i32()) for _ in range(reader.count()))
    if version >= FIRST_GENERATION:
        reader.i32()
    rack_id = reader.nullable_string() if version >= FIRST_RACK else None
    is_rack = rack_id is not None and 0 < len(rack_id.encode()) <= RACK_BYTES_MAX
    return Subscription(version, topics, tuple(owned), rack_id if is_rack else None)


def assignment_bytes(version: int, assigned: Assigned) -> bytes:
    """A ConsumerProtocolAssignment for a member whose subscription has this version."""
    out = bytearray()
    put_i16(out, min(version, NEWEST))
    put_count(out, len(assigned))
    for topic, partitions in assigned:
        put_nullable_string(out, topic)
        put_count(out, len(partitions))
        for partition in partitions:
            put_i32(out, partition)
    put_nullable_bytes(out, None)
    return bytes(out)


def subscribed_topics(members: Iterable[Member], protocol: str | None) -> frozenset[str] | None:
    """The topics that any member reads; None where that cannot be told. `protocol`: the chosen one, if there is one."""
    said = {
        data for member in members for name, data in member.protocols if protocol is None or name == protocol
    }
    if sum(map(len, said)) > LOOKED_AT_BYTES_MAX:
        return None
    topics: set[str] = set()
    for data in said:
        try:
            topics.update(_topics(data))
        except ProtocolViolationError:
            return None
    return frozenset(topics)


def _topics(metadata: bytes) -> list[str]:
    """Of a ConsumerProtocolSubscription: every version begins with its number and the topics."""
    reader = Reader(memoryview(metadata))
    if reader.i16() < 0:
        raise ProtocolViolationError("a subscription has no version below 0")
    found = [reader.nullable_string() for _ in range(reader.count())]
    return [topic for topic in found if topic is not None]


def assigned_partitions(assignment: bytes, partitions_max: int) -> Assigned:
    """Of a ConsumerProtocolAssignment: topics with partitions, so many at most. Raises ProtocolViolationError."""
    if not assignment:
        return ()
    reader = Reader(memoryview(assignment))
    if reader.i16() < 0:
        raise ProtocolViolationError("an assignment has no version below 0")
    found: list[tuple[str, tuple[int, ...]]] = []
    left = partitions_max
    for _ in range(reader.count()):
        topic = reader.nullable_string() or ""
        partitions = tuple(reader.i32() for _ in range(reader.count()))
        found.append((topic, partitions[:left]))
        left -= len(found[-1][1])
        if left <= 0:
            break
    return tuple(sorted(found))
