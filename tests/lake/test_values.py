"""Values of records into columns: what each format gives, and that bad values are found, each by itself."""

import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError
from antiphon.lake.values.avro_values import learnt_avsc
from antiphon.lake.values.decoding import Decoded, Decoder, ValueSpec, decode
from antiphon.lake.values.json_values import infer_columns
from antiphon.lake.values.options import ValueOptions
from antiphon.lake.values.spec import decoder, fixed_columns, value_spec

COLUMNS = pa.schema(
    [
        ("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)), ("inner", pa.struct([("x", pa.int32()), ("days", pa.list_(pa.date32()))])),
    ]
)  # fmt: skip


def json_decoder(new_fields: str = "add", columns: pa.Schema = COLUMNS, **more: Any) -> Decoder:
    return decoder(ValueSpec("json", columns, new_fields=new_fields, **more), columns)


def decoded(decoder: Decoder, *values: bytes) -> Decoded:
    found = decode(decoder, pa.array(values, pa.binary()))
    assert found.columns.num_rows == len(found.good)
    assert sorted(found.good + [index for index, _ in found.bad]) == list(range(len(values)))
    return Decoded(found.columns, found.good, found.bad)


def test_json_of_all_types() -> None:
    value = (
        b' {"id": 7, "name": "\\u00e4\\n", "at": "2024-03-01T10:00:00+02:00", "day": "2024-02-29", "price": 1.25,\n'
        b' "inner": {"x": 1, "days": ["2024-01-01", null]}} '
    )
    found = decoded(json_decoder(), value, b"{}", b'{"inner": null, "price": "7.5"}')
    assert not found.bad
    first, second, third = found.columns.to_pylist()
    assert (first["id"], first["name"], first["price"]) == (7, "ä\n", Decimal("1.25"))
    assert (first["at"].isoformat(), first["day"].isoformat()) == ("2024-03-01T08:00:00+00:00", "2024-02-29")
    assert first["inner"]["x"] == 1
    assert [day and day.isoformat() for day in first["inner"]["days"]] == ["2024-01-01", None]
    assert set(second.values()) == {None}
    assert (third["inner"], third["price"]) == (None, Decimal("7.50"))


BAD_JSON = [
    (b"", "not JSON"), (b"{", "not JSON"), (b'{"id": 1}}', "not JSON"), (b'{"id": 1}{"id": 2}', "not JSON"),
    (b"[1]", "a JSON list where an object is needed"), (b"null", "a JSON NoneType"), (b'{"id": "1"}', "number to string"),
    (b'{"id": 1.5}', "int64"), (b'{"id": 99999999999999999999}', "int64"), (b'{"name": 1}', "string to number"),
    (b'{"day": "2024-02-30"}', "2024-02-30"), (b'{"name": "\xff"}', "UTF8|utf-8|not JSON"), (b'{"name": "\n"}', "not JSON"),
    (b'{"inner": [1]}', "object to array"), (b'{"a":' * 2000 + b"1" + b"}" * 2000, "nested|not JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "why"), BAD_JSON)
def test_a_bad_json_value_alone_is_found(value: bytes, why: str) -> None:
    good = [b'{"id": %d}' % n for n in range(9)]
    found = decoded(json_decoder(), *good[:4], value, *good[4:])
    ((index, reason),) = found.bad
    assert index == 4
    assert any(part in reason for part in why.split("|")), reason
    assert found.columns.column("id").to_pylist() == list(range(9))


FRAGMENTS = st.sampled_from(
    [
        b"{",
        b"}",
        b'"id"',
        b":",
        b"1",
        b"[",
        b"]",
        b",",
        b"\n",
        b'"',
        b"{}",
        b'{"id":1}',
        b'{"id":1.5}',
        b'{"day":"2024-02-30"}',
        b" ",
        b'{"name":"',
        b'"}',
        b"\\",
    ]
)


@given(st.lists(st.lists(FRAGMENTS, max_size=6).map(b"".join), max_size=8))
def test_no_value_is_taken_for_another(values: list[bytes]) -> None:
    """Whatever pieces of JSON stand next to each other, each value is judged as if it stood alone."""
    together = decoded(json_decoder("drop"), *values)
    alone = [decoded(json_decoder("drop"), value) for value in values]
    assert together.good == [index for index, one in enumerate(alone) if not one.bad]
    assert together.columns.to_pylist() == [row for one in alone for row in one.columns.to_pylist()]


def test_fields_without_a_column() -> None:
    values = (
        b'{"id": 1}',
        b'{"id": 2, "new": [1, 2.5], "inner": {"x": 1, "y": {"z": true}}}',
        b'{"id": 3, "new": null}',
    )
    adding = json_decoder("add")
    assert decoded(adding, *values).columns.num_columns == len(COLUMNS)
    assert adding.found == {"new": pa.list_(pa.float64()), "_rest": pa.string()}
    rest = pa.schema([*COLUMNS, pa.field("_rest", pa.string())])
    kept = decoded(json_decoder("rest", rest), *values).columns.column("_rest").to_pylist()
    assert [one and json.loads(one) for one in kept] == [
        None,
        {"new": [1, 2.5], "inner": {"y": {"z": True}}},
        None,
    ]
    assert decoded(json_decoder("drop"), *values).columns.column("inner").to_pylist()[1] == {
        "x": 1,
        "days": None,
    }
    rejected = decoded(json_decoder("reject"), *values)
    assert [index for index, _ in rejected.bad] == [1, 2]


def test_new_fields_that_disagree_are_kept_aside_and_harm_nothing() -> None:
    values = (
        b'{"id": 1, "new": 1, "fine": 1}',
        b'{"id": 2, "new": "one"}',
        b'{"id": 3, "ID": 4, "a b": 5, "_x": 6}',
    )
    decoder = json_decoder("add")
    assert not decoded(decoder, *values).bad
    assert decoder.mixed == {"new"}
    assert decoder.found == {"_rest": pa.string(), "fine": pa.int64()}
    wider = pa.schema([*COLUMNS, pa.field("fine", pa.int64()), pa.field("_rest", pa.string())])
    after = json_decoder("add", wider, blocked=frozenset({"new"}))
    table = decoded(after, *values).columns
    assert table.column("fine").to_pylist() == [1, None, None]
    kept = [json.loads(one) for one in table.column("_rest").to_pylist()]
    assert kept == [{"new": 1}, {"new": "one"}, {"ID": 4, "a b": 5, "_x": 6}]
    assert not after.found


def test_columns_from_a_sample() -> None:
    sample = [
        b'{"a": 1, "b": "x", "c": [1, 2.5], "d": {"e": true, "f": null}, "m": 1, "nothing": null, "when": "2024-01-01"}',
        b'{"a": 2.5, "c": [], "m": "mixed", "g": 12345678901234567890, "A": 1, "a.b": 1}',
        b"not JSON",
        None,
        b'{"d": {"f": 1}, "big": {%s}}' % b",".join(b'"k%d": 1' % n for n in range(101)),
    ]
    assert infer_columns(sample) == pa.schema(
        [
            ("a", pa.float64()), ("b", pa.string()), ("c", pa.list_(pa.float64())),
            ("d", pa.struct([("e", pa.bool_()), ("f", pa.int64())])), ("when", pa.string()),
        ]
    )  # fmt: skip


def test_json_types_that_cannot_be_read_are_refused_at_once() -> None:
    with pytest.raises(InvalidRequestError, match=r"column a\.b: JSON cannot be read as map"):
        json_decoder(columns=pa.schema([("a", pa.struct([("b", pa.map_(pa.string(), pa.int64()))]))]))


def test_plain_values() -> None:
    assert decoded(decoder(ValueSpec("raw"), pa.schema([])), b"\xff").columns.to_pylist() == [
        {"value": b"\xff"}
    ]
    found = decoded(decoder(ValueSpec("text"), pa.schema([])), b"ok", b"\xff", b"fine")
    assert found.columns.to_pylist() == [{"value": "ok"}, {"value": "fine"}]
    assert [index for index, _ in found.bad] == [1]


# -- Avro -----------------------------------------------------------------------------------------------------------

AVSC: dict[str, Any] = {
    "type": "record", "name": "Flight", "fields": [
        {"name": "id", "type": "long"},
        {"name": "tail", "type": ["null", "string"], "default": None},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "legs", "type": {"type": "array", "items": {"type": "map", "values": ["int", "long"]}}},
        {"name": "other", "type": ["null", "Kind"]},
    ],
}  # fmt: skip
FLIGHT = {
    "id": 7, "tail": None, "at": 1_700_000_000_123, "clock": 5, "price": Decimal("1.25"), "kind": "B",
    "legs": [{"x": 2**40}], "other": "A",
}  # fmt: skip


def avro(row: dict[str, Any], schema: Any = AVSC) -> bytes:
    out = io.BytesIO()
    plain = json.loads(json.dumps(schema).replace('"logicalType": "time-millis"', '"doc": ""'))
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), row)
    return out.getvalue()


def test_avro() -> None:
    spec = ValueSpec("avro", avsc=json.dumps(AVSC))
    columns = fixed_columns(spec)
    assert columns is not None
    assert [str(one.type) for one in columns] == [
        "int64", "string", "timestamp[us, tz=UTC]", "int32", "decimal128(10, 2)", "string",
        "list<item: map<string, int64>>", "string",
    ]  # fmt: skip
    good = avro(FLIGHT)
    found = decoded(decoder(spec, columns), good, good[:-1], b"", good + b"x", good)
    assert [index for index, _ in found.bad] == [1, 2, 3]
    assert "1 bytes follow the Avro record" in found.bad[2][1]
    row = found.columns.to_pylist()[1]
    assert (row["id"], row["tail"], row["price"], row["kind"]) == (7, None, Decimal("1.25"), "B")
    assert row["legs"] == [[("x", 2**40)]]
    assert row["at"].isoformat() == "2023-11-14T22:13:20.123000+00:00"


def test_avro_in_confluents_framing() -> None:
    old = {**AVSC, "fields": AVSC["fields"][:1]}
    new = {**AVSC, "fields": [AVSC["fields"][0], {"name": "more", "type": "string", "default": "?"}]}
    spec = ValueSpec(
        "avro", avsc=json.dumps(new), writers={1: json.dumps(old), 2: json.dumps(new)}, confluent=True
    )
    values = (
        b"\0\0\0\0\x01" + avro({"id": 1}, old), b"\0\0\0\0\x02" + avro({"id": 2, "more": "x"}, new),
        b"\0\0\0\0\x03" + avro({"id": 3}, old), b"\x01\0\0\0\x01", b"\0",
    )  # fmt: skip
    found = decoded(decoder(spec, pa.schema([])), *values)
    assert found.columns.to_pylist() == [{"id": 1, "more": "?"}, {"id": 2, "more": "x"}]
    assert found.bad[0][1] == "schema id 3 is not known; there is 1, 2"
    assert "does not begin with a zero byte" in found.bad[1][1]
    alone = ValueSpec("avro", avsc=json.dumps(old), confluent=True)
    assert decoded(decoder(alone, pa.schema([])), values[2]).columns.to_pylist() == [{"id": 3}]


def test_avro_containers_bring_their_schema() -> None:
    def container(schema: Any, *rows: Any, codec: str = "null") -> bytes:
        out = io.BytesIO()
        fastavro.writer(out, fastavro.parse_schema(schema), rows, codec=codec)
        return out.getvalue()

    old = {"type": "record", "name": "a", "fields": [{"name": "id", "type": "long"}]}
    new = {**old, "fields": [*old["fields"], {"name": "more", "type": "string", "default": "?"}]}
    values = [container(old, {"id": 1}), container(new, {"id": 2, "more": "x"})]
    bad = [
        container(old),
        container(old, {"id": 1}, {"id": 2}),
        container(old, {"id": 1}, codec="deflate"),
        b"Obj",
        values[0][:-9],
    ]
    assert learnt_avsc([b"no Avro", None]) is None
    avsc = learnt_avsc([*values, b"no Avro", None])
    assert avsc is not None
    spec = value_spec(ValueOptions("avro", avsc, framing="container"))
    found = decoded(decoder(spec, pa.schema([])), *values, *bad)
    assert found.columns.to_pylist() == [{"id": 1, "more": "?"}, {"id": 2, "more": "x"}]
    assert [index for index, _ in found.bad] == [2, 3, 4, 5, 6]
    assert "is compressed (deflate)" in found.bad[2][1]
    assert fixed_columns(value_spec(ValueOptions("avro", framing="container"))) is None


WRONG_AVRO = [
    ('{"type": "string"}', "has to be a record"),
    ("{", "is not JSON"),
    (
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": "nothing"}]}',
        "is not an Avro schema",
    ),
    (
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": ["string", "int"]}]}',
        "union of several types",
    ),
    (
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": ["null", "a"]}]}',
        r"\.x of .* contains itself",
    ),
    (
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}]}',
        "always null",
    ),
    ('{"type": "record", "name": "a", "fields": []}', "without fields"),
]


@pytest.mark.parametrize(("avsc", "message"), WRONG_AVRO)
def test_avro_schemas_that_have_no_columns(avsc: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        fixed_columns(ValueSpec("avro", avsc=avsc))


# -- Protobuf -------------------------------------------------------------------------------------------------------

Field = descriptor_pb2.FieldDescriptorProto


def proto_file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    leg = file.message_type.add(name="Leg")
    leg.field.add(name="km", number=1, type=Field.TYPE_UINT64, label=Field.LABEL_OPTIONAL)
    one = file.message_type.add(name="Flight")
    one.enum_type.add(name="Kind").value.add(name="NONE", number=0)
    one.field.add(name="id", number=1, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    one.field.add(
        name="tail",
        number=2,
        type=Field.TYPE_STRING,
        label=Field.LABEL_OPTIONAL,
        oneof_index=0,
        proto3_optional=True,
    )
    one.oneof_decl.add(name="_tail")
    one.field.add(
        name="legs", number=3, type=Field.TYPE_MESSAGE, type_name=".air.Leg", label=Field.LABEL_REPEATED
    )
    one.field.add(
        name="first", number=4, type=Field.TYPE_MESSAGE, type_name=".air.Leg", label=Field.LABEL_OPTIONAL
    )
    one.field.add(
        name="kind", number=5, type=Field.TYPE_ENUM, type_name=".air.Flight.Kind", label=Field.LABEL_OPTIONAL
    )
    one.field.add(name="raw", number=6, type=Field.TYPE_BYTES, label=Field.LABEL_OPTIONAL)
    entry = one.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_SINT32, label=Field.LABEL_OPTIONAL)
    one.field.add(
        name="tags",
        number=7,
        type=Field.TYPE_MESSAGE,
        type_name=".air.Flight.TagsEntry",
        label=Field.LABEL_REPEATED,
    )
    tree = file.message_type.add(name="Tree")
    tree.field.add(
        name="down", number=1, type=Field.TYPE_MESSAGE, type_name=".air.Tree", label=Field.LABEL_OPTIONAL
    )
    return file


DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()


def flight(**fields: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(proto_file().SerializeToString())
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("air.Flight"))(**fields)
    found: bytes = made.SerializeToString()
    return found


def test_protobuf() -> None:
    spec = ValueSpec("protobuf", descriptors=DESCRIPTORS, message="air.Flight")
    full = flight(
        id=-5, tail="N1", legs=[{"km": 2**64 - 1}, {}], first={"km": 3}, raw=b"\xff", tags={"a": -1}
    )
    found = decoded(decoder(spec, pa.schema([])), full, b"\xff\xff", b"")
    assert [index for index, _ in found.bad] == [1]
    assert "no air.Flight" in found.bad[0][1]
    first, empty = found.columns.to_pylist()
    assert first == {
        "id": -5, "tail": "N1", "legs": [{"km": Decimal(2**64 - 1)}, {"km": Decimal(0)}], "first": {"km": Decimal(3)},
        "kind": "NONE", "raw": b"\xff", "tags": [("a", -1)],
    }  # fmt: skip
    assert (empty["id"], empty["tail"], empty["legs"], empty["first"]) == (0, None, [], None)


def test_protobuf_in_confluents_framing() -> None:
    spec = ValueSpec("protobuf", descriptors=DESCRIPTORS, message="air.Flight", confluent=True)
    body = flight(id=1)
    values = (
        b"\0\0\0\0\x09\x02\x02" + body,
        b"\0\0\0\0\x09\0" + body,
        b"\0\0\0\0\x09\x02",
        b"\0\0\0\0\x09\xff\xff\xff\xff\xff",
    )
    found = decoded(decoder(spec, pa.schema([])), *values)
    assert found.columns.column("id").to_pylist() == [1]
    assert [why for _, why in found.bad] == [
        "message number [0] of its file, where [1] is expected", "the framing is cut short",
        "a number of the framing is too long",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("descriptors", "message", "error"),
    [
        (b"\xff", "air.Flight", "the descriptor file is none"),
        (
            DESCRIPTORS,
            "air.Flihgt",
            "no message 'air.Flihgt' in the descriptor file; there is air.Flight, air.Leg",
        ),
        (DESCRIPTORS, "air.Tree", "contains itself"),
    ],
)
def test_protobuf_that_has_no_columns(descriptors: bytes, message: str, error: str) -> None:
    with pytest.raises(InvalidRequestError, match=error):
        fixed_columns(ValueSpec("protobuf", descriptors=descriptors, message=message))
