"""What a node keeps for Oxia's clients, whatever they ask for and do not take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import pytest

from antiphon.gateway.protobuf import Decoding, decode
from antiphon.model.requests import Fetch
from antiphon.node.config import Limits
from antiphon.oxia import call, writes
from antiphon.oxia import frames as f
from antiphon.oxia import messages as m
from antiphon.oxia.allowance import Bounds
from antiphon.oxia.shards import ShardRequests
from antiphon.oxia.status import DEADLINE_EXCEEDED
from antiphon.oxia.tails import Piece, Tails
from antiphon.simulation.cluster.oxia_client import SERVICES, CallError, Connection, Stream
from tests.node.in_process import Nodes, in_virtual_time
from tests.oxia.test_calls import client, get, keys, nodes_with, shards_of, write

MIB = 1024 * 1024
ROW = bytes(700_000)


@asynccontextmanager
async def with_rows(**limits: int) -> AsyncIterator[tuple[Nodes, int]]:
    """A node whose table has a few large rows."""
    async with nodes_with(count=1, limits=Limits(disk_reserve=0, **limits)) as nodes:
        (shard_id,) = shards_of(nodes)
        for number in range(4):
            await write(client(0), shard_id, puts=[m.PutRequest(key=b"row%d" % number, value=ROW)])
        await write(client(0), shard_id, puts=[m.PutRequest(key=b"small", value=b"s")])
        yield nodes, shard_id


def held_bytes(nodes: Nodes) -> int:
    return int(nodes.servers[0].memory.held_bytes)


async def shut(node_id: int = 0) -> Connection:
    """A connection whose client takes no answer."""
    connection = await client(node_id).connection()
    connection._write(f.settings_frame([(f.INITIAL_WINDOW_SIZE, 0)]))
    return connection


def ask(connection: Connection, method: str, message: Any) -> Stream:
    stream_id, stream = connection.begin(SERVICES[0] + method, {})
    connection.say(stream_id, message, last=True)
    return stream


@pytest.mark.parametrize("method", ["RangeScan", "Read", "GetNotifications"])
def test_answers_that_nobody_takes_are_not_read(method: str) -> None:
    @in_virtual_time
    async def test() -> None:
        async with with_rows(memory=24 * MIB, connection_memory=16 * MIB) as (nodes, shard_id):
            wanted = {
                "RangeScan": m.RangeRequest(shard=shard_id),
                "Read": m.ReadRequest(shard=shard_id, gets=[m.GetRequest(key=b"row1", include_value=True)]),
                "GetNotifications": m.NotificationsRequest(shard=shard_id, start_offset_exclusive=-1),
            }[method]
            highest = 0
            for _ in range(4):
                connection = await shut()
                for _ in range(200):
                    ask(connection, method, wanted)
                for _ in range(100):
                    await asyncio.sleep(0.01)
                    highest = max(highest, held_bytes(nodes))
            assert highest < 28 * MIB
            assert (await get(client(0), shard_id, b"small")).value == b"s"  # another client

    test()


@in_virtual_time
async def test_what_is_read_is_counted_before_it_is_there() -> None:
    async with with_rows() as (nodes, shard_id):
        connection, highest = await shut(), 0
        before = ShardRequests._here
        under_way = 0

        async def slowly(self: ShardRequests, *args: Any) -> Any:
            nonlocal under_way, highest
            under_way += 1
            highest = max(highest, under_way)
            await asyncio.sleep(0.1)
            under_way -= 1
            return await before(self, *args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ShardRequests, "_here", slowly)
            for _ in range(500):
                ask(connection, "RangeScan", m.RangeRequest(shard=shard_id))
            await asyncio.sleep(1)
        assert 4 <= highest <= 16  # 2 MiB each, of 32
        del nodes


@in_virtual_time
async def test_what_waited_is_gone_with_its_client() -> None:
    async with with_rows() as (nodes, shard_id):
        connection = await shut()
        for _ in range(20):
            ask(connection, "RangeScan", m.RangeRequest(shard=shard_id))
        await asyncio.sleep(1)
        served = max(nodes.servers[0].oxia.open_connections, key=lambda one: one.http2.waiting_bytes)  # type: ignore[union-attr]
        assert served.http2.waiting_bytes > 5 * MIB
        connection.close()
        await asyncio.sleep(0.1)
        assert served.http2.waiting_bytes == 0  # whoever holds the connection still
        assert held_bytes(nodes) < 64 * 1024


@in_virtual_time
async def test_who_takes_his_answers_gets_all_of_them() -> None:
    async with with_rows(memory=6 * MIB, connection_memory=4 * MIB) as (_, shard_id):
        connection = await client(0).connection()
        scans = [
            ask(connection, "RangeScan", m.RangeRequest(shard=shard_id, end_exclusive=b"s")) for _ in range(8)
        ]
        gets = [m.GetRequest(key=b"row%d" % (n % 4), include_value=True) for n in range(8)]
        reads = [ask(connection, "Read", m.ReadRequest(shard=shard_id, gets=gets)) for _ in range(2)]
        for stream, count in [*((one, 4) for one in scans), *((one, 8) for one in reads)]:
            found = 0
            while (data := await stream.next(20)) is not None:
                found += len(decode(m.ReadResponse, data).gets)  # scans have their rows in the same field
            assert found == count


@in_virtual_time
async def test_calls_are_refused_for_which_there_is_no_memory() -> None:
    async with nodes_with(count=1, limits=Limits(disk_reserve=0, oxia_memory=4 * MIB)) as nodes:
        (shard_id,) = shards_of(nodes)
        connections = [await client(0).connection() for _ in range(20)]
        for connection in connections:
            for _ in range(Bounds().streams):
                connection.begin(
                    SERVICES[0] + "WriteStream", {"shard-id": str(shard_id), "user-agent": "x" * 900}
                )
        await asyncio.sleep(0.5)
        open_ = [len(one.calls) for one in nodes.servers[0].oxia.open_connections]  # type: ignore[union-attr]
        assert 50 < max(open_) < 4 * MIB // 8 // (call.CALL_BYTES + 900) + 10
        assert held_bytes(nodes) < 4 * MIB
        await write(client(0), shard_id, puts=[m.PutRequest(key=b"k")])
        for connection in connections:
            connection.close()
        await asyncio.sleep(0.1)
        assert held_bytes(nodes) < 64 * 1024


@in_virtual_time
async def test_a_call_whose_message_does_not_come_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "REQUEST_S", 3.0)
    async with nodes_with(count=1) as nodes:
        connection = await client(0).connection()
        waiting = [
            connection.begin(SERVICES[0] + method, {})[1] for method in ("Write", "Read", "GetNotifications")
        ]
        stays = connection.begin(SERVICES[0] + "WriteStream", {"shard-id": str(shards_of(nodes)[0])})[1]
        for stream in waiting:
            with pytest.raises(CallError, match="did not come") as error:
                await stream.next(5)
            assert error.value.code == DEADLINE_EXCEEDED
        with pytest.raises(Exception, match="time ran out"):
            await stays.next(5)


@in_virtual_time
async def test_a_log_is_read_once_for_all_who_follow_it() -> None:
    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        at, fetches = client(0), 0
        before = ShardRequests.ask_bulk

        async def counted(self: ShardRequests, body: Any, *args: Any) -> Any:
            nonlocal fetches
            fetches += isinstance(body, Fetch)
            return await before(self, body, *args)

        connection = await client(0).connection()
        streams = [
            ask(connection, "GetNotifications", m.NotificationsRequest(shard=shard_id)) for _ in range(50)
        ]
        sequence = ask(
            connection, "GetSequenceUpdates", m.GetSequenceUpdatesRequest(shard=shard_id, key=b"s")
        )
        for stream in streams:
            assert decode(m.NotificationBatch, await stream.next(5) or b"").notifications == ()
        await asyncio.sleep(0.1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ShardRequests, "ask_bulk", counted)
            for number in range(20):
                puts = [m.PutRequest(key=b"s", partition_key=b"p", sequence_key_delta=[1])]
                await write(at, shard_id, puts=puts)
                await asyncio.sleep(0.01 if number % 3 else 0.0)
            for stream in streams:
                told: list[bytes] = []
                while len(told) < 20:
                    batch = decode(m.NotificationBatch, await stream.next(5) or b"")
                    told += [one.key for one in batch.notifications]
                assert told == [b"s-%020d" % (1 + number) for number in range(20)]
            last = b""
            while last != b"s-%020d" % 20:
                last = decode(
                    m.GetSequenceUpdatesResponse, await sequence.next(5) or b""
                ).highest_sequence_key
        assert 1 <= fetches < 60  # and not 50 times as many
        feeds: Tails = nodes.servers[0].oxia.calls._feeds.tails  # type: ignore[union-attr]
        assert len(feeds._tails) == 1
        connection.close()
        await asyncio.sleep(0.1)
        assert not feeds._tails


@in_virtual_time
async def test_who_was_slow_is_told_everything() -> None:
    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        connection = await shut()
        slow = ask(connection, "GetNotifications", m.NotificationsRequest(shard=shard_id))
        fast = ask(await client(0).connection(), "GetNotifications", m.NotificationsRequest(shard=shard_id))
        await asyncio.sleep(0.1)
        wanted = []
        for number in range(30):
            puts = [m.PutRequest(key=b"%02d-%04d" % (number, n) + b"x" * 100, value=b"v") for n in range(500)]
            wanted += [one.key for one in puts]
            await write(client(0), shard_id, puts=puts)
        for number, stream in enumerate((fast, slow)):
            if number:
                connection._write(f.settings_frame([(f.INITIAL_WINDOW_SIZE, 65_535)]))
            told: list[bytes] = []
            while len(told) < len(wanted):
                told += [
                    one.key for one in decode(m.NotificationBatch, await stream.next(5) or b"").notifications
                ]
            assert told == wanted
        assert await keys(client(0), shard_id, b"00-0000", b"00-0001") == [wanted[0]]


@in_virtual_time
async def test_a_tail_is_shared_by_those_for_whom_it_has_everything() -> None:
    async def nothing(start: int) -> Piece:
        await asyncio.sleep(1)
        return Piece(start, start, [], 0)

    tails = Tails()
    later = tails.follow(7, 11, nothing)
    assert tails.follow(7, 11, nothing) is later
    assert tails.follow(7, 12, nothing) is later
    earlier = tails.follow(7, 10, nothing)  # that one will never have what is at 10
    assert earlier is not later
    assert tails.follow(7, 11, nothing) is earlier
    for tail in (later, later, later, earlier, earlier):
        tails.leave(7, tail)
    assert not tails._tails


@in_virtual_time
async def test_others_have_their_turn_while_a_large_message_is_read_planned_and_answered() -> None:
    """One turn of the loop reads a few thousand fields, and makes or answers a thousand operations."""
    puts = [m.PutRequest(key=b"%05d" % n, value=b"v") for n in range(6_000)]
    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        most, work = [0, 0, 0], [0, 0, 0]
        step, put, told = Decoding.step, writes._put, writes._put_response

        def noted(kind: int, done: Any) -> Any:
            def call(*args: Any) -> Any:
                if not any(work):
                    asyncio.get_running_loop().call_soon(work.__setitem__, slice(None), [0, 0, 0])
                work[kind] += 1
                most[kind] = max(most[kind], work[kind])
                return done(*args)

            return call

        with (
            patch.object(Decoding, "step", noted(0, step)),
            patch.object(writes, "_put", noted(1, put)),
            patch.object(writes, "_put_response", noted(2, told)),
        ):
            answer = await write(client(0), shard_id, puts=puts)
        assert [one.status for one in answer.puts] == [0] * len(puts)
        assert most == [1, writes.PIECE, writes.PIECE]


@in_virtual_time
async def test_calls_that_wait_for_a_client_to_take_answers_are_not_woken_in_vain() -> None:
    """A frame that makes nothing go on wakes no call, however many wait on its connection."""
    async with with_rows() as (nodes, shard_id):
        connection = await shut()
        for _ in range(40):
            ask(connection, "RangeScan", m.RangeRequest(shard=shard_id))
        await asyncio.sleep(1)
        listener = nodes.servers[0].oxia
        assert listener is not None
        (served,) = (one for one in listener.open_connections if one.calls)
        waiting = dict(served._answering)
        assert len(waiting) > 4
        looked = 0
        takes_more = type(served)._takes_more

        def counted(self: Any, one: Any) -> bool:
            nonlocal looked
            looked += 1
            return takes_more(self, one)

        with patch.object(type(served), "_takes_more", counted):
            for _ in range(100):
                connection._write(f.frame(f.PING, 0, 0, b"12345678"))
                await asyncio.sleep(0.001)
        assert looked == 0
        assert served._answering == waiting
        connection._write(f.settings_frame([(f.INITIAL_WINDOW_SIZE, 1 << 24)]) + f.window_update(0, 1 << 24))
        await asyncio.sleep(1)
        assert not any(served._answering.get(one) is woken for one, woken in waiting.items())
