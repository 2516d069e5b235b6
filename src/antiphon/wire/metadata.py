"""Cluster metadata as nodes and clients see it: nodes, topics and tables, shards.

These records are also what the coordinator's log `__cluster` holds (its after-images), so they only ever gain optional
fields at the end.
"""

from enum import StrEnum

import msgspec

ABSENT_NODE = -1
CLUSTER_SHARD_ID = 0  # the shard of `__cluster`; shards of topics and tables count from 1


class Kind(StrEnum):
    """What a topic is: a plain log, or a log whose records fold into a table."""

    TOPIC = "topic"
    TABLE = "table"


class ShardStatus(StrEnum):
    """State of a shard's leadership (S3.8-S3.14)."""

    ONLINE = "Online"
    ELECTION = "Election"
    CANDIDATE_FOUND = "CandidateFound"
    OFFLINE = "Offline"


class NodeMeta(msgspec.Struct, frozen=True, array_like=True):
    """A registered node. Addresses are `host:port`, empty where the node does not offer that door."""

    node_id: int
    native: str
    kafka: str = ""
    oxia: str = ""
    http: str = ""
    alive: bool = True
    incarnation: str = ""  # changes at each start of the process
    disk_id: str = ""  # changes when the data directory is replaced
    draining: bool = False  # an operator wants its replicas elsewhere; it gets no new ones


class ShardMeta(msgspec.Struct, frozen=True, array_like=True):
    """One shard. `leader` is ABSENT_NODE while there is none; `term` is its latest fenced term.

    `ensemble` are the voters; `outgoing` are the voters before, while a change of them is under way (elections then need
    both majorities); `learners` are fed and do not count. `fence` says what an election must intersect: "majority" of the
    ensemble; "live": any member of `live`, which is the recorded live replica set, numbered `live_version`; "both" while a
    shard changes from one to the other. `hashes`: inclusive range of key hashes of a table's shard that was split; empty:
    by index. `goal`: the voters that are wanted, the preferred leader first, until the change to them is finished.
    """

    shard_id: int  # unique in the cluster, never reused
    index: int  # 0..shards-1 within the topic
    ensemble: tuple[int, ...]
    leader: int = ABSENT_NODE
    term: int = 0
    status: ShardStatus = ShardStatus.OFFLINE
    live: tuple[int, ...] = ()
    live_version: int = 0
    fence: str = "majority"
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()
    members_version: int = 0
    hashes: tuple[int, ...] = ()
    goal: tuple[int, ...] = ()

    @property
    def aim(self) -> tuple[int, ...]:
        """The ensemble as it is meant to be: the goal while there is one."""
        return self.goal or self.ensemble

    @property
    def everybody(self) -> tuple[int, ...]:
        """All nodes that hold a replica, each once, voters first."""
        found = dict.fromkeys(self.ensemble)
        found.update(dict.fromkeys(self.outgoing))
        found.update(dict.fromkeys(self.learners))
        return tuple(found)


class TopicMeta(msgspec.Struct, frozen=True, array_like=True):
    """A topic or table. `config` uses Kafka's names for topic settings (`retention.ms`, `max.message.bytes`, ...)."""

    name: str
    topic_id: bytes  # 16 bytes, never zero, never reused
    kind: Kind
    replicas: int
    profile: str
    shards: tuple[ShardMeta, ...]
    config: dict[str, str] = {}
    internal: bool = False


class ClusterMeta(msgspec.Struct, frozen=True, array_like=True):
    """Everything, at one version (= high watermark of `__cluster`). `controller` is the active coordinator's node."""

    cluster_id: str
    version: int
    controller: int
    nodes: tuple[NodeMeta, ...]
    topics: tuple[TopicMeta, ...]


def shard_range(index: int, shards: int) -> tuple[int, int]:
    """Inclusive range of 32-bit key hashes that a table's shard holds; the ranges of 0..shards-1 tile [0, 2^32)."""
    return (index << 32) // shards, (((index + 1) << 32) // shards) - 1


def shard_of_hash(hash32: int, shards: int) -> int:
    """The shard whose `shard_range` holds `hash32`."""
    index = (hash32 * shards) >> 32
    # Rounding of the bounds can put a hash one shard further than the plain product says.
    while hash32 > shard_range(index, shards)[1]:
        index += 1
    return index
