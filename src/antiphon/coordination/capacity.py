"""How many topics, partitions and replicas may be made: what one client asks for must not fill the cluster for all.

Only what makes more of them is refused, before anything is changed. What is there stays, also where a bound was lowered,
and moves and drains go on: they need room for a while. What belongs to the cluster itself (`__...`) is never refused.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from antiphon.coordination.state import ClusterState
from antiphon.errors import LimitReachedError

TOLD: Final = "(`antiphon node settings --all --set limits.{}=NUMBER`)"


@dataclass(slots=True)
class Capacity:
    """Bounds of a cluster. The node that coordinates goes by its own, which may change: `become`.

    Attributes:
        topics: topics and tables of the cluster.
        partitions: shards of all of them.
        node_replicas: replicas that one node is to hold.
        request_partitions: shards that one request makes.
    """

    topics: int = 10_000
    partitions: int = 100_000
    node_replicas: int = 20_000
    request_partitions: int = 10_000

    def become(self, other: "Capacity") -> None:
        """Bounds are others from now on, for whoever was given these."""
        self.topics, self.partitions = other.topics, other.partitions
        self.node_replicas, self.request_partitions = other.node_replicas, other.request_partitions

    def check_topic(self, state: ClusterState) -> None:
        """Raise LimitReachedError where there is no room for one more topic."""
        if len(state.topics) >= self.topics:
            raise LimitReachedError(
                f"the cluster has {len(state.topics):,} topics and tables, {self.topics:,} are the most: delete some, or "
                f"raise the bound {TOLD.format('topics')}",
                limit="topics",
                have=len(state.topics),
            )

    def check_shards(self, state: ClusterState, more: int) -> None:
        """Raise LimitReachedError where there is no room for so many more shards."""
        self.check_request(more)
        have = len(state.shards)
        if have + more > self.partitions:
            raise LimitReachedError(
                f"the cluster has {have:,} partitions and is asked for {more:,} more, {self.partitions:,} are the most: "
                f"ask for fewer, delete topics, or raise the bound {TOLD.format('partitions')}",
                limit="partitions",
                have=have,
            )

    def check_request(self, more: int) -> None:
        """Raise LimitReachedError where one request makes more shards than it may."""
        if more > self.request_partitions:
            raise LimitReachedError(
                f"{more:,} partitions in one request, {self.request_partitions:,} are the most: ask for them in several "
                f"requests, or raise the bound {TOLD.format('request_partitions')}",
                limit="request_partitions",
                asked=more,
            )

    def check_nodes(self, state: ClusterState, more: Iterable[tuple[int, ...]]) -> None:
        """Raise LimitReachedError where a node would hold too many replicas; `more`: nodes that get one, for each shard."""
        added = Counter(node for nodes in more for node in nodes)
        for node, count in sorted(added.items()):
            have = state.aimed_at.get(node, 0)
            if have + count > self.node_replicas:
                raise LimitReachedError(
                    f"node {node} is to hold {have:,} replicas and would get {count:,} more, {self.node_replicas:,} are "
                    "the most: add nodes, ask for fewer partitions or replicas, or raise the bound "
                    f"{TOLD.format('node_replicas')}",
                    limit="node_replicas",
                    node=node,
                    have=have,
                )

    def check_goals(self, state: ClusterState, goals: Mapping[int, tuple[int, ...]]) -> None:
        """Raise LimitReachedError where a node would hold too many replicas if each shard had the nodes of its goal."""
        aims = {shard_id: state.shards[shard_id].meta.aim for shard_id in goals}
        self.check_nodes(
            state,
            [tuple(node for node in goal if node not in aims[shard_id]) for shard_id, goal in goals.items()],
        )


DEFAULT: Final = Capacity()
