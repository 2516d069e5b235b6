"""What the soak's writers were told, kept small, and the judges that compare it with the logs and tables at the end.

A value names its writer, its number and when it was written. A writer's numbers rise in each shard, so a log needs to
be read only once, from its start to its end, to see that what was acknowledged is there once and in order.
"""

import time
import zlib
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Final

VALUE_BYTES: Final = 100
PROBLEMS_KEPT: Final = 20  # of one judge
KEPT_ERRORS: Final = 50


def value_of(writer: str, number: int, size: int = VALUE_BYTES) -> bytes:
    """A value that says who wrote it, its number and the monotonic time in ns."""
    return f"{writer} {number} {time.monotonic_ns()} ".encode().ljust(size, b".")


def parse(value: bytes | None) -> tuple[str, int, int]:
    """Writer, number and time of `value_of`. Raises ValueError for anything else."""
    writer, number, written_ns, _ = (value or b"").split(b" ", 3)
    return writer.decode(), int(number), int(written_ns)


@dataclass
class Told:
    """Acknowledgements of one writer for one shard, in the order in which they came."""

    numbers: "array[int]" = field(default_factory=lambda: array("q"))
    offsets: "array[int]" = field(default_factory=lambda: array("q"))


@dataclass
class RowTold:
    """A row's writes: the last number that was sent and that was acknowledged, and those whose outcome nobody knows."""

    sent: int = -1
    acknowledged: int = -1
    unknown: set[int] = field(default_factory=set)


class Ledger:
    """Everything that was acknowledged, and every error that a client got. Each writer calls it from one thread."""

    def __init__(self) -> None:
        self.logs: defaultdict[tuple[str, int], defaultdict[str, Told]] = defaultdict(
            lambda: defaultdict(Told)
        )
        self.rows: defaultdict[bytes, RowTold] = defaultdict(RowTold)
        self.operations: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.error_texts: list[str] = []
        self.problems: list[str] = []  # what a reader saw and must not have seen
        self.consumed: defaultdict[int, array[int]] = defaultdict(lambda: array("Q"))

    def acknowledged(self, topic: str, shard: int, writer: str, number: int, offset: int) -> None:
        """A record is said to be in the log."""
        told = self.logs[topic, shard][writer]
        told.numbers.append(number)
        told.offsets.append(offset)

    def failed(self, kind: str, error: BaseException) -> None:
        """A client got an error: it counts against the verdict."""
        self.errors[f"{kind}: {type(error).__name__}"] += 1
        if len(self.error_texts) < KEPT_ERRORS:
            self.error_texts.append(f"{kind}: {type(error).__name__}: {error}")

    def problem(self, text: str) -> None:
        """A promise that was broken, as far as a client can see it."""
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(text)

    def consumed_at(self, partition: int, offset: int, value: bytes) -> None:
        """A member of the group got a record; the checksum is kept, one above zero, by offset."""
        seen = self.consumed[partition]
        if offset >= len(seen):
            seen.extend([0] * (offset + 1 - len(seen)))
        checksum = zlib.crc32(value) + 1
        if seen[offset] not in {0, checksum}:
            self.problem(f"the group got two different records at offset {offset} of partition {partition}")
        seen[offset] = checksum


class ShardJudge:
    """Takes the records of one shard in the order of the log, and says what is wrong with them."""

    def __init__(self, name: str, told: dict[str, Told], log_start: int) -> None:
        """`log_start`: what was acknowledged below it has been trimmed by retention."""
        self._name = name
        self._expected = {
            writer: [
                (offset, number)
                for offset, number in sorted(zip(one.offsets, one.numbers, strict=True))
                if offset >= log_start
            ]
            for writer, one in told.items()
        }
        self._at: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self.records = 0
        self.problems: list[str] = []

    def _problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_KEPT:
            self.problems.append(f"{self._name}: {text}")

    def take(self, offset: int, value: bytes | None) -> None:
        """The next record."""
        self.records += 1
        try:
            writer, number, _ = parse(value)
        except ValueError:
            self._problem(f"nobody wrote {bytes(value or b'')[:60]!r} at {offset}")
            return
        if number <= self._last.get(writer, -1):
            self._problem(f"{writer} {number} at {offset} stands behind its {self._last[writer]}")
        self._last[writer] = number
        expected = self._expected.get(writer, [])
        at = self._at[writer]
        while at < len(expected) and expected[at][0] < offset:
            self._problem(f"LOST: {writer} {expected[at][1]} was acknowledged at {expected[at][0]}")
            at += 1
        if at < len(expected) and expected[at][0] == offset:
            if expected[at][1] != number:
                self._problem(f"LOST: {writer} {expected[at][1]}; at its offset {offset} is {number}")
            at += 1
        self._at[writer] = at

    def end(self) -> list[str]:
        """All problems, once every record was given."""
        for writer, expected in self._expected.items():
            for offset, number in expected[self._at[writer] :]:
                self._problem(f"LOST: {writer} {number} was acknowledged at {offset}")
        return self.problems


class Follower:
    """Takes a table's changes as a watch gives them: each number of a key once, in order, none left out."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._last: dict[bytes, int] = {}
        self.changes = 0

    def take(self, key: bytes, number: int) -> None:
        """The next change."""
        self.changes += 1
        last = self._last.get(key, -1)
        missing = set(range(last + 1, number)) - self._ledger.rows[key].unknown
        if number <= last or missing:
            self._ledger.problem(f"the watch got {number} of {key!r} behind {last}")
        self._last[key] = number

    def complete(self) -> bool:
        """Has everything come that was acknowledged?"""
        return all(
            self._last.get(key, -1) >= told.acknowledged
            for key, told in self._ledger.rows.items()
            if key.startswith(b"k")
        )


def judge_rows(ledger: Ledger, found: dict[bytes, int]) -> list[str]:
    """Does every row hold what was acknowledged last, or something later that was sent?"""
    problems = []
    for key, told in sorted(ledger.rows.items()):
        number = found.get(key, -1)
        may_be = {told.acknowledged, *(one for one in told.unknown if one > told.acknowledged)}
        if number not in may_be:
            problems.append(f"{key!r} holds {number}, acknowledged was {told.acknowledged}")
    return problems[:PROBLEMS_KEPT]
