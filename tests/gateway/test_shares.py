"""Clients with many connections have no more of a listener than others: Kafka's small requests, and pages over HTTP."""

import asyncio
import struct
from collections import Counter
from typing import Any, cast

import pytest

from antiphon import system
from antiphon.gateway.budget import Budget
from antiphon.gateway.gate import Gate
from antiphon.gateway.turns import SHARE_S
from antiphon.http.connection import HttpConnection
from antiphon.http.listener import HttpListener
from antiphon.kafka.connection import LOOK_EVERY, MEASURED_BYTES, REQUEST_S, Answer, Connection
from antiphon.kafka.inbox import Inbox
from tests.coroutines import on_a_loop

MIB = 1024 * 1024
AT_ONCE = int(SHARE_S / REQUEST_S) + LOOK_EVERY  # requests of a client in a turn of the loop, at most
CROWD, OTHER = "192.0.2.1", "192.0.2.2"


class Wire:
    """A transport to a client at `host`, which takes everything."""

    def __init__(self, host: str, written: list[str]) -> None:
        self._host, self._written = host, written

    def get_extra_info(self, name: str) -> Any:
        return (self._host, 1) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self._written.append(self._host)

    def writelines(self, buffers: list[bytes]) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    pause_reading = resume_reading = close = abort = lambda self: None


class Heard:
    """What connections hand on: whose request it is, and its number."""

    def __init__(self) -> None:
        self.requests: list[tuple[Connection, int]] = []

    def connected(self, connection: Connection) -> bool:
        return True

    def disconnected(self, connection: Connection) -> None:
        pass

    def dispatch(self, frame: memoryview, answer: Answer) -> None:
        self.requests.append((answer.connection, int.from_bytes(frame[:8], "big")))
        answer.send()

    def taken(self) -> Counter[str]:
        """How many by address, since the last time."""
        found = Counter(connection.client_host for connection, _ in self.requests)
        self.requests.clear()
        return found


class Crowd:
    """Connections to one Kafka listener."""

    def __init__(self) -> None:
        self.heard = Heard()
        self._pool = Budget(64 * MIB).pool("kafka", 64 * MIB, 16 * MIB)
        self._inbox = Inbox()

    def connect(self, host: str) -> Connection:
        made = Connection(self.heard, self._pool.open(), self._inbox)
        made.connection_made(cast("Any", Wire(host, [])))
        return made

    def send(self, connection: Connection, count: int, first: int = 0, more: bytes = b"") -> None:
        size = 8 + len(more)
        data = b"".join(struct.pack(">iq", size, first + number) + more for number in range(count))
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))


@on_a_loop
async def test_small_kafka_requests_on_a_thousand_connections_take_one_clients_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(system, "monotonic_s", lambda: 100.0)
    crowd = Crowd()
    many, other = [crowd.connect(CROWD) for _ in range(1_000)], crowd.connect(OTHER)
    for connection in many:
        crowd.send(connection, 3)
    crowd.send(other, 1)
    taken = crowd.heard.taken()
    assert taken[OTHER] == 1, "who sends little never waits"
    assert AT_ONCE // 2 <= taken[CROWD] <= AT_ONCE
    done, turns = taken[CROWD], 0
    while done < 3_000 and turns < 3_000:
        await asyncio.sleep(0)
        turns += 1
        crowd.send(other, 1)
        taken = crowd.heard.taken()
        assert taken[OTHER] == 1
        assert taken[CROWD] <= AT_ONCE
        done += taken[CROWD]
    assert done == 3_000, "all had their turn"


@on_a_loop
async def test_requests_of_a_connection_keep_their_order_over_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "monotonic_s", lambda: 100.0)
    crowd = Crowd()
    pair = [crowd.connect(CROWD) for _ in range(2)]
    for first in (0, 100, 200):
        for connection in pair:
            crowd.send(connection, 100, first)
    for _ in range(200):
        await asyncio.sleep(0)
    for connection in pair:
        own = [number for who, number in crowd.heard.requests if who is connection]
        assert own == list(range(300))


def test_what_took_long_counts_for_all_connections_of_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(system, "monotonic_s", lambda: now_s)

    async def test() -> None:
        nonlocal now_s
        crowd = Crowd()
        first, second, other = (crowd.connect(host) for host in (CROWD, CROWD, OTHER))
        dispatch = crowd.heard.dispatch

        def slow(frame: memoryview, answer: Answer) -> None:
            nonlocal now_s
            now_s += SHARE_S
            dispatch(frame, answer)

        crowd.heard.dispatch = slow  # type: ignore[method-assign]
        for connection in (first, second, other):
            crowd.send(connection, 1, more=bytes(MEASURED_BYTES))
        assert crowd.heard.taken() == {CROWD: 1, OTHER: 1}
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert crowd.heard.taken() == {CROWD: 1}

    asyncio.run(test())


@on_a_loop
async def test_pages_are_made_for_one_client_after_the_other() -> None:
    listener = HttpListener(cast("Any", None), metrics=lambda: b"none\n", status=dict)
    written: list[str] = []
    for number in range(61):
        connection = HttpConnection(listener)
        connection.connection_made(cast("Any", Wire(OTHER if number == 60 else CROWD, written)))
        connection.data_received(b"GET /metrics HTTP/1.1\r\n\r\n" * 5)
    for _ in range(2_000):  # a slow turn of the loop is followed by a rest
        await asyncio.sleep(0.005 if len(written) < 61 * 5 else 0)
    assert len(written) == 61 * 5
    assert [at for at, host in enumerate(written) if host == OTHER][-1] <= 11, "every second page"
    for one in list(listener.open_connections):
        one.connection_lost(None)


@on_a_loop
async def test_the_dashboard_is_entered_by_one_client_after_the_other() -> None:
    gate, inside = Gate(1), list[str]()
    await gate.enter("first")

    async def look(client: str) -> None:
        await gate.enter(client)
        inside.append(client)
        gate.leave()

    tasks = [asyncio.create_task(look(client)) for client in ("crowd",) * 5 + ("other",)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    gate.leave()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert inside == ["crowd", "other", "crowd", "crowd", "crowd"]
    await gate.enter("again")
