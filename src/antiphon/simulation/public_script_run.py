"""The cluster of one public script, and what each command does on it.

How the two sides meet:

* A cluster that starts at index 10 has logs that start at offset 10.
* A node acts in two steps: what it has to write and send is collected, `process-ready` and `stabilize` let it sync and
  send. With `async-storage-writes` the disk is a step of its own (`process-append-thread`). Applying what is committed is
  no business of our replicas, so `process-apply-thread` has nothing to do.
* Elections by hand are made by ticks: `campaign` lets them pass at one node until it asks for votes. Their rule that a
  follower with a live leader ignores candidates (`checkquorum`) is part of pre-vote here, so it turns pre-vote on.
  Time is counted in their ticks.
* Whoever proposes to a follower is sent to the leader that it knows, at once.
* `forget-leader` is the hint that the connection to the leader broke. `report-unreachable` is the same on the leader's side,
  and lasts until the leader's next tick.
* A limit of messages in flight is one of bytes here; entries are counted with the same size each.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from antiphon.errors import InvalidRequestError, NotLeaderError, NotReadyError
from antiphon.records.entry_id import EntryId
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    Ack,
    AnyMessage,
    Append,
    NodeId,
    Reject,
    RequestVote,
    SnapshotOffer,
    StaleTerm,
    TimeoutNow,
    VoteReply,
)
from antiphon.replication.raft_members import final_members
from antiphon.replication.replica_state import Role
from antiphon.simulation.public_script_language import Stanza, changed, numbers
from antiphon.simulation.public_script_replica import (
    EARLY_HEARTBEAT,
    EARLY_PROPOSAL,
    EMPTY_ENTRY,
    KEPT_JOINT,
    NEW_VOTER,
    ONE_STEP,
    REPEATED_PRE_VOTE,
    Liberties,
    PublicScriptReplica,
    ScriptReplica,
)
from antiphon.simulation.public_script_view import log_lines, state_lines, status_lines
from antiphon.simulation.scripted_cluster import ENTRY_BYTES, Cast, ScriptedCluster, Underway

ELECTION_TICKS, HEARTBEAT_TICKS = 3, 1  # of the public scripts
ROUNDS_MAX = 10_000  # of a `stabilize`
NODES_MAX = 31
SETTINGS = ("voters", "learners", "index", "inflight", "prevote", "checkquorum", "async-storage-writes")
WITHOUT_EFFECT = (  # settings of theirs on which nothing here depends
    "max-committed-size-per-ready",  # how much is applied at a time
    "disable-conf-change-validation",  # a check of theirs that is off
    "step-down-on-removal",  # ours always does
    "read-only",  # how reads are confirmed
)
TRANSITIONS = ("auto", "implicit", "explicit")
KINDS: dict[str, Callable[[AnyMessage], bool]] = {
    "MsgApp": lambda message: isinstance(message, Append),
    "MsgHeartbeat": lambda message: isinstance(message, Append) and not message.entries,
    "MsgAppResp": lambda message: isinstance(message, Ack | Reject),
    "MsgSnap": lambda message: isinstance(message, SnapshotOffer),
    "MsgVote": lambda message: isinstance(message, RequestVote) and not message.pre_vote,
    "MsgPreVote": lambda message: isinstance(message, RequestVote) and message.pre_vote,
    "MsgVoteResp": lambda message: isinstance(message, VoteReply) and not message.pre_vote,
    "MsgPreVoteResp": lambda message: isinstance(message, VoteReply) and message.pre_vote,
    "MsgTimeoutNow": lambda message: isinstance(message, TimeoutNow),
}


class ScriptRun:
    """One script's cluster."""

    def __init__(self, *, as_is: bool) -> None:
        self.liberties = Liberties(as_is=as_is)
        self._stage: ScriptedCluster | None = None
        self._pre_vote = False
        self._in_flight_max: int | None = None
        self._campaigning: set[NodeId] = set()  # whose pre-vote may be repeated; asked for membership only
        self._commands: dict[str, Callable[[Stanza], list[str]]] = {
            "log-level": lambda _: [],
            "add-nodes": self._add_nodes,
            "campaign": self._campaign,
            "propose": self._propose,
            "propose-conf-change": self._propose_change,
            "transfer-leadership": self._transfer,
            "forget-leader": self._forget_leader,
            "report-unreachable": self._report_unreachable,
            "process-ready": self._process_ready,
            "process-append-thread": self._process_append,
            "process-apply-thread": lambda _: [],
            "deliver-msgs": self._deliver,
            "stabilize": self._stabilize,
            "tick-heartbeat": lambda stanza: self._tick(stanza, HEARTBEAT_TICKS),
            "tick-election": lambda stanza: self._tick(stanza, ELECTION_TICKS),
            "set-randomized-election-timeout": self._set_timeout,
            "compact": self._compact,
            "send-snapshot": self._send_snapshot,
            "raft-log": lambda stanza: log_lines(self._first(stanza)),
            "raft-state": lambda _: state_lines(self.actors.values()),
            "status": lambda stanza: status_lines(self._first(stanza), self._in_flight_max),
        }

    def carry_out(self, stanza: Stanza) -> list[str]:
        """Carry out a stanza; returns the lines that an observable one prints."""
        if stanza.name not in self._commands:
            raise InvalidRequestError(
                f"no command {stanza.name!r}; there are {', '.join(sorted(self._commands))}"
            )
        return self._commands[stanza.name](stanza)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    @property
    def _on(self) -> ScriptedCluster:
        if self._stage is None:
            raise InvalidRequestError("a script begins with add-nodes")
        return self._stage

    @property
    def actors(self) -> dict[NodeId, PublicScriptReplica]:
        """The nodes that there are by now."""
        return {node: one for node, one in self._on.actors.items() if isinstance(one, PublicScriptReplica)}

    def _actor(self, node: NodeId) -> PublicScriptReplica:
        if node not in self.actors:
            raise InvalidRequestError(f"no node {node}; there are {', '.join(map(str, self.actors))}")
        return self.actors[node]

    def _first(self, stanza: Stanza) -> PublicScriptReplica:
        """The node that a command is about."""
        if not stanza.nodes:
            raise InvalidRequestError(f"which node? {stanza.name} NODE")
        return self._actor(stanza.nodes[0])

    def _named(self, stanza: Stanza) -> list[PublicScriptReplica]:
        """Those that are named, or all."""
        return [self._actor(node) for node in stanza.nodes] or list(self.actors.values())

    def _leader_for(self, actor: PublicScriptReplica) -> PublicScriptReplica | None:
        """Where a client that asks a node ends up: at the leader, if the node knows one."""
        leader = self.actors.get(actor.replica.leader or 0)
        return leader if leader is not None and leader.role is Role.LEADER else None

    def _add_nodes(self, stanza: Stanza) -> list[str]:
        options = stanza.options
        unknown = [name for name in options if name not in (*SETTINGS, *WITHOUT_EFFECT)]
        if unknown or len(stanza.nodes) != 1:
            raise InvalidRequestError(f"add-nodes COUNT takes {', '.join(SETTINGS)}, not {' '.join(unknown)}")
        members = Members(
            tuple(numbers(options.get("voters", ""))), (), tuple(numbers(options.get("learners", "")))
        )
        count, start = stanza.nodes[0], EntryId(0, int(options.get("index", "0")))
        if not 0 < count <= NODES_MAX - (0 if self._stage is None else len(self.actors)):
            raise InvalidRequestError(f"add-nodes: 1 to {NODES_MAX} nodes")
        if self._stage is None:
            self._begin(count, members, start, options)
            return []
        if members.voters and members != self._stage.founders:
            raise InvalidRequestError("later nodes know the members of the first add-nodes, or none")
        for _ in range(count):
            self._stage.add_node(
                str(len(self.actors) + 1),
                start if members.voters else EntryId(0, 0),
                joining=not members.voters,
            )
        return []

    def _begin(self, count: int, members: Members, start: EntryId, options: dict[str, str]) -> None:
        """The first `add-nodes` says how the cluster is set."""
        if not members.voters:
            raise InvalidRequestError("the first add-nodes says who votes: voters=(1,2,3)")
        checks_quorum = options.get("checkquorum") == "true"
        self._pre_vote = checks_quorum or options.get("prevote") == "true"
        self.liberties.leader_blocks_pre_vote = checks_quorum or self.liberties.as_is
        config = ReplicaConfig()
        if "inflight" in options:
            self._in_flight_max = int(options["inflight"])
            config = ReplicaConfig(max_in_flight_bytes=self._in_flight_max * ENTRY_BYTES)
        self._stage = ScriptedCluster(
            [str(node) for node in range(1, count + 1)],
            ElectionConfig(HEARTBEAT_TICKS, ELECTION_TICKS, pre_vote=self._pre_vote),
            config=config,
            start=start,
            founders=members,
            cast=Cast(
                replica=partial(ScriptReplica, liberties=self.liberties),
                actor=partial(
                    PublicScriptReplica,
                    liberties=self.liberties,
                    is_async=options.get("async-storage-writes") == "true",
                ),
                holds_back=True,
            ),
        )
        self._stage.open()

    # -- elections -----------------------------------------------------------------------------------------------------

    def _campaign(self, stanza: Stanza) -> list[str]:
        node = self._first(stanza).node
        self._on.campaign(node)
        if self._pre_vote:
            self._campaigning.add(node)
        return []

    def _campaign_again(self, sent: Underway) -> None:
        """A pre-vote taught the candidate no more than a newer term: it campaigns once more, in the next one."""
        if isinstance(sent.message, StaleTerm) and sent.to in self._campaigning:
            self._campaigning.discard(sent.to)
            if self.actors[sent.to].role is Role.FENCED and not self.liberties.as_is:
                self.liberties.took(REPEATED_PRE_VOTE)
                self._on.campaign(sent.to)

    def _transfer(self, stanza: Stanza) -> list[str]:
        actor, to = self._actor(int(stanza.options["from"])), int(stanza.options["to"])
        with suppress(NotLeaderError, NotReadyError, InvalidRequestError):  # refused: nothing happens
            actor.run(actor.replica.transfer_leadership(to))
        return []

    def _forget_leader(self, stanza: Stanza) -> list[str]:
        actor = self._first(stanza)
        if actor.replica.leader is not None:
            actor.replica.hand.doubt_leader()
        return []

    def _set_timeout(self, stanza: Stanza) -> list[str]:
        self._first(stanza).replica.hand.set_election_timeout(int(stanza.options["timeout"]))
        return []

    def _tick(self, stanza: Stanza, ticks: int) -> list[str]:
        actor = self._first(stanza)
        actor.reconnect()
        for _ in range(ticks):
            self._on.tick(actor.node)
        return []

    # -- proposals -----------------------------------------------------------------------------------------------------

    def _propose(self, stanza: Stanza) -> list[str]:
        _, node, data = stanza.command.split(maxsplit=2)
        actor = self._leader_for(self._actor(int(node)))
        if actor is None:
            return []  # a proposal that nobody takes is lost
        if actor.replica.hand.waits_for_first_entry and not self.liberties.as_is:
            self.liberties.took(EARLY_PROPOSAL)
            actor.run(actor.replica.hand.propose_at_once(data))
            return []
        with suppress(NotReadyError):  # so is one that is refused
            actor.run(actor.replica.propose([(1, data)]))
        return []

    def _propose_change(self, stanza: Stanza) -> list[str]:
        """Change the members: with `v1`, or by one node, in one step; otherwise through a joint one."""
        transition = stanza.options.get("transition", "auto")
        if transition not in TRANSITIONS:
            raise InvalidRequestError(f"no transition {transition!r}; there are {', '.join(TRANSITIONS)}")
        actor = self._leader_for(self._first(stanza))
        changes = " ".join(stanza.given).split()
        if actor is None:
            return []
        if self.liberties.as_is:
            self._change_as_is(actor, changes)
        elif actor.replica.hand.waits_for_first_entry or actor.replica.ready:
            if actor.replica.hand.waits_for_first_entry:
                self.liberties.took(EARLY_PROPOSAL)
            members = actor.replica.members
            if not actor.replica.hand.is_settled or members.is_joint is bool(changes):
                self.liberties.took(EMPTY_ENTRY)
                actor.run(actor.replica.hand.propose_at_once(""))
            elif changes:
                is_joint = transition != "auto" or len(changes) > 1
                after = changed(members, changes)
                step = Members(after.voters, members.voters if is_joint else (), after.learners)
                self._write_step(actor, step, is_kept=transition == "explicit")
            else:
                actor.run(actor.replica.hand.write_members(final_members(members)))
        return []

    def _change_as_is(self, actor: PublicScriptReplica, changes: list[str]) -> None:
        """Ours ends a joint step by itself, so there is nothing to propose without changes."""
        if not changes:
            return
        after = changed(actor.replica.members, changes)
        with suppress(NotReadyError):  # lost like a proposal that is refused
            actor.run(actor.replica.propose_members(after.voters, after.learners))

    def _write_step(self, actor: PublicScriptReplica, step: Members, *, is_kept: bool) -> None:
        liberties, replica = self.liberties, actor.replica
        before, fed = replica.members, [one.node for one in replica.followers()]
        if is_kept:
            liberties.took(KEPT_JOINT)
            liberties.kept_joint.add(step)
        if not step.is_joint and set(step.voters) != set(before.voters):
            liberties.took(ONE_STEP)
        if any(node not in before.voting and not replica.hand.has_caught_up(node) for node in step.voters):
            liberties.took(NEW_VOTER)
        actor.run(replica.hand.write_members(step))
        if any(node not in (*fed, actor.node) for node in step.everybody):
            liberties.took(EARLY_HEARTBEAT)
            actor.run(replica.hand.heartbeat_now())

    # -- the disk and the network --------------------------------------------------------------------------------------

    def _process_ready(self, stanza: Stanza) -> list[str]:
        for actor in self._named(stanza):
            actor.process_ready()
        return []

    def _process_append(self, stanza: Stanza) -> list[str]:
        for actor in self._named(stanza):
            actor.process_append()
        return []

    def _deliver(self, stanza: Stanza) -> list[str]:
        kind = stanza.options.get("type")
        if kind is not None and kind not in KINDS:
            raise InvalidRequestError(f"no type {kind!r}; there are {', '.join(KINDS)}")
        for node in stanza.nodes:
            self._deliver_to(self._actor(node), kind)
        lost = numbers(stanza.options.get("drop", ""))
        self._on.take(lambda sent: sent.to in lost and _is_of(kind, sent.message))
        return []

    def _deliver_to(self, actor: PublicScriptReplica, kind: str | None = None) -> bool:
        taken = self._on.take(lambda sent: sent.to == actor.node and _is_of(kind, sent.message))
        for sent in taken:
            if isinstance(sent.message, SnapshotOffer):
                actor.receive_snapshot(self.actors[sent.source], sent.message)
            else:
                self._on.receive(*sent)
                self._campaign_again(sent)
        return bool(taken)

    def _stabilize(self, stanza: Stanza) -> list[str]:
        actors = self._named(stanza)
        for _ in range(ROUNDS_MAX):
            busy = [actor for actor in actors if actor.is_busy]
            for actor in busy:
                actor.process_ready()
            heard = [actor for actor in actors if self._deliver_to(actor)]
            for actor in actors:
                actor.process_append()
            if not busy and not heard:
                self._campaigning.clear()
                return []
        raise InvalidRequestError(f"the replicas still talk after {ROUNDS_MAX} rounds")

    def _report_unreachable(self, stanza: Stanza) -> list[str]:
        leader, follower = (self._actor(node) for node in stanza.nodes)
        leader.unreachable.add(follower.node)
        leader.run(leader.replica.peer_lost(follower.node))
        return []

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _compact(self, stanza: Stanza) -> list[str]:
        actor, end = self._first(stanza), stanza.nodes[1]
        known = min(actor.replica.settled, actor.files.log.end_offset)
        if end > known:
            return [f"node {actor.node} keeps its log: it knows only {known} to be committed and durable"]
        actor.compact(end)
        return log_lines(actor)

    def _send_snapshot(self, stanza: Stanza) -> list[str]:
        actor, to = self._first(stanza), stanza.nodes[1]
        self._on.send(Underway(actor.node, to, actor.snapshot()))
        return []


def _is_of(kind: str | None, message: AnyMessage) -> bool:
    return kind is None or KINDS[kind](message)
