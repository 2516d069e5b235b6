"""Connections and links between nodes: order, back-pressure, loss, strangers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antiphon.errors import AntiphonError, PortInUseError, TimedOutError, UnavailableError
from antiphon.model.requests import PROTOCOL_VERSION, Done, Hello, HelloReply, NewProducerId
from antiphon.node import peers
from antiphon.node.peers import PeerLink
from antiphon.node.turn import Turn
from antiphon.replication.multi_messages import ReplicaMessage
from antiphon.security.listening import Listening, listen
from antiphon.transport.connection import Connection
from antiphon.transport.listening import bound_address
from antiphon.wire.frames import Frame, decode_request, encode_message
from tests.coroutines import on_a_loop, run_by

HELLO = Hello(PROTOCOL_VERSION, "test", "c", 0, "one")


class Answers:
    """A server that answers what it is told to, in the order of the requests."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer
        self.seen: list[Any] = []
        self.open: list[Connection] = []
        self.second = asyncio.Event()

    def connected(self, connection: Connection) -> None:
        self.open.append(connection)
        if len(self.open) == 2:
            self.second.set()

    def received(self, connection: Connection, frame: Frame) -> None:
        request_id, body = decode_request(frame.header)
        self.seen.append(body)
        reply = self.answer(body)
        if reply is not None:
            connection.send(encode_message(request_id, reply))

    def drained(self, _connection: Connection) -> None: ...

    def disconnected(self, _connection: Connection, _reason: Exception | None) -> None: ...


class Events:
    """What a link tells its node."""

    def __init__(self) -> None:
        self.up = asyncio.Event()
        self.lost = asyncio.Event()
        self.refused = asyncio.Event()

    def peer_up(self, node_id: int) -> None:
        self.up.set()

    def peer_lost(self, node_id: int, *, refused: bool) -> None:
        (self.refused if refused else self.lost).set()

    def peer_drained(self, node_id: int) -> None: ...

    def deliver(self, sender: int, message: ReplicaMessage) -> None: ...


def raise_(error: Exception) -> None:
    raise error


def _run(test: Callable[[Turn], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(test(Turn(asyncio.get_running_loop(), raise_)), 20)

    asyncio.run(main())


with_a_turn = run_by(_run, given=1)


def polite(body: Any) -> Any:
    return HelloReply(PROTOCOL_VERSION, "c", 1) if isinstance(body, Hello) else Done()


async def serve(turn: Turn, owner: Answers) -> tuple[Listening, str]:
    server = await listen(lambda: Connection(owner, turn, 1 << 20), "127.0.0.1", 0, None, "native")
    return server, bound_address(server, "127.0.0.1")


@asynccontextmanager
async def linked(turn: Turn) -> AsyncIterator[tuple[Answers, PeerLink]]:
    """A peer that answers, and a link to it that is up."""
    owner, events = Answers(polite), Events()
    server, address = await serve(turn, owner)
    link = PeerLink(1, address, HELLO, turn, events, 1 << 20)
    link.start()
    await events.up.wait()
    yield owner, link
    await link.close()
    server.close()


@with_a_turn
async def test_requests_are_answered_and_a_broken_connection_fails_them(turn: Turn) -> None:
    silent = False
    owner = Answers(lambda body: None if silent and not isinstance(body, Hello) else polite(body))
    server, address = await serve(turn, owner)
    events = Events()
    link = PeerLink(1, address, HELLO, turn, events, 1 << 20)
    with pytest.raises(UnavailableError):
        await link.ask(NewProducerId(), 1)
    link.start()
    await events.up.wait()
    assert await asyncio.gather(*(link.ask(NewProducerId(), 5) for _ in range(100))) == [Done()] * 100
    silent = True
    with pytest.raises(TimedOutError):
        await link.ask(NewProducerId(), 0.01)
    waiting = asyncio.ensure_future(link.ask(NewProducerId(), 5))
    await asyncio.sleep(0)
    server.close()
    owner.open[0].close()
    with pytest.raises(UnavailableError):
        await waiting
    await events.lost.wait()
    await events.refused.wait()
    await link.close()


@with_a_turn
async def test_a_node_that_comes_back_is_found_again(turn: Turn) -> None:
    server, address = await serve(turn, Answers(polite))
    server.close()
    events = Events()
    link = PeerLink(1, address, HELLO, turn, events, 1 << 20)
    link.start()
    await events.refused.wait()
    port = int(address.rpartition(":")[2])
    again = await listen(
        lambda: Connection(Answers(polite), turn, 1 << 20), "127.0.0.1", port, None, "native"
    )
    link.dial_now()
    await events.up.wait()
    await link.close()
    again.close()


@with_a_turn
async def test_metadata_of_before_a_restart_does_not_break_a_connection_that_stands(turn: Turn) -> None:
    async with linked(turn) as (_owner, link):
        link.move("127.0.0.1:1")
        assert link.up
        assert await link.ask(NewProducerId(), 5) == Done()


@with_a_turn
async def test_both_addresses_are_tried_until_the_node_is_found(turn: Turn) -> None:
    server, address = await serve(turn, Answers(polite))
    gone, nobody = await serve(turn, Answers(polite))
    gone.close()
    for first, second in ((nobody, address), (address, nobody)):
        events = Events()
        link = PeerLink(1, first, HELLO, turn, events, 1 << 20)
        link.move(second)
        link.start()
        await events.up.wait()
        assert link.address == address
        assert not events.refused.is_set()
        await link.close()
    server.close()


@with_a_turn
async def test_the_other_address_is_tried_where_somebody_else_listens_now(turn: Turn) -> None:
    server, address = await serve(turn, Answers(polite))
    stranger, elsewhere = await serve(turn, Answers(lambda _: HelloReply(PROTOCOL_VERSION, "c", 2)))
    events = Events()
    link = PeerLink(1, address, HELLO, turn, events, 1 << 20)
    link.move(elsewhere)
    link.start()
    await events.up.wait()
    assert link.address == address
    await link.close()
    server.close()
    stranger.close()


@pytest.mark.parametrize(
    "reply", [HelloReply(PROTOCOL_VERSION, "other", 1), HelloReply(PROTOCOL_VERSION, "c", 2), Done()]
)
@with_a_turn
async def test_whoever_is_not_the_peer_is_not_used(turn: Turn, reply: Any) -> None:
    owner = Answers(lambda body: reply)
    server, address = await serve(turn, owner)
    link = PeerLink(1, address, HELLO, turn, Events(), 1 << 20)
    link.start()
    await owner.second.wait()  # it hung up and tries again
    assert not link.up
    await link.close()
    server.close()


@with_a_turn
async def test_who_takes_the_connection_and_says_nothing_is_dialled_again(
    turn: Turn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a machine that lost its power meanwhile, of which the kernel tells only after half a minute."""
    monkeypatch.setattr(peers, "GREETED_WITHIN_S", 0.02)
    owner = Answers(lambda body: polite(body) if len(owner.open) > 1 else None)
    server, address = await serve(turn, owner)
    events = Events()
    link = PeerLink(1, address, HELLO, turn, events, 1 << 20)
    link.start()
    await events.up.wait()
    assert len(owner.open) == 2
    assert not events.refused.is_set()
    assert await link.ask(NewProducerId(), 5) == Done()
    await link.close()
    server.close()


@with_a_turn
async def test_holding_stops_reading_until_every_reason_is_gone(turn: Turn) -> None:
    async with linked(turn) as (owner, link):
        owner.open[0].hold("a")
        owner.open[0].hold("b")
        waiting = asyncio.ensure_future(link.ask(NewProducerId(), 5))
        owner.open[0].release("a")
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        owner.open[0].release("b")
        owner.open[0].release("never given")
        assert await waiting == Done()


@with_a_turn
async def test_a_stranger_is_hung_up_on(turn: Turn) -> None:
    server, address = await serve(turn, Answers(polite))
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()


@with_a_turn
async def test_a_taken_port_is_named_with_its_listener(turn: Turn) -> None:
    server, address = await serve(turn, Answers(polite))
    port = int(address.rpartition(":")[2])
    with pytest.raises(PortInUseError, match=rf"{port} \(native listener\)"):
        await listen(lambda: Connection(Answers(polite), turn, 1), "127.0.0.1", port, None, "native")
    server.close()


@on_a_loop
async def test_a_failure_in_one_piece_of_work_does_not_stop_the_others() -> None:
    seen: list[str] = []
    errors: list[Exception] = []
    turn = Turn(asyncio.get_running_loop(), errors.append)

    def first() -> None:
        turn.for_shard(lambda: seen.append("asked for by the first"))
        raise AntiphonError("broken")

    turn.for_connection(lambda: seen.append("connection"))
    turn.for_shard(first)
    turn.for_shard(lambda: seen.append("second"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["second", "asked for by the first", "connection"]
    assert len(errors) == 1
