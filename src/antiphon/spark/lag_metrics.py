"""What streaming queries tell about themselves, as Prometheus metrics: lag by shard, rates, batches, failures.

Spark reports a query's progress after every micro-batch. A source of ours says there how far the batch read (`endOffset`)
and where the shards ended when it was planned (`latestOffset`), both by topic and shard; the difference is the lag. Lag in
seconds needs no question to the cluster either: whoever remembers when a shard was seen to be how long knows since when the
first unread offset has been there. It is worked out when it is asked for, so it grows while a query is stuck.

Series are labelled with a query's name, or its id if it has none. They are as many as there are running queries and their
shards: what has ended is kept for a while, so that a failure is seen, and then forgotten.
"""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from antiphon.spark.offsets import Position, ids_in, to_positions
from antiphon.spark.spark_errors import our_error

KEEP_S: Final = 600.0
QUERIES_MAX: Final = 256
SHARDS_MAX: Final = 10_000  # of one query
GROWTH_MAX: Final = 64  # remembered lengths of one shard
PARTS_MAX: Final = 16
ERROR_CHARS_MAX: Final = 240

SOURCE_CLASS: Final = "PythonMicroBatchStream"  # all that Spark tells about a source written in Python
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+[A-Z]\w*: ")


class Reached(NamedTuple):
    """How far a batch got in a shard, and where the shard ended when the batch was planned (None: not told)."""

    end: int
    latest: int | None


def reached(source: Mapping[str, Any]) -> dict[Position, Reached] | None:
    """One entry of a progress's `sources`, by (topic, shard); None where it is not ours.

    Spark names the class that stands for every source written in Python, not the format. Ours are told from others by the
    form of their offsets, which have each topic's id beside its shards.
    """
    if SOURCE_CLASS not in str(source.get("description")):
        return None
    try:
        offsets = _decoded(source.get("endOffset"))
        end = to_positions(offsets)
        if not end or ids_in(offsets).keys() != offsets.keys():
            return None
        latest = to_positions(_decoded(source.get("latestOffset")) or {})
    except (AttributeError, TypeError, ValueError):
        return None
    return {
        position: Reached(offset, latest.get(position))
        for position, offset in islice(end.items(), SHARDS_MAX)
    }


def _decoded(offsets: Any) -> Any:
    return json.loads(offsets) if isinstance(offsets, str) else offsets


def error_line(exception: str) -> str:
    """What a person wants to read first of the exception that ended a query: our own error, else its first line."""
    line = our_error(exception) or _JAVA_CLASS.sub("", exception.strip().partition("\n")[0].strip())
    return line if len(line) <= ERROR_CHARS_MAX else f"{line[: ERROR_CHARS_MAX - 3]}..."


@dataclass
class _Shard:
    end: int = 0
    latest: int | None = None
    growth: deque[tuple[float, int]] = field(
        default_factory=deque
    )  # when it was seen to be longer, and how long

    def update(self, found: Reached, at_s: float) -> None:
        self.end, self.latest = found
        if found.latest is None:
            return
        if self.growth and found.latest < self.growth[-1][1]:
            self.growth.clear()  # the topic was made anew
        if not self.growth or found.latest > self.growth[-1][1]:
            self.growth.append((at_s, found.latest))
        while len(self.growth) > 1 and self.growth[1][1] <= self.end:
            self.growth.popleft()
        if len(self.growth) > GROWTH_MAX:  # coarser, but as far back, and exact around `end`
            seen = list(self.growth)
            self.growth = deque([*seen[:2], *seen[3::2]])

    @property
    def lag(self) -> int | None:
        return None if self.latest is None else max(0, self.latest - self.end)

    def behind_s(self, now_s: float) -> float:
        """Since when there has been something to read, by straight lines between what was seen."""
        before: tuple[float, int] | None = None
        for at_s, length in self.growth:
            if length > self.end:
                if before is not None:
                    at_s = before[0] + (at_s - before[0]) * (self.end - before[1]) / (length - before[1])
                return max(0.0, now_s - at_s)
            before = (at_s, length)
        return 0.0


@dataclass
class _Query:
    label: str
    query_id: str
    run_id: str
    news_s: float
    ours: bool = False
    active: bool = True
    idle: bool = False
    starts: int = 1
    failures: int = 0
    error: str | None = None
    batches: int = 0
    batch_id: int | None = None
    rows_read: int = 0
    rows_written: int = 0
    input_rows_per_s: float = 0.0
    processed_rows_per_s: float = 0.0
    progress_s: float | None = None
    parts_s: dict[str, float] = field(default_factory=dict)
    shards: dict[Position, _Shard] = field(default_factory=dict)


def _reach(query: _Query, sources: list[dict[Position, Reached]], at_s: float) -> None:
    """A topic that a query reads twice counts as read as far as the slower of the two."""
    slowest: dict[Position, Reached] = {}
    for source in sources:
        for position, found in source.items():
            if position not in slowest or found.end < slowest[position].end:
                slowest[position] = found
    query.shards = {position: query.shards.get(position, _Shard()) for position in slowest}
    for position, found in slowest.items():
        query.shards[position].update(found, at_s)


class QueryMetrics(Collector):
    """Takes what a `StreamingQueryListener` hears, and is asked by a Prometheus registry. Thread-safe.

    Args:
        keep_s: for how long a query that ended is still shown.
        now_s: the clock, seconds since 1970.
    """

    def __init__(self, keep_s: float = KEEP_S, now_s: Callable[[], float] = time.time) -> None:
        self._keep_s = keep_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._queries: dict[str, _Query] = {}  # by label

    # -- what happens to queries --------------------------------------------------------------------------------

    def started(self, query_id: str, run_id: str, name: str | None) -> None:
        """A run of a query begins. Whether it reads from us shows later."""
        with self._lock:
            self._begin(query_id, run_id, name)

    def _begin(self, query_id: str, run_id: str, name: str | None) -> _Query:
        label, now_s = name or query_id, self._now_s()
        query = self._queries.get(label)
        if query is None:
            self._make_room()
            query = self._queries[label] = _Query(label, query_id, run_id, now_s)
            return query
        if query.query_id != query_id:  # another query under an old name; its counters go on
            query.query_id, query.shards, query.batch_id = query_id, {}, None
        query.run_id, query.news_s = run_id, now_s
        query.active, query.idle, query.starts = True, False, query.starts + 1
        return query

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A batch is through; `progress` is the JSON of Spark's `StreamingQueryProgress`."""
        ours = [(source, found) for source in progress.get("sources", ()) if (found := reached(source))]
        if not ours:
            return
        read = [source for source, _ in ours]
        with self._lock:
            query_id, run_id = str(progress["id"]), str(progress["runId"])
            query = self._find(query_id, run_id) or self._begin(query_id, run_id, progress.get("name"))
            now_s = self._now_s()
            query.ours, query.idle, query.error, query.news_s, query.progress_s = (
                True,
                False,
                None,
                now_s,
                now_s,
            )
            query.batches += query.batch_id != progress["batchId"]
            query.batch_id = int(progress["batchId"])
            query.rows_read += sum(max(0, int(_number(source.get("numInputRows")))) for source in read)
            query.rows_written += max(0, int(_number((progress.get("sink") or {}).get("numOutputRows"))))
            query.input_rows_per_s = sum(_number(source.get("inputRowsPerSecond")) for source in read)
            query.processed_rows_per_s = sum(_number(source.get("processedRowsPerSecond")) for source in read)
            parts = islice((progress.get("durationMs") or {}).items(), PARTS_MAX)
            query.parts_s = {str(part): _number(value) / 1000 for part, value in parts}
            _reach(query, [found for _, found in ours], _time_s(progress.get("timestamp"), now_s))

    def idled(self, query_id: str, run_id: str) -> None:
        """The query looked and found nothing new: so it has read everything."""
        with self._lock:
            query = self._find(query_id, run_id)
            if query is None:
                return
            query.idle, query.news_s = True, self._now_s()
            query.input_rows_per_s = query.processed_rows_per_s = 0.0

    def terminated(self, query_id: str, run_id: str, exception: str | None) -> None:
        """A run ended: by itself or by `stop()`, or with an error."""
        with self._lock:
            query = self._find(query_id, run_id)
            if query is None:
                return
            query.active, query.idle, query.news_s = False, False, self._now_s()
            query.input_rows_per_s = query.processed_rows_per_s = 0.0
            if exception is not None:
                query.failures += 1
                query.error = error_line(exception)
                query.ours = query.ours or our_error(exception) is not None

    def _find(self, query_id: str, run_id: str) -> _Query | None:
        for query in self._queries.values():
            if query.query_id == query_id and query.run_id == run_id:
                return query
        return None

    def _make_room(self) -> None:
        self._forget()
        while len(self._queries) >= QUERIES_MAX:
            oldest = min(
                self._queries.values(), key=lambda query: (query.active and query.ours, query.news_s)
            )
            del self._queries[oldest.label]

    def _forget(self) -> None:
        before_s = self._now_s() - self._keep_s
        for query in [q for q in self._queries.values() if not q.active and q.news_s < before_s]:
            del self._queries[query.label]

    # -- what Prometheus sees -----------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """All metrics; called for every scrape."""
        with self._lock:
            self._forget()
            shown = [query for query in self._queries.values() if query.ours]
            return [*_of_queries(shown), *_of_shards(shown, self._now_s())]

    def describe(self) -> Iterable[Metric]:
        """Nothing is known before the first query starts."""
        return []


_GAUGES: Final[dict[str, tuple[str, Callable[[_Query], float | None]]]] = {
    "query_active": ("1 while the streaming query runs, 0 when it has ended", lambda query: query.active),
    "query_idle": ("1 while the query waits for new records", lambda query: query.idle),
    "batch_id": ("Last micro-batch that is through", lambda query: query.batch_id),
    "input_rows_per_second": (
        "Rows that arrived a second, last micro-batch",
        lambda query: query.input_rows_per_s,
    ),
    "processed_rows_per_second": (
        "Rows that were processed a second, last micro-batch",
        lambda query: query.processed_rows_per_s,
    ),
    "last_progress_timestamp_seconds": (
        "When the last micro-batch came through, seconds since 1970",
        lambda query: query.progress_s,
    ),
}
_COUNTERS: Final[dict[str, tuple[str, Callable[[_Query], float]]]] = {
    "starts": ("Starts of the query, restarts included", lambda query: query.starts),
    "failures": ("Ends of the query with an error", lambda query: query.failures),
    "batches": ("Micro-batches that came through", lambda query: query.batches),
    "rows_read": ("Rows read from topics and tables", lambda query: query.rows_read),
    "rows_written": ("Rows written, where the sink counts them", lambda query: query.rows_written),
}


def _of_queries(queries: list[_Query]) -> Iterable[Metric]:
    for name, (text, measure) in _GAUGES.items():
        gauge = GaugeMetricFamily(f"antiphon_spark_{name}", text, labels=("query",))
        for query in queries:
            value = measure(query)
            if value is not None:
                gauge.add_metric((query.label,), float(value))
        yield gauge
    for name, (text, count) in _COUNTERS.items():
        counter = CounterMetricFamily(f"antiphon_spark_{name}", text, labels=("query",))
        for query in queries:
            counter.add_metric((query.label,), float(count(query)))
        yield counter
    parts = GaugeMetricFamily(
        "antiphon_spark_batch_seconds",
        "Last micro-batch: how long each part took; triggerExecution is all of it",
        labels=("query", "part"),
    )
    failed = GaugeMetricFamily(
        "antiphon_spark_query_failure",
        "1 with the error that the query ended with, until it gets on again",
        labels=("query", "error"),
    )
    for query in queries:
        for part, seconds in query.parts_s.items():
            parts.add_metric((query.label, part), seconds)
        if query.error is not None:
            failed.add_metric((query.label, query.error), 1.0)
    yield parts
    yield failed


def _of_shards(queries: list[_Query], now_s: float) -> Iterable[Metric]:
    labels = ("query", "topic", "shard")
    lag = GaugeMetricFamily("antiphon_spark_lag_offsets", "Offsets that wait to be read", labels=labels)
    behind = GaugeMetricFamily(
        "antiphon_spark_lag_seconds", "How long the first unread offset has been there", labels=labels
    )
    end = GaugeMetricFamily("antiphon_spark_end_offset", "Where the query goes on reading", labels=labels)
    latest = GaugeMetricFamily(
        "antiphon_spark_latest_offset", "Where the shard ended at the query's last look", labels=labels
    )
    for query in queries:
        for (topic, index), shard in query.shards.items():
            of = (query.label, topic, str(index))
            end.add_metric(of, shard.end)
            if shard.lag is not None and shard.latest is not None:
                lag.add_metric(of, shard.lag)
                behind.add_metric(of, shard.behind_s(now_s))
                latest.add_metric(of, shard.latest)
    return [lag, behind, end, latest]


def _number(value: Any) -> float:
    """A number that Spark may give as null or, in JSON, as the word NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if number == number and abs(number) != float("inf") else 0.0


def _time_s(timestamp: Any, otherwise_s: float) -> float:
    """When a batch was planned: Spark's ISO 8601 text, by the clock of its driver."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except (TypeError, ValueError):
        return otherwise_s
