"""What the nodes of a cluster use while nobody asks anything, and how long clients' writes take."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from antiphon.tools.local_cluster import LocalCluster
from tests.peers.usage import Usage, resident_bytes

Figures = dict[str, float]
"""Of one size of one axis, by name."""

Tell = Callable[[str], None]

RESTS_S: Final = 10.0
MIB: Final = 1 << 20


def at_rest(cluster: LocalCluster) -> Figures:
    """CPU of all nodes together, in percent of a core, and the memory of the largest node, MiB."""
    pids = [node.pid for node in cluster.nodes.values()]
    before, began = Usage.of(pids, cluster.dir), time.monotonic()
    time.sleep(RESTS_S)
    used = Usage.of(pids, cluster.dir) - before
    return {
        "idle_cpu_percent": round(100 * used.cpu_s / (time.monotonic() - began), 2),
        "memory_mib": memory_mib(cluster),
    }


def memory_mib(cluster: LocalCluster) -> float:
    """Of the largest node."""
    return round(max(resident_bytes(node.pid) for node in cluster.nodes.values()) / MIB, 1)


async def timed(call: Callable[[int], Awaitable[Any]], in_flight: int, seconds: float) -> Figures:
    """Do `call(number)` for so long, so many at a time: the rate a second, and how long one took, in ms."""
    took_s: list[float] = []
    began = time.perf_counter()
    end = began + seconds
    numbers = iter(range(1 << 40))

    async def worker() -> None:
        for number in numbers:
            started = time.perf_counter()
            if started > end:
                return
            await call(number)
            took_s.append(time.perf_counter() - started)

    await asyncio.gather(*(worker() for _ in range(in_flight)))
    rate = len(took_s) / (time.perf_counter() - began)
    took_s.sort()
    return {
        "rate": round(rate),
        "p50_ms": round(took_s[len(took_s) // 2] * 1000, 2),
        "p99_ms": round(took_s[len(took_s) * 99 // 100] * 1000, 2),
    }


def value(size: int) -> bytes:
    """Random bytes, which no file system packs."""
    return os.urandom(size)
