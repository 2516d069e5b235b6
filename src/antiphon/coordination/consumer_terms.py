"""What goes into a group of the consumer protocol (KIP-848) and what comes out of it.

A *place* is a partition of a topic, by the topic's id: a topic that is made again has none of the places of the old one.
Epochs and times are integers; times are milliseconds of one clock that never goes back.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

Place = tuple[bytes, int]  # topic id, partition
Places = frozenset[Place]
NO_PLACES: Final[Places] = frozenset()
Readers = Mapping[str, frozenset[bytes]]
"""By member id: the topics that it reads."""

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
AWAY_EPOCH: Final = -2  # of a static member that left for a while


class GroupState(StrEnum):
    """Kafka's names, as its tools show them."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"  # the target assignment is of an earlier epoch
    RECONCILING = "Reconciling"  # a member has not reached its target yet
    STABLE = "Stable"


class MemberState(StrEnum):
    """How far a member is on its way to its target."""

    STABLE = "stable"  # it may know of everything that its epoch gives it
    UNREVOKED = "unrevoked"  # it has to say first that it gave places up
    UNRELEASED = "unreleased"  # places of its target are still somebody else's


class Refused(StrEnum):
    """Why a request is refused."""

    UNKNOWN_GROUP = "no group of the consumer protocol has this name"
    UNKNOWN_MEMBER = "the group has no such member"
    FENCED_EPOCH = "the member's epoch is not the one that the group has for it"
    STALE_EPOCH = "the member has another epoch by now"
    UNRELEASED_INSTANCE = "another member has this instance id and has not left"
    FENCED_INSTANCE = "another member has taken over this instance id"
    FULL = "the group has as many members as it may have"
    # Of members of the classic protocol:
    OLD_GENERATION = "the member is in another generation by now"
    OTHER_PROTOCOLS = "the group's members do not know these protocols"
    REJOIN = "the member has to join again"


class GroupBounds(NamedTuple):
    """What an operator may choose; the names are those of Kafka's `group.consumer.*`."""

    heartbeat_interval_ms: int = 5_000
    session_timeout_ms: int = 45_000
    max_size: int = 1_000
    assignors: tuple[str, ...] = ("uniform", "range")  # the first one where members do not say


class TopicFacts(NamedTuple):
    """What an assignor knows of a topic. `racks`: of each partition's replicas; empty where nodes do not say theirs."""

    topic_id: bytes
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class Catalog(NamedTuple):
    """The topics that there are, as of one version of the metadata."""

    version: int
    topics: Mapping[str, TopicFacts]


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat request.

    Attributes:
        epoch: as the member knows it; 0 to join, -1 to leave, -2 for a static member that comes back soon.
        rebalance_ms: how long it may take to give places up; -1: as said before.
        topics, regex, assignor: what it wants; None: as said before.
        regex_topics: the topics that `regex`, or the one said before, matches now; None: nobody looked.
        owned: the places that it has; None: as said before.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = -1
    topics: tuple[str, ...] | None = None
    regex: str | None = None
    regex_topics: tuple[str, ...] | None = None
    assignor: str | None = None
    owned: Places | None = None

    @property
    def is_whole(self) -> bool:
        """Does the member say everything again, as one does that is not sure what the group knows?"""
        subscribes = self.topics is not None or self.regex is not None
        return self.rebalance_ms != -1 and subscribes and self.owned is not None


class Beaten(NamedTuple):
    """The answer to a heartbeat. `assigned` None: as it was told before. `interval_ms`: when the next one is due."""

    member_id: str
    epoch: int
    assigned: Places | None = None
    interval_ms: int = 0


class GroupRow(msgspec.Struct, frozen=True):
    """What is stored of a group as a whole.

    Attributes:
        epoch: rises with every change of what the members want and of the topics that they read.
        target_epoch: the one that the target assignment is of; below `epoch`, a new one has to be made.
        topics_hash: of the topics that are read, to see that one changed.
        assignor: that made the target assignment.
    """

    epoch: int = 0
    target_epoch: int = 0
    topics_hash: bytes = b""
    assignor: str = ""


class ClassicPart(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of a member that speaks the classic protocol, beside what is stored of every member.

    Attributes:
        session_ms: after so long a silence it is gone.
        protocols: names and metadata as its last JoinGroup had them; the first one is that which it follows here.
    """

    session_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class Member(msgspec.Struct, frozen=True):
    """What is stored of a member, beside its target.

    An earlier version passes over `classic`: to it, such a member is one that never says anything, and keeps what it has
    for a session.

    Attributes:
        epoch: -2 while a static member is away.
        previous_epoch: the one before, with which a member comes again whose answer was lost.
        assigned: what it may use. revoking: what it has to give up first.
    """

    member_id: str
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_ms: int = -1
    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    assigned: Places = NO_PLACES
    revoking: Places = NO_PLACES
    classic: ClassicPart | None = None

    @property
    def held(self) -> Places:
        """Everything that nobody else may be given."""
        return self.assigned | self.revoking


class Kind(StrEnum):
    """What a row of a group is about."""

    GROUP = "group"
    MEMBER = "member"
    TARGET = "target"  # the places that a member is to have in the end
    REGEX = "regex"  # the topics that a regular expression matched


RowName = tuple[Kind, str]  # and the member's id, or the expression; empty for the group's own row
RowBody = GroupRow | Member | Places | tuple[str, ...]
Changes = dict[RowName, RowBody | None]
"""Rows that are to be written in place of those of the same names; None: removed."""
