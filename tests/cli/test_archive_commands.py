"""`antiphon archive`: a run, the list and the check, with Spark's part done in this process."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import antiphon
from antiphon.archive.job import run as archive_job
from antiphon.archive.job.tasks import run_task
from antiphon.cli import archive_commands
from antiphon.cli.main import app
from tests.spark.nodes_in_thread import LiveNodes, live_nodes


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("archive-cli"), 1) as running:
        yield running


@contextmanager
def no_spark(*_: Any) -> Iterator[None]:
    yield None


class Shell:
    def __init__(self, servers: str) -> None:
        self._environment = {"ANTIPHON_SERVERS": servers}

    def run(self, *words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(app, ["archive", *words], env=self._environment)
        assert done.exit_code == code, (done.output, done.exception)
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        said = self.run(*words, "--json", code=code).stdout
        return json.loads(said.splitlines()[-1])  # before it comes what the nodes of this process log


@pytest.fixture
def shell(live: LiveNodes, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.setattr(archive_commands, "spark_job", no_spark)
    monkeypatch.setattr(archive_job, "with_spark", lambda _, tasks: [run_task(task) for task in tasks])
    return Shell(live.servers)


def test_a_topic_is_archived_listed_checked_and_read(live: LiveNodes, shell: Shell, tmp_path: Path) -> None:
    with antiphon.connect(live.servers) as db:
        db.create_topic("flights", shards=2, config={"retention.ms": "-1"})
        flights = db.topic("flights")
        for number in range(20):
            flights.append_batch([b"x" * 50] * 10, shard=number % 2, timestamp_ms=1_000_000)
        before = [list(flights.read(shard=shard)) for shard in (0, 1)]
    assert shell.json("list") == []
    plan = shell.json("flights", "--to", str(tmp_path), "--up-to", "0=50", "--dry-run")
    assert [(row["shard"], row["from"], row["to"], row["files"]) for row in plan] == [
        (0, 0, 50, 1),
        (1, 0, 0, 0),
    ]
    assert list(tmp_path.iterdir()) == []
    done = shell.json("--to", str(tmp_path), "flights", "--older-than", "7d", "--up-to", "50")
    assert [shard["archived"] for shard in done["shards"]] == [[0, 50], [0, 50]]
    assert done["shards"][0]["log_starts"] == {"0": 50}
    assert shell.json("flights", "--to", str(tmp_path), "--up-to", "50")["shards"][0]["files"] == 0
    assert "0-50" in shell.run("run", "flights", "--to", str(tmp_path), "--up-to", "50").stdout
    listed = shell.json("list", "flights")
    assert [(row["shard"], row["start"], row["end"], row["records"]) for row in listed] == [
        (0, 0, 50, 50),
        (1, 0, 50, 50),
    ]
    assert listed[0]["latest"] == "1970-01-01T00:16:40.000+00:00"
    whole = shell.json("verify")
    assert (whole["files"], whole["problems"], whole["gaps"]) == (2, {}, [])
    with antiphon.connect(live.servers) as db:
        assert [list(db.topic("flights").read(shard=shard)) for shard in (0, 1)] == before
    lines = CliRunner().invoke(app, ["consume", "flights", "--from", "0", "--servers", live.servers]).stdout
    assert lines.splitlines().count("x" * 50) == 200
    shard_id = db_shard(live, "flights")
    live.run(live.nodes.nodes[0].gateway.trim_replica(shard_id, 70))  # as retention might
    assert shell.json("verify")["gaps"] == [{"topic": "flights", "shard": 0, "start": 50, "end": 70}]
    assert "offsets 50 to 70 were removed" in shell.run("verify", "flights").stdout
    path = Path(listed[1]["file"].removeprefix("file://"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    assert list(shell.json("verify", "flights", code=1)["problems"]) == [listed[1]["file"]]
    said = shell.run("verify", code=1).stdout
    assert "it is damaged, restore it" in said
    assert "1 of 2 files are whole" in said


def db_shard(live: LiveNodes, name: str) -> int:
    with antiphon.connect(live.servers) as db:
        return next(topic for topic in db.metadata().topics if topic.name == name).shards[0].shard_id


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["flights"], 2, "--to"),
        (["flights", "--to", "/x", "--older-than", "7 fortnights"], 2, "such as 7d"),
        (["flights", "--to", "/x", "--up-to", "a"], 2, "SHARD=OFFSET"),
        (["flights", "--to", "/x", "--up-to", "1", "--up-to", "2"], 2, "SHARD=OFFSET"),
        (["flights", "--to", "/x", "--storage-option", "key"], 2, "NAME=VALUE"),
        (["nobody", "--to", "/x"], 1, "no topic or table 'nobody'"),
        (["list", "nobody"], 1, "no topic or table 'nobody'"),
        (["flights", "--to", "nofs://x", "--storage-option", "key=1"], 1, "nofs"),
    ],
)
def test_wrong_words_are_told(shell: Shell, live: LiveNodes, words: list[str], code: int, why: str) -> None:
    with antiphon.connect(live.servers) as db:
        if "flights" not in {topic.name for topic in db.metadata().topics}:
            db.create_topic("flights")
    assert why in shell.run(*words, code=code).stderr


def test_help_has_examples() -> None:
    done = CliRunner().invoke(app, ["archive", "--help"])
    assert done.exit_code == 0
    assert "Example: antiphon archive flights" in done.output
    for name in ("run", "list", "verify"):
        assert "Example: antiphon archive" in CliRunner().invoke(app, ["archive", name, "--help"]).output
