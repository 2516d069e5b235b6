"""Runner for public cluster scripts: stanzas of a command, a line `----` and the expected output.

Every command is carried out on our replicas; compared are the stanzas that print what can be observed of any
implementation: `raft-log`, `raft-state`, `status`. The outputs of the others are texts of messages and of another
program's log; from what they print of entries being written follows what each node's log is in the end, and the last
stanza of a file is compared by that.

How the two sides meet:

* Their index i (from 1, the entry at which a leader's term begins included) is our offset i - 1, so an index of theirs
  is the exclusive end of ours with the same number. A cluster that starts at index 10 has logs that start at offset 10.
* A node acts in two steps: what it has to write and send is collected, `process-ready` and `stabilize` let it sync
  and send. An actor of the stage with `holds_back` does the same.
* Elections by hand are made by ticks: `campaign` lets them pass at one node until it asks for votes. Their rule that a
  follower with a live leader ignores candidates (`checkquorum`) is part of pre-vote here, so it turns pre-vote on.
  Time is counted in their ticks.

Two liberties are taken besides, unless the caller wants the replicas as they are; each use is counted:

* Their leader takes proposals before its term's first entry is committed; `RaftReplica` refuses them (S1.36). The runner
  lifts this one admission rule (`EagerReplica`); nothing behind it differs.
* A pre-vote that only teaches its sender a newer term is followed by one further time-out. (Their leader that gives up
  stays in its term; ours promises the next one, which the next candidate has to learn first.)
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.invariants import InvariantError
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import Action
from antiphon.replication.config import ElectionConfig
from antiphon.replication.follower_cursor import CursorState
from antiphon.replication.messages import Entry, NodeId, StaleTerm
from antiphon.replication.raft import RaftReplica
from antiphon.replication.replica_state import Role
from antiphon.simulation.stage import TERM_START, Actor, Stage, Underway, to_any
from antiphon.simulation.violation import ViolationError

OBSERVABLE = ("raft-log", "raft-state", "status")
ELECTION_TICKS, HEARTBEAT_TICKS = 3, 1  # of the public scripts
ROUNDS_MAX = 10_000  # of a `stabilize`
NODES_MAX = 31
EARLY_PROPOSAL = "a proposal was taken before the first entry of the leader's term was committed"
REPEATED_PRE_VOTE = "a pre-vote was repeated in a newer term"
_STATES = {
    CursorState.PROBE: "StateProbe",
    CursorState.REPLICATE: "StateReplicate",
    CursorState.SNAPSHOT: "StateSnapshot",
}
_ENTRY = re.compile(r'^(\d+)/(\d+) EntryNormal "(.*)"$')
_READY_OF = re.compile(r"^(?:> )?(\d+) (handling Ready|receiving messages)$")
_SECTIONS = {"Entries:": "written", "CommittedEntries:": "committed"}

Line = tuple[int, str]  # term of an entry and its content


class EagerReplica(RaftReplica):
    """A replica whose leader takes proposals at once, as the scripts want; everything else is `RaftReplica`."""

    def propose_at_once(self, data: str) -> list[Action]:
        """Append one entry if this replica leads, though the first entry of its term may be uncommitted."""
        out: list[Action] = []
        if self._leading is not None:
            self._leading.propose([(1, data)], out)
        return out


class Stanza(NamedTuple):
    """A command at a line, and what must be printed."""

    line: int
    command: str
    expected: list[str]

    @property
    def words(self) -> list[str]:
        """The command in words; what is in parentheses stays together."""
        return re.findall(r"[^\s(]+(?:\([^)]*\))?", self.command)


class Wrong(NamedTuple):
    """A compared stanza that came out otherwise."""

    line: int
    command: str
    expected: list[str]
    found: list[str]


class Judgement(NamedTuple):
    """How a file came out: how many stanzas were compared, which were wrong, how often which liberty was taken."""

    compared: int
    wrong: list[Wrong]
    liberties: dict[str, int]

    @property
    def passed(self) -> int:
        """Compared stanzas that came out as the file says."""
        return self.compared - len(self.wrong)


def judge_script(path: Path, *, as_is: bool = False) -> Judgement:
    """Carry out a script and compare what it observes; `as_is` without the two liberties of this module.

    Raises InvalidRequestError for what it does not understand.
    """
    stanzas = list(_stanzas(path))
    if not stanzas:
        raise InvalidRequestError(f"{path} has no stanzas (a command, a line `----`, the expected output)")
    run = ScriptRun(as_is=as_is)
    wrong: list[Wrong] = []
    broken = ""  # what went wrong so badly that nothing after it can be compared
    for stanza in stanzas:
        found = [broken] if broken else []
        try:
            found = found or run.carry_out(stanza)
        except (ViolationError, InvariantError) as error:
            broken = f"line {stanza.line} broke {error}"
            found = [broken]
        except (AntiphonError, ValueError, IndexError, KeyError) as error:
            raise InvalidRequestError(f"{path}, line {stanza.line}: {stanza.command}: {error}") from None
        if stanza.words[0] in OBSERVABLE and found != stanza.expected:
            wrong.append(Wrong(stanza.line, stanza.command, stanza.expected, found))
    compared = sum(stanza.words[0] in OBSERVABLE for stanza in stanzas)
    last, known = stanzas[-1], KnownLogs(stanzas)
    if known.logs and last.words[0] not in OBSERVABLE:
        compared += 1
        expected = known.lines()
        found = [broken] if broken else known.same_lines_of(run)
        if found != expected:
            wrong.append(Wrong(last.line, f"{last.command} (the final logs)", expected, found))
    return Judgement(compared, wrong, run.liberties)


def _stanzas(path: Path) -> Iterator[Stanza]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines):
        if line.strip() != "----" or number == 0 or not lines[number - 1].strip():
            continue
        output = []
        for found in lines[number + 1 :]:
            if not found.strip():
                break
            output.append(found.strip())
        yield Stanza(number, lines[number - 1].strip(), output)


class KnownLogs:
    """What the expected outputs tell of each node's log: by index, term and content."""

    def __init__(self, stanzas: list[Stanza]) -> None:
        self.logs: dict[NodeId, dict[int, Line]] = {}
        for stanza in stanzas:
            self._learn(stanza)

    def _learn(self, stanza: Stanza) -> None:
        words = stanza.words
        if words[0] == "raft-log":
            self.logs[int(words[1])] = {}
            for line in stanza.expected:
                self._written(int(words[1]), line)
            return
        if words[0] not in ("stabilize", "process-ready"):
            return
        node = int(words[1]) if words[0] == "process-ready" else 0
        section = ""
        for line in stanza.expected:
            header = _READY_OF.match(line)
            if header is not None:
                node, section = int(header.group(1)), ""
            elif line.endswith(":"):
                section = _SECTIONS.get(line, "")
            elif section == "written":
                self._written(node, line)
            elif section == "committed":
                self._held(node, line)

    def _written(self, node: NodeId, line: str) -> None:
        found = _ENTRY.match(line)
        if found is not None:
            log, index = self.logs.setdefault(node, {}), int(found.group(2))
            for behind in [known for known in log if known >= index]:
                del log[behind]
            log[index] = (int(found.group(1)), found.group(3))

    def _held(self, node: NodeId, line: str) -> None:
        found = _ENTRY.match(line)
        if found is not None:
            self.logs.setdefault(node, {}).setdefault(
                int(found.group(2)), (int(found.group(1)), found.group(3))
            )

    def lines(self) -> list[str]:
        """How the logs must end, as far as that is known."""
        return [
            f"{node}: {_line(at, log[at])}" for node, log in sorted(self.logs.items()) for at in sorted(log)
        ]

    def same_lines_of(self, run: "ScriptRun") -> list[str]:
        """How they end in a run, from the first index on that is known of each."""
        return [
            f"{node}: {line}"
            for node, log in sorted(self.logs.items())
            for line in run.log_lines(node, min(log, default=0))
        ]


def _line(index: int, line: Line) -> str:
    return f'{line[0]}/{index} EntryNormal "{line[1]}"'


class ScriptRun:
    """The cluster of one script, and its commands."""

    def __init__(self, *, as_is: bool) -> None:
        self._as_is = as_is
        self.liberties: dict[str, int] = {}
        self._stage: Stage | None = None
        self._pre_vote = False
        self._campaigning: set[NodeId] = set()  # whose pre-vote may be repeated; asked for membership only
        self._commands: dict[str, Callable[[list[str]], list[str]]] = {
            "log-level": lambda _: [],
            "add-nodes": self._add_nodes,
            "campaign": self._campaign,
            "propose": self._propose,
            "process-ready": self._process_ready,
            "deliver-msgs": self._deliver,
            "stabilize": self._stabilize,
            "tick-heartbeat": lambda words: self._tick(words, HEARTBEAT_TICKS),
            "tick-election": lambda words: self._tick(words, ELECTION_TICKS),
            "raft-log": lambda words: self.log_lines(int(words[0]), 0),
            "raft-state": self._raft_state,
            "status": self._status,
        }

    def carry_out(self, stanza: Stanza) -> list[str]:
        """Carry out a stanza; returns the lines that an observable one prints."""
        command, *words = stanza.words
        if command not in self._commands:
            raise InvalidRequestError(
                f"no command {command!r}; there are {', '.join(sorted(self._commands))}"
            )
        return self._commands[command](words)

    @property
    def _on(self) -> Stage:
        if self._stage is None:
            raise InvalidRequestError("a script begins with add-nodes")
        return self._stage

    def _actor(self, word: str) -> Actor:
        return self._on.actors[int(word)]

    def _actors(self, words: list[str]) -> list[Actor]:
        """Those that are named, or all."""
        named = [self._actor(word) for word in words if word.isdigit()]
        return named or list(self._on.actors.values())

    # -- commands --------------------------------------------------------------------------------------------------

    def _add_nodes(self, words: list[str]) -> list[str]:
        count = int(words[0])
        settings = dict(word.split("=", 1) for word in words[1:])
        voters = _numbers(settings.pop("voters", ""))
        start = int(settings.pop("index", "0"))
        wishes = [settings.pop(name, "false") for name in ("prevote", "checkquorum")]
        self._pre_vote = "true" in wishes
        if (
            settings
            or self._stage is not None
            or not 0 < count <= NODES_MAX
            or voters != list(range(1, count + 1))
        ):
            raise InvalidRequestError(
                f"only one add-nodes, of at most {NODES_MAX} nodes that all vote, with index, prevote and checkquorum"
            )
        self._stage = Stage(
            [str(voter) for voter in voters],
            election=ElectionConfig(HEARTBEAT_TICKS, ELECTION_TICKS, pre_vote=self._pre_vote),
            patience=ELECTION_TICKS,
            start=EntryId(0, start),
            replica_kind=EagerReplica,
            holds_back=True,
        )
        for actor in self._stage.actors.values():
            actor.auto_sync = False
        self._stage.open()
        return []

    def _campaign(self, words: list[str]) -> list[str]:
        node = int(words[0])
        self._on.campaign(node)
        if self._pre_vote:
            self._campaigning.add(node)
        return []

    def _propose(self, words: list[str]) -> list[str]:
        actor = self._actor(words[0])
        replica, data = actor.replica, words[1]
        if replica.role is Role.LEADER and not replica.ready and isinstance(replica, EagerReplica):
            if not self._as_is:
                self._took(EARLY_PROPOSAL)
                actor.run(replica.propose_at_once(data))
        elif replica.role is Role.LEADER:
            actor.run(replica.propose([(1, data)]))
        return []  # a proposal that is refused is lost

    def _process_ready(self, words: list[str]) -> list[str]:
        for actor in self._actors(words):
            actor.flush()
        return []

    def _deliver(self, words: list[str]) -> list[str]:
        for word in words:
            if word.startswith("drop="):
                lost = _numbers(word.removeprefix("drop="))
                self._on.take(to_any(lost))
            else:
                self._deliver_to(int(word))
        return []

    def _deliver_to(self, node: NodeId) -> bool:
        taken = self._on.take(to_any((node,)))
        for sent in taken:
            self._on.receive(*sent)
            self._campaign_again(sent)
        return bool(taken)

    def _campaign_again(self, sent: Underway) -> None:
        """A pre-vote taught the candidate no more than a newer term: it campaigns once more, in the next one."""
        if isinstance(sent.message, StaleTerm) and sent.to in self._campaigning:
            self._campaigning.discard(sent.to)
            if self._on.actors[sent.to].role is Role.FENCED and not self._as_is:
                self._took(REPEATED_PRE_VOTE)
                self._on.campaign(sent.to)

    def _stabilize(self, words: list[str]) -> list[str]:
        actors = self._actors(words)
        for _ in range(ROUNDS_MAX):
            busy = [actor for actor in actors if actor.outbox or actor.writes]
            for actor in busy:
                actor.flush()
            heard = [actor for actor in actors if self._deliver_to(actor.node)]
            if not busy and not heard:
                self._campaigning.clear()
                return []
        raise InvalidRequestError(f"the replicas still talk after {ROUNDS_MAX} rounds")

    def _tick(self, words: list[str], ticks: int) -> list[str]:
        for _ in range(ticks):
            self._on.tick(int(words[0]))
        return []

    def _took(self, liberty: str) -> None:
        self.liberties[liberty] = self.liberties.get(liberty, 0) + 1

    # -- observations ----------------------------------------------------------------------------------------------

    def log_lines(self, node: NodeId, first: int) -> list[str]:
        """A node's log from index `first` on, an entry a line."""
        return [
            _line(entry.next_offset, (entry.term, _content(entry)))
            for entry in self._on.actors[node].log.entries
            if entry.next_offset >= first
        ]

    def _raft_state(self, words: list[str]) -> list[str]:
        del words
        return [
            f"{actor.node}: {_state(actor)} (Voter) Term:{actor.replica.term} Lead:{actor.replica.leader or 0}"
            for actor in self._on.actors.values()
        ]

    def _status(self, words: list[str]) -> list[str]:
        actor = self._actor(words[0])
        replica = actor.replica
        if replica.role is not Role.LEADER:
            return []
        end = replica.durable_end
        lines = {actor.node: f"{actor.node}: StateReplicate match={end} next={replica.log_end + 1}"}
        for one in replica.followers():
            in_flight = actor.in_flight(one.node)
            waiting = f" inflight={in_flight}" if in_flight else ""
            lines[one.node] = (
                f"{one.node}: {_STATES[one.state]} match={one.ack_offset} next={one.last_pushed + 1}{waiting}"
            )
        return [lines[node] for node in sorted(lines)]


def _state(actor: Actor) -> str:
    if actor.role is Role.LEADER:
        return "StateLeader"
    is_candidate = isinstance(actor.replica, RaftReplica) and actor.replica.is_candidate
    return "StateCandidate" if is_candidate else "StateFollower"


def _content(entry: Entry) -> str:
    return "" if entry.data == TERM_START else str(entry.data)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in re.findall(r"\d+", text)]
