"""How many of a native client's requests one turn of the event loop has."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from antiphon.gateway.budget import Budget
from antiphon.gateway.turns import WORK_MAX, Turns
from antiphon.model.requests import GetMetadata
from antiphon.native.request_turns import BUSY_SHARE, REQUEST_WORK, RequestTurns
from antiphon.transport.connection import Connection
from antiphon.wire.frames import Frame, decode_request, encode_message

AT_ONCE = WORK_MAX // REQUEST_WORK


class Took:
    """Takes requests, and notes in which turn."""

    def __init__(self, turns: Turns, client: str) -> None:
        self.turns, self.client = turns, client
        self.seen: list[list[int]] = [[]]

    def connected(self, connection: Connection) -> None:
        pool = Budget(1 << 30, self.turns).pool("native", 1 << 30, 1 << 30)
        share = RequestTurns(self.turns, lambda: self.client)
        connection.count_in(pool.open(), lambda: None, share)

    def received(self, _connection: Connection, frame: Frame) -> None:
        self.seen[-1].append(decode_request(frame.header)[0])

    def drained(self, _connection: Connection) -> None: ...

    def disconnected(self, _connection: Connection, _reason: Exception | None) -> None: ...


def requests(count: int) -> bytes:
    return b"".join(part for n in range(count) for part in encode_message(n, GetMetadata()))


def connected(turns: Turns, client: str, work: Any) -> tuple[Connection, Took]:
    took = Took(turns, client)
    connection = Connection(took, work, 1 << 20)
    transport = Mock(is_closing=lambda: False, get_write_buffer_size=lambda: 0)
    transport.get_extra_info.return_value = None
    connection.connection_made(transport)
    return connection, took


async def turns_of(*owners: Took, count: int) -> None:
    for _ in range(count):
        for owner in owners:
            owner.seen.append([])
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", [1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE])
def test_a_flood_of_requests_is_begun_a_few_in_each_turn_and_in_order(count: int) -> None:
    async def run() -> Took:
        turns = Turns()
        connection, took = connected(turns, "mallory", Mock())
        connection.data_received(requests(count))
        await turns_of(took, count=20)
        assert not connection.is_held
        return took

    took = asyncio.run(run())
    sizes = [len(turn) for turn in took.seen if turn]
    assert max(sizes) <= AT_ONCE
    assert [number for turn in took.seen for number in turn] == list(range(count))
    assert len(sizes) == -(-count // AT_ONCE)


def test_who_sends_little_does_not_wait_for_those_who_send_much() -> None:
    async def run() -> tuple[Took, Took, Took]:
        turns, work = Turns(), Mock()
        made = [connected(turns, name, work) for name in ("mallory", "mallory", "alice")]
        for connection, _ in made[:2]:
            connection.data_received(requests(10 * AT_ONCE))
        made[2][0].data_received(requests(2))
        first, second, other = (took for _, took in made)
        await turns_of(first, second, other, count=60)
        return first, second, other

    first, second, other = asyncio.run(run())
    assert other.seen[0] == [0, 1]
    assert len(first.seen[0]) == AT_ONCE
    assert len(second.seen[0]) == AT_ONCE // BUSY_SHARE  # that turn had its work already
    together = [len(one) + len(two) for one, two in zip(first.seen, second.seen, strict=True)]
    assert max(together[1:]) <= AT_ONCE
    assert sum(together) == 20 * AT_ONCE


def test_another_node_s_messages_are_handed_over_at_once() -> None:
    async def run() -> Took:
        connection, took = connected(Turns(), "node", Mock())
        connection.count_no_more()
        connection.data_received(requests(5 * AT_ONCE))
        return took

    assert len(asyncio.run(run()).seen[0]) == 5 * AT_ONCE
