"""The coordinator's working copy of the metadata: decide on it now, speak when it is committed.

Decisions use the newest decided state (`model`), so two commands in flight cannot both take the same name. The changes
of one event are proposed as one batch. While a few batches are being committed, further changes collect in the next
one, so a burst of answers for hundreds of shards costs a handful of commits. A committed batch is returned as a list of
after-images; messages about them may now be sent.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from antiphon.coordination.actions import Action, Answer, Propose, Record, SendTo
from antiphon.coordination.cluster_records import (
    ClusterRecord,
    ShardRecord,
    access_record,
    checkpoint_record,
    cluster_record,
    counter_record,
    node_gone,
    node_record,
    settings_record,
    shard_gone,
    shard_record,
    subscription_record,
    topic_gone,
    topic_record,
    voters_record,
)
from antiphon.coordination.origins import with_origins
from antiphon.coordination.state import ClusterState
from antiphon.errors import AntiphonError
from antiphon.invariants import invariant
from antiphon.model.access import Acl, User
from antiphon.model.client_metrics import Subscription, put_subscription
from antiphon.model.cluster import CommandDone, ProducerIdBlock
from antiphon.model.metadata import NodeMeta, ShardMeta, TopicMeta
from antiphon.model.node_settings import NodeSettings, put_entry
from antiphon.model.quotas import Quota
from antiphon.replication.messages import AnyMessage, NodeId

PROPOSALS_IN_FLIGHT = 2


@dataclass(slots=True)
class Batch:
    """Changes that commit together, and the answers that wait for them."""

    records: dict[bytes, bytes | None] = field(default_factory=dict)
    shards: dict[int, ShardRecord] = field(default_factory=dict)  # the last after-image of each
    nodes: dict[NodeId, None] = field(default_factory=dict)  # nodes that (re)joined
    answers: list[tuple[int, ProducerIdBlock | None]] = field(default_factory=list)  # None: CommandDone
    voters: ShardMeta | None = None  # of `__cluster`, where they changed
    is_of_checkpoint: bool = False  # is a part of one in it?


class Ledger:
    """Collects changes to `model`, proposals and outgoing messages of one coordinator."""

    def __init__(self, state: ClusterState) -> None:
        self.model = state.clone()
        self._gathering = Batch()
        self._flying: deque[tuple[int, Batch]] = deque()
        self._tokens = 0
        self._mail: dict[NodeId, list[AnyMessage]] = {}
        self._actions: list[Action] = []

    # -- changes ------------------------------------------------------------------------------------------------

    def put_cluster(self, cluster: ClusterRecord) -> None:
        """Change the cluster's own record."""
        self.model.cluster = cluster
        self._write(cluster_record(cluster))

    def put_voters(self, voters: ShardMeta) -> None:
        """Change who votes in `__cluster`, or who is to."""
        self.model.voters = voters
        self._write(voters_record(voters))
        self._gathering.voters = voters

    def put_node(self, node: NodeMeta, *, joined: bool = False) -> None:
        """Change a node; `joined` asks for it back in `Batch.nodes` when that is committed."""
        self.model.nodes[node.node_id] = node
        self._write(node_record(node))
        if joined:
            self._gathering.nodes[node.node_id] = None
            self._give_origins(node.node_id)

    def _give_origins(self, node: NodeId) -> None:
        """Its disk may be another one: see `coordination.origins`."""
        for shard_id in tuple(self.model.shards_on.get(node, ())):
            record = self.model.shards[shard_id]
            if with_origins(self.model, record) is not record:
                self.put_shard(record)

    def drop_node(self, node: NodeId) -> None:
        """Forget a node, and what is set for it."""
        if node in self.model.node_settings:
            self.put_settings(NodeSettings(node, {}))
        del self.model.nodes[node]
        self._write(node_gone(node))
        self._gathering.nodes.pop(node, None)

    def put_topic(self, topic: TopicMeta) -> None:
        """Create a topic or change its settings."""
        self.model.put_topic(topic)
        self._write(topic_record(topic))

    def drop_topic(self, name: str) -> None:
        """Delete a topic and its shards."""
        topic = self.model.topics[name]
        for shard_id in self.model.shards_of[topic.topic_id]:
            self._write(shard_gone(shard_id))
            self._gathering.shards.pop(shard_id, None)
        self.model.drop_topic(name)
        self._write(topic_gone(name))

    def put_shard(self, shard: ShardRecord) -> None:
        """Change a shard."""
        shard = with_origins(self.model, shard)
        self.model.put_shard(shard)
        self._write(shard_record(shard))
        self._gathering.shards[shard.meta.shard_id] = shard

    def drop_shard(self, shard_id: int) -> None:
        """Delete a shard of a topic that stays."""
        self.model.drop_shard(shard_id)
        self._gathering.shards.pop(shard_id, None)
        self._write(shard_gone(shard_id))

    def put_access(self, kind: str, name: str, value: User | Acl | Quota | None) -> None:
        """Set a `user`, an `acl` or a `quota`; None removes it."""
        self.model.access.put(kind, name, value)
        self._write(access_record(kind, name, value))

    def put_settings(self, entry: NodeSettings) -> None:
        """Set what holds for a node, or for all of them; without values: nothing does."""
        put_entry(self.model.node_settings, entry)
        self._write(settings_record(entry))

    def put_subscription(self, entry: Subscription) -> None:
        """Set what a subscription to clients' metrics says; without values: it is gone."""
        put_subscription(self.model.subscriptions, entry)
        self._write(subscription_record(entry))

    def repeat(self, images: Iterable[Record]) -> None:
        """Write objects again as they are, for a checkpoint; what is about to be written anyway says the same."""
        for key, value in images:
            self._gathering.records.setdefault(key, value)
        self._gathering.is_of_checkpoint = True

    def close_checkpoint(self, begin: int) -> None:
        """Everything that exists has a record at or after offset `begin`."""
        self._write(checkpoint_record(begin))
        self._gathering.is_of_checkpoint = True

    def take(self, counter: str, count: int = 1) -> int:
        """The first of `count` unused numbers; counters begin at 1."""
        first = self.model.counters.get(counter, 1)
        self.model.counters[counter] = first + count
        self._write(counter_record(counter, first + count))
        return first

    def _write(self, record: Record) -> None:
        key, value = record
        self._gathering.records.pop(key, None)  # the order of last changes is the order of the fold
        self._gathering.records[key] = value

    # -- what goes out ------------------------------------------------------------------------------------------

    def send(self, to: NodeId, message: AnyMessage) -> None:
        """Send the message when this event is done, together with all others for that node."""
        self._mail.setdefault(to, []).append(message)

    def answer(self, token: int, result: CommandDone | AntiphonError) -> None:
        """Answer a request now."""
        self._actions.append(Answer(token, result))

    def answer_when_committed(self, token: int, block: ProducerIdBlock | None = None) -> None:
        """Answer a request when everything decided so far is committed."""
        self._gathering.answers.append((token, block))

    def act(self, action: Action) -> None:
        """Add any other action."""
        self._actions.append(action)

    def flush(self) -> list[Action]:
        """The actions that this event has caused."""
        self._propose()
        actions, self._actions = self._actions, []
        for node, messages in self._mail.items():
            actions.append(SendTo(node, tuple(messages)))
        self._mail = {}
        return actions

    # -- commits ------------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Batches that are proposed and not yet committed."""
        return len(self._flying)

    def committed(self, token: int, version: int) -> Batch:
        """The oldest proposal is committed: answer the requests that waited for it, and return what it changed."""
        invariant(
            self._flying and self._flying[0][0] == token,
            f"proposals commit in order, {token} is not the next",
        )
        _, batch = self._flying.popleft()
        for waiting, block in batch.answers:
            self._actions.append(Answer(waiting, CommandDone(version) if block is None else block))
        return batch

    def _propose(self) -> None:
        batch = self._gathering
        if len(self._flying) >= PROPOSALS_IN_FLIGHT or not (batch.records or batch.answers):
            return
        if not batch.records:
            # Nothing to write, but the answer rests on what is in flight: it waits for the last of it.
            self._answer_with_last(batch)
            return
        self._gathering = Batch()
        self._tokens += 1
        self._flying.append((self._tokens, batch))
        self._actions.append(Propose(self._tokens, tuple(batch.records.items())))

    def _answer_with_last(self, batch: Batch) -> None:
        if self._flying:
            self._flying[-1][1].answers.extend(batch.answers)
        else:
            self._actions += [
                Answer(token, block or CommandDone(self.model.version)) for token, block in batch.answers
            ]
        batch.answers = []
