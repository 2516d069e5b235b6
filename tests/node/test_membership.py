"""Members change on real nodes while clients write: nothing that was acknowledged is lost, nothing is there twice (S0.2)."""

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import antiphon
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.model.metadata import ClusterMeta, ShardMeta
from antiphon.tools.local_cluster import COMMAND, LocalCluster

pytestmark = pytest.mark.cluster

SHARDS = 3
WAIT_S = 30.0


class Load:
    """Writers of a topic and of a table, each in a thread with a client of its own, and what was acknowledged to them."""

    def __init__(self, servers: str, log: str, book: str) -> None:
        self._servers = servers
        self._log, self._book = log, book
        self._stop = threading.Event()
        self.appended: list[tuple[int, int, bytes]] = []
        self.put: dict[bytes, bytes] = {}
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._append, self._put)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def _append(self) -> None:
        with antiphon.connect(self._servers) as db:
            topic = db.topic(self._log)
            number = 0
            while not self._stop.is_set():
                value = b"%d" % number
                try:
                    at = topic.append(value, shard=number % SHARDS)
                    self.appended.append((at.shard, at.offset, value))
                except AntiphonError as error:
                    self.failures.append(str(error))
                number += 1
                time.sleep(0.002)

    def _put(self) -> None:
        with antiphon.connect(self._servers) as db:
            table = db.table(self._book)
            number = 0
            while not self._stop.is_set():
                key, value = b"key-%d" % (number % 50), b"%d" % number
                try:
                    table.put(key, value)
                    self.put[key] = value
                except AntiphonError as error:
                    self.failures.append(str(error))
                number += 1
                time.sleep(0.005)

    def check(self) -> None:
        """Everything that was acknowledged is where it was said to be, once."""
        assert not self.failures, self.failures[:3]
        assert len(self.appended) > 100
        with antiphon.connect(self._servers) as db:
            topic = db.topic(self._log)
            found: dict[tuple[int, int], bytes | None] = {}
            for shard in range(SHARDS):
                for record in topic.read(shard, -2):
                    found[shard, record.offset] = record.value
            for at_shard, offset, value in self.appended:
                assert found[at_shard, offset] == value
            assert max(Counter(found.values()).values()) == 1
            table = db.table(self._book)
            for key, expected in self.put.items():
                assert table.get(key).value == expected


def command(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*COMMAND, *words, "--dir", str(cluster.dir)), capture_output=True, text=True, timeout=60, check=False
    )


def shards_of(meta: ClusterMeta, name: str) -> tuple[ShardMeta, ...]:
    return next(topic for topic in meta.topics if topic.name == name).shards


def not_live(db: antiphon.Client) -> list[ShardMeta]:
    shards = [shard for topic in db.metadata().topics for shard in topic.shards]
    return [shard for shard in shards if set(shard.live) != set(shard.ensemble) or shard.leader < 0]


def until_all_live(db: antiphon.Client) -> None:
    deadline = time.monotonic() + WAIT_S
    while found := not_live(db):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(3) as started:
        yield started


def test_s0_2_members_change_under_load(cluster: LocalCluster) -> None:
    with antiphon.connect(cluster.native) as db:
        db.create_topic("log", shards=SHARDS, replicas=3)
        db.create_table("book", shards=1, replicas=3)
        load = Load(cluster.native, "log", "book")
        load.start()

        new = cluster.add_node()
        for index, shard in enumerate(shards_of(db.metadata(), "log")):
            leader = index == 0  # of one shard the leader itself is moved, of the others followers
            gone = next(n for n in shard.ensemble if (n == shard.leader) == leader)
            db.move_replica("log", index, gone, new)
        db.wait_for_moves(timeout_s=WAIT_S)
        assert all(new in shard.ensemble for shard in shards_of(db.metadata(), "log"))

        # A node is killed in the middle of a move: of those that come, and of those that stay.
        db.drain_node(1)
        time.sleep(0.05)
        cluster.kill(new)
        time.sleep(0.2)
        cluster.start_node(new)
        db.wait_for_moves(timeout_s=WAIT_S)
        assert not any(1 in s.everybody for topic in db.metadata().topics for s in topic.shards)
        db.drain_node(1, cancel=True)

        done = command(cluster, "topic", "alter", "log", "--replicas", "1")
        assert done.returncode == 0, done.stderr
        assert [len(shard.everybody) for shard in shards_of(db.metadata(), "log")] == [1] * SHARDS
        db.alter_topic("log", replicas=3)
        db.alter_topic("book", replicas=2)
        time.sleep(0.05)
        cluster.kill(2)
        time.sleep(0.2)
        cluster.start_node(2)
        db.wait_for_moves(timeout_s=WAIT_S)

        with pytest.raises(InvalidRequestError, match="node drain"):
            db.remove_node(new)
        drained = command(cluster, "node", "drain", str(new), "--json")
        assert drained.returncode == 0, drained.stderr
        assert json.loads(drained.stdout)["left"] == 0
        removed = command(cluster, "node", "remove", str(new))
        assert removed.returncode == 0, removed.stderr
        assert new not in [node.node_id for node in db.metadata().nodes]
        refused = command(cluster, "node", "remove", "1")
        assert refused.returncode == 1
        assert "votes in `__cluster`" in refused.stderr

        db.alter_topic("book", replicas=3)
        balanced = command(cluster, "rebalance", "--json")
        assert balanced.returncode == 0, balanced.stderr
        held = [node["replicas"] for node in json.loads(balanced.stdout)["nodes"]]
        assert max(held) - min(held) <= 1
        load.stop()
        until_all_live(db)
        assert all(len(shard.ensemble) == 3 for shard in shards_of(db.metadata(), "log"))
    load.check()


def test_s0_2_a_node_comes_back_with_an_empty_disk(cluster: LocalCluster) -> None:
    with antiphon.connect(cluster.native) as db:
        new = cluster.add_node()
        db.create_topic("log-2", shards=SHARDS, replicas=3)
        db.create_topic("live", shards=2, replicas=3, profile="fluvio")
        db.create_table("book-2", shards=1, replicas=3)
        db.rebalance()
        db.wait_for_moves(timeout_s=WAIT_S)
        load = Load(cluster.native, "log-2", "book-2")
        load.start()
        kept = [db.topic("live").append(b"%d" % number, shard=number % 2) for number in range(20)]
        cluster.kill(new)
        time.sleep(0.3)
        shutil.rmtree(cluster.nodes[new].dir)
        cluster.start_node(new)
        until_all_live(db)
        load.stop()
        until_all_live(db)
        for number, at in enumerate(kept):
            assert next(iter(db.topic("live").read(at.shard, at.offset))).value == b"%d" % number
        held = {
            topic.name: [shard.index for shard in topic.shards if new in shard.ensemble]
            for topic in db.metadata().topics
        }
        assert sum(map(len, held.values())), "it has its share of replicas"
    load.check()


OTHERS: dict[str, dict[str, str]] = {
    "fluvio": {"commit": "live"},
    "raft": {"election": "raft"},
    "local": {"commit": "local", "accept.split.brain": "true"},
    "manual": {"election": "manual"},
    "multi": {"writers": "multi"},
}


@pytest.mark.parametrize("name", OTHERS)
def test_s0_2_members_of_every_kind_of_shard(cluster: LocalCluster, name: str) -> None:
    """Follower and leader are moved, replicas dropped and added; what was acknowledged is where it was said to be."""
    with antiphon.connect(cluster.native) as db:
        nodes = {node.node_id for node in db.metadata().nodes if node.alive}
        if len(nodes) < 4:
            nodes.add(cluster.add_node())
        topic = db.create_topic(name, shards=1, replicas=3, config=OTHERS[name])
        kept = [topic.append(b"%d" % number) for number in range(20)]

        def move(gone: int, to: int) -> None:
            db.move_replica(name, 0, gone, to)
            db.wait_for_moves(name, timeout_s=WAIT_S)
            kept.append(topic.append(b"%d" % len(kept)))

        [meta] = shards_of(db.metadata(), name)
        move(next(node for node in meta.ensemble if node != meta.leader), (nodes - set(meta.ensemble)).pop())
        [meta] = shards_of(db.metadata(), name)
        spare = (nodes - set(meta.ensemble)).pop()
        if name == "manual":
            with pytest.raises(InvalidRequestError, match="election=manual"):
                move(meta.leader, spare)
        else:
            move(meta.leader, spare)
        for replicas in (1, 3):
            db.alter_topic(name, replicas=replicas)
            db.wait_for_moves(name, timeout_s=WAIT_S)
            [meta] = shards_of(db.metadata(), name)
            assert len(meta.everybody) == replicas
            kept.append(topic.append(b"%d" % len(kept)))
        found = {record.offset: record.value for record in topic.read(0, -2)}
        assert [found[at.offset] for at in kept] == [b"%d" % number for number in range(len(kept))]
