"""How values are to be read, from what users give: checked whole before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import InvalidRequestError
from antiphon.lake.mirror import Source
from antiphon.lake.targets.staged import lake_schema
from antiphon.lake.values.avro_values import learnt_avsc
from antiphon.lake.values.ddl import parse_columns
from antiphon.lake.values.decoding import FORMATS, NEW_FIELDS, ValueSpec, check_choice
from antiphon.lake.values.json_values import infer_columns
from antiphon.model.requests import ListOffset
from antiphon.spark.option_values import parse_servers

SAMPLE_OFFSETS: Final = 5_000  # from each end of the log, over all shards
FRAMINGS: Final = ("none", "confluent", "container")
LIST_LATEST: Final = -1


@dataclass(frozen=True)
class ValueOptions:
    """What a job is told of its values.

    `format`: raw, text, json, avro or protobuf. `schema`: of JSON columns as DDL (`id bigint, name string`), a StructType or
    an Arrow schema, or None to learn them from a sample; of Avro the schema's JSON or a file of it; of Protobuf a file that
    `protoc --include_imports --descriptor_set_out` made, or its bytes. `message`: the Protobuf message's full name.
    `framing`: `confluent` where values begin with a schema id; `container` where each is an Avro file of one record, which
    brings its schema (then `schema` may be left out: the newest record's is taken). `writers`: Avro schemas by that id.
    `new_fields`: what becomes of JSON fields without a column: `add` one (default without a schema), `rest` (default with
    one: kept as JSON in `_rest`), `drop`, or `reject` the record.
    """

    format: str = "raw"
    schema: Any = None
    message: str | None = None
    framing: str = "none"
    writers: Mapping[Any, str] = field(default_factory=dict, hash=False)
    new_fields: str | None = None


def value_spec(options: ValueOptions) -> ValueSpec:
    """The checked form. Raises InvalidRequestError naming the option."""
    check_choice("format", options.format, FORMATS)
    confluent = check_choice("framing", options.framing, FRAMINGS) == "confluent"
    _check_applies(options)
    container = options.framing == "container"
    spec = ValueSpec(options.format)
    if options.format == "json":
        default = "add" if options.schema is None else "rest"
        new_fields = check_choice("new_fields", options.new_fields or default, NEW_FIELDS)
        columns = None if options.schema is None else lake_schema(_columns(options.schema))
        spec = ValueSpec("json", columns, new_fields=new_fields)
        spec.decoder(columns or pa.schema([]))  # refuses types that JSON has not
    elif options.format == "avro":
        writers = {_schema_id(number): _text(one, "writers") for number, one in options.writers.items()}
        avsc = None if options.schema is None else _text(options.schema, "schema")
        spec = ValueSpec("avro", avsc=avsc, writers=writers, confluent=confluent, container=container)
    elif options.format == "protobuf":
        spec = ValueSpec(
            "protobuf", descriptors=_bytes(options.schema), message=options.message, confluent=confluent
        )
    columns = spec.fixed_columns()
    if columns is not None:
        lake_schema(columns)
    return spec


def _check_applies(options: ValueOptions) -> None:
    given = {
        "schema": (options.schema, ("json", "avro", "protobuf")),
        "message": (options.message, ("protobuf",)),
        "writers": (options.writers or None, ("avro",)),
        "new_fields": (options.new_fields, ("json",)),
        "framing": (None if options.framing == "none" else options.framing, ("avro", "protobuf")),
    }
    for name, (value, formats) in given.items():
        if value is not None and options.format not in formats:
            raise InvalidRequestError(
                f"{name} is for format {' or '.join(formats)}, not for {options.format}"
            )
    if options.framing == "container" and options.format != "avro":
        raise InvalidRequestError("framing container is for format avro")
    if options.format in {"avro", "protobuf"} and options.schema is None and options.framing != "container":
        raise InvalidRequestError(f"format {options.format} needs a schema")
    if options.format == "protobuf" and not options.message:
        raise InvalidRequestError("format protobuf needs message, the full name of the values' message type")


def _columns(schema: Any) -> pa.Schema:
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


def _schema_id(number: Any) -> int:
    try:
        return int(number)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"writers are named by their schema id, a number, not {number!r}") from None


def _text(given: Any, what: str) -> str:
    """JSON text, or a file of it."""
    if isinstance(given, Mapping | list):
        import json

        return json.dumps(given)
    text = str(given)
    if text.lstrip()[:1] in {"{", "[", '"'}:
        return text
    return _file(text, what).decode("utf-8", "replace")


def _bytes(given: Any) -> bytes:
    return given if isinstance(given, bytes) else _file(str(given), "schema")


def _file(path: str, what: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{what}: the file {path} cannot be read: {error.strerror}") from error


# -- looking at the cluster -------------------------------------------------------------------------------------------


def shard_ends(source: Source, timeout_ms: int) -> dict[int, tuple[int, int]]:
    """First offset and committed end of every shard, now."""
    with Cluster(parse_servers(source.servers), timeout_ms) as cluster:
        shards = cluster.topic(source.name, table=source.is_table).shards
        calls = [ShardCall(shard.shard_id, ListOffset(shard.shard_id, LIST_LATEST)) for shard in shards]
        replies = [answer.body for answer in cluster.call_all(calls)]
    return {
        shard.index: (int(reply.log_start), int(reply.high_watermark))
        for shard, reply in zip(shards, replies, strict=True)
    }


def learnt(spark: Any, source: Source, spec: ValueSpec, timeout_ms: int) -> ValueSpec:
    """With the schema that the oldest and the newest records have. JSON without records has no columns yet."""
    values = _sample(spark, source, timeout_ms)
    if spec.format == "json":
        return replace(spec, schema=infer_columns(values))
    avsc = learnt_avsc(values)
    if avsc is None:
        raise InvalidRequestError(
            f"{source.name} has no Avro container to learn the schema from: give a schema, or wait for records"
        )
    return replace(spec, avsc=avsc)


def _sample(spark: Any, source: Source, timeout_ms: int) -> list[bytes | None]:
    """Values of records from both ends of the log."""
    ends = shard_ends(source, timeout_ms)
    each = max(1, SAMPLE_OFFSETS // max(1, len(ends)))
    ranges = [
        {shard: (start, min(end, start + each)) for shard, (start, end) in ends.items()},
        {shard: (max(start + each, end - each), end) for shard, (start, end) in ends.items()},
    ]
    values: list[bytes | None] = []
    for span in ranges:
        chosen = {shard: (start, end) for shard, (start, end) in span.items() if end > start}
        if chosen:
            values += _values(spark, source, chosen, timeout_ms)
    return values


def _values(
    spark: Any, source: Source, span: Mapping[int, tuple[int, int]], timeout_ms: int
) -> list[bytes | None]:
    import json

    kind = {"table": source.name, "mode": "changes"} if source.is_table else {"topic": source.name}
    bounds = {
        name: json.dumps({source.name: {str(shard): pair[at] for shard, pair in span.items()}})
        for at, name in enumerate(("startingOffsets", "endingOffsets"))
    }
    frame = (
        spark.read.format("antiphon")
        .options(servers=source.servers, columns="value", timeoutMs=str(timeout_ms), **kind, **bounds)
        .load()
    )
    return [None if row["value"] is None else bytes(row["value"]) for row in frame.collect()]
