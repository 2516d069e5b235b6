"""Large writes to tables are worked on in pieces: the node serves others in between, and order and atomicity stay."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.errors import (
    BatchTooLargeError,
    NotLeaderError,
    OutOfOrderSequenceError,
    OverloadedError,
    TimedOutError,
    UnavailableError,
)
from antiphon.gateway.turns import Turns
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    CreateTopic,
    DeleteRange,
    OpStatus,
    Put,
    TableGet,
    TableOp,
    TableWrite,
    TableWritten,
)
from antiphon.node.node import Node
from antiphon.partition.append_queue import QUEUE_BYTES_MAX, Line, Waiting
from antiphon.partition.partition import Partition
from antiphon.simulation.cluster.slow_turns import SlowTurns
from antiphon.table.evaluator import ABSENT, TableEvaluator
from antiphon.table.state import TableState
from tests.node.in_process import cluster_of, eventually, in_virtual_time

PIECE = 10


@asynccontextmanager
async def a_table(**config: str) -> AsyncIterator[tuple[Node, Partition]]:
    async with cluster_of(1) as nodes:
        node = nodes.nodes[0]
        topic = await node.gateway.create_topic(CreateTopic("t", kind=Kind.TABLE, config=config))
        node.turn.pieces.operations = PIECE
        yield node, await nodes.leader(topic.shards[0].shard_id)


def puts(count: int, value: bytes = b"v", first: int = 0) -> tuple[TableOp, ...]:
    return tuple(Put(b"%05d" % number, value) for number in range(first, first + count))


class Client:
    """A connection that may hang up."""

    def __init__(self) -> None:
        self.is_gone = False


class Sent:
    """Requests by their names, as they are answered."""

    def __init__(self, node: Node, shard_id: int) -> None:
        self.node, self.shard_id = node, shard_id
        self.answers: dict[str, Any] = {}
        self.clients: dict[str, Client] = defaultdict(Client)

    def send(self, name: str, sender: str | None, *ops: TableOp, **fields: Any) -> None:
        request = TableWrite(self.shard_id, ops, **fields)
        client = None if sender is None else self.clients[sender]
        self.node.gateway.submit_table_write(
            request, lambda answer: self.answers.setdefault(name, answer), client
        )

    async def all(self, count: int) -> dict[str, Any]:
        await eventually(lambda: len(self.answers) >= count)
        return self.answers

    def offsets(self) -> list[str]:
        """The names in the order in which the requests stand in the log."""
        return sorted(self.answers, key=lambda name: self.answers[name].offset)


class PerTurn:
    """How many keys were looked up, effects prepared and applied between two turns of the loop."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def watched(self) -> Any:
        """Patches what gives everybody a turn."""
        run = Turns._run

        def next_turn(turns: Turns) -> None:
            self._now.clear()
            run(turns)

        return patch.object(Turns, "_run", next_turn)

    def count(self, what: str, number: int) -> None:
        self._now[what] = self._now.get(what, 0) + number
        self.most[what] = max(self.most.get(what, 0), self._now[what])


@pytest.mark.parametrize("removed", [False, True], ids=["puts", "range"])
def test_a_turn_of_the_loop_is_about_so_many_operations(removed: bool) -> None:
    @in_virtual_time
    async def test() -> None:
        async with a_table() as (node, host):
            sent = Sent(node, host.shard_id)
            if removed:
                sent.send("rows", None, *puts(95))
                await sent.all(1)
            turns = PerTurn()
            view, rows, add = TableEvaluator._view, TableState.versions_in, TableState.apply_effects

            def looked(self: Any, ops: Any, changed: Any) -> Any:
                turns.count("judged", len(ops))
                return view(self, ops, changed)

            def found(self: Any, *args: Any) -> Any:
                turns.count("looked through", len((answer := rows(self, *args))[0]))
                return answer

            def applied(self: Any, effects: Any, *args: Any) -> None:
                turns.count("applied at once", len(effects))
                add(self, effects, *args)

            with (
                turns.watched(),
                patch.object(TableEvaluator, "_view", looked),
                patch.object(TableState, "versions_in", found),
                patch.object(TableState, "apply_effects", applied),
            ):
                sent.send("large", None, *((DeleteRange(b"", b""),) if removed else puts(95)))
                answer = (await sent.all(1 + removed))["large"]
            assert isinstance(answer, TableWritten)
            assert turns.most.get("looked through" if removed else "judged") == PIECE
            assert not turns.most.get("applied at once"), "it was prepared"
            found_rows = (await node.gateway.table_get(TableGet(host.shard_id, (b"00094",)))).rows
            assert (found_rows == (None,)) is removed

    test()


@in_virtual_time
async def test_others_are_served_while_a_large_write_is_judged() -> None:
    async with a_table() as (node, host):
        other = await node.gateway.create_topic(CreateTopic("other", kind=Kind.TABLE))
        node.turn.pieces = SlowTurns(PIECE, Random(1))
        aside = Sent(node, other.shards[0].shard_id)
        sent = Sent(node, host.shard_id)
        sent.send("large", None, *puts(2000))
        aside.send("small", None, Put(b"k", b"v"))
        row = (await node.gateway.table_get(TableGet(host.shard_id, (b"k",), consistency="leader"))).rows[0]
        assert row is None
        await aside.all(1)
        assert not sent.answers
        assert isinstance((await sent.all(1))["large"], TableWritten)


@in_virtual_time
async def test_each_senders_writes_keep_their_order_and_small_ones_wait_for_one_large_one() -> None:
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        for name in ("a1", "a2", "a3"):
            sent.send(f"{name} large", "a", *puts(50))
        sent.send("a4 small", "a", Put(b"k", b"a"))
        sent.send("b1 large", "b", *puts(50))
        sent.send("c1 small", "c", Put(b"k", b"c"))
        sent.send("c2 small", "c", Put(b"k", b"c"))
        sent.send("d1 small", "d", Put(b"k", b"d"))
        await sent.all(8)
        order = sent.offsets()
        assert order[:4] == ["a1 large", "c1 small", "d1 small", "c2 small"]
        assert sorted(order[4:]) == ["a2 large", "a3 large", "a4 small", "b1 large"]
        assert [name for name in order if name[0] == "a"] == ["a1 large", "a2 large", "a3 large", "a4 small"]
        assert order.index("b1 large") < order.index("a3 large")


@in_virtual_time
async def test_a_large_write_is_all_or_nothing_and_judged_against_one_state() -> None:
    """What others sent meanwhile is judged after it, and sees all of it."""
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        sent.send("first", "a", *(Put(b"%05d" % n, b"v", ABSENT) for n in range(100)), atomic=True)
        sent.send("second", "b", *(Put(b"%05d" % n, b"w", ABSENT) for n in range(99, 0, -1)), atomic=True)
        sent.send("one", "c", Put(b"00050", b"w", ABSENT))
        await sent.all(3)
        assert {result.status for result in sent.answers["first"].results} == {OpStatus.OK}
        assert sent.answers["one"].results[0].status == OpStatus.UNEXPECTED_VERSION
        assert {result.status for result in sent.answers["second"].results} == {OpStatus.UNEXPECTED_VERSION}
        assert sent.answers["second"].offset == -1


@in_virtual_time
async def test_what_cannot_fit_into_a_batch_is_refused_after_few_pieces() -> None:
    async with a_table(**{"max.message.bytes": "1024"}) as (node, host):
        sent, looked = Sent(node, host.shard_id), []
        view = TableEvaluator._view

        def counted(self: Any, ops: Any, changed: Any) -> Any:
            looked.append(len(ops))
            return view(self, ops, changed)

        with patch.object(TableEvaluator, "_view", counted):
            sent.send("large", None, *puts(5000))
            await sent.all(1)
        assert isinstance(sent.answers["large"], BatchTooLargeError)
        assert sum(looked) <= 4 * PIECE
        sent.send("small", None, Put(b"k", b"v"))
        assert (await sent.all(2))["small"].offset == 0, "nothing was written, and the line is free"


@in_virtual_time
async def test_a_repeat_is_recognised_while_the_first_is_judged_and_afterwards() -> None:
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        fields = {"producer_id": 7, "producer_epoch": 0, "sequence": 3}
        sent.send("first", "a", *puts(60), **fields)
        sent.send("again", "b", *puts(60), **fields)
        await sent.all(2)
        sent.send("late", "c", *puts(60), **fields)
        await sent.all(3)
        assert sent.answers["again"] == sent.answers["late"] == sent.answers["first"]
        assert host.log.log_end == 60
        with pytest.raises(OutOfOrderSequenceError):
            sent.send("older", "a", *puts(60), **{**fields, "sequence": 2})


@in_virtual_time
async def test_nothing_is_written_where_leadership_ended_or_the_time_was_over() -> None:
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        sent.send("large", None, *puts(100))
        await asyncio.sleep(0)
        table = host.state.require_table()
        table.stop_leading()
        table.lead()  # a term has begun meanwhile, and what was judged before it counts no more
        sent.send("waits", None, Put(b"k", b"v"))
        await sent.all(2)
        assert isinstance(sent.answers["large"], NotLeaderError)
        assert sent.answers["waits"].offset == 0
        with patch.object(node, "now_s", lambda: asyncio.get_running_loop().time() + 60):
            sent.send("late", None, *puts(100), timeout_ms=-1)
            assert isinstance((await sent.all(3))["late"], TimedOutError)
        assert host.log.log_end == 1


@in_virtual_time
async def test_a_bug_in_a_long_write_ends_that_write_only() -> None:
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        with patch.object(TableEvaluator, "_view", side_effect=ZeroDivisionError("a bug")):
            sent.send("large", None, *puts(100))
            assert "a bug" in str((await sent.all(1))["large"])
        sent.send("small", None, Put(b"k", b"v"))
        assert (await sent.all(2))["small"].offset == 0


@in_virtual_time
async def test_what_waits_is_not_begun_when_its_client_has_hung_up() -> None:
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        sent.send("first", "a", *puts(100))
        sent.send("second", "a", *puts(100, b"w"))
        sent.send("other", "b", Put(b"k", b"v"))
        sent.clients["a"].is_gone = True
        answers = await sent.all(3)
        assert isinstance(answers["first"], TableWritten), "it had begun"
        assert isinstance(answers["second"], UnavailableError)
        assert isinstance(answers["other"], TableWritten)
        assert host.log.log_end == 101


@in_virtual_time
async def test_what_waits_is_bounded_in_bytes() -> None:
    async with a_table() as (node, host):
        sent = Sent(node, host.shard_id)
        value = bytes(QUEUE_BYTES_MAX // 8)
        sent.send("judged", None, *puts(100))
        for number in range(7):
            sent.send(f"waits {number}", None, Put(b"k", value))
        with pytest.raises(OverloadedError, match="send it again later"):
            sent.send("too much", None, Put(b"k", value))
        assert host.clients.queue.waiting.size_bytes <= QUEUE_BYTES_MAX
        assert node.back_pressure.in_flight_bytes <= QUEUE_BYTES_MAX + PIECE * 1024 * 1024
        await sent.all(8)
        assert host.clients.queue.waiting.size_bytes == 0
        assert node.back_pressure.in_flight_bytes == 0


CLIENTS: dict[str, Client] = defaultdict(Client)


def waiting(sender: str, number: int, *, is_large: bool = False) -> Waiting:
    return Waiting(
        lambda _left_s: None, lambda _answer: None, number, 10.0 + number, CLIENTS[sender], is_large
    )


def test_small_ones_do_not_overtake_a_large_one_for_ever() -> None:
    line, order = Line(), []
    line.add(waiting("a", 0, is_large=True))
    line.add(waiting("a", 1, is_large=True))
    for number in range(12):
        line.add(waiting(f"s{number}", 100 + number))
        one = line.pop()
        order.append(one.size_bytes)
        if one.is_large:
            line.large_ended()
    assert order.index(0) < order.index(1) < 8
    assert line.count == 2


def test_those_whose_time_is_over_are_taken_out_and_the_others_keep_their_order() -> None:
    line = Line()
    for number in (3, 1, 2):
        line.add(waiting("a", number))
        line.add(waiting("b", number, is_large=True))
    late = line.take_all(lambda one: one.deadline_s <= 11.0)
    assert sorted(one.size_bytes for one in late) == [1, 1]
    left = [line.pop() for _ in range(line.count)]
    assert [one.size_bytes for one in left if one.sender is CLIENTS["a"]] == [3, 2]
    assert [one.size_bytes for one in left if one.sender is CLIENTS["b"]] == [3, 2]
    assert line.count == 0
