"""`format("antiphon")`: the data source that Spark sees. Says what can be done with it and hands over to who does it.

Spark starts several processes for each epoch that just ask what to do, so readers and writers are imported where needed.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from antiphon.spark.read.options import Shape, parse_read, parse_shape
from antiphon.spark.schema import check_schema, chosen, format_schema, topic_schema, with_text_keys

if TYPE_CHECKING:
    from antiphon.spark.read.log_reader import LogStreamReader
    from antiphon.spark.write.sink import BatchSink, StreamSink


class AntiphonDataSource(DataSource):
    """Topics and tables of an Antiphon cluster.

    | use | what |
    |---|---|
    | `spark.read`, `spark.readStream` with option topic | records: `schema.topic_schema` |
    | `spark.readStream` with option table, or `spark.read` and mode=changes | a row a change: `schema.table_schema` |
    | `spark.read` with option table | a row a key: `schema.table_schema` |
    | `df.write.mode("append")`, `df.writeStream` | appends records, or puts and deletes rows; see `spark.write.sink` |

    All options: `antiphon.spark.read.options`. All of them raise InvalidRequestError naming the option that is wrong.
    """

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "antiphon"

    def schema(self) -> StructType:
        """Columns that the options lead to. Spark asks before it says whether it will read at once or stream."""
        shape = parse_shape(self.options)
        return chosen(_all_columns(shape), shape.columns)

    def reader(self, schema: StructType) -> Any:
        """A batch read."""
        options = parse_read(self.options, streaming=False)
        self._check(schema)
        if options.mode == "snapshot":
            from antiphon.spark.read.snapshot import SnapshotReader

            return SnapshotReader(options, schema)
        from antiphon.spark.read.log_reader import LogBatchReader

        return LogBatchReader(options, schema)

    def streamReader(self, schema: StructType) -> "LogStreamReader":  # noqa: N802 - Spark's name
        """A streaming read."""
        from antiphon.spark.read.log_reader import LogStreamReader

        options = parse_read(self.options, streaming=True)
        self._check(schema)
        return LogStreamReader(options, schema)

    def _check(self, schema: StructType) -> None:
        shape = parse_shape(self.options)
        check_schema(schema, _all_columns(shape), shape.columns)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchSink":
        """A batch write."""
        from antiphon.spark.write.options import parse_write
        from antiphon.spark.write.sink import BatchSink

        return BatchSink(parse_write(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamSink":  # noqa: N802 - Spark's name
        """A streaming write."""
        from antiphon.spark.write.options import parse_write
        from antiphon.spark.write.sink import StreamSink

        return StreamSink(parse_write(self.options, streaming=True), schema, overwrite=overwrite)


def _all_columns(shape: Shape) -> StructType:
    found = (
        format_schema(shape.format) if shape.is_table else topic_schema(include_headers=shape.include_headers)
    )
    return with_text_keys(found) if shape.key_format == "string" else found
