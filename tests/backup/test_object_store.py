"""Backups and an archive in an object store that speaks S3, with the library that fsspec has for it (s3fs)."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.archive.job.plan import Limits
from antiphon.archive.job.run import ArchiveRun, addresses
from antiphon.archive.job.tasks import run_task
from antiphon.tools.local_cluster import LocalCluster
from tests.backup.object_store import BUCKET, MISSING, ObjectStore
from tests.cli.shell import antiphon as command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed, as requirements.lock has it: {MISSING}"),
]
PLACE = f"s3://{BUCKET}/nightly"


@dataclass
class Scene:
    """A cluster, a store, and the backups that were made, each after more was written."""

    store: ObjectStore
    cluster: LocalCluster
    made: list[dict[str, Any]] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    rows: dict[str, bytes] = field(default_factory=dict)

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = command(*words, environment={**os.environ, **self.store.environment}, timeout_s=150)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def write(self, db: antiphon.Client, count: int) -> None:
        values = [b"%d" % number for number in range(len(self.values), len(self.values) + count)]
        db.topic("orders").append_batch(values, shard=0)
        rows = {f"k{number % 50}": b"%d" % number for number in range(count)}
        db.table("stock").put_many(rows)
        self.values += values
        self.rows |= rows

    def backup(self) -> None:
        out = self.run("backup", "create", PLACE, "--servers", self.cluster.native, "--json").stdout
        self.made.append(json.loads(out))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        ObjectStore(tmp_path_factory.mktemp("store")) as store,
        LocalCluster.start(nodes=1, directory=tmp_path_factory.mktemp("cluster")) as cluster,
    ):
        scene = Scene(store, cluster)
        with antiphon.connect(cluster.native) as db:
            db.create_topic("orders", shards=1, config={"retention.ms": "-1"})
            db.create_table("stock", shards=1)
            scene.write(db, 300)
            scene.backup()
            scene.write(db, 30)
        scene.backup()
        yield scene


def test_a_later_backup_writes_only_what_is_new(scene: Scene) -> None:
    first, second = scene.made
    assert (first["base"], second["base"]) == (None, first["name"])
    assert 0 < second["written_bytes"] < first["written_bytes"] / 2
    listed = json.loads(scene.run("backup", "list", PLACE, "--json").stdout)
    assert [one["name"] for one in listed] == [first["name"], second["name"]]
    assert all(key.startswith("nightly/") for key in sorted(scene.store.keys()))
    assert "is whole" in scene.run("backup", "verify", PLACE).stdout


def test_each_backup_comes_back(scene: Scene, tmp_path: Path) -> None:
    for made, count in zip(scene.made, (300, 330), strict=True):
        where = tmp_path / made["name"]
        scene.run("backup", "restore", PLACE, made["name"], "--dir", str(where), "--nodes", "1")
        with LocalCluster.start(directory=where) as cluster, antiphon.connect(cluster.native) as db:
            assert [record.value for record in db.topic("orders").read(0, 0)] == scene.values[:count]
            rows = {row.key.decode(): row.value for row in db.table("stock").scan()}
            assert rows.keys() == scene.rows.keys()
            if count == len(scene.values):
                assert rows == scene.rows


def test_one_topic_comes_back_into_the_running_cluster(scene: Scene) -> None:
    servers = ("--servers", scene.cluster.native)
    scene.run("backup", "restore-topic", PLACE, "orders", "--as", "orders-old", *servers)
    with antiphon.connect(scene.cluster.native) as db:
        assert [record.value for record in db.topic("orders-old").read(0, 0)] == scene.values


def test_what_is_damaged_or_gone_is_found(scene: Scene, tmp_path: Path) -> None:
    shown = json.loads(scene.run("backup", "show", PLACE, "--json").stdout)
    topic = next(one for one in shown["topics"] if one["name"] == "orders")
    path = topic["shards"][0]["pieces"][-1]["path"]
    key = f"nightly/{path}"
    whole = scene.store.read(key)
    try:
        scene.store.write(key, whole[:-1] + bytes([whole[-1] ^ 1]))
        assert path in scene.run("backup", "verify", PLACE, code=1).stdout
        scene.store.ask("DELETE", f"/{BUCKET}/{key}")
        refused = scene.run("backup", "restore", PLACE, "--dir", str(tmp_path / "none"), code=1)
        assert "nothing was changed" in refused.stderr
        assert not (tmp_path / "none").exists()
    finally:
        scene.store.write(key, whole)
    assert "is whole" in scene.run("backup", "verify", PLACE).stdout


def test_prune_removes_what_no_backup_needs(scene: Scene) -> None:
    before = scene.store.keys()
    scene.run("backup", "prune", PLACE, "--keep", "1")
    after = scene.store.keys()
    assert after.keys() < before.keys()
    listed = json.loads(scene.run("backup", "list", PLACE, "--json").stdout)
    assert [one["name"] for one in listed] == [scene.made[-1]["name"]]
    assert "is whole" in scene.run("backup", "verify", PLACE).stdout


def test_a_store_that_is_not_there_is_told(scene: Scene) -> None:
    none = "s3://no-such-bucket/nightly"
    refused = scene.run("backup", "create", none, "--servers", scene.cluster.native, code=1)
    assert "no-such-bucket" in refused.stderr


def test_archived_records_are_read_from_the_store(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in scene.store.environment.items():
        monkeypatch.setenv(name, value)
    servers = addresses(scene.cluster.native)
    run = ArchiveRun(servers, "orders", f"s3://{BUCKET}/archive", Limits(up_to=310), file_bytes=1500)
    run.run(lambda tasks: [run_task(task) for task in tasks])
    files = scene.store.keys("archive/")
    assert files
    assert all(name.endswith(".parquet") for name in files)
    with antiphon.connect(scene.cluster.native) as db:
        start, _ = db.topic("orders").offsets(0)
        assert start >= 300, "they are not in the log any more"
        assert [record.value for record in db.topic("orders").read(0, 0)] == scene.values
