"""What members of type `consumer` say in JoinGroup and SyncGroup: the topics that they read, the partitions that they have.

The coordinator looks at it where it must not take away what somebody reads, and where operators ask.
"""

from collections.abc import Iterable
from typing import Final

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.groups.types import Member
from antiphon.kafka.primitives import Reader
from antiphon.model.groups import Assigned

CONSUMER: Final = "consumer"  # the protocol type of such groups
LOOKED_AT_BYTES_MAX: Final = 1024 * 1024  # of what all members of a group say


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
