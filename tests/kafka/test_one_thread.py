"""Large requests are decoded one after the other, whoever sent them, also where some of those who wait are gone."""

import asyncio
import threading
import time

import pytest

from antiphon.kafka.one_thread import OneThread
from tests.coroutines import on_a_loop


class Work:
    def __init__(self) -> None:
        self.now = self.most = self.done = 0
        self._lock = threading.Lock()

    def piece(self, number: int) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self._lock:
            self.now -= 1
            self.done += 1
        return number


@on_a_loop
async def test_one_piece_at_a_time_in_order() -> None:
    aside, work = OneThread(), Work()
    assert await asyncio.gather(*(aside.run(work.piece, number) for number in range(8))) == list(range(8))
    assert (work.most, work.done) == (1, 8)


@on_a_loop
async def test_who_is_cancelled_holds_up_nobody_and_lets_nobody_in_early() -> None:
    aside, work = OneThread(), Work()
    tasks = [asyncio.create_task(aside.run(work.piece, number)) for number in range(6)]
    await asyncio.sleep(0.005)
    for number in (0, 2, 3):  # the first one is at work
        tasks[number].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        asyncio.CancelledError, int, asyncio.CancelledError, asyncio.CancelledError, int, int,
    ]  # fmt: skip
    assert (work.most, work.done) == (1, 4)


@on_a_loop
async def test_a_piece_that_fails_lets_the_next_one_in() -> None:
    aside, work = OneThread(), Work()

    def fails() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await aside.run(fails)
    assert await aside.run(work.piece, 3) == 3
