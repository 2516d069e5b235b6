"""Streams in update or complete mode to a table: running aggregates, which a Python sink gets in append mode only."""

from typing import TYPE_CHECKING, Final

from antiphon.errors import InvalidRequestError
from antiphon.spark.connect import refusal, refuse_connect
from antiphon.spark.servers import SETTINGS, options_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_QUERY_ID: Final = "sql.streaming.queryId"
_OF_BOTH: Final = ("timeoutms", *(option.lower() for option in SETTINGS.values()))
OUTPUT_MODES: Final = ("update", "complete", "append")


def upserts(
    servers: str, table: str, *, partitions: int = 2, output_mode: str = "update", **options: str
) -> "Callable[[DataFrame, int], None]":
    """A function for `foreachBatch` that puts each epoch's rows in a table, exactly once.

        counts.writeStream.outputMode("update").foreachBatch(antiphon.spark.upserts(servers, "counts")).start()

    The DataFrame has columns key and value (null: delete the key), and a key at most once per epoch, as an aggregation gives
    them.

    Args:
        servers: native addresses, `host:port[,host:port...]`.
        table: the table's name.
        partitions: tasks that write.
        output_mode: the query's own. With `complete` the table is made equal to the epoch's result: keys that are not in it
            (any more) are deleted, whoever had put them there.
        options: more options of the sink, such as `timeoutMs` and `protocol`. With `protocol=direct` rows are sorted before
            they are written, so that an epoch that is run again sends the same requests, which the table's leaders
            recognise; `complete` needs `staged`, since what is to be deleted depends on what is in the table.

    Raises:
        InvalidRequestError: an unknown output mode, or one that does not go with the protocol; Spark Connect.
    """
    if _is_remote():
        raise refusal("antiphon.spark.upserts")
    direct = options.get("protocol", "staged").lower() == "direct"
    if output_mode not in OUTPUT_MODES:
        raise InvalidRequestError(
            f"output_mode={output_mode!r} is unknown; there is {', '.join(OUTPUT_MODES)}"
        )
    if direct and output_mode == "complete":
        raise InvalidRequestError(
            "output_mode=complete needs protocol=staged: what has to be deleted depends on what is in the table, which a "
            "repeated epoch would find changed"
        )

    def write(frame: "DataFrame", epoch: int) -> None:
        refuse_connect(frame.sparkSession, "antiphon.spark.upserts")
        query_id = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
        if query_id is None:
            raise InvalidRequestError("upserts is a function for foreachBatch of a streaming query")
        name = {"txnId": f"upserts/{query_id}", "txnVersion": str(epoch)}
        if direct:
            _save(frame.repartition(partitions, "key").sortWithinPartitions("key", "value"), name)
        elif output_mode == "complete":
            frame.persist()  # it is looked at twice, and an aggregation must not be computed twice
            try:
                _save(_whole(frame).coalesce(partitions), name)
            finally:
                frame.unpersist()
        else:
            _save(frame.coalesce(partitions), name)

    def _save(frame: "DataFrame", name: dict[str, str]) -> None:
        writer = frame.write.format("antiphon").mode("append")
        writer.options(**options_of(servers), table=table, **name, **options).save()

    def _whole(frame: "DataFrame") -> "DataFrame":
        """The result, and a delete for every key of the table that is not in it."""
        result = frame.selectExpr("cast(key as binary) as key", "cast(value as binary) as value")
        now = frame.sparkSession.read.format("antiphon").options(
            **options_of(servers), table=table, **_reads(options)
        )
        gone = now.load().select("key").join(result.select("key"), "key", "left_anti")
        return result.unionByName(gone.selectExpr("key", "cast(null as binary) as value"))

    return write


def _is_remote() -> bool:
    """Does this process talk to Spark by Spark Connect?"""
    try:
        from pyspark.sql import is_remote
    except ImportError:
        return False
    return bool(is_remote())


def _reads(options: dict[str, str]) -> dict[str, str]:
    """Those of a sink's options that a read takes as well."""
    return {name: value for name, value in options.items() if name.lower() in _OF_BOTH}
