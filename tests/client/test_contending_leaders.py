"""S2 on three real nodes: contending leaders of one log, one of them paused; and the log's own leader moved and killed."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import antiphon
from antiphon.client.aio import AsyncClient, connect
from antiphon.client.log_backed_store import AsyncLogBackedStore
from tests.client.contending_leader import AMOUNTS, wave
from tests.client.ledger import Ledger, OverdrawnError, apply, move, name_of, replay, validate
from tests.coroutines import on_a_loop
from tests.node.processes import Processes

pytestmark = pytest.mark.cluster

SCRIPT = Path(__file__).parent / "contending_leader.py"
ROOT = Path(__file__).parent.parent.parent
WAVES = 60
WAVES_THERE = 150


class Leader:
    """The other leader: its process, and what it said."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.outcomes: dict[str, str] = {}
        self.state = Ledger()

    async def hear(self, lines: int) -> None:
        """Take in so many more lines, or less if its work is done."""
        assert self._process.stdout is not None
        for _ in range(lines):
            name, *rest = (await self._process.stdout.readline()).decode().split()
            if name == "state":
                self.state = Ledger(*map(int, rest))
                return
            self.outcomes[name] = rest[0]

    async def finish(self) -> None:
        """After its work: let it catch up once more and end."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        await self.hear(1)
        assert await self._process.wait() == 0

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


@asynccontextmanager
async def another_leader(processes: Processes, topic: str, who: str) -> AsyncIterator[Leader]:
    arguments = (sys.executable, str(SCRIPT), processes.servers, topic, who, str(WAVES_THERE))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*arguments, stdin=PIPE, stdout=PIPE, env=environment)
    try:
        yield Leader(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def log_of(db: AsyncClient) -> list[str]:
    return [name_of(record.value) async for record in db.topic("ledger").read()]


async def check_history(db: AsyncClient, topic: str, outcomes: dict[str, str]) -> Ledger:
    """Every operation was legal where it stands, stands there once, and is exactly what was acknowledged there."""
    records = [record async for record in db.topic(topic).read()]
    found = {name_of(record.value): record.offset for record in records}
    assert len(found) == len(records), "an operation is in the log twice"
    acknowledged = {name: int(outcome) for name, outcome in outcomes.items() if outcome.isdigit()}
    assert found == acknowledged
    refused = {outcome for outcome in outcomes.values() if not outcome.isdigit()}
    assert refused <= {"OffsetMismatchError", "OverdrawnError"}
    return replay(record.value for record in records)


@on_a_loop
async def test_s2_16_two_leaders_one_of_them_paused_and_the_log_moved(processes: Processes) -> None:
    """S2.2, S2.5, S2.11, S2.15-S2.17."""
    async with connect(processes.servers, timeout_s=30) as db:
        await db.create_topic("ledger", replicas=3)
        store = AsyncLogBackedStore(db, "ledger", initial=Ledger(), apply=apply, validate=validate)
        outcomes: dict[str, str] = {}

        async def write(numbers: range) -> None:
            for number in numbers:
                outcomes.update(await wave(store, "here", number))

        async with store, another_leader(processes, "ledger", "there") as other:
            await asyncio.gather(other.hear(5 * len(AMOUNTS)), write(range(10)))
            other.signal(signal.SIGSTOP)
            try:
                await write(range(10, 30))
                await db.elect_leader("ledger", 0)
                await write(range(30, 35))
            finally:
                other.signal(signal.SIGCONT)
            await asyncio.gather(other.hear(1 << 20), write(range(35, WAVES)))
            await other.finish()
            assert (len(outcomes), len(other.outcomes)) == (
                WAVES * len(AMOUNTS),
                WAVES_THERE * len(AMOUNTS),
            )
            expected = await check_history(db, "ledger", {**outcomes, **other.outcomes})
            assert await store.catch_up() == store.state == other.state == expected
            waves = [(who, int(wave)) for who, wave, _ in (name.split("-") for name in await log_of(db))]
            paused = waves.index(("here", 12)), len(waves) - waves[::-1].index(("here", 28))
            assert ("there", 0) in waves[: paused[0]]
            assert "there" in [who for who, _ in waves[paused[1] :]], "it went on"
            assert {who for who, _ in waves[slice(*paused)]} == {"here"}, "a paused leader wrote"


@on_a_loop
async def test_s2_17_what_is_acknowledged_outlives_the_logs_leader(processes: Processes) -> None:
    """kill -9 of the node that leads the log: callers wait, nobody is told a lie, no operation is there twice."""
    async with connect(processes.servers, timeout_s=30) as db:
        topic = await db.create_topic("failover", replicas=3)
        stores = [
            AsyncLogBackedStore(db, "failover", initial=Ledger(), apply=apply, validate=validate)
            for _ in range(2)
        ]
        outcomes: dict[str, str] = {}
        for store in stores:
            await store.start()

        async def write(who: int, numbers: range) -> None:
            for number in numbers:
                outcomes.update(await wave(stores[who], f"{who}", number))

        await asyncio.gather(write(0, range(10)), write(1, range(10)))
        meta = next(one for one in (await db.metadata()).topics if one.name == topic.name)
        writing = [asyncio.create_task(write(who, range(10, 30))) for who in range(2)]
        victim = meta.shards[0].leader
        processes.kill(victim)
        try:
            await asyncio.gather(*writing)
        finally:
            processes.start(victim)
        expected = await check_history(db, "failover", outcomes)
        for store in stores:
            assert await store.catch_up() == expected
            await store.close()


def test_the_blocking_face(processes: Processes) -> None:
    with antiphon.connect(processes.servers) as db:
        db.create_topic("blocking")
        with (
            antiphon.LogBackedStore(db, "blocking", initial=Ledger(), apply=apply, validate=validate) as one,
            antiphon.LogBackedStore(db, "blocking", initial=Ledger(), apply=apply, validate=validate) as two,
        ):
            assert one.submit(move("a", 5)) == (0, Ledger(5, 1, one.state.digest))
            with pytest.raises(antiphon.OffsetMismatchError):
                two.submit(move("b", 1))
            assert [applied.offset for applied in two.submit_many([move("c", -1), move("d", -1)])] == [1, 2]
            with pytest.raises(OverdrawnError):
                one.submit(move("e", -4), reevaluate=True)
            assert one.catch_up() == two.catch_up() == one.state == two.state
            assert one.upcoming_offset == two.upcoming_offset == 3
