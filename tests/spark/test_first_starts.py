"""The first epoch, job or archive of a cluster while one of its nodes is down, without Spark: a quorum is enough."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import antiphon
from antiphon.archive.catalog import Catalog
from antiphon.client.blocking import Cluster
from antiphon.errors import InvalidRequestError
from antiphon.model.internal import KINDS
from antiphon.model.metadata import Kind
from antiphon.model.requests import CreateTopic
from antiphon.spark.jobs import replay_output
from antiphon.spark.jobs.job_state import JobState
from antiphon.spark.jobs.replay_output import Output
from antiphon.spark.option_values import parse_servers
from antiphon.spark.staging.blobs import EPOCHS_TABLE, STAGED_TOPIC, ensure_internal
from antiphon.spark.write.task import commit_results
from tests.spark.nodes_in_thread import LiveNodes, live_nodes
from tests.spark.test_sink_nodes import options_for, rows, write

pytestmark = pytest.mark.cluster

DOWN = 2


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[LiveNodes]:
    with live_nodes(tmp_path, 3) as nodes:
        yield nodes


def goes_down(nodes: LiveNodes) -> None:
    """The node stops, and the others have seen it."""
    nodes.stop(DOWN)

    def is_seen() -> bool:
        return not any(node.view.nodes[DOWN].alive for node in nodes.nodes.nodes.values())

    nodes.until(is_seen)


@pytest.fixture
def cluster(nodes: LiveNodes) -> Iterator[Cluster]:
    with Cluster(parse_servers(nodes.servers), 20_000) as cluster:
        yield cluster


def ensembles(cluster: Cluster, name: str, *, table: bool) -> set[tuple[int, ...]]:
    return {tuple(sorted(shard.ensemble)) for shard in cluster.topic(name, table=table).shards}


@pytest.mark.parametrize("kind", ["topic", "table"])
def test_a_first_epoch_needs_a_majority_of_the_nodes(nodes: LiveNodes, cluster: Cluster, kind: str) -> None:
    cluster.call_any(CreateTopic("out", Kind(kind), shards=2, replicas=3))
    goes_down(nodes)
    options = options_for(nodes, **{kind: "out"})
    commit_results(options, [write(options, 0, rows(0, 50))], b"")
    with antiphon.connect(nodes.servers) as db:
        if kind == "topic":
            assert sum(db.topic("out").offsets(shard)[1] for shard in range(2)) >= 50
        else:
            assert len(list(db.table("out").scan())) == 50
    assert ensembles(cluster, STAGED_TOPIC, table=False) == {(0, 1, 2)}
    assert ensembles(cluster, EPOCHS_TABLE, table=True) == {(0, 1, 2)}
    nodes.start(DOWN)
    for topic in (STAGED_TOPIC, EPOCHS_TABLE):
        for shard in cluster.topic(topic, table=topic == EPOCHS_TABLE).shards:
            nodes.until(partial(has_replica, nodes, shard.shard_id))
            nodes.all_settled(shard.shard_id)


def has_replica(nodes: LiveNodes, shard_id: int) -> bool:
    """Of the node that was down."""
    return shard_id in nodes.nodes.nodes[DOWN].hosts


def test_a_first_job_its_new_table_and_the_archive_do_too(nodes: LiveNodes, cluster: Cluster) -> None:
    cluster.call_any(CreateTopic("source", Kind.TABLE, shards=2, replicas=3))
    goes_down(nodes)
    assert JobState(cluster, "replay/a").begin({"rows": 1}) == {"rows": 1}
    assert not Catalog(cluster).files()
    copy = Output(nodes.servers, "copy", None, None, False, None, None, None, None, 20_000)
    made = replay_output._made(cluster, cluster.topic("source", table=True), copy)
    assert (made.replicas, len(made.shards)) == (3, 2)


def test_what_has_enough_replicas_for_the_target_gets_more_only_where_they_find_a_node(
    nodes: LiveNodes, cluster: Cluster
) -> None:
    """`__staged` is older than the third node, as it were. That node is down, and back."""
    for name in (STAGED_TOPIC, EPOCHS_TABLE):
        cluster.call_any(CreateTopic(name, KINDS[name], shards=1, replicas=2, internal=True))
    goes_down(nodes)
    assert [topic.replicas for topic in ensure_internal(cluster, 2)] == [2, 2]
    nodes.start(DOWN)
    nodes.until(lambda: all(node.view.nodes[DOWN].alive for node in nodes.nodes.nodes.values()))
    cluster.metadata()
    assert [topic.replicas for topic in ensure_internal(cluster, 2)] == [3, 3]


def test_a_target_with_more_replicas_than_can_be_added_is_refused_with_what_to_do(
    nodes: LiveNodes, cluster: Cluster
) -> None:
    cluster.call_any(CreateTopic(STAGED_TOPIC, shards=1, replicas=1, internal=True))
    goes_down(nodes)
    with pytest.raises(InvalidRequestError) as refused:
        ensure_internal(cluster, 3)
    for words in ("__staged has 1 replica", "must have 3", "start node 2 again, then the job"):
        assert words in refused.value.message
