"""Cluster metadata as nodes and clients see it: nodes, topics and tables, shards.

These records are also what the coordinator's log `__cluster` holds (its after-images), so they only ever gain optional
fields at the end.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest

ABSENT_NODE = -1
CLUSTER_SHARD_ID = 0  # the shard of `__cluster`; shards of topics and tables count from 1
SHARDS_MAX: Final = 10_000  # of one topic or table
HASH_MAX = 0xFFFF_FFFF  # key hashes are 32 bits


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


class SplitPhase(StrEnum):
    """How far the split of a table's shard is; see `antiphon.coordination.splits`."""

    COPY = "Copy"
    FREEZE = "Freeze"
    RELEASE = "Release"


class NodeMeta(msgspec.Struct, frozen=True, array_like=True):
    """A registered node. Addresses are `host:port`, empty if the node does not offer that listener."""

    node_id: int
    native: str
    kafka: str = ""
    oxia: str = ""
    http: str = ""
    alive: bool = True
    incarnation: str = ""  # changes at each start of the process
    disk_id: str = ""  # changes when the data directory is replaced
    draining: bool = False  # an operator wants its replicas elsewhere; it gets no new ones
    peer: str = ""  # for other nodes; empty: they use `native`
    rack: str = ""  # where it stands; empty: nobody said
    # Newest format of records of `__cluster` that it reads; programs that do not say so read this one
    reads: int = 3


class Split(msgspec.Struct, frozen=True, array_like=True):
    """The parent of a shard that is being split off, and the progress of the split.

    The parent's log accepts no writes to the range from `frozen_at` on. `start` is the first offset of the child's log
    that is not a copy. Both are known in the phase RELEASE.
    """

    parent: int
    phase: SplitPhase
    frozen_at: int = -1
    start: int = -1


class ShardRecovery(msgspec.Struct, frozen=True, array_like=True):
    """A shard that lost most replicas went on from one of them, by an operator's command.

    `term` is the first term after it: replicas that promised less, but for the one on `node`, have the old history.
    `members` held a replica before; what they have is kept until the shard is led again (`done`). `at` is where the log of
    `node` ended, as the operator saw it: what others had behind it is lost. `number` counts recoveries of the shard from 1.
    """

    term: int
    node: int
    members: tuple[int, ...]
    at: int
    number: int = 1
    done: bool = False


class ShardMeta(msgspec.Struct, frozen=True, array_like=True):
    """One shard. `leader` is ABSENT_NODE while there is none; `term` is its latest fenced term.

    `ensemble` are the voters; `outgoing` are the previous voters during a change (elections then need both majorities);
    `learners` receive the log and do not count. `fence` says what an election must intersect: "majority" of the
    ensemble; "live": any member of `live`, the recorded live set with number `live_version`; "both" while a shard
    changes from one to the other. `hashes`: inclusive range of key hashes of a table's shard that was split; empty: by
    index. `goal`: the wanted voters, the preferred leader first, until the change to them is finished. `split`: the
    shard is being split off another one and not part of its table yet. `own_start`: the log before this offset repeats
    the log of the parent. `origins`, with `writers=multi`: (node, its disk id) by origin id from 1; this only grows
    (S4.22). `deleted_before`: records before this offset were deleted on request; nobody is shown one. `recovery`: the
    last one, if ever most replicas were lost for good.
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
    split: Split | None = None
    own_start: int = 0
    origins: tuple[tuple[int, str], ...] = ()
    deleted_before: int = 0
    recovery: ShardRecovery | None = None

    @property
    def aim(self) -> tuple[int, ...]:
        """The intended ensemble: the goal while there is one."""
        return self.goal or self.ensemble

    @property
    def everybody(self) -> tuple[int, ...]:
        """All nodes that hold a replica, each once, voters first."""
        if not self.outgoing and not self.learners:
            return self.ensemble
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

    @property
    def is_compacted(self) -> bool:
        """Does compaction take records out of its logs? Each replica does that by itself, so their bytes differ."""
        return "compact" in cleanup_policies(self.config)


def cleanup_policies(config: Mapping[str, str]) -> set[str]:
    """What becomes of old records: `delete`, `compact` or both."""
    return {one.strip() for one in config.get("cleanup.policy", "delete").split(",")}


class Recovery(msgspec.Struct, frozen=True, array_like=True):
    """A cluster that lost most voters of `__cluster` went on from one voter's log.

    `term` is its mark: the first term of `__cluster` after it; `at` is where that log ended, so that what others had behind
    it is lost. `node` is the voter, `at_ms` the time by its machine's clock, `number` counts recoveries from 1.
    """

    term: int
    at: int
    node: int
    at_ms: int = 0
    number: int = 1


class ClusterMeta(msgspec.Struct, frozen=True, array_like=True):
    """All metadata at one version (= high watermark of `__cluster`). `controller` is the active coordinator's node."""

    cluster_id: str
    version: int
    controller: int
    nodes: tuple[NodeMeta, ...]
    topics: tuple[TopicMeta, ...]
    voters: ShardMeta | None = None  # who holds `__cluster`; None: an earlier version answers
    recovery: Recovery | None = None  # the last one


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


def key_hash(key: bytes) -> int:
    """The hash that places a key of a table: the low 32 bits of its xxHash3 (64 bits)."""
    return xxh3_64_intdigest(key) & HASH_MAX


class KeyRanges:
    """Maps a table's keys to shards: the only function that does so, for clients, listeners and nodes alike.

    If no shard was ever split, ranges are of equal size (`shard_range`); after the first split every shard names its
    own.
    """

    __slots__ = ("_ends", "_shards", "is_split")

    def __init__(self, shards: Sequence[ShardMeta]) -> None:
        """`shards` are all of the table's, in any order."""
        self.is_split = any(shard.hashes for shard in shards)
        count = len(shards)
        found = sorted(
            (shard.hashes if self.is_split else shard_range(shard.index, count), shard.shard_id, shard)
            for shard in shards
        )
        self._shards = [shard for _, _, shard in found]
        self._ends = [bounds[1] for bounds, _, _ in found]

    def shard_of(self, key: bytes) -> ShardMeta:
        """The shard that holds `key`."""
        if len(self._shards) == 1:
            return self._shards[0]
        return self._shards[bisect_left(self._ends, xxh3_64_intdigest(key) & HASH_MAX)]

    def shard_of_hash(self, hash32: int) -> ShardMeta:
        """The shard whose range holds `hash32`."""
        return self._shards[bisect_left(self._ends, hash32)]

    def range_of(self, shard: ShardMeta) -> tuple[int, int]:
        """First and last hash of a shard's keys."""
        at = self._shards.index(shard)
        return (self._ends[at - 1] + 1 if at else 0), self._ends[at]

    def starts(self) -> Iterator[tuple[int, ShardMeta]]:
        """The first hash of each shard's keys, in the order of their ranges."""
        at = 0
        for shard, end in zip(self._shards, self._ends, strict=True):
            yield at, shard
            at = end + 1

    def within(self, first: int, last: int) -> list[ShardMeta]:
        """The shards that hold keys with hashes from `first` to `last`, in the order of their ranges."""
        low = bisect_left(self._ends, first)
        return self._shards[low : bisect_left(self._ends, last) + 1]

    def parts_of(self, first: int, last: int) -> list[tuple[ShardMeta, tuple[int, ...]]]:
        """Those shards, each with the first and the last of these hashes that it holds; nothing where no shard was ever
        split, because such shards are asked without that.
        """
        found: list[tuple[ShardMeta, tuple[int, ...]]] = []
        for shard in self.within(first, last):
            low, high = self.range_of(shard)
            found.append((shard, (max(low, first), min(high, last)) if self.is_split else ()))
        return found


def is_multi(topic: TopicMeta) -> bool:
    """Does every replica write? Then each replica's log has its own order and its own offsets."""
    return topic.config.get("writers") == "multi" or any(shard.origins for shard in topic.shards)
