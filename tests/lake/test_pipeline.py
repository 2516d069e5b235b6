"""Pipelines as files: every key is known or refused by name; what a file says is what is run."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from antiphon.cli import pipeline_commands
from antiphon.cli.main import app
from antiphon.errors import InvalidRequestError
from antiphon.lake import pipeline as lake_pipeline
from antiphon.lake import pipeline_check
from antiphon.lake.mirror import MirrorProgress
from antiphon.lake.pipeline import Outcome, read_pipeline, run_pipeline
from antiphon.lake.targets.target import Compacted, open_target
from antiphon.lake.upkeep import parse_age
from antiphon.lake.values.ddl import parse_columns
from antiphon.model.metadata import ClusterMeta, Kind, TopicMeta

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("lake_*.toml"))

GOOD = """
servers = "127.0.0.1:7400"
[source]
topic = "flights"
[target]
kind = "delta"
path = "lake"
"""


def file(folder: Path, text: str) -> Path:
    path = folder / "pipeline.toml"
    path.write_text(text)
    return path


def test_a_short_file(tmp_path: Path) -> None:
    (job,) = read_pipeline(file(tmp_path, GOOD))
    assert (job.name, job.kind, job.source, job.is_table) == ("flights", "mirror", "flights", False)
    assert (job.servers, job.every) == ("127.0.0.1:7400", "10 seconds")
    assert job.target == {"kind": "delta", "path": str(tmp_path / "lake")}
    assert job.options == {"max_offsets": 1_000_000, "timeout_ms": 60_000, "dead_letters": None}
    assert not (tmp_path / "lake").exists(), "a check makes nothing"


def test_the_example_and_those_in_the_repository_are_right(tmp_path: Path) -> None:
    runner = CliRunner()
    text = runner.invoke(app, ["pipeline", "example"]).stdout
    jobs = read_pipeline(file(tmp_path, text))
    assert [(job.kind, job.is_table) for job in jobs] == [
        ("mirror", False), ("mirror", True), ("compact", False), ("expire", False),
    ]  # fmt: skip
    assert len(EXAMPLES) == 2
    for path in EXAMPLES:
        assert read_pipeline(path)
    uncommented = []  # what is only suggested is right, too, as far as it does not need other files
    for line in text.splitlines():
        suggested = line.startswith("# ") and line[2:].split(" = ")[0] in {
            "starting", "fail_on_data_loss", "timeout_ms", "new_fields", "key", "headers", "max_offsets", "partitions",
            "checkpoint", "start",
        }  # fmt: skip
        uncommented.append(line[2:] if suggested else line)
    assert "\nheaders = true" in "\n".join(uncommented)
    assert read_pipeline(file(tmp_path, "\n".join(uncommented)))[0].options["headers"] is True


WRONG = [
    ("x =", "is not TOML"),
    (GOOD.replace("topic", "topc"), r"\[source\] has no key 'topc'; did you mean topic\?"),
    (GOOD.replace("[target]", "[taget]"), "a pipeline has no key 'taget'; did you mean target?"),
    (GOOD.replace('topic = "flights"', ""), "needs either topic or table"),
    (GOOD.replace("servers =", "name ="), "servers is missing"),
    (GOOD.replace("127.0.0.1:7400", "here"), "'here' is not HOST:PORT"),
    (GOOD.replace('"delta"', '"dleta"'), "a target's kind is one of delta, iceberg, "),
    (GOOD.replace('path = "lake"', ""), "needs a path"),
    (GOOD + "[trigger]\nmax_offsets = '5'", "trigger.max_offsets has to be a whole number, not '5'"),
    (GOOD + "[trigger]\nevery = 'soon'", "such as 7 days or 36 hours, not 'soon'"),
    (GOOD + "[value]\nformat = 'json'\nschema = 'id bigin'", r"\[value\] schema: column id has no type 'bigin'; did you"),
    (GOOD + "[value]\nformat = 'avro'\nschema = 'no.avsc'", r"\[value\] schema: the file .*no.avsc cannot be read"),
    (GOOD + "[value]\nkey = 'txt'", "value.key is one of raw, text, not 'txt'"),
    (GOOD + "[dead_letters]", r"\[dead_letters\] needs topic"),
    (GOOD.replace("[source]", "[source]\nstart = 'snapshot'"), "source.start is for a table"),
    (GOOD.replace("topic", "table").replace("delta", "parquet"), "Parquet files cannot be changed in place"),
    (GOOD.replace("topic", "table") + "[value]\nheaders = true", "value.headers is for a topic"),
    ("kind = 'compact'\n" + GOOD, "source is for kind = mirror, not for compact"),
    ("kind = 'expire'\nolder_than = 'x'\n[target]\nkind = 'delta'\npath = 'a'", "an age is a number and a unit"),
    ("older_than = '1 day'\n" + GOOD, "older_than is not for kind = mirror"),
    ("[[job]]\nkind = 'compact'\n", r"job 1: \[target\] is missing"),
    (GOOD + "[[job]]\nname = 'x'", r"source stands beside \[\[job\]\]: write it as \[job.source\]"),
    ("[job]\nname = 'x'", r"jobs are written as \[\[job\]\]"),
    ("[[job]]\nkind='compact'\nname='a'\ntarget={kind='delta',path='a'}\n" * 2, "two jobs are called a"),
    ("[[job]]\nkind='compact'\ntarget={kind='iceberg',path='a',table='b'}\n", "needs table = 'namespace.name'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_a_wrong_file_is_told_by_its_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_pipeline(file(tmp_path, text))


ASKED = """
servers = "127.0.0.1:7400"
[[job]]
name = "one"
[job.source]
topic = "there"
[job.target]
kind = "delta"
path = "lake-1"
[job.dead_letters]
topic = "letters"
[[job]]
name = "two"
[job.source]
table = "there"
[job.target]
kind = "delta"
path = "lake-2"
[[job]]
kind = "compact"
[job.target]
kind = "delta"
path = "lake-1"
"""


def test_what_a_file_names_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kinds = {"there": Kind.TOPIC}

    def metadata(_servers: str) -> ClusterMeta:
        topics = [TopicMeta(name, bytes(16), kind, 1, "oxia", ()) for name, kind in kinds.items()]
        return ClusterMeta("c", 1, 0, (), tuple(topics))

    monkeypatch.setattr(pipeline_check, "_metadata", metadata)
    path = str(file(tmp_path, ASKED))
    runner = CliRunner()
    done = runner.invoke(app, ["pipeline", "check", path])
    assert done.exit_code == 1
    mends = "antiphon topic create letters --servers 127.0.0.1:7400"
    assert done.stderr.splitlines() == [
        f"antiphon: one: the topic letters for dead letters does not exist; `{mends}` creates it",
        "antiphon: two: there is a topic, not a table",
    ]
    shown = json.loads(runner.invoke(app, ["pipeline", "check", path, "--json"]).stdout)
    assert [len(one["problems"]) for one in shown] == [1, 1, 0]
    kinds["letters"] = Kind.TOPIC
    Path(path).write_text(ASKED.replace("table =", "topic ="))
    assert runner.invoke(app, ["pipeline", "check", path]).exit_code == 0
    kinds.clear()
    assert (
        "the topic there does not exist; `antiphon topic create there --servers 127.0.0.1:7400` creates it"
        in (runner.invoke(app, ["pipeline", "check", path]).stderr)
    )


def test_a_run_says_what_it_does_where_nobody_looks_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @contextmanager
    def no_spark(*_: object) -> Iterator[None]:
        yield None

    def run(_spark: object, jobs: list[Any], *, once: bool, told: Any, keep_going: bool) -> list[Outcome]:
        told(Outcome(jobs[0].name, "mirror", rows=1_200, epochs=3, dead_letters=2))
        if not keep_going:
            return []
        told(failed := Outcome(jobs[0].name, "mirror", failure="no such\nrecord"))
        return [failed]

    monkeypatch.setattr(pipeline_commands, "spark_job", no_spark)
    monkeypatch.setattr(lake_pipeline, "run_pipeline", run)
    done = CliRunner().invoke(app, ["pipeline", "run", str(file(tmp_path, GOOD)), "--json"])
    assert done.stderr.splitlines() == [
        "flights: starting Spark; ctrl-C ends it",
        "flights: 1,200 rows in 3 epochs, 2 dead letters",
    ]
    assert (done.stdout, done.exit_code) == ("[]\n", 0)
    done = CliRunner().invoke(app, ["pipeline", "run", str(file(tmp_path, GOOD)), "--keep-going"])
    assert done.stderr.splitlines()[-1] == "flights: failed: no such record"
    assert done.exit_code == 1


def test_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    good, bad = file(tmp_path, GOOD), tmp_path / "bad.toml"
    bad.write_text(GOOD.replace("topic", "topc"))
    found = runner.invoke(app, ["pipeline", "check", str(good), "--offline", "--json"])
    assert found.exit_code == 0
    assert json.loads(found.stdout)[0]["target"] == f"delta:{tmp_path}/lake"
    nobody = file(tmp_path, GOOD.replace("7400", "1"))
    asked = runner.invoke(app, ["pipeline", "check", str(nobody)])
    assert asked.exit_code == 1
    assert asked.stdout.startswith("JOB"), "what the file says is shown all the same"
    assert "antiphon: flights: no node answered at 127.0.0.1:1" in asked.stderr  # after 5 s
    file(tmp_path, GOOD)
    assert runner.invoke(app, ["pipeline", "check", str(bad)]).exit_code == 1
    assert "did you mean topic" in runner.invoke(app, ["pipeline", "run", str(bad)]).stderr
    for words in (["check", "nowhere.toml"], ["run", str(good), "--job", "other"], ["run"]):
        assert runner.invoke(app, ["pipeline", *words]).exit_code == 2


class FakeQuery:
    """A mirror that has ended, or that goes on until it is stopped."""

    def __init__(self, progress: MirrorProgress, error: Exception | None) -> None:
        self.progress = progress
        self.error = error
        self.stopped = False

    @property
    def running(self) -> bool:
        return self.error is None

    def wait(self) -> None:
        if self.error is not None:
            raise self.error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped = True


TWO = """
servers = "127.0.0.1:7400"
[[job]]
source = {topic = "a"}
target = {kind = "delta", path = "a"}
[[job]]
source = {table = "b"}
target = {kind = "delta", path = "b"}
trigger = {every = "3 seconds"}
[[job]]
kind = "compact"
target = {kind = "delta", path = "a"}
"""


def test_one_failure_stops_all_and_ctrl_c_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = read_pipeline(file(tmp_path, TWO))
    started: list[tuple[Any, ...]] = []
    queries: list[FakeQuery] = []
    errors: dict[str, Exception] = {}

    def mirror(_spark: Any, servers: str, name: str, target: Any, **options: Any) -> FakeQuery:
        started.append((name, options["every"]))
        queries.append(FakeQuery(MirrorProgress(epochs=1, rows=5), errors.get(name)))
        options["on_epoch"](queries[-1].progress)
        return queries[-1]

    def compacting(*_: Any, **__: Any) -> Compacted:
        started.append(("compacted",))
        return Compacted(3, 1)

    def no_sleep(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(lake_pipeline, "mirror_topic", mirror)
    monkeypatch.setattr(lake_pipeline, "mirror_table", mirror)
    monkeypatch.setattr(lake_pipeline, "compact", compacting)
    run_pipeline(None, jobs[2:], once=True)
    assert not started, "there is no table to keep up"
    open_target(jobs[2].target).create(pa.schema([("a", pa.int64())]))
    told: list[Outcome] = []
    found = run_pipeline(None, jobs, once=True, told=told.append)
    assert started == [("a", None), ("b", None), ("compacted",)]
    assert [one.rows for one in found] == [5, 5, 0]
    assert len(told) == 3
    started.clear()
    monkeypatch.setattr(time, "sleep", no_sleep)
    run_pipeline(None, jobs, once=False)
    assert started == [("a", "10 seconds"), ("b", "3 seconds")], "upkeep has its time"
    assert all(query.stopped for query in queries[2:])
    errors["b"] = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        run_pipeline(None, jobs, once=False)
    assert all(query.stopped for query in queries[4:])


def test_the_others_go_on_where_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = read_pipeline(file(tmp_path, TWO))
    queries: dict[str, FakeQuery] = {}
    broken: dict[str, Exception] = {"b": InvalidRequestError("a record of b")}
    looks: list[float] = []

    def mirror(_spark: Any, servers: str, name: str, target: Any, **options: Any) -> FakeQuery:
        if name == "a" and "a" in broken:
            raise broken["a"]
        queries[name] = FakeQuery(MirrorProgress(epochs=1, rows=5), broken.get(name))
        return queries[name]

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(lake_pipeline, "mirror_topic", mirror)
    monkeypatch.setattr(lake_pipeline, "mirror_table", mirror)
    monkeypatch.setattr(time, "sleep", sleep)
    told: list[str | None] = []
    found = run_pipeline(None, jobs, once=False, told=lambda one: told.append(one.failure), keep_going=True)
    assert [one.failure for one in found] == [None, "a record of b", None]
    assert (len(looks), queries["a"].running, queries["a"].stopped) == (3, True, True), (
        "it went on to the end"
    )
    assert told == ["a record of b"]
    broken["a"] = ValueError("no such file")
    found = run_pipeline(None, jobs, once=False, keep_going=True)
    assert [one.failure for one in found][:2] == ["ValueError: no such file", "a record of b"]
    assert len(looks) == 4, "it ends when every mirror has failed"
    found = run_pipeline(None, jobs, once=True, keep_going=True)
    assert found[0].failure == "ValueError: no such file"
    assert found[1].failure is None, "it was begun all the same"


# -- columns and ages -----------------------------------------------------------------------------------------------


def test_columns_as_in_sql() -> None:
    text = (
        "id BIGINT NOT NULL COMMENT 'it''s, a key', `a b` array<struct<x: int, y decimal(5,2)>>, m map<string,double>, "
        "t timestamp, d date, n decimal(7), s struct<`q`: string>"
    )
    assert parse_columns(text) == pa.schema(
        [
            ("id", pa.int64()),
            ("a b", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.decimal128(5, 2))]))),
            ("m", pa.map_(pa.string(), pa.float64())), ("t", pa.timestamp("us", "UTC")), ("d", pa.date32()),
            ("n", pa.decimal128(7, 0)), ("s", pa.struct([("q", pa.string())])),
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "id", "id bigint,", "id bigint name", "a array<int", "a array int", "a map<int>", "a decimal(50)",
             "a int, A int", "a struct<>", "a `", "a array<" * 40]
)  # fmt: skip
def test_columns_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="schema"):
        parse_columns(text)


def test_ages() -> None:
    assert parse_age("90 minutes").total_seconds() == 5400
    assert parse_age("1 day") == parse_age("24hours")
    with pytest.raises(InvalidRequestError):
        parse_age("1 month")
