"""Plans which nodes should hold which shards, as goals for existing shards. Pure functions of the state.

A plan counts where shards are going, not where they are. A draining or dead node receives nothing new. Of equal choices
a plan always takes the same one, whatever the order of its inputs. The number of moves is the smallest that evens out
the counts: a move goes only from a node with too many to a node with too few.
"""

import heapq
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

from antiphon.coordination import topic_rules
from antiphon.coordination.placement import NodeLoad
from antiphon.coordination.state import ClusterState, has_leader
from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import ShardMeta
from antiphon.replication.messages import NodeId

Goal = tuple[NodeId, ...]
MayLose = Callable[[ShardMeta, NodeId], bool]  # may this member be taken from the shard?


def takes_replicas(state: ClusterState) -> list[NodeId]:
    """Nodes that may be given replicas: alive, and not draining; in order."""
    return sorted(node.node_id for node in state.nodes.values() if node.alive and not node.draining)


def named(state: ClusterState, shard_id: int) -> str:
    """The shard's name for people: topic/index."""
    record = state.shards[shard_id]
    return f"{state.names.get(record.topic_id, 'a topic')}/{record.meta.index}"


class Loads:
    """Replica and leader counts of nodes while a plan is made. The least loaded node is found in logarithmic time."""

    def __init__(self, loads: Iterable[NodeLoad]) -> None:
        self.replicas: dict[NodeId, int] = {}
        self.leaders: dict[NodeId, int] = {}
        for load in loads:
            self.replicas[load.node], self.leaders[load.node] = load.replicas, load.leaders
        self._heap = [(count, node) for node, count in self.replicas.items()]
        heapq.heapify(self._heap)

    @classmethod
    def of(cls, state: ClusterState) -> "Loads":
        """The loads of the nodes that take replicas."""
        return cls(
            NodeLoad(node, state.aimed_at.get(node, 0), state.preferred_on.get(node, 0))
            for node in takes_replicas(state)
        )

    def least(self, without: Collection[NodeId]) -> NodeId | None:
        """The least loaded node that is not among `without`, None if there is none."""
        aside = []
        found = None
        while self._heap and found is None:
            count, node = heapq.heappop(self._heap)
            if count != self.replicas[node]:
                continue  # an entry from before its load changed
            aside.append((count, node))
            if node not in without:
                found = node
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return found

    def change(self, node: NodeId, by: int) -> None:
        """A replica is planned for the node, or taken from it. Nodes that take no replicas are not counted."""
        if node in self.replicas:
            self.replicas[node] += by
            heapq.heappush(self._heap, (self.replicas[node], node))

    def put_first(self, goal: Goal, leader: NodeId) -> Goal:
        """The goal with its future leader first: the present leader if it stays, else the node that will lead least."""
        if leader in goal:
            first = leader
        else:
            first = min(goal, key=lambda node: (self.leaders.get(node, 0), goal.index(node)))
            if first in self.leaders:
                self.leaders[first] += 1
        return (first, *(node for node in goal if node != first))


def with_replicas(state: ClusterState, shards: Iterable[int], replicas: int) -> dict[int, Goal]:
    """Goals that give each shard this many replicas: added on the least loaded nodes, removed from the most loaded
    ones.

    The leader stays. Dead or draining members are removed first. Raises InvalidRequestError if there are too few nodes.
    """
    loads = Loads.of(state)
    goals: dict[int, Goal] = {}
    for shard_id in shards:
        meta = state.shards[shard_id].meta
        goal = list(meta.aim)
        while len(goal) > replicas:
            gone = max(
                (node for node in goal if node != meta.leader or len(goal) == 1),
                key=lambda node: (node not in loads.replicas, loads.replicas.get(node, 0), goal.index(node)),
            )
            goal.remove(gone)
            loads.change(gone, -1)
        while len(goal) < replicas:
            new = loads.least(goal)
            if new is None:
                raise InvalidRequestError(
                    f"{replicas} replicas need {replicas} nodes that are alive and not draining; "
                    f"{named(state, shard_id)} is on {list(meta.aim)}, and beside those there are "
                    f"{len(set(loads.replicas) - set(meta.aim))}: start more nodes (`antiphon node add`) or ask for fewer",
                    replicas=replicas,
                )
            goal.append(new)
            loads.change(new, 1)
        if tuple(goal) != meta.aim:
            goals[shard_id] = loads.put_first(tuple(goal), meta.leader)
    return goals


def without_node(state: ClusterState, node: NodeId, must_stay: MayLose) -> dict[int, Goal]:
    """Goals that move every replica off a node. Raises InvalidRequestError that names a shard without another place."""
    loads = Loads.of(state)
    goals: dict[int, Goal] = {}
    for shard_id in state.shards_on.get(node, ()):
        meta = state.shards[shard_id].meta
        aim = meta.aim
        stuck = any(n not in loads.replicas and n not in meta.ensemble for n in aim)
        if node not in aim and not stuck:
            continue  # on its way already
        _check_may_go(state, meta, node, must_stay)
        goal = []
        for member in aim:
            if member != node and (member in meta.ensemble or member in loads.replicas):
                goal.append(member)
                continue
            new = loads.least([*aim, *goal, node])
            if new is None:
                raise InvalidRequestError(
                    f"node {node} cannot be drained: {named(state, shard_id)} is on {list(aim)}, and no other node is "
                    "alive and not draining, so its replica has nowhere to go and stays; start another node "
                    "(`antiphon node add`) or give its topic fewer replicas",
                    node=node,
                )
            goal.append(new)
            loads.change(new, 1)
        goals[shard_id] = loads.put_first(tuple(goal), meta.leader)
    return goals


def moved(state: ClusterState, shard_id: int, from_node: NodeId, to_node: NodeId, must_stay: MayLose) -> Goal:
    """The goal that replaces `from_node` by `to_node`. Raises InvalidRequestError, UnknownShardError."""
    meta = state.shard(shard_id).meta
    aim = meta.aim
    if from_node not in aim and from_node in meta.everybody and to_node in aim:
        return aim  # it was asked for already
    if from_node not in aim:
        raise InvalidRequestError(
            f"node {from_node} has no replica of {named(state, shard_id)}; it is on {list(aim)}",
            unknown="replica",
        )
    if to_node in aim:
        raise InvalidRequestError(
            f"node {to_node} has a replica of {named(state, shard_id)} already, or gets one"
        )
    if to_node not in state.nodes:
        raise InvalidRequestError(f"there is no node {to_node}", unknown="node")
    if not state.nodes[to_node].alive or state.nodes[to_node].draining:
        which = "not alive" if not state.nodes[to_node].alive else "draining"
        raise InvalidRequestError(f"node {to_node} is {which}, so it gets no replicas")
    _check_may_go(state, meta, from_node, must_stay)
    goal = tuple(to_node if node == from_node else node for node in aim)
    return Loads.of(state).put_first(goal, meta.leader)


def placed(state: ClusterState, shard_id: int, nodes: Goal, must_stay: MayLose) -> Goal:
    """The goal that is exactly these nodes, if they may hold the shard. Raises InvalidRequestError.

    The first is to lead, except where nobody is elected automatically.
    """
    meta = state.shards[shard_id].meta
    check_nodes(state, nodes, meta.everybody, named(state, shard_id))
    for node in meta.ensemble:
        if node not in nodes:
            _check_may_go(state, meta, node, must_stay)
    return nodes


def taken_back(meta: ShardMeta) -> Goal:
    """The goal that ends a change and brings the shard back to the nodes from which it is being moved."""
    before = meta.outgoing or meta.ensemble
    if before == meta.aim:
        return before
    first = meta.leader if meta.leader in before else before[0]
    return (first, *(node for node in before if node != first))


def check_nodes(state: ClusterState, nodes: Goal, has: Goal, what: str) -> None:
    """May these nodes hold a shard that `has` those? Raises InvalidRequestError."""
    if not 1 <= len(nodes) <= topic_rules.REPLICAS_MAX:
        raise InvalidRequestError(f"{what} has 1 to {topic_rules.REPLICAS_MAX} replicas, not {len(nodes)}")
    if len(set(nodes)) != len(nodes):
        raise InvalidRequestError(f"{what} cannot be on {list(nodes)}: a node holds one replica at most")
    for node in nodes:
        known = state.nodes.get(node)
        if known is None:
            raise InvalidRequestError(
                f"there is no node {node} for {what}; there are {sorted(state.nodes)}", unknown="node"
            )
        if node not in has and (not known.alive or known.draining):
            which = "draining" if known.alive else "not alive"
            raise InvalidRequestError(f"node {node} is {which}, so it gets no replica of {what}")


def _check_may_go(state: ClusterState, meta: ShardMeta, node: NodeId, must_stay: MayLose) -> None:
    if must_stay(meta, node):
        what = named(state, meta.shard_id)
        topic, _, index = what.rpartition("/")
        raise InvalidRequestError(
            f"node {node} leads {what}, whose topic has election=manual: nobody else becomes its leader automatically; "
            f"`antiphon shard elect {topic} {index} --node NODE` moves leadership first",
            node=node,
            shard=meta.shard_id,
        )


def even_replicas(state: ClusterState, must_stay: MayLose) -> dict[int, Goal]:
    """Goals that even out replicas over the nodes that accept any, with the fewest moves; a leader is moved last."""
    loads = Loads.of(state)
    if len(loads.replicas) < 2:
        return {}
    aims: dict[int, list[NodeId]] = {}
    on: dict[NodeId, list[int]] = {node: [] for node in loads.replicas}
    for shard_id, record in state.shards.items():
        aims[shard_id] = list(record.meta.aim)
        for node in record.meta.aim:
            if node in on:
                on[node].append(shard_id)
    for node, shards in on.items():  # taken from the end: what it does not lead goes first
        shards.sort(key=lambda shard_id: (state.shards[shard_id].meta.leader != node, shard_id))
    moved_shards: dict[int, None] = {}
    for source, target in _transfers(loads.replicas):
        taken = _take_shard(state, on, aims, source, target, must_stay)
        if taken is not None:
            aims[taken][aims[taken].index(source)] = target
            on[target].append(taken)
            moved_shards[taken] = None
    return {
        shard_id: loads.put_first(tuple(aims[shard_id]), state.shards[shard_id].meta.leader)
        for shard_id in sorted(moved_shards)
    }


def _transfers(counts: dict[NodeId, int]) -> list[tuple[NodeId, NodeId]]:
    """The fewest (from, to) pairs after which no two counts differ by more than one."""
    low, extra = divmod(sum(counts.values()), len(counts))
    # Who has most keeps the odd one, so that it need not be moved.
    ranked = sorted(counts, key=lambda node: (-counts[node], node))
    wanted = {node: low + (at < extra) for at, node in enumerate(ranked)}
    sources = [node for node in ranked for _ in range(max(0, counts[node] - wanted[node]))]
    targets = [node for node in reversed(ranked) for _ in range(max(0, wanted[node] - counts[node]))]
    return list(zip(sources, targets, strict=True))


def _take_shard(
    state: ClusterState,
    on: dict[NodeId, list[int]],
    aims: dict[int, list[NodeId]],
    source: NodeId,
    target: NodeId,
    must_stay: MayLose,
) -> int | None:
    """A shard of `source` that can move to `target`, taken off its list."""
    shards = on[source]
    for at in range(len(shards) - 1, -1, -1):
        shard_id = shards[at]
        if target not in aims[shard_id] and not must_stay(state.shards[shard_id].meta, source):
            del shards[at]
            return shard_id
    return None


def even_leaders(
    state: ClusterState, may_move: Callable[[ShardMeta], bool], goals: dict[int, Goal]
) -> dict[int, Goal]:
    """Goals that even out leaderships with the fewest elections. `goals` are already planned; their shards are not
    touched.

    A leadership goes only to a node that keeps up. If no single move from a node with too many to a node with too few
    is possible, leaderships are passed along a chain of nodes.
    """
    counts: dict[NodeId, int] = dict.fromkeys(takes_replicas(state), 0)
    edges: dict[NodeId, dict[NodeId, dict[int, None]]] = {node: {} for node in counts}
    leads: dict[int, NodeId] = {}
    for shard_id, record in state.shards.items():
        meta = record.meta
        if shard_id in goals or meta.goal:
            first = goals.get(shard_id, meta.aim)[0]
            if first in counts:
                counts[first] += 1
        elif has_leader(meta) and meta.leader in counts:
            counts[meta.leader] += 1
            if may_move(meta):
                leads[shard_id] = meta.leader
                _link(edges, meta, meta.leader, shard_id)
    before = dict(leads)
    _level(state, counts, edges, leads)
    found: dict[int, Goal] = {}
    for shard_id, first in leads.items():
        if before[shard_id] != first:
            ensemble = state.shards[shard_id].meta.ensemble
            found[shard_id] = (first, *(node for node in ensemble if node != first))
    return found


def _link(
    edges: dict[NodeId, dict[NodeId, dict[int, None]]], meta: ShardMeta, leader: NodeId, shard_id: int
) -> None:
    for node in meta.ensemble:
        if node != leader and node in edges and node in meta.live:
            edges[leader].setdefault(node, {})[shard_id] = None


def _level(
    state: ClusterState,
    counts: dict[NodeId, int],
    edges: dict[NodeId, dict[NodeId, dict[int, None]]],
    leads: dict[int, NodeId],
) -> None:
    """Pass leaderships from nodes with most to nodes with fewer, along the shortest chains, until nothing is gained."""
    exhausted: set[NodeId] = set()
    while len(exhausted) < len(counts):
        source = max((n for n in counts if n not in exhausted), key=lambda n: (counts[n], -n))
        chain = _chain(counts, edges, source)
        if chain is None:
            exhausted.add(source)
            continue
        for giver, taker in pairwise(chain):
            shard_id = next(iter(edges[giver][taker]))
            meta = state.shards[shard_id].meta
            for node in meta.ensemble:
                edges[giver].get(node, {}).pop(shard_id, None)
            leads[shard_id] = taker
            _link(edges, meta, taker, shard_id)
        counts[chain[0]] -= 1
        counts[chain[-1]] += 1


def _chain(
    counts: dict[NodeId, int], edges: dict[NodeId, dict[NodeId, dict[int, None]]], source: NodeId
) -> list[NodeId] | None:
    """The shortest way from `source` to a node that leads at least two fewer; None if there is none."""
    came_from: dict[NodeId, NodeId] = {source: source}
    layer = [source]
    while layer:
        reached = []
        for node in layer:
            for other, shards in edges[node].items():
                if shards and other not in came_from:
                    came_from[other] = node
                    reached.append(other)
        lowest = min(reached, key=lambda node: (counts[node], node), default=None)
        if lowest is not None and counts[lowest] <= counts[source] - 2:
            chain = [lowest]
            while chain[-1] != source:
                chain.append(came_from[chain[-1]])
            return chain[::-1]
        layer = reached
    return None
