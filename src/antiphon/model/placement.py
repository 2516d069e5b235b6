"""Replicas that an operator places by hand, and the one from which a shard goes on when most are lost."""

from typing import Annotated, Final

from msgspec import Meta

from antiphon.model.body import OfShard
from antiphon.model.metadata import SHARDS_MAX

NODES_MAX: Final = 31  # of one shard, as everywhere (S4.22)

Nodes = Annotated[tuple[int, ...], Meta(max_length=NODES_MAX)]
Placement = Annotated[tuple[Nodes, ...], Meta(max_length=SHARDS_MAX)]
"""The nodes of each new shard, the preferred leader first; empty: the coordinator chooses."""


class PlaceReplicas(OfShard, frozen=True, array_like=True, tag=True):
    """Move a shard to these nodes, whichever it is on, and let the first lead; no nodes: back to where it was moved from."""

    nodes: Nodes = ()


class RecoverShard(OfShard, frozen=True, array_like=True, tag=True):
    """Most replicas of a shard are lost for good: go on from the one on `node`, and lose what it lacks.

    `term` is the highest term that any replica that is left has promised, `at` where the log on `node` ends, as whoever asks
    has seen them. `number` is that of the recovery, so that a repeated request is recognised: 1 for the shard's first.
    """

    node: int
    term: int
    at: int
    number: int = 1
