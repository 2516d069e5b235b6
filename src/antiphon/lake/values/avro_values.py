"""Avro records as rows, by `fastavro`: a value is one bare datum, one in Confluent's framing, or a container."""

import io
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from antiphon.errors import InvalidRequestError
from antiphon.lake.values.decoding import DecodeError, Decoder, RowDecoder, ValueSpec, unframed
from antiphon.lake.values.options import ValueOptions, required_schema, schema_id, text_of

_PRIMITIVES: Final = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
CONTAINER_MAGIC: Final = b"Obj\x01"
_WIDER: Final = ({"int", "long"}, {"float", "double"})
_TIMES: Final = ("time-millis", "time-micros")
_TIMESTAMPS: Final = (
    "timestamp-millis", "timestamp-micros", "local-timestamp-millis", "local-timestamp-micros",
)  # fmt: skip


def spec(options: ValueOptions) -> ValueSpec:
    """See `spec.Format`, as for the others."""
    container = options.framing == "container"
    schema = options.schema if container else required_schema(options)
    return ValueSpec(
        "avro",
        writers={schema_id(number): text_of(one, "writers") for number, one in options.writers.items()},
        avsc=None if schema is None else text_of(schema, "schema"),
        confluent=options.framing == "confluent",
        container=container,
    )


def fixed_columns(spec: ValueSpec) -> pa.Schema | None:
    """Those of the schema; None where containers bring it."""
    return None if spec.avsc is None else decoder(spec, pa.schema([])).columns


def decoder(spec: ValueSpec, columns: pa.Schema) -> Decoder:  # noqa: ARG001 - the schema has them
    """See `AvroDecoder`."""
    return AvroDecoder(spec.avsc or "", spec.writers, confluent=spec.confluent, container=spec.container)


def learnt(spec: ValueSpec, values: Sequence[bytes | None], source: str) -> ValueSpec:
    """With the schema of the newest container."""
    avsc = learnt_avsc(values)
    if avsc is None:
        raise InvalidRequestError(
            f"{source} has no Avro container to learn the schema from: give a schema, or wait for records"
        )
    return replace(spec, avsc=avsc)


class AvroDecoder(RowDecoder):
    """Reads values with the schema `avsc` (JSON text of a record).

    In Confluent's framing a value names the schema that it was written with: `writers` are the known ones by id, each
    resolved to `avsc` as Avro says; without any, all values were written with `avsc`. A container is a whole Avro file of
    one record, not compressed; it brings its schema, which is resolved in the same way.
    """

    def __init__(
        self, avsc: str, writers: Mapping[int, str], *, confluent: bool, container: bool = False
    ) -> None:
        import fastavro

        self._read: Any = fastavro.schemaless_reader
        self._schema = _parsed(avsc, "value.schema")
        kind = _Types().of(self._schema, "the record")
        if not pa.types.is_struct(kind):
            raise InvalidRequestError(
                "an Avro schema of values has to be a record: its fields become columns"
            )
        super().__init__(kind)
        self._confluent = confluent
        self._container = container
        if writers and not confluent:
            raise InvalidRequestError(
                "Avro schemas by id (writers) are for values in Confluent's framing (framing = confluent)"
            )
        self._writers = {number: _parsed(text, f"value.writers.{number}") for number, text in writers.items()}

    def read(self, value: bytes) -> dict[str, Any]:
        """One record; raises one of DECODE_ERRORS."""
        if self._container:
            return self._contained(value)
        writer, body = self._schema, value
        if self._confluent:
            number, payload = unframed(value)
            body = bytes(payload)
            if self._writers:
                found = self._writers.get(number)
                if found is None:
                    raise DecodeError(
                        f"schema id {number} is not known; there is {', '.join(map(str, self._writers))}"
                    )
                writer = found
        stream = io.BytesIO(body)
        row: dict[str, Any] = self._read(stream, writer, self._schema)
        left = len(body) - stream.tell()
        if left:
            raise DecodeError(f"{left} bytes follow the Avro record: it was written with another schema")
        return row

    def _contained(self, value: bytes) -> dict[str, Any]:
        found = _container(value, self._schema)
        rows: list[dict[str, Any]] = list(itertools.islice(found, 2))
        if len(rows) != 1:
            raise DecodeError(f"the Avro container has {'no record' if not rows else 'several records'}")
        return rows[0]


def _container(value: bytes, schema: Any = None) -> Any:
    """A container's reader. Compressed ones are refused: a few bytes could come to any number."""
    import fastavro

    if value[: len(CONTAINER_MAGIC)] != CONTAINER_MAGIC:
        raise DecodeError("the value is no Avro container")
    found = fastavro.reader(io.BytesIO(value), reader_schema=schema)
    if found.codec != "null":
        raise DecodeError(f"the Avro container is compressed ({found.codec})")
    return found


def learnt_avsc(values: Sequence[bytes | None]) -> str | None:
    """The schema of the last container among values; None where there is none."""
    for value in reversed(values):
        if value is None:
            continue
        try:
            return json.dumps(_container(value).writer_schema)
        except Exception:  # noqa: BLE001, S112 - whatever fastavro says: the next one may do
            continue
    return None


def _parsed(avsc: str, what: str) -> Any:
    import fastavro

    try:
        loaded = json.loads(avsc)
    except ValueError as error:
        raise InvalidRequestError(f"{what} is not JSON: {error}") from error
    try:
        return fastavro.parse_schema(_without_times(loaded))
    except Exception as error:  # fastavro's errors for wrong schemas have no base class
        raise InvalidRequestError(f"{what} is not an Avro schema: {error}") from error


def _without_times(schema: Any) -> Any:
    """Times of day as the numbers that they are: no kind of lake table has a type for them."""
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if isinstance(schema, dict):
        if schema.get("logicalType") in _TIMES:
            return schema["type"]
        return {
            name: _without_times(value) if name in {"type", "fields", "items", "values"} else value
            for name, value in schema.items()
        }
    return schema


class _Types:
    """Avro types to those of lake tables."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}  # None: still being looked at

    def of(self, schema: Any, where: str) -> pa.DataType:
        """The type; raises InvalidRequestError where a lake table has none."""
        if isinstance(schema, list):
            return self._union(schema, where)
        if isinstance(schema, str):
            return self._by_name(schema, where)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.of(kind, where)
        by_kind: dict[str, Callable[[Any, str], pa.DataType]] = {
            "record": self._record,
            "error": self._record,
            "enum": lambda one, _: self._remember(one, pa.string()),
            "fixed": lambda one, _: self._remember(one, _logical(one) or pa.binary()),
            "array": lambda one, at: pa.list_(self.of(one["items"], f"{at}[]")),
            "map": lambda one, at: pa.map_(pa.string(), self.of(one["values"], f"{at}{{}}")),
        }
        if kind in by_kind:
            return by_kind[kind](schema, where)
        return _logical(schema) or self._by_name(kind, where)

    def _by_name(self, name: str, where: str) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        if name == "null":
            raise InvalidRequestError(
                f"{where} of the Avro schema is always null: it has no type for a column"
            )
        found = self._named.get(name)
        if found is None:
            raise InvalidRequestError(
                f"{where} of the Avro schema contains itself ({name}): that has no columns"
            )
        return found

    def _record(self, schema: Any, where: str) -> pa.DataType:
        self._named[schema["name"]] = None
        fields = [
            pa.field(one["name"], self.of(one["type"], f"{where}.{one['name']}")) for one in schema["fields"]
        ]
        if not fields:
            raise InvalidRequestError(f"{where} of the Avro schema is a record without fields")
        return self._remember(schema, pa.struct(fields))

    def _remember(self, schema: Any, kind: pa.DataType) -> pa.DataType:
        self._named[schema["name"]] = kind
        return kind

    def _union(self, branches: list[Any], where: str) -> pa.DataType:
        some = [branch for branch in branches if branch != "null"]
        if len(some) == 1:
            return self.of(some[0], where)
        names = {branch for branch in some if isinstance(branch, str)}
        for pair in _WIDER:
            if names == pair and len(some) == len(names):
                return _PRIMITIVES["long" if "long" in pair else "double"]
        raise InvalidRequestError(
            f"{where} of the Avro schema is a union of several types, which no column can hold; keep such values raw"
        )


def _logical(schema: Any) -> pa.DataType | None:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(min(38, schema["precision"]), schema.get("scale", 0))
    if logical == "date":
        return pa.date32()
    if logical in _TIMESTAMPS:
        return pa.timestamp("us", "UTC")
    if logical == "uuid":
        return pa.string()
    return None
