"""Language of public cluster scripts: stanzas of a command with its input, a line `----` and the expected output.

Scripts may turn their own output off (`log-level none`, or `log-level=none` for one command). What such a stanza prints says
nothing, so it is `quiet`: it is carried out and not compared.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.replication.members import Members
from antiphon.replication.messages import NodeId
from antiphon.simulation.script_language import lines_of

SEPARATOR = "----"
CHANGE = "EntryConfChange"  # an entry that changes the members; how it is encoded is not compared
_CHANGE = re.compile(rf"^(\d+/\d+ )?{CHANGE}(?:V2)?((?: [vlru]\d+)*)$")
_NORMAL = re.compile(r'^(\d+)/(\d+) (EntryNormal ".*"|EntryConfChange.*)$')


class Stanza(NamedTuple):
    """A command at a line with the lines of input that follow it, and what must be printed."""

    line: int
    command: str
    given: list[str]
    expected: list[str]
    quiet: bool = False

    @property
    def words(self) -> list[str]:
        """The command in words; what is in parentheses stays together."""
        return re.findall(r"[^\s(]+(?:\([^)]*\))?", self.command)

    @property
    def name(self) -> str:
        """Which command it is."""
        return self.words[0]

    @property
    def plain(self) -> list[str]:
        """The words after the command's name that set nothing."""
        return [word for word in self.words[1:] if "=" not in word]

    @property
    def options(self) -> dict[str, str]:
        """The words that set something, by name."""
        return dict(word.split("=", 1) for word in self.words[1:] if "=" in word)

    @property
    def nodes(self) -> list[NodeId]:
        """The nodes that are named."""
        return [int(word) for word in self.plain if word.isdigit()]


class LogEntry(NamedTuple):
    """An entry as scripts print it: `TERM/INDEX what it is`."""

    term: int
    at: int
    text: str

    def __str__(self) -> str:
        return f"{self.term}/{self.at} {self.text}"


def read_stanzas(path: Path) -> list[Stanza]:
    """All stanzas of a file. Raises InvalidRequestError where there are none."""
    stanzas = list(_stanzas(lines_of(path)))
    if not stanzas:
        raise InvalidRequestError(
            f"{path} has no stanzas (a command, a line `{SEPARATOR}`, the expected output)"
        )
    return stanzas


def _stanzas(lines: list[str]) -> Iterator[Stanza]:
    is_quiet = False
    for number, line in enumerate(lines):
        first = _first_line(lines, number)
        if line.strip() != SEPARATOR or first == number:
            continue
        command, *given = [text.strip() for text in lines[first:number]]
        output = []
        for found in lines[number + 1 :]:
            if not found.strip():
                break
            output.append(normal(found.strip()))
        stanza = Stanza(first + 1, command, given, output)
        if stanza.name == "log-level":
            is_quiet = stanza.plain == ["none"]
        level = stanza.options.get("log-level")
        yield stanza._replace(quiet=is_quiet if level is None else level == "none")


def _first_line(lines: list[str], separator: int) -> int:
    """Where the command begins whose separator is at a line: after the last blank line or comment."""
    at = separator
    while at > 0 and lines[at - 1].strip() and not lines[at - 1].startswith("#"):
        at -= 1
    return at


def normal(line: str) -> str:
    """A line of output, with changes of members in one encoding and one order."""
    found = _CHANGE.match(line)
    if found is None:
        return line
    return f"{found.group(1) or ''}{change_text(found.group(2).split())}"


def change_text(changes: Sequence[str]) -> str:
    """A change of members as an entry is printed; without changes it ends a joint step."""
    return " ".join([CHANGE, *sorted(changes)])


def entry_of(line: str) -> LogEntry | None:
    """The entry that a line of output prints, if it prints one."""
    found = _NORMAL.match(line)
    return None if found is None else LogEntry(int(found.group(1)), int(found.group(2)), found.group(3))


def numbers(text: str) -> list[int]:
    """All numbers in a text such as `(1,2)`."""
    return [int(word) for word in re.findall(r"\d+", text)]


def changed(members: Members, changes: Sequence[str]) -> Members:
    """The members after changes: `v3` makes a voter, `l3` a learner, `r3` removes, `u3` changes nothing.

    Raises InvalidRequestError for other words, and where no voter is left.
    """
    voters, learners = dict.fromkeys(members.voters), dict.fromkeys(members.learners)
    for change in changes:
        kind, node = change[:1], int(change[1:])
        if kind not in "vlru":
            raise InvalidRequestError(f"no change of members {change!r}; there are vN, lN, rN and uN")
        if kind == "u":
            continue
        voters.pop(node, None)
        learners.pop(node, None)
        if kind == "v":
            voters[node] = None
        elif kind == "l":
            learners[node] = None
    if not voters:
        raise InvalidRequestError(f"{' '.join(changes)} would leave no voter")
    return Members(tuple(voters), (), tuple(learners))


def changes_between(before: Members, after: Members) -> list[str]:
    """The words that say how members differ; none where a joint step ends."""
    if before.is_joint and not after.is_joint:
        return []
    words = [f"v{node}" for node in after.voters if node not in before.voters]
    words += [f"l{node}" for node in after.learners if node not in before.learners]
    known = (*after.voters, *after.learners)
    return words + [f"r{node}" for node in (*before.voters, *before.learners) if node not in known]
