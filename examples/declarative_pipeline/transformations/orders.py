"""Orders, events of a topic: all of them in a streaming table, sums by product in a view, the large ones back in
a topic, each product's last one in a table of Antiphon's.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import sum as sum_of

spark = SparkSession.active()
SERVERS = os.environ.get("ANTIPHON_SERVERS", "127.0.0.1:7400")


def events() -> DataFrame:
    source = spark.readStream.format("antiphon")
    return source.options(servers=SERVERS, topic="example-orders", startingOffsets="earliest").load()


@dp.table
def orders() -> DataFrame:
    """Every order once, however often the pipeline runs."""
    parsed = events().selectExpr(
        "from_json(cast(value as string), 'product string, amount long') as event", "timestamp as ordered"
    )
    return parsed.select("event.*", "ordered")


@dp.materialized_view
def revenue() -> DataFrame:
    """Computed anew by every run."""
    return spark.read.table("orders").groupBy("product").agg(sum_of("amount").alias("revenue"))


dp.create_sink("large_orders", "antiphon", {"servers": SERVERS, "topic": "example-large-orders"})
dp.create_sink("last_orders", "antiphon", {"servers": SERVERS, "table": "example-last-orders"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Appended exactly once."""
    found = spark.readStream.table("orders").where("amount >= 100")
    return found.selectExpr("product as key", "to_json(struct(product, amount)) as value")


@dp.append_flow(target="last_orders")
def last() -> DataFrame:
    """A row a product. From the topic itself, where the orders of a product are in order."""
    return events().select("key", "value")
