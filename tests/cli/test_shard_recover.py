"""`antiphon shard recover` on real nodes: processes end by SIGKILL, and folders are removed."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

import antiphon
from antiphon.cli.shard_recover_command import CONFIRMED
from antiphon.model.metadata import ShardMeta
from antiphon.model.placement import RecoverShard
from antiphon.model.requests import CreateTopic, MoveReplica
from antiphon.tools.local_cluster import LocalCluster
from tests.cli.shell import antiphon as run_antiphon

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

LEFT: Final = 2  # nodes 0 to 2 hold `__cluster`
EMPTY, OLD = 3, 4  # both are lost; one comes back without its folder, and one with it
TOPICS: Final = {"by-coordinator": "oxia", "by-votes": "raft"}
WAIT_S: Final = 40.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(5) as started:
        yield started


def command(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return run_antiphon(*words, environment=os.environ | {"ANTIPHON_SERVERS": cluster.native})


def said(cluster: LocalCluster, *words: str) -> str:
    done = command(cluster, *words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout


def refused(cluster: LocalCluster, *words: str) -> str:
    done = command(cluster, *words)
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def meta(db: antiphon.Client, name: str) -> ShardMeta:
    return next(topic for topic in db.metadata().topics if topic.name == name).shards[0]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def append(db: antiphon.Client, value: bytes) -> None:
    for name in TOPICS:
        db.topic(name).append(value, timeout_s=20)


def ends(db: antiphon.Client, name: str) -> set[int]:
    """Where the logs of the members end that answer."""
    shard = meta(db, name)
    alive = [node.node_id for node in db.metadata().nodes if node.alive and node.node_id in shard.ensemble]
    found = [one for node in alive for one in db.node_status(node).replicas if one.shard_id == shard.shard_id]
    return {one.log_end for one in found} if len(found) == len(alive) else {-1, -2}


@pytest.mark.timeout(180)
def test_two_of_three_disks_are_lost(cluster: LocalCluster) -> None:
    with antiphon.connect(cluster.native) as db:
        for name, profile in TOPICS.items():
            placement = ((LEFT, EMPTY, OLD),)
            db.run(db.aio.administer(CreateTopic(name, replicas=3, profile=profile, placement=placement)))
        append(db, b"kept")
        until(lambda: all(len(ends(db, name)) == 1 for name in TOPICS))
        for name in TOPICS:
            assert "is led by node" in refused(cluster, "shard", "recover", name, "0", CONFIRMED)
        cluster.kill(LEFT)
        append(db, b"only there")
        for node in (EMPTY, OLD):
            cluster.kill(node)
        shutil.rmtree(cluster.nodes[EMPTY].dir)
        cluster.start_node(LEFT)
        until(lambda: all(meta(db, name).status == "Offline" for name in TOPICS))
        until(lambda: all(len(ends(db, name)) == 1 for name in TOPICS))
        for name in TOPICS:
            _look_first(cluster, db, name)
            _recover(cluster, db, name)
        append(db, b"after")
        for node in (EMPTY, OLD):
            cluster.start_node(node)
        for node in (EMPTY, OLD):
            said(cluster, "node", "await", str(node))
        for name in TOPICS:
            _let_back_in(db, name)
        _check(cluster, db)


def _look_first(cluster: LocalCluster, db: antiphon.Client, name: str) -> None:
    before = meta(db, name)
    shown = said(cluster, "shard", "recover", name, "0")
    assert "Offline" in shown
    assert f"If the disk of one of nodes {EMPTY},{OLD} is whole, start that node first" in shown
    assert (
        f"Nothing was changed. To do it: antiphon shard recover {name} 0 --from {LEFT} {CONFIRMED}" in shown
    )
    plain = json.loads(said(cluster, "shard", "recover", name, "0", "--json"))
    assert (plain["recovered"], plain["best"]) == (False, LEFT)
    assert [one["state"] for one in plain["replicas"] if one["node"] != LEFT] == ["down", "down"]
    assert "has more of" in refused(cluster, "shard", "recover", name, "0", "--from", str(EMPTY), CONFIRMED)
    assert meta(db, name) == before


def _recover(cluster: LocalCluster, db: antiphon.Client, name: str) -> None:
    shown = said(cluster, "shard", "recover", name, "0", CONFIRMED)
    assert f"{name}/0 goes on from node {LEFT}" in shown
    shard = meta(db, name)
    assert shard.leader == LEFT
    assert set(shard.ensemble) == {0, 1, LEFT}
    known = shard.recovery
    assert known is not None
    assert known.done
    again = RecoverShard(shard.shard_id, LEFT, 0, 0, 1)
    db.run(db.aio.administer(again))  # a repeat of what is done changes nothing
    assert meta(db, name).recovery == known
    [row] = json.loads(said(cluster, "shard", "list", "--topic", name, "--json"))
    assert row["recovered"] == {"node": LEFT, "term": known.term, "at": known.at}
    assert "is led by node" in refused(cluster, "shard", "recover", name, "0", CONFIRMED)


def _let_back_in(db: antiphon.Client, name: str) -> None:
    """The two nodes hold the shard again, in the place of those that took it over."""
    shard_id = meta(db, name).shard_id
    for new, old in ((EMPTY, 0), (OLD, 1)):
        db.run(db.aio.administer(MoveReplica(shard_id, old, new)))
        until(lambda new=new: new in meta(db, name).ensemble and not meta(db, name).goal)  # type: ignore[misc]


def _check(cluster: LocalCluster, db: antiphon.Client) -> None:
    """Nothing of the old history is left, and the three replicas are one log; also when the one that was left is away."""
    append(db, b"last")
    for name in TOPICS:
        assert set(meta(db, name).ensemble) == {LEFT, EMPTY, OLD}
    until(lambda: all(len(ends(db, name)) == 1 for name in TOPICS))
    cluster.kill(LEFT)
    append(db, b"without it")
    for name in TOPICS:
        values = [record.value for record in db.topic(name).read(shard=0)]
        assert values == [b"kept", b"after", b"last", b"without it"]
