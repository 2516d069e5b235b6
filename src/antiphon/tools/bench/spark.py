"""`antiphon bench spark`: rows read and written by Spark, next to Spark's own Parquet reader and its Kafka connector.

Everything runs in one session on the machine's cores, which the three nodes share. The Kafka connector is a Java library;
Maven brings it where there is Maven and its repository can be reached, else those rows are left out and the table says so.
"""

import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from antiphon.tools.local_cluster import LocalCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]

ROWS: Final = 4_000_000
ROW_BYTES: Final = 128  # key 12, value 100, offset 8, timestamp 8
SHARDS: Final = 4
BEST_OF: Final = 3
WARM_ROWS: Final = 50_000
FLOOR_EPOCHS_MIN: Final = 20
FLOOR_S_MAX: Final = 60.0
MAVEN_TIMEOUT_S: Final = 120

# Each with the versions to try, the best first: not every repository has all of them.
CONNECTOR: Final = (
    ("org.apache.spark:spark-sql-kafka-0-10_2.13", ("4.3.0", "4.2.0", "4.1.1", "4.0.0")),
    ("org.apache.spark:spark-token-provider-kafka-0-10_2.13", ("4.3.0", "4.2.0", "4.1.1", "4.0.0")),
    ("org.apache.kafka:kafka-clients", ("3.9.2", "3.9.1")),
    ("org.apache.commons:commons-pool2", ("2.13.1", "2.12.1")),
)


def measure_spark(seconds: float) -> Rows:
    """Rows read and written per second, the shortest micro-batch, and the audit's bytes per second."""
    import antiphon.spark

    with tempfile.TemporaryDirectory(prefix="antiphon-bench-") as folder, LocalCluster.start() as cluster:
        jars = kafka_connector()
        config = {"spark.driver.memory": "2g"}
        if jars:
            config["spark.jars"] = ",".join(map(str, jars))
        with antiphon.spark.session("bench", config=config) as spark:
            bench = _Bench(spark, cluster, Path(folder), kafka=bool(jars))
            bench.warm_up()
            rows = bench.write() + bench.read() + bench.audit()
            rows += [bench.floor(sink, seconds) for sink in ("noop", "direct", "staged")]
    if not jars:
        rows.append(_row("Spark's Kafka connector: not measured, Maven could not bring it", 0, 0.0))
    return rows


def kafka_connector() -> list[Path]:
    """Jars of Spark's Kafka connector, brought by Maven into the user's cache; none where that does not work."""
    maven = shutil.which("mvn")
    folder = Path.home() / ".cache" / "antiphon" / "kafka-connector"
    found = []
    for artifact, versions in CONNECTOR:
        jar = next((jar for version in versions if (jar := _jar(maven, artifact, version, folder))), None)
        if jar is None:
            return []
        found.append(jar)
    return found


def _jar(maven: str | None, artifact: str, version: str, folder: Path) -> Path | None:
    jar = folder / f"{artifact.partition(':')[2]}-{version}.jar"
    if jar.exists():
        return jar
    if maven is None:
        return None
    command = [
        maven,
        "-q",
        "-B",
        "dependency:copy",
        f"-Dartifact={artifact}:{version}",
        f"-DoutputDirectory={folder}",
    ]
    try:
        subprocess.run(command, capture_output=True, timeout=MAVEN_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return jar if jar.exists() else None


class _Bench:
    """The measurements, one after the other: what was written is read, and what was read is audited."""

    def __init__(self, spark: "SparkSession", cluster: LocalCluster, folder: Path, *, kafka: bool) -> None:
        import antiphon

        self._spark = spark
        self._cluster = cluster
        self._folder = folder
        self._kafka = kafka
        self._parquet = str(folder / "parquet")
        spark.range(0, ROWS, numPartitions=SHARDS).selectExpr(
            "cast(lpad(cast(id as string), 12, '0') as binary) as key",
            "cast(substring(concat(sha2(cast(id as string), 512), id), 1, 100) as binary) as value",
            "id as offset",
            f"timestamp_millis({time.time_ns() // 1_000_000} + id) as timestamp",  # the past would be trimmed at once
        ).write.parquet(self._parquet)
        with antiphon.connect(cluster.native) as db:
            for name in ("warm", "direct", "staged", "kafka", "floor-in", "floor-out"):
                db.create_topic(name, shards=SHARDS, replicas=3)

    def warm_up(self) -> None:
        """Have workers started and code compiled before anything is timed."""
        frame = self._spark.read.parquet(self._parquet).select("key", "value", "timestamp").limit(WARM_ROWS)
        for protocol in ("direct", "staged"):
            self._sink(frame.repartition(SHARDS), "warm", protocol).save()
        if self._kafka:
            kafka = frame.write.format("kafka").option("kafka.bootstrap.servers", self._cluster.kafka)
            kafka.option("topic", "warm").save()

    def _sink(self, frame: "DataFrame", topic: str, protocol: str) -> Any:
        sink = frame.write.format("antiphon").mode("append")
        return sink.options(servers=self._cluster.native, topic=topic, protocol=protocol)

    def write(self) -> Rows:
        """Parquet into a topic, by each protocol."""
        rows = []
        for protocol in ("direct", "staged"):
            frame = self._spark.read.parquet(self._parquet).select("key", "value", "timestamp")
            took = _timed(self._sink(frame, protocol, protocol).save)
            rows.append(_row(f"write, replicas 3, {protocol}", ROWS, took))
        if self._kafka:
            frame = self._spark.read.parquet(self._parquet).select("key", "value", "timestamp")
            kafka = frame.write.format("kafka").option("kafka.bootstrap.servers", self._cluster.kafka)
            took = _timed(kafka.option("topic", "kafka").save)
            rows.append(_row("write, replicas 3, Spark's Kafka connector (at least once)", ROWS, took))
        return rows

    def read(self) -> Rows:
        """The topic that `write` filled, and the Parquet files that it came from, into nothing; the best of three."""
        native = {"servers": self._cluster.native, "topic": "direct"}
        sources: list[tuple[str, Callable[[], DataFrame]]] = [
            ("read Parquet, Spark's own reader", lambda: self._spark.read.parquet(self._parquet)),
            ("read topic", lambda: self._spark.read.format("antiphon").options(**native).load()),
            (
                "read topic from followers",
                lambda: self._spark.read.format("antiphon").options(**native, readFrom="follower").load(),
            ),
        ]
        if self._kafka:
            kafka = {"kafka.bootstrap.servers": self._cluster.kafka, "subscribe": "direct"}
            load = self._spark.read.format("kafka").options(**kafka).load
            sources.append(("read topic, Spark's Kafka connector", load))
        return [_row(name, ROWS, min(_timed(_drain(load)) for _ in range(BEST_OF))) for name, load in sources]

    def audit(self) -> Rows:
        """All replicas of the topic, by the audit job."""
        from antiphon.spark import jobs

        audits = [jobs.audit(self._spark, self._cluster.native, topics=["direct"]) for _ in range(2)]
        report = max(audits, key=lambda one: one.gb_per_s)
        row = _row(f"audit of three replicas: they {report.verdict}", 3 * ROWS, report.log_seconds)
        return [row | {"mb_per_s": round(report.gb_per_s * 1e3, 1)}]

    def floor(self, sink: str, seconds: float) -> dict[str, Any]:
        """Median time of a micro-batch of a few rows, from a topic into nothing or into another topic."""
        import antiphon

        reader = self._spark.readStream.format("antiphon")
        frame = reader.options(servers=self._cluster.native, topic="floor-in").load().select("key", "value")
        writer = frame.writeStream.option("checkpointLocation", str(self._folder / f"floor-{sink}"))
        if sink == "noop":
            query = writer.format("noop").start()
        else:
            options = {"servers": self._cluster.native, "topic": "floor-out", "protocol": sink}
            query = writer.format("antiphon").options(**options).start()
        times: list[int] = []
        end = time.monotonic() + max(seconds, FLOOR_S_MAX)
        with antiphon.connect(self._cluster.native) as db:
            topic = db.topic("floor-in")
            while len(times) < FLOOR_EPOCHS_MIN and time.monotonic() < end and query.isActive:
                topic.append(b"x")
                time.sleep(0.05)
                times = [
                    p["durationMs"]["triggerExecution"] for p in query.recentProgress if p["numInputRows"]
                ]
        query.stop()
        median_ms = statistics.median(times) if times else 0
        return _row(f"micro-batch from a topic, {sink}: median of {len(times)}", 0, median_ms / 1000)


def _drain(load: "Callable[[], DataFrame]") -> Callable[[], None]:
    return lambda: load().write.format("noop").mode("overwrite").save()


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _row(what: str, rows: int, took_s: float) -> dict[str, Any]:
    per_s = rows / took_s if took_s else 0.0
    return {
        "what": what,
        "rows": rows,
        "seconds": round(took_s, 3),
        "rows_per_s": round(per_s),
        "mb_per_s": round(per_s * ROW_BYTES / 1e6, 1),
    }
