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
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from antiphon.errors import InvalidRequestError


class CommitKind(StrEnum):
    """Which rule."""

    QUORUM = "quorum"
    LIVE = "live"
    LOCAL = "local"
    AT_LEAST = "at_least"


_AT_LEAST: Final = re.compile(r"at_least\(\s*([0-9]{1,3})\s*\)")


@dataclass(frozen=True, slots=True)
class CommitRule:
    """A rule; `k` matters for `at_least` only. `str()` gives what `parse` takes."""

    kind: CommitKind = CommitKind.QUORUM
    k: int = 0

    @classmethod
    def parse(cls, text: str) -> "CommitRule":
        """`quorum`, `live`, `local` or `at_least(3)`; InvalidRequestError for anything else."""
        if text in {CommitKind.QUORUM, CommitKind.LIVE, CommitKind.LOCAL}:
            return cls(CommitKind(text))
        found = _AT_LEAST.fullmatch(text)
        if found is None or not int(found[1]):
            raise InvalidRequestError(
                f"commit={text!r} is no commit rule: use quorum, live, local or at_least(k) with k from 1"
            )
        return cls(CommitKind.AT_LEAST, int(found[1]))

    def may_lose(self, voters: int) -> bool:
        """Can an election among so many voters lose what this rule calls committed?"""
        return self.kind is CommitKind.LOCAL or (self.kind is CommitKind.AT_LEAST and 2 * self.k <= voters)

    def __str__(self) -> str:
        return f"at_least({self.k})" if self.kind is CommitKind.AT_LEAST else str(self.kind)


QUORUM: Final = CommitRule()
LIVE: Final = CommitRule(CommitKind.LIVE)
LOCAL: Final = CommitRule(CommitKind.LOCAL)
