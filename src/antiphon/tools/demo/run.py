"""One run of the demo, from an empty directory to the figures."""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from antiphon.tools.demo import plot, replicas
from antiphon.tools.demo.data import Flight, load_flights
from antiphon.tools.demo.lake import Epoch, Lake, delays_ms, write_pools
from antiphon.tools.demo.load import EventLoad, StateLoad
from antiphon.tools.demo.report import Figures, Marks, longest_gap_ms
from antiphon.tools.local_cluster import LocalCluster
from antiphon.tools.local_nodes import ended_by_sigterm

NODES: Final = 3
TOPIC_SHARDS: Final = 4
NAMES: Final = ("flights", "aircraft", "delays")
DRAIN_TIMEOUT_S: Final = 300.0
START_TIMEOUT_S: Final = 90.0
RESTART_AT: Final = 0.8  # of the events, but no sooner than this after the kill:
RESTART_AFTER_S: Final = 2.0
LOOK_S: Final = 0.05
LINE_S: Final = 3.0
WARM_MAX: Final = 20_000  # events that warm the queries up, before any clock runs; of few events fewer:
WARM_SHARE: Final = 0.1

SPARK_SETTINGS: Final = {
    "spark.log.level": "OFF",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.numRecentProgressUpdates": "5000",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.scheduler.mode": "FAIR",
    # A run of a minute: code that starts fast beats code that is optimised for hours.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Spark's own choice starts `chmod` and `readlink` as processes for each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


class Run:
    """Settings and state of a run."""

    def __init__(self, *, events: int | None, rate: int | None, keep: bool, plot: Path) -> None:
        self._events = events
        self._rate = rate
        self._keep = keep
        self._plot = plot
        self._base = Path(tempfile.mkdtemp(prefix="antiphon-demo-"))
        self._marks = Marks()
        self._began = time.monotonic()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="demo")
        self._restarting: Future[None] | None = None
        self._show: Callable[..., None] = lambda *_, **__: None

    def go(self) -> Figures:
        """Run; everything that was started is stopped again, whatever happens (but for `keep`)."""
        try:
            with ended_by_sigterm(), _progress() as self._show:
                return self._run()
        finally:
            if not self._keep:
                shutil.rmtree(self._base, ignore_errors=True)

    def _run(self) -> Figures:
        self._show("starting three nodes and Spark")
        with self._pool, contextlib.ExitStack() as stack:
            loading = self._pool.submit(load_flights, self._events)
            cluster = LocalCluster.start(NODES, self._base / "cluster")
            stack.callback(cluster.stop)
            spark = self._spark()
            stack.callback(spark.stop)
            flights = loading.result()
            figures = self._measure(cluster, spark, flights)
            if self._keep:
                stack.pop_all()
                spark.stop()
                cluster.detach()
        return figures

    def _spark(self) -> Any:
        from antiphon.spark import session

        temporary = {
            "spark.local.dir": str(self._base / "spark"),
            "spark.scheduler.allocation.file": write_pools(self._base / "pools.xml"),
            "spark.sql.warehouse.dir": str(self._base / "warehouse"),
        }
        # Java and Spark's Python workers speak on the stderr that they are born with; let it be a file.
        with (self._base / "spark.log").open("w") as log, _stderr_to(log.fileno()):
            return session("antiphon-demo", config={**SPARK_SETTINGS, **temporary})

    def _measure(self, cluster: LocalCluster, spark: Any, flights: list[Flight]) -> Figures:
        import antiphon

        with antiphon.connect(cluster.native) as db:
            db.create_topic("flights", shards=TOPIC_SHARDS, replicas=NODES)
            for table in ("aircraft", "delays"):
                db.create_table(table, shards=TOPIC_SHARDS, replicas=NODES)
            lake = Lake(spark, cluster.native, self._base / "lake")
            lake.start()
            lake.wait_started(START_TIMEOUT_S)
            warm = min(WARM_MAX, int(len(flights) * WARM_SHARE))
            self._warm(cluster, lake, flights[:warm])
            loads = self._load(cluster, db, lake, flights[warm:], warm)
            self._show("waiting for the last rows to reach the lake", lake=lake.rows("flights"))
            count = len(flights)
            lake.wait_rows({"flights": count, "aircraft": count, "delays": count}, DRAIN_TIMEOUT_S)
            lake.stop()
            self._show("proving: reading everything back", lake=count)
            proofs = lake.prove(count)
            arrivals = lake.arrivals()
            shards = self._settle(db)
        if not self._keep:
            cluster.stop()
        proofs.append(replicas.identical([node.dir for node in cluster.nodes.values()], shards))
        figures = self._figures(loads, lake, arrivals, count)
        figures.proofs = proofs
        plot.draw(self._plot, figures, self._marks, loads[0].times_ns, loads[1].times_ns, self._epochs(lake))
        return figures

    # -- load and kill ------------------------------------------------------------------------------------------

    def _warm(self, cluster: LocalCluster, lake: Lake, flights: list[Flight]) -> None:
        """The first events, which no figure counts: a query's first micro-batch takes seconds, whatever is in it."""
        self._show("starting Python workers, and warming up: the first events through each query")
        loads = (
            EventLoad(cluster.kafka, "flights", flights, None),
            StateLoad(cluster.native, "aircraft", flights, None),
        )
        for load in loads:
            load.start()
        try:
            for load in loads:
                load.join()
                load.check()
            lake.wait_warm(len(flights))
        finally:
            for load in loads:
                load.stopping.set()

    def _load(
        self, cluster: LocalCluster, db: Any, lake: Lake, flights: list[Flight], warm: int
    ) -> tuple[EventLoad, StateLoad]:
        """Append and put all the others, `warm` of which went before; kill half way, start again later."""
        events = EventLoad(cluster.kafka, "flights", flights, self._rate)
        states = StateLoad(cluster.native, "aircraft", flights, self._rate)
        self._marks.started_ns = time.time_ns()
        events.start()
        states.start()
        try:
            said = "appending"
            while events.is_alive() or states.is_alive():
                events.check()
                states.check()
                lake.check()
                if not self._marks.killed_ns and events.done * 2 >= len(flights):
                    self._kill(cluster, db, events)
                    said = f"node {self._marks.killed_node} was killed with SIGKILL; going on"
                elif self._restarting is None and self._may_restart(events, len(flights)):
                    self._restarting = self._pool.submit(self._restart, cluster)
                elif self._marks.restarted_ns:
                    said = f"node {self._marks.killed_node} is back; appending"
                self._show(
                    said,
                    appended=warm + events.done,
                    put=warm + states.done,
                    lake=lake.rows("flights"),
                    total=warm + len(flights),
                )
                time.sleep(LOOK_S)
            events.check()
            states.check()
        finally:
            events.stopping.set()
            states.stopping.set()
        (self._restarting or self._pool.submit(self._restart, cluster)).result()
        return events, states

    def _kill(self, cluster: LocalCluster, db: Any, events: EventLoad) -> None:
        """SIGKILL the leader of the shard with the most acknowledged events."""
        counts = [0] * TOPIC_SHARDS
        for shard in events.shards:
            counts[shard] += 1
        busiest = counts.index(max(counts))
        leaders = _leaders(db, "flights")
        node = leaders[busiest]
        marks = self._marks
        marks.killed_node, marks.killed_shard = node, busiest
        marks.led_shards = tuple(shard for shard, leader in leaders.items() if leader == node)
        marks.killed_ns = time.time_ns()
        cluster.kill(node)

    def _may_restart(self, events: EventLoad, total: int) -> bool:
        elapsed_s = (time.time_ns() - self._marks.killed_ns) / 1e9
        return (
            self._marks.killed_ns > 0 and events.done >= RESTART_AT * total and elapsed_s >= RESTART_AFTER_S
        )

    def _restart(self, cluster: LocalCluster) -> None:
        cluster.start_node(self._marks.killed_node)
        self._marks.restarted_ns = time.time_ns()

    def _settle(self, db: Any) -> list[tuple[str, int, int]]:
        """Wait until all replicas have everything; returns (topic, index, shard id) of all shards."""
        shards = [
            (topic.name, shard.index, shard.shard_id)
            for topic in db.metadata().topics
            if topic.name in NAMES
            for shard in topic.shards
        ]
        replicas.wait_settled(lambda: _lagging(db, shards), NAMES)
        return shards

    # -- figures ------------------------------------------------------------------------------------------------

    def _epochs(self, lake: Lake) -> list[Epoch]:
        """The micro-batches of events that came after those which warmed the queries up."""
        return [one for one in lake.epochs if one.committed_ms * 1_000_000 > self._marks.started_ns]

    def _figures(self, loads: tuple[EventLoad, StateLoad], lake: Lake, arrivals: Any, count: int) -> Figures:
        import numpy as np

        events, states = loads
        marks = self._marks
        append_s = (max(events.times_ns) - marks.started_ns) / 1e9
        put_s = (max(states.times_ns) - marks.started_ns) / 1e9
        epochs = self._epochs(lake)
        timed = len(events.times_ns)
        lake_s = epochs[-1].committed_ms / 1e3 - marks.started_ns / 1e9
        delays = delays_ms(arrivals, epochs)
        median, p95, most = (int(value) for value in np.percentile(delays, (50, 95, 100)))
        gap = longest_gap_ms(events.times_ns, events.shards, marks.killed_ns, marks.led_shards)
        gap_all = longest_gap_ms(events.times_ns, events.shards, marks.killed_ns, None)
        return Figures(
            events=count,
            nodes=NODES,
            append_seconds=round(append_s, 3),
            events_per_s=int(timed / append_s),
            puts_per_s=int(timed / put_s),
            lake_seconds=round(lake_s, 3),
            lake_events_per_s=int(timed / lake_s),
            failover_gap_ms=gap,
            failover_gap_all_shards_ms=gap_all,
            end_to_end_ms_median=median,
            end_to_end_ms_p95=p95,
            end_to_end_ms_max=most,
            pace=self._rate or 0,
            killed_node=marks.killed_node,
            killed_shard=marks.killed_shard,
            total_seconds=round(time.monotonic() - self._began, 3),
            plot=str(self._plot),
            dir=str(self._base) if self._keep else "",
        )


def _leaders(db: Any, topic: str) -> dict[int, int]:
    """Shard index -> node id of its leader."""
    for found in db.metadata().topics:
        if found.name == topic:
            return {shard.index: shard.leader for shard in found.shards}
    return {}


def _lagging(db: Any, shards: list[tuple[str, int, int]]) -> list[str]:
    """Replicas that do not have all of their shard's log yet, or do not know that it is committed."""
    names = {shard_id: f"{topic}/{index}" for topic, index, shard_id in shards}
    ends: dict[int, dict[int, tuple[int, int]]] = {shard_id: {} for shard_id in names}
    nodes = [node.node_id for node in db.metadata().nodes]
    for node_id in nodes:
        for replica in db.node_status(node_id).replicas:
            if replica.shard_id in ends:
                ends[replica.shard_id][node_id] = (replica.log_end, replica.high_watermark)
    waiting = []
    for shard_id, found in ends.items():
        newest = max((end for end, _ in found.values()), default=-1)
        waiting += [f"{names[shard_id]} on node {n}" for n in nodes if found.get(n) != (newest, newest)]
    return waiting


@contextlib.contextmanager
def _stderr_to(descriptor: int) -> Iterator[None]:
    """Processes that are started meanwhile write their stderr there, for as long as they live."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(descriptor, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[..., None]]:
    """A function that shows how far things are: bars on a terminal, else a line on stderr now and then."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<18}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        what = bars.add_task("", total=None)
        rows = {
            "appended": bars.add_task("events appended", total=None),
            "put": bars.add_task("aircraft put", total=None),
            "lake": bars.add_task("events in lake", total=None),
        }

        def show(said: str, *, total: int | None = None, **done: int) -> None:
            bars.update(what, description=said)
            for name, count in done.items():
                bars.update(rows[name], completed=count)
            if total is not None:
                for row in rows.values():
                    bars.update(row, total=total)

        yield show


class _Lines:
    """Progress as plain lines: when what is done changes, and every few seconds."""

    def __init__(self) -> None:
        self._said = ""
        self._at = 0.0

    def __call__(self, said: str, *, total: int | None = None, **done: int) -> None:
        now = time.monotonic()
        if said == self._said and now - self._at < LINE_S:
            return
        self._said, self._at = said, now
        counts = ", ".join(f"{name} {count:,}" for name, count in done.items())
        of = f" of {total:,}" if total is not None else ""
        print(f"{said}{': ' if counts else ''}{counts}{of}", file=sys.stderr, flush=True)
