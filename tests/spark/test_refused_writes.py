"""What can never be written is told once, on the driver: without a JVM, as Spark calls the sink."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from antiphon.errors import (
    BatchTooLargeError,
    InvalidRequestError,
    UnknownShardError,
    UnknownTopicError,
    WrongKindError,
)
from antiphon.model.metadata import Kind
from antiphon.spark.source import AntiphonDataSource
from tests.spark.native_server import NativeServer

SCHEMA = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])
PROTOCOLS = ("staged", "direct")


def source_of(server: NativeServer, **options: str) -> AntiphonDataSource:
    raw = {"servers": server.address, "timeoutms": "3000"}
    return AntiphonDataSource(raw | {name.lower(): value for name, value in options.items()})


def rows(*pairs: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    keys, values = zip(*pairs, strict=True)
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


@pytest.mark.parametrize("streaming", [False, True], ids=["batch", "stream"])
@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"topic": "nothing"}, UnknownTopicError, "there is no topic 'nothing'"),
        ({"table": "nothing"}, UnknownTopicError, "there is no table 'nothing'"),
        ({"topic": "state"}, WrongKindError, 'state is a table: give option\\("table"'),
        ({"topic": "shared"}, InvalidRequestError, "every replica of shared takes writes"),
    ],
)
def test_a_target_that_cannot_be_written_is_told_before_there_are_tasks(
    server: NativeServer, options: dict[str, str], kind: type[Exception], words: str, streaming: bool
) -> None:
    server.create("state", kind=Kind.TABLE)
    server.create("shared", config={"writers": "multi"})
    source = source_of(server, **options)
    with pytest.raises(kind, match=words):
        (source.streamWriter if streaming else source.writer)(SCHEMA, overwrite=False)


def test_a_target_that_one_node_does_not_know_yet_is_no_mistake(server: NativeServer) -> None:
    server.create("out")
    server.faults.forgetful = 1
    source_of(server, topic="out").writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("pair", "kind", "words"),
    [
        ((None, b"v"), InvalidRequestError, "row 1 has no key"),
        ((b"k" * 70_000, b"v"), InvalidRequestError, "a key of 70000 bytes"),
        ((b"k", b"v" * 3_000), BatchTooLargeError, "max.message.bytes"),
    ],
)
def test_a_row_that_a_table_does_not_take_fails_the_commit_and_no_task(
    server: NativeServer, protocol: str, pair: Any, kind: type[Exception], words: str
) -> None:
    limit = "100000" if kind is InvalidRequestError else "2000"
    (shard,) = server.create("state", 1, Kind.TABLE, {"max.message.bytes": limit})
    sink = source_of(server, table="state", protocol=protocol).writer(SCHEMA, overwrite=False)
    left = iter([rows((b"a", b"1"), pair), rows((b"b", b"2"))])
    refused = sink.write(left)
    assert list(left) == [], "Spark wants its rows taken"
    with pytest.raises(kind, match=words):
        sink.commit([sink.write(iter([rows((b"c", b"3"))])), refused])
    assert protocol == "direct" or not shard.rows, "nothing of the write is in the table"
    stream = source_of(server, table="state", protocol=protocol).streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(kind, match=words):
        stream.commit([refused], 0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_row_that_asks_for_a_shard_that_is_not_there_fails_the_commit(
    server: NativeServer, protocol: str
) -> None:
    server.create("out", 2)
    schema = StructType([StructField("value", BinaryType()), StructField("shard", IntegerType())])
    sink = source_of(server, topic="out", protocol=protocol).writer(schema, overwrite=False)
    batch = pa.record_batch({"value": pa.array([b"v", b"w"]), "shard": pa.array([1, 7], pa.int32())})
    refused = sink.write(iter([batch]))
    with pytest.raises(UnknownShardError, match=r"a row asks for 7 \(row 1 of"):
        sink.commit([refused])


def test_what_may_pass_is_still_tried_again(server: NativeServer) -> None:
    server.create("out")
    sink = source_of(server, topic="out", protocol="direct", timeoutMs="300").writer(SCHEMA, overwrite=False)
    server.faults.deny_leadership = 1_000
    with pytest.raises(Exception, match=r"no answer|not me"):
        sink.write(iter([rows((b"a", b"1"))]))
