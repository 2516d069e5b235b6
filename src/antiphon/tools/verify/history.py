"""What the load of `antiphon verify` saw: every operation with its times and outcome, for the checks to judge."""

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from antiphon.errors import (
    AntiphonError,
    DiskFullError,
    KeyNotFoundError,
    OffsetMismatchError,
    TimedOutError,
    VersionMismatchError,
)

ERRORS_KEPT: Final = 20


class Outcome(StrEnum):
    """What the caller knows of an operation when it is over."""

    OK = "ok"
    REFUSED = "refused"  # definitely not carried out
    UNKNOWN = "unknown"  # may have been carried out, or may still be


@dataclass(slots=True)
class Append:
    """One appended value. Times are monotonic ns; `returned_ns` is None while, and if for ever, the outcome is unknown."""

    writer: str
    shard: int
    value: bytes
    invoked_ns: int
    returned_ns: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1
    term: int = -1
    expected_offset: int | None = None
    actual_offset: int | None = None  # what a refusal said


@dataclass(slots=True)
class TableCall:
    """One operation on a key. `version` is what an OK put, a get, or a refusal told; -1: the key is not there."""

    client: int
    what: str  # put, delete or get
    key: bytes
    value: bytes | None
    expected: int | None
    invoked_ns: int
    returned_ns: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    version: int | None = None


@dataclass(slots=True)
class Seen:
    """A record as a reader got it: `position` counts what this reader got of this shard before."""

    reader: str
    shard: int
    offset: int
    value: bytes | None
    key: bytes | None = None


@dataclass
class History:
    """Everything that the load did and saw. Each list is appended to by one thread only."""

    appends: list[Append] = field(default_factory=list)
    kafka: list[Append] = field(default_factory=list)
    table: list[TableCall] = field(default_factory=list)
    followed: list[Seen] = field(default_factory=list)
    watched: list[Seen] = field(default_factory=list)
    consumed: list[Seen] = field(default_factory=list)
    commits: list[tuple[int, int]] = field(
        default_factory=list
    )  # (partition, offset) that the group was told is kept
    committed_at_end: dict[int, int] = field(default_factory=dict)
    unexpected: list[str] = field(default_factory=list)

    def surprise(self, where: str, error: BaseException) -> None:
        """Keep an error that no fault explains."""
        if len(self.unexpected) < ERRORS_KEPT:
            self.unexpected.append(f"{where}: {type(error).__name__}: {error}")

    def counts(self) -> dict[str, dict[str, int]]:
        """Operations by kind and outcome."""
        found: dict[str, dict[str, int]] = {}
        groups: tuple[tuple[str, list[Any]], ...] = (
            ("appends", self.appends),
            ("kafka", self.kafka),
            ("table", self.table),
        )
        for name, operations in groups:
            found[name] = {
                str(outcome): sum(operation.outcome is outcome for operation in operations)
                for outcome in Outcome
            }
        found["read"] = {
            "followed": len(self.followed),
            "watched": len(self.watched),
            "consumed": len(self.consumed),
        }
        return found


def outcome_of(error: AntiphonError) -> Outcome | None:
    """What an error says of the write that it answers; None: no fault explains it."""
    if isinstance(error, OffsetMismatchError | VersionMismatchError | KeyNotFoundError | DiskFullError):
        return Outcome.REFUSED
    if isinstance(error, TimedOutError) and error.details.get("sent") is False:
        return Outcome.REFUSED
    return Outcome.UNKNOWN if error.retriable or error.outcome_unknown else None


def now_ns() -> int:
    """Time for histories: monotonic, the same for all threads."""
    return time.monotonic_ns()
