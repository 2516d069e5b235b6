"""Backups of a cluster of processes: under load, one after the other, with a node that dies; and what comes back."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.model.access import Acl, Operation, Resource
from antiphon.model.node_settings import ALL_NODES, AlterNodeSettings, GetNodeSettings
from antiphon.model.quotas import Quota
from antiphon.model.requests import AlterAcls, AlterQuota, AlterUser, GetAccess, TrimShard
from antiphon.records.batch import iter_batches, read_header
from antiphon.records.decode import decode_records
from antiphon.security.passwords import credentials
from antiphon.tools.local_cluster import LocalCluster
from tests.backup.load import SHARDS, TABLE, TOPIC, Load
from tests.cli.shell import antiphon as command

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

PROFILES = {"live": "fluvio", "local": "tarantool", "kip": "kip27"}  # topics, by how they are replicated


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = command(*words, environment=dict(os.environ), timeout_s=120)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


@dataclass
class Story:
    """What happened: the cluster still runs, nobody writes to it any more."""

    cluster: LocalCluster
    place: Path
    load: Load
    made: list[dict[str, Any]]
    times: list[tuple[float, float]]  # when each backup was begun and done
    seen: dict[str, Any]  # as of the last one

    def backup(self) -> dict[str, Any]:
        began = time.monotonic()
        out = run("backup", "create", str(self.place), "--servers", self.cluster.native, "--json").stdout
        self.times.append((began, time.monotonic()))
        self.made.append(json.loads(out))
        return self.made[-1]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    place = tmp_path_factory.mktemp("backups") / "place"
    with LocalCluster.start(directory=tmp_path_factory.mktemp("cluster")) as cluster:
        with antiphon.connect(cluster.native) as db:
            db.create_topic(TOPIC, shards=SHARDS, config={"retention.bytes": "1000000000"})
            db.create_table(TABLE, shards=2)
            db.create_table("trimmed", shards=1)
            db.table("trimmed").put_many({f"{n}": b"%d" % n for n in range(500)})
            db.create_topic("voted", profile="raft")
            db.topic("voted").append_batch([b"a", b"b"])
            for name, profile in PROFILES.items():
                db.create_topic(name, profile=profile)
                db.topic(name).append_batch([b"a", b"b"], shard=0)
            db.run(db.aio.administer(AlterUser("alice", credentials("a password"))))
            db.run(db.aio.administer(AlterAcls((Acl("User:alice", Resource.TOPIC, TOPIC, Operation.READ),))))
            db.run(db.aio.administer(AlterQuota(Quota("alice", producer_byte_rate=1e6))))
            db.run(db.aio.administer(AlterNodeSettings(config={"limits.topics": "5000"})))
            own = db.metadata().nodes[0].node_id
            db.run(db.aio.administer(AlterNodeSettings(own, {"limits.topics": "6000"})))
            db.create_table("presence", shards=1)
        load = Load(cluster.native).start()
        story = Story(cluster, place, load, [], [], {})
        load.wait_for(200)
        story.backup()
        load.wait_for(200)
        story.backup()
        cluster.kill(1)
        load.wait_for(50)
        story.backup()
        cluster.start_node(1)
        load.wait_for(50)
        load.stop()
        with antiphon.connect(cluster.native) as db:
            trim(db, "trimmed")
            db.table("trimmed").put("after", b"the trim")
            with db.session(timeout_s=60) as session:
                db.table("presence").put("here", b"ephemeral", session=session)
                db.table("presence").put("always", b"not so")
                story.backup()
                story.seen = all_of(db)
                yield story


def trim(db: antiphon.Client, name: str) -> None:
    """Let the logs of a table or topic begin at their end, on every node."""
    meta = db.metadata()
    topic = next(one for one in meta.topics if one.name == name)
    for shard in topic.shards:
        deadline = time.monotonic() + 30
        while True:
            start, end = db.topic(name, any_kind=True).offsets(shard.index)
            for node in shard.ensemble:
                db.run(db.aio._ask_node(node, TrimShard(shard.shard_id, end, internal=True), None))
            start, end = db.topic(name, any_kind=True).offsets(shard.index)
            if start == end:
                break
            assert time.monotonic() < deadline, (start, end)
            time.sleep(0.1)


def all_of(db: antiphon.Client) -> dict[str, Any]:
    """Everything that is to be the same after a restore."""
    access = db.run(db.aio._ask_node(db.metadata().nodes[0].node_id, GetAccess(), None))
    told = db.run(db.aio._ask_node(db.metadata().nodes[0].node_id, GetNodeSettings(), None))
    return {
        "rows": {name: rows_of(db, name) for name in (TABLE, "trimmed", "presence")},
        "logs": {
            name: [log_of(db, name, shard) for shard in range(count)]
            for name, count in ((TOPIC, SHARDS), (TABLE, 2), ("trimmed", 1), ("voted", 1))
        },
        "offsets": db.group_offsets("readers", [(TOPIC, 0)]),
        "access": (access.users, access.acls, access.quotas),
        "settings of all nodes": [entry for entry in told.entries if entry.node == ALL_NODES],
        "config": {topic.name: dict(topic.config) for topic in db.metadata().topics},
        "ids": {topic.name: topic.topic_id for topic in db.metadata().topics},
    }


def rows_of(db: antiphon.Client, name: str) -> list[tuple[bytes, bytes, Any]]:
    return [(row.key, row.value, row.version) for row in db.table(name).scan()]


def log_of(db: antiphon.Client, name: str, shard: int) -> list[tuple[int, bytes]]:
    """The batches of clients in a shard's log, at their offsets; the entries of leaders are each cluster's own."""
    topic = next(one for one in db.metadata().topics if one.name == name)
    shard_id = next(one.shard_id for one in topic.shards if one.index == shard)
    at, end = db.topic(name, any_kind=True).offsets(shard)
    found = []
    while at < end:
        _, payload = db.run(db.aio.fetch(shard_id, at, isolation="read_uncommitted"))
        for header, batch in iter_batches(payload):
            at = header.next_offset
            if not header.is_control or header.is_transactional:
                found.append((header.base_offset, bytes(batch)))
    return found


def texts(log: list[tuple[int, bytes]]) -> set[str]:
    return {
        bytes(record.value).decode()
        for _, batch in log
        if not read_header(batch).is_control
        for record in decode_records(batch)
        if record.value is not None
    }


def restored(story: Story, name: str, directory: Path, nodes: int = 3) -> LocalCluster:
    run("backup", "restore", str(story.place), name, "--dir", str(directory), "--nodes", str(nodes))
    return LocalCluster.start(directory=directory)


def test_all_comes_back(story: Story, tmp_path: Path) -> None:
    """Records at their offsets, rows with their versions, groups, users, settings and ids."""
    with restored(story, story.made[-1]["name"], tmp_path / "new") as cluster:
        assert cluster.cluster_id != story.cluster.cluster_id
        with antiphon.connect(cluster.native) as db:
            found = all_of(db)
            logs = found["logs"].pop("trimmed")
            assert logs[0][-1:] == story.seen["logs"]["trimmed"][0], "it has what was trimmed since, too"
            assert found["logs"] | {"trimmed": 0} == story.seen["logs"] | {"trimmed": 0}
            assert found | {"logs": 0} == story.seen | {"logs": 0}
            assert len(found["rows"]["presence"]) == 2, "a session is open until its client has been silent"
            assert found["rows"]["trimmed"], "the rows of a table whose log was trimmed are of its state"
            key, _, version = found["rows"][TABLE][0]
            again = db.table(TABLE).put(key, b"row", expected_version=version.id)
            assert again.id > version.id
            assert again.modifications == version.modifications + 1
            assert db.topic(TOPIC).append(b"new", shard=0).offset > found["logs"][TOPIC][0][-1][0]
            with db.producer("loader") as producer, producer.begin() as transaction:
                transaction.append(TOPIC, b"after", shard=1)
            for name in ("voted", *PROFILES):
                assert [record.value for record in db.topic(name).read(0, 0)] == [b"a", b"b"]
                db.topic(name).append(b"c", shard=0)
        run("status", "--servers", cluster.native)


def test_rows_of_a_trimmed_table_come_from_its_state(story: Story, tmp_path: Path) -> None:
    """A first backup, when the log does not say everything any more; then one more, which writes no state again."""
    place = str(tmp_path / "place")
    made = [
        json.loads(run("backup", "create", place, "--servers", story.cluster.native, "--json").stdout)
        for _ in range(2)
    ]
    shown = json.loads(run("backup", "show", place, "--json").stdout)
    (shard,) = next(topic["shards"] for topic in shown["topics"] if topic["name"] == "trimmed")
    assert shard["start"] == shard["state"]["offset"] >= 500
    assert made[1]["written_files"] == 0, "nothing is new"
    run("backup", "restore", place, "--dir", str(tmp_path / "new"), "--nodes", "2")
    with LocalCluster.start(directory=tmp_path / "new") as cluster, antiphon.connect(cluster.native) as db:
        found = all_of(db)
        assert found["rows"] == story.seen["rows"]
        assert found["logs"] | {"trimmed": 0} == story.seen["logs"] | {"trimmed": 0}
        assert found["offsets"] == story.seen["offsets"]
        assert found["access"] == story.seen["access"]
        db.table("trimmed").put("0", b"again")


def test_under_load_a_cut_is_one_moment(story: Story, tmp_path: Path) -> None:
    for made, (began, ended) in list(zip(story.made, story.times, strict=True))[:3]:
        new = restored(story, made["name"], tmp_path / made["name"], nodes=1)
        with new as cluster, antiphon.connect(cluster.native) as db:
            logs = [log_of(db, TOPIC, shard) for shard in range(SHARDS)]
            logs += [log_of(db, TABLE, shard) for shard in range(2)]
            there = set().union(*map(texts, logs))
            read = [
                {bytes(r.value or b"").decode() for r in db.topic(TOPIC).read(s, 0)} for s in range(SHARDS)
            ]
        check_moment(story.load, there, began, ended)
        for text in story.load.transactions:
            assert len({text in values for values in read}) == 1, f"half of transaction {text} is there"


def check_moment(load: Load, there: set[str], began: float, ended: float) -> None:
    """What was acknowledged before is in, what began after is not, and nothing is in without what came before it."""
    newest = max(write.began for write in load.writes if write.text in there)
    for write in load.writes:
        if 0 < write.acknowledged < max(began, newest):
            assert write.text in there, write
        if write.began > ended:
            assert write.text not in there, write
    assert newest > began - 5


def test_later_backups_write_only_what_is_new(story: Story) -> None:
    first, second, third, _ = story.made
    assert (first["base"], second["base"], third["base"]) == (None, first["name"], second["name"])
    assert second["size_bytes"] > first["size_bytes"]
    assert second["written_bytes"] == second["size_bytes"] - first["size_bytes"]
    for made in story.made:
        assert 0 < made["cut"]["held_ms"] <= 1_000
    listed = json.loads(run("backup", "list", str(story.place), "--json").stdout)
    assert [one["name"] for one in listed] == [one["name"] for one in story.made]


def test_one_topic_and_one_table_into_the_running_cluster(story: Story) -> None:
    servers = ("--servers", story.cluster.native)
    place, latest = str(story.place), story.made[-1]["name"]
    topic = json.loads(
        run("backup", "restore-topic", place, TOPIC, "--as", "orders-old", *servers, "--json").stdout
    )
    table = json.loads(
        run(
            "backup", "restore-topic", place, TABLE, latest, "--as", "accounts-old", *servers, "--json"
        ).stdout
    )
    run("backup", "restore-topic", place, "trimmed", "--as", "trimmed-old", *servers)
    some = run(
        "backup", "restore-topic", place, "presence", "--as", "presence-old", *servers, "--json"
    ).stdout
    assert json.loads(some)["shards"] == [{"shard": 0, "records": 1, "left_out": 1, "kept_offsets": False}]
    with antiphon.connect(story.cluster.native) as db:
        for shard in range(SHARDS):
            was = [record.value for record in db.topic(TOPIC).read(shard, 0)]
            now = [record.value for record in db.topic("orders-old").read(shard, 0)]
            assert now == was
            assert topic["shards"][shard]["records"] == len(was)
        for name, old in ((TABLE, "accounts-old"), ("trimmed", "trimmed-old")):
            rows = [(key, value) for key, value, _ in rows_of(db, name)]
            assert [(key, value) for key, value, _ in rows_of(db, old)] == rows
        assert sum(one["records"] for one in table["shards"]) == len(rows_of(db, TABLE))
    refused = run("backup", "restore-topic", place, TOPIC, *servers, code=1)
    assert "--as" in refused.stderr
    assert (
        "belongs to the cluster" in run("backup", "restore-topic", place, "__groups", *servers, code=1).stderr
    )


def test_a_damaged_backup_is_refused_before_anything_is_changed(story: Story, tmp_path: Path) -> None:
    assert "is whole" in run("backup", "verify", str(story.place)).stdout
    shown = json.loads(run("backup", "show", str(story.place), "--json").stdout)
    topic = next(one for one in shown["topics"] if one["name"] == TOPIC)
    piece = story.place / topic["shards"][0]["pieces"][-1]["path"]
    data = bytearray(piece.read_bytes())
    data[-1] ^= 1
    whole, _ = bytes(piece.read_bytes()), piece.write_bytes(data)
    try:
        found = run("backup", "verify", str(story.place), code=1)
        assert topic["shards"][0]["pieces"][-1]["path"] in found.stdout
        refused = run("backup", "restore", str(story.place), "--dir", str(tmp_path / "none"), code=1)
        assert "nothing was changed" in refused.stderr
        assert not (tmp_path / "none").exists()
        words = ("backup", "restore-topic", str(story.place), TOPIC, "--as", "never")
        run(*words, "--servers", story.cluster.native, code=1)
        with antiphon.connect(story.cluster.native) as db:
            assert "never" not in {one.name for one in db.metadata().topics}
    finally:
        piece.write_bytes(whole)
    assert "is whole" in run("backup", "verify", str(story.place)).stdout


def test_a_secure_cluster_comes_back_with_a_new_password_of_its_first_user(
    story: Story, tmp_path: Path
) -> None:
    directory = tmp_path / "secure"
    run("backup", "restore", str(story.place), "--dir", str(directory), "--nodes", "1", "--secure")
    with LocalCluster.start(directory=directory):
        listed = run("user", "list", "--dir", str(directory)).stdout
        assert "alice" in listed
        assert "admin" in listed
        rows = run("kv", TABLE, "list", "--dir", str(directory)).stdout
        assert len(rows.splitlines()) >= len(story.seen["rows"][TABLE])
        made = run("backup", "create", str(tmp_path / "again"), "--dir", str(directory)).stdout
        assert made.startswith("Backup ")


def test_what_cannot_be(story: Story, tmp_path: Path) -> None:
    assert "there is no backup" in run("backup", "show", str(tmp_path), code=1).stderr
    (tmp_path / "something").write_text("")
    refused = run("backup", "restore", str(story.place), "--dir", str(tmp_path), code=1)
    assert "not empty" in refused.stderr
    words = ("backup", "create", str(story.place), "--servers", story.cluster.native, "--without", "nothing")
    assert "no topic or table 'nothing'" in run(*words, code=1).stderr
