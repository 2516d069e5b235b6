"""What goes into a consumer group's state machine and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from antiphon.coordination.consumer_assignors import SIMPLE
from antiphon.coordination.consumer_terms import GroupBounds
from antiphon.coordination.migration_policy import MigrationPolicy
from antiphon.coordination.offset_expiry import OffsetBounds
from antiphon.coordination.share_terms import ShareBounds

Token = object


class GroupState(StrEnum):
    """Kafka's names, as its tools show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final = frozenset({
    (GroupState.EMPTY, GroupState.PREPARING),  # the first member joins
    (GroupState.PREPARING, GroupState.COMPLETING),  # everybody has joined, or time is up
    (GroupState.PREPARING, GroupState.EMPTY),  # nobody is left
    (GroupState.COMPLETING, GroupState.STABLE),  # the assignments that the leader handed in are stored
    (GroupState.COMPLETING, GroupState.PREPARING),  # somebody came or went
    (GroupState.STABLE, GroupState.PREPARING),
})  # fmt: skip


class ShareConfig(NamedTuple):
    """Of share groups. `sessions_max`: of one node."""

    members: GroupBounds = GroupBounds(max_size=200, assignors=(SIMPLE,))
    records: ShareBounds = ShareBounds()
    sessions_max: int = 2_000
    partitions_max: int = 20_000  # share-partitions of one node


class GroupConfig(NamedTuple):
    """Bounds and delays in ms."""

    initial_delay_ms: int = 500  # how long the first member waits for company, and gets to know its topics
    session_ms_min: int = 100
    session_ms_max: int = 1_800_000
    rebalance_ms_max: int = 1_800_000
    members_max: int = 1_000
    metadata_bytes_max: int = 256 * 1024  # that a member may say about itself, for all its protocols
    assignment_bytes_max: int = 16 * 1024 * 1024  # of all members of a group
    kept_bytes_max: int = 32 * 1024 * 1024  # of all members of groups of a node: ids, metadata, assignments
    abandoned_ms: int = 10_000  # how long a member is kept whose connection ended while it waited to join
    consumer: GroupBounds = GroupBounds()  # of groups of the consumer protocol
    share: ShareConfig = ShareConfig()
    offsets: OffsetBounds = OffsetBounds()
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    def bounded(
        self,
        consumer: tuple[int, int, int],
        share: tuple[int, int, int],
        records: tuple[int, int, int],
        offsets: tuple[int, int],
        migration: str,
    ) -> "GroupConfig":
        """With what an operator says: interval of heartbeats, session time-out and size of either kind of groups, the
        bounds of share-partitions, how long offsets are kept and how often somebody looks for old ones, and in which
        directions groups with members go over to another protocol.
        """
        members = GroupBounds(*share, assignors=(SIMPLE,))
        return self._replace(
            consumer=GroupBounds(*consumer),
            share=self.share._replace(members=members, records=ShareBounds(*records)),
            offsets=OffsetBounds(*offsets),
            migration=MigrationPolicy(migration),
        )


DEFAULT_GROUP_CONFIG: Final = GroupConfig()


MEMBER_BYTES: Final = 512  # that a member takes besides what it says, and one who has yet to join


def protocols_bytes(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """Bytes of what a member says about itself."""
    return sum(len(name) + len(data) for name, data in protocols)


def ids_bytes(*ids: str | None) -> int:
    """About so many bytes what a member is called takes."""
    return sum(len(one) for one in ids if one)


class Join(NamedTuple):
    """A JoinGroup request. `new_member_id` is used if the member needs one; `id_first`: it must come back with it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    new_member_id: str
    id_first: bool = False
    can_skip_assignment: bool = False


class Joined(NamedTuple):
    """Answer to a JoinGroup. `members`, for the leader: (member id, instance id, metadata for the chosen protocol)."""

    error_code: int
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[tuple[str, str | None, bytes], ...] = ()


class Sync(NamedTuple):
    """A SyncGroup request. `assignments` are from the leader only."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


class Synced(NamedTuple):
    """Answer to a SyncGroup."""

    error_code: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class GroupAnswer(NamedTuple):
    """The answer for the request that brought `token`."""

    token: Token
    result: Joined | Synced


@dataclass(slots=True)
class Member:
    """One member. It is not timed out while an answer to it is held back."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    expires_ms: int
    assignment: bytes = b""
    join_token: Token | None = None
    sync_token: Token | None = None
    owes_sync: bool = False

    @property
    def is_waiting(self) -> bool:
        """Is an answer to it held back?"""
        return self.join_token is not None or self.sync_token is not None

    @property
    def kept_bytes(self) -> int:
        """Bytes of its metadata, its assignment, its ids, and of what every member takes."""
        said = protocols_bytes(self.protocols) + len(self.assignment)
        return MEMBER_BYTES + said + ids_bytes(self.member_id, self.instance_id, self.client_id)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member said about itself for `protocol`."""
        return next((data for name, data in self.protocols if name == protocol), b"")
