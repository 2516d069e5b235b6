"""Loads of a table beside a foreground client: what the load reaches, what the client notices, and the nodes' CPU time.

Loaders are processes that send prepared requests of 500 rows of 112 B, one of each shard at a time, as Spark's tasks do. The
client puts 100 B every 5 ms and waits for the answer.
"""

import multiprocessing
import time
from random import Random
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.addresses import parse_address
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.model.loads import LoadRows
from antiphon.model.metadata import KeyRanges
from antiphon.records.packed_rows import packed
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.processes import cpu_s

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

    import antiphon
    from antiphon.tools.bench.cluster import Rows

TABLE: Final = "bench-loads"
SHARDS: Final = 4
LOADERS: Final = 2
BATCH_ROWS: Final = 500
KEY_BYTES, VALUE_BYTES = 12, 100
ROWS_A_SECOND: Final = 200_000  # that are prepared: more than are sent
WARM_S: Final = 5.0  # in which nodes load what they judge loads with
PUT_EVERY_S: Final = 0.005
TIMEOUT_MS: Final = 120_000


def measure_loads(seconds: float) -> "Rows":
    """The client alone, beside loads at the rate that the gate sets, and beside loads that do not wait."""
    import antiphon

    rows: Rows = []
    with LocalCluster.start() as cluster, antiphon.connect(cluster.native) as db:
        db.create_table(TABLE, shards=SHARDS, replicas=3)
        _beside(cluster, db, seconds=WARM_S, bulk=False, number=0)
        for number, (name, loaders, bulk) in enumerate(
            (("no load", 0, False), ("bulk", LOADERS, True), ("not bulk", LOADERS, False)), 1
        ):
            rows.append(
                {"load": name} | _beside(cluster, db, seconds, bulk=bulk, number=number, loaders=loaders)
            )
    return rows


def _beside(
    cluster: LocalCluster,
    db: "antiphon.Client",
    seconds: float,
    *,
    bulk: bool,
    number: int,
    loaders: int = LOADERS,
) -> dict[str, Any]:
    ready: Queue[Any] = multiprocessing.Queue()
    go = multiprocessing.Event()
    processes = [
        multiprocessing.Process(
            target=_load, args=(cluster.native, number * LOADERS + one, seconds, bulk, ready, go)
        )
        for one in range(loaders)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.get()
    before = _cpu_s(cluster)
    go.set()
    took_ms = _puts(db, seconds)
    done = [ready.get() for _ in processes]
    for process in processes:
        process.join()
    sent = sum(rows for rows, _ in done)
    took_ms.sort()
    used_s = _cpu_s(cluster) - before
    return {
        "put_p50_ms": round(took_ms[len(took_ms) // 2], 1),
        "put_p99_ms": round(took_ms[len(took_ms) * 99 // 100], 1),
        "rows_per_s": round(sum(rows / took_s for rows, took_s in done)),
        "cpu_us_a_row": round(used_s / sent * 1e6, 1) if sent else 0.0,
    }


def _puts(db: "antiphon.Client", seconds: float) -> list[float]:
    """Milliseconds that each put took."""
    table, random, took_ms = db.table(TABLE), Random(1), list[float]()
    due = time.monotonic()
    end = due + seconds
    while due < end:
        began = time.perf_counter()
        table.put(b"put-%06d" % random.randrange(1_000_000), random.randbytes(VALUE_BYTES))
        took_ms.append((time.perf_counter() - began) * 1000)
        due = max(due + PUT_EVERY_S, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
    return took_ms


def _load(servers: str, number: int, seconds: float, bulk: bool, ready: "Queue[Any]", go: "Event") -> None:
    """Body of a loader; puts how many rows it has sent, and in how many seconds."""
    with Cluster([parse_address(one) for one in servers.split(",")], TIMEOUT_MS) as cluster:
        waiting = _requests(cluster, number, int(seconds * ROWS_A_SECOND / LOADERS), bulk=bulk)
        ready.put(None)
        go.wait()
        began, sent = time.monotonic(), 0
        while time.monotonic() - began < seconds and any(waiting):
            calls = [requests.pop() for requests in waiting if requests]
            cluster.call_all(calls)
            sent += sum(call.body.rows for call in calls)
        ready.put((sent, time.monotonic() - began))


def _requests(cluster: Cluster, number: int, rows: int, *, bulk: bool) -> list[list[ShardCall]]:
    """Of each shard, the first one last. Keys are sorted, as Spark's tasks sort them."""
    random, ranges = Random(number), KeyRanges(cluster.topic(TABLE, table=True).shards)
    by_shard: dict[int, list[tuple[bytes, bytes]]] = {}
    for row in range(rows):
        key = b"%02d%0*d" % (number, KEY_BYTES - 2, row)
        by_shard.setdefault(ranges.shard_of(key).shard_id, []).append((key, random.randbytes(VALUE_BYTES)))
    return [
        [
            ShardCall(
                shard_id, LoadRows(shard_id, len(part), timeout_ms=TIMEOUT_MS, bulk=bulk), [packed(part)]
            )
            for part in (found[at : at + BATCH_ROWS] for at in range(0, len(found), BATCH_ROWS))
        ][::-1]
        for shard_id, found in by_shard.items()
    ]


def _cpu_s(cluster: LocalCluster) -> float:
    """CPU time of the node processes so far."""
    return sum(cpu_s(node.pid) for node in cluster.nodes.values())
