"""What is known of one shard over all its replicas and over all time, and who holds it.

`ShardTruth` is what the checker compares every event with; `Watched` is a living replica as it sees it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId, ShardId
from antiphon.replication.replica_base import ReplicaBase
from antiphon.replication.replica_state import Role
from antiphon.simulation.stored_log import StoredLog

if TYPE_CHECKING:
    from antiphon.simulation.replica_files import ReplicaFiles


class Watched(Protocol):
    """A living replica as the checker sees it, whoever carries out its actions."""

    term_seen: int
    mark_seen: int

    @property
    def node(self) -> NodeId:
        """Where it lives."""

    @property
    def shard(self) -> ShardId:
        """The shard that it is a replica of."""

    @property
    def files(self) -> "ReplicaFiles":
        """What its disk has."""

    @property
    def log(self) -> StoredLog:
        """Its log with what is not durable yet."""

    @property
    def replica(self) -> ReplicaBase:
        """The object under test."""

    @property
    def role(self) -> Role:
        """Its role, as it sees it itself."""

    def term_now(self) -> int:
        """Its term."""


class ShardTruth:
    """What is known of one shard over all its replicas and over all time."""

    def __init__(self, shard: ShardId, ensemble: tuple[NodeId, ...]) -> None:
        self.shard = shard
        self.members = Members(ensemble)  # as of the newest committed record of them
        self.live: tuple[NodeId, ...] = ()  # recorded, where elections go by it
        self.fence = "majority"
        self.min_live = 1
        self.may_lose = False  # acknowledged before it is settled, as the topic's rule allows
        self.files: dict[NodeId, ReplicaFiles] = {}
        self.hosted: dict[NodeId, Watched] = {}  # replicas that live now
        self.leaders: dict[int, NodeId] = {}
        self.chain_of: dict[tuple[int, int], int] = {}
        self.committed = StoredLog()
        self.commit_ends: list[tuple[int, int]] = []  # (term of the committing leader, end), both rising
        self.votes: dict[tuple[int, NodeId], NodeId] = {}
        self.promised: dict[NodeId, int] = {}

    @property
    def ensemble(self) -> tuple[NodeId, ...]:
        """Everybody who holds a replica."""
        return self.members.everybody

    def committed_before(self, term: int) -> int:
        """End of what leaders of terms below `term` have committed."""
        for commit_term, end in reversed(self.commit_ends):
            if commit_term < term:
                return end
        return 0


def holders(truth: ShardTruth, nodes: Iterable[NodeId], end: int, chain: int) -> list[NodeId]:
    """Those of `nodes` that have everything before `end`, whose chain is `chain`, on disk."""
    return [node for node in nodes if node in truth.files and holds_durably(truth.files[node], end, chain)]


def is_held(truth: ShardTruth, nodes: tuple[NodeId, ...], end: int, chain: int) -> bool:
    """Has a majority of `nodes` everything before `end` on disk?"""
    return 2 * len(holders(truth, nodes, end, chain)) > len(nodes)


def holds_durably(files: "ReplicaFiles", end: int, chain: int) -> bool:
    """Is everything committed before `end` on this disk, or cut off its head because it was applied?

    A log that is known to be damaged counts: it does not vote, so no election can miss what it has lost.
    """
    return files.damaged or files.log.start.offset >= end or files.log.chain_at(end) == chain
