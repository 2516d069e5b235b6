"""The demo's Spark side: two streams into Parquet, one of running delays into a table, and the proofs over what came out."""

import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from antiphon.errors import TimedOutError
from antiphon.spark.offsets import to_positions

TRIGGER: Final = "1 second"
COUNT_AGE_S: Final = 0.4
EPOCH_OFFSETS: Final = 50_000  # so that a backlog reaches the lake in steps and not all at the end
EVENT_COLUMNS: Final = (
    "id bigint, carrier string, flight int, tail string, origin string, dest string, scheduled string, "
    "dep_delay int, arr_delay int, distance int"
)
STATE_COLUMNS: Final = (
    "last_id bigint, last_flight string, airport string, scheduled string, cancelled boolean, arr_delay int"
)
_DELAYS: Final = (
    "count(*) as flights",
    "count(dep_delay) as departed",
    "coalesce(sum(dep_delay), 0) as dep_delay_total",
    "coalesce(sum(arr_delay), 0) as arr_delay_total",
)


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
        self._queries: dict[str, Any] = {}
        self._rows: dict[str, tuple[float, int]] = {}

    # -- streaming ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the three queries."""
        self._queries["flights"] = self._to_parquet(
            "flights", self._events().select("event.*", "offset", "partition", "ts")
        )
        changes = self._stream("table", "aircraft").selectExpr(
            "cast(key as string) as tail",
            "cast(value as string) as state",
            "kind",
            "version",
            "partition",
            "offset",
        )
        self._queries["aircraft"] = self._to_parquet("aircraft", changes)
        self._queries["delays"] = self._delays()

    def _stream(self, kind: str, name: str) -> Any:
        return (
            self._spark.readStream.format("antiphon")
            .options(servers=self._servers, startingOffsets="earliest", **{kind: name})
            .option("maxOffsetsPerTrigger", EPOCH_OFFSETS)
            .load()
        )

    def _events(self) -> Any:
        parsed = f"from_json(cast(value as string), '{EVENT_COLUMNS}') as event"
        return self._stream("topic", "flights").selectExpr(parsed, "offset", "partition", "timestamp as ts")

    def _to_parquet(self, name: str, frame: Any) -> Any:
        return (
            frame.writeStream.format("parquet")
            .queryName(name)
            .option("path", str(self._folder / name))
            .option("checkpointLocation", str(self._folder / "checkpoints" / name))
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def _delays(self) -> Any:
        from antiphon.spark import upserts

        hourly = _delays_of(self._events().select("event.*"))
        return (
            hourly.writeStream.queryName("delays")
            .outputMode("update")
            .foreachBatch(upserts(self._servers, "delays"))
            .option("checkpointLocation", str(self._folder / "checkpoints" / "delays"))
            .trigger(processingTime=TRIGGER)
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

    def check(self) -> None:
        """Raise what a query failed with."""
        for query in self._queries.values():
            error = query.exception()
            if error is not None:
                raise error

    def rows(self, name: str) -> int:
        """Rows that a query has taken in so far, as of a moment ago."""
        counted_at, count = self._rows.get(name, (0.0, 0))
        if time.monotonic() - counted_at < COUNT_AGE_S:
            return count
        count = sum(progress["numInputRows"] for progress in self._queries[name].recentProgress)
        self._rows[name] = (time.monotonic(), count)
        return count

    def drain(self, expected: dict[str, int], timeout_s: float) -> None:
        """Wait until the queries have taken in that many rows, then stop them."""
        deadline = time.monotonic() + timeout_s
        while any(self.rows(name) < count for name, count in expected.items()):
            self.check()
            if time.monotonic() > deadline:
                seen = {name: self.rows(name) for name in expected}
                raise TimedOutError(f"Spark has {seen} rows after {timeout_s:.0f} s, {expected} are there")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the queries."""
        for query in self._queries.values():
            query.stop()

    def epochs(self, name: str) -> list[Epoch]:
        """The micro-batches of a query that had rows."""
        return [_epoch(json.loads(p.json)) for p in self._queries[name].recentProgress if p["numInputRows"]]

    # -- proofs -------------------------------------------------------------------------------------------------

    def prove(self, events: int) -> list[Proof]:
        """Read back what the streams wrote, and the tables, and compare."""
        flights = self._spark.read.parquet(str(self._folder / "flights")).cache()
        changes = self._spark.read.parquet(str(self._folder / "aircraft"))
        return [
            _all_once(flights, events),
            self._aircraft_match(flights),
            _changes_complete(changes, events),
            self._delays_match(flights),
        ]

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
        flights = self._spark.read.parquet(str(self._folder / "flights"))
        return flights.selectExpr("partition", "offset", "unix_micros(ts) as us").toArrow()


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


def _epoch(progress: dict[str, Any]) -> Epoch:
    began = datetime.fromisoformat(progress["timestamp"])
    source = progress["sources"][0]
    return Epoch(
        int(began.timestamp() * 1000) + progress["durationMs"]["triggerExecution"],
        progress["numInputRows"],
        _shards(source["startOffset"]),
        _shards(source["endOffset"]),
    )


def _shards(offsets: Any) -> dict[int, int]:
    if isinstance(offsets, str):
        offsets = json.loads(offsets)
    return {shard: offset for (_, shard), offset in to_positions(offsets or {}).items()}


def delays_ms(arrivals: Any, epochs: Sequence[Epoch]) -> Any:
    """Milliseconds from an event's timestamp to the commit of the micro-batch that brought it to the lake, as an array."""
    import numpy as np

    shards, offsets, us = (arrivals.column(name).to_numpy() for name in ("partition", "offset", "us"))
    committed = np.full(len(offsets), -1, dtype=np.int64)
    for epoch in epochs:
        for shard, end in epoch.end.items():
            within = (shards == shard) & (offsets >= epoch.start.get(shard, 0)) & (offsets < end)
            committed[within] = epoch.committed_ms
    known = committed >= 0
    return committed[known] - us[known] // 1000
