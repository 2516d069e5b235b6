"""The set that an election must intersect, so that the new leader has everything that was ever committed.

* `majority`: a majority of the voters has promised (and one of the outgoing voters, while there are any). A replica may
  lead if a majority of each set does not have a better log (S0.17, S1.27).
* `live`: the promise of one member of the recorded live set is enough, because each of them holds everything that was
  committed (S3.9, S3.24).
* `both`: a majority, and a live member. A replica may lead if a majority does not have a better log and its own log
  reaches a live member's.

`both` is for the time in which a shard changes from one rule to the other. What is committed may then be held by a
majority or by the live set, and nobody knows by which. Reaching one live member's log is enough: it holds everything
that the live rule committed, and of two logs the one with the greater entry id has what the other has committed.

All functions are pure. `votes` are promises that count, with the ids of the logs behind them.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from antiphon.coordination.state import majority
from antiphon.model.metadata import ShardMeta
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import NodeId


class Fence(StrEnum):
    """The values of `ShardMeta.fence`."""

    MAJORITY = "majority"
    LIVE = "live"
    BOTH = "both"


def voting_sets(meta: ShardMeta) -> tuple[tuple[NodeId, ...], ...]:
    """The sets that must each agree: the voters, and the outgoing voters while a change is under way (S0.2)."""
    return (meta.ensemble, meta.outgoing) if meta.outgoing else (meta.ensemble,)


def voting(meta: ShardMeta) -> tuple[NodeId, ...]:
    """All members whose promise may count, each once, voters first."""
    if not meta.outgoing:
        return meta.ensemble
    return (*meta.ensemble, *(node for node in meta.outgoing if node not in meta.ensemble))


def has_majorities(meta: ShardMeta, nodes: Collection[NodeId]) -> bool:
    """Are a majority of the voters, and of the outgoing ones if there are any, among `nodes`?"""
    return all(sum(node in nodes for node in each) >= majority(each) for each in voting_sets(meta))


def can_be_met(meta: ShardMeta, nodes: Collection[NodeId]) -> bool:
    """Would the promises of `nodes` be enough?"""
    if meta.fence == Fence.LIVE:
        return any(node in nodes for node in meta.live)
    if not has_majorities(meta, nodes):
        return False
    return meta.fence == Fence.MAJORITY or any(node in nodes for node in meta.live)


def least_promises(meta: ShardMeta) -> int:
    """The fewest promises that can be enough."""
    return 1 if meta.fence == Fence.LIVE else majority(meta.ensemble)


def electable(meta: ShardMeta, votes: Mapping[NodeId, EntryId]) -> list[NodeId]:
    """The members that may lead by these promises, in the order of the ensemble; empty while the promises are not
    enough.

    An outgoing member leads only if none of the voters could: the voters then do not have its entries yet.
    """
    if meta.fence == Fence.LIVE:
        return [node for node in meta.ensemble if node in votes and node in meta.live]
    shortest = _shortest(meta, votes)
    if shortest is None:
        return []
    for members in voting_sets(meta):
        found = [node for node in members if node in votes and votes[node] >= shortest]
        if found:
            return found
    return []


def _shortest(meta: ShardMeta, votes: Mapping[NodeId, EntryId]) -> EntryId | None:
    """The least log that may lead: a majority of each set does not exceed it, and it reaches a live member's."""
    least: EntryId | None = None
    for each in voting_sets(meta):
        heads = sorted(votes[node] for node in each if node in votes)
        if len(heads) < majority(each):
            return None
        backed = heads[majority(each) - 1]
        least = backed if least is None else max(least, backed)
    if meta.fence == Fence.MAJORITY or least is None:
        return least
    live = [votes[node] for node in meta.live if node in votes]
    return max(least, min(live)) if live else None


def in_order(meta: ShardMeta, nodes: Iterable[NodeId]) -> tuple[NodeId, ...]:
    """Those of the voting members that are among `nodes`, in the order of the ensemble."""
    wanted = tuple(nodes)  # a handful: cheaper than a set
    return tuple(node for node in voting(meta) if node in wanted)
