"""`format("antiphon")`: the data source that Spark sees. Says what can be done with it and hands over to who does it.

Spark starts several processes for each epoch that just ask what to do, so readers and writers are imported where needed.
"""

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from antiphon.errors import InvalidRequestError
from antiphon.spark.read.options import Shape, parse_read, parse_shape
from antiphon.spark.schema import check_schema, chosen, format_schema, topic_schema, with_text_keys

if TYPE_CHECKING:
    from antiphon.spark.read.log_reader import LogStreamReader
    from antiphon.spark.write.sink import BatchSink, StreamSink

NEEDED: Final = ("numba", "numpy", "pyarrow")  # to read and write rows


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
        _check_libraries()
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

        _check_libraries()
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

        _check_libraries()
        return BatchSink(parse_write(self.options, streaming=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamSink":  # noqa: N802 - Spark's name
        """A streaming write."""
        from antiphon.spark.write.options import parse_write
        from antiphon.spark.write.sink import StreamSink

        _check_libraries()
        return StreamSink(parse_write(self.options, streaming=True), schema, overwrite=overwrite)


def _check_libraries() -> None:
    """What tasks need and planners do without is missed here, once, rather than by four attempts of a task."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InvalidRequestError(
            f"{', '.join(missing)} is not installed in the Python of Spark's driver ({sys.executable}): "
            "pip install 'antiphon[spark]', there and on every executor"
        )


def _all_columns(shape: Shape) -> StructType:
    found = (
        format_schema(shape.format) if shape.is_table else topic_schema(include_headers=shape.include_headers)
    )
    return with_text_keys(found) if shape.key_format == "string" else found
