"""Messages between nodes and the coordinator: registration, heartbeats, metadata deltas, forwarded commands.

The coordinator is whichever node leads the shard of `__cluster`. Every node sends it one small heartbeat per interval
(never one per shard) and receives the metadata that it lacks. Between heartbeats the coordinator pushes deltas as
one-way messages (request id 0), so that a change reaches every node within one message delay. Fencing and promotion of
replicas (`NewTerm`, `BecomeLeader`, `AddFollower` and their replies) are replica messages
(`antiphon.replication.messages`) on the same connection, after the delta that names their shards.

A node that does not coordinate answers all these requests with `not_leader`, whose details name the coordinator that it
knows.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.model.access import NO_CHANGE, AccessBook, AccessDelta
from antiphon.model.body import Body, OfShard
from antiphon.model.client_metrics import Subscription, put_subscription
from antiphon.model.metadata import ABSENT_NODE, ClusterMeta, NodeMeta, Recovery, ShardMeta, TopicMeta
from antiphon.model.node_settings import NodeSettings, put_entry
from antiphon.model.requests import AdminRequest

LIVE_SETS_MAX = 2_000
SHARE_STATES_MAX = 64


class ShardChange(msgspec.Struct, frozen=True, array_like=True):
    """One shard as it is now, and the topic that it belongs to."""

    topic_id: bytes
    shard: ShardMeta


class LiveSet(msgspec.Struct, frozen=True, array_like=True):
    """A leader's report on its followers in this term.

    `live`: the leader, and members that are connected and whose durable acknowledgement *in this term* has reached the
    high watermark. `lagging`: the other members that it sends the log to. A member in neither was never given to this
    leader, or the message was lost, or it is connected and does not answer: the coordinator fences it and sends
    `AddFollower` again.

    If commits use the live set, `live` is the set that the leader proposes, and `version` the record that it would
    replace; a proposal on any other version is refused. Where replicas vote, `voters`, `outgoing` and `learners` are
    the members that are committed in the shard's log, and the report shows that the sender is the leader of `term`.
    """

    shard_id: int
    term: int
    live: tuple[int, ...]
    lagging: tuple[int, ...] = ()
    version: int = -1
    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()


class MetadataDelta(Body, frozen=True, array_like=True, tag=True):
    """All changes after `base_version` up to `version`; a node with a version in between can apply it.

    `base_version` -1: everything; an object that is not named here does not exist. `topics` come without their shards,
    `shards` on their own. Versions are offsets in the log of `__cluster`, so they mean the same whichever node
    coordinates.
    """

    cluster_id: str
    base_version: int
    version: int
    controller: int
    coordinator_term: int
    nodes: tuple[NodeMeta, ...] = ()
    gone_nodes: tuple[int, ...] = ()
    topics: tuple[TopicMeta, ...] = ()
    gone_topics: tuple[bytes, ...] = ()  # topic ids; their shards are gone with them
    shards: tuple[ShardChange, ...] = ()
    gone_shards: tuple[int, ...] = ()  # of topics that stay: shards whose split was given up
    access: AccessDelta = NO_CHANGE
    voters: ShardMeta | None = None  # of `__cluster`, always as they are; None: as the cluster was founded
    recovery: Recovery | None = None  # the last one; who knows of a later one takes nothing of this
    node_settings: tuple[NodeSettings, ...] = ()  # that changed; without values: there are none any more
    subscriptions: tuple[Subscription, ...] = ()  # to clients' metrics that changed; without values: gone


class Register(Body, frozen=True, array_like=True, tag=True):
    """A node that just started, or that the coordinator does not know, names itself. Answered by `HeartbeatReply`.

    Refused with `foreign_directory` when the cluster id is another's, and with `unavailable` (try again) while another
    process that is alive holds the same node id on another disk.
    """

    cluster_id: str
    node: NodeMeta
    known_version: int = -1
    # The term that its replica of `__cluster` promised, where that has entries; -1: it has none
    history: int = -1


class Heartbeat(Body, frozen=True, array_like=True, tag=True):
    """I am alive, and my metadata is at `known_version`.

    `live` has one set for each shard that this node leads (in the metadata's term, and ready) whose live members differ
    from `ShardMeta.live` in the node's metadata, and for each shard that got an `AddFollower` since the last heartbeat that
    was answered. At most `LIVE_SETS_MAX` a heartbeat, the rest in the next.
    """

    node_id: int
    incarnation: str
    known_version: int
    live: tuple[LiveSet, ...] = ()


class HeartbeatReply(Body, frozen=True, array_like=True, tag=True):
    """`registered` False: the coordinator does not count on this process, send `Register`."""

    coordinator: int
    coordinator_term: int
    registered: bool
    delta: MetadataDelta | None = None


class EndTransaction(OfShard, frozen=True, array_like=True, tag=True):
    """A coordinator of transactions to the leader of a shard: append the marker that ends this one, and say where it is.

    `epoch`: the marker's, from which on the producer may write. `number`: of the transaction; a marker whose number is not
    above the last one of its producer is not appended again. Answered by `TransactionEnded` once it is committed.
    """

    producer_id: int
    epoch: int
    number: int
    commit: bool
    timeout_ms: int = 30_000


class TransactionEnded(Body, frozen=True, array_like=True, tag=True):
    """The marker that ended the transaction, or a later one, is committed at this offset."""

    offset: int


class ReserveProducerIds(Body, frozen=True, array_like=True, tag=True):
    """Ask for a block of producer ids to hand out; answered by `ProducerIdBlock`."""

    count: int = 1000


class ProducerIdBlock(Body, frozen=True, array_like=True, tag=True):
    """Ids `first` .. `first + count - 1` belong to the asking node, whether it uses them or not."""

    first: int
    count: int


class DeleteBefore(OfShard, frozen=True, array_like=True, tag=True):
    """The leader of a shard in this term asks that records before an offset, which is settled, are shown to nobody again.

    Answered by `CommandDone`, once every later leader of the shard will know.
    """

    term: int
    before: int


class Command(Body, frozen=True, array_like=True, tag=True):
    """A client's request that any node passes on to the coordinator; never passed on again. Answered by `CommandDone`."""

    request: AdminRequest
    timeout_ms: int = 30_000


class SplitStep(StrEnum):
    """The report of the leader of a shard that is being split, or of the shard that is split off."""

    CLOSE = "close"  # child: what is left to copy is little
    COPIED = "copied"  # child: everything up to the freeze at `frozen_at` is in its log, whose own part begins at `start`
    STUCK = "stuck"  # child: it cannot copy, for this `reason`
    RELEASED = "released"  # parent: it has let go of the keys that were frozen at `frozen_at`
    LOST = "lost"  # parent: the freeze at `frozen_at` is over, and was not followed by a release


class SplitReport(OfShard, frozen=True, array_like=True, tag=True):
    """`shard_id` is the child's, `term` that in which the sender leads its shard. Repeated until the phase has changed."""

    term: int
    step: SplitStep
    frozen_at: int = -1
    start: int = -1
    reason: str = ""


class CommandDone(Body, frozen=True, array_like=True, tag=True):
    """Done, and visible in metadata of this version or above."""

    version: int


class AskTransaction(Body, frozen=True, array_like=True, tag=True):
    """A partition's leader, or a group's coordinator, asks a transactional id's: does this take part in the transaction?

    One of `shard_id` and `group` is given. Answered by `TransactionAnswer`. With `joins` it takes part from now on
    (KIP-890); `known_at` is then the version of metadata in which the asker knows the shard.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    shard_id: int | None = None
    group: str | None = None
    joins: bool = False
    known_at: int = -1


class TransactionAnswer(Body, frozen=True, array_like=True, tag=True):
    """It does, in the transaction of this `number`; or it does not, for a reason (`coordination.transactions.Refused`)."""

    number: int
    refused: str = ""


class EndOffsets(Body, frozen=True, array_like=True, tag=True):
    """A transactional id's coordinator tells a group's: its pending offsets of this producer are committed, or go away.

    A repeat, by the transaction's `number`, changes nothing. Answered by `Done`.
    """

    group: str
    producer_id: int
    epoch: int
    number: int
    commit: bool


class PutShareState(msgspec.Struct, frozen=True, array_like=True):
    """Store a share-partition's row, where the row has the version that its leader knows (-1: there is none yet).

    `group_version`: of the share group's own row, which a new row is not made without.
    """

    topic_id: bytes
    partition: int
    value: bytes
    expected_version: int
    group_version: int = -1


class AskShareStates(Body, frozen=True, array_like=True, tag=True):
    """Leaders of share-partitions ask their group's coordinator to store some, and for what is stored of others.

    Answered by `ShareStates`.
    """

    group: str
    puts: Annotated[tuple[PutShareState, ...], Meta(max_length=SHARE_STATES_MAX)] = ()
    reads: Annotated[tuple[tuple[bytes, int], ...], Meta(max_length=SHARE_STATES_MAX)] = ()


class ShareStates(Body, frozen=True, array_like=True, tag=True):
    """What was asked for, in order.

    Attributes:
        versions: of the rows that were put; -1: refused, as the row had another version.
        rows: version and value of each row that was read; (-1, b""): there is none.
        group_version: of the share group's own row; -1: there is no such group.
        settings: of the group, as an operator set them.
    """

    versions: tuple[int, ...] = ()
    rows: tuple[tuple[int, bytes], ...] = ()
    group_version: int = -1
    settings: dict[str, str] = {}


class SetShareSettings(Body, frozen=True, array_like=True, tag=True):
    """Set what holds for one share group; None: back to the default. Answered by `ShareStates`, with the settings."""

    group: str
    changes: dict[str, str | None] = {}
    validate_only: bool = False


NodeQuestion = AskTransaction | EndOffsets | AskShareStates | SetShareSettings
ClusterRequest = (
    Register | Heartbeat | ReserveProducerIds | DeleteBefore | Command | SplitReport | NodeQuestion
)
ClusterReply = TransactionAnswer | ShareStates | HeartbeatReply | ProducerIdBlock | CommandDone


def mark_of(recovery: Recovery | None) -> int:
    """The term from which on the history goes that this recovery began; 0: the one that the cluster was founded with."""
    return 0 if recovery is None else recovery.term


class MetadataView:
    """A node's copy of the metadata, kept up to date by deltas; look-ups are dictionary look-ups.

    Shards that are being split off are in `joining` (and found by `shard`), and not among the shards of their topics.
    Until they are part of their table they concern only the nodes that hold them.
    """

    def __init__(self, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        self.version = -1
        self.controller = ABSENT_NODE
        self.coordinator_term = 0
        self.nodes: dict[int, NodeMeta] = {}
        self.topics: dict[str, TopicMeta] = {}
        self._names: dict[bytes, str] = {}
        self._places: dict[int, tuple[bytes, int]] = {}  # shard id -> (topic id, index in the topic)
        self.joining: dict[int, ShardChange] = {}  # by shard id
        self.access = AccessBook()  # never part of `cluster()`, which clients are told
        self.access.is_known = False
        self.voters: ShardMeta | None = None  # of `__cluster`; None: as the cluster was founded, or not known
        self.recovery: Recovery | None = None  # the last one
        self.node_settings: dict[int, NodeSettings] = {}  # by node, `ALL_NODES` among them
        self.subscriptions: dict[str, Subscription] = {}  # to clients' metrics, by name
        self.wants_all = False  # there was a later one: what is known is of before it
        self._cluster: ClusterMeta | None = None

    def apply(self, delta: MetadataDelta) -> bool:
        """Take over a delta; False when it is for another cluster, old, or starts after what is known here (a gap).

        Versions of before a recovery mean nothing after it: then everything is wanted.
        """
        known, told = mark_of(self.recovery), mark_of(delta.recovery)
        if delta.cluster_id != self.cluster_id or told < known:
            return False
        if told > known and delta.base_version >= 0:
            self.wants_all = True
            return False
        if told == known and (delta.version < self.version or delta.base_version > self.known_version):
            return False
        if delta.base_version < 0:
            self._clear()
            self.wants_all = False
        for node_id in delta.gone_nodes:
            self.nodes.pop(node_id, None)
        for node in delta.nodes:
            self.nodes[node.node_id] = node
        for topic_id in delta.gone_topics:
            self._drop_topic(topic_id)
        for topic in delta.topics:
            self._put_topic(topic)
        for shard_id in delta.gone_shards:
            self.joining.pop(shard_id, None)
        self._put_shards(delta.shards)
        self.access.apply(delta.access, whole=delta.base_version < 0)
        self._put_settings(delta)
        self.version, self.voters = delta.version, delta.voters
        self.recovery = delta.recovery
        if delta.coordinator_term >= self.coordinator_term:
            self.coordinator_term, self.controller = delta.coordinator_term, delta.controller
        self._cluster = None
        return True

    @property
    def known_version(self) -> int:
        """The version on which a change may build; -1: none."""
        return -1 if self.wants_all else self.version

    def cluster(self) -> ClusterMeta:
        """Everything, as one value; built when first asked for after a change."""
        if self._cluster is None:
            self._cluster = ClusterMeta(
                cluster_id=self.cluster_id,
                version=self.version,
                controller=self.controller,
                nodes=tuple(self.nodes[n] for n in sorted(self.nodes)),
                topics=tuple(self.topics[name] for name in sorted(self.topics)),
                voters=self.held_by(),
                recovery=self.recovery,
            )
        return self._cluster

    def held_by(self) -> ShardMeta | None:
        """Who holds `__cluster`; None where that is not known."""
        return self.voters

    def topic_by_id(self, topic_id: bytes) -> TopicMeta | None:
        """The topic or table with this id, or None."""
        name = self._names.get(topic_id)
        return None if name is None else self.topics[name]

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta] | None:
        """A shard and its topic, or None."""
        place = self._places.get(shard_id)
        if place is None:
            change = self.joining.get(shard_id)
            name = None if change is None else self._names.get(change.topic_id)
            return None if change is None or name is None else (self.topics[name], change.shard)
        topic = self.topics[self._names[place[0]]]
        return topic, topic.shards[place[1]]

    def all_shards(self) -> Iterator[tuple[TopicMeta, ShardMeta]]:
        """Every shard with its topic, those that are being split off too."""
        for topic in self.topics.values():
            for shard in topic.shards:
                yield topic, shard
        for change in self.joining.values():
            name = self._names.get(change.topic_id)
            if name is not None:
                yield self.topics[name], change.shard

    @property
    def shard_count(self) -> int:
        """How many shards there are."""
        return len(self._places) + len(self.joining)

    def shard_ids(self) -> list[int]:
        """Ids of all shards, in the order of their creation."""
        return sorted([*self._places, *self.joining])

    def _clear(self) -> None:
        self.nodes.clear()
        self.topics.clear()
        self._names.clear()
        self._places.clear()
        self.joining.clear()
        self.node_settings.clear()
        self.subscriptions.clear()

    def _put_settings(self, delta: MetadataDelta) -> None:
        for entry in delta.node_settings:
            put_entry(self.node_settings, entry)
        for subscription in delta.subscriptions:
            put_subscription(self.subscriptions, subscription)

    def _drop_topic(self, topic_id: bytes) -> None:
        name = self._names.pop(topic_id, None)
        if name is not None:
            for shard in self.topics.pop(name).shards:
                self._places.pop(shard.shard_id, None)
        for shard_id in [s for s, change in self.joining.items() if change.topic_id == topic_id]:
            del self.joining[shard_id]

    def _put_topic(self, topic: TopicMeta) -> None:
        old = self.topics.get(topic.name)
        if old is not None and old.topic_id != topic.topic_id:
            self._drop_topic(old.topic_id)
            old = None
        self.topics[topic.name] = msgspec.structs.replace(topic, shards=old.shards if old else ())
        self._names[topic.topic_id] = topic.name

    def _put_shards(self, changes: tuple[ShardChange, ...]) -> None:
        by_topic: dict[bytes, list[ShardMeta]] = {}
        for change in changes:
            if change.shard.split is not None:
                self.joining[change.shard.shard_id] = change
            else:
                self.joining.pop(change.shard.shard_id, None)
                by_topic.setdefault(change.topic_id, []).append(change.shard)
        for topic_id, shards in by_topic.items():
            name = self._names.get(topic_id)
            if name is None:
                continue  # a topic that is already gone again
            topic = self.topics[name]
            slots: dict[int, ShardMeta] = {shard.index: shard for shard in topic.shards}
            for shard in shards:
                slots[shard.index] = shard
                self._places[shard.shard_id] = (topic_id, shard.index)
            ordered = tuple(slots[index] for index in sorted(slots))
            self.topics[name] = msgspec.structs.replace(topic, shards=ordered)
