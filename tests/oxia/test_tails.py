"""The shared reader of a shard's tail: whoever follows it hears when it ends."""

import asyncio
from typing import Any

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.gateway.turns import Turns
from antiphon.oxia.read_room import ReadRoom
from antiphon.oxia.tails import Piece, Tails
from tests.coroutines import on_a_loop


class Owner:
    """A connection with room for everything."""

    account: Any = None
    calls_bytes = 0
    client = "client"

    def when_room(self) -> None:
        raise AssertionError("nobody reads here")


@pytest.mark.parametrize("error", [ValueError("a bug"), InvalidRequestError("refused for good")])
@on_a_loop
async def test_followers_are_woken_when_the_tail_cannot_be_read(error: Exception) -> None:
    async def read(_start: int) -> Piece:
        raise error

    tails = Tails()
    tail = tails.follow(7, 0, read)
    await asyncio.wait_for(tail.news(ReadRoom(Owner(), Turns())), 2)
    assert tail.failed
    assert tails.follow(7, 0, read) is not tail, "who comes next begins anew"
