"""Streams with Spark: a topic into another topic and into running counts in a table, each exactly once.

antiphon up --nodes 3          # in another terminal
python examples/spark_stream.py 127.0.0.1:7400
"""

import sys
import tempfile

import antiphon
import antiphon.spark


def main(servers: str) -> None:
    spark = antiphon.spark.session("example")
    with antiphon.connect(servers) as db, tempfile.TemporaryDirectory() as checkpoints:
        words = db.create_topic("example-words", shards=2)
        db.create_topic("example-loud", shards=2)
        counts = db.create_table("example-counts", shards=2)
        sentence = "the quick brown fox jumps over the lazy dog"
        words.append_batch([(word, word) for word in sentence.split()])

        stream = (
            spark.readStream.format("antiphon")
            .options(servers=servers, topic="example-words", startingOffsets="earliest")
            .load()
        )
        loud = stream.selectExpr("key", "upper(cast(value as string)) as value")
        to_topic = (
            loud.writeStream.format("antiphon")
            .options(servers=servers, topic="example-loud", checkpointLocation=f"{checkpoints}/loud")
            .trigger(availableNow=True)
            .start()
        )
        counted = (
            stream.groupBy("key")
            .count()
            .selectExpr("cast(key as string) as key", "cast(count as string) as value")
        )
        to_table = (
            counted.writeStream.outputMode("update")
            .foreachBatch(antiphon.spark.upserts(servers, "example-counts"))
            .option("checkpointLocation", f"{checkpoints}/counts")
            .trigger(availableNow=True)
            .start()
        )
        to_topic.awaitTermination()
        to_table.awaitTermination()

        written = spark.read.format("antiphon").options(servers=servers, topic="example-loud").load()
        written.selectExpr("cast(value as string)", "partition", "offset", "timestamp").show(truncate=False)
        print({row.key.decode(): int(row.value or 0) for row in counts.scan()})
        for name in ("example-words", "example-loud", "example-counts"):
            db.delete_topic(name)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
