"""How the members of a shard change, one step at a time: from the record and a few facts to the next step (S0.2).

A change is one value in the shard's record, its `goal`: the wanted voters, with the wanted leader first. The record
shows how far the change is and nothing else stores it, so any coordinator can continue it:

    ensemble  outgoing  learners  goal
    1 2 3                         1 2 4     requested
    1 2 3               4         1 2 4     FEEDING: node 4 receives the log and does not count
    1 2 4     1 2 3               1 2 4     JOINT: everything needs a majority of both sets
    1 2 4                         1 2 4     CLOSING: the leader learns that it is over; leadership moves if it has to
    1 2 4                                   done

Two majorities of one set intersect, and in the joint step every decision has a majority of each set. So consecutive
decisions are always made by sets that intersect. If commits use the live set, elections ask that set and not a majority
of the members. There a node is added directly, and a member that goes leaves the live set in the record that drops it.
Where replicas vote, the steps are entries of their own log, and the record follows what their leader reports.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from antiphon.coordination.state import has_leader, majority
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, ShardStatus
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known besides the record; a new coordinator learns all of it anew.

    Attributes:
        caught_up: according to the leader of this term, the leader included; learners too.
        is_alive: is the node believed to be up?
        told: the leader of this term has confirmed the members of this record.
        has_turn: this change may go on now; few of a node's shards move at a time.
        election: coordinator, manual or raft.
        is_multi: each replica writes.
        min_live: fewest live replicas that commit, if commits use the live set.
        tried_to_hand_over: leadership was already offered to the first of the goal.
        reported: where replicas vote, the members that are committed in their log.
        is_splitting: the shard is being split, which relies on its members.
    """

    caught_up: frozenset[NodeId]
    is_alive: Callable[[NodeId], bool]
    told: bool = False
    has_turn: bool = True
    election: str = "coordinator"
    is_multi: bool = False
    min_live: int = 1
    tried_to_hand_over: bool = False
    is_splitting: bool = False
    reported: Members = field(default_factory=lambda: Members(()))


@dataclass(frozen=True, slots=True)
class Change:
    """The next after-image. `elect`: leadership must move, and the same batch begins a new term."""

    meta: ShardMeta
    elect: bool = False


@dataclass(frozen=True, slots=True)
class CatchUp:
    """These nodes must receive the log until they have caught up."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class Elect:
    """A new term, led by `wanted` if it can."""

    wanted: NodeId


@dataclass(frozen=True, slots=True)
class Ask:
    """Where replicas vote: the leader is to change to these members."""

    members: Members


@dataclass(frozen=True, slots=True)
class HandOver:
    """Where replicas vote: the leader is to hand over to this node."""

    to: NodeId


@dataclass(frozen=True, slots=True)
class TakeTurn:
    """Go on when few enough shards of the nodes concerned are moving."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something happens; `reason` is for people."""

    reason: str


Step = Change | CatchUp | Elect | Ask | HandOver | TakeTurn | Wait


def members_of(meta: ShardMeta) -> Members:
    """The members as the record has them."""
    return Members(meta.ensemble, meta.outgoing, meta.learners)


def next_step(meta: ShardMeta, facts: Facts) -> Step:
    """The next step for a shard that is not IDLE; the same record and facts give the same step."""
    if facts.is_splitting and not (meta.outgoing or meta.learners):
        return Wait("it is being split")
    if facts.is_multi:
        return _among_writers(meta, facts)
    if not has_leader(meta):
        return Wait("the shard has no leader")
    if facts.election == "raft":
        return _by_votes(meta, facts)
    if meta.outgoing:
        return _settle(meta, facts)
    if set(meta.aim) == set(meta.ensemble):
        return _close(meta, facts)
    if meta.fence == "live":
        return _by_live_set(meta, facts)
    if meta.fence != "majority":
        return Wait("its commit rule is being changed")
    return _by_majority(meta, facts)


# -- where a coordinator elects -----------------------------------------------------------------------------------


def _catch_up(meta: ShardMeta, facts: Facts) -> Step | None:
    """Have the leader replicate to the new nodes; None when all of them have caught up.

    A node that left a moment ago has deleted its data. Before its leader hears that it is a learner again, the leader must
    have heard of the removal and have forgotten what the node acknowledged.
    """
    wanted = tuple(node for node in meta.aim if node not in meta.ensemble)
    if set(meta.learners) != set(wanted):
        if not facts.has_turn:
            return TakeTurn()
        if not facts.told and not set(wanted) <= set(meta.learners):
            return Wait(f"node {meta.leader} takes over the members")
        return _changed(meta, learners=wanted)
    missing = tuple(node for node in wanted if node not in facts.caught_up or not facts.is_alive(node))
    if missing:
        return CatchUp(missing)
    return None if facts.has_turn else TakeTurn()


def _by_majority(meta: ShardMeta, facts: Facts) -> Step:
    step = _catch_up(meta, facts)
    if step is not None:
        return step
    goal = meta.aim
    if facts.election == "manual" and meta.leader not in goal:
        return Wait(f"node {meta.leader} leads, and only an operator moves leadership here")
    ready = [node for node in goal if node in facts.caught_up and facts.is_alive(node)]
    if len(ready) < majority(goal):
        return Wait(f"of {list(goal)} only {ready} keep up: no majority")
    live = tuple(node for node in (*goal, *meta.ensemble) if node in ready or node in meta.live)
    joint = msgspec.structs.replace(meta, live=tuple(dict.fromkeys(live)))
    return _changed(joint, ensemble=goal, outgoing=meta.ensemble, learners=())


def _settle(meta: ShardMeta, facts: Facts) -> Step:
    """Joint: until the leader reports that the new voters have everything that was ever committed."""
    if not facts.told:
        return Wait(f"node {meta.leader} brings a majority of {list(meta.ensemble)} up to date")
    elect = meta.leader not in meta.ensemble
    if elect and facts.election == "manual":
        return Wait(f"node {meta.leader} leads, and only an operator moves leadership here")
    return _changed(meta, elect=elect, outgoing=())


def _close(meta: ShardMeta, facts: Facts) -> Step:
    """The wanted voters are in place: the leader has to learn this, and leadership may have to move."""
    if meta.learners:
        return _changed(meta, learners=())
    if not facts.told:
        return Wait(f"node {meta.leader} takes over the members")
    first = meta.aim[0]
    if meta.leader not in meta.ensemble and facts.election != "manual":
        return Elect(first)
    may = facts.election != "manual" and not facts.tried_to_hand_over
    if meta.leader != first and may and facts.is_alive(first) and first in facts.caught_up:
        return Elect(first) if facts.has_turn else TakeTurn()
    return Change(msgspec.structs.replace(meta, ensemble=meta.aim, goal=()))


def _by_live_set(meta: ShardMeta, facts: Facts) -> Step:
    """No joint step: an election asks the live set, which names no new node before its leader vouches for it."""
    goal = meta.aim
    if any(node not in meta.ensemble for node in goal):
        step = _catch_up(meta, facts)
        if step is not None:
            return step
        new = tuple(node for node in goal if node not in meta.ensemble)
        return _changed(meta, ensemble=(*meta.ensemble, *new), learners=())
    if not facts.has_turn:
        return TakeTurn()
    if not facts.told:
        return Wait(f"node {meta.leader} takes over the members")
    late = [node for node in goal if facts.is_alive(node) and node not in meta.live]
    if late:
        return Wait(f"nodes {late} are not in the live set yet")
    live = tuple(node for node in meta.live if node in goal)
    if len(live) < max(1, facts.min_live):
        return Wait(f"without the others only {list(live)} would be live, and {facts.min_live} must be")
    if meta.leader not in goal:
        if facts.election == "manual":
            return Wait(f"node {meta.leader} leads, and only an operator moves leadership here")
        return Elect(next(node for node in goal if node in live))
    return _changed(meta, ensemble=goal, live=live, live_version=meta.live_version + 1)


# -- where replicas vote ------------------------------------------------------------------------------------------


def follow(meta: ShardMeta, reported: Members) -> ShardMeta:
    """The record after a leader's report of the members in its log; a node that the goal still adds keeps its replica."""
    coming = tuple(
        n for n in meta.learners if n in meta.goal and n not in reported.voting and n not in reported.learners
    )
    ensemble = meta.ensemble if set(meta.ensemble) == set(reported.voters) else reported.voters
    learners = (*reported.learners, *coming)
    outgoing = tuple(node for node in reported.outgoing if node not in ensemble)
    return msgspec.structs.replace(meta, ensemble=ensemble, outgoing=outgoing, learners=learners)


def _by_votes(meta: ShardMeta, facts: Facts) -> Step:
    now = facts.reported
    goal = meta.aim
    new = tuple(node for node in goal if node not in now.voting)
    if not set(new) <= set(meta.learners):
        # Who was to come before may be a voter in the leader's log by now. It gives up what it holds when the record has it
        # no longer: not before the log says so.
        before = tuple(node for node in meta.learners if node not in new)
        return _changed(meta, learners=(*new, *before)) if facts.has_turn else TakeTurn()
    if now.is_joint:
        return Wait(f"node {meta.leader} brings a majority of {list(now.voters)} up to date")
    if set(now.voters) == set(goal):
        if now.learners:
            return Ask(Members(now.voters))
        first = goal[0]
        if meta.leader != first and not facts.tried_to_hand_over and first in facts.caught_up:
            return HandOver(first) if facts.has_turn else TakeTurn()
        return Change(msgspec.structs.replace(meta, ensemble=goal, outgoing=(), learners=(), goal=()))
    if not facts.has_turn:
        return TakeTurn()
    if set(new) != set(now.learners):
        return Ask(Members(now.voters, learners=new))
    if any(node not in facts.caught_up or not facts.is_alive(node) for node in new):
        return CatchUp(tuple(node for node in new if node not in facts.caught_up or not facts.is_alive(node)))
    return Ask(Members(goal))


# -- where each replica writes ------------------------------------------------------------------------------------


def _among_writers(meta: ShardMeta, facts: Facts) -> Step:
    """Nobody is elected: a new writer is a member at once; one leaves when the remaining members have what it wrote.

    A member that is to leave is outgoing: it accepts no more writes, and sends on what it has.
    """
    goal = meta.aim
    if meta.outgoing:
        going = [node for node in meta.outgoing if node not in meta.ensemble]
        if not facts.told:
            return Wait(f"nodes {list(meta.ensemble)} have not got everything that nodes {going} have")
        return _at_home(_changed(meta, outgoing=()), facts)
    new = tuple(node for node in goal if node not in meta.ensemble)
    if not facts.has_turn and set(goal) != set(meta.ensemble):
        return TakeTurn()
    if new:
        return _at_home(_changed(meta, ensemble=(*meta.ensemble, *new)), facts)
    if any(node not in goal for node in meta.ensemble):
        return _at_home(_changed(meta, ensemble=goal, outgoing=meta.ensemble), facts)
    return _at_home(Change(msgspec.structs.replace(meta, ensemble=goal, goal=())), facts)


def _at_home(change: Change, facts: Facts) -> Change:
    """Clients that may use any replica go to the first member that is alive."""
    alive = tuple(node for node in change.meta.ensemble if facts.is_alive(node))
    leader = alive[0] if alive else ABSENT_NODE
    status = ShardStatus.ONLINE if alive else ShardStatus.OFFLINE
    return Change(msgspec.structs.replace(change.meta, leader=leader, status=status, live=alive))


def _changed(meta: ShardMeta, *, elect: bool = False, **changes: Any) -> Change:
    """The after-image of a change of the members, with the next number; who is live has to be a voter."""
    after: ShardMeta = msgspec.structs.replace(meta, members_version=meta.members_version + 1, **changes)
    live = tuple(node for node in after.live if node in after.ensemble or node in after.outgoing)
    return Change(msgspec.structs.replace(after, live=live), elect)
