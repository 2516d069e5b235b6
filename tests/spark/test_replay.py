"""Replays and bulk loads with a real Spark on real nodes, against a reference in plain Python."""

import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import antiphon
from antiphon.cli import replay_commands
from antiphon.cli.main import app
from antiphon.client.blocking import Cluster, ShardCall
from antiphon.errors import InvalidRequestError, VerificationError
from antiphon.model.requests import AppendBatch
from antiphon.spark import jobs
from antiphon.spark.jobs import bulk_load_job, replay_compare, replay_output
from antiphon.spark.jobs.bulk_load_writer import LoadSpec, write_partition
from antiphon.spark.jobs.replay_frames import FoldRecord, state_frame
from antiphon.spark.option_values import parse_servers
from antiphon.tools import replay_inputs
from antiphon.tools.local_cluster import LocalCluster
from tests.records.test_intake import INSIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

State = dict[bytes, bytes]


def _state(db: antiphon.Client, table: str) -> State:
    return {row.key: row.value or b"" for row in db.table(table).scan()}


def _ends(db: antiphon.Client, name: str) -> dict[str, int]:
    log = db.topic(name, any_kind=True)
    (meta,) = [topic for topic in db.metadata().topics if topic.name == name]
    return {str(shard.index): log.offsets(shard.index)[1] for shard in meta.shards}


def _now_ms() -> int:
    time.sleep(0.003)
    now = time.time_ns() // 1_000_000
    time.sleep(0.003)
    return now


class History:
    """A table that is written to, with what it was at some moments: (offsets, time, state)."""

    def __init__(self, db: antiphon.Client, name: str) -> None:
        self.db, self.name = db, name
        self.state: State = {}
        self.moments: list[tuple[dict[str, int], int, State]] = []

    def put(self, first: int, last: int, mark: str) -> None:
        table = self.db.table(self.name)
        table.put_many([(f"k{n}", f"{mark}{n}") for n in range(first, last)])
        self.state |= {f"k{n}".encode(): f"{mark}{n}".encode() for n in range(first, last)}

    def delete(self, first: int, last: int) -> None:
        for n in range(first, last):
            self.db.table(self.name).delete(f"k{n}")
            self.state.pop(f"k{n}".encode())

    def remember(self) -> None:
        self.moments.append((_ends(self.db, self.name), _now_ms(), dict(self.state)))


@pytest.fixture(scope="module")
def history(db: antiphon.Client) -> History:
    """Before, while and after a shard is split, with keys that come, change and go."""
    db.create_table("past", shards=2)
    history = History(db, "past")
    history.put(0, 200, "a")
    history.delete(0, 10)
    history.remember()
    db.split_shard("past", 0)
    history.remember()  # nothing was written to the new shard yet
    history.put(100, 260, "b")
    history.remember()
    history.delete(150, 180)
    history.put(0, 5, "c")
    history.remember()
    return history


@pytest.mark.slow
def test_a_table_as_of_any_moment_over_a_split(
    spark: "SparkSession", cluster: LocalCluster, db: antiphon.Client, history: History, tmp_path: Path
) -> None:
    frames: list[Any] = []
    for number, (ends, time_ms, _) in enumerate(history.moments):
        ways: list[dict[str, Any]] = [{"as_of_offset": ends}]
        if number == 1:  # between the split and the first write to the new shard
            ways.append({"as_of_timestamp_ms": time_ms})
        for as_of in ways:
            frame = jobs.fold_topic(spark, cluster.native, "past", **as_of)
            frames.append(frame.selectExpr("key", "value", f"{number} as moment", f"{len(frames)} as way"))
    found: dict[tuple[int, int], State] = {}
    for row in reduce(lambda one, other: one.union(other), frames).collect():
        found.setdefault((row["moment"], row["way"]), {})[bytes(row["key"])] = bytes(row["value"])
    assert len(found) == len(frames) == 5
    for (number, _), state in found.items():
        assert state == history.moments[number][2], number
    ends, time_ms, state = history.moments[1]
    done = jobs.replay_table(spark, cluster.native, "past", as_of_offset=json.dumps(ends), to_table="past-1")
    assert (done.digest.rows, done.was_done) == (len(state), False)
    assert _state(db, "past-1") == state
    (meta,) = [topic for topic in db.metadata().topics if topic.name == "past-1"]
    assert (len(meta.shards), meta.replicas) == (2, 3)
    lake = f"iceberg:{tmp_path / 'lake'}#db.past"
    done = jobs.replay_table(spark, cluster.native, "past", as_of_timestamp_ms=time_ms, to_lake=lake)
    from antiphon.lake.targets.target import open_target

    rows = open_target(lake).read(spark).collect()
    assert {bytes(row["key"]): bytes(row["value"]) for row in rows} == state
    assert all(row["version"] is not None and row["offset"] is not None for row in rows)
    again = jobs.replay_table(
        spark, cluster.native, "past", as_of_timestamp_ms=time_ms, to_lake=lake, resume=True
    )
    assert (again.was_done, again.digest) == (True, done.digest)


def test_a_replay_that_was_cut_short_is_completed_and_others_are_refused(
    spark: "SparkSession",
    cluster: LocalCluster,
    db: antiphon.Client,
    history: History,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replay = partial(jobs.replay_table, spark, cluster.native, "past", to_table="whole")

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # all is written, and the driver dies before it says so
        patch.setattr(replay_output, "verify_table", dies)
        with pytest.raises(KeyboardInterrupt):
            replay()
    state = dict(history.state)
    history.put(300, 310, "later")  # the replay goes to where it began to
    with pytest.raises(InvalidRequestError, match="did not get through: resume it"):
        replay()
    with pytest.raises(InvalidRequestError, match="begun with as_of = 'now', now it is 'offset"):
        replay(resume=True, as_of_offset=history.moments[0][0])
    with pytest.raises(InvalidRequestError, match="table whole has rows already"):
        replay(name="another")
    done = replay(resume=True)
    assert done.skipped > 0
    assert _state(db, "whole") == state
    assert Counter(row.version.modifications for row in db.table("whole").scan()) == {0: len(state)}
    db.table("whole").put("stranger", b"x")
    with pytest.raises(VerificationError, match="did anybody else write to it"):
        replay(resume=True)


def longest(state: Any, record: FoldRecord) -> Any:
    """The longest value of a key and how many there were."""
    length, count = state or (0, 0)
    return (max(length, len(record.value or b"")), count + 1)


def balances(state: Any, record: FoldRecord) -> Any:
    """Transfers in their order; one that would overdraw is left out, so the order matters."""
    accounts = state or {}
    source, target, amount = (record.value or b"").decode().split()
    if accounts.get(source, 10) >= int(amount):
        accounts[source] = accounts.get(source, 10) - int(amount)
        accounts[target] = accounts.get(target, 10) + int(amount)
    return accounts


def latest(_state: Any, record: FoldRecord) -> Any:
    """A table's state is this fold of its changes."""
    return record.value


def test_folds_of_topics_and_of_changes(
    spark: "SparkSession", cluster: LocalCluster, db: antiphon.Client, history: History
) -> None:
    changes = jobs.fold_topic(spark, cluster.native, "past", fold=latest)
    assert {bytes(row["key"]): bytes(row["value"]) for row in changes.collect()} == history.state
    topic = db.create_topic("events", shards=2)
    events = [(b"k%d" % (n % 13), b"x" * (n * 7 % 31)) for n in range(400)]
    topic.append_batch([*events, (b"k3", None), (None, b"nobody's")])
    frame = jobs.fold_topic(spark, cluster.native, "events", fold=longest)
    expected: dict[bytes, Any] = {}
    for key, value in [*events, (b"k3", None)]:
        expected[key] = longest(expected.get(key), FoldRecord(key, value, 0, 0, 0, None))
    assert {bytes(row["key"]): tuple(json.loads(row["value"])) for row in frame.collect()} == expected
    done = jobs.fold_topic(spark, cluster.native, "events", to_table="last-event", shards=1, replicas=1)
    last = dict(events)
    del last[b"k3"]
    assert _state(db, "last-event") == last
    assert done.superseded == 0
    transfers = db.create_topic("transfers", shards=1)
    moves = [f"a{n % 3} a{n * 5 % 7} {n % 6 + 1}".encode() for n in range(200)]
    for at in range(0, 200, 10):
        transfers.append_batch(moves[at : at + 10], shard=0)
    accounts: Any = None
    for move in moves:
        accounts = balances(accounts, FoldRecord(None, move, 0, 0, 0, None))
    frame = jobs.fold_topic(spark, cluster.native, "transfers", fold=balances, by="shard")
    assert {row["key"].decode(): int(row["value"]) for row in frame.collect()} == accounts
    with pytest.raises(InvalidRequestError, match="'last-per-key' or a function"):
        jobs.fold_topic(spark, cluster.native, "events", fold="first-per-key")


def test_a_fold_goes_past_what_it_cannot_read(
    spark: "SparkSession", cluster: LocalCluster, db: antiphon.Client, history: History
) -> None:
    topic = db.create_topic("broken", shards=1, config={"record.validation": "shallow"})
    db.create_topic("broken-letters", shards=1)
    topic.append("a", key="k1")
    with Cluster(parse_servers(cluster.native), 20_000) as asked:
        shard_id = asked.topic("broken", table=False).shards[0].shard_id
        asked.call(ShardCall(shard_id, AppendBatch(shard_id), [bytes(INSIDE[0][1])]))
    topic.append("b", key="k2")
    with pytest.raises(Exception, match=r"broken shard 0, the batch at offset 1.*onCorrupt"):
        jobs.fold_topic(spark, cluster.native, "broken").collect()
    frame = jobs.fold_topic(spark, cluster.native, "broken", on_corrupt="skip")
    assert {bytes(row["key"]): bytes(row["value"]) for row in frame.collect()} == {b"k1": b"a", b"k2": b"b"}
    letters = antiphon.dead_letters("broken-letters")
    frame = jobs.fold_topic(spark, cluster.native, "broken", fold=longest, on_corrupt=letters)
    assert {bytes(row["key"]) for row in frame.collect()} == {b"k1", b"k2"}
    found = list(db.topic("broken-letters").read())
    assert {dict(letter.headers)["antiphon.offset"] for letter in found} == {b"1"}
    with pytest.raises(InvalidRequestError, match="past is a table"):
        jobs.fold_topic(spark, cluster.native, "past", on_corrupt="skip")
    with pytest.raises(InvalidRequestError, match="cannot go to broken itself"):
        jobs.fold_topic(spark, cluster.native, "broken", on_corrupt=antiphon.dead_letters("broken"))
    done = CliRunner().invoke(
        app, ["replay", "past", "--to-table", "x", "--on-corrupt", "skip", "--servers", cluster.native]
    )
    assert (done.exit_code, "past is a table" in done.output) == (2, True)


def test_a_table_is_compared_with_its_log(
    spark: "SparkSession", cluster: LocalCluster, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = jobs.compare_table(spark, cluster.native, "past")
    assert found.agrees
    assert found.rows == found.log_rows == len(history.state)

    def other(*args: Any) -> Any:
        return state_frame(*args).selectExpr(
            "if(key = cast('k50' as binary), cast('gone' as binary), key) as key",
            "if(key = cast('k51' as binary), cast('x' as binary), value) as value",
            "if(key = cast('k52' as binary), version + 1, version) as version",
            "modifications",
        )

    monkeypatch.setattr(replay_compare, "state_frame", other)
    found = jobs.compare_table(spark, cluster.native, "past")
    assert found.differences == {"missing": 1, "extra": 1, "other value": 1, "other version": 1}
    assert [(one.key, one.kind) for one in found.examples] == [
        (b"gone", "missing"),
        (b"k50", "extra"),
        (b"k51", "other value"),
        (b"k52", "other version"),
    ]


def kills_its_worker_once(
    marker: str, spec: LoadSpec, batches: "Iterator[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    """Writes like any task; the first one dies in the middle of its rows, after some of them were sent."""

    def watched() -> "Iterator[pa.RecordBatch]":
        for number, batch in enumerate(batches):
            if number == 2 and Path(marker).exists():
                Path(marker).unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    yield from write_partition(spec, watched())


@pytest.mark.slow
def test_every_row_once_while_a_worker_and_a_leader_die_under_a_load(
    spark: "SparkSession",
    cluster: LocalCluster,
    db: antiphon.Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    db.create_table("big", shards=3)
    marker = tmp_path / "kill-a-worker"
    marker.touch()
    usual = bulk_load_job.run_load
    killing = partial(kills_its_worker_once, str(marker))
    monkeypatch.setattr(bulk_load_job, "run_load", lambda frame, spec: usual(frame, spec, killing))
    (meta,) = [topic for topic in db.metadata().topics if topic.name == "big"]
    victim = meta.shards[1].leader

    def kill_the_leader() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not next(iter(db.table("big").scan()), None):
            time.sleep(0.02)
        cluster.kill(victim)

    killer = threading.Thread(target=kill_the_leader)
    killer.start()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    try:
        frame = spark.range(60_000, numPartitions=4).selectExpr(
            "concat('key-', id) as id", "id as n", "repeat('x', 60) as text"
        )
        done = jobs.bulk_load(
            frame, cluster.native, "big", key="id", txn_id="first", verify=True, batch_rows=100
        )
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        killer.join()
        cluster.start_node(victim)
    assert not marker.exists(), "no worker was killed"
    assert done.verified
    assert done.rows == 60_000
    rows = {row.key: row for row in db.table("big").scan()}
    assert len(rows) == 60_000
    assert {row.version.modifications for row in rows.values()} == {0}
    assert json.loads(rows[b"key-17"].value or b"") == {"n": 17, "text": "x" * 60}
    again = jobs.bulk_load(frame, cluster.native, "big", key="id", txn_id="first", batch_rows=100)
    assert (again.rows, again.skipped) == (60_000, again.tasks)
    assert again.digest == done.digest


def test_what_cannot_be_loaded_is_refused_before_anything_is_written(
    spark: "SparkSession", cluster: LocalCluster, db: antiphon.Client
) -> None:
    db.create_table("small", config={"max.message.bytes": "20000"})
    frame = spark.range(100).selectExpr(
        "id", "if(id = 77, null, concat('k', id)) as k", "cast(id as string) as v"
    )
    load = partial(jobs.bulk_load, servers=cluster.native, table="small")
    for key, value, said in (
        ("kk", "v", "no column 'kk'; did you mean k"),
        ("k", "no_such(v)", r"cannot be computed .*no_such"),
        ("k +", "v", r"cannot be computed .*PARSE_SYNTAX_ERROR"),
        ("k", "v", "rows without a key"),
    ):
        with pytest.raises(InvalidRequestError, match=said):
            load(frame, key=key, value=value)
    assert _state(db, "small") == {}
    done = load(frame.where("k is not null"), key="upper(k)", value="struct(id, v)", verify=True, rate=10**9)
    assert (done.rows, done.verified) == (99, True)
    assert _state(db, "small")[b"K5"] == b'{"id":5,"v":"5"}'
    with pytest.raises(InvalidRequestError, match="has rows already"):
        load(frame, key="id", value="v", verify=True)


# -- commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(spark: "SparkSession", cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command with the session of the tests; (exit code, stdout, stderr)."""

    @contextmanager
    def session(_name: str, _master: str | None = None) -> "Iterator[SparkSession]":
        yield spark

    monkeypatch.setattr(replay_commands, "spark_job", session)

    def run(*words: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(app, [*words, "--servers", cluster.native])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


def test_the_commands(
    command: Any, db: antiphon.Client, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, _, state = history.moments[2]
    code, out, _ = command(
        "replay", "past", "--as-of-offset", json.dumps(ends), "--to-table", "by-command", "--json"
    )
    told = json.loads(out)
    assert (code, told["rows"], told["ends"]) == (0, len(state), ends)
    assert _state(db, "by-command") == state
    code, out, _ = command("replay", "past", "--compare")
    assert (code, "past is what its log says" in out) == (0, True)
    (tmp_path / "my_folds.py").write_text("def count(state, record):\n    return (state or 0) + 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = command(
        "replay", "past", "--fold", "my_folds:count", "--by", "shard", "--to-table", "counts"
    )
    assert (code, "3 rows" in out) == (0, True)
    assert sum(int(value) for value in _state(db, "counts").values()) >= len(history.state)
    rows = "".join(f'{{"id": "r{n}", "n": {n}}}\n' for n in range(50))
    (tmp_path / "rows.json").write_text(rows)
    db.create_table("loaded")
    code, out, _ = command("load", "loaded", "--from", "rows.json", "--key", "id", "--value", "n", "--verify")
    assert (code, "Loaded 50 rows" in out, "read back" in out) == (0, True, True)
    assert _state(db, "loaded") == {b"r%d" % n: b"%d" % n for n in range(50)}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("replay", "nothing", "--to-table", "x"), 1, "no topic or table 'nothing'"),
        (("replay", "past"), 2, "give one of --to-table"),
        (("replay", "past", "--to-table", "x", "--to-delta", "y"), 2, "give one of --to-table"),
        (("replay", "past", "--to-table", "x", "--to-option", "partition_by=a"), 2, "is for a lake table"),
        (
            ("replay", "past", "--to-delta", "y", "--to-option", "sort_by=a"),
            2,
            "for targets of kind iceberg or parquet",
        ),
        (("replay", "past", "--compare", "--to-table", "x"), 2, "no fold and no target"),
        (("replay", "past", "--to-table", "x", "--as-of-time", "1999-01-01"), 1, "the earliest time"),
        (("replay", "past", "--to-table", "x", "--as-of-time", "noon"), 1, "ISO 8601"),
        (
            ("replay", "past", "--to-table", "x", "--as-of-offset", '{"0": 99999, "1": 1, "2": 1}'),
            1,
            "is beyond",
        ),
        (("replay", "past", "--to-table", "x", "--as-of-offset", "7"), 1, "an offset for each"),
        (("replay", "past", "--to-table", "x", "--fold", "no_such_module:f"), 1, "cannot be imported"),
        (("replay", "past", "--to-table", "x", "--fold", "json:no_such"), 1, "has no function"),
        (("load", "nothing", "--from", "/tmp", "--format", "json", "--key", "a"), 1, "no table 'nothing'"),
        (("load", "past", "--from", "/no/such/file", "--key", "a"), 1, "no file or folder"),
        (("load", "past", "--from", "/tmp", "--format", "xml", "--key", "a"), 2, "--format is parquet"),
    ],
)
def test_wrong_words_are_said_to_be_wrong_before_spark_starts(
    cluster: LocalCluster, history: History, words: tuple[str, ...], code: int, said: str
) -> None:
    result = CliRunner().invoke(app, [*words, "--servers", cluster.native])
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
    assert history.moments


def test_formats_are_told_by_names(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "_SUCCESS").touch()
    (tmp_path / "a" / "b" / "part-0.json.gz").touch()
    (tmp_path / "d" / "_delta_log").mkdir(parents=True)
    assert replay_inputs.guess_format(str(tmp_path / "a")) == "json"
    assert replay_inputs.guess_format(str(tmp_path / "d")) == "delta"
    assert replay_inputs.guess_format("s3://bucket/rows.parquet") == "parquet"
    (tmp_path / "e").mkdir()
    for unclear in (str(tmp_path / "e"), "s3://bucket/rows"):
        with pytest.raises(InvalidRequestError, match="give --format"):
            replay_inputs.guess_format(unclear)
