"""How much of what Oxia's clients send, or leave behind, one turn of the event loop has."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from antiphon.gateway.budget import Budget
from antiphon.gateway.protobuf import decode
from antiphon.gateway.turns import WORK_MAX, Turns
from antiphon.oxia import frames as f
from antiphon.oxia import messages as m
from antiphon.oxia.allowance import WORK_MAX as ALONE_MAX
from antiphon.oxia.allowance import Bounds
from antiphon.oxia.connection import AT_ONCE, OxiaConnection
from antiphon.oxia.read_room import WAKE_WORK, ReadRoom
from antiphon.simulation.cluster.oxia_client import SERVICES
from tests.node.in_process import Nodes, in_virtual_time
from tests.oxia.test_bounds import ask
from tests.oxia.test_calls import client, nodes_with, shards_of, write

HELLO = f.PREFACE + f.settings_frame([])
PING = f.frame(f.PING, 0, 0, bytes(8))


def test_a_turn_of_all_listeners_is_one_of_each_connection() -> None:
    assert ALONE_MAX == WORK_MAX


def open_calls(nodes: Nodes) -> list[Any]:
    """The node's connections that have calls."""
    return [one for one in nodes.servers[0].oxia.open_connections if one.calls]  # type: ignore[union-attr]


@in_virtual_time
async def test_a_call_is_carried_out_from_its_first_message_on() -> None:
    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        connection = await client(0).connection()
        headers = {"shard-id": str(shard_id)}
        streams = [connection.begin(SERVICES[0] + "WriteStream", headers) for _ in range(100)]
        await asyncio.sleep(1)
        (served,) = open_calls(nodes)
        assert len(served.calls) == 100
        assert not [one for one in served.calls.values() if one.task is not None]
        put = m.WriteRequest(puts=[m.PutRequest(key=b"k", value=b"v")])
        connection.say(streams[7][0], put, last=False)
        assert decode(m.WriteResponse, await streams[7][1].next(5) or b"").puts[0].status == 0
        assert len([one for one in served.calls.values() if one.task is not None]) == 1


@in_virtual_time
async def test_calls_that_wait_for_a_message_are_ended_a_few_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon.oxia.call.REQUEST_S", 3.0)
    begun: list[int] = []
    before = OxiaConnection._begin_some_due

    def counted(self: OxiaConnection) -> None:
        left = len(self._unbegun)
        before(self)
        begun.append(left - len(self._unbegun))

    monkeypatch.setattr(OxiaConnection, "_begin_some_due", counted)
    async with nodes_with(count=1):
        connection = await client(0).connection()
        waiting = [connection.begin(SERVICES[0] + "Read", {})[1] for _ in range(5 * AT_ONCE)]
        for stream in waiting:
            with pytest.raises(Exception, match="did not come"):
                await stream.next(6)
    assert begun == [AT_ONCE] * 5


@in_virtual_time
async def test_the_calls_of_a_client_that_is_gone_end_a_few_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[int] = []
    before = OxiaConnection._drop_all

    def counted(self: OxiaConnection) -> None:
        left = len(self.calls)
        before(self)
        dropped.append(left - len(self.calls))

    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        connection = await client(0).connection()
        for _ in range(3 * AT_ONCE):
            ask(connection, "GetNotifications", m.NotificationsRequest(shard=shard_id))
        await asyncio.sleep(1)
        (served,) = open_calls(nodes)
        tasks = [one.task for one in served.calls.values()]
        monkeypatch.setattr(OxiaConnection, "_drop_all", counted)
        connection.close()
        await asyncio.sleep(1)
        assert dropped == [AT_ONCE] * 3
        assert all(task.done() for task in tasks)
        assert served not in nodes.servers[0].oxia.open_connections  # type: ignore[union-attr]
        assert nodes.servers[0].memory.held_bytes < 64 * 1024


@in_virtual_time
async def test_followers_of_a_shard_go_on_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    woken: list[int] = []
    before = ReadRoom._wake_some

    def counted(self: ReadRoom) -> None:
        left = len(self._waking)
        before(self)
        woken.append(left - len(self._waking))

    monkeypatch.setattr(ReadRoom, "_wake_some", counted)
    async with nodes_with(count=1) as nodes:
        (shard_id,) = shards_of(nodes)
        connection = await client(0).connection()
        followers = [
            ask(connection, "GetNotifications", m.NotificationsRequest(shard=shard_id)) for _ in range(40)
        ]
        for stream in followers:
            assert not decode(m.NotificationBatch, await stream.next(5) or b"").notifications
        await asyncio.sleep(0.5)
        await write(client(0), shard_id, puts=[m.PutRequest(key=b"k", value=b"v")])
        for stream in followers:
            assert decode(m.NotificationBatch, await stream.next(5) or b"").notifications[0].key == b"k"
    most = WORK_MAX // WAKE_WORK
    assert woken[:3] == [most, most, 40 - 2 * most]


class Owner:
    """A listener of which nothing is wanted but turns."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.quotas = Mock()

    def opened(self, _connection: Any, _transport: Any) -> bool:
        return True

    def note_closed(self, _connection: Any, why: str) -> None:
        raise AssertionError(why)


def test_what_many_connections_send_at_the_same_time_is_one_turn_s_work() -> None:
    """Each sends less than a turn has. Together they have one too, whoever comes first; then each has its own in turn."""
    done: list[int] = []  # pings that were answered, by turn

    async def run() -> None:
        turns = Turns()
        pool = Budget(1 << 30, turns).pool("oxia", 1 << 30, 1 << 30)
        connections = [OxiaConnection(Owner(turns), pool.open(), Bounds()) for _ in range(20)]  # type: ignore[arg-type]
        for number, one in enumerate(connections):
            transport = Mock(is_closing=lambda: False, get_write_buffer_size=lambda: 0)
            transport.get_extra_info.return_value = (f"10.0.0.{number}", 1)
            one.connection_made(transport)
            one.data_received(HELLO)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        answered = Mock()
        for one in connections:
            one.http2.outgoing.clear()
            one.flush_soon = answered  # type: ignore[method-assign]  # what is answered stays to be counted
            one.data_received(PING * (WORK_MAX // 4))
        while not done or done[-1] < 20 * (WORK_MAX // 4):
            done.append(sum(len(one.http2.outgoing) for one in connections) // len(PING))
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 30))
    turns = [after - before for before, after in zip([0, *done], done, strict=False) if after > before]
    assert sum(turns) == 20 * (WORK_MAX // 4)
    assert max(turns) == WORK_MAX
