"""Large requests are decoded one after the other, of each client in turn, also where some of those who wait are gone."""

import asyncio
import gc
import threading
import time
from unittest.mock import Mock, patch

import pytest

from antiphon.kafka.messages.cluster import MetadataRequest, MetadataRequestTopic
from antiphon.kafka.one_thread import PIECE, REST_MAX_S, OneThread, pause
from antiphon.kafka.schema import decode, encode
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
async def test_who_has_much_waiting_holds_up_no_other_client() -> None:
    aside, order = OneThread(), list[str]()

    async def run(client: str) -> None:
        await aside.run(time.sleep, 0.001, client=client)
        order.append(client)

    await asyncio.gather(*(run("heavy") for _ in range(20)), run("small"), run("other"))
    assert order.index("small") <= 2
    assert order.index("other") <= 3


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
async def test_what_fails_for_somebody_who_is_gone_is_no_error_of_the_loop() -> None:
    aside, told = OneThread(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))

    def fails() -> None:
        time.sleep(0.01)
        raise ValueError("bad")

    asked = asyncio.create_task(aside.run(fails))
    await asyncio.sleep(0.005)
    asked.cancel()
    await aside.run(int)
    del asked
    gc.collect()
    await asyncio.sleep(0)
    assert told == []


@on_a_loop
async def test_a_piece_that_fails_lets_the_next_one_in() -> None:
    aside, work = OneThread(), Work()

    def fails() -> None:
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await aside.run(fails)
    assert await aside.run(work.piece, 3) == 3


@on_a_loop
async def test_long_work_rests_for_as_long_as_it_worked() -> None:
    rests: list[float] = []

    def work() -> None:
        for _ in range(3):
            end_s = time.monotonic() + 0.005
            while time.monotonic() < end_s:
                pass
            pause()

    with patch("antiphon.kafka.one_thread.time", Mock(sleep=rests.append)):  # other threads sleep as they did
        pause()
        work()
        assert not rests, "only beside the loop"
        await OneThread().run(work)
    assert len(rests) == 3
    assert all(0.005 <= rest <= REST_MAX_S for rest in rests)


def test_large_arrays_are_read_and_written_with_rests() -> None:
    rests = 0

    def count() -> None:
        nonlocal rests
        rests += 1

    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=f"t{number}") for number in range(4 * PIECE + 1)]
    )
    with patch("antiphon.kafka.one_thread.pause", count):
        told = encode(asked, 9, flexible=True)
        assert rests == 4
        assert decode(MetadataRequest, memoryview(told), 9, flexible=True) == asked
    assert rests == 4 + 4
