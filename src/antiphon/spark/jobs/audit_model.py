"""What the audit is planned as, what its tasks find, and what it says in the end: plain records that travel as msgpack.

A *cut* is one set of positions for the whole run. Below it nothing may change any more, so whatever is written meanwhile,
every task looks at the same log. Per shard the cut is what every replica that works knows to be committed; the range below
it is divided into *blocks* by offsets. A batch belongs to the block that holds its base offset. Block borders are the same
for all replicas of a shard (where each of them begins and ends is a border, too), so two replicas that both hold a block
have to hold the same bytes in it, however their files are cut.
"""

from typing import Final

import msgspec

DIFFERS: Final = "differs"
INCOMPLETE: Final = "incomplete"
AGREE: Final = "agree"
NOTE: Final = "note"  # worth knowing; says nothing against the data

NOBODY: Final = -1
NOWHERE: Final = -1


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """Something that is not as it should be, and where. `verdict` is DIFFERS, INCOMPLETE or NOTE.

    `kind` is a short name for machines (`bad_crc`, `gap`, `repeat`, ...), `what` a sentence for people. `node` is NOBODY and
    `offset` is NOWHERE where the finding has none.
    """

    verdict: str
    kind: str
    shard_id: int
    node: int
    offset: int
    what: str
    key: bytes | None = None


class ReplicaPlan(msgspec.Struct, frozen=True, array_like=True):
    """One replica that is read: offsets from `start` to before `end`."""

    node: int
    start: int
    end: int
    size_bytes: int = 0


class ShardPlan(msgspec.Struct, frozen=True, array_like=True):
    """One shard. `bounds` are the borders of its blocks, ascending; a shard without anything to read has none.

    `hashes` as in the shard's metadata. `origins` is not empty where every replica writes: then it is the vector clock up to
    which entries are compared, offsets are each replica's own, and each replica has borders of its own (`own_bounds`).
    `reference` is the node whose log a table's stores are held against.
    """

    topic: str
    is_table: bool
    index: int
    shard_id: int
    cut: int
    bounds: tuple[int, ...]
    replicas: tuple[ReplicaPlan, ...]
    members: tuple[int, ...] = ()
    hashes: tuple[int, ...] = ()
    conflict: str = ""
    every_replica_writes: bool = False
    origins: tuple[int, ...] = ()
    own_bounds: tuple[tuple[int, ...], ...] = ()  # one for each of `replicas`
    reference: int = NOBODY
    internal: bool = False

    def bounds_of(self, node: int) -> tuple[int, ...]:
        """Borders of the blocks that `node` has: of those that its range covers."""
        for number, replica in enumerate(self.replicas):
            if replica.node == node:
                bounds = self.own_bounds[number] if self.own_bounds else self.bounds
                return tuple(bound for bound in bounds if replica.start <= bound <= replica.end)
        return ()

    @property
    def start(self) -> int:
        """The lowest offset that any replica still has."""
        return min((replica.start for replica in self.replicas), default=self.cut)


class AuditPlan(msgspec.Struct, frozen=True, array_like=True):
    """The whole run. `nodes` maps a node to its native address."""

    cluster_id: str
    nodes: dict[int, str]
    timeout_ms: int
    shards: tuple[ShardPlan, ...]
    findings: tuple[Finding, ...] = ()


class Marker(msgspec.Struct, frozen=True, array_like=True):
    """What a batch says of its producer, and where it stands."""

    epoch: int
    first: int
    last: int
    offset: int


class MarkerSpan(msgspec.Struct, frozen=True, array_like=True):
    """First and last batch of one producer in a block; what is between them was checked by who read it."""

    producer: int
    first: Marker
    last: Marker


class OriginSpan(msgspec.Struct, frozen=True, array_like=True):
    """Entries of one origin in a block, all of one range of LSNs: how many, and a sum of hashes that knows no order."""

    origin: int
    part: int  # which range of LSNs
    count: int
    total: int  # sum of the entries' hashes modulo 2^64
    low: int
    high: int
    low_offset: int
    high_offset: int


READ: Final = "read"
TRIMMED: Final = "trimmed"  # retention removed (a part of) it while the audit ran
UNREAD: Final = "unread"  # it could not be read; a finding says why


class Block(msgspec.Struct, frozen=True, array_like=True):
    """What one replica has in one block. `entry` is where its first batch has to begin, `next_offset` ends the last one."""

    shard_id: int
    node: int
    start: int
    end: int
    state: str
    digest: bytes = b""
    batches: int = 0
    size_bytes: int = 0
    entry: int = NOWHERE
    next_offset: int = NOWHERE
    first_term: int = -1
    last_term: int = -1
    markers: tuple[MarkerSpan, ...] = ()
    origins: tuple[OriginSpan, ...] = ()
    findings: tuple[Finding, ...] = ()


class ShardResult(msgspec.Struct, array_like=True):
    """What the logs of one shard come to. `differing` are blocks to be looked at again: (start, end, nodes)."""

    shard_id: int
    findings: list[Finding] = []
    differing: list[tuple[int, int, tuple[int, ...]]] = []
    offsets: int = 0  # compared, of one replica
    batches: int = 0  # the same
    size_bytes: int = 0  # read, of all replicas
    rows: int = 0  # of a table: keys held against each other
    rows_skipped: int = 0  # changed while they were read
    omitted: int = 0  # findings beyond the limit


encode = msgspec.msgpack.encode


def decode_plan(text: str) -> AuditPlan:
    """The plan out of the option that carries it."""
    return msgspec.json.decode(text, type=AuditPlan)


def encode_plan(plan: AuditPlan) -> str:
    """The plan as an option of a data source."""
    return msgspec.json.encode(plan).decode()
