"""What native clients may hold of a node's memory: reads whose answers nobody takes, frames that do not end, silence."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.gateway.budget import FLOOR_BYTES, PATIENCE_S, Pool
from antiphon.gateway.turns import READ_BYTES, Turns
from antiphon.model.metadata import Kind
from antiphon.model.requests import (
    FIND_KEYS_MAX,
    GET_KEYS_MAX,
    PROTOCOL_VERSION,
    CreateTopic,
    Failure,
    Fetch,
    Fetched,
    GetStatus,
    Hello,
    Put,
    TableGet,
    TableRows,
    TableScan,
    TableWrite,
)
from antiphon.native.exchange import (
    FORWARDED_BYTES,
    GET_BYTES,
    REQUEST_COSTS_BYTES,
    ROW_BYTES,
    SCAN_BYTES,
    WAITING_BYTES,
)
from antiphon.native.table_requests import KEY_BYTES
from antiphon.records.builder import build_batch
from antiphon.table.state import TableState
from antiphon.wire.frames import PREFIX, FrameDecoder, decode_reply, encode_message
from tests.memory import allocated_at_most
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

MIB = 1024 * 1024


class Client:
    """Frames over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = FrameDecoder()
        self.answers: dict[int, Any] = {}

    def send(self, first_id: int, *bodies: Any) -> None:
        frames = [part for n, body in enumerate(bodies) for part in encode_message(first_id + n, body)]
        self.writer.write(b"".join(frames))

    async def answered(self, count: int) -> dict[int, Any]:
        while len(self.answers) < count:
            data = await self.reader.read(1 << 16)
            assert data, "the connection was closed"
            for frame in self.decoder.feed(data):
                request_id, body = decode_reply(frame.header)
                self.answers[request_id] = body if not frame.payload else (body, len(frame.payload))
        return self.answers


async def connect(nodes: Nodes, *, greets: bool = True) -> Client:
    host, _, port = nodes.members[0].native.rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port), limit=1000))
    if greets:
        client.send(0, Hello(PROTOCOL_VERSION, "t"))
        await client.answered(1)
    return client


def pool_of(nodes: Nodes) -> Pool:
    return nodes.servers[0].memory.pools["native"]


async def large_row(nodes: Nodes, size_bytes: int = 900_000) -> int:
    shard_id = await nodes.new_shard("rows", Kind.TABLE)
    await nodes.leader(shard_id)
    await nodes.nodes[0].gateway.table_write(TableWrite(shard_id, (Put(b"k", bytes(size_bytes)),)))
    return shard_id


async def large_log(nodes: Nodes, batches: int = 12, size_bytes: int = 900_000) -> int:
    shard_id = await nodes.new_shard()
    await nodes.leader(shard_id)
    for _ in range(batches):
        await nodes.nodes[0].gateway.append(shard_id, build_batch([(None, bytes(size_bytes), [], 1)]))
    return shard_id


@in_virtual_time
async def test_a_get_of_more_than_an_answer_may_have_is_refused_before_it_is_read() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_row(nodes)
        client = await connect(nodes)
        with allocated_at_most(40 * MIB):
            for n, comparison in enumerate((0, 1)):
                client.send(1 + n, TableGet(shard_id, (b"k",) * FIND_KEYS_MAX, comparison=comparison))
                answer = (await client.answered(2 + n))[1 + n]
                assert isinstance(answer, Failure)
                assert answer.code == "frame_too_large"
        client.send(9, TableGet(shard_id, (b"k",) * 8))
        rows = (await client.answered(4))[9]
        assert [len(row.value) for row in rows.rows] == [900_000] * 8
        client.writer.close()


class ReadInTurns:
    """How many rows were read in one turn of the loop, and how many keys were looked for."""

    def __init__(self) -> None:
        self.rows = self.keys = self.most_rows = self.most_keys = 0

    def patches(self) -> tuple[Any, Any]:
        """What has it count."""
        next_turn, get_many = Turns._next_turn, TableState.get_many

        def ended(turns: Turns) -> None:
            self.rows = self.keys = 0
            next_turn(turns)

        def read(state: TableState, keys: Any, **fields: Any) -> Any:
            found = get_many(state, keys, **fields)
            self.rows += sum(row is not None for row in found)
            self.keys += len(keys)
            self.most_rows, self.most_keys = max(self.most_rows, self.rows), max(self.most_keys, self.keys)
            return found

        return patch.object(Turns, "_next_turn", ended), patch.object(TableState, "get_many", read)


@in_virtual_time
async def test_so_much_is_read_for_answers_in_one_turn_of_the_loop_whoever_asks() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_row(nodes)
        clients = [await connect(nodes) for _ in range(3)]
        turns = ReadInTurns()
        end, count = turns.patches()
        with end, count:
            for client in clients:
                client.send(1, *[TableGet(shard_id, (b"k",), consistency="leader")] * 8)
            await asyncio.gather(*(client.answered(9) for client in clients))
            assert turns.most_rows <= 4, "900 KB each: two, and as many for whose turn it is"
            for client in clients:
                client.send(20, *[TableGet(shard_id, (b"no",) * 5000)] * 8)
            await asyncio.gather(*(client.answered(17) for client in clients))
            assert turns.most_keys <= 4 * READ_BYTES // KEY_BYTES


@in_virtual_time
async def test_a_get_of_too_many_keys_is_refused() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_row(nodes)
        client = await connect(nodes)
        client.send(1, TableGet(shard_id, (b"k",) * (GET_KEYS_MAX + 1)))
        client.send(2, TableGet(shard_id, (b"k",) * (FIND_KEYS_MAX + 1), comparison=1))
        answers = await client.answered(3)
        client.writer.close()
        assert {answers[n].code for n in (1, 2)} == {"invalid_request"}


READS: dict[str, Callable[[int], Any]] = {
    "gets": lambda shard_id: TableGet(shard_id, (b"k",)),
    "gets without a round": lambda shard_id: TableGet(shard_id, (b"k",), consistency="leader"),
    "scans": lambda shard_id: TableScan(shard_id, b"", b"", 10),
}


@pytest.mark.parametrize("name", READS)
@in_virtual_time
async def test_rows_that_nobody_takes_are_not_read(name: str) -> None:
    async with cluster_of(1) as nodes:
        shard_id, pool = await large_row(nodes, 90_000), pool_of(nodes)
        pool.connection_bytes = MIB
        client = await connect(nodes)
        client.send(1, *[READS[name](shard_id) for _ in range(150)])
        reads, good = nodes.nodes[0].metrics, await connect(nodes)
        highest = 0
        for n in range(30):
            good.send(1 + n, GetStatus())
            await good.answered(2 + n)
            highest = max(highest, pool.held_bytes)
            await asyncio.sleep(0.05)
        assert MIB // 2 < highest < 2 * MIB + 192 * REQUEST_COSTS_BYTES
        assert reads.table_reads > 0
        answers = await client.answered(151)  # and when it takes them, all come
        assert all(isinstance(answers[1 + n], TableRows) for n in range(150))
        await asyncio.sleep(1.5)
        assert pool.held_bytes <= FLOOR_BYTES
        client.writer.close()
        good.writer.close()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("waiting", [False, True])
@in_virtual_time
async def test_batches_that_nobody_takes_are_not_read(cold: bool, waiting: bool) -> None:
    async with cluster_of(1) as nodes:
        shard_id, pool, node = await large_log(nodes, 50, 90_000), pool_of(nodes), nodes.nodes[0]
        pool.connection_bytes = MIB
        client, end = await connect(nodes), node.hosts[shard_id].state.high_watermark
        if cold:
            node.hosts[shard_id].log.release_memory()
        assert node.hosts[shard_id].reads.is_cold(end - 2, "committed") == cold
        start = end if waiting else 0 if cold else end - 2
        client.send(1, *[Fetch(shard_id, start, 1 << 24, 50_000) for _ in range(200)])
        if waiting:
            await asyncio.sleep(0.5)  # all wait for the same batch
            await node.gateway.append(shard_id, build_batch([(None, bytes(90_000), [], 1)]))
        highest = 0
        for _ in range(30):
            highest = max(highest, pool.held_bytes)
            await asyncio.sleep(0.05)
        assert MIB // 2 < highest < 3 * MIB + 256 * REQUEST_COSTS_BYTES
        answers = await client.answered(201)
        assert all(isinstance(answers[1 + n][0], Fetched) for n in range(200))
        await asyncio.sleep(1.5)
        assert pool.held_bytes <= FLOOR_BYTES
        client.writer.close()


@in_virtual_time
async def test_a_client_that_takes_nothing_is_closed() -> None:
    async with cluster_of(1) as nodes:
        shard_id, pool = await large_log(nodes), pool_of(nodes)
        client = await connect(nodes)
        client.send(1, *[Fetch(shard_id, 0, 1 << 24) for _ in range(20)])
        sessions = nodes.servers[0].native.sessions
        await asyncio.sleep(PATIENCE_S - 3)
        assert len(sessions) == 1
        await asyncio.sleep(6)
        assert not sessions
        assert pool.held_bytes == 0
        assert pool.closed_slow == 1
        client.writer.transport.abort()


def test_a_frame_in_many_small_pieces_costs_little_more_than_its_bytes() -> None:
    """Each piece kept by itself would take ten times that."""
    decoder = FrameDecoder()
    decoder.feed(PREFIX.pack(1_000_000, 10))
    with allocated_at_most(2_500_000):
        for _ in range(900_000):
            decoder.feed(b"x")
    assert decoder.buffered_bytes == 900_008


@pytest.mark.parametrize("greets", [False, True])
@in_virtual_time
async def test_a_frame_that_does_not_end_and_silence_end_a_connection(greets: bool) -> None:
    async with cluster_of(1) as nodes:
        client = await connect(nodes, greets=greets)
        began_s = asyncio.get_running_loop().time()
        if greets:
            client.writer.write(PREFIX.pack(50 * MIB, 100) + b"x")
        while await client.reader.read(1000):
            pass
        took_s = asyncio.get_running_loop().time() - began_s
        assert (PATIENCE_S if greets else 10) <= took_s < (PATIENCE_S if greets else 10) + 3
        client.writer.close()


@in_virtual_time
async def test_a_client_that_only_waits_is_left_alone() -> None:
    async with cluster_of(1) as nodes:
        shard_id = await large_log(nodes, batches=1)
        client = await connect(nodes)
        native = nodes.servers[0].native
        native.limits = native.limits._replace(idle_s=5.0)
        client.send(1, Fetch(shard_id, 1, 1 << 20, 20_000))
        assert isinstance((await client.answered(2))[1], Fetched)
        await eventually(lambda: not native.sessions)
        client.writer.close()


FORWARDED: dict[str, tuple[Kind, Callable[[int], Any], int]] = {
    "gets": (Kind.TABLE, lambda shard_id: TableGet(shard_id, (b"k",)), ROW_BYTES),
    "gets of many keys": (Kind.TABLE, lambda shard_id: TableGet(shard_id, (b"k",) * 20), GET_BYTES),
    "scans": (Kind.TABLE, lambda shard_id: TableScan(shard_id, b"", b"", 10), SCAN_BYTES),
    "fetches": (Kind.TOPIC, lambda shard_id: Fetch(shard_id, 0, 1 << 24), FORWARDED_BYTES),
    "fetches that wait": (Kind.TOPIC, lambda shard_id: Fetch(shard_id, 1, 1 << 24, 2_000), WAITING_BYTES),
}


@pytest.mark.parametrize("name", FORWARDED)
@in_virtual_time
async def test_reads_that_are_passed_on_are_counted_until_their_answer_is_here(name: str) -> None:
    """As many are under way as there is room for what they may bring; the others wait, and are answered in the end."""
    kind, read, counted_bytes = FORWARDED[name]
    async with cluster_of(2) as nodes:
        gateway, pool = nodes.nodes[0].gateway, pool_of(nodes)
        topic = await gateway.create_topic(CreateTopic("t", kind, config={"on.not.leader": "forward"}))
        shard_id = topic.shards[0].shard_id
        await gateway.elect_leader(shard_id, 1)
        leader = nodes.nodes[1].gateway
        await eventually(lambda: gateway.topic("t").shards[0].leader == 1)
        await nodes.leader(shard_id)
        if kind is Kind.TABLE:
            await leader.table_write(TableWrite(shard_id, (Put(b"k", bytes(90_000)),)))
        else:
            await leader.append(shard_id, build_batch([(None, bytes(60_000), [], 1)]))
        pool.connection_bytes = 8 * counted_bytes
        pool.limit_bytes = pool.budget.limit_bytes = 100 * counted_bytes
        client, most = await connect(nodes), 0
        client.send(1, *[read(shard_id) for _ in range(60)])

        async def take() -> dict[int, Any]:
            return await client.answered(61)

        taking = asyncio.create_task(take())
        while not taking.done():
            most = max(most, nodes.nodes[0].forwarder.underway)
            await asyncio.sleep(0.0005)
        answers = taking.result()
        assert 4 <= most <= 8
        assert not [answer for answer in answers.values() if isinstance(answer, Failure)]
        assert nodes.nodes[0].metrics.forwarded == 60
        await eventually(lambda: pool.held_bytes <= FLOOR_BYTES)
        client.writer.close()
