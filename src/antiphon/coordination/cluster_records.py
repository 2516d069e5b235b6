"""Records of `__cluster`: how the objects of the cluster's metadata are written there, and read.

Each record is the after-image of one object: `cluster`, `node/<id>`, `topic/<name>`, `shard/<id>`, `counter/<name>`,
`user/<name>`, `acl/<key>`, `quota/<key>`, `settings/<node>` (-1: all nodes), `subscription/<name>`; or `voters`, who
holds `__cluster` itself (`antiphon.coordination.voters`), or `recovery`, the last one (`antiphon.coordination.recovery`).
Its value is a msgpack array that only ever gains fields at the end. The record `checkpoint` is of no object
(`antiphon.coordination.checkpoints`).

A version whose records an older version could misread must raise `FORMAT` and say so in each of them (`FORMAT_HEADER`): an
older version must not skip those.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.coordination.actions import Record
from antiphon.errors import UNDECODABLE
from antiphon.invariants import invariant
from antiphon.model.access import Acl, User
from antiphon.model.client_metrics import Subscription
from antiphon.model.metadata import ABSENT_NODE, CLUSTER_SHARD_ID, NodeMeta, Recovery, ShardMeta, TopicMeta
from antiphon.model.node_settings import NodeSettings
from antiphon.model.quotas import Quota
from antiphon.records.key_order import HIERARCHICAL
from antiphon.records.key_order import SETTING as KEY_SORTING

# Of records: new kinds, and fields or values that an older version cannot read, need another.
FORMAT: Final = 13
ACCESS_KINDS: Final = ("user", "acl", "quota")
ACCESS_FORMAT: Final = 2  # a version that does not read these would let nobody in, or everybody
COMPACTED_FORMAT: Final = 3  # a version that does not read these would take a compacted log for damaged
CHECKPOINT_FORMAT: Final = 4  # a version that does not read these would go by a part of the metadata
VOTERS_FORMAT: Final = 5  # a version that does not read these would count the votes of former voters
PREPARED_FORMAT: Final = 4  # the same versions know that a table's transactional batches are no rows yet
ATTRIBUTES_FORMAT: Final = 5  # the same versions read the attributes of rows in logs and stores of tables
# A version that does not read these would show deleted records, and forget the deletion.
DELETION_FORMAT: Final = 6
ORDER_FORMAT: Final = 6  # a version that does not read these would write rows without their place in an order
SHARE_FORMAT: Final = 7  # the same versions know share groups; no record has this format
# A version that does not read these would take a recovered shard's old replicas for its own.
RECOVERED_FORMAT: Final = 8
SETTINGS_FORMAT: Final = 9  # a version that does not read these would go on with what nodes' files say
# A version that does not read these would pass them over, and tell clients of none.
SUBSCRIPTIONS_FORMAT: Final = 10
# A version that does not read these would append without a look at what records expect.
EXPECTED_FORMAT: Final = 11
CLASSIC_FORMAT: Final = 12  # the same versions keep groups of the classic protocol; no record has this format
# The same versions know members of both protocols in one group; no record has this format.
MIXED_FORMAT: Final = 13
FORMAT_HEADER: Final = "antiphon.format"  # a record's header with its format, as digits; without it: 1


class KnownSince(NamedTuple):
    """A setting that topics or tables may have once all nodes know it: those that read the format `reads`.

    `earlier`: what a node of an earlier version would do with such a topic.
    """

    setting: str
    value: str
    reads: int
    earlier: str

    def __str__(self) -> str:
        return f"{self.setting}={self.value}"


OPTIONS: Final = (
    KnownSince(KEY_SORTING, HIERARCHICAL, ORDER_FORMAT, "writes rows without their place in that order"),
    KnownSince("expected.offset.header", "true", EXPECTED_FORMAT, "appends without a look at that header"),
)
"""Settings that an earlier version would pass over, and do harm by it: a row is all that another one takes, with a `FORMAT`
of its own where the version has none yet. A topic that has one is made or changed only while all nodes know it; its record
says the format, so that voters of an earlier version stop there; and none of them joins the cluster any more.
"""

CLUSTER_KEY = b"cluster"
CHECKPOINT_KEY = b"checkpoint"
VOTERS_KEY = b"voters"
RECOVERY_KEY = b"recovery"
SHARD_COUNTER = "shard"
TOPIC_COUNTER = "topic"
PRODUCER_COUNTER = "producer"


class ClusterRecord(msgspec.Struct, frozen=True, array_like=True):
    """The cluster itself. `bootstrapped`: the first tables of a fresh cluster have been created."""

    cluster_id: str
    bootstrapped: bool = False


class ShardRecord(msgspec.Struct, frozen=True, array_like=True):
    """A shard, and what only the coordinator needs to know of it.

    `untrusted` members came back with an empty disk instead of one that may have held committed entries. Their promise
    is no evidence of what was committed until they have caught up with a leader again. `appointed` is the node that led
    last, or was asked to, if leaders are appointed by hand.
    """

    topic_id: bytes
    meta: ShardMeta
    untrusted: tuple[int, ...] = ()
    appointed: int = ABSENT_NODE


class CheckpointRecord(msgspec.Struct, frozen=True, array_like=True):
    """Every object that exists where this record is has a record at or after offset `begin`, which is a batch's first."""

    begin: int


_encode = msgspec.msgpack.Encoder().encode
_node = msgspec.msgpack.Decoder(NodeMeta)
_topic = msgspec.msgpack.Decoder(TopicMeta)
_shard = msgspec.msgpack.Decoder(ShardRecord)
_cluster = msgspec.msgpack.Decoder(ClusterRecord)
_counter = msgspec.msgpack.Decoder(int)
_DECODERS: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    "cluster": _cluster,
    "checkpoint": msgspec.msgpack.Decoder(CheckpointRecord),
    "node": _node,
    "topic": _topic,
    "shard": _shard,
    "counter": _counter,
    "user": msgspec.msgpack.Decoder(User),
    "acl": msgspec.msgpack.Decoder(Acl),
    "quota": msgspec.msgpack.Decoder(Quota),
    "settings": msgspec.msgpack.Decoder(NodeSettings),
    "subscription": msgspec.msgpack.Decoder(Subscription),
    "voters": msgspec.msgpack.Decoder(ShardMeta),
    "recovery": msgspec.msgpack.Decoder(Recovery),
}
_REMOVABLE: Final = {"node", "topic", "shard", "settings", "subscription", *ACCESS_KINDS}


class Unreadable(NamedTuple):
    """A skipped record: its place in the batch, and why."""

    place: int
    reason: str


class UnreadableError(ValueError):
    """The record has no meaning."""


class Change(NamedTuple):
    """A record that was read. `name` is a number for shards and nodes; `value` None: it is gone."""

    kind: str
    name: Any
    value: Any


def read_record(record: Record, version: int) -> Change:
    """The content of a record in a batch that ends at `version`.

    Whether it raises UnreadableError depends on these two alone.
    """
    key, value = record
    try:
        kind, _, text = key.decode().partition("/")
        name: str | int = text
        if kind in {"shard", "node", "settings"}:
            name = int(text)
            _expect(str(name) == text, "its number is not written as one")
        found = None if value is None else _decoded(kind, value)
    except UNDECODABLE as error:
        raise UnreadableError(f"record {key[:40]!r}: {error}") from error
    _expect(kind in _DECODERS, f"kind {kind[:40]!r} is unknown")
    _expect(found is not None or kind in _REMOVABLE, f"a {kind} is never removed")
    if isinstance(found, ShardRecord):
        _expect(found.meta.shard_id == name and bool(found.meta.aim), f"it is not shard {name}")
    elif isinstance(found, NodeMeta):
        _expect(found.node_id == name, f"it is not node {name}")
    elif isinstance(found, TopicMeta):
        _expect(found.name == name and not found.shards, f"it is not topic {name!r} alone")
    elif isinstance(found, CheckpointRecord):
        _expect(not name and 0 <= found.begin < version, f"a checkpoint does not begin at {found.begin}")
    elif isinstance(found, ShardMeta):
        _expect(
            not name and found.shard_id == CLUSTER_SHARD_ID and bool(found.ensemble), "it names no voters"
        )
    elif isinstance(found, Recovery):
        _expect(not name and found.term > 0, "it is no recovery")
    elif isinstance(found, User | Acl | Quota | NodeSettings | Subscription):
        _expect_own(kind, name, found)
    return Change(kind, name, found)


def _decoded(kind: str, value: bytes) -> Any:
    decoder = _DECODERS.get(kind)
    return None if decoder is None else decoder.decode(value)


def _expect_own(kind: str, name: str | int, found: User | Acl | Quota | NodeSettings | Subscription) -> None:
    if isinstance(found, NodeSettings):
        _expect(found.node == name and bool(found.values), f"it is not what is set for node {name}")
    else:
        _expect(not isinstance(found, Subscription) or bool(found.values), f"{kind} {name!r} says nothing")
        own = found.name if isinstance(found, User | Subscription) else found.key
        _expect(own == name, f"it is not {kind} {name!r}")


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise UnreadableError(otherwise)


def cluster_record(cluster: ClusterRecord) -> Record:
    """The record of the cluster itself."""
    return CLUSTER_KEY, _encode(cluster)


def checkpoint_record(begin: int) -> Record:
    """What closes a checkpoint that begins at this offset."""
    return CHECKPOINT_KEY, _encode(CheckpointRecord(begin))


def voters_record(voters: ShardMeta) -> Record:
    """Who votes in `__cluster`, and who is to."""
    return VOTERS_KEY, _encode(voters)


def recovery_record(recovery: Recovery) -> Record:
    """What a recovery from one voter's log writes first."""
    return RECOVERY_KEY, _encode(recovery)


def node_record(node: NodeMeta) -> Record:
    """The after-image of a node."""
    return b"node/%d" % node.node_id, _encode(node)


def node_gone(node_id: int) -> Record:
    """The tombstone of a node."""
    return b"node/%d" % node_id, None


def topic_record(topic: TopicMeta) -> Record:
    """The after-image of a topic or table, without its shards."""
    invariant(not topic.shards, "shards have records of their own")
    return b"topic/" + topic.name.encode(), _encode(topic)


def topic_gone(name: str) -> Record:
    """The tombstone of a topic or table."""
    return b"topic/" + name.encode(), None


def shard_record(shard: ShardRecord) -> Record:
    """The after-image of a shard."""
    return b"shard/%d" % shard.meta.shard_id, _encode(shard)


def shard_gone(shard_id: int) -> Record:
    """The tombstone of a shard."""
    return b"shard/%d" % shard_id, None


def counter_record(name: str, value: int) -> Record:
    """The next value that a counter will give."""
    return b"counter/" + name.encode(), _encode(value)


def access_record(kind: str, name: str, value: User | Acl | Quota | None) -> Record:
    """The after-image of a user, a list or a quota; None: its tombstone."""
    invariant(kind in ACCESS_KINDS, f"{kind} is not a kind of these")
    return f"{kind}/{name}".encode(), None if value is None else _encode(value)


def settings_record(entry: NodeSettings) -> Record:
    """The after-image of what is set for a node, or for all; without values: its tombstone."""
    return b"settings/%d" % entry.node, _encode(entry) if entry.values else None


def subscription_record(entry: Subscription) -> Record:
    """The after-image of a subscription to clients' metrics; without values: its tombstone."""
    return b"subscription/" + entry.name.encode(), _encode(entry) if entry.values else None


def options_in(config: Mapping[str, str]) -> list[KnownSince]:
    """Those of a topic's settings that not every version knows."""
    return [one for one in OPTIONS if config.get(one.setting) == one.value]


def headers_of(key: bytes, value: bytes | None) -> tuple[tuple[str, bytes], ...]:
    """The headers that a record is written with: its format, where that is above 1."""
    kind, number = key.partition(b"/")[0].decode(), 1
    if kind in ACCESS_KINDS:
        number = ACCESS_FORMAT
    elif kind == "topic" and value is not None:
        topic = msgspec.msgpack.decode(value, type=TopicMeta)
        number = COMPACTED_FORMAT if topic.is_compacted else 1
        number = max([number, *(one.reads for one in options_in(topic.config))])
    elif kind == "shard" and value is not None:
        meta = _shard.decode(value).meta
        number = DELETION_FORMAT if meta.deleted_before else 1
        number = RECOVERED_FORMAT if meta.recovery is not None else number
    elif key == CHECKPOINT_KEY:
        number = CHECKPOINT_FORMAT
    elif key in {VOTERS_KEY, RECOVERY_KEY}:
        number = VOTERS_FORMAT
    elif kind == "settings":
        number = SETTINGS_FORMAT
    elif kind == "subscription":
        number = SUBSCRIPTIONS_FORMAT
    return ((FORMAT_HEADER, b"%d" % number),) if number > 1 else ()
