"""How values are to be read, from what users give: checked whole before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from antiphon.errors import InvalidRequestError
from antiphon.lake.values.ddl import parse_columns


@dataclass(frozen=True)
class ValueOptions:
    """What a job is told of its values.

    `format`: one of `formats.FORMATS`. `schema`: of JSON columns as DDL (`id bigint, name string`), a StructType or
    an Arrow schema, or None to learn them from a sample; of Avro the schema's JSON or a file of it; of Protobuf a file that
    `protoc --include_imports --descriptor_set_out` made, or its bytes. `message`: the Protobuf message's full name.
    `framing`: `confluent` where values begin with a schema id; `container` where each is an Avro file of one record, which
    brings its schema (then `schema` may be left out: the newest record's is taken). `writers`: Avro schemas by that id.
    `new_fields`: what becomes of JSON fields without a column: `add` one (default without a schema), `rest` (default with
    one: kept as JSON in `_rest`), `drop`, or `reject` the record. `select`: columns as SQL expressions of the decoded ones,
    such as `flight, alt * 0.3048 as altitude_m`; `where`: which rows there are (`projection.Projection`).
    """

    format: str = "raw"
    schema: Any = None
    message: str | None = None
    framing: str = "none"
    writers: Mapping[Any, str] = field(default_factory=dict, hash=False)
    new_fields: str | None = None
    select: str | None = None
    where: str | None = None


# -- for the formats ------------------------------------------------------------------------------------------------


def required_schema(options: ValueOptions) -> Any:
    """The schema of a format that cannot do without; raises InvalidRequestError."""
    if options.schema is None:
        raise InvalidRequestError(f"format {options.format} needs a schema")
    return options.schema


def columns_of(schema: Any) -> pa.Schema:
    """Columns from DDL, a StructType or an Arrow schema; raises InvalidRequestError."""
    if isinstance(schema, str):
        return parse_columns(schema)
    if isinstance(schema, pa.Schema):
        return schema
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    if not isinstance(schema, StructType):
        raise InvalidRequestError(
            f"schema of JSON values has to be DDL, a StructType or an Arrow schema, not {type(schema).__name__}"
        )
    return to_arrow_schema(schema, timezone="UTC")


def schema_id(number: Any) -> int:
    """A key of `writers`; raises InvalidRequestError."""
    try:
        return int(number)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"writers are named by their schema id, a number, not {number!r}") from None


def text_of(given: Any, what: str) -> str:
    """JSON text, or that of a file; raises InvalidRequestError."""
    if isinstance(given, Mapping | list):
        import json

        return json.dumps(given)
    text = str(given)
    if text.lstrip()[:1] in {"{", "[", '"'}:
        return text
    return _file(text, what).decode("utf-8", "replace")


def bytes_of(given: Any) -> bytes:
    """Bytes, or those of a file; raises InvalidRequestError."""
    return given if isinstance(given, bytes) else _file(str(given), "schema")


def _file(path: str, what: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{what}: the file {path} cannot be read: {error.strerror}") from error
