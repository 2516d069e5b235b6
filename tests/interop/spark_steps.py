"""What is done with Spark's Kafka connector: `python -m tests.interop.spark_steps KAFKA JARS FOLDER FILE`.

FILE gets the outcome of each step as JSON.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_END, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions

from tests.interop.suite import Outcome

ROWS = 1_000
PARTITIONS = 4
FAILURES = (PySparkException, Py4JError)
Step = Callable[[], None]


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {str(found)[:150]}, not {str(wanted)[:150]}")


class Steps:
    """The steps, in order; the later ones read what the first wrote."""

    def __init__(self, spark: SparkSession, kafka: str, folder: Path) -> None:
        self._spark = spark
        self._kafka = kafka
        self._folder = folder
        self._admin = AdminClient({"bootstrap.servers": kafka})
        made = self._admin.create_topics([NewTopic(name, PARTITIONS) for name in ("spark-in", "spark-out")])
        for answer in made.values():
            answer.result()

    def all(self) -> Iterator[tuple[str, Step]]:
        """Steps with their names."""
        yield "a batch is written", self._write
        yield "a batch is read, with keys, values, headers and timestamps", self._read
        yield "a batch is read between offsets", self._read_between
        yield "a batch is read from a time on", self._read_by_time
        yield "topics are read by pattern", self._read_by_pattern
        yield "a stream is read, and goes on where it stopped", self._stream
        yield "a stream is read in small batches", self._small_batches
        yield "a stream is written", self._stream_out
        yield "what was aborted is not read", self._read_committed
        yield "reading begins at what DeleteRecords left", self._deleted
        yield "offsets that are gone are an error", self._data_loss

    def _rows(self, first: int, end: int) -> DataFrame:
        number = functions.col("id").cast("string")
        header = functions.struct(functions.lit("number").alias("key"), number.cast("binary").alias("value"))
        value = functions.concat(functions.lit("value "), number).alias("value")
        return self._spark.range(first, end).select(
            number.alias("key"), value, functions.array(header).alias("headers")
        )

    def _append(self, rows: DataFrame, topic: str) -> None:
        rows.write.format("kafka").options(**self._options(topic=topic, includeHeaders="true")).save()

    def _options(self, **options: str) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._kafka} | options

    def _batch(self, **options: str) -> DataFrame:
        return self._spark.read.format("kafka").options(**self._options(**options)).load()

    def _write(self) -> None:
        self._append(self._rows(0, ROWS), "spark-in")

    def _read(self) -> None:
        found = self._batch(subscribe="spark-in", includeHeaders="true")
        rows = found.select(
            functions.col("key").cast("string"),
            functions.col("value").cast("string"),
            "headers",
            "timestamp",
            "timestampType",
        ).collect()
        wanted = {(str(number), f"value {number}") for number in range(ROWS)}
        _same({(row[0], row[1]) for row in rows}, wanted)
        _same(len(rows), ROWS)
        _same(all(bytes(row.headers[0].value).decode() == row[0] for row in rows), True)
        _same({row.timestampType for row in rows}, {0})

    def _read_between(self) -> None:
        first, end = (json.dumps({"spark-in": {"0": offset}}) for offset in (10, 30))
        found = self._batch(assign='{"spark-in": [0]}', startingOffsets=first, endingOffsets=end)
        _same(sorted(row.offset for row in found.select("offset").collect()), list(range(10, 30)))

    def _read_by_time(self) -> None:
        times = (
            self._batch(subscribe="spark-in")
            .agg(functions.min("timestamp"), functions.max("timestamp"))
            .first()
        )
        assert times is not None
        first = str(int(times[0].timestamp() * 1000) - 1_000)
        _same(self._batch(subscribe="spark-in", startingTimestamp=first).count(), ROWS)
        late = str(int(times[1].timestamp() * 1000) + 3_600_000)
        latest = "latest"
        found = self._batch(
            subscribe="spark-in", startingTimestamp=late, startingOffsetsByTimestampStrategy=latest
        )
        _same(found.count(), 0)

    def _read_by_pattern(self) -> None:
        _same(self._batch(subscribePattern="spark-i.*").count(), ROWS)

    def _stream(self) -> None:
        _same(self._streamed("first"), ROWS)
        self._append(self._rows(ROWS, ROWS + 50), "spark-in")
        _same(self._streamed("first"), ROWS + 50)

    def _streamed(self, name: str, **options: str) -> int:
        """Rows in the folder after the stream has read all that there is."""
        read = self._spark.readStream.format("kafka")
        read = read.options(**self._options(subscribe="spark-in", startingOffsets="earliest", **options))
        out = str(self._folder / name)
        query = (
            read.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", f"{out}-checkpoint")
            .trigger(availableNow=True)
            .start(out)
        )
        query.awaitTermination()
        self._batches = len([one for one in query.recentProgress if one["numInputRows"]])
        rows: int = self._spark.read.parquet(out).count()
        return rows

    def _small_batches(self) -> None:
        _same(self._streamed("small", maxOffsetsPerTrigger="300"), ROWS + 50)
        _same(self._batches, 4)

    def _stream_out(self) -> None:
        read = self._spark.readStream.format("kafka")
        read = read.options(**self._options(subscribe="spark-in", startingOffsets="earliest"))
        query = (
            read.load()
            .select("key", "value")
            .writeStream.format("kafka")
            .options(
                **self._options(topic="spark-out", checkpointLocation=str(self._folder / "out-checkpoint"))
            )
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        here, there = (self._batch(subscribe=name) for name in ("spark-in", "spark-out"))
        pairs = ("key", "value")
        _same(there.select(*pairs).exceptAll(here.select(*pairs)).count(), 0)
        _same(there.count(), ROWS + 50)

    def _read_committed(self) -> None:
        producer = Producer({"bootstrap.servers": self._kafka, "transactional.id": "spark"})
        producer.init_transactions()
        for value, end in (
            (b"aborted", producer.abort_transaction),
            (b"committed", producer.commit_transaction),
        ):
            producer.begin_transaction()
            producer.produce("spark-paid", value, partition=0)
            producer.flush()
            end()
        for level, wanted in (
            ("read_committed", [b"committed"]),
            ("read_uncommitted", [b"aborted", b"committed"]),
        ):
            found = self._batch(subscribe="spark-paid", **{"kafka.isolation.level": level})
            _same([bytes(row.value) for row in found.orderBy("offset").collect()], wanted)

    def _deleted(self) -> None:
        wanted = [TopicPartition("spark-out", 0, OFFSET_END)]
        for answer in self._admin.delete_records(wanted).values():
            answer.result()
        found = self._batch(subscribe="spark-out")
        _same(found.where("partition = 0").count(), 0)
        _same(found.where("partition = 1").count() > 0, True)

    def _data_loss(self) -> None:
        first = json.dumps({"spark-out": {"0": 0}})
        try:
            self._batch(assign='{"spark-out": [0]}', startingOffsets=first).count()
        except FAILURES as error:
            if "data may have been lost" not in str(error):
                raise
        else:
            raise AssertionError("records that were deleted were read")


def main(kafka: str, jars: str, folder: Path) -> list[Outcome]:
    """Run all steps."""
    settings: dict[str, Any] = {
        "spark.jars": jars,
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master("local[2]").appName("interop")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    outcomes = []
    for name, step in Steps(spark, kafka, folder).all():
        try:
            step()
        except (*FAILURES, KafkaException, AssertionError) as error:
            outcomes.append(Outcome(name, "failed", str(error)[:300]))
        else:
            outcomes.append(Outcome(name, "passed"))
    spark.stop()
    return outcomes


if __name__ == "__main__":
    told = main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
    Path(sys.argv[4]).write_text(json.dumps(told))
