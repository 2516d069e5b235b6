"""An operator's commands for members and nodes: checked, planned, and recorded as goals; all or nothing.

All functions raise an `AntiphonError` before they change anything. They return as soon as the goals are decided. The
progress is visible in the metadata (`ShardMeta.goal`, `learners`, `outgoing`), and continues whichever node
coordinates.
"""

from collections.abc import Iterable

import msgspec

from antiphon.coordination import client_metrics, node_settings, topic_rules
from antiphon.coordination.balance import (
    Goal,
    even_leaders,
    even_replicas,
    moved,
    placed,
    taken_back,
    takes_replicas,
    with_replicas,
    without_node,
)
from antiphon.coordination.capacity import Capacity
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.profiles import Replication, check, replication_of
from antiphon.coordination.reconfiguration import Reconfigurations
from antiphon.coordination.voters import VoterChanges
from antiphon.errors import InvalidRequestError
from antiphon.model.client_metrics import AlterSubscription
from antiphon.model.metadata import NodeMeta, ShardMeta, TopicMeta
from antiphon.model.node_settings import AlterNodeSettings
from antiphon.model.placement import PlaceReplicas
from antiphon.model.requests import AlterVoters, DrainNode, MoveReplica, Rebalance, RemoveNode
from antiphon.replication.messages import NodeId

MemberRequest = (
    AlterVoters
    | MoveReplica
    | PlaceReplicas
    | DrainNode
    | RemoveNode
    | Rebalance
    | AlterNodeSettings
    | AlterSubscription
)


class MemberCommands:
    """Carries out commands that change which node holds what."""

    def __init__(
        self, ledger: Ledger, changes: Reconfigurations, voters: VoterChanges, capacity: Capacity
    ) -> None:
        self._ledger = ledger
        self._model = ledger.model
        self._changes = changes
        self._capacity = capacity
        self._voters = voters  # of `__cluster`

    def carry_out(self, request: MemberRequest) -> None:
        """Decide on a request. Raises InvalidRequestError, UnknownShardError."""
        match request:
            case MoveReplica():
                self._move(request)
            case PlaceReplicas():
                self._place(request)
            case DrainNode():
                self._cancel_drain(request.node) if request.cancel else self._drain(request.node)
            case RemoveNode():
                self._remove(request.node)
            case AlterVoters():
                self._voters.alter(request)
            case Rebalance():
                self._rebalance(leaders_only=request.leaders_only)
            case AlterNodeSettings():
                node_settings.alter(self._ledger, request)
            case AlterSubscription():
                client_metrics.alter(self._ledger, request)

    def plan_replicas(self, topic: TopicMeta, replicas: int) -> dict[int, Goal]:
        """Goals that give every shard of a topic this many replicas. Raises InvalidRequestError; changes nothing."""
        if not 1 <= replicas <= topic_rules.REPLICAS_MAX:
            raise InvalidRequestError(f"a shard has 1 to {topic_rules.REPLICAS_MAX} replicas, not {replicas}")
        check(topic.profile, topic.config, replicas, topic.kind)
        there = len(takes_replicas(self._model))
        if replicas > max(there, topic.replicas):
            raise InvalidRequestError(
                f"{replicas} replicas need {replicas} nodes that are alive and not draining; there are {there}",
                replicas=replicas,
                alive=there,
                lacking="nodes",
            )
        return with_replicas(self._model, self._model.shards_of[topic.topic_id], replicas)

    def set_replicas(self, topic: TopicMeta, replicas: int, goals: dict[int, Goal]) -> TopicMeta:
        """Carry out what `plan_replicas` planned; returns the topic as it is now."""
        if topic.replicas != replicas:
            topic = msgspec.structs.replace(topic, replicas=replicas)
            self._ledger.put_topic(topic)
        self._aim(goals)
        return topic

    def _place(self, request: PlaceReplicas) -> None:
        """Shards that are added to the topic later get as many replicas as all of its shards are to have then."""
        record = self._model.shard(request.shard_id)
        topic = self._model.topics[self._model.names[record.topic_id]]
        if not request.nodes:
            goal = taken_back(record.meta)
        else:
            goal = placed(self._model, request.shard_id, request.nodes, self._must_stay)
        topic_rules.check_settings(topic.profile, topic.config, len(goal), topic.kind)
        if goal == record.meta.aim:
            return
        self._capacity.check_goals(self._model, {request.shard_id: goal})
        self._changes.aim(request.shard_id, goal)
        if len(goal) == topic.replicas:
            return
        others = reversed(self._model.shards_of[topic.topic_id])
        if all(len(self._model.shards[other].meta.aim) == len(goal) for other in others):
            self._ledger.put_topic(msgspec.structs.replace(topic, replicas=len(goal)))

    def _move(self, request: MoveReplica) -> None:
        goal = moved(self._model, request.shard_id, request.from_node, request.to_node, self._must_stay)
        self._changes.aim(request.shard_id, goal)

    def _drain(self, node: NodeId) -> None:
        known = self._known(node)
        goals = without_node(self._model, node, self._must_stay)
        if not known.draining:
            self._ledger.put_node(msgspec.structs.replace(known, draining=True))
        self._aim(goals)

    def _cancel_drain(self, node: NodeId) -> None:
        """A replica that has not left yet stays. A replica that has left does not come back, and a joint step is
        finished.
        """
        known = self._known(node)
        if known.draining:
            self._ledger.put_node(msgspec.structs.replace(known, draining=False))
        for shard_id in list(self._model.shards_on.get(node, ())):
            meta = self._model.shards[shard_id].meta
            if meta.goal and node in meta.ensemble and node not in meta.goal and not meta.outgoing:
                first = meta.leader if meta.leader in meta.ensemble else meta.ensemble[0]
                self._changes.aim(shard_id, (first, *(n for n in meta.ensemble if n != first)))

    def _remove(self, node: NodeId) -> None:
        known = self._known(node)
        if node in (*self._voters.everybody, *self._voters.now.goal):
            raise InvalidRequestError(
                f"node {node} votes in `__cluster`, the coordinator's own log: `antiphon node voters --replace {node} NEW` "
                f"gives its seat to another node, `--remove {node}` to nobody; voters: {list(self._voters.now.ensemble)}",
                node=node,
            )
        if self._model.shards_on.get(node) or self._model.aimed_at.get(node, 0):
            held = max(len(self._model.shards_on.get(node, ())), self._model.aimed_at.get(node, 0))
            raise InvalidRequestError(
                f"node {node} has {held} replicas: `antiphon node drain {node}` moves them elsewhere first",
                node=node,
                replicas=held,
            )
        if known.alive:
            raise InvalidRequestError(
                f"node {node} is running: stop its process first, or it would register again",
                node=node,
                running=True,
            )
        self._ledger.drop_node(node)

    def _rebalance(self, *, leaders_only: bool) -> None:
        goals = {} if leaders_only else even_replicas(self._model, self._must_stay)
        self._aim({**goals, **even_leaders(self._model, self._may_move_leader, goals)})

    def _aim(self, goals: dict[int, Goal]) -> None:
        for shard_id, goal in goals.items():
            self._changes.aim(shard_id, goal)

    def _known(self, node: NodeId) -> NodeMeta:
        known = self._model.nodes.get(node)
        if known is None:
            raise InvalidRequestError(
                f"there is no node {node}; there are {_listed(self._model.nodes)}", unknown="node"
            )
        return known

    # -- what the options of a shard's topic allow -----------------------------------------------------------------

    def _options(self, meta: ShardMeta) -> Replication:
        topic = self._model.topics[self._model.names[self._model.shards[meta.shard_id].topic_id]]
        return replication_of(topic.profile, topic.config)

    def _must_stay(self, meta: ShardMeta, node: NodeId) -> bool:
        """The leader of a shard that elects nobody by itself cannot be removed."""
        return meta.leader == node and self._options(meta).election == "manual" and not self._is_multi(meta)

    def _is_multi(self, meta: ShardMeta) -> bool:
        return self._options(meta).is_multi

    def _may_move_leader(self, meta: ShardMeta) -> bool:
        return self._options(meta).election != "manual"


def _listed(nodes: Iterable[NodeId]) -> str:
    return ", ".join(str(node) for node in sorted(nodes)) or "none"
