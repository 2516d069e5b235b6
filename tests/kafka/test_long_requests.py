"""Produce and Fetch requests that name very many partitions are worked on in pieces: others have the loop in between."""

import asyncio
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from antiphon.gateway.turns import Turns
from antiphon.kafka import listener
from antiphon.kafka.fetch_codec import decode_fetch, gathered
from antiphon.kafka.handlers import fetch, produce
from antiphon.kafka.primitives import put_compact_nullable_bytes, put_compact_nullable_string, put_uvarint
from antiphon.kafka.produce_codec import decode_produce, encode_produce
from antiphon.node import node_gateway
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import batch, listening, produce_body
from tests.node.in_process import in_virtual_time

PRODUCE, FETCH = (0, 10), (1, 12)


def produced(name: str, batches: list[tuple[int, bytes | bytearray]], acks: int = -1) -> bytearray:
    out = bytearray(b"\x00") + struct.pack(">hi", acks, 5000) + b"\x02"
    put_compact_nullable_string(out, name)
    put_uvarint(out, len(batches) + 1)
    for partition, records in batches:
        out += struct.pack(">i", partition)
        put_compact_nullable_bytes(out, records)
        out.append(0)
    return out + b"\x00\x00"


def fetched(topics: dict[str, list[int]], wait_ms: int = 0) -> bytearray:
    out = bytearray(struct.pack(">iiiibii", -1, wait_ms, 1, 1 << 20, 0, 0, -1))
    put_uvarint(out, len(topics) + 1)
    for name, partitions in topics.items():
        put_compact_nullable_string(out, name)
        put_uvarint(out, len(partitions) + 1)
        for partition in partitions:
            out += struct.pack(">iiqiqi", partition, -1, 0, -1, -1, 1 << 20) + b"\x00"
        out.append(0)
    return out + b"\x01\x01\x00"


class Calls:
    """How often something was called between two times that a request let others go on, and what threads were given."""

    def __init__(self) -> None:
        self.turn = 0
        self.calls: Counter[tuple[str, int]] = Counter()
        self.threads: list[Any] = []

    def most(self, name: str) -> int:
        return max(count for (called, _), count in self.calls.items() if called == name)

    def counted(self, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **fields: Any) -> Any:
            self.calls[name, self.turn] += 1
            return work(*args, **fields)

        return call


@contextmanager
def counting(served: KafkaNodes) -> Iterator[Calls]:
    """Calls of the node's gateway for each partition."""
    turns, loop, gateway = Calls(), asyncio.get_running_loop(), served.first.gateway
    given, next_turn = loop.run_in_executor, Turns.next

    async def next_one(self: Turns, owner: object, group: object = None) -> None:
        turns.turn += 1
        await next_turn(self, owner, group)

    def run_in_executor(executor: Any, work: Callable[..., Any], *args: Any) -> Any:
        turns.threads.append(args[0] if args and callable(args[0]) else work)
        return given(executor, work, *args)

    names = ("submit_append", "fetch", "follow", "topic")
    patches = [patch.object(gateway, name, turns.counted(name, getattr(gateway, name))) for name in names]
    patches += [patch.object(loop, "run_in_executor", run_in_executor), patch.object(Turns, "next", next_one)]
    for one in patches:
        one.start()
    try:
        yield turns
    finally:
        for one in patches:
            one.stop()


@in_virtual_time
async def test_batches_are_begun_in_pieces_and_none_overtakes_another() -> None:
    async with listening() as (served, connect):
        await served.create("t", 10)
        client, small = await connect(), batch(b"x")
        with counting(served) as turns:
            sent = [
                client.send(*PRODUCE, produced("t", [(n % 10, small) for n in range(3000)])),
                client.send(*PRODUCE, produce_body("t", batch(b"last"))),
            ]
            bodies = [await client.receive(one) for one in sent]
        assert turns.most("submit_append") <= produce.PIECE
        assert turns.threads == [decode_produce, encode_produce]
        assert len(bodies[0]) > 3000 * 30
        assert served.end("t") == 301
        assert b"last" in served.batches("t")[-1]


@in_virtual_time
async def test_so_many_appends_of_a_request_are_open() -> None:
    """The disk is slow: the next batches are begun when earlier ones are committed."""
    async with listening() as (served, connect):
        await served.create("t", 4)
        gateway = served.first.gateway
        append: Any = gateway.submit_append
        under_way = most = 0

        def slowly(*args: Any) -> None:
            nonlocal under_way, most
            *told, done = args
            under_way += 1
            most = max(most, under_way)

            def ended(result: Any) -> None:
                nonlocal under_way
                under_way -= 1
                done(result)

            asyncio.get_running_loop().call_later(0.05, lambda: append(*told, ended))

        with patch.object(gateway, "submit_append", slowly):
            client, small = await connect(), batch(b"x")
            await client.receive(client.send(*PRODUCE, produced("t", [(n % 4, small) for n in range(2000)])))
        assert produce.OPEN_MAX // 2 < most <= produce.OPEN_MAX + produce.PIECE
        assert served.end("t") == 500


@in_virtual_time
async def test_large_batches_are_begun_one_in_a_turn() -> None:
    async with listening() as (served, connect):
        await served.create("t", 4)
        client, large = await connect(), batch(bytes(900_000))
        with counting(served) as turns:
            body = produced("t", [(n % 4, large) for n in range(8)])
            await client.receive(client.send(*PRODUCE, body))
        assert turns.most("submit_append") <= 2
        assert turns.threads == []  # few elements, which are decoded at once
        assert served.end("t") == 2


@in_virtual_time
async def test_a_request_that_wants_no_answer_has_none_and_the_next_is_served() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        client, small = await connect(), batch(b"x")
        client.send(*PRODUCE, produced("t", [(0, small)] * 1000, acks=0))
        await client.receive(client.send(18, 0, b""))
        assert served.end("t") == 1000
        client.send(*PRODUCE, produced("t", [(7, small)] * 1000, acks=0))  # none is there: it is hung up
        assert await client.is_closed()


@in_virtual_time
async def test_partitions_are_read_in_pieces() -> None:
    async with listening() as (served, connect):
        await served.create("t", 10)
        await served.append("t", batch(b"x"))
        client = await connect()
        with counting(served) as turns:
            there = await client.receive(client.send(*FETCH, fetched({"t": [n % 10 for n in range(3000)]})))
            assert turns.threads[0] is decode_fetch
            assert len(turns.threads) == 2
            await client.receive(client.send(*FETCH, fetched({f"t{n}": [] for n in range(3000)})))
            await client.receive(client.send(*FETCH, fetched({"t": [0]})))
        assert turns.most("fetch") <= fetch.PIECE
        assert turns.most("topic") <= fetch.PIECE
        assert len(turns.threads) == 4  # not for one partition
        assert len(there) > 3000 * 30


@in_virtual_time
async def test_a_partition_that_is_named_often_is_waited_for_once() -> None:
    async with listening() as (served, connect):
        await served.create("t", 600)
        client = await connect()
        sent = client.send(*FETCH, fetched({"t": [n % 600 for n in range(1800)]}, wait_ms=500))
        await asyncio.sleep(0.2)
        waiting = sum(len(host.readers.followers) for host in served.first.hosts.values())
        await served.append("t", batch(b"x"))
        body = await client.receive(sent)
        assert waiting == 600
        assert b"x" in body


def test_small_neighbours_become_one_buffer() -> None:
    small, large = b"s" * 100, b"l" * 100_000
    buffers = [small] * 3 + [large] + [small] * 2000
    found = gathered(buffers)
    assert b"".join(found) == b"".join(buffers)
    assert len(found) < 8
    assert any(one is large for one in found)
    assert gathered([]) == [b""]


def test_the_bounds_belong_together() -> None:
    """What is decoded at once is begun in few turns, and what is waited for is one piece of a turn."""
    assert listener.INLINE_ELEMENTS <= 4 * produce.PIECE
    assert node_gateway.POSITIONS_A_TURN <= fetch.PIECE
