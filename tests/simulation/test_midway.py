"""Processes that end in the middle of what they do: between two steps, or at a call to the disk, also one that looks."""

import asyncio
from collections import Counter
from random import Random

import pytest

from antiphon.log.simulated_disk import SimulatedCrash, SimulatedDisk
from antiphon.simulation.cluster.cluster import SimulatedCluster
from antiphon.simulation.cluster.faults import Fault, Faults
from antiphon.simulation.cluster.mutant_worlds import CALM
from antiphon.simulation.cluster.options import draw_options
from antiphon.simulation.cluster.run import run_cluster
from antiphon.simulation.runtime.loop import VirtualLoop
from antiphon.simulation.runtime.network import Network
from antiphon.simulation.runtime.process import Process
from antiphon.simulation.runtime.transport import Transport
from tests.simulation.told import words

STEPS = 100


def _chain_cut(steps: int | None, kill_s: float | None = None) -> int:
    """How far a chain of steps comes that all happen at once, in a process that ends after so many, or at a time."""
    loop = VirtualLoop(Random(1))
    Network(loop, Random(1))
    process, done = Process(loop, "a", "a", 1), 0

    async def chain() -> None:
        nonlocal done
        await asyncio.sleep(0.5)
        for _ in range(STEPS):
            done += 1
            await asyncio.sleep(0)

    process.run(chain())
    if steps is not None:
        loop.call_later(0.4, process.end_after, steps, process.kill)
    if kill_s is not None:
        loop.call_later(kill_s, process.kill)
    over: list[bool] = []
    loop.call_later(1.0, over.append, True)
    loop.run_until(lambda: bool(over))
    return done


def test_a_timer_never_ends_a_process_between_two_steps_that_follow_at_once() -> None:
    draw = Random(1)
    assert {_chain_cut(None, draw.uniform(0.0, 1.0)) for _ in range(100)} == {0, STEPS}


def test_a_process_can_end_between_any_two_steps() -> None:
    """The first of them sets the future that `sleep` waits for, the second goes on with the chain."""
    assert [_chain_cut(steps) for steps in range(1, STEPS + 2)] == list(range(STEPS + 1))


class Ear(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard = b""
        self.transport: Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data


@pytest.mark.parametrize(
    ("silently", "sent_arrives", "heard"), [(False, False, True), (True, False, False), (True, True, True)]
)
def test_what_was_said_before_the_end_arrives(silently: bool, sent_arrives: bool, heard: bool) -> None:
    loop = VirtualLoop(Random(1))
    network = Network(loop, Random(1))
    a, b = (Process(loop, name, name, 1) for name in "ab")
    ear, later = Ear(), list[str]()

    async def listen() -> None:
        await asyncio.get_running_loop().create_server(lambda: ear, "b", 7)

    async def speak() -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(Ear, "b", 7)
        a.end_after(1, lambda: a.kill(silently=silently, sent_arrives=sent_arrives))
        transport.write(b"done")
        asyncio.get_running_loop().call_soon(later.append, "durable")

    loop.run_until(b.run(listen()).done)
    assert network.transports() == []
    a.run(speak())
    over: list[bool] = []
    loop.call_later(1.0, over.append, True)
    loop.run_until(lambda: bool(over))
    assert (ear.heard == b"done") is heard
    assert later == []


def _disk_with_a_file() -> SimulatedDisk:
    disk = SimulatedDisk(Random(1), lambda: 0.0)
    disk.makedirs("/data")
    disk.open("/data/file", create=True).pwritev([b"content"], 0)
    return disk


def _use(disk: SimulatedDisk, done: list[str]) -> None:
    disk.listdir("/data")
    done.append("listdir")
    file = disk.open("/data/file")
    done.append("open")
    file.pread(7, 0)
    done.append("read")
    file.pwritev([b"other"], 0)
    done.append("write")


def test_a_process_ends_at_a_call_that_only_looks() -> None:
    for after, kind in enumerate(("listdir", "open", "read", "write")):
        disk, ended = _disk_with_a_file(), list[bool]()
        disk.end_at = disk.looks + after
        disk.on_end = lambda ended=ended: ended.append(True)
        done: list[str] = []
        with pytest.raises(SimulatedCrash):
            _use(disk, done)
        assert kind not in done
        assert len(done) == after
        assert ended == [True]


def test_who_dies_at_a_write_is_told_when_a_part_of_it_is_there_and_writes_nothing_after_it() -> None:
    sizes = set()
    for seed in range(20):
        disk = SimulatedDisk(Random(seed), lambda: 0.0)
        disk.makedirs("/data")
        file = disk.open("/data/file", create=True)
        found: list[SimulatedDisk] = []
        disk.end_at = disk.looks
        disk.on_end = lambda disk=disk, found=found: found.append(disk.kill())
        with pytest.raises(SimulatedCrash):
            file.pwritev([b"123456"], 0)
        size = found[0].open("/data/file").size()
        sizes.add(size)
        with pytest.raises(SimulatedCrash):
            file.pwritev([b"in a finally block"], 0)
        assert found[0].open("/data/file").size() == size
    assert len(sizes) > 3


@pytest.mark.parametrize("kind", ["kill_midway", "power_midway"])
def test_such_faults_happen_and_repeat_the_run(kind: str) -> None:
    world = {**CALM, "fault_every_ms": 100, "operations_per_s": 200, f"{kind}_weight": 1}
    first = run_cluster(draw_options(3, "raft", **world))
    assert first.failure is None, words(first)
    assert first.events["midway"] >= 5
    assert first.events["power-off" if kind == "power_midway" else "kill"] >= 5
    assert {fault.kind for fault in first.schedule} == {kind}
    again = run_cluster(draw_options(3, "raft", **world), schedule=first.schedule)
    assert again.digest == first.digest, "a list of the faults repeats the run"


def test_processes_end_at_calls_of_all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: Counter[str] = Counter()
    crash = SimulatedDisk._crash

    def counted(self: SimulatedDisk, kind: str) -> None:
        ends[kind] += not self._ended
        crash(self, kind)

    monkeypatch.setattr(SimulatedDisk, "_crash", counted)
    world = {
        **CALM,
        "fault_every_ms": 40,
        "kill_midway_weight": 1,
        "power_midway_weight": 1,
        "store_flush_every": 5,
    }
    for seed in (1, 2):
        result = run_cluster(draw_options(seed, "oxia", **world))
        assert result.failure is None, words(result)
    assert {"open", "read", "listdir", "write"} <= set(ends), ends


def test_a_machine_that_is_down_can_have_the_next_process_end() -> None:
    cluster = SimulatedCluster(draw_options(1, "oxia", **{**CALM, "kill_midway_weight": 1}))
    try:
        machine = cluster.machines[0]
        faults = Faults(cluster, (Fault(0, "kill_midway", (0, 1, 2), 10, 1),))
        faults.begin()
        over: list[bool] = []
        cluster.loop.call_later(0.1, over.append, True)
        cluster.loop.run_until(lambda: bool(over))
        assert machine.disk.end_at is not None
        machine.start()
        cluster.loop.run_until(lambda: not machine.is_up)
        assert cluster.counts["kill"] == 1
    finally:
        cluster.close()
