"""What requests to the API may say: parameters of path and query, and bodies. Names, bounds and words are the document's."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from antiphon.model.access import ANY, Operation, Pattern, Permission, Resource

LIMIT: Final = 100
LIMIT_MAX: Final = 1_000
TEXT_MAX: Final = 1_024
KEY_HEX_MAX: Final = 8_192
OFFSET_MAX: Final = (1 << 63) - 1
VALUE_BYTES: Final = 2_048
VALUE_BYTES_MAX: Final = 256 * 1024
EVENTS_MAX: Final = 500
SESSIONS_MAX: Final = 250

Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX)]
Start = Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="the place of the first item")]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="how many items at most")]
Filter = Annotated[
    str, Meta(max_length=TEXT_MAX, description="only names with this in them, whatever the case")
]
TopicName = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, description="name of the topic or table")]
ShardIndex = Annotated[int, Meta(ge=0, le=1_000_000, description="number of the shard, from 0")]
NodeId = Annotated[int, Meta(ge=0, le=1_000_000, description="id of the node")]
AnyNode = Annotated[int, Meta(ge=-1, le=1_000_000, description="id of the node; -1: whoever fits best")]
Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
Internal = Annotated[bool, Meta(description="with the cluster's own ones")]
MaxBytes = Annotated[
    int, Meta(ge=0, le=VALUE_BYTES_MAX, description="how many bytes of each key and value are told")
]


class Asked(Struct, frozen=True, kw_only=True):
    """Base of all of them."""


class Nothing(Asked, frozen=True, kw_only=True):
    """No parameters."""


class Listed(Asked, frozen=True, kw_only=True):
    """Of a list."""

    start: Start = 0
    limit: Limit = LIMIT


class Filtered(Listed, frozen=True, kw_only=True):
    """Of a list of what has names."""

    q: Filter = ""


class OneNode(Asked, frozen=True, kw_only=True):
    """A node."""

    node: NodeId


class ListSettings(Listed, frozen=True, kw_only=True):
    """Settings of a node."""

    node: NodeId


class ListShards(Filtered, frozen=True, kw_only=True):
    """Of the list of shards."""

    topic: Annotated[str, Meta(max_length=TEXT_MAX, description="of this topic or table only")] = ""
    node: Annotated[int | None, Meta(description="only shards of which this node holds a replica")] = None
    state: Annotated[
        Literal["", "online", "offline", "thin", "moving"],
        Meta(
            description="online; offline: without leader; thin: not all replicas live; moving: to other nodes"
        ),
    ] = ""
    internal: Internal = False


class ListTopics(Filtered, frozen=True, kw_only=True):
    """Of the list of topics."""

    kind: Literal["", "topic", "table"] = ""
    internal: Internal = False


class ListTables(Filtered, frozen=True, kw_only=True):
    """Of the list of tables."""

    internal: Internal = False


class OneTopic(Listed, frozen=True, kw_only=True):
    """A topic or table, and which of its shards."""

    topic: TopicName


class ReadRecords(Asked, frozen=True, kw_only=True):
    """Records of a shard."""

    topic: TopicName
    shard: ShardIndex = 0
    offset: Annotated[
        Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None,
        Meta(description="from this offset on; by default the newest"),
    ] = None
    timestamp_ms: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 53)] | None,
        Meta(description="from the first record of this time (ms since 1970) or later on"),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="how many records at most")] = 50
    q: Annotated[
        str, Meta(max_length=TEXT_MAX, description="only records with this text in their key or value")
    ] = ""
    max_bytes: MaxBytes = VALUE_BYTES


class ReadRows(Asked, frozen=True, kw_only=True):
    """Rows of a table."""

    table: TopicName
    key: Annotated[
        Annotated[str, Meta(max_length=TEXT_MAX)] | None, Meta(description="this key only, as text")
    ] = None
    key_hex: Annotated[
        Annotated[str, Meta(max_length=KEY_HEX_MAX)] | None, Meta(description="this key only, in hexadecimal")
    ] = None
    prefix: Annotated[str, Meta(max_length=TEXT_MAX, description="only keys that begin with this text")] = ""
    after: Annotated[
        str, Meta(max_length=KEY_HEX_MAX, description="only keys behind this one, in hexadecimal")
    ] = ""
    shard: Annotated[
        Annotated[int, Meta(ge=0, le=1_000_000)] | None,
        Meta(description="of this shard only; by default of all"),
    ] = None
    version: Annotated[
        Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None,
        Meta(description="with a key: the row that it was when it had this version"),
    ] = None
    as_of: Annotated[
        Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | None,
        Meta(description="as the rows were when the shard's log ended at this offset; of one shard"),
    ] = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="how many rows at most")] = 50
    max_bytes: MaxBytes = VALUE_BYTES


class ListSessionsOf(Asked, frozen=True, kw_only=True):
    """Open sessions of tables."""

    table: Annotated[str, Meta(max_length=TEXT_MAX, description="of this table only")] = ""
    limit: Annotated[int, Meta(ge=1, le=SESSIONS_MAX, description="how many sessions at most")] = LIMIT
    after: Annotated[
        str, Meta(pattern=r"^([0-9]{1,12}-[0-9]{1,19})?$", description="as the piece before said it")
    ] = ""


class OneGroup(Listed, frozen=True, kw_only=True):
    """A group."""

    group: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, description="name of the group")]


class ListTransactionsOf(Asked, frozen=True, kw_only=True):
    """Transactional ids."""

    q: Filter = ""
    after: Annotated[str, Meta(max_length=TEXT_MAX, description="only ids behind this one")] = ""
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="how many ids at most")] = LIMIT


class ListEvents(Asked, frozen=True, kw_only=True):
    """Events."""

    limit: Annotated[
        int, Meta(ge=1, le=EVENTS_MAX, description="how many events at most, the newest first")
    ] = LIMIT
    kind: Annotated[str, Meta(max_length=TEXT_MAX, description="of this kind only, as `leader`")] = ""


# -- actions ------------------------------------------------------------------------------------------------------

DryRun = Annotated[bool, Meta(description="say what would be decided, and decide nothing")]


class Action(Asked, frozen=True, kw_only=True):
    """Of an action."""

    dry_run: DryRun = False


class OfTopic(Action, frozen=True, kw_only=True):
    """Of an action on a topic or table."""

    topic: TopicName


class OfShard(OfTopic, frozen=True, kw_only=True):
    """Of an action on a shard."""

    shard: ShardIndex


class OfNode(Action, frozen=True, kw_only=True):
    """Of an action on a node."""

    node: NodeId


Settings = Annotated[dict[str, str], Meta(max_length=100, description="by name; others as the profile says")]


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all bodies. Fields that are not known are refused."""


class NoBody(Body, frozen=True, kw_only=True):
    """Nothing is to be said."""


class NewTopic(Body, frozen=True, kw_only=True):
    """A topic or table that is to be made."""

    name: Annotated[str, Meta(min_length=1, max_length=249)]
    kind: Literal["topic", "table"] = "topic"
    shards: Annotated[int, Meta(ge=1, le=10_000)] = 1
    replicas: Annotated[int, Meta(ge=0, le=31, description="0: one for each node, at most 3")] = 0
    profile: Annotated[str, Meta(max_length=100, description="empty: the cluster's default")] = ""
    config: Settings = {}


class TopicChange(Body, frozen=True, kw_only=True):
    """What is to be changed."""

    config: Annotated[
        dict[str, str | None], Meta(max_length=100, description="by name; null: back to the default")
    ] = {}
    shards: Annotated[int | None, Meta(description="how many there are to be; only more")] = None
    replicas: Annotated[int | None, Meta(description="of each shard")] = None


class OfUser(Action, frozen=True, kw_only=True):
    """Of an action on a user."""

    user: Annotated[str, Meta(min_length=1, max_length=255, description="name of the user")]


SECRET: Final = {"format": "password", "writeOnly": True}


class PasswordBody(Body, frozen=True, kw_only=True):
    """A password. The cluster keeps what proves it, and not the password."""

    password: Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, extra_json_schema=SECRET)]
    mechanisms: Annotated[
        list[Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]],
        Meta(max_length=2, description="what it is for; empty: both. The user logs in with no others then"),
    ] = []

    def __repr__(self) -> str:
        return f"PasswordBody(mechanisms={self.mechanisms})"


class AclEntry(Body, frozen=True, kw_only=True):
    """An entry of the access control lists."""

    principal: Annotated[str, Meta(max_length=TEXT_MAX, description="User:alice, or User:*")]
    operation: Operation
    resource: Resource = Resource.TOPIC
    name: Annotated[
        str, Meta(max_length=TEXT_MAX, description="of the resource; *: all of them; of the cluster: empty")
    ] = ""
    pattern: Pattern = Pattern.LITERAL
    permission: Permission = Permission.ALLOW
    host: Annotated[str, Meta(max_length=255, description="from where; *: from everywhere")] = ANY


class AclsBody(Body, frozen=True, kw_only=True):
    """Entries that are to be there, and entries that are not; one that is there, or gone, already is no error."""

    add: Annotated[list[AclEntry], Meta(max_length=1_000)] = []
    remove: Annotated[list[AclEntry], Meta(max_length=1_000)] = []


Entity = Annotated[str, Meta(max_length=255, description="null: no part of it, empty: everyone")] | None


class QuotaBody(Body, frozen=True, kw_only=True):
    """Limits of a user, of a client id, of both together, or of an address. Other limits of it stay."""

    user: Entity = None
    client_id: Entity = None
    ip: Entity = None
    limits: Annotated[
        dict[str, float | None], Meta(min_length=1, max_length=20, description="by name; null: take it away")
    ]


class ElectBody(Body, frozen=True, kw_only=True):
    """Who is to lead."""

    node: AnyNode = -1


class MoveBody(Body, frozen=True, kw_only=True):
    """From which node to which one a replica is to go."""

    from_node: NodeId
    to_node: NodeId


class PlaceBody(Body, frozen=True, kw_only=True):
    """Where the shard is to be."""

    nodes: Annotated[
        list[int],
        Meta(max_length=31, description="the preferred leader first; empty: back to where it is moved from"),
    ]


class SplitBody(Body, frozen=True, kw_only=True):
    """Where to split."""

    at: Annotated[
        int, Meta(ge=-1, le=(1 << 32) - 1, description="first hash of the new shard; -1: the upper half")
    ] = -1


class DrainBody(Body, frozen=True, kw_only=True):
    """Begin, or take it back."""

    cancel: bool = False


class RebalanceBody(Body, frozen=True, kw_only=True):
    """What to even out."""

    leaders_only: bool = False


class NodeSettingsBody(Body, frozen=True, kw_only=True):
    """Values of settings that can be changed while nodes run. Other settings stay."""

    settings: Annotated[
        dict[str, str | None],
        Meta(min_length=1, max_length=100, description="by name, or Kafka's name; null: take it away"),
    ]


class OfSubscription(Action, frozen=True, kw_only=True):
    """Of an action on a subscription to clients' metrics."""

    subscription: Annotated[str, Meta(min_length=1, max_length=255, description="name of the subscription")]


class SubscriptionBody(Body, frozen=True, kw_only=True):
    """What a subscription says, all of it."""

    metrics: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4_096,
            description="prefixes of the names that are wanted, with commas between; *: all",
        ),
    ]
    interval_ms: Annotated[int, Meta(ge=100, le=3_600_000, description="how often clients push")] | None = (
        None
    )
    match: Annotated[
        str, Meta(max_length=4_096, description="ATTRIBUTE=REGEX, with commas between; empty: every client")
    ] = ""


class ScrubBody(Body, frozen=True, kw_only=True):
    """What to read."""

    shard_id: Annotated[int, Meta(ge=-1, le=OFFSET_MAX, description="id of the shard; -1: all of them")] = -1
