"""What a connection may hold: frames that are only announced, large ones that arrive, answers that are not read."""

import asyncio
import struct
from typing import Any
from unittest.mock import Mock

import pytest
from kio.serial import entity_reader

from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S, Budget
from antiphon.kafka.connection import Connection
from antiphon.kafka.framing import FRAME_BYTES_MAX
from antiphon.kafka.inbox import RECEIVE_BYTES, Inbox
from antiphon.kafka.messages.cluster import MetadataRequest
from antiphon.node.config import Limits
from antiphon.records.decode import raw_records
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.oracles import kio_class
from tests.kafka.raw import RawClient, batch, fetch_body, listening, produce, produce_body
from tests.memory import allocated_at_most
from tests.node.in_process import in_virtual_time

MIB = 1024 * 1024
SESSION_EPOCH = slice(21, 25)  # of a fetch's body


def pool_of(served: KafkaNodes) -> Any:
    return served.nodes.servers[0].memory.pools["kafka"]


def test_room_for_a_large_frame_grows_by_a_mebibyte_at_most() -> None:
    """Making room holds the loop: twice as much as is there took 40 ms for ten frames of 8 MiB."""
    account = Budget(64 * MIB).pool("kafka", 64 * MIB, 32 * MIB).open()
    connection = Connection(Mock(), account, Inbox())
    connection._begin_large(8 * MIB, memoryview(b"first bytes"))
    received, steps = connection._large_filled, []
    while received < 8 * MIB:
        view = connection.get_buffer(-1)
        steps.append(len(view))
        view[:2] = b"xy"
        del view
        connection.buffer_updated(steps[-1])
        received += steps[-1]
    assert max(steps) == MIB
    assert len(steps) < 16
    assert account.held_bytes == 8 * MIB
    assert connection._large.startswith(b"first bytesxy")


@in_virtual_time
async def test_a_frame_that_is_only_announced_costs_nothing() -> None:
    async with listening() as (served, connect):
        clients = [await connect() for _ in range(5)]
        with allocated_at_most(4 * MIB):
            for client in clients:
                client.writer.write(struct.pack(">i", FRAME_BYTES_MAX) + b"1234")
            await asyncio.sleep(1)
            assert pool_of(served).held_bytes < 5 * 2 * RECEIVE_BYTES
            for _ in range(10):  # and grows as its bytes come
                for client in clients:
                    client.writer.write(bytes(10_000))
                await asyncio.sleep(0.1)
            assert 5 * 100_000 < pool_of(served).held_bytes < 5 * 4 * 100_000
        for client in clients:
            client.writer.transport.abort()
        await asyncio.sleep(1)
        assert pool_of(served).held_bytes == 0


@pytest.mark.parametrize("pieces", [1, 7, 500])
@in_virtual_time
async def test_large_requests_arrive_whole_however_they_are_cut(pieces: int) -> None:
    async with listening() as (served, connect):
        await served.create("t", config={"max.message.bytes": str(8 * MIB)})
        client = await connect()
        values = [bytes([n]) * (n * MIB + 17 * n) for n in range(4)]
        out = bytearray()
        write, client.writer = client.writer, Collected(out)  # type: ignore[assignment]
        sent = [client.send(0, 10, produce_body("t", batch(value))) for value in values]
        client.writer = write
        step = -(-len(out) // pieces)
        for at in range(0, len(out), step):
            write.write(out[at : at + step])
            await asyncio.sleep(0.01)
        for correlation in sent:
            await client.receive(correlation)
        stored = served.batches("t")
        assert [value in data for value, data in zip(values, stored, strict=True)] == [True] * 4
        assert pool_of(served).held_bytes == 0


class Collected:
    def __init__(self, out: bytearray) -> None:
        self.write = out.extend


@in_virtual_time
async def test_requests_that_do_not_fit_together_are_received_one_after_the_other() -> None:
    """Ten half requests, for which there is no room together, do not wait for each other for ever."""
    async with listening() as (served, connect):
        await served.create("t", config={"max.message.bytes": str(8 * MIB)})
        pool = pool_of(served)
        pool.budget.limit_bytes = 6 * MIB
        clients = [await connect() for _ in range(10)]
        sent = [client.send(0, 10, produce_body("t", batch(bytes(3 * MIB)))) for client in clients]
        held = []

        async def look() -> None:
            while True:
                held.append(pool.held_bytes)
                await asyncio.sleep(0.001)

        looking = asyncio.get_running_loop().create_task(look())
        for client, correlation in zip(clients, sent, strict=True):
            await client.receive(correlation)
        looking.cancel()
        assert served.end("t") == 10
        assert max(held) < 6 * MIB + 3 * MIB + 10 * RECEIVE_BYTES
        assert pool.budget.waits > 0
        assert pool.held_bytes == 0


@pytest.mark.parametrize("announced", [FRAME_BYTES_MAX, 1000])
@in_virtual_time
async def test_a_client_that_does_not_send_the_rest_is_closed(announced: int) -> None:
    async with listening() as (served, connect):
        began_s = asyncio.get_running_loop().time()
        client = await connect()
        await client.receive(client.send(18, 0, b""))
        client.writer.write(struct.pack(">i", announced) + bytes(announced // 2000))
        assert await client.is_closed()
        took_s = asyncio.get_running_loop().time() - began_s
        assert PATIENCE_S <= took_s < PATIENCE_S + 15
        assert pool_of(served).held_bytes == 0


@in_virtual_time
async def test_answers_that_are_not_read_are_counted_and_their_reader_is_closed() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        for _ in range(12):
            await served.append("t", batch(bytes(900_000)))
        pool, good = pool_of(served), await connect()
        pool.connection_bytes = 4 * MIB
        greedy = await connect()
        greedy.reader._limit = 1000  # type: ignore[attr-defined]  # it takes no more than that
        for _ in range(20):
            greedy.send(1, 12, wide_fetch("t"))
        highest = 0
        for _ in range(30):
            await produce(good, "t", batch(b"x"))
            highest = max(highest, pool.held_bytes)
            await asyncio.sleep(0.1)
        assert MIB < highest < 4 * MIB + 2 * MIB
        await asyncio.sleep(PATIENCE_S + 3)
        assert pool.held_bytes <= FLOOR_BYTES
        assert served.listener.connections == 1
        await produce(good, "t", batch(b"x"))


def wide_fetch(topic: str, wait_ms: int = 0) -> bytearray:
    """A fetch of 64 MiB."""
    body = fetch_body(topic, 0, wait_ms=wait_ms)
    narrow = struct.pack(">i", 1 << 20)
    return body.replace(narrow, struct.pack(">i", 64 << 20))


@in_virtual_time
async def test_all_that_is_asked_for_comes_when_the_client_reads() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        for _ in range(12):
            await served.append("t", batch(bytes(900_000)))
        pool, client = pool_of(served), await connect()
        pool.connection_bytes = 2 * MIB
        sent = [client.send(1, 12, wide_fetch("t", wait_ms=5000)) for _ in range(20)]
        sizes = [len(await client.receive(correlation)) for correlation in sent]
        assert min(sizes) > 900_000
        assert max(sizes) < 4 * MIB
        await asyncio.sleep(1.1)  # what the socket took without a word is looked after each second
        assert pool.held_bytes == 0


@in_virtual_time
async def test_small_clients_are_served_while_heavy_ones_fill_the_node() -> None:
    async with listening() as (served, connect):
        await served.create("t")
        pool = pool_of(served)
        pool.budget.limit_bytes = 8 * MIB
        heavy = [await connect() for _ in range(40)]
        for client in heavy:
            client.writer.write(struct.pack(">i", FRAME_BYTES_MAX) + bytes(2 * MIB))
        await asyncio.sleep(1)
        assert pool.held_bytes < 8 * MIB + 40 * 2 * RECEIVE_BYTES
        good, loop = await connect(), asyncio.get_running_loop()
        for _ in range(20):
            began_s = loop.time()
            await produce(good, "t", batch(b"x" * 50_000))
            assert loop.time() - began_s < 0.1


async def crowd(connect: Any, sent: bytearray, count: int = 60) -> list[RawClient]:
    """Clients that each ask for one answer, and take none of it."""
    clients = [await connect() for _ in range(count)]
    for client in clients:
        client.reader._limit = 1000
        client.send(1, 12, sent)
    return clients


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("session", [False, True])
@in_virtual_time
async def test_batches_that_many_connections_do_not_take(cold: bool, session: bool) -> None:
    """None of them holds anything before its first batch is read, which comes however large it is: in turn."""
    async with listening() as (served, connect):
        await served.create("t")
        await served.append("t", batch(bytes(900_000)))
        await served.append("t", batch(bytes(900_000)))
        shard_id = served.nodes.nodes[0].gateway.topic("t").shards[0].shard_id
        if cold:
            served.nodes.nodes[0].hosts[shard_id].log.release_memory()
        pool = pool_of(served)
        pool.limit_bytes = pool.budget.limit_bytes = 4 * MIB
        sent = fetch_body("t", 0, wait_ms=10_000)
        if session:
            sent[SESSION_EPOCH] = bytes(4)  # it begins one
        with allocated_at_most(16 * MIB):
            clients = await crowd(connect, sent)
            highest = 0
            for _ in range(60):
                await asyncio.sleep(0.05)
                highest = max(highest, pool.held_bytes)
        assert MIB < highest < 4 * MIB + 2 * MIB + len(clients) * FLOOR_BYTES
        assert served.nodes.nodes[0].hosts[shard_id].state.services.metrics.fetches < 10 * len(clients)
        sizes = [len(frame) for frame in await asyncio.gather(*(client.frame() for client in clients))]
        assert len([size for size in sizes if size > 900_000]) > 3
        await asyncio.sleep(1.1)
        assert pool.held_bytes < len(clients) * 1024
        assert pool.budget.large is None


@in_virtual_time
async def test_small_batches_are_read_while_others_fill_the_node() -> None:
    async with listening() as (served, connect):
        for name, size_bytes in (("t", 900_000), ("small", 100)):
            await served.create(name)
            await served.append(name, batch(bytes(size_bytes)))
        pool = pool_of(served)
        pool.limit_bytes = pool.budget.limit_bytes = 2 * MIB
        await crowd(connect, fetch_body("t", 0, wait_ms=10_000))
        await asyncio.sleep(1)
        good = await connect()
        async with asyncio.timeout(0.5):
            assert len(await good.receive(good.send(1, 12, fetch_body("small", 0)))) > 100


@in_virtual_time
async def test_batches_wait_while_the_disk_lags_and_keep_their_order() -> None:
    """A producer without numbers would send those again that are refused, behind the later ones."""
    backlog_bytes = 32 * 1024
    async with listening(limits=Limits(disk_reserve=0, wal_backlog=backlog_bytes)) as (served, connect):
        await served.create("t")
        wal, pool = served.first.wal, pool_of(served)
        client, other = await connect(), await connect()
        values = [b"%03d" % number + bytes(10_000) for number in range(200)]
        sent = [client.send(0, 10, produce_body("t", batch(value))) for value in values]
        highest = held = 0
        for number, correlation in enumerate(sent):
            answer, _ = entity_reader(kio_class("Produce", 10, "response"))(
                await client.receive(correlation), 1
            )
            done = answer.responses[0].partition_responses[0]
            assert (int(done.error_code), done.base_offset) == (0, number)
            highest = max(highest, wal.backlog_bytes)
            held += bool(pool.budget.holds)
            if number == len(sent) // 2:
                await other.ask(MetadataRequest(topics=[]), 3, 9)  # who holds little goes on
        assert backlog_bytes < highest < 2 * backlog_bytes
        assert held
        assert not pool.budget.holds
        assert [raw_records(one)[0].value for one in served.batches("t")] == values
