"""Where replicas vote, clients find the new leader with no coordinator in reach: a node knows what its replica knows."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

import antiphon
from antiphon.model.requests import CreateTopic
from antiphon.node.config import Timings
from antiphon.records.decode import decode_records
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster


def led_outside(cluster: Processes) -> tuple[str, int, list[int]]:
    """A topic whose replicas vote, its shard, and two of the coordinator's three voters that it can do without."""
    for number in range(20):
        name = f"t{number}"
        cluster.ask(0, CreateTopic(name, profile="raft", replicas=3))
        shard = cluster.shard(0, name)
        if {3, 4} <= set(shard.ensemble):
            return name, shard.shard_id, [node for node in (0, 1, 2) if node not in shard.ensemble][:2]
    raise AssertionError("no topic is on nodes 3 and 4")


def test_s4_01_s1_30_clients_follow_an_election_that_no_coordinator_hears_of(tmp_path: Path) -> None:
    timings = Timings(tick=10, election_min=200, election_max=400, node_dead=700, heartbeat=100)
    with Processes(tmp_path, 5, timings=timings) as cluster:
        name, shard_id, voters = led_outside(cluster)
        kafka = ",".join(node.kafka for node in cluster.metadata(3).nodes)
        failed: list[str] = []
        producer = Producer({
            "bootstrap.servers": kafka,
            "enable.idempotence": True,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 20_000,
            "topic.metadata.refresh.interval.ms": 300,
        })  # fmt: skip

        def produce(value: bytes) -> None:
            producer.produce(
                name, value, on_delivery=lambda error, _: failed.append(str(error)) if error else None
            )
            assert producer.flush(20) == 0
            assert failed == []

        with antiphon.connect(cluster.servers) as db:
            topic = db.topic(name)
            topic.append(b"native before")
            produce(b"kafka before")
            for node_id in voters:
                cluster.kill(node_id)
            leader = cluster.shard(3, name).leader
            topic.append(b"native without a coordinator", timeout_s=15)
            cluster.kill(leader)
            began = time.monotonic()
            topic.append(b"native with a new leader", timeout_s=15)
            produce(b"kafka with a new leader")
            assert time.monotonic() - began < 12
            alive = cluster.alive()
            seen = {node_id: cluster.shard(node_id, name) for node_id in alive}
            new = next(node for node in alive if cluster.statuses(node)[shard_id].role == "leader")
            assert {shard.leader for node, shard in seen.items() if node in shard.ensemble} == {new}, (
                "told by each"
            )
            eventually(lambda: b"kafka with a new leader" in cluster.read(new, shard_id, "committed"), 5)
            values = [record.value for record in decode_records(cluster.read(new, shard_id, "committed"))]
            assert values == [
                b"native before",
                b"kafka before",
                b"native without a coordinator",
                b"native with a new leader",
                b"kafka with a new leader",
            ]
