"""Groups of Kafka's clients over the native protocol: what their coordinators, and leaders of partitions, tell operators."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body

POSITIONS_MAX: Final = 1_000
HELD_MAX: Final = 10_000
Assigned = tuple[tuple[str, tuple[int, ...]], ...]
"""Topics with numbers of their shards."""


class GroupKind(StrEnum):
    """What a group is. `CLASSIC` is also what has left offsets, and whose protocol nobody knows any more."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class GetGroups(Body, frozen=True, array_like=True, tag=True):
    """Ask one node for the groups that it coordinates, or for what it knows of one.

    Attributes:
        group: "": all groups, by name, at most `limit` from `after` on, without what they consist of.
        start: of the positions of `group` by topic and shard, `limit` from this one on.
    """

    group: Annotated[str, Meta(max_length=1_024)] = ""
    after: str = ""
    start: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=0, le=POSITIONS_MAX)] = POSITIONS_MAX


class GroupMember(msgspec.Struct, frozen=True, array_like=True):
    """A member. `epoch`: its generation, where the group is of the classic protocol."""

    member_id: str
    instance_id: str
    client_id: str
    client_host: str
    epoch: int
    topics: tuple[str, ...]
    assigned: Assigned


class GroupPosition(msgspec.Struct, frozen=True, array_like=True):
    """Where a group is in a shard.

    Attributes:
        offset: the next one that it reads; of a share group the start offset: everything before it is done.
        done: records from there on that are done already, of a share group.
        end: the shard's high watermark; -1: not known now.
        locked: records that members of a share group work on; -1: not known now, or the group is another one.
        changed_ms: when the offset was committed; 0: not known.
    """

    topic: str
    shard: int
    offset: int
    done: int = 0
    end: int = -1
    locked: int = -1
    changed_ms: int = 0
    note: str = ""

    @property
    def lag(self) -> int | None:
        """Records that are not done; None: not known now."""
        return None if self.end < 0 else max(0, self.end - self.offset - self.done)


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    """A group. `state` is Kafka's word. Members and positions are told of one group only."""

    group: str
    kind: GroupKind
    state: str
    member_count: int
    epoch: int = -1
    members: tuple[GroupMember, ...] = ()
    positions: tuple[GroupPosition, ...] = ()
    position_count: int = 0


class HeldShare(msgspec.Struct, frozen=True, array_like=True):
    """A share-partition of the group that was asked for, at the partition's leader: records that members work on."""

    topic: str
    shard: int
    locked: int


class GroupsReply(Body, frozen=True, array_like=True, tag=True):
    """By name; `more`: ask again, after the last one. `held`: see `HeldShare`."""

    groups: tuple[GroupState, ...] = ()
    held: tuple[HeldShare, ...] = ()
    more: bool = False


def merged(replies: Iterable[GroupsReply]) -> GroupState | None:
    """What all nodes that were asked know of one group; None: none of them coordinates such a group."""
    found: GroupState | None = None
    locked: dict[tuple[str, int], int] = {}
    for reply in replies:
        for group in reply.groups:
            if found is None or (group.epoch, group.member_count) > (found.epoch, found.member_count):
                found = group
        locked.update({(held.topic, held.shard): held.locked for held in reply.held})
    if found is None or found.kind is not GroupKind.SHARE:
        return found
    positions = tuple(
        msgspec.structs.replace(one, locked=locked.get((one.topic, one.shard), one.locked))
        for one in found.positions
    )
    return msgspec.structs.replace(found, positions=positions)
