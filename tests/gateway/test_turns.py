"""Long requests: one in each turn of the loop, and a rest after a turn that took long."""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from antiphon.gateway.turns import LONG_S, REST_MAX_S, WORK_MAX, Turns


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


def test_small_pieces_share_a_turn_and_others_have_one_each() -> None:
    """Each turn has as many small pieces as come to its bound, with what was done at once; and one that costs who knows."""
    seen: list[list[str]] = []

    async def test() -> None:
        turns, loop = Turns(), asyncio.get_running_loop()

        def piece(name: str, units: int) -> None:
            seen[-1].append(name)
            if units:
                turns.did(units)

        for number in range(8):
            turns.add(number, partial(piece, f"small {number}", WORK_MAX // 4))
        turns.add("large", partial(piece, "large", 0))
        turns.add("whole", partial(piece, "whole", 2 * WORK_MAX))
        turns.add("last", partial(piece, "last", 1))
        loop.call_soon(lambda: None)
        for _ in range(12):
            seen.append([])
            await asyncio.sleep(0)

    asyncio.run(test())
    assert [turn for turn in seen if turn] == [
        [f"small {number}" for number in range(4)],
        [f"small {number}" for number in range(4, 8)],
        ["large"],
        ["whole"],
        ["last"],
    ]


def test_what_was_done_at_once_counts_in_its_turn_only() -> None:
    busy: list[bool] = []

    async def test() -> None:
        turns = Turns()
        for units in (WORK_MAX - 1, 1):
            turns.did(units)
            busy.append(turns.is_busy)
        await asyncio.sleep(0)
        busy.append(turns.is_busy)

    asyncio.run(test())
    assert busy == [False, True, False]
