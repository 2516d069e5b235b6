"""Streams in update mode to a table: for running aggregates, which Spark gives to a Python sink in append mode only."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"


def upserts(
    servers: str, table: str, *, partitions: int = 2, **options: str
) -> "Callable[[DataFrame, int], None]":
    """A function for `foreachBatch` that puts each epoch's rows in a table, exactly once.

        counts.writeStream.outputMode("update").foreachBatch(antiphon.spark.upserts(servers, "counts")).start()

    The DataFrame has columns key and value (null: delete the key), and a key at most once per epoch, as an aggregation gives
    them. Rows are sorted before they are written, so an epoch that is run again sends the same requests, which the table's
    leaders recognise.

    Args:
        servers: native addresses, `host:port[,host:port...]`.
        table: the table's name.
        partitions: tasks that write.
        options: more options of the sink, such as `timeoutMs`.
    """

    def write(frame: "DataFrame", epoch: int) -> None:
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        (
            frame.repartition(partitions, "key")
            .sortWithinPartitions("key", "value")
            .write.format("antiphon")
            .mode("append")
            .options(
                servers=servers, table=table, txnId=f"upserts/{query_id}", txnVersion=str(epoch), **options
            )
            .save()
        )

    return write
