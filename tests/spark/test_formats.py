"""Changes of a table as Delta's change data feed and as Debezium's envelopes."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import Kind
from antiphon.model.requests import Delete, Put, TableWrite
from antiphon.spark.read.json_text import base64_text, quoted, utf8_text, valid_json
from tests.spark.native_server import NativeServer
from tests.spark.test_reading import Source


@pytest.fixture
def source(server: NativeServer) -> Iterator[Source]:
    source = Source(server)
    yield source
    source.close()


def change(server: NativeServer, *ops: Put | Delete) -> None:
    server.shards[1].write_table(TableWrite(0, ops))


@pytest.fixture
def changed(server: NativeServer) -> None:
    """A key that is created, modified and deleted, and one that stays."""
    server.create("aircraft", kind=Kind.TABLE)
    change(server, Put(b"a", b'{"n": 1}'), Put(b'b"\\\n', b'"x"'))
    change(server, Put(b"a", b"[2]"))
    change(server, Delete(b"a"))


@pytest.mark.usefixtures("changed")
def test_the_change_data_feed(source: Source) -> None:
    rows = source.rows(table="aircraft", format="cdf")
    assert list(rows[0]) == [
        "key", "value", "version", "modifications", "created", "modified", "table", "partition", "_change_type",
        "_commit_version", "_commit_timestamp",
    ]  # fmt: skip
    assert [(row["key"], row["_change_type"], row["value"], row["_commit_version"]) for row in rows] == [
        (b"a", "insert", b'{"n": 1}', 1),
        (b'b"\\\n', "insert", b'"x"', 2),
        (b"a", "update_postimage", b"[2]", 3),
        (b"a", "delete", None, 4),
    ]
    assert all(row["_commit_timestamp"] == row["modified"] for row in rows[:3])


def envelopes(source: Source, **options: Any) -> list[Any]:
    rows = source.rows(table="aircraft", format="debezium", **options)
    return [None if row["value"] is None else json.loads(row["value"]) for row in rows]


@pytest.mark.usefixtures("changed")
def test_debezium_envelopes(source: Source) -> None:
    rows = source.rows(table="aircraft", format="debezium")
    assert list(rows[0]) == ["key", "value", "table", "partition", "offset", "timestamp"]
    first, second, third, fourth = (json.loads(row["value"]) for row in rows)
    assert list(first) == ["before", "after", "source", "op", "ts_ms", "transaction"]
    assert [e["op"] for e in (first, second, third, fourth)] == ["c", "c", "u", "d"]
    assert (first["before"], first["after"]) == (None, {"key": "a", "value": '{"n": 1}'})
    assert second["after"] == {"key": 'b"\\\n', "value": '"x"'}
    assert (third["before"], third["after"]["value"]) == (None, "[2]")
    assert (fourth["before"], fourth["after"]) == ({"key": "a", "value": None}, None)
    assert {key: third["source"][key] for key in ("connector", "name", "table", "partition", "offset")} == {
        "connector": "antiphon", "name": "test", "table": "aircraft", "partition": 0, "offset": 3,
    }  # fmt: skip
    assert third["ts_ms"] == third["source"]["ts_ms"] == int(rows[2]["timestamp"].timestamp() * 1000)


@pytest.mark.usefixtures("changed")
def test_values_as_json_and_base64(source: Source) -> None:
    as_json = envelopes(source, encoding="json")
    assert [e["after"] and e["after"]["value"] for e in as_json] == [{"n": 1}, "x", [2], None]
    as_base64 = envelopes(source, encoding="base64")
    assert as_base64[2]["after"] == {
        "key": base64.b64encode(b"a").decode(),
        "value": base64.b64encode(b"[2]").decode(),
    }


@pytest.mark.usefixtures("changed")
def test_tombstones_follow_deletes(source: Source) -> None:
    rows = source.rows(table="aircraft", format="debezium", tombstones="true")
    assert [(row["key"], row["offset"], row["value"] is None) for row in rows[-2:]] == [
        (b"a", 4, False),
        (b"a", 4, True),
    ]
    assert len(rows) == 5


@pytest.mark.usefixtures("changed")
def test_what_does_not_fit_is_named(server: NativeServer, source: Source) -> None:
    change(server, Put(b"c", b"{not json}"))
    with pytest.raises(
        InvalidRequestError, match="aircraft shard 0, the change at offset 5: the value is not JSON"
    ):
        envelopes(source, encoding="json")
    change(server, Put(b"d", b"\xff\xfe"))
    with pytest.raises(
        InvalidRequestError, match=r"offset 6: a key or value is not UTF-8 text.*base64 takes"
    ):
        envelopes(source)
    assert envelopes(source, encoding="base64")[-1]["after"]["value"] == "//4="


@pytest.mark.usefixtures("changed")
def test_a_choice_of_the_columns_of_a_format(source: Source) -> None:
    rows = source.rows(table="aircraft", format="cdf", columns="_change_type,key")
    assert list(rows[3].items()) == [("_change_type", "delete"), ("key", b"a")]
    stream = source.stream(table="aircraft", format="debezium", columns="value", startingOffsets="earliest")
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    (partition,) = stream.partitions(stream.initialOffset(), end)
    assert sum(batch.num_rows for batch in stream.read(partition)) == 4


# -- JSON by columns ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.text(max_size=8)))
def test_quoted_strings_are_json(texts: list[str | None]) -> None:
    texts = [None if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    for text, found in zip(texts, quoted(pa.array(texts, pa.string())).to_pylist(), strict=True):
        assert (None if found is None else json.loads(found)) == text


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.binary(max_size=7)), st.integers(0, 3))
def test_base64_of_a_column(values: list[bytes | None], skipped: int) -> None:
    column = pa.array(values, pa.binary()).slice(skipped)
    expected = [None if value is None else base64.b64encode(value).decode() for value in values[skipped:]]
    assert base64_text(column).to_pylist() == expected


BAD_JSON = ["", " ", "{", "1,2", "[1", "1]", '{"a":1} 2', "nul", '"a']


@pytest.mark.parametrize("bad", BAD_JSON)
def test_values_that_are_not_json_are_found(bad: str) -> None:
    values = pa.array(["1", None, '{"a": [1, 2]}', " null ", bad, "2"])
    with pytest.raises(InvalidRequestError) as caught:
        valid_json(values)
    assert caught.value.details["row"] == 4


def test_values_that_make_up_for_each_other_are_found() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        valid_json(pa.array(["0", "1,2", "[3", "4]"]))
    assert caught.value.details["row"] == 1


def test_json_stays_as_it_is() -> None:
    values = pa.array(['{ "a" : 1 }', None, "\n[1,\t2]\r"])
    assert valid_json(values).to_pylist() == values.to_pylist()
    assert valid_json(pa.array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize("row", [0, 3, 6])
def test_the_first_value_that_is_no_text_is_found(row: int) -> None:
    values = [b"ok"] * 7
    values[row] = b"\xff"
    with pytest.raises(InvalidRequestError) as caught:
        utf8_text(pa.array(values))
    assert caught.value.details["row"] == row
