"""Cluster metadata as a fold of the records of `__cluster`.

Each record is the after-image of one object: `cluster`, `node/<id>`, `topic/<name>`, `shard/<id>`, `counter/<name>`,
`user/<name>`, `acl/<key>` or `quota/<key>`. Its value is a msgpack array that only ever gains fields at the end.
Every node that folds the same prefix of the log has the same state. So the version of the state is the log offset up
to which it is folded, whichever node coordinates.

A record that cannot be read is skipped (`apply_readable`). The decision depends on the record alone, so all voters skip
the same ones. A version whose records an older version could misread must raise `FORMAT` and say so in each of them
(`FORMAT_HEADER`): an older version must not skip those.

The state also remembers which objects changed at which version (a bounded journal). So it answers "what changed since
v" in time proportional to the changes.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from antiphon.coordination.actions import Record
from antiphon.errors import UNDECODABLE
from antiphon.invariants import InvariantError, invariant
from antiphon.model.access import AccessBook, Acl, User
from antiphon.model.cluster import MetadataDelta, ShardChange
from antiphon.model.metadata import ABSENT_NODE, NodeMeta, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.quotas import Quota

JOURNAL_ENTRIES_MAX = 250_000

FORMAT: Final = (
    3  # of records: new kinds, and fields or values that an older version cannot read, need another
)
ACCESS_KINDS: Final = ("user", "acl", "quota")
ACCESS_FORMAT: Final = 2  # a version that does not read these would let nobody in, or everybody
COMPACTED_FORMAT: Final = 3  # a version that does not read these would take a compacted log for damaged
FORMAT_HEADER: Final = "antiphon.format"  # a record's header with its format, as digits; without it: 1

CLUSTER_KEY = b"cluster"
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


_encode = msgspec.msgpack.Encoder().encode
_node = msgspec.msgpack.Decoder(NodeMeta)
_topic = msgspec.msgpack.Decoder(TopicMeta)
_shard = msgspec.msgpack.Decoder(ShardRecord)
_cluster = msgspec.msgpack.Decoder(ClusterRecord)
_counter = msgspec.msgpack.Decoder(int)
_DECODERS: Final[dict[str, msgspec.msgpack.Decoder[Any]]] = {
    "cluster": _cluster,
    "node": _node,
    "topic": _topic,
    "shard": _shard,
    "counter": _counter,
    "user": msgspec.msgpack.Decoder(User),
    "acl": msgspec.msgpack.Decoder(Acl),
    "quota": msgspec.msgpack.Decoder(Quota),
}
_REMOVABLE: Final = {"node", "topic", "shard", *ACCESS_KINDS}


class Unreadable(NamedTuple):
    """A skipped record: its place in the batch, and why."""

    place: int
    reason: str


class _UnreadableError(ValueError):
    """The record has no meaning."""


class _Change(NamedTuple):
    """A record that was read. `name` is a number for shards and nodes; `value` None: it is gone."""

    kind: str
    name: Any
    value: Any


def _read(record: Record) -> _Change:
    """The content of a record; whether it raises _UnreadableError depends on the record alone."""
    key, value = record
    try:
        kind, _, text = key.decode().partition("/")
        name: str | int = text
        if kind in {"shard", "node"}:
            name = int(text)
            _expect(str(name) == text, "its number is not written as one")
        found = None if value is None else _decoded(kind, value)
    except UNDECODABLE as error:
        raise _UnreadableError(f"record {key[:40]!r}: {error}") from error
    _expect(kind in _DECODERS, f"kind {kind[:40]!r} is unknown")
    _expect(found is not None or kind in _REMOVABLE, f"a {kind} is never removed")
    if isinstance(found, ShardRecord):
        _expect(found.meta.shard_id == name and bool(found.meta.aim), f"it is not shard {name}")
    elif isinstance(found, NodeMeta):
        _expect(found.node_id == name, f"it is not node {name}")
    elif isinstance(found, TopicMeta):
        _expect(found.name == name and not found.shards, f"it is not topic {name!r} alone")
    elif isinstance(found, User):
        _expect(found.name == name, f"it is not user {name!r}")
    elif isinstance(found, Acl):
        _expect(found.key == name, f"it is not list {name!r}")
    elif isinstance(found, Quota):
        _expect(found.key == name, f"it is not quota {name!r}")
    return _Change(kind, name, found)


def _decoded(kind: str, value: bytes) -> Any:
    decoder = _DECODERS.get(kind)
    return None if decoder is None else decoder.decode(value)


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise _UnreadableError(otherwise)


def cluster_record(cluster: ClusterRecord) -> Record:
    """The record of the cluster itself."""
    return CLUSTER_KEY, _encode(cluster)


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


def headers_of(key: bytes, value: bytes | None) -> tuple[tuple[str, bytes], ...]:
    """The headers that a record is written with: its format, where that is above 1."""
    kind, number = key.partition(b"/")[0].decode(), 1
    if kind in ACCESS_KINDS:
        number = ACCESS_FORMAT
    elif kind == "topic" and value is not None:
        topic = msgspec.msgpack.decode(value, type=TopicMeta)
        number = COMPACTED_FORMAT if topic.is_compacted else 1
    return ((FORMAT_HEADER, b"%d" % number),) if number > 1 else ()


class ClusterState:
    """The fold. Objects are frozen; look-ups by node and by topic are kept up to date as records arrive."""

    def __init__(self) -> None:
        self.version = 0
        self.cluster: ClusterRecord | None = None
        self.nodes: dict[int, NodeMeta] = {}
        self.topics: dict[str, TopicMeta] = {}  # without shards
        self.names: dict[bytes, str] = {}  # topic id -> name
        self.shards: dict[int, ShardRecord] = {}
        self.counters: dict[str, int] = {}
        self.shards_of: dict[bytes, dict[int, None]] = {}  # topic id -> shard ids in order
        # node -> ids of the shards that it holds a replica of, learners and outgoing voters included, in order
        self.shards_on: dict[int, dict[int, None]] = {}
        self.led_by: dict[int, int] = {}  # node -> shards that it leads
        self.aimed_at: dict[int, int] = {}  # node -> shards that are meant to have it in their ensemble
        self.preferred_on: dict[int, int] = {}  # node -> shards that are meant to name it first
        self.access = AccessBook()
        self._journal: deque[tuple[int, str, int | str | bytes]] = deque()
        self._journal_from = 0  # the journal has every change after this version

    def apply(self, records: Iterable[Record], version: int) -> None:
        """Fold one committed batch that ends at `version`; batches must come in order, repeats are ignored.

        Raises InvariantError, and folds nothing, if a record cannot be read: for callers that know who wrote the
        records.
        """
        if version <= self.version:
            return
        try:
            changes = [_read(record) for record in records]
        except _UnreadableError as error:
            raise InvariantError(f"a record in __cluster: {error}") from error
        self._fold(changes, version)

    def apply_readable(self, records: Iterable[Record], version: int) -> list[Unreadable]:
        """The same for records in the log, whoever wrote them; returns the records that were skipped."""
        if version <= self.version:
            return []
        changes: list[_Change] = []
        unreadable: list[Unreadable] = []
        for place, record in enumerate(records):
            try:
                changes.append(_read(record))
            except _UnreadableError as error:
                unreadable.append(Unreadable(place, str(error)))
        self._fold(changes, version)
        return unreadable

    def _fold(self, changes: Iterable[_Change], version: int) -> None:
        for change in changes:
            self._apply_one(change, version)
        self.version = version
        self._bound_journal()

    def _apply_one(self, change: _Change, version: int) -> None:
        kind, name, value = change
        match kind:
            case "shard":
                if value is None:
                    self.drop_shard(name)
                else:
                    self.put_shard(value)
                self._journal.append((version, kind, name))
            case "node":
                if value is None:
                    self.nodes.pop(name, None)
                else:
                    self.nodes[name] = value
                self._journal.append((version, kind, name))
            case "topic":
                old = self.topics.get(name)
                if value is None:
                    self.drop_topic(name)
                else:
                    self.put_topic(value)
                for topic in (old, self.topics.get(name)):
                    if topic is not None:
                        self._journal.append((version, kind, topic.topic_id))
            case "counter":
                self.counters[name] = value
            case "cluster":
                self.cluster = value
            case _:
                self.access.put(kind, name, value)
                self._journal.append((version, kind, name))

    def put_topic(self, topic: TopicMeta) -> None:
        """Set a topic's after-image (its shards are set on their own)."""
        self.topics[topic.name] = topic
        self.names[topic.topic_id] = topic.name
        self.shards_of.setdefault(topic.topic_id, {})

    def drop_topic(self, name: str) -> None:
        """Forget a topic and its shards."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        for shard_id in list(self.shards_of.get(topic.topic_id, ())):
            self.drop_shard(shard_id)
        self.names.pop(topic.topic_id, None)
        self.shards_of.pop(topic.topic_id, None)

    def put_shard(self, record: ShardRecord) -> None:
        """Set a shard's after-image."""
        meta = record.meta
        old = self.shards.get(meta.shard_id)
        if old is None:
            self._place(meta)
            self._count_aim(meta.aim, 1)
            self.shards_of.setdefault(record.topic_id, {})[meta.shard_id] = None
        else:
            if _holders(old.meta) != _holders(meta):
                self._unplace(old.meta)
                self._place(meta)
            if old.meta.aim != meta.aim:
                self._count_aim(old.meta.aim, -1)
                self._count_aim(meta.aim, 1)
        old_leader = ABSENT_NODE if old is None else old.meta.leader
        if old_leader != meta.leader:
            self._count_leader(old_leader, -1)
            self._count_leader(meta.leader, 1)
        self.shards[meta.shard_id] = record

    def drop_shard(self, shard_id: int) -> None:
        """Forget a shard; its id is never used again."""
        old = self.shards.pop(shard_id, None)
        if old is None:
            return
        self._unplace(old.meta)
        self._count_aim(old.meta.aim, -1)
        self._count_leader(old.meta.leader, -1)
        self.shards_of.get(old.topic_id, {}).pop(shard_id, None)

    def is_alive(self, node_id: int) -> bool:
        """Is the node registered and believed to be up?"""
        node = self.nodes.get(node_id)
        return node is not None and node.alive

    def topic_with_shards(self, name: str) -> TopicMeta:
        """A topic as clients see it; raises KeyError."""
        topic = self.topics[name]
        shards = [self.shards[shard_id].meta for shard_id in self.shards_of[topic.topic_id]]
        shards.sort(key=lambda shard: shard.index)
        return msgspec.structs.replace(topic, shards=tuple(shards))

    def clone(self) -> "ClusterState":
        """An independent copy (without the journal)."""
        other = ClusterState()
        other.version = self.version
        other.cluster = self.cluster
        other.nodes, other.topics, other.names = dict(self.nodes), dict(self.topics), dict(self.names)
        other.shards, other.counters, other.led_by = dict(self.shards), dict(self.counters), dict(self.led_by)
        other.preferred_on, other.aimed_at = dict(self.preferred_on), dict(self.aimed_at)
        other.shards_of = {topic: dict(shards) for topic, shards in self.shards_of.items()}
        other.shards_on = {node: dict(shards) for node, shards in self.shards_on.items()}
        other.access = self.access.copy()
        other._journal_from = self.version
        return other

    def delta(
        self, base_version: int, *, cluster_id: str, controller: int, coordinator_term: int
    ) -> MetadataDelta:
        """The changes after `base_version`; everything if that is too long ago (or -1)."""
        if base_version < self._journal_from or base_version > self.version:
            return self._full(cluster_id, controller, coordinator_term)
        changed: dict[tuple[str, int | str | bytes], None] = {}
        for version, kind, name in reversed(self._journal):
            if version <= base_version:
                break
            changed[kind, name] = None
        keys = list(reversed(changed))
        node_ids = [int(name) for kind, name in keys if kind == "node"]
        topic_ids = [name for kind, name in keys if kind == "topic" and isinstance(name, bytes)]
        shard_ids = [int(name) for kind, name in keys if kind == "shard"]
        access = {kind: [str(name) for k, name in keys if k == kind] for kind in ACCESS_KINDS}
        return MetadataDelta(
            cluster_id=cluster_id,
            base_version=base_version,
            version=self.version,
            controller=controller,
            coordinator_term=coordinator_term,
            nodes=tuple(self.nodes[n] for n in node_ids if n in self.nodes),
            gone_nodes=tuple(n for n in node_ids if n not in self.nodes),
            topics=tuple(self.topics[self.names[t]] for t in topic_ids if t in self.names),
            gone_topics=tuple(t for t in topic_ids if t not in self.names),
            shards=tuple(
                ShardChange(self.shards[s].topic_id, self.shards[s].meta)
                for s in shard_ids
                if s in self.shards
            ),
            gone_shards=tuple(s for s in shard_ids if s not in self.shards),
            access=self.access.changes(access),
        )

    def _full(self, cluster_id: str, controller: int, coordinator_term: int) -> MetadataDelta:
        return MetadataDelta(
            cluster_id=cluster_id,
            base_version=-1,
            version=self.version,
            controller=controller,
            coordinator_term=coordinator_term,
            nodes=tuple(self.nodes.values()),
            topics=tuple(self.topics.values()),
            shards=tuple(ShardChange(s.topic_id, s.meta) for s in self.shards.values()),
            access=self.access.whole(),
        )

    def _place(self, meta: ShardMeta) -> None:
        for node in meta.everybody:
            self.shards_on.setdefault(node, {})[meta.shard_id] = None

    def _unplace(self, meta: ShardMeta) -> None:
        for node in meta.everybody:
            self.shards_on.get(node, {}).pop(meta.shard_id, None)

    def _count_aim(self, aim: tuple[int, ...], by: int) -> None:
        self.preferred_on[aim[0]] = self.preferred_on.get(aim[0], 0) + by
        for node in aim:
            self.aimed_at[node] = self.aimed_at.get(node, 0) + by

    def _count_leader(self, node: int, by: int) -> None:
        if node != ABSENT_NODE:
            self.led_by[node] = self.led_by.get(node, 0) + by

    def _bound_journal(self) -> None:
        while len(self._journal) > JOURNAL_ENTRIES_MAX:
            self._journal_from = self._journal.popleft()[0]


def _holders(meta: ShardMeta) -> tuple[tuple[int, ...], ...]:
    return meta.ensemble, meta.outgoing, meta.learners


def majority(ensemble: tuple[int, ...]) -> int:
    """How many members of an ensemble intersect every possible commit set (the leader counts, C9)."""
    return len(ensemble) // 2 + 1


def has_leader(meta: ShardMeta) -> bool:
    """Does the shard have a leader that answered?"""
    return meta.status == ShardStatus.ONLINE and meta.leader != ABSENT_NODE
