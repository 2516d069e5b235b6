"""Clients: they append unique values, with and without a condition, and read; they retry with the same identity."""

from random import Random
from typing import TYPE_CHECKING

from antiphon.simulation.client_messages import Answer, AppendRequest, ReadRequest
from antiphon.simulation.history import Operation
from antiphon.simulation.options import MILLION
from antiphon.simulation.scheduler import MILLISECOND

if TYPE_CHECKING:
    from antiphon.simulation.world import World

TRIES_MAX = 12


class SimulatedClient:
    """One operation at a time; after too many tries its outcome is unknown and the client goes on to the next."""

    def __init__(self, world: "World", address: int, random: Random) -> None:
        self._world = world
        self._random = random
        self.address = address
        self.stopped = False
        self.completed = 0
        self._sequence = 0
        self._try = 0
        self._target = random.randrange(world.options.nodes)
        self._known_end: dict[int, int] = {}
        self._operation: Operation | None = None
        self._think()

    def _think(self) -> None:
        self._operation = None
        self._world.scheduler.after(self._random.randrange(1, 12) * MILLISECOND, self._begin)

    def _begin(self) -> None:
        if self.stopped:
            return
        world, random = self._world, self._random
        if not world.client_shards():
            self._think()
            return
        self._sequence += 1
        self._try = 0
        if random.random() < 0.25:
            self._target = random.randrange(world.options.nodes)  # somebody may still believe to lead
        shard = random.choice(world.client_shards())
        self._operation = self._new_operation(shard)
        world.history.operations.append(self._operation)
        self._send()

    def _new_operation(self, shard: int) -> Operation:
        world, random = self._world, self._random
        kind = "read" if random.random() < 0.3 else "append"
        expected = -1
        if kind == "append" and random.randrange(MILLION) < world.options.conditional_ppm:
            expected = self._known_end.get(shard, 0)
        return Operation(
            client=self.address,
            sequence=self._sequence,
            shard=shard,
            kind=kind,
            expected=expected,
            count=random.choice((1, 1, 1, 3)) if kind == "append" else 0,
            invoked_ns=world.scheduler.now_ns,
            floor=world.checker.shards[shard].floor,
        )

    def _request(self, operation: Operation) -> AppendRequest | ReadRequest:
        where = (operation.shard, self.address, operation.sequence)
        if operation.kind == "read":
            return ReadRequest(*where)
        return AppendRequest(*where, operation.count, operation.expected)

    def _send(self) -> None:
        operation = self._operation
        if operation is None:
            return
        self._try += 1
        self._world.network.send(self.address, self._target, self._request(operation))
        wait_ms = self._random.randrange(40, 160)
        self._world.scheduler.after(wait_ms * MILLISECOND, self._timed_out, operation, self._try)

    def _timed_out(self, operation: Operation, attempt: int) -> None:
        if self._operation is operation and self._try == attempt:
            self._retry(self._random.randrange(self._world.options.nodes))

    def _retry(self, target: int) -> None:
        self._target = target
        if self._try >= TRIES_MAX or self.stopped:
            self._think()  # the operation stays unknown
        else:
            self._send()

    def deliver(self, answer: Answer) -> None:
        """An answer arrived; late answers to earlier operations say nothing new."""
        operation = self._operation
        self._world.trace.note("answer", -1 if operation is None else operation.shard, answer)
        if operation is None or answer.sequence != operation.sequence or operation.outcome != "unknown":
            return
        if answer.outcome == "not_leader":
            nodes = self._world.options.nodes
            target = answer.leader if answer.leader >= 0 else self._random.randrange(nodes)
            delay_ms = self._random.randrange(1, 20)
            self._try += 1  # a time-out of the attempt that was just answered means nothing any more
            self._world.scheduler.after(
                delay_ms * MILLISECOND, self._retry_answered, operation, self._try, target
            )
            return
        self._complete(operation, answer)
        self._think()

    def _retry_answered(self, operation: Operation, attempt: int, target: int) -> None:
        if self._operation is operation and self._try == attempt:
            self._retry(target)

    def _complete(self, operation: Operation, answer: Answer) -> None:
        world, shard = self._world, operation.shard
        operation.completed_ns = world.scheduler.now_ns
        operation.outcome, operation.offset = answer.outcome, answer.offset
        self.completed += 1
        if operation.kind == "read":
            world.checker.read_answered(shard, answer.offset, answer.chain, operation.floor)
        elif answer.outcome == "refused":
            world.checker.refusal_answered(shard, operation.expected, answer.offset, operation.floor)
        else:
            identity = (self.address, operation.sequence)
            world.checker.append_answered(shard, identity, answer.offset, operation.floor)
        self._known_end[shard] = operation.sees
