"""What the API answers. The schemas of the OpenAPI document are made from these types, so the two cannot differ."""

from typing import Annotated, Generic, TypeVar

from msgspec import Meta, Struct

from antiphon.model.plans import Plan

T = TypeVar("T")

Millis = Annotated[int, Meta(description="ms since 1970")]
BigInt = Annotated[
    str, Meta(description="a whole number as text: it may have more digits than readers of JSON keep")
]


class Answer(Struct, frozen=True, kw_only=True):
    """Base of all answers."""


class Page(Answer, Generic[T], frozen=True, kw_only=True):
    """A piece of a list."""

    items: list[T]
    start: Annotated[int, Meta(description="the place of the first item in the whole list")]
    total: Annotated[int, Meta(description="how many items the whole list has")]
    next: Annotated[int | None, Meta(description="`start` of the next piece; null: this is the last one")]
    is_partial: Annotated[
        bool, Meta(description="there is more than was looked at, or a node did not answer")
    ] = False


class Continued(Answer, Generic[T], frozen=True, kw_only=True):
    """A piece of what is read in order."""

    items: list[T]
    after: Annotated[str | None, Meta(description="`after` of the next piece; null: this is the last one")]
    is_partial: Annotated[bool, Meta(description="a node did not answer, so some items are missing")] = False


class Data(Answer, frozen=True, kw_only=True):
    """Bytes: as text where they are UTF-8, else in base64."""

    text: str | None
    base64: bytes | None
    size_bytes: Annotated[int, Meta(description="of all of it")]
    is_cut: Annotated[bool, Meta(description="this is the beginning only: ask for more with `max_bytes`")]


class Problem(Answer, frozen=True, kw_only=True):
    """Why a request is refused or failed (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: Annotated[str, Meta(description="what was asked, what was found, what to do")]
    code: Annotated[str, Meta(description="a short stable name for programs")]
    parameter: Annotated[str | None, Meta(description="the parameter or field that is wrong")] = None
    asked: Annotated[str | None, Meta(description="what was given for it")] = None
    do: Annotated[str | None, Meta(description="what would be taken")] = None
    facts: dict[str, str | int | bool | None] = {}


# -- cluster and nodes --------------------------------------------------------------------------------------------


class Trouble(Answer, frozen=True, kw_only=True):
    """Something that is wrong, or was."""

    level: Annotated[str, Meta(description="bad, warn or mended")]
    what: str
    do: Annotated[str, Meta(description="what a person is to do; empty: nothing")]
    since_ms: Annotated[int, Meta(description="ms since 1970; 0: not known")]


class ClusterInfo(Answer, frozen=True, kw_only=True):
    """The cluster, as the node that was asked knows it."""

    cluster_id: str
    metadata_version: int
    node: Annotated[int, Meta(description="the node that answers")]
    controller: Annotated[int, Meta(description="the node that coordinates; -1: none is known")]
    voters: Annotated[list[int], Meta(description="the nodes that hold the metadata's log")]
    health: Annotated[str, Meta(description="healthy, degraded or unhealthy")]
    counts: Annotated[
        dict[str, int], Meta(description="nodes, up, topics, tables, shards, led, thin (not all live)")
    ]
    troubles: list[Trouble]
    more_troubles: int
    mended: list[Trouble]


class CountersInfo(Answer, frozen=True, kw_only=True):
    """What a node has counted since its start; durations by `latency_bounds_s`, not cumulative."""

    appends: int
    append_records: int
    append_bytes: int
    fetches: int
    fetch_bytes: int
    table_ops: int
    table_reads: int
    elections: int
    cpu_ms: int
    descriptors: int
    commit_counts: list[int]
    disk_counts: list[int]
    latency_bounds_s: list[float]


class ScrubInfo(Answer, frozen=True, kw_only=True):
    """How far the scrub of a node's disk is."""

    shard_id: Annotated[int | None, Meta(description="what it reads now")]
    done_bytes: int
    total_bytes: int
    waiting: Annotated[int, Meta(description="shards that are due")]
    completed_ms: Annotated[int, Meta(description="since when all has been read, ms since 1970; 0: not yet")]
    read_bytes: int
    errors: int
    bytes_per_s: Annotated[int, Meta(description="0: on request only")]
    interval_s: int


class NodeInfo(Answer, frozen=True, kw_only=True):
    """A node. What only the node itself can tell is null where it does not answer."""

    node: int
    is_alive: bool
    is_draining: bool
    answers: bool
    is_controller: bool
    is_voter: bool
    native: str
    kafka: str
    http: str
    rack: str
    leads: Annotated[int, Meta(description="shards")]
    holds: Annotated[int, Meta(description="replicas")]
    version: str | None = None
    uptime_ms: int | None = None
    memory_bytes: int | None = None
    counters: CountersInfo | None = None
    scrub: ScrubInfo | None = None


class SettingValue(Answer, frozen=True, kw_only=True):
    """A value of a setting, and where it stands."""

    value: str
    source: Annotated[str, Meta(description="node, all (set for all nodes), file (its node.toml) or default")]


class NodeSettingInfo(Answer, frozen=True, kw_only=True):
    """A setting of a node that can be changed while it runs."""

    name: Annotated[str, Meta(description="as in node.toml, with its section")]
    kafka_name: str
    value: Annotated[str, Meta(description="what the node goes by")]
    source: Annotated[str, Meta(description="node, all (set for all nodes), file (its node.toml) or default")]
    values: Annotated[list[SettingValue], Meta(description="all that there are, the one that counts first")]
    allowed: Annotated[str, Meta(description="what it may be, in words")]
    effect: Annotated[str, Meta(description="from when on a change counts, and for what")]


class SetValue(Answer, frozen=True, kw_only=True):
    """What is set for a node, or for all of them."""

    node: Annotated[int | None, Meta(description="null: for all nodes")]
    name: str
    value: str


class SubscriptionInfo(Answer, frozen=True, kw_only=True):
    """Which metrics are wanted, of which of Kafka's clients, and how often."""

    name: str
    metrics: Annotated[str, Meta(description="prefixes of metrics' names, with commas between; *: all")]
    interval_ms: Annotated[int, Meta(description="between two pushes of a client")]
    match: Annotated[str, Meta(description="ATTRIBUTE=REGEX, with commas between; empty: every client")]


class FindingInfo(Answer, frozen=True, kw_only=True):
    """What a node found to be wrong on its disk or in its replicas, or what was and is mended."""

    node: int
    kind: str
    shard: Annotated[str | None, Meta(description="topic/shard; null: it is about the node")]
    level: str
    what: str
    do: str
    since_ms: Millis
    mended_ms: Annotated[int, Meta(description="ms since 1970; 0: not mended")]


class EventInfo(Answer, frozen=True, kw_only=True):
    """What happened, as the node that was asked heard of it."""

    at_ms: Millis
    kind: str
    subject: str
    what: str


# -- topics and shards --------------------------------------------------------------------------------------------


class TopicInfo(Answer, frozen=True, kw_only=True):
    """A topic or table."""

    name: str
    id: Annotated[str, Meta(description="in hexadecimal")]
    kind: Annotated[str, Meta(description="topic or table")]
    shards: int
    shards_led: int
    replicas: int
    profile: str
    is_internal: bool
    config: Annotated[dict[str, str], Meta(description="what was set for it alone")]
    records: Annotated[int | None, Meta(description="offsets that its logs have; null: not known")] = None
    size_bytes: Annotated[int | None, Meta(description="of its leaders' logs; null: not known")] = None


class SettingInfo(Answer, frozen=True, kw_only=True):
    """One setting as it applies."""

    name: str
    value: str
    source: Annotated[str, Meta(description="topic, profile or default")]
    default: str
    about: str


class ReplicaInfo(Answer, frozen=True, kw_only=True):
    """A replica, as its node tells; nulls where that does not answer."""

    node: int
    role: Annotated[str, Meta(description="leader, follower or learner")]
    is_live: bool
    state: str | None
    log_end: int | None
    behind: Annotated[int | None, Meta(description="entries that its leader has and it has not")]


class ShardInfo(Answer, frozen=True, kw_only=True):
    """A shard: who holds it, who leads it, and how far its log is."""

    topic: str
    shard: int
    shard_id: int
    state: Annotated[str, Meta(description="Online, Election, CandidateFound or Offline")]
    leader: int | None
    term: int
    ensemble: list[int]
    learners: list[int]
    outgoing: list[int]
    goal: Annotated[list[int], Meta(description="where it is being moved; empty: it is not")]
    hashes: Annotated[list[int], Meta(description="first and last of its keys' hashes; empty: by its number")]
    log_start: int | None = None
    high_watermark: int | None = None
    log_end: int | None = None
    size_bytes: int | None = None
    replicas: Annotated[
        list[ReplicaInfo], Meta(description="empty for who may not describe the cluster")
    ] = []


class TopicDetail(Answer, frozen=True, kw_only=True):
    """A topic or table with all of its settings, and its first shards."""

    topic: TopicInfo
    settings: list[SettingInfo]
    shards: Page[ShardInfo]


class HeaderInfo(Answer, frozen=True, kw_only=True):
    """A header of a record."""

    name: str
    value: Data | None


class RecordInfo(Answer, frozen=True, kw_only=True):
    """A record of a log."""

    offset: int
    timestamp_ms: Millis
    key: Data | None
    value: Data | None
    headers: list[HeaderInfo]


class BadBatchInfo(Answer, frozen=True, kw_only=True):
    """A batch that cannot be read."""

    offset: int
    why: str


class Records(Answer, frozen=True, kw_only=True):
    """Records of a shard from an offset on. Transactions that were aborted, and are open, are left out."""

    topic: str
    shard: int
    items: list[RecordInfo]
    unreadable: list[BadBatchInfo]
    start: Annotated[int, Meta(description="the offset from which on was read")]
    next: Annotated[int | None, Meta(description="`offset` of the next piece; null: the log ends there now")]
    log_start: int
    high_watermark: int
    by_node: Annotated[int | None, Meta(description="the node whose replica was read; null: nothing was")]
    is_stale: Annotated[bool, Meta(description="that node does not lead the shard: it may lack the newest")]


# -- tables -------------------------------------------------------------------------------------------------------


class RowInfo(Answer, frozen=True, kw_only=True):
    """A row of a table."""

    key: Data
    value: Data
    version: int
    modifications: int
    created_ms: Millis
    modified_ms: Millis
    session: BigInt | None
    after: Annotated[str, Meta(description="the key in hexadecimal, as `after` takes it")]


class SessionInfo(Answer, frozen=True, kw_only=True):
    """An open session in one shard of a table, as the shard's leader knows it."""

    session: BigInt
    table: str
    shard: int
    timeout_ms: int
    keys: Annotated[
        int | None, Meta(description="that were put under it, whoever has put them since; null: not counted")
    ]
    age_ms: Annotated[
        int, Meta(description="since it was opened, or since this leader took over, which knows no more")
    ]
    left_ms: Annotated[int, Meta(description="until it expires, if its client stays silent")]


# -- groups, transactions, jobs -----------------------------------------------------------------------------------


class GroupInfo(Answer, frozen=True, kw_only=True):
    """A consumer group or share group: its kind, state and members; of how many shards it has an offset."""

    group: str
    kind: Annotated[
        str | None, Meta(description="classic, consumer or share; null: its coordinator does not tell")
    ]
    state: Annotated[str | None, Meta(description="as Kafka calls it; null: its coordinator does not tell")]
    members: int | None
    offsets: int
    topics: list[str]


class GroupMemberInfo(Answer, frozen=True, kw_only=True):
    """A member of a group, and the shards that it reads, by topic."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    assigned: dict[str, list[int]]


class PositionInfo(Answer, frozen=True, kw_only=True):
    """Where a group is in a shard: the next offset that it reads, or the start offset of a share group."""

    topic: str
    shard: int
    offset: int
    end: int | None
    lag: int | None
    commit_ms: Annotated[int | None, Meta(description="ms since 1970; null: a share group's")]
    note: str
    done: Annotated[int, Meta(description="records from the start offset on that a share group has done")]
    locked: Annotated[
        int | None,
        Meta(description="records that members of a share group work on; null: not known, or no share group"),
    ]


class GroupDetail(Answer, frozen=True, kw_only=True):
    """A group with its members and positions; `lag` adds those of this piece."""

    group: str
    kind: Annotated[str, Meta(description="classic, consumer or share")]
    state: Annotated[str, Meta(description="as Kafka calls it; Dead: there is no such group")]
    members: Annotated[list[GroupMemberInfo], Meta(description="the first 200")]
    member_count: int
    lag: int
    positions: Page[PositionInfo]


class TransactionInfo(Answer, frozen=True, kw_only=True):
    """A transactional id."""

    transactional_id: str
    state: str
    producer_id: BigInt
    producer_epoch: int
    timeout_ms: int
    began_ms: Annotated[int | None, Meta(description="ms since 1970; null: none is open")]
    shards: list[str]
    groups: list[str]


class JobInfo(Answer, frozen=True, kw_only=True):
    """A named Spark job that remembers how far it is."""

    job: str
    is_ended: bool
    parts: Annotated[int, Meta(description="that are through")]
    changed_ms: Millis
    plan: str
    end: str


class QueryInfo(Answer, frozen=True, kw_only=True):
    """A Spark query that writes: its newest epoch for a topic or table."""

    query: str
    target: str
    epoch: int
    rows: int
    decided_ms: Millis
    applied_ms: Annotated[
        int | None, Meta(description="ms since 1970; null: it is not all in the target yet")
    ]
    lag_ms: Annotated[
        int, Meta(description="how long the epoch has been decided and not applied; 0: it is applied")
    ]


# -- people -------------------------------------------------------------------------------------------------------


class UserInfo(Answer, frozen=True, kw_only=True):
    """A user; never a secret."""

    name: str
    mechanisms: list[str]


class AclInfo(Answer, frozen=True, kw_only=True):
    """An entry of the access control lists."""

    principal: str
    permission: str
    operation: str
    resource: str
    name: str
    pattern: str
    host: str


class QuotaInfo(Answer, frozen=True, kw_only=True):
    """A quota. Of the entity: null: no part of it, empty: everyone."""

    user: str | None
    client_id: str | None
    ip: str | None
    limits: dict[str, float]


# -- actions ------------------------------------------------------------------------------------------------------


class Outcome(Answer, frozen=True, kw_only=True):
    """What became of an action."""

    done: Annotated[
        bool,
        Meta(description="false: it was a dry run, or what was decided takes longer and goes on by itself"),
    ]
    dry_run: bool
    plan: Annotated[
        Plan | None, Meta(description="of a dry run: what the coordinator would decide first")
    ] = None
