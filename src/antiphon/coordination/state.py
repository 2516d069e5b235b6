"""Cluster metadata as a fold of the records of `__cluster`.

Each record is the after-image of one object (`antiphon.coordination.cluster_records`). Every node that folds the same
prefix of the log has the same state. So the version of the state is the log offset up to which it is folded, whichever
node coordinates.

A record `checkpoint` says that every object which exists has a record at or after an offset
(`antiphon.coordination.checkpoints`). So a fold may begin at that offset instead of 0: it is `is_whole` from the first
checkpoint on that covers its beginning, and until then nobody may go by it.

A record that cannot be read is skipped (`apply_readable`). The decision depends on the record and its place alone, so all
voters skip the same ones.

The state also remembers which objects changed at which version (a bounded journal). So it answers "what changed since
v" in time proportional to the changes.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from antiphon.coordination.actions import Record
from antiphon.coordination.cluster_records import (
    Change,
    ClusterRecord,
    ShardRecord,
    Unreadable,
    UnreadableError,
    read_record,
)
from antiphon.errors import InvalidRequestError, UnknownShardError
from antiphon.invariants import InvariantError
from antiphon.model.access import AccessBook
from antiphon.model.client_metrics import Subscription, put_subscription
from antiphon.model.cluster import MetadataDelta, ShardChange
from antiphon.model.metadata import ABSENT_NODE, NodeMeta, Recovery, ShardMeta, ShardStatus, TopicMeta
from antiphon.model.node_settings import NodeSettings, put_entry

JOURNAL_ENTRIES_MAX = 250_000


class Checkpoint(NamedTuple):
    """The newest checkpoint of a fold: where it begins, and where the batch ends that closes it."""

    begin: int
    end: int


class ClusterState:
    """The fold. Objects are frozen; look-ups by node and by topic are kept up to date as records arrive.

    Attributes:
        version: the offset up to which the log is folded.
        begins_at: the offset at which the fold began.
        is_whole: does it have every object? Not before it has met a checkpoint that covers where it began.
        checkpoint: the newest one that it has met.
    """

    def __init__(self, begins_at: int = 0) -> None:
        self.version = self.begins_at = begins_at
        self.is_whole = not begins_at
        self.checkpoint: Checkpoint | None = None
        self.cluster: ClusterRecord | None = None
        self.voters: ShardMeta | None = None  # of `__cluster`; None: as it was founded
        self.recovery: Recovery | None = None  # the last one
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
        self.node_settings: dict[int, NodeSettings] = {}  # by node, `ALL_NODES` among them
        self.subscriptions: dict[str, Subscription] = {}  # to clients' metrics, by name
        self._journal: deque[tuple[int, str, int | str | bytes]] = deque()
        self._journal_from = begins_at  # the journal has every change after this version

    def apply(self, records: Iterable[Record], version: int) -> None:
        """Fold one committed batch that ends at `version`; batches must come in order, repeats are ignored.

        Raises InvariantError, and folds nothing, if a record cannot be read: for callers that know who wrote the
        records.
        """
        if version <= self.version:
            return
        try:
            changes = [read_record(record, version) for record in records]
        except UnreadableError as error:
            raise InvariantError(f"a record in __cluster: {error}") from error
        self._fold(changes, version)

    def apply_readable(self, records: Iterable[Record], version: int) -> list[Unreadable]:
        """The same for records in the log, whoever wrote them; returns the records that were skipped."""
        if version <= self.version:
            return []
        changes: list[Change] = []
        unreadable: list[Unreadable] = []
        for place, record in enumerate(records):
            try:
                changes.append(read_record(record, version))
            except UnreadableError as error:
                unreadable.append(Unreadable(place, str(error)))
        self._fold(changes, version)
        return unreadable

    def _fold(self, changes: Iterable[Change], version: int) -> None:
        for change in changes:
            self._apply_one(change, version)
        self.version = version
        self._bound_journal()

    def _apply_one(self, change: Change, version: int) -> None:
        kind, name, value = change
        match kind:
            case "shard":
                self._apply_shard(name, value, version)
            case "node":
                if self.nodes.get(name) == value is not None:
                    return  # a checkpoint repeats it
                if value is None:
                    self.nodes.pop(name, None)
                else:
                    self.nodes[name] = value
                self._journal.append((version, kind, name))
            case "topic":
                self._apply_topic(name, value, version)
            case "counter":
                self.counters[name] = value
            case "cluster":
                self.cluster = value
            case "voters":
                self.voters = value
            case "recovery":
                self.recovery = value
            case "checkpoint":
                self._close_checkpoint(value.begin, version)
            case _:
                if self._put_small(kind, name, value):
                    self._journal.append((version, kind, name))

    def _put_small(self, kind: str, name: int | str, value: Any) -> bool:
        """What is of no shard, topic or node; False: it was so already."""
        if kind == "settings":
            return put_entry(self.node_settings, value or NodeSettings(int(name), {}))
        if kind == "subscription":
            return put_subscription(self.subscriptions, value or Subscription(str(name), {}))
        return self.access.put(kind, str(name), value)

    def _apply_shard(self, shard_id: int, value: ShardRecord | None, version: int) -> None:
        if value is None:
            self.drop_shard(shard_id)
        elif self.shards.get(shard_id) == value:
            return
        else:
            self.put_shard(value)
        self._journal.append((version, "shard", shard_id))

    def _apply_topic(self, name: str, value: TopicMeta | None, version: int) -> None:
        old = self.topics.get(name)
        if value is None:
            self.drop_topic(name)
        elif old == value:
            return
        else:
            self.put_topic(value)
        for topic in (old, value):
            if topic is not None:
                self._journal.append((version, "topic", topic.topic_id))

    def _close_checkpoint(self, begin: int, version: int) -> None:
        if self.checkpoint is None or begin >= self.checkpoint.begin:
            self.checkpoint = Checkpoint(begin, version)
        if not self.is_whole and begin >= self.begins_at:
            self.is_whole = True
            # What was removed before its record came is not known by its id here.
            self._journal.clear()
            self._journal_from = version

    def objects(self) -> dict[str, Mapping[Any, Any]]:
        """What there is, by kind and name, in the order in which a checkpoint has it: topics before their shards."""
        single = {"cluster": self.cluster, "voters": self.voters, "recovery": self.recovery}
        return {
            **{kind: {} if found is None else {"": found} for kind, found in single.items()},
            "counter": self.counters,
            "node": self.nodes,
            "topic": self.topics,
            "shard": self.shards,
            **self.access.tables,
            "settings": self.node_settings,
            "subscription": self.subscriptions,
        }

    @property
    def object_count(self) -> int:
        """How many objects there are."""
        return sum(map(len, self.objects().values()))

    def shard(self, shard_id: int) -> ShardRecord:
        """The record of a shard; raises UnknownShardError where there is none."""
        record = self.shards.get(shard_id)
        if record is None:
            raise UnknownShardError(f"there is no shard {shard_id}")
        return record

    def put_topic(self, topic: TopicMeta) -> None:
        """Set a topic's after-image (its shards are set on their own). Another topic of that name is gone."""
        old = self.topics.get(topic.name)
        if old is not None and old.topic_id != topic.topic_id:
            self.drop_topic(topic.name)
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
        siblings = self.shards_of.get(old.topic_id, {})
        siblings.pop(shard_id, None)
        if not siblings and old.topic_id not in self.names:
            self.shards_of.pop(old.topic_id, None)

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
        other = ClusterState(self.begins_at)
        other.version, other.is_whole, other.checkpoint = self.version, self.is_whole, self.checkpoint
        other.cluster, other.voters, other.recovery = self.cluster, self.voters, self.recovery
        other.nodes, other.topics, other.names = dict(self.nodes), dict(self.topics), dict(self.names)
        other.shards, other.counters, other.led_by = dict(self.shards), dict(self.counters), dict(self.led_by)
        other.preferred_on, other.aimed_at = dict(self.preferred_on), dict(self.aimed_at)
        other.shards_of = {topic: dict(shards) for topic, shards in self.shards_of.items()}
        other.shards_on = {node: dict(shards) for node, shards in self.shards_on.items()}
        other.access, other.node_settings = self.access.copy(), dict(self.node_settings)
        other.subscriptions = dict(self.subscriptions)
        other._journal_from = self.version
        return other

    def delta(
        self, base_version: int, *, cluster_id: str, controller: int, coordinator_term: int
    ) -> MetadataDelta:
        """The changes after `base_version`; everything if that is too long ago (or -1)."""
        if self._journal_from <= base_version <= self.version:
            names = self._changed_since(base_version)
        else:
            base_version = -1
            names = {
                **{kind: list(found) for kind, found in self.objects().items()},
                "topic": list(self.names),
            }
        nodes, topics, shards = names["node"], names["topic"], names["shard"]
        return MetadataDelta(
            cluster_id=cluster_id,
            base_version=base_version,
            version=self.version,
            controller=controller,
            coordinator_term=coordinator_term,
            nodes=tuple(self.nodes[n] for n in nodes if n in self.nodes),
            gone_nodes=tuple(n for n in nodes if n not in self.nodes),
            topics=tuple(self.topics[self.names[t]] for t in topics if t in self.names),
            gone_topics=tuple(t for t in topics if t not in self.names),
            shards=tuple(
                ShardChange(self.shards[s].topic_id, self.shards[s].meta) for s in shards if s in self.shards
            ),
            gone_shards=tuple(s for s in shards if s not in self.shards),
            access=self.access.changes(names),
            voters=self.voters,
            recovery=self.recovery,
            node_settings=tuple(self.node_settings.get(n, NodeSettings(n, {})) for n in names["settings"]),
            subscriptions=tuple(
                self.subscriptions.get(n, Subscription(n, {})) for n in names["subscription"]
            ),
        )

    def _changed_since(self, version: int) -> dict[str, list[Any]]:
        """By kind: what changed after that version, in the order of the last changes; topics by their ids."""
        changed: dict[tuple[str, int | str | bytes], None] = {}
        for changed_in, kind, name in reversed(self._journal):
            if changed_in <= version:
                break
            changed[kind, name] = None
        found = defaultdict[str, list[Any]](list)
        for kind, name in reversed(changed):
            found[kind].append(name)
        return found

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


def refuse_earlier(state: ClusterState, reads: int, lacks: str) -> None:
    """Raise InvalidRequestError where a node reads no records of this format. `lacks`: of its version, and what to do."""
    old = sorted(node.node_id for node in state.nodes.values() if node.reads < reads)
    if old:
        raise InvalidRequestError(f"nodes {', '.join(map(str, old))} {lacks}")
