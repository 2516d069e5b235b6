"""What grows, from one size to the next, and what is drawn of it."""

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from antiphon.tools.local_cluster import LocalCluster
from tests.scale.connections import measure_connections
from tests.scale.log import Log
from tests.scale.replicas import NODES as REPLICA_NODES
from tests.scale.replicas import measure_replicas
from tests.scale.resting import Figures
from tests.scale.shards import measure_shards
from tests.scale.table import NODES as TABLE_NODES
from tests.scale.table import Keys

Measure = Callable[[tuple[int, ...], float], Iterator[Figures]]
"""Figures of each size, as they come. Each measurement with clients takes so many seconds."""


class Axis(NamedTuple):
    """One thing that grows.

    Attributes:
        title: with its unit.
        sizes: of a whole run.
        short: of a test.
        drawn: names of figures with their titles, two or three, one below the other.
        measure: see Measure.
    """

    title: str
    sizes: tuple[int, ...]
    short: tuple[int, ...]
    drawn: dict[str, str]
    measure: Measure


def _shards(sizes: tuple[int, ...], seconds: float) -> Iterator[Figures]:
    yield from (measure_shards(size, seconds) for size in sizes)


def _connections(sizes: tuple[int, ...], seconds: float) -> Iterator[Figures]:
    yield from (measure_connections(size, seconds) for size in sizes)


def _log(sizes: tuple[int, ...], _seconds: float) -> Iterator[Figures]:
    with LocalCluster.start() as cluster:
        log = Log(cluster)
        yield from (log.measure(size) for size in sizes)


def _table(sizes: tuple[int, ...], seconds: float) -> Iterator[Figures]:
    with LocalCluster.start(TABLE_NODES) as cluster:
        keys = Keys(cluster)
        yield from (keys.measure(size, seconds) for size in sizes)


def _replicas(sizes: tuple[int, ...], seconds: float) -> Iterator[Figures]:
    with LocalCluster.start(REPLICA_NODES) as cluster:
        yield from (measure_replicas(cluster, size, seconds) for size in sizes)


AXES: Final[dict[str, Axis]] = {
    "shards": Axis(
        "shards",
        (1, 10, 100, 300, 1_000, 3_000),
        (1, 5),
        {"idle_cpu_percent": "CPU at rest, % of a core", "memory_mib": "memory, MiB", "rate": "appends/s"},
        _shards,
    ),
    "connections": Axis(
        "connections",
        (10, 100, 1_000, 5_000),
        (2, 10),
        {
            "idle_cpu_percent": "CPU at rest, % of a core",
            "memory_mib": "memory, MiB",
            "p50_ms": "put p50, ms",
        },
        _connections,
    ),
    "log": Axis(
        "log, MiB",
        (1, 100, 1_024, 10_240),
        (1,),
        {"restart_s": "restart, s", "first_record_ms": "first record, ms", "catch_up_s": "catch-up, s"},
        _log,
    ),
    "table": Axis(
        "table, keys",
        (10_000, 100_000, 1_000_000, 10_000_000),
        (1_000,),
        {"memory_mib": "memory, MiB", "puts_per_s": "puts/s", "copy_s": "a replica moves, s"},
        _table,
    ),
    "replicas": Axis(
        "replicas",
        (1, 2, 3, 4, 5),
        (1, 3),
        {"records_per_s": "records/s", "lone_p50_ms": "lone append, p50, ms"},
        _replicas,
    ),
}
