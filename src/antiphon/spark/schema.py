"""Columns of what Antiphon gives to Spark, and the exact Arrow types that Spark insists on."""

from collections.abc import Sequence
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

from antiphon.client.given import meant
from antiphon.errors import InvalidRequestError

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


def cdf_schema() -> StructType:
    """Columns of a table's changes as Delta's change data feed names them.

    `_change_type` is insert, update_postimage or delete (then `value` is null); `_commit_version` is the change's offset in
    its shard, the column `partition`; `_commit_timestamp` is when the change was made.
    """
    return _columns(
        *_KEY_VALUE,
        *_VERSION,
        ("table", StringType()),
        ("partition", IntegerType()),
        ("_change_type", StringType()),
        ("_commit_version", LongType()),
        ("_commit_timestamp", TimestampType()),
    )


def debezium_schema() -> StructType:
    """Columns of a table's changes as records that Debezium would write: `value` is its envelope in JSON."""
    return _columns(
        ("key", BinaryType()),
        ("value", StringType()),
        ("table", StringType()),
        *_PLACE,
        ("timestamp", TimestampType()),
    )


def format_schema(format_: str) -> StructType:
    """Columns of a table's changes in a format."""
    return {"raw": table_schema, "cdf": cdf_schema, "debezium": debezium_schema}[format_]()


def with_text_keys(schema: StructType) -> StructType:
    """The same with keys as text (`keyFormat=string`)."""
    text = StructField("key", StringType(), nullable=True)
    return StructType([text if column.name == "key" else column for column in schema])


def chosen(schema: StructType, names: Sequence[str] | None) -> StructType:
    """The columns that option `columns` names, in its order; all where it was not given. Raises InvalidRequestError."""
    if names is None:
        return schema
    known = {column.name: column for column in schema}
    found = []
    for name in names:
        column = known.get(name)
        if column is None:
            hint = "set includeHeaders=true" if name == "headers" else meant(name, known)
            raise InvalidRequestError(f"option columns names {name!r}: {hint}")
        found.append(column)
    return StructType(found)


def check_schema(asked: StructType, known: StructType, names: Sequence[str] | None) -> None:
    """Refuse a schema that the user gave (`.schema(...)`) unless it is a choice of the columns with their types.

    Raises InvalidRequestError that names the column.
    """
    offered = {column.name: column for column in known}
    for column in asked:
        if column.name not in offered:
            raise InvalidRequestError(
                f"the schema asks for a column {column.name!r}: {meant(column.name, offered)} Values come as they are; "
                "take them apart with from_json, from_avro or from_protobuf"
            )
        own = offered[column.name].dataType
        if column.dataType.simpleString() != own.simpleString():
            raise InvalidRequestError(
                f"the schema has column {column.name} as {column.dataType.simpleString()}, but it is "
                f"{own.simpleString()}: cast it after reading"
            )
        if not column.nullable:
            raise InvalidRequestError(f"the schema has column {column.name} as not null: leave that out")
    if not len(asked):
        raise InvalidRequestError("the schema has no columns: leave .schema(...) out to read all")
    if names is not None and tuple(asked.names) != tuple(names):
        raise InvalidRequestError("give either .schema(...) or option columns, not both")


def arrow_schema(schema: Any) -> "pa.Schema":
    """The Arrow schema that Spark compares record batches with, byte for byte."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
