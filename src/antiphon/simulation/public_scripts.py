"""Runner for public cluster scripts: every command is carried out on our replicas, and what can be observed is compared.

Compared are the stanzas that print what can be observed of any implementation: `raft-log`, `raft-state`, `status`, and the
log that `compact` leaves. The outputs of the others are texts of messages and of another program's log; from what they print
of entries being written follows what each node's log is in the end, and the last stanza of a file is compared by that.

| module | holds |
|---|---|
| `public_script_language` | stanzas, entries and changes of members as text |
| `public_script_replica` | the nodes, and the liberties taken with them |
| `public_script_run` | the commands |
| `public_script_view` | what is printed |
"""

import re
from pathlib import Path
from typing import NamedTuple

from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.invariants import InvariantError
from antiphon.replication.messages import NodeId
from antiphon.simulation.public_script_language import LogEntry, Stanza, entry_of, read_stanzas
from antiphon.simulation.public_script_run import ScriptRun
from antiphon.simulation.public_script_view import log_entries
from antiphon.simulation.violation import ViolationError

OBSERVABLE = ("raft-log", "raft-state", "status", "compact")
_READY_OF = re.compile(r"^(?:> )?(\d+) (handling Ready|receiving messages|processing .*)$")
_RESTORED = re.compile(r"^Snapshot Index:(\d+) Term:(\d+) ")
_SECTIONS = {"Entries:": "written", "CommittedEntries:": "committed"}


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
    """Carry out a script and compare what it observes; `as_is` without any liberty.

    Raises InvalidRequestError for what it does not understand.
    """
    stanzas = read_stanzas(path)
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
        if _is_compared(stanza) and found != stanza.expected:
            wrong.append(Wrong(stanza.line, stanza.command, stanza.expected, found))
    compared = sum(map(_is_compared, stanzas))
    last, known = stanzas[-1], KnownLogs(stanzas)
    if known.lines() and last.name not in OBSERVABLE:
        compared += 1
        expected = known.lines()
        found = [broken] if broken else known.same_lines_of(run)
        if found != expected:
            wrong.append(Wrong(last.line, f"{last.command} (the final logs)", expected, found))
    return Judgement(compared, wrong, run.liberties.taken)


def _is_compared(stanza: Stanza) -> bool:
    return stanza.name in OBSERVABLE and not stanza.quiet


class KnownLogs:
    """What the expected outputs tell of each node's log: its entries by index, and where a snapshot left it."""

    def __init__(self, stanzas: list[Stanza]) -> None:
        self._logs: dict[NodeId, dict[int, LogEntry]] = {}
        self._restored: dict[NodeId, tuple[int, int]] = {}  # term and index of a snapshot
        for stanza in stanzas:
            self._learn(stanza)

    def _learn(self, stanza: Stanza) -> None:
        if stanza.name in ("stabilize", "process-ready"):
            if stanza.quiet:  # what was written is not told
                self._logs.clear()
                self._restored.clear()
            else:
                self._learn_written(stanza)
        elif stanza.name == "raft-log" and not stanza.quiet:
            self._logs[stanza.nodes[0]] = {}
            for line in stanza.expected:
                self._written(stanza.nodes[0], line)

    def _learn_written(self, stanza: Stanza) -> None:
        node = stanza.nodes[0] if stanza.name == "process-ready" and stanza.nodes else 0
        section = ""
        for line in stanza.expected:
            header, restored = _READY_OF.match(line), _RESTORED.match(line)
            if header is not None:
                node, section = int(header.group(1)), ""
            elif restored is not None:
                self._logs[node] = {}
                self._restored[node] = (int(restored.group(2)), int(restored.group(1)))
            elif line.endswith(":"):
                section = _SECTIONS.get(line, "")
            elif section == "written":
                self._written(node, line)
            elif section == "committed":
                self._held(node, line)

    def _written(self, node: NodeId, line: str) -> None:
        entry = entry_of(line)
        if entry is not None:
            log = self._logs.setdefault(node, {})
            for behind in [known for known in log if known >= entry.at]:
                del log[behind]
            log[entry.at] = entry

    def _held(self, node: NodeId, line: str) -> None:
        entry = entry_of(line)
        if entry is not None:
            self._logs.setdefault(node, {}).setdefault(entry.at, entry)

    def lines(self) -> list[str]:
        """How the logs must end, as far as that is known."""
        return [
            line
            for node, log in sorted(self._logs.items())
            for line in (
                [f"{node}: {log[at]}" for at in sorted(log)]
                if log
                else self._ends(node, self._restored.get(node))
            )
        ]

    def same_lines_of(self, run: ScriptRun) -> list[str]:
        """How they end in a run, from the first index on that is known of each."""
        lines = []
        for node, log in sorted(self._logs.items()):
            actor = run.actors.get(node)
            if actor is None:
                lines.append(f"{node}: no such node")
            elif log:
                entries = log_entries(actor, actor.log)
                lines += [f"{node}: {entry}" for entry in entries if entry.at >= min(log)]
            elif node in self._restored:
                lines += self._ends(node, actor.log.end)
        return lines

    @staticmethod
    def _ends(node: NodeId, end: tuple[int, int] | None) -> list[str]:
        return [] if end is None else [f"{node}: ends at {end[0]}/{end[1]}"]
