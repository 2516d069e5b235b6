"""All changes of members that are under way: their turns, their repeats, and what must be known before the next step.

`next_step` decides what a shard needs. This object decides when to ask it: a goal was set, a record is committed, a
leader's node reports, the leader confirms, a node is lost or back, or time passes. It adds three things.

* **Turns.** Of the shards that concern one node, only a few move at a time; the others wait in the order in which they
  asked. So a node with ten thousand shards is drained without a storm, and a change that waits for a lost node blocks
  no other.
* **Speak when committed.** A leader is told of members only when their record is committed.
* **Bounded repeats.** A message without an answer is repeated, less and less often, by one timer for each shard that
  has its turn.

A new coordinator needs nothing from here: it makes a new object, and `resume` finds the open changes in the records.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.elections import Elections
from antiphon.coordination.ledger import Ledger
from antiphon.coordination.live_sets import vouched_for
from antiphon.coordination.profiles import Replication
from antiphon.coordination.reconfiguration_steps import (
    Ask,
    CatchUp,
    Change,
    Elect,
    Facts,
    HandOver,
    Step,
    TakeTurn,
    Wait,
    follow,
    members_of,
    next_step,
)
from antiphon.coordination.state import has_leader
from antiphon.coordination.timers import Timers
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ShardMeta
from antiphon.replication.members import Members
from antiphon.replication.messages import ChangeMembers, MembersSettled, NodeId, TransferLeadership

MOVES_PER_NODE: Final = 20
REPEAT_MS: Final = 400
REPEAT_MS_MAX: Final = 5_000
TIMERS_PER_TICK: Final = 2_000


@dataclass(slots=True, eq=False)
class Move:
    """A change under way in one shard; where it stands is in the shard's record."""

    shard_id: int
    committed_version: int  # of the members in the newest committed record
    turn: tuple[NodeId, ...] = ()  # nodes among whose few moving shards this one is
    queued_on: NodeId | None = None  # the node whose turn it waits for
    caught_up: frozenset[NodeId] = frozenset()  # by the word of the leader of `reported_term`
    reported_term: int = -1
    reported: Members | None = None  # where replicas vote: the members in the leader's log
    returning_since: tuple[int, int] = (-1, -1)  # (term, version) in which new nodes were given to the leader
    told: tuple[int, int] = (-1, -1)  # (term, version) that the leader has confirmed
    said: tuple[int, int] = (-1, -1)  # (term, version) that it was last told
    left: frozenset[NodeId] = frozenset()  # where every replica writes: who may go
    asked: Members | None = None  # where replicas vote: what it was last asked for
    handed_over_in: int = -1  # term in which leadership was offered to the first of the goal
    repeats: int = 0
    has_timer: bool = False
    waits_for: str = ""


@dataclass(slots=True)
class Turns:
    """How many shards of each node are moving, and which changes wait for fewer."""

    most: int
    moving: dict[NodeId, int] = field(default_factory=dict)
    queues: dict[NodeId, deque[Move]] = field(default_factory=dict)

    def take(self, move: Move, nodes: tuple[NodeId, ...], gone: NodeId | None, *, at_once: bool) -> bool:
        """Give the move its turn with all of `nodes`, or queue it on the node that is `gone` or has no room."""
        full = next((node for node in nodes if self.moving.get(node, 0) >= self.most), None)
        blocked = None if at_once else gone if gone is not None else full
        if blocked is not None:
            self.queue(move, blocked)
            return False
        move.queued_on = None
        move.turn = nodes
        for node in nodes:
            self.moving[node] = self.moving.get(node, 0) + 1
        return True

    def queue(self, move: Move, on: NodeId) -> None:
        """Let the move wait for a node, unless it waits there already."""
        if move.queued_on != on:
            move.queued_on = on
            self.queues.setdefault(on, deque()).append(move)

    def give_back(self, move: Move) -> list[Move]:
        """The move gives up its turn; returns the changes that may try next."""
        nodes, move.turn = move.turn, ()
        found: list[Move] = []
        for node in nodes:
            self.moving[node] -= 1
            found += self.next_for(node, 1)
        return found

    def instead_of(self, move: Move, nodes: tuple[NodeId, ...]) -> list[Move]:
        """The changes that may try instead of a queued move, on those of `nodes` that have room."""
        found: list[Move] = []
        for node in nodes:
            if node != move.queued_on and self.moving.get(node, 0) < self.most:
                found += self.next_for(node, 1)
        return found

    def next_for(self, node: NodeId, at_most: int) -> list[Move]:
        """Take up to `at_most` moves from the node's queue."""
        queue = self.queues.get(node)
        found: list[Move] = []
        while queue and len(found) < at_most:
            move = queue.popleft()
            if move.queued_on == node:
                move.queued_on = None
                found.append(move)
        if not queue:
            self.queues.pop(node, None)
        return found


class Reconfigurations:
    """See the module docstring. Events come from the coordinator, which flushes the ledger after each."""

    def __init__(
        self,
        ledger: Ledger,
        elections: Elections,
        is_splitting: Callable[[int], bool],
        moves_per_node: int = MOVES_PER_NODE,
    ) -> None:
        self._ledger = ledger
        self._is_splitting = is_splitting
        self._model = ledger.model
        self._elections = elections
        self._moves: dict[int, Move] = {}
        self._turns = Turns(moves_per_node)
        self._timers: Timers[Move] = Timers()
        self._next: deque[Move] = deque()

    def __len__(self) -> int:
        return len(self._moves)

    @property
    def moving(self) -> dict[NodeId, int]:
        """Shards that have their turn, by node."""
        return {node: count for node, count in self._turns.moving.items() if count}

    def waits_for(self, shard_id: int) -> str:
        """What the change of a shard waits for; empty when it goes on, or there is none."""
        move = self._moves.get(shard_id)
        return "" if move is None else move.waits_for

    # -- what begins and ends a change -----------------------------------------------------------------------------

    def resume(self, now_ms: int) -> None:
        """Take over: go on with what is begun, and queue what has not begun, in the order of the shards."""
        begun, asked = [], []
        for shard_id, record in self._model.shards.items():
            meta = record.meta
            if meta.outgoing or meta.learners:
                begun.append(shard_id)
            elif meta.goal:
                asked.append(shard_id)
        for shard_id in [*begun, *asked]:
            meta = self._model.shards[shard_id].meta
            move = self._moves[shard_id] = Move(shard_id, meta.members_version)
            if meta.outgoing or meta.learners:
                self._turns.take(move, self._concerned(meta), None, at_once=True)
            self._next.append(move)
        self._go_on(now_ms)

    def aim(self, shard_id: int, goal: tuple[NodeId, ...]) -> None:
        """Make `goal` the voters of the shard, its first the leader if it can; replaces an older goal.

        The first step is made by the next tick.
        """
        record = self._model.shards[shard_id]
        move = self._moves.get(shard_id)
        if move is None:
            move = self._moves[shard_id] = Move(shard_id, record.meta.members_version)
        elif not record.meta.outgoing:
            self._give_back(move)
        move.handed_over_in = -1
        self._put(record, msgspec.structs.replace(record.meta, goal=goal))
        self._next.append(move)

    def deleted(self, shard_id: int) -> None:
        """The shard is about to be deleted."""
        self._end(shard_id)

    def _end(self, shard_id: int) -> None:
        move = self._moves.pop(shard_id, None)
        if move is not None:
            self._give_back(move)
            move.queued_on = None

    def _give_back(self, move: Move) -> None:
        self._next.extend(self._turns.give_back(move))

    # -- what is heard -----------------------------------------------------------------------------------------------

    def committed(self, record: ShardRecord, now_ms: int) -> None:
        """A shard's after-image is committed: its members may be spoken of."""
        move = self._moves.get(record.meta.shard_id)
        if move is not None:
            move.committed_version = record.meta.members_version
            self._event(move, now_ms)

    def live_set(self, sender: NodeId, report: LiveSet, now_ms: int) -> None:
        """A leader's word on who has caught up, and where replicas vote on who is a member."""
        record = self._model.shards.get(report.shard_id)
        if record is None or record.meta.leader != sender or record.meta.term != report.term:
            return
        reported = None
        if report.voters:
            reported = Members(report.voters, report.outgoing, report.learners)
            after = follow(record.meta, reported)
            if after != record.meta:
                self._put(record, after)
        move = self._moves.get(report.shard_id)
        if move is None and reported is not None:
            move = self._what_is_left(report.shard_id)
        if move is None:
            return
        move.caught_up = vouched_for(record.meta, report)
        move.reported_term, move.reported = report.term, reported
        self._event(move, now_ms)

    def _what_is_left(self, shard_id: int) -> Move | None:
        """The change of members that a leader reports and that was cancelled: it must be brought to an end."""
        meta = self._model.shards[shard_id].meta
        if not (meta.learners or meta.outgoing):
            return None
        move = self._moves[shard_id] = Move(shard_id, meta.members_version)
        self._turns.take(move, self._concerned(meta), None, at_once=True)
        return move

    def settled(self, sender: NodeId, message: MembersSettled, now_ms: int) -> None:
        """The leader uses the members of this record, and the previous members are no longer needed."""
        move = self._moves.get(message.shard)
        record = self._model.shards.get(message.shard)
        if move is None or record is None:
            return
        meta = record.meta
        if message.version != meta.members_version:
            return
        if self._elections.options_of(record).is_multi:
            move.left |= {sender}
            if move.left >= set(meta.outgoing) - set(meta.ensemble):
                move.told = (meta.term, meta.members_version)
        elif has_leader(meta) and (meta.leader, meta.term) == (sender, message.term):
            move.told = (meta.term, meta.members_version)
        self._event(move, now_ms)

    def led(self, shard_id: int, now_ms: int) -> None:
        """The shard has a new leader, which learnt the members when it was appointed.

        If it is not the intended leader, that one is not well, and the new leader stays (S3.31).
        """
        move = self._moves.get(shard_id)
        if move is None:
            return
        record = self._model.shards[shard_id]
        meta = record.meta
        move.told = (meta.term, meta.members_version)
        moves_replicas = meta.outgoing or set(meta.aim) != set(meta.ensemble)
        if moves_replicas and meta.leader in meta.goal and meta.leader != meta.goal[0]:
            goal = (meta.leader, *(node for node in meta.goal if node != meta.leader))
            self._put(record, msgspec.structs.replace(meta, goal=goal))
        self._event(move, now_ms)

    def node_gone(self, node: NodeId, now_ms: int) -> None:
        """The node is dead, or has a new process: what was known of its replicas is not known any more."""
        for shard_id in list(self._model.shards_on.get(node, ())):
            move = self._moves.get(shard_id)
            if move is not None:
                move.caught_up -= {node}
                self._event(move, now_ms)

    def node_joined(self, node: NodeId, now_ms: int) -> None:
        """The node's (re)turn is committed: what waited for it may go on."""
        self._next.extend(self._turns.next_for(node, self._turns.most))
        self._go_on(now_ms)

    def tick(self, now_ms: int) -> None:
        """Repeat what was not answered."""
        for move in self._timers.due(now_ms, TIMERS_PER_TICK):
            move.has_timer = False
            if self._moves.get(move.shard_id) is move:
                move.repeats += 1
                self._drive(move, now_ms, again=True)
        self._go_on(now_ms)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _event(self, move: Move, now_ms: int) -> None:
        self._next.append(move)
        self._go_on(now_ms)

    def _go_on(self, now_ms: int) -> None:
        while self._next:
            move = self._next.popleft()
            if self._moves.get(move.shard_id) is move:
                self._drive(move, now_ms)

    def _drive(self, move: Move, now_ms: int, *, again: bool = False) -> None:
        """Do what can be done for one shard now."""
        record = self._model.shards.get(move.shard_id)
        if record is None:
            self._end(move.shard_id)
            return
        options = self._elections.options_of(record)
        self._send_members(move, record.meta, options, again=again)
        step = next_step(record.meta, self._facts(move, record, options))
        if isinstance(step, TakeTurn):
            if not self._take_turn(move, record.meta):
                return
            step = next_step(record.meta, self._facts(move, record, options))
        move.waits_for = ""
        self._do(move, record, step, now_ms, again=again)
        if self._moves.get(move.shard_id) is move and not move.has_timer:
            move.has_timer = True
            self._timers.add(now_ms + min(REPEAT_MS << min(move.repeats, 10), REPEAT_MS_MAX), move)

    def _take_turn(self, move: Move, meta: ShardMeta) -> bool:
        nodes = self._concerned(meta)
        gone = next((n for n in meta.aim if n not in meta.ensemble and not self._model.is_alive(n)), None)
        if self._turns.take(move, nodes, gone, at_once=False):
            return True
        if gone is not None:
            move.waits_for = f"node {gone}, which is not alive"
        else:
            move.waits_for = f"its turn on node {move.queued_on}"
        # Its place with the others may be another's. Who waits for a dead node waits for its return, not for a place: two
        # that wait for each other's would call one another for ever.
        alive = tuple(node for node in nodes if self._model.is_alive(node))
        self._next.extend(self._turns.instead_of(move, alive))
        return False

    def _do(self, move: Move, record: ShardRecord, step: Step, now_ms: int, *, again: bool) -> None:
        meta = record.meta
        match step:
            case Change():
                move.repeats = 0
                move.left = frozenset()
                self._put(record, step.meta)
                if step.elect:
                    self._elections.begin(move.shard_id, "moved", wanted=step.meta.aim[0])
                if not (step.meta.goal or step.meta.learners or step.meta.outgoing):
                    self._end(move.shard_id)
            case CatchUp():
                self._feed(move, meta, step.nodes, now_ms, again=again)
            case Elect() | HandOver():
                if again or move.handed_over_in != meta.term:
                    self._move_leadership(move, meta, step)
            case Ask():
                is_committed = move.committed_version == meta.members_version
                if is_committed and (again or move.asked != step.members):
                    move.asked = step.members
                    message = ChangeMembers(move.shard_id, meta.term, meta.members_version, step.members)
                    self._ledger.send(meta.leader, message)
            case Wait():
                move.waits_for = step.reason
                if move.turn and not meta.outgoing and (again or not has_leader(meta)):
                    self._give_back(move)  # it may take long: others go first

    def _move_leadership(self, move: Move, meta: ShardMeta, step: Elect | HandOver) -> None:
        if isinstance(step, Elect):
            move.handed_over_in = meta.term + 1
            self._elections.begin(move.shard_id, "moved", wanted=step.wanted)
        else:
            move.handed_over_in = meta.term
            self._ledger.send(meta.leader, TransferLeadership(move.shard_id, meta.term, to=step.to))

    def _feed(
        self, move: Move, meta: ShardMeta, nodes: tuple[NodeId, ...], now_ms: int, *, again: bool
    ) -> None:
        """Have the leader send the log to these nodes. A node that is down does not block the moves of other shards."""
        away = [node for node in nodes if not self._model.is_alive(node)]
        if away:
            move.waits_for = f"node {away[0]}, which is not alive"
            self._give_back(move)
            self._turns.queue(move, away[0])
            return
        move.waits_for = f"nodes {list(nodes)} to catch up with node {meta.leader}"
        now = (meta.term, meta.members_version)
        if move.committed_version != meta.members_version or move.reported is not None:
            return
        if again or move.returning_since != now:
            # That the leader replicates to it is no proof that it promised: it may do so since before the node left.
            move.returning_since = now
            for node in nodes:
                self._elections.followers.bring_back(meta.shard_id, node, meta.leader, now_ms)

    def _send_members(self, move: Move, meta: ShardMeta, options: Replication, *, again: bool) -> None:
        """Tell the leader of every change of the members, until it has confirmed it.

        With `writers=multi` outgoing members are asked whether they may leave.
        """
        now = (meta.term, meta.members_version)
        is_due = again or move.said != now
        is_committed = move.committed_version == meta.members_version
        if options.election == "raft" or move.told == now or not is_committed or not is_due:
            return
        if options.is_multi:
            to = [node for node in meta.outgoing if node not in meta.ensemble]
        else:
            to = [meta.leader] if has_leader(meta) else []
        move.said = now if to else move.said
        message = ChangeMembers(meta.shard_id, meta.term, meta.members_version, members_of(meta))
        for node in to:
            self._ledger.send(node, message)

    # -- facts -------------------------------------------------------------------------------------------------------

    def _facts(self, move: Move, record: ShardRecord, options: Replication) -> Facts:
        meta = record.meta
        current = move.reported_term == meta.term
        # A leader reports what changes; of voters the record says it too, learners must be vouched for in this term.
        voters = frozenset(node for node in meta.live if node not in meta.learners)
        return Facts(
            caught_up=voters | move.caught_up if current else voters,
            is_alive=self._model.is_alive,
            told=move.told == (meta.term, meta.members_version),
            has_turn=bool(move.turn),
            election=options.election,
            is_multi=options.is_multi,
            min_live=options.min_live,
            is_splitting=self._is_splitting(meta.shard_id),
            tried_to_hand_over=move.handed_over_in >= 0,
            # Nothing was reported: then nothing has changed since it was recorded. Learners may not be in the log yet.
            reported=(move.reported if current else None) or Members(meta.ensemble, meta.outgoing),
        )

    def _concerned(self, meta: ShardMeta) -> tuple[NodeId, ...]:
        """The nodes that a change loads: those that come and go, and the leader that sends the log."""
        before = meta.outgoing or meta.ensemble
        nodes = [n for n in (*before, *meta.aim) if (n in before) != (n in meta.aim)]
        if meta.leader >= 0:
            nodes.append(meta.leader)
        return tuple(dict.fromkeys(nodes)) or (meta.aim[0],)

    def _put(self, record: ShardRecord, meta: ShardMeta) -> None:
        voting = {*meta.ensemble, *meta.outgoing}
        untrusted = tuple(node for node in record.untrusted if node in voting)
        for node in record.meta.everybody:
            if node not in voting and node not in meta.learners:
                self._elections.followers.arrived(meta.shard_id, node)
        self._ledger.put_shard(msgspec.structs.replace(record, meta=meta, untrusted=untrusted))
