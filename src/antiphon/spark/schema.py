"""Columns of what Antiphon gives to Spark, and the exact Arrow types that Spark insists on."""

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa


def _columns(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind, nullable=True) for name, kind in columns])


HEADERS = ArrayType(
    StructType(
        [StructField("key", StringType(), nullable=True), StructField("value", BinaryType(), nullable=True)]
    ),
    containsNull=True,
)

_KEY_VALUE = (("key", BinaryType()), ("value", BinaryType()))
_PLACE = (("partition", IntegerType()), ("offset", LongType()))
_VERSION = (
    ("version", LongType()),
    ("modifications", LongType()),
    ("created", TimestampType()),
    ("modified", TimestampType()),
)


def topic_schema(*, include_headers: bool) -> StructType:
    """Columns of a topic; the names and types of Spark's Kafka source, and the term."""
    headers = (("headers", HEADERS),) if include_headers else ()
    return _columns(
        *_KEY_VALUE,
        ("topic", StringType()),
        *_PLACE,
        ("timestamp", TimestampType()),
        ("timestampType", IntegerType()),
        *headers,
        ("term", LongType()),
    )


def table_schema() -> StructType:
    """Columns of a table: the same for its changes and for its state.

    A change: `kind` is created, modified or deleted; `value` is the new value, null when deleted; version, modifications,
    created and modified are those of the new row, or of the removed one; timestamp is when the change was made.
    A row of the state: its last change; `offset` is null unless the state was rebuilt from the log (asOfOffset,
    asOfTimestamp).
    """
    return _columns(
        *_KEY_VALUE,
        ("kind", StringType()),
        *_VERSION,
        ("table", StringType()),
        *_PLACE,
        ("timestamp", TimestampType()),
    )


def arrow_schema(schema: Any) -> "pa.Schema":
    """The Arrow schema that Spark compares record batches with, byte for byte."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
