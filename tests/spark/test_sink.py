"""Writing with Spark: exactly once, whatever fails in between."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from antiphon.errors import InvalidRequestError
from antiphon.model.metadata import Kind
from antiphon.records.decode import decode_records
from tests.spark.failing_sink import FailingSource

if TYPE_CHECKING:
    from antiphon.records.decode import Record
    from tests.spark.conftest import Reader
    from tests.spark.native_server import MemoryShard, NativeServer

pytestmark = pytest.mark.spark

PROTOCOLS = ("staged", "direct")


def _records(*shards: "MemoryShard") -> "list[Record]":
    return [record for shard in shards for _, batch in shard.batches for record in decode_records(batch)]


def _values(*shards: "MemoryShard") -> Counter[bytes | None]:
    return Counter(record.value for record in _records(*shards))


def _numbers(first: int, count: int) -> Counter[bytes | None]:
    return Counter(str(n).encode() for n in range(first, first + count))


def _files(folder: Path, name: str, first: int, count: int) -> None:
    """Rows for a streaming text source."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f"{n}\n" for n in range(first, first + count)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_batch_write_to_a_topic(server: "NativeServer", antiphon_reader: "Reader", protocol: str) -> None:
    shards = server.create("out", 3)
    frame = antiphon_reader.spark.range(0, 1000, numPartitions=4).selectExpr(
        "cast(id % 10 as string) as key",
        "cast(id as string) as value",
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers",
        "timestamp_millis(1000000 + id) as timestamp",
    )
    antiphon_reader.write(frame, topic="out", batchRows=50, compression="zstd", protocol=protocol)
    assert _values(*shards) == _numbers(0, 1000)
    for shard in shards:
        for record in _records(shard):
            assert record.headers == (("h", b"x"),)
            assert record.timestamp_ms == 1_000_000 + int(record.value or b"")
    homes = {record.key: number for number, shard in enumerate(shards) for record in _records(shard)}
    assert len(homes) == 10
    for number, shard in enumerate(shards):
        assert all(homes[record.key] == number for record in _records(shard))
        assert max(header.record_count for header, _ in shard.batches) <= 50


def test_a_batch_write_with_a_name_is_written_once(server: "NativeServer", antiphon_reader: "Reader") -> None:
    shards = server.create("out", 2)
    frame = antiphon_reader.spark.range(0, 100, numPartitions=2).selectExpr(
        "cast(id as string) as value", "timestamp_millis(id) as timestamp"
    )
    for _ in range(2):
        antiphon_reader.write(frame, topic="out", txnId="load-1", protocol="direct")
    assert _values(*shards) == _numbers(0, 100)
    other = frame.selectExpr("concat(value, '!') as value", "timestamp")
    with pytest.raises(PySparkException, match="not the one that an earlier run"):
        antiphon_reader.write(other, topic="out", txnId="load-1", protocol="direct")
    with pytest.raises(PySparkException, match="give a column timestamp"):
        antiphon_reader.write(frame.select("value"), topic="out", txnId="load-2", protocol="direct")
    # Staged: what was written first under the name is what counts.
    antiphon_reader.write(
        frame.selectExpr("cast(value + 100 as string) as value"), topic="out", txnId="load-3"
    )
    antiphon_reader.write(other, topic="out", txnId="load-3")
    assert _values(*shards) == _numbers(0, 200)
    antiphon_reader.write(other, topic="out", txnId="load-3", txnVersion=1)
    assert sum(_values(*shards).values()) == 300
    with pytest.raises(PySparkException, match="written already"):
        antiphon_reader.write(frame, topic="out", txnId="load-3")
    antiphon_reader.write(frame, topic="out")
    assert sum(_values(*shards).values()) == 400


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lost_answers_and_changing_leaders_double_nothing(
    server: "NativeServer", antiphon_reader: "Reader", protocol: str
) -> None:
    shards = server.create("out", 2)
    server.faults.drop_after_append = 5
    server.faults.deny_leadership = 3
    frame = antiphon_reader.spark.range(0, 400, numPartitions=2).selectExpr("cast(id as string) as value")
    antiphon_reader.write(frame, topic="out", batchRows=20, protocol=protocol)
    assert _values(*shards) == _numbers(0, 400)


class Stream:
    """A query from text files to a topic or table, by the sink that can be made to fail."""

    def __init__(self, reader: "Reader", folder: Path, *columns: str, **options: Any) -> None:
        self.reader = reader
        self.input, self.faults, self.checkpoint = folder / "in", folder / "faults", folder / "checkpoint"
        self.input.mkdir()
        self.faults.mkdir()
        self.columns = columns or ("value",)
        self.options = {"timeoutMs": "10000", **{name: str(value) for name, value in options.items()}}
        reader.spark.dataSource.register(FailingSource)

    def fail_by(self, name: str) -> None:
        (self.faults / name).touch()

    def run(self, partitions: int | None = None) -> Any:
        source = self.reader.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        frame = source.load(str(self.input)).selectExpr(*self.columns)
        if partitions is not None:
            frame = frame.repartition(partitions)
        query = (
            frame.writeStream.format("failing")
            .options(servers=self.reader.servers, faults=str(self.faults), **self.options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(50), "the query hangs"
        finally:
            query.stop()
        return query

    def forget_commit(self) -> None:
        forget_commit(self.checkpoint)


def forget_commit(checkpoint: Path) -> None:
    """What a driver leaves that dies after the sink's commit and before it noted that."""
    commits = checkpoint / "commits"
    newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_survives_what_can_fail(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path, protocol: str
) -> None:
    shards = server.create("out", 2)
    stream = Stream(antiphon_reader, tmp_path, topic="out", batchRows=30, protocol=protocol)
    _files(stream.input, "a", 0, 100)
    stream.run()
    assert _values(*shards) == _numbers(0, 100)

    # A worker dies after its rows are appended: the task is tried again.
    _files(stream.input, "b", 100, 100)
    stream.fail_by("kill-0")
    stream.run()
    assert _values(*shards) == _numbers(0, 200)

    # The driver's commit fails after all is appended: the next run repeats the epoch.
    _files(stream.input, "c", 200, 100)
    stream.fail_by("fail-commit")
    with pytest.raises(PySparkException, match="commit fails as asked"):
        stream.run()
    stream.run()
    assert _values(*shards) == _numbers(0, 300)

    # The driver dies before it notes the epoch as done: the epoch is run again, and has nothing new to say.
    stream.forget_commit()
    stream.run()
    assert _values(*shards) == _numbers(0, 300)

    # Records without a time of their own have that of their epoch's last try, or of the epoch: a time of day.
    times = sorted({record.timestamp_ms for record in _records(*shards)})
    assert len(times) == 3
    assert times[0] > 1_600_000_000_000


def test_an_epoch_that_comes_back_different_is_refused_when_it_is_written_directly(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path
) -> None:
    shards = server.create("out", 2)
    stream = Stream(antiphon_reader, tmp_path, topic="out", batchRows=30, protocol="direct")
    _files(stream.input, "a", 0, 100)
    stream.fail_by("fail-commit")
    with pytest.raises(PySparkException, match="commit fails as asked"):
        stream.run(partitions=3)
    with pytest.raises(PySparkException, match="is not the one that an earlier run of this epoch sent"):
        stream.run(partitions=2)
    assert _values(*shards) == _numbers(0, 100)
    stream.run(partitions=3)
    assert _values(*shards) == _numbers(0, 100)


def test_an_epoch_that_comes_back_different_is_there_once_when_it_is_staged(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path
) -> None:
    shards = server.create("out", 2)
    stream = Stream(antiphon_reader, tmp_path, topic="out", batchRows=30)
    for number, failure in enumerate(("fail-commit", "fail-apply", "fail-end")):
        _files(stream.input, failure, 100 * number, 100)
        stream.fail_by(failure)
        stream.fail_by("kill-1")
        with pytest.raises(PySparkException, match="commit fails as asked"):
            stream.run(partitions=3)
        done = number + (failure == "fail-end")
        assert _values(*shards) == _numbers(0, 100 * done)
        stream.run(partitions=2)
        assert _values(*shards) == _numbers(0, 100 * (number + 1))


def test_a_record_that_is_too_large_leaves_nothing(server: "NativeServer", antiphon_reader: "Reader") -> None:
    shards = server.create("out", 2)
    frame = antiphon_reader.spark.range(0, 100, numPartitions=2).selectExpr(
        "if(id = 77, repeat('x', 2000000), cast(id as string)) as value"
    )
    with pytest.raises(
        PySparkException, match=r"row 13 of those for shard \d takes 2000\d+ bytes, out takes 1048588"
    ):
        antiphon_reader.write(frame, topic="out")
    assert not _values(*shards)


def test_rows_that_expect_an_offset(server: "NativeServer", antiphon_reader: "Reader") -> None:
    (shard,) = server.create("out")
    frame = antiphon_reader.spark.range(0, 60, numPartitions=1).selectExpr(
        "cast(id as string) as value", "id + 1 as expectedOffset", "timestamp_millis(id) as timestamp"
    )
    with pytest.raises(PySparkException, match="needs option"):
        antiphon_reader.write(frame, topic="out")
    direct = {"topic": "out", "protocol": "direct", "txnId": "x"}
    for _ in range(2):  # the second run is recognised, though the log ends elsewhere by now
        antiphon_reader.write(frame, **direct)
    assert _values(shard) == _numbers(0, 60)
    with pytest.raises(
        PySparkException, match="expects offset 1 in shard 0, whose next offset is 61: nothing of"
    ):
        antiphon_reader.write(frame, **{**direct, "txnId": "y"})
    assert _values(shard) == _numbers(0, 60)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_old_copy_of_the_checkpoint_is_refused(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path, protocol: str
) -> None:
    shards = server.create("out")
    stream = Stream(antiphon_reader, tmp_path, topic="out", protocol=protocol)
    for number in range(3):
        _files(stream.input, f"{number}", 100 * number, 100)
        stream.run()

    def forget(*epochs: str) -> None:
        for folder in ("offsets", "commits", "sources/0"):
            for file in (stream.checkpoint / folder).iterdir():
                if file.name.strip(".").split(".")[0] in epochs:
                    file.unlink()

    forget("2")
    _files(stream.input, "3", 300, 100)
    message = {"staged": "planned this epoch anew", "direct": "is not the one that an earlier run"}
    with pytest.raises(PySparkException, match=message[protocol]):
        stream.run()
    forget("1", "2")
    with pytest.raises(PySparkException, match="went back to an old copy of its checkpoint"):
        stream.run()
    assert _values(*shards) == _numbers(0, 300)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_stream_to_a_table(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path, protocol: str
) -> None:
    shards = server.create("state", 2, Kind.TABLE)
    columns = ("concat('k', value % 10) as key", "if(value % 10 = 9, null, value) as value")
    stream = Stream(antiphon_reader, tmp_path, *columns, table="state", batchRows=10, protocol=protocol)
    _files(stream.input, "a", 0, 100)
    stream.fail_by("kill-0")
    stream.run()
    rows = {key: value for shard in shards for key, (value, _) in shard.rows.items()}
    assert rows == {b"k%d" % n: b"%d" % (90 + n) for n in range(9)}
    changes = len(_records(*shards))
    stream.fail_by("fail-commit")
    _files(stream.input, "b", 100, 100)
    with pytest.raises(PySparkException, match="commit fails as asked"):
        stream.run()
    stream.run()
    stream.forget_commit()
    stream.run()
    assert len(_records(*shards)) == changes + 90
    rows = {key: value for shard in shards for key, (value, _) in shard.rows.items()}
    assert rows == {b"k%d" % n: b"%d" % (190 + n) for n in range(9)}


def test_a_table_epoch_longer_than_the_leader_remembers(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path
) -> None:
    (shard,) = server.create("state", 1, Kind.TABLE)
    stream = Stream(
        antiphon_reader, tmp_path, "value as key", "value", table="state", batchRows=1, protocol="direct"
    )
    _files(stream.input, "a", 0, 200)
    stream.run()
    stream.forget_commit()
    stream.run()
    assert len(_records(shard)) == 200


REFUSED = [
    ({"topic": "out"}, "value", "overwrite", "a log only grows"),
    ({"table": "state"}, "key, value", "overwrite", "replaced by key"),
    ({"topic": "out"}, "valu", "append", "did you mean value"),
    ({"topic": "nothing"}, "value", "append", "there is no topic 'nothing'"),
    ({"topic": "out", "batchRow": "1"}, "value", "append", "did you mean batchRows"),
    ({"topic": "out"}, "value, shard", "append", "shards 0 to 0, a row asks for 7"),
    ({"table": "state"}, "nokey as key, value", "append", "without a key cannot be put"),
    ({"table": "state", "protocol": "direct"}, "nokey as key, value", "append", "row 0 has no key"),
    ({"topic": "out", "protocol": "quick"}, "value", "append", "there is staged, direct"),
]


@pytest.mark.parametrize(("options", "columns", "mode", "message"), REFUSED)
def test_mistakes_are_named(
    server: "NativeServer",
    antiphon_reader: "Reader",
    options: dict[str, str],
    columns: str,
    mode: str,
    message: str,
) -> None:
    server.create("out")
    server.create("state", kind=Kind.TABLE)
    frame = antiphon_reader.spark.sql(
        "select 'a' as key, 'b' as value, 'c' as valu, 7 as shard, cast(null as string) as nokey"
    ).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException) as caught:
        frame.write.format("antiphon").mode(mode).options(
            servers=antiphon_reader.servers, timeoutMs="3000", **options
        ).save()
    assert message in str(caught.value)


def _counts(reader: "Reader", folder: Path) -> Any:
    folder.mkdir()
    source = reader.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    return source.groupBy("value").count()


def _upsert(
    counts: Any, mode: str, server: "NativeServer", checkpoint: Path, protocol: str = "staged"
) -> None:
    import antiphon.spark

    function = antiphon.spark.upserts(
        server.address, "counts", output_mode=mode, timeoutMs="5000", protocol=protocol
    )
    query = (
        counts.selectExpr("value as key", "cast(count as string) as value")
        .writeStream.outputMode(mode)
        .foreachBatch(function)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(50)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_running_counts_in_a_table(
    server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path, protocol: str
) -> None:
    shards = server.create("counts", 2, Kind.TABLE)
    counts = _counts(antiphon_reader, tmp_path / "in")
    for number in range(2):
        _files(tmp_path / "in", f"{number}", 0, 30)
        server.faults.drop_after_append = 1
        _upsert(counts, "update", server, tmp_path / "checkpoint", protocol)
    forget_commit(tmp_path / "checkpoint")
    _upsert(counts, "update", server, tmp_path / "checkpoint", protocol)
    rows = {key: value for shard in shards for key, (value, _) in shard.rows.items()}
    assert rows == {str(n).encode(): b"2" for n in range(30)}
    assert len(_records(*shards)) == 60


def test_a_whole_result_in_a_table(server: "NativeServer", antiphon_reader: "Reader", tmp_path: Path) -> None:
    from antiphon.spark import upserts

    shards = server.create("counts", 2, Kind.TABLE)
    rare = _counts(antiphon_reader, tmp_path / "in").where("count < 2")
    for number, count in enumerate((30, 10)):
        _files(tmp_path / "in", f"{number}", 0, count)
        _upsert(rare, "complete", server, tmp_path / "checkpoint")
    rows = {key: value for shard in shards for key, (value, _) in shard.rows.items()}
    assert rows == {str(n).encode(): b"1" for n in range(10, 30)}
    with pytest.raises(InvalidRequestError, match="there is update, complete"):
        upserts(server.address, "counts", output_mode="whole")
    with pytest.raises(InvalidRequestError, match="needs protocol=staged"):
        upserts(server.address, "counts", output_mode="complete", protocol="direct")
