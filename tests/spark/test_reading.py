"""What a reader plans and reads, called as Spark calls it, without a JVM."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from antiphon.client import blocking as connection
from antiphon.errors import (
    AntiphonError,
    CorruptBatchError,
    DataLossError,
    InvalidRequestError,
    TimedOutError,
    UnavailableError,
    UnknownShardError,
    UnknownTopicError,
    UnreachableError,
)
from antiphon.model.metadata import Kind
from antiphon.model.requests import Put, TableWrite
from antiphon.records.builder import build_batch
from antiphon.spark.read.log_reader import LogBatchReader, LogPartition, LogStreamReader
from antiphon.spark.source import AntiphonDataSource
from tests.spark.native_server import MemoryShard, NativeServer

ALL = ReadAllAvailable()


def fill(shard: MemoryShard, count: int, *, first: int = 0, batch: int = 10, size: int = 0) -> None:
    for at in range(first, first + count, batch):
        shard.put(
            build_batch(
                [
                    (b"k%d" % n, b"v%d" % n + b"." * size, (), 1_000_000 + n)
                    for n in range(at, min(at + batch, first + count))
                ]
            )
        )


class Source:
    """The data source with a server's address among its options."""

    def __init__(self, server: NativeServer) -> None:
        self.servers = server.address
        self._streams: list[LogStreamReader] = []

    def made(self, **options: Any) -> AntiphonDataSource:
        named = {"servers": self.servers, "timeoutMs": "5000", **options}
        return AntiphonDataSource({name.lower(): str(value) for name, value in named.items()})

    def batch(self, **options: Any) -> LogBatchReader:
        source = self.made(**options)
        reader: LogBatchReader = source.reader(source.schema())
        return reader

    def stream(self, **options: Any) -> LogStreamReader:
        source = self.made(**options)
        self._streams.append(source.streamReader(source.schema()))
        return self._streams[-1]

    def close(self) -> None:
        for reader in self._streams:
            reader.stop()

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        reader = self.batch(**options)
        return read(reader, reader.partitions())

    def values(self, **options: Any) -> list[bytes]:
        return [row["value"].rstrip(b".") for row in self.rows(**options)]


def read(reader: LogBatchReader | LogStreamReader, partitions: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for partition in partitions:
        for batch in reader.read(partition):
            found += batch.to_pylist()
    return found


def sizes(partitions: list[Any]) -> list[int]:
    assert all(isinstance(partition, LogPartition) for partition in partitions)
    return [partition.span.size for partition in partitions]


def moved(
    reader: LogStreamReader, start: dict[str, Any], limit: Any = ALL
) -> tuple[dict[str, Any], list[bytes]]:
    """One micro-batch: where it ends, and its values."""
    end = reader.latestOffset(start, limit)
    rows = read(reader, reader.partitions(start, end)) if end != start else []
    return end, [row["value"].rstrip(b".") for row in rows]


def values(numbers: range) -> list[bytes]:
    return [b"v%d" % n for n in numbers]


@pytest.fixture
def source(server: NativeServer) -> Iterator[Source]:
    source = Source(server)
    yield source
    source.close()


# -- what is read -------------------------------------------------------------------------------------------------


def test_topics_by_pattern(server: NativeServer, source: Source) -> None:
    for name in ("log-a", "log-b", "other"):
        fill(server.create(name)[0], 3)
    server.create("log-table", kind=Kind.TABLE)
    rows = source.rows(topicPattern="log-.*")
    assert {row["topic"] for row in rows} == {"log-a", "log-b"}
    assert source.rows(topicPattern="nothing") == []


def test_only_some_shards(server: NativeServer, source: Source) -> None:
    for number, shard in enumerate(server.create("t", 3)):
        fill(shard, 2, first=10 * number)
    assert source.values(shards='{"t": [0, 2]}') == [b"v0", b"v1", b"v20", b"v21"]
    assert source.values(topic="t", shards='{"t": [1]}') == [b"v10", b"v11"]
    with pytest.raises(UnknownShardError, match="t has shards 0 to 2, not 3"):
        source.rows(shards='{"t": [3]}')


def test_starts_and_ends_by_time_and_shard(server: NativeServer, source: Source) -> None:
    for shard in server.create("t", 2):
        fill(shard, 30)
    found = source.rows(
        topic="t",
        startingOffsetsByTimestamp='{"t": {"0": 1000020, "1": 1000010}}',
        endingOffsetsByTimestamp='{"t": {"0": 1000029, "1": 1000020}}',
    )
    # This server answers with the start of the batch that holds the first record that late.
    assert [row["value"] for row in found if row["partition"] == 1] == values(range(10, 20))
    late = {"topic": "t", "startingTimestamp": 9_000_000}
    assert source.rows(**late) == []
    with pytest.raises(InvalidRequestError, match="no record as late as 9000000"):
        source.rows(**late, startingOffsetsByTimestampStrategy="error")


def test_a_choice_of_columns(server: NativeServer, source: Source) -> None:
    fill(server.create("t")[0], 2)
    assert source.rows(topic="t", columns="offset,key") == [
        {"offset": 1, "key": b"k0"},
        {"offset": 2, "key": b"k1"},
    ]
    with pytest.raises(InvalidRequestError, match="did you mean offset"):
        source.made(topic="t", columns="offst").schema()
    with pytest.raises(InvalidRequestError, match="includeHeaders"):
        source.made(topic="t", columns="headers").schema()


@pytest.mark.parametrize("fold_bytes_max", [-1, 1 << 30])
def test_a_choice_of_columns_of_a_tables_state(
    server: NativeServer, source: Source, monkeypatch: pytest.MonkeyPatch, fold_bytes_max: int
) -> None:
    monkeypatch.setattr("antiphon.spark.read.snapshot.FOLD_BYTES_MAX", fold_bytes_max)
    (shard,) = server.create("aircraft", kind=Kind.TABLE)
    for number in range(20):
        shard.write_table(TableWrite(0, (Put(b"k%d" % (number % 9), b"v%d" % number),)))
    rows = source.rows(table="aircraft", columns="value,version")
    assert sorted(rows, key=lambda row: row["version"]) == [
        {"value": b"v%d" % number, "version": number} for number in range(11, 20)
    ]


SCHEMAS: list[tuple[StructType, str]] = [
    (StructType().add("flight", LongType()), "from_json"),
    (StructType().add("valu", BinaryType()), "did you mean value?"),
    (StructType().add("value", StringType()), "value as string, but it is binary"),
    (StructType([StructField("value", BinaryType(), nullable=False)]), "not null"),
    (StructType(), "no columns"),
]


@pytest.mark.parametrize(("schema", "message"), SCHEMAS)
def test_a_wrong_schema_is_refused(source: Source, schema: StructType, message: str) -> None:
    made = source.made(topic="t")
    for use in (made.reader, made.streamReader):
        with pytest.raises(InvalidRequestError) as caught:
            use(schema)
        assert message in caught.value.message


def test_a_schema_that_chooses_columns(server: NativeServer, source: Source) -> None:
    fill(server.create("t")[0], 1)
    reader = source.made(topic="t").reader(StructType().add("offset", LongType()).add("value", BinaryType()))
    assert read(reader, reader.partitions()) == [{"offset": 1, "value": b"v0"}]


def test_partitions_are_bounded(server: NativeServer, source: Source) -> None:
    one, two = server.create("t", 2)
    fill(one, 99)
    fill(two, 9)
    assert sizes(source.batch(topic="t").partitions()) == [100, 10]
    assert max(sizes(source.batch(topic="t", maxRecordsPerPartition=30).partitions())) <= 30
    both = source.batch(topic="t", maxRecordsPerPartition=60, minPartitions=5)
    assert (len(both.partitions()) >= 5, max(sizes(both.partitions())) <= 60) == (True, True)
    assert len(read(both, both.partitions())) == 108


# -- how far a micro-batch goes -----------------------------------------------------------------------------------


def test_bytes_per_trigger(server: NativeServer, source: Source) -> None:
    one, two = server.create("t", 2)
    for shard in (one, two):
        fill(shard, 200, size=1000)
    reader = source.stream(topic="t", startingOffsets="earliest", maxBytesPerTrigger=50_000)
    start, taken = reader.initialOffset(), []
    for _ in range(20):
        end, found = moved(reader, start, reader.getDefaultReadLimit())
        if end == start:
            break
        taken.append(len(found) * 1010)
        start = end
    assert sum(taken) == 400 * 1010
    assert all(30_000 < size <= 55_000 for size in taken[:-1])


def test_a_record_larger_than_the_limit_is_taken(server: NativeServer, source: Source) -> None:
    fill(server.create("t")[0], 3, batch=1, size=100_000)
    reader = source.stream(topic="t", startingOffsets='{"t": {"0": 1}}', maxBytesPerTrigger=10)
    _, found = moved(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert found == [b"v0"]


def test_sizes_that_grow_are_seen(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    fill(shard, 5000, batch=500)
    fill(shard, 50, first=5000, batch=1, size=10_000)
    reader = source.stream(topic="t", startingOffsets='{"t": {"0": 5001}}', maxBytesPerTrigger=60_000)
    _, found = moved(reader, reader.initialOffset(), reader.getDefaultReadLimit())
    assert 3 <= len(found) <= 6


def test_too_little_waits(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    fill(shard, 4)
    reader = source.stream(
        topic="t", startingOffsets="earliest", minOffsetsPerTrigger=10, maxTriggerDelay="60s"
    )
    start, found = moved(reader, reader.initialOffset())
    assert found == values(range(4))  # the first batch of a run waits for nothing
    fill(shard, 5, first=4)
    assert moved(reader, start) == (start, [])
    fill(shard, 5, first=9)
    start, found = moved(reader, start)
    assert found == values(range(4, 14))
    fill(shard, 1, first=14)
    assert moved(reader, start) == (start, [])
    reader._admitter._admitted_at = 0.0  # long ago
    assert moved(reader, start)[1] == [b"v14"]


def test_available_now_stops_at_what_was_there(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    fill(shard, 10)
    reader = source.stream(topic="t", startingOffsets="earliest", minOffsetsPerTrigger=100)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    fill(shard, 10, first=10)
    fill(server.add_shard("t"), 5)
    start, found = moved(reader, start, ReadMaxRows(6))
    assert found == values(range(10))
    assert moved(reader, start) == (start, [])


def test_new_topics_and_shards_join_a_stream(server: NativeServer, source: Source) -> None:
    fill(server.create("log-a")[0], 2)
    reader = source.stream(topicPattern="log-.*", startingOffsets="earliest")
    start, found = moved(reader, reader.initialOffset())
    assert found == values(range(2))
    fill(server.create("log-b")[0], 2, first=10)
    fill(server.add_shard("log-a"), 2, first=20)
    reader.planner.refresh(at_once=True)
    start, found = moved(reader, start)
    assert found == values(range(20, 22)) + values(range(10, 12))
    assert start["log-b"] == {"0": 3, "id": f"{2:032x}"}
    assert moved(reader, start) == (start, [])


def test_offsets_by_shard_are_positions_or_a_choice(server: NativeServer, source: Source) -> None:
    for number, shard in enumerate(server.create("t", 2)):
        fill(shard, 2, first=10 * number)
    all_of_them = {"topic": "t", "startingOffsets": '{"t": {"0": -2, "1": -2}}'}
    some = {"topic": "t", "startingOffsets": '{"t": {"1": -2}}'}
    began = [source.stream(**options).initialOffset() for options in (all_of_them, some)]
    fill(server.add_shard("t"), 2, first=20)
    assert moved(source.stream(**all_of_them), began[0])[1] == [b"v0", b"v1", b"v10", b"v11", b"v20", b"v21"]
    end, found = moved(source.stream(**some), began[1])
    assert found == [b"v10", b"v11"]
    assert end == {"t": {"1": 3, "id": f"{1:032x}", "only": True}}


def test_a_pattern_that_matches_nothing_yet(server: NativeServer, source: Source) -> None:
    reader = source.stream(topicPattern="log-.*")
    start = reader.initialOffset()
    assert moved(reader, start) == (start, [])
    fill(server.create("log-a")[0], 2)
    reader.planner.refresh(at_once=True)
    assert moved(reader, start)[1] == values(range(2))


# -- what goes wrong ----------------------------------------------------------------------------------------------


def recreated(server: NativeServer, count: int) -> None:
    server.delete("t")
    fill(server.create("t")[0], count, first=100)


@pytest.mark.parametrize("count", [3, 300])
def test_a_recreated_topic_is_not_read_with_old_offsets(
    server: NativeServer, source: Source, count: int
) -> None:
    fill(server.create("t")[0], 10)
    start, _ = moved(source.stream(topic="t", startingOffsets="earliest"), {"t": {"0": 0}})
    recreated(server, count)
    with pytest.raises(DataLossError, match="t was deleted and created again"):
        source.stream(topic="t").latestOffset(start, ALL)
    lenient = source.stream(topic="t", failOnDataLoss=False)
    end, found = moved(lenient, start)
    assert found == values(range(100, 100 + count))
    assert end["t"]["id"] != start["t"]["id"]
    assert moved(lenient, end) == (end, [])


def test_a_topic_recreated_after_a_batch_was_planned(server: NativeServer, source: Source) -> None:
    fill(server.create("t")[0], 10)
    reader = source.stream(topic="t", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, end)
    recreated(server, 300)
    with pytest.raises(UnknownShardError, match="its topic was deleted"):
        read(reader, planned)
    with pytest.raises(DataLossError, match="created again"):
        source.stream(topic="t").partitions(start, end)
    assert source.stream(topic="t", failOnDataLoss=False).partitions(start, end) == []


def test_offsets_of_an_older_checkpoint_have_no_id(server: NativeServer, source: Source) -> None:
    fill(server.create("t")[0], 10)
    assert moved(source.stream(topic="t"), {"t": {"0": 9}})[1] == values(range(8, 10))


def test_a_topic_that_goes_away(server: NativeServer, source: Source) -> None:
    with pytest.raises(UnknownTopicError, match="there is no topic 't'"):
        source.stream(topic="t").initialOffset()
    fill(server.create("t")[0], 10)
    start, _ = moved(source.stream(topic="t", startingOffsets="earliest"), {"t": {"0": 0}})
    server.delete("t")
    with pytest.raises(DataLossError, match="t is gone"):
        source.stream(topic="t").latestOffset(start, ALL)
    lenient = source.stream(topic="t", failOnDataLoss=False)
    assert moved(lenient, start) == (start, [])


def test_records_that_were_trimmed(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    fill(shard, 30)
    reader = source.stream(topic="t", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, end)
    shard.trim(11)
    with pytest.raises(DataLossError, match="begins at offset 11, 0 was asked for"):
        reader.partitions(start, end)
    with pytest.raises(DataLossError, match="t shard 0 begins at offset 11 now, 0 was to be read"):
        read(reader, planned)
    lenient = source.stream(topic="t", failOnDataLoss=False)
    assert len(read(lenient, planned)) == len(read(lenient, lenient.partitions(start, end))) == 20


def test_committed_records_that_are_gone(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    fill(shard, 10)
    with pytest.raises(DataLossError, match="t shard 0 ends at offset 11, and this query has read up to 40"):
        source.stream(topic="t").latestOffset({"t": {"0": 40}}, ALL)
    lenient = source.stream(topic="t", failOnDataLoss=False)
    start, found = moved(lenient, {"t": {"0": 40}})
    assert (start["t"]["0"], found) == (11, [])
    fill(shard, 2, first=10)
    assert moved(lenient, start)[1] == values(range(10, 12))


def test_a_corrupt_batch_is_named(server: NativeServer, source: Source) -> None:
    (shard,) = server.create("t")
    fill(shard, 30)
    header, whole = shard.batches[2]
    shard.batches[2] = (header, whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CorruptBatchError, match=r"t shard 0, the batch at offset 11: .*readFrom=follower"):
        source.rows(topic="t")
    shard.batches[2] = (header, whole[:16] + b"\x07" + whole[17:])
    with pytest.raises(CorruptBatchError, match="t shard 0, at or after offset 0: no whole batch"):
        source.rows(topic="t")


def test_a_cluster_that_goes_away_and_comes_back(
    server: NativeServer, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = server.create("t")
    fill(shard, 10)
    reader = source.stream(topic="t", startingOffsets="earliest", timeoutMs=400)
    start, _ = moved(reader, reader.initialOffset())
    fill(shard, 10, first=10)
    server.faults.away = True
    with pytest.raises((TimedOutError, UnreachableError)) as caught:
        reader.latestOffset(start, ALL)
    assert "closed the connection" in caught.value.message
    server.faults.away = False
    assert moved(source.stream(topic="t"), start)[1] == values(range(10, 20))
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_S", 0.1)
    server.faults.silent = 2  # a node that hangs, and then a connection that it forgot
    assert moved(source.stream(topic="t"), start)[1] == values(range(10, 20))


def test_a_node_that_lags_is_not_believed(server: NativeServer, source: Source) -> None:
    fill(server.create("t")[0], 10)
    server.faults.forgetful = 1
    assert source.values(topic="t") == values(range(10))
    reader = source.stream(topic="t", startingOffsets="earliest")
    start = reader.initialOffset()
    server.faults.forgetful = 1
    end = reader.latestOffset(start, ALL)
    planned = reader.partitions(start, end)
    for again in (source.stream(topic="t"), source.stream(topicPattern="t.*")):
        server.faults.forgetful = 1
        assert sizes(again.partitions(start, end)) == [11]
        server.faults.forgetful = 1
        assert moved(again, end) == (end, [])
    server.faults.forgetful = 1
    assert len(read(reader, planned)) == 10
    both = f"{server.address},{server.address.replace('127.0.0.1', 'localhost')}"  # two nodes, so to say
    server.faults.forgetful = 1
    assert source.stream(topicPattern="t.*", servers=both).initialOffset() == end
    behind = source.stream(topic="t", servers=both)
    server.faults.forgetful = 1
    behind.prepareForTriggerAvailableNow()
    assert moved(behind, start) == (end, values(range(10)))


def test_retries_are_bounded(server: NativeServer, source: Source) -> None:
    server.create("t")
    server.faults.deny_leadership = 3
    with pytest.raises(UnavailableError, match="in 3 tries"):
        source.rows(topic="t", retries=2)
    server.faults.deny_leadership = 2
    assert source.rows(topic="t", retries=2) == []


READING = """
import sys
from antiphon.spark.source import AntiphonDataSource
for what in ({"topic": "t", "includeheaders": "true"}, {"table": "a"}, {"table": "a", "format": "cdf"}):
    source = AntiphonDataSource({"servers": sys.argv[1], **what})
    reader = source.reader(source.schema())
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 2, what
assert "pandas" not in sys.modules
"""


def test_tasks_do_not_load_pandas(server: NativeServer) -> None:
    """It takes 0.3 s and 60 MB in each of Spark's processes, and pyarrow loads it wherever it is given Python's values."""
    fill(server.create("t")[0], 2)
    (shard,) = server.create("a", kind=Kind.TABLE)
    shard.write_table(TableWrite(0, (Put(b"a", b"1"), Put(b"b", b"2"))))
    subprocess.run([sys.executable, "-c", READING, server.address], check=True, timeout=170)


def test_every_error_crosses_processes_whole() -> None:
    error: AntiphonError = pickle.loads(pickle.dumps(DataLossError("gone", topic="t")))
    assert (type(error), error.message, error.details) == (DataLossError, "gone", {"topic": "t"})


@pytest.fixture(autouse=True)
def no_idling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.spark.read.log_reader.IDLE_S", 0.0)
