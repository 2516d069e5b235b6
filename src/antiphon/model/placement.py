"""Replicas that an operator places by hand."""

from antiphon.model.body import Body

Placement = tuple[tuple[int, ...], ...]
"""The nodes of each new shard, the preferred leader first; empty: the coordinator chooses."""


class PlaceReplicas(Body, frozen=True, array_like=True, tag=True):
    """Move a shard to these nodes, whichever it is on, and let the first lead; no nodes: back to where it was moved from."""

    shard_id: int
    nodes: tuple[int, ...] = ()
