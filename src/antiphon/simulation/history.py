"""What clients saw, and whether one log explains it.

Every operation names the position that it saw or made, so the history needs no search: sort by position and compare with
real time. An operation without an answer stays open to the end: it may have happened at any time, or never.
"""

from collections.abc import Collection
from dataclasses import dataclass

from antiphon.simulation.violation import require


@dataclass(slots=True)
class Operation:
    """One operation of one client on one shard. `outcome` is `ok`, `refused`, `unknown` or `lost`."""

    client: int
    sequence: int
    shard: int
    kind: str  # append or read
    expected: int
    count: int
    invoked_ns: int
    floor: int
    completed_ns: int = -1
    outcome: str = "unknown"
    offset: int = -1

    @property
    def sees(self) -> int:
        """End of the log that this operation has proved to exist."""
        return self.offset + self.count if self.kind == "append" and self.outcome == "ok" else self.offset


class History:
    """All operations of a run, in the order of their invocation."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def counts(self) -> dict[str, int]:
        """How many operations ended how."""
        totals = {"ok": 0, "refused": 0, "unknown": 0, "lost": 0}
        for operation in self.operations:
            totals[operation.outcome] += 1
        return totals

    def forget(self, shard: int, end: int) -> None:
        """What is beyond `end` is lost, as was allowed: whatever saw it proves nothing, and whatever runs may see less."""
        for operation in self.operations:
            if operation.shard == shard:
                operation.floor = min(operation.floor, end)
                if operation.outcome != "unknown" and operation.sees > end:
                    operation.outcome = "lost"

    def check(self, shards: Collection[int] | None = None) -> None:
        """Raise `ViolationError` unless the completed operations (of these shards) are linearizable.

        Of two operations of a shard the one that completed before the other began must have seen no more than the other:
        a later append lands at or after everything seen before, a later read or refusal sees at least as much. And no two
        appends share an offset.
        """
        seen = dict.fromkeys(operation.shard for operation in self.operations)
        for shard in [shard for shard in seen if shards is None or shard in shards]:
            done = [one for one in self.operations if one.shard == shard and one.outcome in ("ok", "refused")]
            self._check_real_time(shard, done)
            self._check_positions(shard, done)

    def _check_real_time(self, shard: int, done: list[Operation]) -> None:
        by_completion = sorted(done, key=lambda one: one.completed_ns)
        seen, at = 0, 0
        for operation in sorted(done, key=lambda one: one.invoked_ns):
            while at < len(by_completion) and by_completion[at].completed_ns < operation.invoked_ns:
                seen = max(seen, by_completion[at].sees)
                at += 1
            require(
                operation.offset >= seen,
                "linearizable",
                shard,
                f"{operation.kind} {operation.sequence} of client {operation.client} is at {operation.offset}, "
                f"though {seen} had been seen before it began",
            )

    def _check_positions(self, shard: int, done: list[Operation]) -> None:
        end = 0
        appends = [one for one in done if one.kind == "append" and one.outcome == "ok"]
        for operation in sorted(appends, key=lambda one: one.offset):
            require(
                operation.offset >= end,
                "exactly-once",
                shard,
                f"two acknowledged appends share offset {operation.offset}",
            )
            require(
                operation.expected in (-1, operation.offset),
                "acknowledged-kept",
                shard,
                f"an append that expected {operation.expected} landed at {operation.offset}",
            )
            end = operation.sees
