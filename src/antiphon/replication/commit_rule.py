"""When an entry counts as committed: `quorum`, `live`, `local` or `at_least(k)` (C1).

All four are the same arithmetic over different voting sets: the k-th largest durable acknowledgement.

| rule | voting set | k | from |
|---|---|---|---|
| `quorum` | the voters | a majority | S0.10, S1.11, S4.29 |
| `live` | the live replica set | all of it, and at least `min_live` of them | S3.24 |
| `local` | the leader | 1 | S4.18 |
| `at_least(k)` | the voters | k | S4.29 |

What a majority holds (or, with `live`, what the whole live set holds) survives every election: that is the *settled* point.
Under `local`, and under `at_least(k)` with fewer than a majority, an entry is acknowledged before it is settled. What lies
between the two is the documented loss window (S4.28).

Only this file looks at the kind of a rule; everybody else asks the rule:

| asked | answer |
|---|---|
| what counts? | `by_live_set`, `is_local`; otherwise the voters |
| what fences an older leader? | `by_live_set`: any one live member; otherwise a majority of the voters |
| how many of a voting set have to hold an entry? | `enough` |
| what does an append wait for? | `copies`, `waits_for` |
| can it be kept at all? | `can_be_kept` |
| what may be lost? | `may_lose` |
| what do people read of it? | `DESCRIBED`: help, Kafka's documentation of the setting, refusals and docs/modes.md |
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from antiphon.errors import InvalidRequestError
from antiphon.replication.quorum import majority


class CommitKind(StrEnum):
    """Which rule."""

    QUORUM = "quorum"
    LIVE = "live"
    LOCAL = "local"
    AT_LEAST = "at_least"


class Described(NamedTuple):
    """How a rule is written, and what it gives and costs, in words. `n` is the number of replicas.

    Attributes:
        spelling: as `parse` takes it, for a number k.
        who: has an entry that is committed, in a few words; empty where the spelling says it.
        when: for which k this row is.
        on_disk_at: where an entry is when it is acknowledged.
        goes_on_with: what has to be alive.
        survives: how many replicas may be lost for good without losing an acknowledged entry.
        slow_replica: what a slow replica delays.
    """

    spelling: str
    who: str
    when: str
    on_disk_at: str
    goes_on_with: str
    survives: str
    slow_replica: str


DESCRIBED: Final = (
    Described(
        "quorum",
        "a majority has it",
        "",
        "a majority",
        "a majority alive",
        "n \u2212 majority",
        "delays nobody",
    ),
    Described(
        "live",
        "every live replica has it",
        "",
        "every live replica",
        "one live replica (and `min.live` to write)",
        "all but one of the live set",
        "delays every write until it is removed from the live set",
    ),
    Described(
        "local",
        "the leader has it",
        "",
        "the leader only",
        "a majority to elect",
        "none: see the loss window",
        "delays nobody",
    ),
    Described(
        "at_least(k)",
        "",
        ", k above n/2",
        "k replicas",
        "a majority to elect, k to write",
        "k \u2212 1, at least n \u2212 majority",
        "delays writes once fewer than k replicas are fast",
    ),
)


def spellings() -> str:
    """How the rules are written, as a list for people."""
    *others, last = (rule.spelling for rule in DESCRIBED)
    return f"{', '.join(others)} or {last}"


def spellings_and_meanings() -> str:
    """The same with who has what is committed, as help has it: there a placeholder is in capitals."""
    written = [(rule.spelling.replace("(k)", "(K)"), rule.who) for rule in DESCRIBED]
    return ", ".join(f"{spelling} ({who})" if who else spelling for spelling, who in written)


def table_of_rules() -> str:
    """What each rule gives and costs, for the docs."""
    lines = [
        "| commit | acknowledged when on disk at | goes on with | survives | a slow replica |",
        "|---|---|---|---|---|",
    ]
    for one in DESCRIBED:
        cells = (one.on_disk_at, one.goes_on_with, one.survives, one.slow_replica)
        lines.append(f"| `{one.spelling}`{one.when} | {' | '.join(cells)} |")
    return "\n".join(lines)


_AT_LEAST: Final = re.compile(r"at_least\(\s*([0-9]{1,3})\s*\)")


@dataclass(frozen=True, slots=True)
class CommitRule:
    """A rule; `k` matters for `at_least` only. `str()` gives what `parse` takes."""

    kind: CommitKind = CommitKind.QUORUM
    k: int = 0

    @classmethod
    def parse(cls, text: str) -> "CommitRule":
        """`quorum`, `live`, `local` or `at_least(3)`; InvalidRequestError for anything else."""
        if text in {kind.value for kind in CommitKind} - {CommitKind.AT_LEAST}:
            return cls(CommitKind(text))
        found = _AT_LEAST.fullmatch(text)
        if found is None or not int(found[1]):
            raise InvalidRequestError(f"commit={text!r} is no commit rule: use {spellings()} with k from 1")
        return cls(CommitKind.AT_LEAST, int(found[1]))

    @property
    def by_live_set(self) -> bool:
        """Does the live replica set count, in commits and in elections?"""
        return self.kind is CommitKind.LIVE

    @property
    def is_local(self) -> bool:
        """Is the leader's own disk enough?"""
        return self.kind is CommitKind.LOCAL

    def enough(self, voters: int) -> int:
        """How many of a set of `voters` commit an entry by holding it; without a live set, `live` counts as `quorum`."""
        match self.kind:
            case CommitKind.LOCAL:
                return 1
            case CommitKind.AT_LEAST:
                return min(self.k, voters)
            case _:
                return majority(voters)

    def copies(self, replicas: int) -> int:
        """On how many disks an acknowledged append is, at most where that depends on who keeps up."""
        match self.kind:
            case CommitKind.LIVE:
                return replicas
            case CommitKind.AT_LEAST:
                return self.k
            case _:
                return self.enough(replicas)

    def waits_for(self, replicas: int) -> str:
        """When an append is acknowledged, as half a sentence for people."""
        match self.kind:
            case CommitKind.QUORUM:
                return f"a majority, {majority(replicas)} of {replicas} replicas, has it on disk"
            case CommitKind.LIVE:
                return f"all live ones of {replicas} replicas have it on disk"
            case CommitKind.LOCAL:
                return "the leader has it on disk"
            case CommitKind.AT_LEAST:
                return f"{self.k} of {replicas} replicas have it on disk"

    def can_be_kept(self, replicas: int) -> bool:
        """Are there enough replicas for it ever to commit anything?"""
        return self.kind is not CommitKind.AT_LEAST or self.k <= replicas

    def may_lose(self, voters: int) -> bool:
        """Can an election among so many voters lose what this rule calls committed?"""
        return self.kind is CommitKind.LOCAL or (self.kind is CommitKind.AT_LEAST and 2 * self.k <= voters)

    def __str__(self) -> str:
        return f"at_least({self.k})" if self.kind is CommitKind.AT_LEAST else str(self.kind)


QUORUM: Final = CommitRule()
LIVE: Final = CommitRule(CommitKind.LIVE)
LOCAL: Final = CommitRule(CommitKind.LOCAL)
