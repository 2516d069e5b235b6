"""Carry out a script of the scenario language on real replicas, under the checker's eyes.

One step at a time: what it does, then what it caused in words. A step that cannot be done (a node that is down, an append
that is refused), an expectation that does not hold and a promise that is broken end the run, with the line and what was
found.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from antiphon.errors import AntiphonError, NotLeaderError, NotReadyError
from antiphon.invariants import InvariantError
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.config import ElectionConfig, ReplicaConfig
from antiphon.replication.members import Members
from antiphon.replication.messages import (
    AddFollower,
    BecomeLeader,
    Entry,
    NewTerm,
    NewTermReply,
    NodeId,
)
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import Role
from antiphon.simulation.script_language import (
    NUMBERS,
    SAYINGS,
    SCENE,
    SETS,
    Step,
    entry_of,
    read_script,
    saying,
)
from antiphon.simulation.script_picture import picture, role_of, words_of
from antiphon.simulation.scripted_cluster import (
    COORDINATOR,
    ENTRY_BYTES,
    SHARD,
    ScriptedCluster,
    ScriptedReplica,
    Underway,
)
from antiphon.simulation.violation import ViolationError
from antiphon.simulation.written_script import Script

PATIENCE_TICKS = 10
SETTLE_ROUNDS = 30  # of ticks and deliveries


class StepError(Exception):
    """A step could not be done, or an expectation does not hold; the text says what was found."""


class Outcome(NamedTuple):
    """How a script ended: how many steps were carried out, and at which line it failed, if it did."""

    steps: int
    line: int  # 0: it did not fail
    failure: str


def run_script(
    path: Path | Script,
    say: Callable[[str], None] = lambda _: None,
    shown: Callable[[Step, list[str]], None] | None = None,
) -> Outcome:
    """Read a script and carry it out. `say` gets a line per step, `shown` each step and what the cluster looks like then.

    Raises InvalidRequestError for what cannot be read.
    """
    steps = read_script(path)
    run = ScriptRun([step for step in steps if step.command in SCENE])
    for count, step in enumerate(steps):
        try:
            caused = run.carry_out(step)
        except StepError as error:
            failure = str(error)
        except ViolationError as error:
            failure = f"broke {error}"
        except (InvariantError, AntiphonError) as error:
            failure = f"broke no-crash: {error}"
        else:
            say(f"{step.line:4}  {step.text}" + "".join(f"\n      - {note}" for note in caused))
            if shown is not None:
                shown(step, run.picture())
            continue
        say(f"{step.line:4}  {step.text}\n      FAILED: {failure}")
        return Outcome(count, step.line, failure)
    return Outcome(len(steps), 0, "")


class ScriptRun:
    """The stage of one script, and what each command does on it."""

    def __init__(self, scene: Sequence[Step]) -> None:
        self._names = scene[0].nodes
        self._votes = scene[0].command == "replicas"
        settings = {step.what: step.number for step in scene if step.command == "set"}
        batch_bytes = settings.get("batch", 1000) * ENTRY_BYTES
        patience = settings.get("patience", PATIENCE_TICKS)
        rule = next((step.words[0] for step in scene if step.what == "commit"), "quorum")
        self._rule = CommitRule.parse(rule)
        self._stage = ScriptedCluster(
            self._names,
            ElectionConfig(2, patience, pre_vote=bool(settings.get("pre-vote", 1))),
            votes=self._votes,
            config=ReplicaConfig(
                max_in_flight_bytes=batch_bytes,
                feed_bytes_max=batch_bytes,
                commit=self._rule,
                min_live=settings.get("min-live", 1),
            ),
            founders=Members(tuple(range(1, settings["voters"] + 1))) if "voters" in settings else None,
        )
        self._promised: dict[NodeId, NewTermReply] = {}  # of the coordinator's latest term
        self._is_open = False
        self._live_version = 0
        self._commands: dict[str, Callable[[Step], None]] = {
            "log": self._log,
            "term": self._term,
            "campaign": self._campaign,
            "elect": self._elect,
            "fence": lambda step: self._fence(self._ids(step.nodes)),
            "appoint": lambda step: self._appoint(self._living(step.nodes[0])),
            "add": self._add,
            "members": self._change_members,
            "transfer": self._change_members,
            "record": lambda _: self._record(),
            "append": self._append,
            "refuse": self._refuse,
            "deliver": self._deliver,
            "drop": self._drop,
            "repeat": self._repeat,
            "cut": self._cut,
            "heal": lambda _: self._stage.cut.clear(),
            "crash": self._crash,
            "restart": self._restart,
            "hold": self._hold,
            "sync": self._sync,
            "tick": self._tick,
            "settle": lambda _: self._settle(),
            "expect": self._expect,
        }

    def carry_out(self, step: Step) -> list[str]:
        """Carry out a step; returns in words what it caused. Raises StepError, ViolationError, InvariantError."""
        stage = self._stage
        stage.notes.clear()
        if step.command not in SCENE and not self._is_open:
            self._is_open = True
            stage.open()
        if step.command in self._commands:
            self._commands[step.command](step)
        return list(stage.notes)

    def picture(self) -> list[str]:
        """What the cluster looks like now; nothing before it is open."""
        return picture(self._stage) if self._is_open else []

    # -- names -------------------------------------------------------------------------------------------------------

    def _id(self, name: str) -> NodeId:
        return self._names.index(name) + 1

    def _ids(self, names: Sequence[str]) -> list[NodeId]:
        return [self._id(name) for name in names]

    def _actor(self, name: str) -> ScriptedReplica:
        return self._stage.actors[self._id(name)]

    def _living(self, name: str) -> ScriptedReplica:
        actor = self._actor(name)
        if not actor.alive:
            raise StepError(f"{name} is down")
        return actor

    # -- the scene -----------------------------------------------------------------------------------------------------

    def _log(self, step: Step) -> None:
        for name in step.nodes:
            if self._actor(name).files.log.entries:
                raise StepError(f"{name} has a log already")
            self._stage.preload(self._id(name), _entries(step.words), step.number)

    def _term(self, step: Step) -> None:
        for name in step.nodes:
            files = self._actor(name).files
            if step.number < files.log.end.term:
                raise StepError(f"{name} has entries of term {files.log.end.term}")
            files.term = step.number

    # -- elections -----------------------------------------------------------------------------------------------------

    def _campaign(self, step: Step) -> None:
        actor = self._living(step.nodes[0])
        if not self._stage.campaign(actor.node):
            raise StepError(
                f"{step.nodes[0]} does not campaign; it is {role_of(actor)} in term {actor.replica.term}"
            )

    def _elect(self, step: Step) -> None:
        name = step.nodes[0]
        actor = self._living(name)
        if self._votes:
            self._campaign(step)
        else:
            self._fence([node for node, one in self._stage.actors.items() if one.alive])
            self._appoint(actor)
        self._stage.deliver_all()
        if not actor.replica.ready:
            raise StepError(f"{name} is {role_of(actor)} in term {actor.replica.term}, and serves nobody")

    def _fence(self, nodes: Sequence[NodeId]) -> None:
        """The coordinator begins a term, with these members."""
        stage = self._stage
        term = 1 + max(
            max(actor.files.term, actor.term_now() if actor.alive else 0) for actor in stage.actors.values()
        )
        stage.told.clear()
        for node in nodes:
            stage.receive(COORDINATOR, node, NewTerm(SHARD, term))
        self._hear_promises(term)
        stage.say(f"promised term {term}: {', '.join(map(stage.name, self._promised)) or 'nobody'}")

    def _hear_promises(self, term: int) -> None:
        self._promised = {
            node: said
            for node, said in self._stage.told
            if isinstance(said, NewTermReply) and said.term == term
        }

    def _appoint(self, actor: ScriptedReplica) -> None:
        stage, name = self._stage, self._stage.name(actor.node)
        if actor.node not in self._promised:
            raise StepError(f"{name} has not promised the coordinator's term")
        heads = tuple((node, said.head) for node, said in self._promised.items() if node != actor.node)
        term = self._promised[actor.node].term
        stage.receive(
            COORDINATOR,
            actor.node,
            BecomeLeader(SHARD, term, stage.truth.ensemble, heads, *self._first_live()),
        )
        if actor.role is not Role.LEADER:
            raise StepError(
                f"{name} refuses to lead term {term}; it is {role_of(actor)} in term {actor.replica.term}"
            )

    def _add(self, step: Step) -> None:
        """A member that promises late is handed to the leader."""
        node = self._id(step.nodes[0])
        leader = self._leader()
        term = leader.term_now()
        self._stage.receive(COORDINATOR, node, NewTerm(SHARD, term))
        said = [message for source, message in self._stage.told if source == node]
        if not said or not isinstance(said[-1], NewTermReply) or said[-1].term != term:
            raise StepError(f"{step.nodes[0]} does not promise term {term}")
        self._stage.receive(COORDINATOR, leader.node, AddFollower(SHARD, term, node, said[-1].head))

    def _first_live(self) -> tuple[tuple[NodeId, ...], int]:
        """Where commits go by the live set, a term begins with those of it that promised, at first with all that did."""
        truth = self._stage.truth
        if not self._rule.by_live_set:
            return (), 0
        before = truth.live or truth.ensemble
        truth.live, truth.fence = tuple(node for node in before if node in self._promised), "live"
        self._live_version += 1
        return truth.live, self._live_version

    def _record(self) -> None:
        """The coordinator records what the leader proposes, and everybody hears of it."""
        leader = self._leader()
        proposal = leader.proposal
        if proposal is None or proposal.version != self._live_version:
            raise StepError(f"{self._stage.name(leader.node)} proposes no other live set")
        self._live_version += 1
        self._stage.truth.live = proposal.live
        self._stage.checker.durable_shrank(SHARD)
        leader.run(leader.replica.live_recorded(leader.term_now(), self._live_version, proposal.live))

    # -- members -----------------------------------------------------------------------------------------------------

    def _leader(self) -> ScriptedReplica:
        leading = [one for one in self._stage.actors.values() if one.alive and one.role is Role.LEADER]
        if not leading:
            raise StepError("nobody leads")
        return max(leading, key=lambda one: one.term_now())

    def _change_members(self, step: Step) -> None:
        """Have the leader change the voters, or hand over to one of them."""
        leader = self._leader()
        replica, nodes = leader.replica, self._ids(step.nodes)
        if not isinstance(replica, RaftReplica):
            raise StepError("these are appointed")
        try:
            if step.command == "transfer":
                leader.run(replica.transfer_leadership(nodes[0]))
            else:
                leader.run(replica.propose_members(nodes, self._ids(step.others)))
        except AntiphonError as error:
            raise StepError(error.message) from None

    # -- clients -------------------------------------------------------------------------------------------------------

    def _append(self, step: Step) -> None:
        actor = self._living(step.nodes[0])
        try:
            for word in step.words:
                actor.run(actor.replica.propose([(1, word)]))
        except (NotLeaderError, NotReadyError) as error:
            raise StepError(error.message) from None

    def _refuse(self, step: Step) -> None:
        actor = self._living(step.nodes[0])
        try:
            actor.run(actor.replica.propose([(1, word) for word in step.words]))
        except (NotLeaderError, NotReadyError) as error:
            self._stage.say(error.message)
        else:
            raise StepError(f"{step.nodes[0]} took it, at the end {actor.replica.log_end}")

    # -- the network ---------------------------------------------------------------------------------------------------

    def _wanted(self, step: Step) -> Callable[[Underway], bool]:
        sources, receivers = self._ids(step.nodes), self._ids(step.others)
        return lambda sent: (
            (not sources or sent.source in sources) and (not receivers or sent.to in receivers)
        )

    def _deliver(self, step: Step) -> None:
        """Without words everything, and what that causes; otherwise what is underway there now, and no more."""
        if not step.nodes and not step.others:
            self._stage.deliver_all()
            return
        for sent in self._stage.take(self._wanted(step)):
            self._stage.receive(*sent)

    def _drop(self, step: Step) -> None:
        self._stage.say(f"{len(self._stage.take(self._wanted(step)))} messages lost")

    def _repeat(self, step: Step) -> None:
        """Messages arrive, and stay underway: they will arrive again."""
        wanted = self._wanted(step)
        for sent in [sent for sent in self._stage.underway if wanted(sent)]:
            self._stage.receive(*sent)

    def _cut(self, step: Step) -> None:
        links = [(self._id(source), self._id(to)) for source, to in step.links]
        self._stage.cut.update(links)
        lost = self._stage.take(lambda sent: (sent.source, sent.to) in links)
        if lost:
            self._stage.say(f"{len(lost)} messages lost")

    # -- nodes, disks, time --------------------------------------------------------------------------------------------

    def _crash(self, step: Step) -> None:
        for name in step.nodes:
            self._living(name).crash()

    def _restart(self, step: Step) -> None:
        for name in step.nodes:
            actor = self._actor(name)
            if actor.alive:
                raise StepError(f"{name} is up")
            actor.boot()

    def _hold(self, step: Step) -> None:
        for name in step.nodes:
            self._actor(name).auto_sync = False

    def _sync(self, step: Step) -> None:
        for name in step.nodes:
            actor = self._living(name)
            actor.auto_sync = True
            actor.sync()

    def _tick(self, step: Step) -> None:
        for _ in range(step.number):
            for node in self._ids(step.nodes):
                self._stage.tick(node)

    def _settle(self) -> None:
        """Ticks for leaders, and all messages, until the living agree or nothing more is to be hoped for."""
        for _ in range(SETTLE_ROUNDS):
            self._stage.deliver_all()
            living = [actor for actor in self._stage.actors.values() if actor.alive]
            if len({(actor.log.end, actor.replica.high_watermark) for actor in living}) <= 1:
                return
            for actor in living:
                if actor.role is Role.LEADER:
                    self._stage.tick(actor.node)
        self._stage.deliver_all()

    # -- expectations --------------------------------------------------------------------------------------------------

    def _expect(self, step: Step) -> None:
        if step.what == "copies":
            (content,) = step.words
            holders = [
                self._stage.name(node)
                for node, actor in self._stage.actors.items()
                if any(entry.data == content for entry in actor.files.log.entries)
            ]
            if len(holders) != step.number:
                raise StepError(
                    f"expected {content} on {step.number} disks, found it on {len(holders)}: {', '.join(holders) or '-'}"
                )
            return
        for name in step.nodes:
            if step.what in SAYINGS:
                for other in step.others:
                    self._expect_said(step.what, name, other)
            else:
                self._expect_property(step, name)

    def _expect_property(self, step: Step, name: str) -> None:
        actor = self._actor(name) if step.what == "disk" else self._living(name)
        if step.what in ("log", "disk"):
            self._expect_log(step, name, actor)
            return
        if step.what in SETS:
            known = actor.replica.live if step.what == "live" else actor.replica.members.voters
            found = " ".join(sorted(map(self._stage.name, known)))
            wanted = " ".join(sorted(step.others))
            if found != wanted:
                raise StepError(f"expected {name} {step.what} {wanted}, found {found or 'none'}")
            return
        found = str(self._found(step.what, actor))
        expected = str(step.number) if step.what in NUMBERS else step.words[0]
        if found != expected:
            raise StepError(f"expected {name} {step.what} {expected}, found {found}")

    def _found(self, what: str, actor: ScriptedReplica) -> object:
        replica = actor.replica
        match what:
            case "term":
                return replica.term
            case "commit":
                return replica.high_watermark
            case "settled":
                return replica.settled
            case "lost":
                return actor.lost
            case "end":
                return replica.log_end
            case "role":
                return role_of(actor)
            case "ready":
                return "yes" if replica.ready else "no"
            case "leader":
                return self._stage.name(replica.leader)
            case _:
                return self._stage.name(replica.voted_for)

    def _expect_log(self, step: Step, name: str, actor: ScriptedReplica) -> None:
        of_disk = step.what == "disk"
        log = actor.files.log if of_disk else actor.log
        if step.others:
            other = self._actor(step.others[0]) if of_disk else self._living(step.others[0])
            wanted = other.files.log if of_disk else other.log
            if log.entries != wanted.entries:
                raise StepError(
                    f"expected {name} {step.what} like {step.others[0]}: {words_of(wanted)}, found: {words_of(log)}"
                )
            return
        expected = [entry_of(word) for word in step.words]
        same = len(expected) == len(log.entries) and all(
            entry.term == term and content in (None, entry.data)
            for entry, (term, content) in zip(log.entries, expected, strict=True)
        )
        if not same:
            raise StepError(
                f"expected {name} {step.what} {' '.join(step.words) or 'empty'}, found: {words_of(log)}"
            )

    def _expect_said(self, what: str, source: str, to: str) -> None:
        message = self._stage.last_said.get((self._id(source), self._id(to)))
        if message is None or saying(message) != what:
            found = "said nothing" if message is None else f"last said {message!r}"
            raise StepError(f"expected that {source} {what} {to}, but {source} {found}")


def _entries(words: Sequence[str]) -> list[Entry]:
    """Entries of one offset each; where a script gives no content, term and offset are the content."""
    entries = []
    for at, word in enumerate(words):
        term, content = entry_of(word)
        entries.append(Entry(term, at, at + 1, content or f"{term}.{at}"))
    return entries
