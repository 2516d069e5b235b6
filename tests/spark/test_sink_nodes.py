"""Writes of jobs to real nodes, without Spark: markers that outlive what they mark, and staging on three replicas."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import antiphon
from antiphon.client.blocking import Cluster
from antiphon.errors import InvalidRequestError
from antiphon.model.requests import CreateTopic, ElectLeader, TrimShard
from antiphon.spark.job import Job
from antiphon.spark.option_values import parse_servers
from antiphon.spark.staging import commit as staging_commit
from antiphon.spark.staging.blobs import EPOCHS_TABLE, STAGED_TOPIC, ensure_internal
from antiphon.spark.staging.housekeeper import Housekeeper
from antiphon.spark.write.options import WriteOptions, parse_write
from antiphon.spark.write.task import Task, TaskResult, commit_results, write_rows
from tests.spark.nodes_in_thread import LiveNodes, live_nodes

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path_factory.mktemp("nodes"), 3) as nodes:
        yield nodes


@pytest.fixture
def cluster(nodes: LiveNodes) -> Iterator[Cluster]:
    with Cluster(parse_servers(nodes.servers), 20_000) as cluster:
        yield cluster


def options_for(nodes: LiveNodes, **more: str) -> WriteOptions:
    return parse_write(
        {"servers": nodes.servers, "timeoutMs": "20000", "batchRows": "20", **more}, streaming=True
    )


def rows(first: int, count: int) -> pa.RecordBatch:
    values = pa.array([b"%d" % n for n in range(first, first + count)], pa.binary())
    return pa.record_batch({"key": values, "value": values})


def write(options: WriteOptions, epoch: int, batch: pa.RecordBatch, partition: int = 0) -> TaskResult:
    return write_rows(Task(options, Job("q", epoch, partition), 1_800_000_000_000), iter([batch]))


def shard_of(cluster: Cluster, name: str, *, table: bool) -> int:
    (shard,) = cluster.topic(name, table=table).shards
    return shard.shard_id


def leader_of(cluster: Cluster, shard_id: int) -> int:
    (found,) = [
        shard.leader
        for topic in cluster.metadata().topics
        for shard in topic.shards
        if shard.shard_id == shard_id
    ]
    return found


@pytest.mark.parametrize("table", [False, True], ids=["topic", "table"])
def test_markers_outlive_trims_wiped_followers_and_restarts(
    nodes: LiveNodes, cluster: Cluster, tmp_path: Path, table: bool
) -> None:
    name = "marked-table" if table else "marked"
    with antiphon.connect(nodes.servers) as db:
        if table:
            db.create_table(name, shards=1, replicas=3)
        else:
            db.create_topic(name, shards=1, replicas=3)
    options = options_for(nodes, protocol="direct", **{"table" if table else "topic": name})
    shard_id = shard_of(cluster, name, table=table)
    first = write(options, 3, rows(0, 90))
    assert (first.batches, first.duplicates) == (5, 0)

    def end() -> int:
        def is_led() -> bool:
            hosts = [node.hosts.get(shard_id) for node in nodes.nodes.nodes.values()]
            return None not in hosts and any(host.state.is_serving for host in hosts if host is not None)

        nodes.until(is_led)
        nodes.all_settled(shard_id)

        async def look() -> set[int]:
            return {node.hosts[shard_id].log.log_end for node in nodes.nodes.nodes.values()}

        (found,) = nodes.run(look())
        return found

    def comes_again() -> None:
        before = end()
        again = write(options, 3, rows(0, 90))
        assert again.rows == 90
        assert table or again.duplicates == again.batches == 5
        assert end() == before

    comes_again()
    for node_id in range(3):
        cluster.ask(node_id, TrimShard(shard_id, 1 << 40))
    assert set(nodes.log_starts(shard_id).values()) == {end()}
    comes_again()

    victim = (leader_of(cluster, shard_id) + 1) % 3
    nodes.stop(victim)
    shutil.rmtree(nodes.nodes.directory / f"node-{victim}")
    nodes.start(victim)
    nodes.until(lambda: shard_id in nodes.nodes.nodes[victim].hosts)
    other = Job("another query", 0, 0)
    write_rows(Task(options, other, 1_800_000_000_000), iter([rows(90, 1)]))
    end()  # it was fed by a snapshot, for the log is gone
    cluster.ask(victim, ElectLeader(shard_id, victim))
    nodes.until(lambda: nodes.nodes.nodes[victim].hosts[shard_id].state.is_serving)
    comes_again()

    for node_id in range(3):
        nodes.stop(node_id)
    for node_id in range(3):
        nodes.start(node_id)
    comes_again()
    assert write(options, 4, rows(0, 90)).duplicates == 0


def test_staged_epochs_on_three_nodes(
    nodes: LiveNodes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with antiphon.connect(nodes.servers) as db:
        db.create_topic("staged-out", shards=4, replicas=3)
    options = options_for(nodes, topic="staged-out")
    expected: Counter[bytes] = Counter()
    for epoch in range(3):
        results = [write(options, epoch, rows(1_000 * epoch + 100 * at, 100), at) for at in range(3)]
        expected.update(b"%d" % (1_000 * epoch + n) for n in range(300))
        if epoch == 1:  # the driver dies after it decided, and the leaders move
            with monkeypatch.context() as patch:
                patch.setattr(staging_commit, "apply_epoch", _dies)
                with pytest.raises(InterruptedError):
                    commit_results(options, results, b"")
            for shard in cluster.topic("staged-out", table=False).shards[:2]:
                cluster.ask(0, ElectLeader(shard.shard_id))
            assert _values(nodes) == expected - Counter(b"%d" % (1_000 + n) for n in range(300))
            assert Housekeeper(parse_servers(nodes.servers), None, wait_s=0).look(cluster).finished == 1
        else:
            commit_results(options, results, b"")
        assert _values(nodes) == expected
    for name, is_table in ((STAGED_TOPIC, False), (EPOCHS_TABLE, True)):
        topic = cluster.topic(name, table=is_table)
        assert topic.internal
        assert {len(shard.ensemble) for shard in topic.shards} == {3}
    leaders = {
        node_id: Housekeeper(parse_servers(nodes.servers), node_id, wait_s=0).look(cluster)
        for node_id in range(3)
    }
    assert [node_id for node_id, look in leaders.items() if look.removed] == [
        cluster.topic(EPOCHS_TABLE, table=True).shards[0].leader
    ]
    for shard in cluster.topic(STAGED_TOPIC, table=False).shards:
        nodes.all_settled(shard.shard_id)
        assert len(set(nodes.log_starts(shard.shard_id).values())) == 1


def test_a_target_with_more_replicas_gets_more_for_what_is_staged(tmp_path: Path) -> None:
    with live_nodes(tmp_path, 2) as nodes, Cluster(parse_servers(nodes.servers), 20_000) as cluster:
        cluster.metadata()
        cluster.call_any(CreateTopic(STAGED_TOPIC, shards=2, replicas=1, internal=True))
        cluster.metadata()
        for topic in ensure_internal(cluster, 2):
            assert {len(shard.ensemble) for shard in topic.shards} == {2}


def _dies(*_: object) -> None:
    raise InterruptedError


def _values(nodes: LiveNodes) -> Counter[bytes]:
    with antiphon.connect(nodes.servers) as db:
        topic = db.topic("staged-out")
        return Counter(
            record.value or b""
            for shard in range(4)
            for record in topic.read(shard=shard, start=0, end=topic.offsets(shard)[1])
        )


@pytest.mark.parametrize("protocol", ["staged", "direct"])
def test_where_every_replica_writes_nothing_is_written(nodes: LiveNodes, protocol: str) -> None:
    name = f"everybody-{protocol}"
    with antiphon.connect(nodes.servers) as db:
        topic = db.create_topic(name, config={"writers": "multi"})
        with pytest.raises(InvalidRequestError, match=f"every replica of {name} takes writes"):
            write(options_for(nodes, topic=name, protocol=protocol), 0, rows(0, 10))
        assert topic.offsets(0)[1] == 0
