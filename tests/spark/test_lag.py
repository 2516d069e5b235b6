"""Lag of streaming queries as Prometheus sees it: the arithmetic, and a real query with a real scrape."""

import json
import re
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import antiphon.spark
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.records.builder import build_batch
from antiphon.spark.lag_metrics import QUERIES_MAX, QueryMetrics, error_line, reached

if TYPE_CHECKING:
    from tests.spark.conftest import Reader
    from tests.spark.native_server import NativeServer

OURS = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStreamWithTriggerAvailableNow@423b5243"


def _with_id(offsets: Any) -> Any:
    """As a checkpoint has them: each topic's id beside its shards."""
    if isinstance(offsets, dict) and isinstance(offsets.get("flights"), dict):
        return {"flights": {**offsets["flights"], "id": "5f0c", "only": True}}
    return offsets


def _source(end: Any, latest: Any, rows: int = 0, description: str = OURS) -> dict[str, Any]:
    return {
        "description": description,
        "startOffset": None,
        "endOffset": _with_id(end),
        "latestOffset": _with_id(latest),
        "numInputRows": rows,
        "inputRowsPerSecond": 50.0,
        "processedRowsPerSecond": "NaN",
    }


def _progress(batch: int, *sources: dict[str, Any], run: str = "r1", second: int = 0) -> dict[str, Any]:
    return {
        "id": "q1",
        "runId": run,
        "name": "copy",
        "timestamp": f"1970-01-01T00:{second // 60:02}:{second % 60:02}.000Z",
        "batchId": batch,
        "durationMs": {"addBatch": 250, "triggerExecution": 1500},
        "sources": list(sources),
        "sink": {"description": "PythonTable", "numOutputRows": -1},
    }


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Watched:
    """Metrics in a registry, and a clock to set."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.metrics = QueryMetrics(keep_s=60, now_s=self.clock)
        self.registry = CollectorRegistry()
        self.registry.register(self.metrics)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"antiphon_spark_{name}", {"query": "copy", **labels})

    def lag(self, shard: int, unit: str = "offsets") -> float | None:
        return self.value(f"lag_{unit}", topic="flights", shard=str(shard))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_lag_by_shard_is_latest_less_end(watched: Watched) -> None:
    watched.metrics.started("q1", "r1", "copy")
    assert b"copy" not in generate_latest(watched.registry), "nobody knows yet whether it reads from us"
    watched.metrics.progressed(
        _progress(0, _source({"flights": {"0": 10, "1": 7}}, {"flights": {"0": 25, "1": 7, "2": 3}}, rows=17))
    )
    assert (watched.lag(0), watched.lag(1), watched.lag(2)) == (15, 0, None)
    assert watched.value("end_offset", topic="flights", shard="0") == 10
    assert watched.value("latest_offset", topic="flights", shard="0") == 25
    assert watched.value("rows_read_total") == 17
    assert watched.value("rows_written_total") == 0
    assert watched.value("input_rows_per_second") == 50
    assert watched.value("processed_rows_per_second") == 0
    assert watched.value("batch_seconds", part="triggerExecution") == 1.5
    assert (watched.value("query_active"), watched.value("query_idle")) == (1, 0)
    # A shard that is gone from the offsets is gone from the page.
    watched.metrics.progressed(_progress(1, _source({"flights": {"0": 25}}, None)))
    assert (watched.lag(0), watched.lag(1)) == (None, None)
    assert watched.value("end_offset", topic="flights", shard="0") == 25
    watched.metrics.idled("q1", "r1")
    assert (watched.value("query_idle"), watched.value("input_rows_per_second")) == (1, 0)


def test_lag_in_seconds_grows_while_nothing_is_read(watched: Watched) -> None:
    def batch(number: int, second: int, end: int, latest: int) -> None:
        watched.clock.now_s = second
        source = _source({"flights": {"0": end}}, {"flights": {"0": latest}})
        watched.metrics.progressed(_progress(number, source, second=second))

    batch(0, 100, end=100, latest=100)
    assert watched.lag(0, "seconds") == 0
    batch(1, 110, end=100, latest=200)
    assert watched.lag(0, "seconds") == 10, "since the last time that there was nothing new"
    watched.clock.now_s = 150
    assert watched.lag(0, "seconds") == 50
    batch(2, 150, end=150, latest=400)
    assert watched.lag(0, "seconds") == 45, "offset 150 came half way between seconds 100 and 110"
    for number in range(3, 500):
        batch(number, 150 + number, end=150, latest=400 + number)
    assert watched.lag(0, "seconds") == pytest.approx(499 + 45), "however long the history, it is kept short"
    batch(500, 700, end=900, latest=900)
    assert watched.lag(0, "seconds") == 0
    batch(501, 710, end=5, latest=5)
    assert (watched.lag(0), watched.lag(0, "seconds")) == (0, 0), "the topic was made anew"


def test_other_sources_are_none_of_ours(watched: Watched) -> None:
    kafka = _source({"flights": {"0": 1}}, {"flights": {"0": 9}}, description="KafkaV2[Subscribe[flights]]")
    bare = {**_source(0, 0), "endOffset": {"flights": {"0": 1}}}
    others = (
        kafka,
        bare,
        _source(0, 7),
        _source({"0": 140}, {"0": 150}),
        _source(None, None),
        _source("x", "y"),
    )
    assert [reached(other) for other in others] == [None] * len(others)
    watched.metrics.progressed(_progress(0, *others))
    assert watched.value("query_active") is None
    # Beside others ours counts, and a topic that is read twice counts by the slower of the two.
    both = json.dumps({"flights": {"0": 30, "id": "5f0c"}})
    watched.metrics.progressed(
        _progress(
            1, kafka, _source(both, both, rows=4), _source({"flights": {"0": 20}}, {"flights": {"0": 30}})
        )
    )
    assert (watched.lag(0), watched.value("rows_read_total")) == (10, 4)


def test_failures_and_restarts(watched: Watched) -> None:
    source = _source({"flights": {"0": 3}}, {"flights": {"0": 3}})
    watched.metrics.started("q1", "r1", "copy")
    error = "org.apache.spark.SparkException: [PYTHON] Failed\nantiphon.errors.DataLossError: gone\n SQLSTATE: 38000"
    watched.metrics.terminated("q1", "r1", error)
    said = "DataLossError: gone"
    assert watched.value("query_failure", error=said) == 1, "an error of ours, also before the first batch"
    watched.metrics.started("q1", "r2", "copy")
    watched.metrics.terminated("q1", "r1", "late news of the run before")
    assert (watched.value("starts_total"), watched.value("failures_total")) == (2, 1)
    assert watched.value("query_active") == 1
    watched.metrics.progressed(_progress(0, source, run="r2"))
    assert watched.value("query_failure", error=said) is None
    watched.metrics.terminated("q1", "r2", None)
    assert (watched.value("query_active"), watched.value("failures_total")) == (0, 1)
    watched.clock.now_s = 59
    assert watched.lag(0) == 0
    watched.clock.now_s = 61
    assert watched.value("query_active") is None, "what ended is forgotten after a while"
    watched.metrics.started("q2", "r3", "other")
    watched.metrics.terminated("q2", "r3", "java.lang.IllegalStateException: not ours")
    assert b"other" not in generate_latest(watched.registry)


def test_what_a_person_reads_of_an_error() -> None:
    assert error_line("org.apache.spark.SparkRuntimeException: [BOOM] boom\n\tat x") == "[BOOM] boom"
    assert len(error_line("x" * 9_999)) < 300


def test_labels_are_bounded(watched: Watched) -> None:
    source = _source({"flights": {"0": 3}}, {"flights": {"0": 3}})
    for number in range(3 * QUERIES_MAX):
        watched.clock.now_s += 0.01
        watched.metrics.started(f"id{number}", "r", None)
        watched.metrics.progressed({**_progress(0, source, run="r"), "id": f"id{number}", "name": None})
        if number != 5:
            watched.metrics.terminated(f"id{number}", "r", None)
    page = generate_latest(watched.registry).decode()
    assert len(re.findall(r"^antiphon_spark_query_active", page, re.MULTILINE)) == QUERIES_MAX
    assert 'antiphon_spark_query_active{query="id5"} 1.0' in page, "those that run stay"


def _soon(read: Callable[[], str], *wanted: str) -> str:
    deadline = time.monotonic() + 20
    while True:
        page = read()
        if all(line in page for line in wanted):
            return page
        assert time.monotonic() < deadline, f"{wanted} not in:\n{page}"
        time.sleep(0.05)


@pytest.mark.spark
def test_a_real_query_is_scraped(server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path) -> None:
    spark = antiphon_reader.spark
    first, _ = server.create("flights", 2)
    server.create("copy")
    first.put(build_batch([(b"k", b"v%d" % n, (), 5) for n in range(30)]))
    end = first.end

    def start(name: str) -> Any:
        return (
            antiphon_reader.stream(topic="flights", startingOffsets="earliest")
            .select("key", "value")
            .writeStream.format("antiphon")
            .options(servers=server.address, topic="copy", checkpointLocation=str(tmp_path / name))
            .queryName(name)
            .start()
        )

    with antiphon.spark.watch(spark, port=0) as watch:
        assert watch.address is not None

        def scrape() -> str:
            with urllib.request.urlopen(f"http://{watch.address}/metrics", timeout=10) as page:
                return str(page.read().decode())

        with pytest.raises(InvalidRequestError, match="insecure=True"):
            antiphon.spark.watch(spark, port=0, host="0.0.0.0")
        with pytest.raises(UnavailableError, match="another port"):
            antiphon.spark.watch(spark, port=int(watch.address.rpartition(":")[2]))
        query = start("scraped")
        page = _soon(
            scrape,
            f'antiphon_spark_end_offset{{query="scraped",shard="0",topic="flights"}} {float(end)}',
            'antiphon_spark_lag_offsets{query="scraped",shard="0",topic="flights"} 0.0',
            'antiphon_spark_rows_read_total{query="scraped"} 30.0',
            'antiphon_spark_rows_written_total{query="scraped"} 30.0',
        )
        assert 'antiphon_spark_batch_seconds{part="addBatch",query="scraped"}' in page
        first.put(build_batch([(b"k", b"more", (), 5)]))
        _soon(
            scrape, f'antiphon_spark_end_offset{{query="scraped",shard="0",topic="flights"}} {float(end + 1)}'
        )
        query.stop()
        _soon(scrape, 'antiphon_spark_query_active{query="scraped"} 0.0')
        first.put(build_batch([(b"k", b"lost", (), 5)]))
        first.trim(first.end)
        query = start("scraped")
        with pytest.raises(Exception, match="failOnDataLoss"):
            query.awaitTermination(30)
        page = _soon(scrape, 'antiphon_spark_failures_total{query="scraped"} 1.0')
        assert 'antiphon_spark_starts_total{query="scraped"} 2.0' in page
        assert re.search(r'antiphon_spark_query_failure\{error="DataLossError: flights shard 0', page)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(watch.address.rpartition(":")[2])), timeout=5)
