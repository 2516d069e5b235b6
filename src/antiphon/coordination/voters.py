"""Changes of the voters of `__cluster`, the group of replicas on which the coordinator itself rests. Pure.

The change is a goal, as for every shard (`reconfiguration_steps`), in a record of its own: `voters`, the after-image of a
shard's metadata with id 0. Its steps are those of shards whose replicas vote: the record names the new node, which opens a
replica; it gets the log as a learner; a joint entry in the log replaces the voters; the record follows. The log alone
says who votes. The record tells the other nodes, and a later coordinator what is still wanted.

What is different: the leader is on the coordinator's own node, so the coordinator is asked, and reported to, with each tick.
Leadership is not handed over for its own sake. One change is made at a time, and of at most one node on each side, so that
at no moment more than one replica that just began counts in a majority.

A cluster whose voters were never changed has no such record, and its log names no members: the nodes' configuration does.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from antiphon.coordination.cluster_records import VOTERS_FORMAT
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.reconfiguration_steps import Ask, Change, Facts, follow, next_step
from antiphon.coordination.state import majority
from antiphon.errors import InvalidRequestError
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import CLUSTER_SHARD_ID, NodeMeta, ShardMeta, ShardStatus
from antiphon.model.requests import AlterVoters
from antiphon.replication.members import Members
from antiphon.replication.messages import ChangeMembers, MembersSettled, NodeId

VOTERS_MAX: Final = 7  # more make every change of the metadata slower, and survive no likelier accident
ASK_AGAIN_MS: Final = 400


class VoterChanges:
    """The voters of `__cluster`, for one coordinator.

    Args:
        ledger: where the record is.
        founders: who votes as long as there is no record.
    """

    def __init__(self, ledger: Ledger, founders: tuple[NodeId, ...]) -> None:
        self._ledger = ledger
        self._model = ledger.model
        self._founders = founders
        self._report = LiveSet(CLUSTER_SHARD_ID, 0, ())
        self._committed = ledger.model.voters
        self._settled = -1  # number of the record whose members the leader has confirmed
        # What the leader was asked for last, under which number
        self._asked: tuple[Members, int] | None = None
        self._ask_at_ms = 0

    @property
    def now(self) -> ShardMeta:
        """The voters as they are recorded, and what they are to be."""
        return self._model.voters or ShardMeta(CLUSTER_SHARD_ID, 0, self._founders)

    @property
    def everybody(self) -> tuple[NodeId, ...]:
        """Whoever holds a replica, or is to hold one."""
        return self.now.everybody

    # -- commands --------------------------------------------------------------------------------------------------

    def alter(self, request: AlterVoters) -> None:
        """Record what the voters are to be. Raises InvalidRequestError, and changes nothing then."""
        now = self.now
        if request.cancel:
            self._cancel(now)
            return
        if now.goal or now.outgoing:
            raise InvalidRequestError(
                f"the voters of `__cluster` are being changed from {list(now.ensemble)} to {list(now.aim)}, and one change "
                "is made at a time: wait for it, or take it back with `antiphon node voters --cancel`"
            )
        goal = self._goal(now, request)
        self._check(now, goal)
        if set(goal) != set(now.ensemble):
            self._aim(now, goal)

    def _cancel(self, now: ShardMeta) -> None:
        if not now.goal:
            raise InvalidRequestError("no change of the voters of `__cluster` is under way", unknown="voter")
        if now.outgoing or self._reported.is_joint or set(self._reported.voters) != set(now.ensemble):
            raise InvalidRequestError(
                f"the voters {list(now.aim)} count already, so this change is finished; change them back then"
            )
        self._aim(now, now.ensemble)

    def _aim(self, now: ShardMeta, goal: tuple[NodeId, ...]) -> None:
        number = now.members_version + 1
        self._ledger.put_voters(msgspec.structs.replace(now, goal=goal, members_version=number))

    def _goal(self, now: ShardMeta, request: AlterVoters) -> tuple[NodeId, ...]:
        add, remove = request.add, request.remove
        if add < 0 and remove < 0:
            raise InvalidRequestError(
                "no node was named: say which voter of `__cluster` is to come, or to go"
            )
        if remove >= 0 and remove not in now.ensemble:
            raise InvalidRequestError(
                f"node {remove} does not vote in `__cluster`: {list(now.ensemble)} do", unknown="voter"
            )
        if add >= 0:
            self._check_new(now, add)
        new = () if add < 0 else (add,)
        return (*(node for node in now.ensemble if node != remove), *new)

    def _check_new(self, now: ShardMeta, node: NodeId) -> None:
        known = self._model.nodes.get(node)
        if known is None:
            raise InvalidRequestError(
                f"node {node} is no member of this cluster, whose nodes are {sorted(self._model.nodes)}: start it first",
                unknown="node",
            )
        if node in now.ensemble:
            raise InvalidRequestError(
                f"node {node} votes in `__cluster` already: {list(now.ensemble)} do", unknown="voter"
            )
        if not known.alive:
            raise InvalidRequestError(f"node {node} is down: a new voter has to get the log first; start it")
        if known.draining:
            raise InvalidRequestError(
                f"node {node} is being drained: `antiphon node drain {node} --cancel` takes that back"
            )

    def _check(self, now: ShardMeta, goal: tuple[NodeId, ...]) -> None:
        if not goal:
            raise InvalidRequestError(f"voters {list(now.ensemble)}: the last voter of `__cluster` stays")
        if len(goal) > VOTERS_MAX:
            raise InvalidRequestError(
                f"`__cluster` has at most {VOTERS_MAX} voters, {len(goal)} were asked for"
            )
        alive = [node for node in goal if self._model.is_alive(node)]
        if len(alive) < majority(goal):
            raise InvalidRequestError(
                f"voters {list(goal)} would lose the majority: only {alive} of them are up, of {majority(goal)} that have "
                "to be. Start the others, or replace one that is down: `antiphon node voters --replace OLD NEW`"
            )
        old = [node.node_id for node in self._nodes((*now.everybody, *goal)) if _is_old(node)]
        if old:
            raise InvalidRequestError(
                f"nodes {old} have a version that does not know of changes of the voters: upgrade them first"
            )

    def _nodes(self, ids: Iterable[NodeId]) -> list[NodeMeta]:
        return [self._model.nodes[node] for node in dict.fromkeys(ids) if node in self._model.nodes]

    # -- steps -----------------------------------------------------------------------------------------------------

    @property
    def _reported(self) -> Members:
        report = self._report
        return Members(report.voters, report.outgoing, report.learners)

    def reported(self, leader: NodeId, report: LiveSet, now_ms: int) -> None:
        """What this node's replica of `__cluster`, which leads, says of its members: take the next step."""
        self._report = report
        now = self.now
        if not report.voters or not self._is_changing(now):
            return
        meta = follow(now, self._reported)
        if meta != now:
            self._ledger.put_voters(meta)
        elif now == self._committed:
            self._step(leader, meta, now_ms)

    def _is_changing(self, now: ShardMeta) -> bool:
        """Is something wanted, or does the log say otherwise than the record?"""
        told = self._reported
        return bool(now.goal or told.is_joint or told.learners or set(told.voters) != set(now.ensemble))

    def committed(self, record: ShardMeta) -> None:
        """The record is committed: what it asks for may be done."""
        self._committed = record

    def settled(self, message: MembersSettled) -> None:
        """The leader has nothing left to do for the record of this number."""
        self._settled = max(self._settled, message.version)

    def _step(self, leader: NodeId, meta: ShardMeta, now_ms: int) -> None:
        led = msgspec.structs.replace(meta, leader=leader, status=ShardStatus.ONLINE)
        facts = Facts(
            caught_up=frozenset(self._report.live),
            is_alive=self._model.is_alive,
            election="raft",
            tried_to_hand_over=True,
            reported=self._reported,
        )
        step = next_step(led, facts)
        if isinstance(step, Ask):
            self._ask(leader, step.members, meta.members_version, now_ms)
        elif isinstance(step, Change) and not step.meta.goal and self._settled < meta.members_version:
            # An older wish must not be carried out once nobody looks any more.
            self._ask(leader, Members(self._reported.voters), meta.members_version, now_ms)
        elif isinstance(step, Change):
            changed = step.meta
            self._ledger.put_voters(
                msgspec.structs.replace(
                    meta,
                    ensemble=changed.ensemble,
                    outgoing=changed.outgoing,
                    learners=changed.learners,
                    goal=changed.goal,
                    members_version=changed.members_version,
                )
            )

    def _ask(self, leader: NodeId, members: Members, number: int, now_ms: int) -> None:
        if self._asked == (members, number) and now_ms < self._ask_at_ms:
            return
        self._asked, self._ask_at_ms = (members, number), now_ms + ASK_AGAIN_MS
        self._ledger.send(leader, ChangeMembers(CLUSTER_SHARD_ID, self._report.term, number, members))


def _is_old(node: NodeMeta) -> bool:
    """Would it go by former voters? Who is down, and leaves, does not matter."""
    return node.alive and node.reads < VOTERS_FORMAT
