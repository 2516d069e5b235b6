"""Requests and replies of the native protocol.

Each travels in a frame as the msgpack array `[request_id, body]`; bulk bytes (record batches, snapshot chunks) are the
frame's payload and are never inside `body`. A reply repeats the request's id; a failure is answered by `Failure`.
Request id 0 marks a one-way message between nodes: no reply.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.errors import AntiphonError, from_wire
from antiphon.model.access import ACLS_MAX, Acl, Credential
from antiphon.model.attributes import PutAttributed
from antiphon.model.body import Body, OfShard
from antiphon.model.client_metrics import AlterSubscription
from antiphon.model.counters import Counters
from antiphon.model.findings import Finding, ScrubStatus
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.metadata import ClusterMeta, Kind, NodeMeta
from antiphon.model.node_settings import AlterNodeSettings
from antiphon.model.placement import Placement, PlaceReplicas, RecoverShard
from antiphon.model.quotas import Quota
from antiphon.model.rows import Row, Version
from antiphon.model.sessions import HASHES_MAX, PutEphemeral

PROTOCOL_VERSION = 1
FRAME_BYTES_MAX = 64 * 1024 * 1024
# What a request may hold, which is checked before any of it is decoded: decoding holds the event loop.
OPS_MAX: Final = 100_000  # operations of a TableWrite
GET_KEYS_MAX: Final = 10_000  # keys of a TableGet
FIND_KEYS_MAX: Final = 1_000  # the same, where rows next to keys are wanted; shards of a GetStatus
SETTINGS_MAX: Final = 1_000


class Failure(Body, frozen=True, array_like=True, tag=True):
    """The request failed; `code` is a key of `antiphon.errors.ERRORS`."""

    code: str
    message: str
    details: dict[str, str | int | bool | None] = {}

    def error(self) -> AntiphonError:
        """The error that it stands for."""
        return from_wire(self.code, self.message, dict(self.details))


class Done(Body, frozen=True, array_like=True, tag=True):
    """Success without a result."""


# -- connection and cluster ---------------------------------------------------------------------------------------


class Hello(Body, frozen=True, array_like=True, tag=True):
    """First frame on every connection. Nodes name themselves and their cluster; a foreign cluster is refused."""

    version: int
    who: str  # free text for logs, such as "antiphon-client/0.1.0"
    cluster_id: str | None = None
    node_id: int | None = None
    incarnation: str = ""


class HelloReply(Body, frozen=True, array_like=True, tag=True):
    """Who answers. `mechanisms`: a login with one of these comes next; none: no login is asked for."""

    version: int
    cluster_id: str
    node_id: int
    mechanisms: tuple[str, ...] = ()
    is_known: bool = False  # by a certificate: it may log in as somebody else, and need not


class Authenticate(Body, frozen=True, array_like=True, tag=True):
    """A message of a login (SASL), after `Hello` and before anything else. `mechanism` begins one, empty goes on with it."""

    data: bytes
    mechanism: str = ""


class AuthenticateReply(Body, frozen=True, array_like=True, tag=True):
    """The answer to it. `done`: the client has logged in."""

    data: bytes
    done: bool = False


class GetAccess(Body, frozen=True, array_like=True, tag=True):
    """Ask for users, access control lists and quotas."""


class AccessReply(Body, frozen=True, array_like=True, tag=True):
    """Names of users with their mechanisms, the entries, the quotas. The keys of credentials stay on the nodes."""

    users: tuple[tuple[str, tuple[str, ...]], ...]
    acls: tuple[Acl, ...]
    quotas: tuple[Quota, ...]


class GetMetadata(Body, frozen=True, array_like=True, tag=True):
    """Answered when the node's metadata version is above `known_version`, or after `wait_ms`; -1: at once."""

    known_version: int = -1
    wait_ms: int = 0


class MetadataReply(Body, frozen=True, array_like=True, tag=True):
    """The whole metadata as of `cluster.version`."""

    cluster: ClusterMeta


class CreateTopic(Body, frozen=True, array_like=True, tag=True):
    """Create a topic or table; answered when every shard leads. `replicas` 0: one per node, at most 3.

    An empty `profile` is the answering node's default. `validate_only`: all is checked, and nothing made.
    """

    name: str
    kind: Kind = Kind.TOPIC
    shards: int = 1
    replicas: int = 0
    profile: str = "oxia"
    config: Annotated[dict[str, str], Meta(max_length=SETTINGS_MAX)] = {}
    internal: bool = False
    validate_only: bool = False
    placement: Placement = ()


class DeleteTopic(Body, frozen=True, array_like=True, tag=True):
    """Delete a topic or table with its data."""

    name: str


class AlterTopic(Body, frozen=True, array_like=True, tag=True):
    """Change settings (value None: back to the default), add shards to a plain topic, or change the replicas of each shard.

    Answered when it is decided, before replicas move. `validate_only`: all is checked, and nothing changed.
    """

    name: str
    config: Annotated[dict[str, str | None], Meta(max_length=SETTINGS_MAX)] = {}
    shards: int | None = None
    replicas: int | None = None
    validate_only: bool = False
    placement: Placement = ()  # of the shards that are added


class ElectLeader(OfShard, frozen=True, array_like=True, tag=True):
    """Fence the shard and elect anew; `node` -1: whoever has the best log."""

    node: int = -1


class MoveReplica(OfShard, frozen=True, array_like=True, tag=True):
    """Replace one member of a shard by another node: it gets the log first, and counts when it has caught up."""

    from_node: int
    to_node: int


class DrainNode(Body, frozen=True, array_like=True, tag=True):
    """Move every replica of a node elsewhere and give it no new ones; `cancel` takes that back."""

    node: int
    cancel: bool = False


class RemoveNode(Body, frozen=True, array_like=True, tag=True):
    """Forget a node that is drained and stopped. Refused while it is in any ensemble, or alive, or votes in `__cluster`."""

    node: int


class AlterVoters(Body, frozen=True, array_like=True, tag=True):
    """Add a voter to `__cluster`, remove one, or both at once (-1: none); or take such a change back.

    Answered when it is decided.
    """

    add: int = -1
    remove: int = -1
    cancel: bool = False


class Rebalance(Body, frozen=True, array_like=True, tag=True):
    """Spread replicas (unless `leaders_only`) and leaderships evenly over the nodes that are not draining."""

    leaders_only: bool = False


class SplitShard(OfShard, frozen=True, array_like=True, tag=True):
    """Split a shard of a table: the upper half of its hashes, or those from `at` on, go to a new shard."""

    at: int = -1


class AlterUser(Body, frozen=True, array_like=True, tag=True):
    """Set credentials of a user, each in place of one of the same mechanism, and remove those of other mechanisms.

    A user is made by its first credential, and is gone with its last one, or when `remove` is set. With `if_none` nothing
    happens where there are users already.
    """

    name: str
    credentials: Annotated[tuple[Credential, ...], Meta(max_length=SETTINGS_MAX)] = ()
    gone_mechanisms: Annotated[tuple[str, ...], Meta(max_length=SETTINGS_MAX)] = ()
    remove: bool = False
    if_none: bool = False


class AlterAcls(Body, frozen=True, array_like=True, tag=True):
    """Add and remove entries of the access control lists; one that is there (or gone) already is no error."""

    add: Annotated[tuple[Acl, ...], Meta(max_length=ACLS_MAX)] = ()
    remove: Annotated[tuple[Acl, ...], Meta(max_length=ACLS_MAX)] = ()


class AlterQuota(Body, frozen=True, array_like=True, tag=True):
    """Set limits of an entity, take away those that are `gone` (by name; no error where one is not there), leave others."""

    quota: Quota
    gone: Annotated[tuple[str, ...], Meta(max_length=SETTINGS_MAX)] = ()


class NewProducerId(Body, frozen=True, array_like=True, tag=True):
    """Ask for a producer id that nobody else has."""


class ProducerId(Body, frozen=True, array_like=True, tag=True):
    """A fresh producer id. Its epoch and its sequences in every shard start at 0."""

    producer_id: int


class GetStatus(Body, frozen=True, array_like=True, tag=True):
    """Ask one node how it is, for its replicas of these shards (None: of all), and for this many of the last events."""

    shards: Annotated[tuple[int, ...], Meta(max_length=FIND_KEYS_MAX)] | None = None
    events: Annotated[int, Meta(ge=0)] = 0


class ReplicaStatus(msgspec.Struct, frozen=True, array_like=True):
    """One replica on the answering node. Followers' ends are known to the leader only."""

    shard_id: int
    role: str
    term: int
    log_start: int
    high_watermark: int
    log_end: int
    size_bytes: int
    followers: tuple[tuple[int, int], ...] = ()  # (node, acknowledged end)
    state: str = "ok"  # ok, joining (an older shard, not caught up yet), damaged, failed, disk_full
    applied: int = -1  # tables only
    vclock: tuple[int, ...] = ()  # with `writers=multi`: the last LSN of each origin; the first is local
    last_term: int = -1  # of the last entry; -1: it is not open, or from a version that does not tell


class StatusReply(Body, frozen=True, array_like=True, tag=True):
    """State of the answering node. `metadata_unreadable`: entries of `__cluster` that it passed over since its start."""

    node: NodeMeta
    version: str
    uptime_ms: int
    rss_bytes: int
    replicas: tuple[ReplicaStatus, ...]
    metadata_unreadable: int = 0
    findings: tuple[Finding, ...] = ()  # what is wrong, then what was and is mended
    scrub: ScrubStatus | None = None  # None: from a version without one
    counters: Counters | None = None
    metadata_version: int = -1  # -1: none yet, or from a version that does not tell
    events: tuple[tuple[int, str, str, str], ...] = ()  # as `antiphon.model.events.Event`, the oldest first
    # Name, written, read up to; none: from a version that does not tell
    formats: tuple[tuple[str, int, int], ...] = ()


# -- logs ---------------------------------------------------------------------------------------------------------


class AppendBatch(OfShard, frozen=True, array_like=True, tag=True):
    """Append the payload, one RecordBatch v2, at `expected_offset` or nowhere (KIP-27); `transactional_id`: it is a part.

    `internal`: a job of the cluster's own writes to an internal topic (`antiphon.model.internal`), here and below.
    """

    expected_offset: int | None = None
    timeout_ms: int = 30_000
    internal: bool = False
    transactional_id: str = ""


class Appended(Body, frozen=True, array_like=True, tag=True):
    """Durable and committed at `base_offset`; `duplicate`: an earlier try had put it there."""

    base_offset: int
    next_offset: int
    term: int
    duplicate: bool = False


class Fetch(OfShard, frozen=True, array_like=True, tag=True):
    """Read whole batches from `offset`; waits up to `wait_ms` for the first one.

    Isolation: committed (also by transactions), read_uncommitted (by the log alone), uncommitted, replica, follower (any
    replica's committed log), replica_committed, follower_committed, or empty: the topic's default (C7).
    """

    offset: int
    max_bytes: int = 1_048_576
    wait_ms: int = 0
    isolation: str = "committed"


class Fetched(Body, frozen=True, array_like=True, tag=True):
    """See FetchResult. The payload is zero or more batches; the first may start before the offset that was asked for."""

    high_watermark: int
    log_start: int
    log_end: int
    term: int
    stable_end: int = -1
    aborted: tuple[tuple[int, int, int], ...] = ()


class ListOffset(OfShard, frozen=True, array_like=True, tag=True):
    """First offset whose timestamp is at least `timestamp_ms`; -1: the high watermark; -2: the log start."""

    timestamp_ms: int


class OffsetReply(Body, frozen=True, array_like=True, tag=True):
    """See OffsetResult. Fields that have a default are not told by older versions."""

    offset: int
    timestamp_ms: int
    term: int
    log_start: int
    high_watermark: int
    default_end: int = -1
    stable_end: int = -1
    deleted_before: int = 0


class TrimShard(OfShard, frozen=True, array_like=True, tag=True):
    """Let the asked node's own replica begin later: at the batch that holds `before`, or where that is not settled yet."""

    before: int
    internal: bool = False


class Trimmed(Body, frozen=True, array_like=True, tag=True):
    """Where the replica's log begins now; may be below what was asked for."""

    log_start: int


# -- tables -------------------------------------------------------------------------------------------------------

# Rows and operations refer to bytes and numbers only, so the garbage collector need not look at them: there may be many.


class Put(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0, forbid_unknown_fields=True):
    """Set a key. `expected_version` None: whatever is there; -1 (ABSENT): only if the key is not there."""

    key: bytes
    value: bytes
    expected_version: int | None = None


class Delete(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1, forbid_unknown_fields=True):
    """Remove a key; `key_not_found` if it is not there."""

    key: bytes
    expected_version: int | None = None


class DeleteRange(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2, forbid_unknown_fields=True):
    """Remove every key in [start, end); an empty end means to the end."""

    start: bytes
    end: bytes


class Check(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3, forbid_unknown_fields=True):
    """Change nothing; refused unless the key has that version, or is not there (-1, ABSENT)."""

    key: bytes
    expected_version: int


TableOp = Put | Delete | DeleteRange | Check | PutEphemeral | PutAttributed | DeleteOrdered


class TableWrite(OfShard, frozen=True, array_like=True, tag=True):
    """Apply the operations in order as one entry. A refused operation does not refuse the others, unless `atomic`.

    `sequence` rises by any amount for each new request of a producer to a shard; a repeat of one of the last requests
    is answered with its first outcome. `hashes` is the range of key hashes that the sender takes for this shard's, where
    the table was ever split: an operation on a range of keys is refused when that is not (any more) so. `bulk`: the
    sender can wait; the node carries such requests out at the rate that it sees fit (`node.bulk_gate`), or answers
    `overloaded`. `after` is the sequence of the request that the sender sent this shard before this one and that has no
    answer yet (-1: none): the shard refuses with `not_ready` what would overtake it (`partition.write_order`).
    """

    ops: Annotated[tuple[TableOp, ...], Meta(max_length=OPS_MAX)]
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    timeout_ms: int = 30_000
    atomic: bool = False  # one refused operation refuses them all, and nothing is written
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()
    bulk: bool = False
    after: int = -1
    internal: bool = False
    placed: bool = False  # the sender has found the shard otherwise than by the keys


class OpStatus:
    """Outcome of one operation of a `TableWrite`, as in Oxia's protocol; the last is our own."""

    OK = 0
    KEY_NOT_FOUND = 1
    UNEXPECTED_VERSION = 2
    SESSION_NOT_FOUND = 3
    NOT_CARRIED_OUT = 4  # fine by itself, but another one of the same atomic request was refused


class OpResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`version` is the new one of an OK put; on UNEXPECTED_VERSION the one that was found, None where absent."""

    status: int
    version: Version | None = None
    key: bytes | None = None  # that the shard made, of a sequence


class TableWritten(Body, frozen=True, array_like=True, tag=True):
    """Results in the order of the operations. `offset` is where the effects stand in the log (-1: none)."""

    results: tuple[OpResult, ...]
    offset: int


class TableGet(OfShard, frozen=True, array_like=True, tag=True):
    """Read keys. Consistency: linearizable (default), leader (no round to the others), local (any replica, stale).

    `comparison`: 0 equal, 1 floor, 2 ceiling, 3 lower, 4 higher.
    """

    keys: Annotated[tuple[bytes, ...], Meta(max_length=GET_KEYS_MAX)]
    consistency: str = "linearizable"
    comparison: int = 0
    include_value: bool = True
    placed: bool = False  # as for `TableWrite`, as are the hashes, which count then
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()


class TableRows(Body, frozen=True, array_like=True, tag=True):
    """For a get: one row or None per key asked for. For a scan: rows in key order; `more`: continue after the last."""

    rows: tuple[Row | None, ...]
    more: bool = False


class TableScan(OfShard, frozen=True, array_like=True, tag=True):
    """Rows with start <= key < end (empty end: to the end) in byte order, at most `limit` rows and ~2 MiB a reply."""

    start: bytes
    end: bytes
    limit: int = 1000
    include_value: bool = True
    consistency: str = "linearizable"
    hashes: Annotated[tuple[int, ...], Meta(max_length=HASHES_MAX)] = ()  # as for `TableWrite`


AdminRequest = (
    CreateTopic | DeleteTopic | AlterTopic | ElectLeader | MoveReplica | DrainNode | RemoveNode | Rebalance | SplitShard
    | AlterUser | AlterAcls | AlterQuota | PlaceReplicas | AlterVoters | RecoverShard
    | AlterNodeSettings | AlterSubscription
)  # fmt: skip
"""What the coordinator carries out for a client."""
