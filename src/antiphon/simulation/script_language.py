"""The scenario language: what a script may say, line by line, and the reader that understands it.

A line is a step; `#` begins a comment. The first lines lay the scene: `replicas` (they vote) or `appointed` (the script is
the coordinator) names the nodes, then `set`, `log` and `term` describe what is on the disks. docs/simulation.md has the
table of all steps. The whole script is read before anything is carried out, so a misspelt word never runs half a scenario.
"""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.replication.commit_rule import CommitRule
from antiphon.replication.messages import Ack, AnyMessage, Reject, StaleTerm, VoteReply
from antiphon.simulation.written_script import Script

NODES_MAX = 31
TICKS_MAX = 10_000
STEPS_MAX = 10_000
NUMBER_MAX = 2**62

NUMBERS = ("term", "commit", "settled", "end", "lost")
CHOICES = {
    "role": ("leader", "follower", "candidate", "fenced"),
    "ready": ("yes", "no"),
}
NAMES = ("leader", "vote")  # of a node, or `none`
SETS = ("live", "voters")  # of nodes, as a node knows them
LOGS = ("log", "disk")
SAYINGS = ("grants", "refuses", "deposes", "rejects", "acknowledges")
PROPERTIES = (*NUMBERS, *CHOICES, *NAMES, *SETS, *LOGS, *SAYINGS)
SCENE = ("replicas", "appointed", "set", "log", "term")

_NAME = re.compile(r"^[a-z][a-z0-9-]*$", re.IGNORECASE)
_ENTRY = re.compile(r"^(\d{1,18})(?::(\S+))?$")


class Step(NamedTuple):
    """One line of a script. Which fields mean something depends on the command."""

    line: int = 0
    text: str = ""
    command: str = ""
    nodes: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # receivers; the node that is compared with
    links: tuple[tuple[str, str], ...] = ()
    what: str = ""  # a setting's or property's name
    words: tuple[str, ...] = ()  # contents, entries, an expected word
    number: int = 0


class _Reader:
    """The words of one line, taken one by one; whatever is wrong is said with line and word."""

    def __init__(self, script: str, line: int, text: str, names: Sequence[str]) -> None:
        self._where = f"{script}, line {line}"
        self._words = text.split()
        self._at = 0
        self.line = line
        self.text = " ".join(self._words)
        self.names = tuple(names)

    def wrong(self, word: str, why: str) -> InvalidRequestError:
        return InvalidRequestError(f"{self._where}: {word!r}: {why}")

    def unknown(self, word: str, kind: str, known: Sequence[str]) -> InvalidRequestError:
        close = get_close_matches(word, known, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"
        return self.wrong(word, f"no such {kind}{hint}")

    @property
    def peek(self) -> str:
        """The next word, empty at the end."""
        return self._words[self._at] if self._at < len(self._words) else ""

    def word(self, what: str) -> str:
        if not self.peek:
            raise self.wrong(self.text, f"{what} is missing at the end")
        self._at += 1
        return self._words[self._at - 1]

    def rest(self) -> tuple[str, ...]:
        """All words that are left."""
        left = tuple(self._words[self._at :])
        self._at = len(self._words)
        return left

    def end(self) -> None:
        if self.peek:
            raise self.wrong(self.peek, "one word too many")

    def keyword(self, word: str) -> bool:
        """Take this word if it is the next."""
        if self.peek != word:
            return False
        self._at += 1
        return True

    def number(self, what: str, largest: int = NUMBER_MAX) -> int:
        word = self.word(what)
        if not word.isascii() or not word.isdigit() or len(word) > 19 or int(word) > largest:
            raise self.wrong(word, f"{what} must be a number from 0 to {largest}")
        return int(word)

    def choice(self, what: str, known: Sequence[str]) -> str:
        word = self.word(what)
        if word not in known:
            raise self.unknown(word, what, known)
        return word

    def node(self) -> str:
        return self.choice("node", self.names)

    def nodes(self, least: int = 1) -> tuple[str, ...]:
        """Names of nodes, or `all`, as long as there are some."""
        if self.keyword("all"):
            return self.names
        found: list[str] = []
        while self.peek in self.names and self.peek:
            found.append(self.word("node"))
        if len(found) < least:
            raise self.unknown(self.peek, "node", (*self.names, "all")) if self.peek else self._no_node()
        return tuple(found)

    def _no_node(self) -> InvalidRequestError:
        return self.wrong(self.text, "a node is missing at the end")

    def entries(self) -> tuple[str, ...]:
        """Entries as TERM or TERM:CONTENT, in the order of the log."""
        words = self.rest()
        latest = 0
        for word in words:
            if word in ("|", "empty"):
                continue
            found = _ENTRY.match(word)
            if found is None or int(found.group(1)) == 0:
                raise self.wrong(word, "an entry is TERM or TERM:CONTENT, with a term from 1 on")
            if int(found.group(1)) < latest:
                raise self.wrong(word, f"terms never fall within a log, and {latest} stands before it")
            latest = int(found.group(1))
        return words


def entry_of(word: str) -> tuple[int, str | None]:
    """Term and content of an entry as scripts write it; None if only the term is given."""
    term, _, content = word.partition(":")
    return int(term), content or None


def lines_of(path: Path | Script) -> list[str]:
    """All lines of a file. Raises InvalidRequestError where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"cannot read {path}: {error}") from None


def read_script(path: Path | Script) -> list[Step]:
    """All steps of a script. Raises InvalidRequestError with the line and the word that is wrong."""
    steps: list[Step] = []
    names: tuple[str, ...] = ()
    for number, text in enumerate(lines_of(path), 1):
        text = text.partition("#")[0].strip()
        if not text:
            continue
        reader = _Reader(path.name, number, text, names)
        step = _step(reader, steps)
        names = step.nodes if step.command in ("replicas", "appointed") else names
        steps.append(step)
        if len(steps) > STEPS_MAX:
            raise InvalidRequestError(f"{path.name} has more than {STEPS_MAX} steps")
    if not any(step.command == "expect" for step in steps):
        raise InvalidRequestError(f"{path.name} expects nothing, so it could not fail")
    return steps


def _step(reader: _Reader, before: list[Step]) -> Step:
    word = reader.word("command")
    if word not in COMMANDS:
        raise reader.unknown(word, "command", tuple(COMMANDS))
    is_first = word in ("replicas", "appointed")
    if is_first == bool(before):
        why = (
            "the scene is laid once, by the first line"
            if is_first
            else "a script begins with replicas or appointed"
        )
        raise reader.wrong(word, why)
    if word in SCENE and before and before[-1].command not in SCENE:
        raise reader.wrong(word, "it describes the scene, so it stands before the first thing that happens")
    votes = (before[0].command if before else word) == "replicas"
    if word in ONLY_APPOINTED and votes:
        raise reader.wrong(word, "only where replicas are appointed; these vote")
    if word in ONLY_VOTING and not votes:
        raise reader.wrong(word, "only where replicas vote; these are appointed")
    step = COMMANDS[word](reader)
    reader.end()
    return step._replace(line=reader.line, text=reader.text, command=word)


# -- one function a command -------------------------------------------------------------------------------------------


def _cast(reader: _Reader) -> Step:
    names: list[str] = []
    for name in reader.rest():
        if not _NAME.match(name) or name in RESERVED:
            raise reader.wrong(
                name, "a node's name is a word of letters, digits and hyphens that means nothing else"
            )
        if name in names:
            raise reader.wrong(name, "named twice")
        names.append(name)
    if not 0 < len(names) <= NODES_MAX:
        raise reader.wrong(reader.text, f"1 to {NODES_MAX} nodes, found {len(names)}")
    return Step(nodes=tuple(names))


def _set(reader: _Reader) -> Step:
    what = reader.choice("setting", ("pre-vote", "batch", "patience", "commit", "min-live", "voters"))
    if what == "commit":
        return _rule(reader)
    if what == "pre-vote":
        return Step(what=what, number=int(reader.choice("value", ("on", "off")) == "on"))
    number = reader.number(what, 1000)
    least = 3 if what == "patience" else 1
    if number < least:
        raise reader.wrong(str(number), f"{what} is at least {least}")
    return Step(what=what, number=number)


def _rule(reader: _Reader) -> Step:
    word = reader.word("commit rule")
    try:
        CommitRule.parse(word)
    except InvalidRequestError as error:
        raise reader.wrong(word, error.message) from None
    return Step(what="commit", words=(word,))


def _members(reader: _Reader) -> Step:
    nodes = reader.nodes()
    others = reader.nodes() if reader.keyword("listening") else ()
    return Step(nodes=nodes, others=others)


def _log(reader: _Reader) -> Step:
    nodes, words = reader.nodes(), reader.entries()
    if words.count("|") > 1 or "empty" in words or not words:
        raise reader.wrong(
            reader.text, "entries, with at most one | behind those that are known to be committed"
        )
    committed = words.index("|") if "|" in words else 0
    return Step(nodes=nodes, words=tuple(word for word in words if word != "|"), number=committed)


def _term(reader: _Reader) -> Step:
    return Step(nodes=reader.nodes(), number=reader.number("term"))


def _one_node(reader: _Reader) -> Step:
    return Step(nodes=(reader.node(),))


def _some_nodes(reader: _Reader) -> Step:
    return Step(nodes=reader.nodes())


def _nothing(_reader: _Reader) -> Step:
    return Step()


def _append(reader: _Reader) -> Step:
    nodes = (reader.node(),)
    words = reader.rest()
    if not words:
        raise reader.wrong(reader.text, "what is to be appended is missing, one word an entry")
    return Step(nodes=nodes, words=words)


def _messages(reader: _Reader) -> Step:
    nodes = reader.nodes() if reader.keyword("from") else ()
    others = reader.nodes() if reader.keyword("to") else ()
    return Step(nodes=nodes, others=others)


def _cut(reader: _Reader) -> Step:
    groups = [reader.nodes()]
    if reader.keyword("->"):
        return Step(links=tuple((a, b) for a in groups[0] for b in reader.nodes() if a != b))
    while reader.keyword("|"):
        groups.append(reader.nodes())
    named = [name for group in groups for name in group]
    for name in named:
        if named.count(name) > 1:
            raise reader.wrong(name, "on both sides of the cut")
    groups.append(tuple(name for name in reader.names if name not in named))  # the others stay together
    links = [(a, b) for one in groups for other in groups if one is not other for a in one for b in other]
    return Step(links=tuple(links))


def _tick(reader: _Reader) -> Step:
    nodes = reader.nodes()
    ticks = reader.number("number of ticks", TICKS_MAX) if reader.peek else 1
    return Step(nodes=nodes, number=ticks)


def _expect(reader: _Reader) -> Step:
    if reader.keyword("copies"):
        return Step(
            what="copies", words=(reader.word("content"),), number=reader.number("number of disks", NODES_MAX)
        )
    nodes = reader.nodes()
    what = reader.choice("property", PROPERTIES)
    if what in NUMBERS:
        return Step(nodes=nodes, what=what, number=reader.number(what))
    if what in CHOICES:
        return Step(nodes=nodes, what=what, words=(reader.choice(what, CHOICES[what]),))
    if what in NAMES:
        return Step(nodes=nodes, what=what, words=(reader.choice("node", (*reader.names, "none")),))
    if what in SETS:
        return Step(nodes=nodes, what=what, others=reader.nodes())
    if what in SAYINGS:
        return Step(nodes=nodes, what=what, others=reader.nodes())
    if reader.keyword("like"):
        return Step(nodes=nodes, what=what, others=(reader.node(),))
    words = reader.entries()
    if not words or "|" in words or ("empty" in words and len(words) > 1):
        raise reader.wrong(reader.text, "entries (TERM or TERM:CONTENT), `empty` or `like NODE`")
    return Step(nodes=nodes, what=what, words=() if words == ("empty",) else words)


COMMANDS: dict[str, Callable[[_Reader], Step]] = {
    "replicas": _cast,
    "appointed": _cast,
    "set": _set,
    "log": _log,
    "term": _term,
    "campaign": _one_node,
    "elect": _one_node,
    "fence": _some_nodes,
    "appoint": _one_node,
    "add": _one_node,
    "members": _members,
    "transfer": _one_node,
    "record": _nothing,
    "append": _append,
    "refuse": _append,
    "deliver": _messages,
    "drop": _messages,
    "repeat": _messages,
    "cut": _cut,
    "heal": _nothing,
    "crash": _some_nodes,
    "restart": _some_nodes,
    "hold": _some_nodes,
    "sync": _some_nodes,
    "tick": _tick,
    "settle": _nothing,
    "expect": _expect,
}
ONLY_APPOINTED = ("fence", "appoint", "add", "record")
ONLY_VOTING = ("campaign", "members", "transfer")
RESERVED = (*COMMANDS, *PROPERTIES, "all", "none", "from", "to", "like", "listening", "empty", "copies")


def saying(message: AnyMessage) -> str:
    """What an answer between replicas says, in a word; empty for what is no answer."""
    match message:
        case VoteReply():
            return "grants" if message.granted else "refuses"
        case StaleTerm():
            return "deposes"
        case Reject():
            return "rejects"
        case Ack():
            return "acknowledges"
        case _:
            return ""
