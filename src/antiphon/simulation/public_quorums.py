"""Reader for public stanzas of quorum arithmetic: a command line, `----`, the expected output.

`committed cfg=(1,2) [cfgj=(2,3)] idx=(10,_)` asks how far a quorum (in a joint configuration: both quorums) has an entry;
the last line of the output is the offset. `vote cfg=(...) votes=(y,n,_)` asks how an election stands. Indices and votes are
given in ascending order of all members of both configurations.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.replication.quorum import VoteResult, committed_offset, majority, vote_result
from antiphon.simulation.script_language import lines_of

_ARGUMENT = re.compile(r"(\w+)=(?:\(([^)]*)\)|(\w+))")
_VOTES = {VoteResult.WON: "VoteWon", VoteResult.LOST: "VoteLost", VoteResult.PENDING: "VotePending"}
UNLIMITED = "\N{INFINITY}"  # an empty quorum holds everything back from nobody


class Stanza(NamedTuple):
    """One case: where it stands, what is asked, what must be answered (the last line of the output)."""

    line: int
    command: str
    expected: str


def judge_quorums(path: Path) -> tuple[list[Stanza], list[tuple[Stanza, str]]]:
    """All stanzas of a file, and those that were answered otherwise, with the answer."""
    stanzas = list(_stanzas(path))
    if not stanzas:
        raise InvalidRequestError(f"{path} has no stanzas (a command, a line `----`, the expected output)")
    answers = [(stanza, _answer(stanza, path)) for stanza in stanzas]
    return stanzas, [(stanza, answer) for stanza, answer in answers if answer != stanza.expected]


def _stanzas(path: Path) -> Iterator[Stanza]:
    lines = lines_of(path)
    for number, line in enumerate(lines):
        if line.strip() != "----" or number == 0:
            continue
        output = []
        for found in lines[number + 1 :]:
            if not found.strip():
                break
            output.append(found.strip())
        yield Stanza(number, lines[number - 1].strip(), output[-1].rpartition(">")[2] if output else "")


def _answer(stanza: Stanza, path: Path) -> str:
    command, _, rest = stanza.command.partition(" ")
    arguments = {
        name: _members(several) if not word else [] for name, several, word in _ARGUMENT.findall(rest)
    }
    configs = [
        [int(member) for member in arguments.get(name, [])] for name in ("cfg", "cfgj") if name in arguments
    ] or [[]]
    members = sorted({member for config in configs for member in config})
    if command == "committed":
        given = dict(zip(members, arguments.get("idx", []), strict=False))
        acks = {member: 0 if word == "_" else int(word) for member, word in given.items()}
        ends = [
            committed_offset([acks.get(m, 0) for m in config], majority(len(config)))
            for config in configs
            if config
        ]
        return str(min(ends)) if ends else UNLIMITED
    if command == "vote":
        votes = dict(zip(members, arguments.get("votes", []), strict=False))
        return _VOTES[_joint_vote([_vote(config, votes) for config in configs if config])]
    raise InvalidRequestError(
        f"{path}, line {stanza.line}: no command {command!r}; there are committed and vote"
    )


def _members(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _vote(config: list[int], votes: dict[int, str]) -> VoteResult:
    said = [votes.get(member, "_") for member in config]
    return vote_result(said.count("y"), said.count("n"), len(config))


def _joint_vote(results: list[VoteResult]) -> VoteResult:
    """A joint election is won where both are, and lost where one is."""
    if VoteResult.LOST in results:
        return VoteResult.LOST
    return VoteResult.PENDING if VoteResult.PENDING in results else VoteResult.WON
