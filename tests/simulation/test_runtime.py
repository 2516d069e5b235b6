"""The world in which whole nodes run: time, processes, connections."""

import asyncio
import gc
import os
import subprocess
import sys
import time
import types
import uuid
from collections.abc import AsyncGenerator, Awaitable, Generator
from random import Random
from typing import Any

import pytest

from antiphon import system
from antiphon.simulation.runtime.loop import StalledError, VirtualLoop, collect_what_ended
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process
from antiphon.simulation.runtime.transport import SILENCE_S, Transport


class World:
    """A loop, a network, and processes a and b."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = VirtualLoop(Random(seed))
        self.network = Network(self.loop, Random(seed))
        self.a, self.b = (Process(self.loop, name, name, seed) for name in "ab")

    def run(self, process: Process, work: Awaitable[Any]) -> Any:
        """Run a coroutine in a process to its end."""
        task = process.run(work)  # type: ignore[arg-type]
        self.loop.run_until(task.done)
        return task.result()

    def wait(self, seconds: float) -> None:
        """Let time go by."""
        over: list[bool] = []
        self.loop.call_later(seconds, over.append, True)
        self.loop.run_until(lambda: bool(over))


class Ears(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.pieces = 0
        self.gone: list[Exception | None] = []
        self.paused = 0
        self.resumed = 0
        self.transport: Transport

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.pieces += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1


def connected(world: World) -> tuple[Ears, Ears]:
    """A connection from a to b: both ends."""
    accepted: list[Ears] = []

    def accept() -> Ears:
        accepted.append(Ears())
        return accepted[-1]

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(accept, "b", 7)

    async def connect() -> Ears:
        _, ears = await asyncio.get_running_loop().create_connection(Ears, "b", 7)
        return ears

    world.run(world.b, listen())
    mine = world.run(world.a, connect())
    world.wait(0.1)
    return mine, accepted[0]


def test_time_jumps_and_nobody_waits_for_it() -> None:
    world = World()
    began = time.monotonic()
    world.run(world.a, asyncio.sleep(3600))
    assert world.loop.now == pytest.approx(4600)
    assert time.monotonic() - began < 5


def test_a_process_has_its_own_clock() -> None:
    loop = VirtualLoop(Random(1))
    Network(loop, Random(1))
    fast = Process(loop, "fast", "fast", 1, rate=2.0, wall_skew_s=100.0)

    async def look() -> tuple[float, float]:
        began_s, began_wall_s = asyncio.get_running_loop().time(), system.wall_s()
        await asyncio.sleep(10)
        return asyncio.get_running_loop().time() - began_s, system.wall_s() - began_wall_s

    task = fast.run(look())
    began = loop.now
    loop.run_until(task.done)
    assert loop.now - began == pytest.approx(5)
    assert task.result() == (pytest.approx(10), pytest.approx(10, abs=1e-3))


def test_chance_and_ids_come_from_the_seed_of_the_process() -> None:
    async def draw() -> tuple[float, uuid.UUID]:
        return system.rng().random(), system.new_uuid()

    first, second, other = World(1), World(1), World(2)
    assert first.run(first.a, draw()) == second.run(second.a, draw())
    assert first.run(first.a, draw()) != other.run(other.a, draw())


def test_a_killed_process_never_runs_again_and_its_finally_blocks_do_not_either() -> None:
    world, done = World(), []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
            done.append("went on")
        finally:
            done.append("cleaned up")

    world.a.run(work())
    world.wait(0.5)
    world.a.kill()
    world.wait(5)
    assert done == []


def test_a_paused_process_goes_on_where_it_was() -> None:
    world, done = World(), []

    async def work() -> None:
        await asyncio.sleep(1)
        done.append(world.loop.now)

    world.a.run(work())
    world.wait(0.5)
    world.a.pause()
    world.wait(10)
    assert not done
    world.a.resume()
    world.wait(0.1)
    assert done[0] >= 1010


def test_work_for_threads_is_done_later_and_its_outcome_comes_back() -> None:
    world = World()

    async def ask() -> tuple[int, float]:
        began = asyncio.get_running_loop().time()
        found = await asyncio.to_thread(lambda: 42)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return found, asyncio.get_running_loop().time() - began

    found, took_s = world.run(world.a, ask())
    assert found == 42
    assert took_s > 0


def test_nothing_left_to_happen_is_an_error() -> None:
    world = World()
    with pytest.raises(StalledError):
        world.run(world.a, asyncio.Event().wait())


def test_a_timer_never_fires_before_its_time_on_the_clock_of_its_process() -> None:
    loop = VirtualLoop(Random(1))
    Network(loop, Random(1))
    odd = Process(loop, "odd", "odd", 1, rate=1.0 + 1 / 3e5)
    early: list[float] = []

    async def work() -> None:
        for number in range(2_000):
            when = asyncio.get_running_loop().time() + 0.001 + number * 1e-7
            fired = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_at(when, fired.set_result, None)
            await fired
            if asyncio.get_running_loop().time() < when:
                early.append(when)

    loop.run_until(odd.run(work()).done)
    assert not early


def test_time_that_stands_still_is_an_error() -> None:
    world = World()

    async def work() -> None:
        while True:  # noqa: ASYNC110 - the circle is what is tested
            await asyncio.sleep(0)

    with pytest.raises(StalledError):
        world.run(world.a, work())


def test_bytes_arrive_in_order_whatever_their_pieces() -> None:
    world = World()
    world.network.link("a", "b").pieces = True
    mine, theirs = connected(world)
    sent = b""
    for number in range(200):
        data = f"{number},".encode() * (number % 7 + 1)
        sent += data
        world.a.call(mine.transport.write, data)
    world.wait(5)
    assert theirs.heard == sent
    assert theirs.pieces > 300


def test_who_does_not_read_holds_the_sender_up() -> None:
    world = World()
    mine, theirs = connected(world)
    world.b.call(theirs.transport.pause_reading)
    sent = os.urandom(1000) * 2000
    world.a.call(mine.transport.write, sent)
    world.wait(5)
    assert mine.paused == 1
    assert mine.transport.get_write_buffer_size() > 1_000_000
    assert theirs.heard == b""
    world.b.call(theirs.transport.resume_reading)
    world.wait(5)
    assert theirs.heard == sent
    assert mine.resumed == 1


def test_a_cut_holds_everything_back_and_nobody_is_told() -> None:
    world = World()
    mine, theirs = connected(world)
    world.network.cut("a", "b")
    world.a.call(mine.transport.write, b"one")
    world.b.call(theirs.transport.write, b"the other way")
    world.wait(5)
    assert (theirs.heard, mine.heard, mine.gone) == (b"", b"the other way", [])
    world.network.heal("a", "b")
    world.a.call(mine.transport.write, b"two")
    world.wait(5)
    assert theirs.heard == b"onetwo"


def test_silence_ends_a_connection_in_the_end() -> None:
    world = World()
    mine, _ = connected(world)
    world.network.cut("a", "b")
    world.a.call(mine.transport.write, b"one")
    world.wait(SILENCE_S + 1)
    assert isinstance(mine.gone[0], TimeoutError)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_a_killed_process_did_not_ask_a_task_for_is_no_failure(steps: int) -> None:
    """oxia 9000272: it ended in the step after a task had failed, before whoever began the task had heard of it."""
    world = World()
    heard: list[Any] = []

    async def fails() -> None:
        world.a.end_after(steps, world.a.kill)
        raise ValueError("refused")

    async def begins() -> None:
        asyncio.ensure_future(fails()).add_done_callback(lambda task: heard.append(task.exception()))

    world.a.run(begins())
    world.wait(1.0)
    gc.collect()
    assert not world.a.alive
    assert not heard
    assert not world.loop.failures


def test_the_kernel_of_a_killed_process_ends_its_connections() -> None:
    world = World()
    mine, theirs = connected(world)
    world.b.call(theirs.transport.write, b"last words")
    world.b.kill()
    world.wait(1)
    assert mine.heard == b"last words"
    assert mine.gone == [None]
    assert theirs.gone == []


def test_a_machine_without_power_says_nothing() -> None:
    world = World()
    mine, _ = connected(world)
    world.network.medium.down.add("b")
    world.b.kill(silently=True)
    world.wait(5)
    assert mine.gone == []
    world.network.medium.down.discard("b")
    world.a.call(
        mine.transport.write, b"hello?"
    )  # the machine is up again and knows nothing of the connection
    world.wait(1)
    assert isinstance(mine.gone[0], ConnectionResetError)


def test_a_reset_loses_what_was_under_way() -> None:
    world = World()
    mine, theirs = connected(world)
    world.a.call(mine.transport.write, b"lost")
    mine.transport.reset()
    world.wait(1)
    assert theirs.heard == b""
    assert [type(end.gone[0]) for end in (mine, theirs)] == [ConnectionResetError] * 2


@pytest.mark.parametrize("before", [True, False])
def test_who_reads_nothing_learns_that_the_other_has_closed_when_it_sends(before: bool) -> None:
    world = World()
    a, b = connected(world)
    b.transport.pause_reading()
    if before:
        a.transport.pause_reading()
        b.transport.write(bytes(1 << 20))  # more than a takes without reading
        world.wait(0.1)
    a.transport.close()
    world.wait(0.1)
    assert len(b.gone) == before
    b.transport.write(b"still there?")
    world.wait(0.1)
    assert [type(error) for error in b.gone] == [ConnectionResetError]


def test_nobody_listens() -> None:
    world = World()

    async def connect() -> None:
        await asyncio.get_running_loop().create_connection(Ears, "b", 8)

    with pytest.raises(ConnectionRefusedError):
        world.run(world.a, connect())


def test_same_seed_same_world() -> None:
    def play(seed: int) -> list[tuple[float, int]]:
        world, seen = World(seed), []
        world.network.link("a", "b").pieces = True
        mine, theirs = connected(world)
        for _ in range(50):
            world.a.call(mine.transport.write, b"x" * 100)
            world.wait(0.01)
            seen.append((world.loop.now, len(theirs.heard)))
        return seen

    assert play(3) == play(3)
    assert play(3) != play(4)


async def _numbers(closed: list[float]) -> AsyncGenerator[int, None]:
    try:
        while True:
            yield 1
    finally:
        await asyncio.sleep(0.01)
        closed.append(asyncio.get_running_loop().time())


def test_a_generator_that_nobody_iterates_is_closed_as_asyncio_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    world, closed = World(), list[float]()

    async def take(then_s: float) -> None:
        async for _ in _numbers(closed):
            break
        await asyncio.sleep(then_s)

    world.run(world.a, take(1.0))
    assert len(closed) == 1
    world.b.run(take(1.0))
    world.wait(0.001)
    world.loop.close()
    assert len(closed) == 1  # the run is over before its `finally` is
    assert capsys.readouterr().err == ""


def test_what_is_suspended_when_a_run_ends_is_unwound() -> None:
    world, unwound = World(), list[str]()

    async def wait() -> None:
        try:
            await asyncio.sleep(10.0)
        finally:
            unwound.append("begun")
            await asyncio.sleep(10.0)

    world.a.run(wait())
    world.b.run(wait())
    world.wait(1.0)
    world.b.kill()
    assert not unwound
    world.loop.close()
    assert unwound == ["begun", "begun"]


_LEFT = """
import gc
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.runtime.loop import VirtualLoop
for lease_ms in (0, 100):
    run_cluster(draw_options(1, "oxia", operations_per_s=20, fault_ms=200, read_lease_ms=lease_ms))
    print(sum(isinstance(one, VirtualLoop) for one in gc.get_objects()))
"""


def test_nothing_of_a_run_is_left_when_it_is_over() -> None:
    """In a process of its own: here other tests may hold what they have run."""
    done = subprocess.run([sys.executable, "-c", _LEFT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"], (
        "a campaign of thousands of runs would need more memory with each"
    )


def test_what_is_collected_after_a_run_may_ask_for_the_running_loop() -> None:
    """As a coroutine does that gives memory back when it ends, and would wake who waits for it."""
    ended: list[bool] = []

    async def holds() -> None:
        try:
            await pause()
        finally:
            asyncio.get_running_loop().call_later(1, ended.clear)
            ended.append(True)

    waits = holds()
    waits.send(None)
    around: list[Any] = [waits]
    around.append(around)  # only a collection finds it
    del waits, around
    collect_what_ended()
    assert ended == [True]


@types.coroutine
def pause() -> Generator[None, None, None]:
    """Waits for somebody to go on."""
    yield
