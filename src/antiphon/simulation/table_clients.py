"""Clients of a simulated table, and whether one table explains what they saw."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from antiphon.simulation import linearizability
from antiphon.simulation.client_messages import Answer, AppendRequest, ReadRequest
from antiphon.simulation.clients import SimulatedClient
from antiphon.simulation.history import Operation
from antiphon.simulation.linearizability import NO, Verdict
from antiphon.simulation.options import MILLION
from antiphon.simulation.table_host import TableHosted, outcome_of
from antiphon.simulation.table_messages import TableAnswer, TableReadRequest, TableWriteRequest
from antiphon.simulation.violation import require
from antiphon.table.evaluator import ABSENT, results_from_batch
from antiphon.wire.requests import Delete, OpStatus, Put

if TYPE_CHECKING:
    from antiphon.simulation.truth import ShardTruth
    from antiphon.simulation.world import World

KEYS = (b"antenna", b"bell", b"choir", b"drum")
JUDGE_STEPS_MAX = 100_000  # of a key; a search that is not over by then says nothing


@dataclass(slots=True)
class TableOperation(Operation):
    """One operation on one key; `op` None is a get."""

    key: bytes = b""
    op: Put | Delete | None = None
    result: Any = None  # as in a `TableAnswer`


class TableClient(SimulatedClient):
    """Puts, deletes and gets, one at a time; conditions are about the version that it saw last."""

    def __init__(self, world: "World", address: int, random: Random) -> None:
        self._versions: dict[tuple[int, bytes], int] = {}
        super().__init__(world, address, random)

    def _new_operation(self, shard: int) -> Operation:
        world, random = self._world, self._random
        key = random.choice(KEYS)
        drawn = random.random()
        op: Put | Delete | None = None
        if drawn >= 0.3:
            expected = None
            if random.randrange(MILLION) < world.options.conditional_ppm:
                expected = self._versions.get((shard, key), ABSENT)
            value = f"{self.address}-{self._sequence}".encode()
            op = Put(key, value, expected) if drawn < 0.8 else Delete(key, expected)
        return TableOperation(
            client=self.address,
            sequence=self._sequence,
            shard=shard,
            kind="read" if op is None else "append",
            expected=-1,
            count=0 if op is None else 1,
            invoked_ns=world.scheduler.now_ns,
            floor=world.checker.shards[shard].floor,
            key=key,
            op=op,
        )

    def _request(self, operation: Operation) -> AppendRequest | ReadRequest:
        where = (operation.shard, self.address, operation.sequence)
        if isinstance(operation, TableOperation) and operation.op is not None:
            return TableWriteRequest(*where, operation.count, op=operation.op)
        key = operation.key if isinstance(operation, TableOperation) else b""
        return TableReadRequest(*where, key=key)

    def _complete(self, operation: Operation, answer: Answer) -> None:
        if isinstance(operation, TableOperation) and isinstance(answer, TableAnswer):
            operation.result = answer.result
            place = (operation.shard, operation.key)
            if operation.op is None:
                self._versions[place] = ABSENT if answer.result is None else answer.result[0]
            elif answer.result is not None:
                self._versions[place] = int(answer.result[1])
        super()._complete(operation, answer)


def one_key(state: Any, operation: linearizability.Operation) -> Any:
    """The model of a key: its state is (version id, value), or None where it is not there."""
    if operation.what == "get":
        return state if operation.result == state else NO
    expected, value = operation.argument
    status, version = operation.result
    found = ABSENT if state is None else state[0]
    if status == OpStatus.UNEXPECTED_VERSION:
        return state if version == found and expected not in (None, found) else NO
    if expected not in (None, found):
        return NO
    if operation.what == "put":
        return (version, value) if version > found else NO
    if status == OpStatus.KEY_NOT_FOUND:
        return state if state is None else NO
    return None if state is not None else NO


def check_tables(
    operations: Iterable[Operation], shards: "Mapping[int, ShardTruth]", judged: Collection[int]
) -> None:
    """Raise `ViolationError` unless what clients saw of each key of these shards is linearizable."""
    by_key: dict[tuple[int, bytes], list[linearizability.Operation]] = {}
    for one in operations:
        if isinstance(one, TableOperation) and one.shard in judged:
            by_key.setdefault((one.shard, one.key), []).extend(_seen(one, shards[one.shard]))
    for (shard, key), seen in by_key.items():
        verdict = linearizability.check_object(seen, one_key, None, JUDGE_STEPS_MAX)
        require(
            verdict is not Verdict.NOT_LINEARIZABLE,
            "linearizable",
            shard,
            f"no order of what was done with key {key.decode()} explains what clients saw of it",
        )


def check_applied(shards: "Mapping[int, ShardTruth]") -> None:
    """Raise `ViolationError` unless every living replica has applied all that it knows to be committed."""
    for shard, truth in shards.items():
        for hosted in truth.hosted.values():
            if isinstance(hosted, TableHosted):
                applied, mark = hosted.table.applied_offset, hosted.replica.high_watermark
                require(
                    applied >= mark,
                    "applied-committed",
                    shard,
                    f"node {hosted.node} has applied up to {applied}, its high watermark is {mark}",
                )


def _seen(one: TableOperation, truth: "ShardTruth") -> list[linearizability.Operation]:
    """The operation as a client saw it, and as the log has it where the client was not told.

    A request that is refused leaves no trace, so another copy of it that is still underway is judged again when it
    arrives. What it does then counts as an operation without an answer.
    """
    what = "get" if one.op is None else "put" if isinstance(one.op, Put) else "delete"
    argument = None
    if one.op is not None:
        argument = (one.op.expected_version, one.op.value if isinstance(one.op, Put) else None)

    def operation(result: Any, returned: int | None) -> linearizability.Operation:
        return linearizability.Operation(one.client, what, argument, result, one.invoked_ns, returned)

    seen = []
    if one.outcome in {"ok", "refused"}:
        seen.append(operation(one.result, one.completed_ns))
    position = truth.position_of.get((one.client, one.sequence))
    if one.outcome != "ok" and position is not None and truth.table is not None:
        written = results_from_batch(truth.table.batch_at(position[0]))
        seen.append(operation(outcome_of(written.results[0]), None))
    return seen
