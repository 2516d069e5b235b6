"""What the nodes of a cluster use while nobody asks anything, and how long clients' writes take."""

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from antiphon.tools.bench.cluster import calls
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.processes import memory_bytes
from tests.peers.usage import Usage

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
    return round(max(memory_bytes(node.pid) for node in cluster.nodes.values()) / MIB, 1)


async def timed(call: Callable[[int], Awaitable[Any]], in_flight: int, seconds: float) -> Figures:
    """Do `call(number)` for so long, so many at a time: the rate a second, and how long one took, in ms."""
    began = time.perf_counter()
    took_ns = await calls(lambda worker, count: call(worker + count * in_flight), in_flight, seconds)
    rate = len(took_ns) / (time.perf_counter() - began)
    return {
        "rate": round(rate),
        "p50_ms": round(took_ns[len(took_ns) // 2] / 1e6, 2),
        "p99_ms": round(took_ns[len(took_ns) * 99 // 100] / 1e6, 2),
    }


def value(size: int) -> bytes:
    """Random bytes, which no file system packs."""
    return os.urandom(size)
