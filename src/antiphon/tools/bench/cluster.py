"""Benchmarks of a cluster's main ways: producing, puts, fail-over, start-up and idle cost.

Each starts its own three-node cluster in a temporary directory: replicas 3, `flush = always`, clients on the same machine
as the nodes.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, NamedTuple

from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.processes import cpu_s, memory_bytes

Rows = list[dict[str, Any]]

VALUE_BYTES = (100, 1024)
BATCH_BYTES = (16_384, 131_072, 1_000_000)
IN_FLIGHT = (1, 64, 1000)
PUT_VALUE_BYTES = 64
IDLE_SHARDS = 300


def measure_kafka(seconds: float) -> Rows:
    """Records and MB acknowledged per second through confluent-kafka, by value size and batch size."""
    import antiphon

    rows: Rows = []
    with LocalCluster.start() as cluster:
        with antiphon.connect(cluster.native) as db:
            for shards in (1, 3):
                db.create_topic(f"bench-{shards}", shards=shards, replicas=3)
        for value_bytes in VALUE_BYTES:
            for batch_bytes in BATCH_BYTES:
                rows.append(_produce(cluster.kafka, "bench-3", value_bytes, batch_bytes, seconds))
        rows.append(
            _produce(cluster.kafka, "bench-1", VALUE_BYTES[0], BATCH_BYTES[-1], seconds) | {"shards": 1}
        )
    return rows


def _produce(servers: str, topic: str, value_bytes: int, batch_bytes: int, seconds: float) -> dict[str, Any]:
    done = produce(servers, topic, value_bytes, batch_bytes, seconds)
    return {
        "value_bytes": value_bytes,
        "batch_bytes": batch_bytes,
        "shards": 3,
        "records_per_s": round(done.acknowledged / done.took_s),
        "mb_per_s": round(done.acknowledged * value_bytes / done.took_s / 1e6, 1),
        "failed": done.failed,
    }


class Produced(NamedTuple):
    """Records, and how long they took."""

    acknowledged: int
    failed: int
    took_s: float


def produce(servers: str, topic: str, value_bytes: int, batch_bytes: int, seconds: float) -> Produced:
    """Produce values of random bytes through confluent-kafka, as fast as it goes."""
    from confluent_kafka import KafkaError, Message, Producer

    acknowledged, failed = 0, 0

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal acknowledged, failed
        if error is None:
            acknowledged += 1
        else:
            failed += 1

    producer = Producer(
        {
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": batch_bytes,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 400_000,
            "queue.buffering.max.kbytes": 262_144,
            "on_delivery": delivered,
        }
    )
    value = os.urandom(value_bytes)
    produce, poll = producer.produce, producer.poll
    producer.produce(topic, value)
    producer.flush(30)
    acknowledged = 0
    started = time.perf_counter()
    end = started + seconds
    while time.perf_counter() < end:
        try:
            for _ in range(1000):
                produce(topic, value)
        except BufferError:
            time.sleep(0.003)  # spinning here would take the brokers' share of the cores
        poll(0)
    producer.flush(60)
    return Produced(acknowledged, failed, time.perf_counter() - started)


def measure_table(seconds: float) -> Rows:
    """Puts per second and their latency through the Python client, by the number in flight."""
    with LocalCluster.start() as cluster:
        return [asyncio.run(_puts(cluster.native, in_flight, seconds)) for in_flight in IN_FLIGHT]


async def _puts(servers: str, in_flight: int, seconds: float) -> dict[str, Any]:
    import antiphon.aio

    value = os.urandom(PUT_VALUE_BYTES)
    async with antiphon.aio.connect(servers) as db:
        table = db.table("default")
        await table.put(b"warm", value)

        def put(number: int, count: int) -> Awaitable[object]:
            return table.put(b"key-%d-%d" % (number, count % 1000), value)

        started = time.perf_counter()
        latencies_ns = await calls(put, in_flight, seconds)
        took = time.perf_counter() - started
    return {
        "in_flight": in_flight,
        "puts_per_s": round(len(latencies_ns) / took),
        "p50_ms": _percentile(latencies_ns, 0.50),
        "p99_ms": _percentile(latencies_ns, 0.99),
        "max_ms": round(latencies_ns[-1] / 1e6, 2),
    }


async def calls(call: Callable[[int, int], Awaitable[object]], in_flight: int, seconds: float) -> list[int]:
    """Call it for so long, so many times at once; returns how many ns each took, the shortest first.

    `call` gets the number of the worker that calls it, and how often that one has done so.
    """
    latencies_ns: list[int] = []
    end = time.perf_counter() + seconds

    async def worker(number: int) -> None:
        counts = count()
        while time.perf_counter() < end:
            began = time.perf_counter_ns()
            await call(number, next(counts))
            latencies_ns.append(time.perf_counter_ns() - began)

    await asyncio.gather(*(worker(number) for number in range(in_flight)))
    return sorted(latencies_ns)


def _percentile(ordered_ns: list[int], share: float) -> float:
    return round(ordered_ns[min(len(ordered_ns) - 1, int(len(ordered_ns) * share))] / 1e6, 2)


def measure_failover(_seconds: float) -> Rows:
    """Longest gap between acknowledged puts when the shard's leader is killed with SIGKILL, five times."""
    import antiphon

    rows: Rows = []
    with LocalCluster.start() as cluster, antiphon.connect(cluster.native) as db:
        db.create_table("failover", shards=1, replicas=3)
        table = db.table("failover")
        for attempt in range(5):
            meta = db.metadata()
            shard = next(topic for topic in meta.topics if topic.name == "failover").shards[0]
            rows.append(
                _kill_leader(
                    cluster, table.put, shard.leader, attempt, coordinator=shard.leader == meta.controller
                )
            )
            cluster.start_node(shard.leader)
            _settle(table.put, 2.0)
    return rows


def _kill_leader(
    cluster: LocalCluster,
    put: Callable[[bytes, bytes], object],
    leader: int,
    attempt: int,
    *,
    coordinator: bool,
) -> dict[str, Any]:
    _settle(put, 0.5)
    cluster.kill(leader)
    killed = time.perf_counter()
    put(b"first", b"%d" % attempt)
    first_ms = (time.perf_counter() - killed) * 1000
    return {
        "attempt": attempt,
        "killed_node": leader,
        "was_coordinator": coordinator,
        "first_write_ms": round(first_ms),
    }


def _settle(put: Callable[[bytes, bytes], object], seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        put(b"settle", b"")


def measure_ready(_seconds: float) -> Rows:
    """Seconds from the start of `antiphon up` to its line on stdout, and again on the same directory."""
    rows: Rows = []
    for attempt in range(3):
        started = time.perf_counter()
        cluster = LocalCluster.start()
        rows.append({"attempt": attempt, "fresh_s": round(time.perf_counter() - started, 2)})
        cluster.stop()
    return rows


def measure_idle(seconds: float) -> Rows:
    """CPU and memory of nodes that hold 300 idle shards."""
    import antiphon

    with LocalCluster.start() as cluster:
        with antiphon.connect(cluster.native) as db:
            db.create_topic("idle", shards=IDLE_SHARDS, replicas=3)
        time.sleep(3.0)
        before = {node.id: cpu_s(node.pid) for node in cluster.nodes.values()}
        time.sleep(seconds)
        return [
            {
                "node": node.id,
                "cpu_percent": round((cpu_s(node.pid) - before[node.id]) / seconds * 100, 2),
                "memory_mb": memory_bytes(node.pid) // 2**20,
                "shards": IDLE_SHARDS,
            }
            for node in cluster.nodes.values()
        ]
