"""Benchmarks of the ways to replicate: what each commit rule costs, what `local` may lose, what a large cluster asks of its
coordinator.
"""

import asyncio
import os
import time
from typing import Any, Final

from antiphon.client.tasks import end_tasks
from antiphon.tools.bench.cluster import Rows, calls
from antiphon.tools.local_cluster import LocalCluster

MODES: Final[dict[str, dict[str, str]]] = {
    "quorum": {},
    "quorum, raft": {"election": "raft"},
    "at_least(3)": {"commit": "at_least(3)"},
    "live": {"commit": "live"},
    "local": {"commit": "local"},
}
IN_FLIGHT: Final = (1, 64)
VALUE_BYTES: Final = 100
LOADED_S: Final = 1.0
CUT_S: Final = (0.0, 0.1, 0.5)
FLEET: Final = (1_000, 100_000)


def measure_modes(seconds: float) -> Rows:
    """Appends of 100 B a second to one shard by commit rule, and the first write after SIGKILL of its leader."""
    with LocalCluster.start() as cluster:
        rows = []
        for name, config in MODES.items():
            topic = "bench-" + "".join(c if c.isalnum() else "-" for c in name)
            rows.append({"commit": name, **asyncio.run(_mode(cluster, topic, config, seconds))})
        return rows


async def _mode(cluster: LocalCluster, name: str, config: dict[str, str], seconds: float) -> dict[str, Any]:
    from antiphon import aio

    row: dict[str, Any] = {}
    value = os.urandom(VALUE_BYTES)
    async with aio.connect(cluster.native) as db:
        await db.create_topic(name, shards=1, replicas=3, config=config)
        topic = db.topic(name)
        for in_flight in IN_FLIGHT:
            latencies_ns = await calls(lambda _, __: topic.append(value, shard=0), in_flight, seconds / 2)
            row[f"per_s_{in_flight}"] = round(len(latencies_ns) / (seconds / 2))
            row[f"p50_ms_{in_flight}"] = round(latencies_ns[len(latencies_ns) // 2] / 1e6, 2)
            row[f"p99_ms_{in_flight}"] = round(latencies_ns[len(latencies_ns) * 99 // 100] / 1e6, 2)
        needs_all = config.get("commit") == "at_least(3)"  # nothing is written until the killed node is back
        row["first_write_ms"] = "-" if needs_all else await _fail_over(cluster, db, name)
    return row


async def _leader(db: Any, name: str) -> int:
    while True:
        meta = await db.metadata()
        leader: int = next(topic for topic in meta.topics if topic.name == name).shards[0].leader
        if leader >= 0:
            return leader
        await asyncio.sleep(0.02)


async def _fail_over(cluster: LocalCluster, db: Any, name: str) -> int:
    leader = await _leader(db, name)
    cluster.kill(leader)
    began = time.perf_counter()
    await db.topic(name).append(b"first", shard=0)
    first_ms = round((time.perf_counter() - began) * 1000)
    await asyncio.to_thread(cluster.start_node, leader)
    await asyncio.sleep(LOADED_S)
    return first_ms


def measure_loss(_seconds: float) -> Rows:
    """Acknowledged records that are gone after a fail-over under `commit=local` (S4.28), and under `quorum`.

    The leader of a shard with 64 appends in flight is killed, at once or after its links to the others were cut for a
    while; `window_ms` is the time from the first lost acknowledgement to the kill.
    """
    rows = []
    for rule in ("local", "quorum"):
        for cut_s in CUT_S:
            with LocalCluster.start(hurtable=True) as cluster:
                rows.append(asyncio.run(_lose(cluster, rule, cut_s)))
    return rows


async def _lose(cluster: LocalCluster, rule: str, cut_s: float) -> dict[str, Any]:
    from antiphon import aio

    name, told = "loss", {}
    async with aio.connect(cluster.native) as db, aio.connect(cluster.native) as reader:
        await db.create_topic(name, shards=1, replicas=3, config={"commit": rule})
        topic, leader = db.topic(name), await _leader(db, name)
        running = True

        async def worker(number: int) -> None:
            count = 0
            while running:
                value = b"%d-%d" % (number, count)
                await topic.append(value, shard=0)
                if running:
                    told[value] = time.perf_counter()
                count += 1

        workers = [asyncio.create_task(worker(number)) for number in range(IN_FLIGHT[-1])]
        await asyncio.sleep(LOADED_S)
        if cut_s:
            cluster.hurt(leader, cut=tuple(node for node in cluster.nodes if node != leader))
            await asyncio.sleep(cut_s)
        running = False
        cluster.kill(leader)
        killed = time.perf_counter()
        await end_tasks(*workers)
        await reader.topic(name).append(b"after", shard=0)
        there = {record.value async for record in reader.topic(name).read(0, 0, isolation="committed")}
    lost = [at for value, at in told.items() if value not in there]
    return {
        "commit": rule,
        "links_cut_before_ms": round(cut_s * 1000),
        "acknowledged": len(told),
        "lost": len(lost),
        "window_ms": round((killed - min(lost)) * 1000) if lost else 0,
    }


def measure_fleet(_seconds: float) -> Rows:
    """The coordinator of 1,000 modelled nodes with 100,000 shards: CPU, and how long shards are without a leader."""
    from antiphon.node import memory
    from antiphon.simulation.fleet import Fleet
    from antiphon.simulation.fleet_exercise import exercise

    memory.settle()
    return [phase.row() for phase in exercise(Fleet(*FLEET))]
