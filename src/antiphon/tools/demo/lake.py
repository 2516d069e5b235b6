"""The demo's Spark side: two streams into Parquet, one of running delays into a table, and the proofs over what came out.

Events go to the lake by a mirror, which decodes them with Arrow: of Spark's own `from_json` and Parquet sink a year of
flights took half of the JVM's time. The other two are plain queries of Spark.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import TimedOutError

if TYPE_CHECKING:
    import pyarrow as pa

    from antiphon.lake.mirror import MirrorProgress
    from antiphon.lake.query import MirrorQuery

TRIGGER: Final = "1 second"
OTHERS_TRIGGER: Final = (
    "5 seconds"  # of what nobody waits for: each micro-batch costs, however little is in it
)
COUNT_AGE_S: Final = 0.4
WARM_S: Final = 120.0  # for a query's first micro-batch, which starts processes and compiles code
POOL: Final = "spark.scheduler.pool"
TASKS_MAX: Final = 2  # for each read of a micro-batch: more than one a core only costs
EPOCH_OFFSETS: Final = 50_000  # so that a backlog reaches the lake in steps and not all at the end
EVENT_COLUMNS: Final = (
    "id bigint, carrier string, flight int, tail string, origin string, dest string, scheduled string, "
    "dep_delay int, arr_delay int, distance int"
)
DELAY_COLUMNS: Final = "carrier string, scheduled string, dep_delay int, arr_delay int"
STATE_COLUMNS: Final = (
    "last_id bigint, last_flight string, airport string, scheduled string, cancelled boolean, arr_delay int"
)
_DELAYS: Final = (
    "count(*) as flights",
    "count(dep_delay) as departed",
    "coalesce(sum(dep_delay), 0) as dep_delay_total",
    "coalesce(sum(arr_delay), 0) as arr_delay_total",
)


# Events go first: their tasks get the next core that is free, as long as they have fewer than there are.
_POOLS: Final = """<allocations>
  <pool name="flights"><schedulingMode>FIFO</schedulingMode><weight>10</weight><minShare>2</minShare></pool>
  <pool name="aircraft"><schedulingMode>FIFO</schedulingMode></pool>
  <pool name="delays"><schedulingMode>FIFO</schedulingMode></pool>
</allocations>
"""


def write_pools(path: Path) -> str:
    """Write the pools in which the queries' tasks wait, as Spark reads them; returns where."""
    path.write_text(_POOLS)
    return str(path)


class Epoch(NamedTuple):
    """One micro-batch: when it was committed (ms since 1970), its rows, and its offsets [start, end) by shard."""

    committed_ms: int
    rows: int
    start: dict[int, int]
    end: dict[int, int]


class Proof(NamedTuple):
    """Something that was to be shown, and what was found."""

    claim: str
    holds: bool
    found: str


class Lake:
    """Queries that stream a cluster's data into `folder`, and reads of what they wrote."""

    def __init__(self, spark: Any, servers: str, folder: Path) -> None:
        self._spark = spark
        self._servers = servers
        self._folder = folder
        self._mirror: MirrorQuery | None = None
        self._queries: dict[str, Any] = {}
        self._rows: dict[str, tuple[float, int]] = {}
        self.epochs: list[Epoch] = []  # of events, those that had some

    # -- streaming ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the three queries, each in a pool of its own: its tasks do not wait until all of another's are done."""
        pool = self._spark.sparkContext.setLocalProperty
        pool(POOL, "flights")
        self._mirror = self._flights()
        changes = self._stream("table", "aircraft", "key,value,kind,version,partition,offset").selectExpr(
            "cast(key as string) as tail",
            "cast(value as string) as state",
            "kind",
            "version",
            "partition",
            "offset",
        )
        pool(POOL, "aircraft")
        self._queries["aircraft"] = self._to_parquet("aircraft", changes)
        pool(POOL, "delays")
        self._queries["delays"] = self._delays()
        pool(POOL, None)

    def _flights(self) -> "MirrorQuery":
        from antiphon.lake import mirror_topic

        query: MirrorQuery = mirror_topic(
            self._spark,
            self._servers,
            "flights",
            f"parquet:{self._folder / 'flights'}",
            str(self._folder / "checkpoints" / "flights"),
            format="json",
            schema=EVENT_COLUMNS,
            new_fields="reject",
            every=TRIGGER,
            max_offsets=EPOCH_OFFSETS,
            on_epoch=self._arrived,
        )
        return query

    def _arrived(self, progress: "MirrorProgress") -> None:
        last = self.epochs[-1] if self.epochs else Epoch(0, 0, {}, {})
        rows = progress.rows - sum(epoch.rows for epoch in self.epochs)
        if rows:
            now_ms = time.time_ns() // 1_000_000
            self.epochs.append(Epoch(now_ms, rows, last.end, dict(progress.positions)))

    def _stream(self, kind: str, name: str, columns: str) -> Any:
        return (
            self._spark.readStream.format("antiphon")
            .options(servers=self._servers, startingOffsets="earliest", columns=columns, **{kind: name})
            .options(maxOffsetsPerTrigger=EPOCH_OFFSETS, maxPartitions=TASKS_MAX)
            .load()
        )

    def _to_parquet(self, name: str, frame: Any) -> Any:
        return (
            frame.writeStream.format("parquet")
            .queryName(name)
            .option("path", str(self._folder / name))
            .option("checkpointLocation", str(self._folder / "checkpoints" / name))
            .trigger(processingTime=OTHERS_TRIGGER)
            .start()
        )

    def _delays(self) -> Any:
        from antiphon.spark import upserts

        events = self._stream("topic", "flights", "value").mapInArrow(_parsed, DELAY_COLUMNS)
        hourly = _delays_of(events)
        return (
            hourly.writeStream.queryName("delays")
            .outputMode("update")
            .foreachBatch(upserts(self._servers, "delays"))
            .option("checkpointLocation", str(self._folder / "checkpoints" / "delays"))
            .trigger(processingTime=OTHERS_TRIGGER)
            .start()
        )

    def wait_started(self, timeout_s: float) -> None:
        """Wait until each query has looked for data once."""
        deadline = time.monotonic() + timeout_s
        while any(query.lastProgress is None for query in self._queries.values()):
            self.check()
            if time.monotonic() > deadline:
                raise TimedOutError(f"Spark's queries did not start within {timeout_s:.0f} s")
            time.sleep(0.05)

    def wait_warm(self, count: int) -> None:
        """Wait until each query has taken in its first `count` rows: with them it starts its processes and compiles."""
        self.wait_rows(dict.fromkeys(("flights", *self._queries), count), WARM_S)

    def check(self) -> None:
        """Raise what a query failed with."""
        if self._mirror is not None and not self._mirror.running:
            self._mirror.wait()
        for query in self._queries.values():
            error = query.exception()
            if error is not None:
                raise error

    def rows(self, name: str) -> int:
        """Rows that a query has taken in so far, as of a moment ago."""
        if name == "flights":
            return 0 if self._mirror is None else self._mirror.progress.rows
        counted_at, count = self._rows.get(name, (0.0, 0))
        if time.monotonic() - counted_at < COUNT_AGE_S:
            return count
        count = sum(progress["numInputRows"] for progress in self._queries[name].recentProgress)
        self._rows[name] = (time.monotonic(), count)
        return count

    def wait_rows(self, expected: dict[str, int], timeout_s: float) -> None:
        """Wait until the queries have taken in that many rows."""
        deadline = time.monotonic() + timeout_s
        while any(self.rows(name) < count for name, count in expected.items()):
            self.check()
            if time.monotonic() > deadline:
                seen = {name: self.rows(name) for name in expected}
                raise TimedOutError(f"Spark has {seen} rows after {timeout_s:.0f} s, {expected} are there")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the queries."""
        if self._mirror is not None:
            self._mirror.stop()
        for query in self._queries.values():
            query.stop()

    # -- proofs -------------------------------------------------------------------------------------------------

    def prove(self, events: int) -> list[Proof]:
        """Read back what the streams wrote, and the tables, and compare."""
        flights = self._events_there().cache()
        changes = self._spark.read.parquet(str(self._folder / "aircraft"))
        return [
            _all_once(flights, events),
            self._aircraft_match(flights),
            _changes_complete(changes, events),
            self._delays_match(flights),
        ]

    def _events_there(self) -> Any:
        named = {f"_{name}": name for name in ("partition", "offset", "timestamp")}
        return self._spark.read.parquet(str(self._folder / "flights")).withColumnsRenamed(named)

    def _table(self, name: str) -> Any:
        return (
            self._spark.read.format("antiphon")
            .options(servers=self._servers, table=name)
            .load()
            .selectExpr("cast(key as string) as key", "cast(value as string) as value")
        )

    def _aircraft_match(self, flights: Any) -> Proof:
        last = flights.groupBy("tail").agg(
            _expr(
                "max_by(struct(id, carrier, flight, origin, dest, scheduled, dep_delay, arr_delay), id) as f"
            )
        )
        stored = self._table("aircraft").selectExpr(
            "key as tail", f"from_json(value, '{STATE_COLUMNS}') as s"
        )
        joined = last.join(stored, "tail", "full_outer")
        same = (
            "f is not null and s is not null and f.id = s.last_id and concat(f.carrier, f.flight) = s.last_flight "
            "and if(f.dep_delay is null, f.origin, f.dest) = s.airport and f.scheduled = s.scheduled "
            "and (f.dep_delay is null) = s.cancelled and f.arr_delay <=> s.arr_delay"
        )
        row = joined.selectExpr("count(*) as n", f"count_if({same}) as same").first()
        return Proof(
            "every aircraft's row in the table equals its last flight in the lake",
            row["n"] == row["same"] and row["n"] > 0,
            f"{row['same']:,} of {row['n']:,} aircraft",
        )

    def _delays_match(self, flights: Any) -> Proof:
        expected = _delays_of(flights)
        joined = expected.alias("a").join(self._table("delays").alias("b"), "key", "full_outer")
        row = joined.selectExpr("count(*) as n", "count_if(a.value <=> b.value) as same").first()
        return Proof(
            "the table of hourly delays equals what the lake gives",
            row["n"] == row["same"] and row["n"] > 0,
            f"{row['same']:,} of {row['n']:,} carrier hours",
        )

    def arrivals(self) -> Any:
        """Columns partition, offset and timestamp (us since 1970) of every event in the lake, as an Arrow table."""
        return (
            self._events_there().selectExpr("partition", "offset", "unix_micros(timestamp) as us").toArrow()
        )


def _parsed(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """Events' values as `DELAY_COLUMNS`. Spark's own `from_json` takes several times as long."""
    import pyarrow as pa
    from pyarrow import json

    text, number = pa.string(), pa.int32()
    names = ("carrier", "scheduled", "dep_delay", "arr_delay")
    columns = pa.schema(zip(names, (text, text, number, number), strict=True))
    how = json.ParseOptions(explicit_schema=columns, unexpected_field_behavior="ignore")
    for batch in batches:
        if batch.num_rows:
            lines = b"\n".join(batch.column(0).to_pylist())
            read = json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
            yield from json.read_json(pa.BufferReader(lines), read, how).combine_chunks().to_batches()


def _expr(text: str) -> Any:
    from pyspark.sql.functions import expr

    return expr(text)


def _delays_of(events: Any) -> Any:
    """Flights and delays per carrier and hour of scheduled departure, as rows for a table."""
    hourly = events.groupBy("carrier", _expr("substring(scheduled, 1, 13) as hour")).agg(*map(_expr, _DELAYS))
    columns = ", ".join(text.rpartition(" as ")[2] for text in _DELAYS)
    return hourly.selectExpr("concat(carrier, '/', hour) as key", f"to_json(struct({columns})) as value")


def _all_once(flights: Any, events: int) -> Proof:
    row = flights.selectExpr(
        "count(*) as n",
        "count(distinct id) as ids",
        "count(distinct partition, offset) as places",
        "max(id) as last",
    ).first()
    holds = row["n"] == row["ids"] == row["places"] == events and row["last"] == events - 1
    return Proof(
        f"{events:,} events in the lake, none missing, none twice",
        holds,
        f"{row['n']:,} rows, {row['ids']:,} different flights at {row['places']:,} different places in the log",
    )


def _changes_complete(changes: Any, events: int) -> Proof:
    row = changes.selectExpr("count(*) as n", "count(distinct partition, version) as versions").first()
    return Proof(
        "every put of an aircraft is in the lake's history, once",
        row["n"] == row["versions"] == events,
        f"{row['n']:,} changes, {row['versions']:,} different versions",
    )


def delays_ms(arrivals: Any, epochs: Sequence[Epoch]) -> Any:
    """Milliseconds from an event's timestamp to the commit of the micro-batch that brought it to the lake, as an array.

    Events that none of the micro-batches brought are left out.
    """
    import numpy as np

    shards, offsets, us = (arrivals.column(name).to_numpy() for name in ("partition", "offset", "us"))
    committed = np.full(len(offsets), -1, dtype=np.int64)
    for epoch in epochs:
        for shard, end in epoch.end.items():
            within = (shards == shard) & (offsets >= epoch.start.get(shard, 0)) & (offsets < end)
            committed[within] = epoch.committed_ms
    known = committed >= 0
    return committed[known] - us[known] // 1000
