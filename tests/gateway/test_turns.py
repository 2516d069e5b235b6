"""Long requests: one in each turn of the loop, and a rest after a turn that took long."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from antiphon.gateway.turns import LONG_S, REST_MAX_S, Turns


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop on which pieces of work take as long as they say."""

    worked_s = 0.0

    def time(self) -> float:
        return super().time() + self.worked_s


@pytest.mark.parametrize(("takes_s", "rests"), [(LONG_S / 4, False), (2 * LONG_S, True), (5.0, True)])
def test_a_turn_that_took_long_is_followed_by_a_rest(takes_s: float, rests: bool) -> None:
    loop = SteppedLoop()
    seen: list[str] = []
    done = {name: asyncio.Event() for name in ("first", "second", "third", "quick")}

    def note(name: str) -> None:
        seen.append(name)
        done[name].set()

    def piece(name: str) -> Callable[[], None]:
        def work() -> None:
            loop.worked_s += takes_s
            note(name)

        return work

    async def run() -> None:
        turns = Turns()
        for name in ("first", "second", "third"):
            turns.add(name, piece(name))
        await done["first"].wait()
        loop.call_later(min(takes_s, REST_MAX_S) / 2, note, "quick")
        for one in done.values():
            await one.wait()

    try:
        loop.run_until_complete(asyncio.wait_for(run(), 60))
    finally:
        loop.close()
    assert [name for name in seen if name != "quick"] == ["first", "second", "third"]
    assert (seen[1] == "quick") is rests


def test_connections_of_one_client_share_its_turns() -> None:
    """Hundred connections of one client are of no more use than one: another client has every second turn."""
    done: list[str] = []

    async def test() -> None:
        turns = Turns()
        for number in range(100):
            turns.add(number, lambda: done.append("many"), "mallory")
        for _ in range(3):
            turns.add("one", lambda: done.append("one"), "alice")
            turns.add("alone", lambda: done.append("alone"))
        for _ in range(10_000):  # on a busy machine fewer have a turn at a time
            await asyncio.sleep(0)

    asyncio.run(test())
    assert done[:9] == ["many", "one", "alone"] * 3
    assert done[9:] == ["many"] * 97


def test_connections_of_one_client_take_turns_among_themselves() -> None:
    done: list[int] = []

    async def test() -> None:
        turns = Turns()
        for number in (1, 1, 1, 2, 2):
            turns.add(number, partial(done.append, number), "alice")
        for _ in range(20):
            await asyncio.sleep(0)

    asyncio.run(test())
    assert done == [1, 2, 1, 2, 1]
