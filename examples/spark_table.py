"""Spark and a table: write rows, read the state, the changes, and the state as it was.

antiphon up --nodes 3          # in another terminal
python examples/spark_table.py 127.0.0.1:7400
"""

import json
import sys

import antiphon
import antiphon.spark


def main(servers: str) -> None:
    spark = antiphon.spark.session("example")
    with antiphon.connect(servers) as db:
        table = db.create_table("example-airports", shards=2)
        log = db.topic("example-airports", any_kind=True)

        # A DataFrame with columns key and value; a null value deletes the key. Under the same txnId it is written once.
        airports = spark.createDataFrame(
            [("JFK", "open"), ("LGA", "open"), ("EWR", "open")], "key string, value string"
        )
        for _ in range(2):
            airports.write.format("antiphon").mode("append").options(
                servers=servers, table="example-airports", txnId="first-load"
            ).save()
        before = {str(shard): log.offsets(shard)[1] for shard in range(table.shards)}
        table.put("LGA", b"closed")
        table.delete("EWR")

        reader = spark.read.format("antiphon").options(servers=servers, table="example-airports")
        print("the state now:")
        reader.load().selectExpr("cast(key as string)", "cast(value as string)", "kind", "version").orderBy(
            "key"
        ).show()
        print("every change:")
        changes = reader.option("mode", "changes").load()
        changes.selectExpr(
            "cast(key as string)", "cast(value as string)", "kind", "partition", "offset"
        ).show()
        print("the state before:")
        past = (
            spark.read.format("antiphon")
            .options(
                servers=servers, table="example-airports", asOfOffset=json.dumps({"example-airports": before})
            )
            .load()
        )
        past.selectExpr("cast(key as string)", "cast(value as string)").orderBy("key").show()
        db.delete_table("example-airports")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7400")
