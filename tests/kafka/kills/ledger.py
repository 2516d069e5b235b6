"""What a library's clients did and heard, as the judges take it."""

from typing import Final, NamedTuple

import msgspec

LIBRARIES: Final = ("librdkafka", "kafka-python", "aiokafka")
PARTITIONS: Final = 3
COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNKNOWN: Final = "unknown"


class Record(NamedTuple):
    """One record, as a consumer got it."""

    topic: str
    partition: int
    offset: int
    value: str


class Sent(NamedTuple):
    """An idempotent producer's record that was acknowledged; `offset` is -1 where the client was not told it."""

    number: int
    partition: int
    offset: int


class Transaction(NamedTuple):
    """How a transaction ended. `outcome`: as the client was told. `found`: what a reader found where that was unknown."""

    number: int
    outcome: str
    found: str = ""


class Commit(NamedTuple):
    """A group's offset that was acknowledged."""

    group: str
    topic: str
    partition: int
    offset: int


class Ledger(msgspec.Struct):
    """Of one library's process."""

    library: str
    sent: list[Sent] = []
    transactions: list[Transaction] = []
    transformed: int = 0
    seen: list[Record] = []
    commits: list[Commit] = []
    told: dict[str, int] = {}  # errors after which a client goes on, as its library says, and how often
    unexpected: list[str] = []
    gaps: dict[str, float] = {}  # what a role did -> the longest time in which it did nothing, in s


class Topics(NamedTuple):
    """The topics of a library's clients. Its transformer and its group read what another library's clients write, too."""

    sent: str
    transactions: str
    transformed: str

    @classmethod
    def of(cls, library: str) -> "Topics":
        """Those that this library's clients write."""
        return cls(f"sent-{library}", f"transactions-{library}", f"transformed-{library}")


def next_library(library: str) -> str:
    """Whose idempotent records this library transforms, and whose transactions its group reads."""
    return LIBRARIES[(LIBRARIES.index(library) + 1) % len(LIBRARIES)]


def sent_value(number: int) -> str:
    """Of an idempotent producer's record."""
    return f"{number}"


def transaction_values(number: int) -> list[str]:
    """Of the records of a transaction, one for each partition."""
    return [f"{number}.{partition}" for partition in range(PARTITIONS)]
