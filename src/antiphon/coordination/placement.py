"""Where the replicas of new shards go: even, deterministic, with leadership spread.

The least loaded nodes get the next shard's replicas. Equal loads are ordered by a mix of the load and the node's
number. So the members of an ensemble change from round to round, and the shards of a lost node find leaders all over
the cluster and not on two neighbours. Within an ensemble the node that leads least comes first: it is the preferred
leader.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from antiphon.invariants import invariant

_MASK = (1 << 64) - 1


class NodeLoad(NamedTuple):
    """What a node carries already."""

    node: int
    replicas: int
    leaders: int


def place(nodes: Sequence[NodeLoad], shards: int, replicas: int) -> list[tuple[int, ...]]:
    """Ensembles of `replicas` nodes for `shards` new shards, each with its preferred leader first.

    The same arguments give the same answer, in whatever order the nodes are named. Takes O(shards * replicas * log nodes)
    and a few passes over the ensembles.
    """
    invariant(1 <= replicas <= len(nodes), f"cannot put {replicas} replicas on {len(nodes)} nodes")
    leaders = {load.node: load.leaders for load in nodes}
    heap = [(load.replicas, _mix(load.replicas, load.node), load.node) for load in nodes]
    heapq.heapify(heap)
    ensembles = []
    for _ in range(shards):
        chosen = [heapq.heappop(heap) for _ in range(replicas)]
        members = [node for _, _, node in chosen]
        first = min(members, key=lambda node: (leaders[node], members.index(node)))
        leaders[first] += 1
        ensembles.append((first, *(node for node in members if node != first)))
        for load, _, node in chosen:
            heapq.heappush(heap, (load + 1, _mix(load + 1, node), node))
    _even_out(ensembles, leaders)
    return ensembles


def _even_out(ensembles: list[tuple[int, ...]], leaders: dict[int, int]) -> None:
    """Let a member go first wherever it leads two shards fewer than the one that does.

    Choosing one ensemble after the other can leave a node three shards ahead of another. Ends, as each exchange lowers
    the sum of the squares of `leaders`.
    """
    moved = True
    while moved:
        moved = False
        for at, (first, *others) in enumerate(ensembles):
            least = min(others, key=leaders.__getitem__, default=first)
            if leaders[first] - leaders[least] > 1:
                leaders[first] -= 1
                leaders[least] += 1
                ensembles[at] = (least, first, *(node for node in others if node != least))
                moved = True


def _mix(load: int, node: int) -> int:
    """Spread (load, node) over 64 bits, the same on every machine (multiply, shift, xor)."""
    value = (load * 0x9E3779B97F4A7C15 + (node + 1) * 0xC2B2AE3D27D4EB4F) & _MASK
    value ^= value >> 29
    value = (value * 0xBF58476D1CE4E5B9) & _MASK
    return value ^ (value >> 32)
