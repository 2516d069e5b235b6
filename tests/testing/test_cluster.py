"""A cluster inside a test: its addresses, and what can be done to its nodes."""

import asyncio
import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import antiphon
import antiphon.testing
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.node import injected_faults
from antiphon.testing import Cluster, Node

pytestmark = pytest.mark.cluster

# A node that is paused or cut off may be taken for the leader a moment longer, and does not answer.
IMPATIENT = {"request.timeout.ms": 500, "socket.timeout.ms": 1000}


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with antiphon.testing.cluster(nodes=3) as made:
        yield made


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    running.heal()
    assert not running.is_hurt


def written(cluster: Cluster, topic: str, **settings: Any) -> list[Any]:
    """Write one record; the errors of that."""
    reports: list[Any] = []
    servers = {"bootstrap.servers": cluster.bootstrap_servers}
    producer = Producer({**servers, **IMPATIENT, **settings})
    producer.produce(topic, b"value", on_delivery=lambda error, _: reports.append(error))
    producer.flush(30)
    return reports


def leader(cluster: Cluster, topic: str) -> Node:
    with antiphon.connect(cluster.servers) as db, contextlib.suppress(antiphon.TopicExistsError):
        db.create_topic(topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    found: int = admin.list_topics(topic, timeout=20).topics[topic].partitions[0].leader
    return cluster.nodes[found]


def status(node: Node) -> Any:
    with urllib.request.urlopen(f"http://{node.http}/status", timeout=20) as answer:
        return json.load(answer)


def test_its_addresses_are_those_of_three_listeners(cluster: Cluster) -> None:
    assert written(cluster, "addresses") == [None]
    with antiphon.connect(cluster.servers) as db:
        assert [record.value for record in db.topic("addresses").read(0, 0)] == [b"value"]
    assert [status(node)["node"]["node_id"] for node in cluster.nodes] == [0, 1, 2]
    assert cluster.bootstrap_servers.split(",") == [node.bootstrap_server for node in cluster.nodes]
    assert cluster.servers.split(",") == [node.server for node in cluster.nodes]
    assert cluster.http.split(",") == [node.http for node in cluster.nodes]


def test_a_killed_leader_is_gone_when_kill_returns_and_serves_when_start_returns(cluster: Cluster) -> None:
    killed = leader(cluster, "killed")
    host, _, port = killed.bootstrap_server.partition(":")
    killed.kill()
    killed.kill()  # harmless
    assert not killed.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)
    assert written(cluster, "killed") == [None]
    killed.start()
    killed.start()  # harmless
    assert status(killed)["node"]["node_id"] == killed.id


def test_a_paused_node_is_silent_and_others_take_over(cluster: Cluster) -> None:
    paused = leader(cluster, "paused")
    paused.pause()
    host, _, port = paused.http.partition(":")
    with socket.create_connection((host, int(port)), 5) as client:
        client.settimeout(0.3)
        client.sendall(b"GET /status HTTP/1.1\r\nHost: node\r\n\r\n")
        with pytest.raises(TimeoutError):
            client.recv(1)
    assert written(cluster, "paused") == [None]
    paused.fill_disk()
    assert injected_faults.taken(paused.directory) != (told(paused), "")  # it is paused
    paused.resume()
    assert injected_faults.taken(paused.directory) == (told(paused), "")


def told(node: Node) -> Any:
    return json.loads((node.directory / injected_faults.FAULTS_FILE).read_text())["serial"]


def test_full_disks_refuse_writes_until_they_are_healed(cluster: Cluster) -> None:
    assert written(cluster, "full") == [None]
    for node in cluster.nodes:
        node.fill_disk()
    assert [error.name() for error in written(cluster, "full", **{"delivery.timeout.ms": 1500})] == [
        "_MSG_TIMED_OUT"
    ]
    for node in cluster.nodes:
        node.heal()
    assert written(cluster, "full") == [None]


def test_a_node_whose_disk_broke_is_another_process_after_heal(cluster: Cluster) -> None:
    broken = leader(cluster, "broken")
    before = (broken.directory / "node.pid").read_text()
    broken.break_disk()
    assert written(cluster, "broken") == [None]  # another one leads
    assert leader(cluster, "broken") is not broken
    broken.heal()
    assert (broken.directory / "node.pid").read_text() != before
    assert not broken.is_hurt


def coordinator(nodes: list[Node]) -> Node | None:
    """Which of these takes itself for the leader of `__cluster`, shard 0."""
    for node in nodes:
        if any(one["shard_id"] == 0 and one["role"] == "leader" for one in status(node)["replicas"]):
            return node
    return None


def test_nodes_do_without_one_that_is_cut_off(cluster: Cluster) -> None:
    alone = coordinator(cluster.nodes)
    assert alone is not None
    others = [node for node in cluster.nodes if node is not alone]
    alone.cut_off()
    deadline = time.monotonic() + 30
    while coordinator(others) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    other = others[0]
    alone.heal()
    alone.cut_off(other)
    alone.cut_off(other.id)
    with pytest.raises(InvalidRequestError, match=r"cannot be cut off from \[9\]"):
        alone.cut_off(9)
    with pytest.raises(InvalidRequestError, match="name other nodes by id"):
        alone.cut_off(alone)


def test_heal_brings_all_back_also_where_a_majority_is_down(cluster: Cluster) -> None:
    cluster.nodes[0].kill()
    cluster.nodes[2].kill()
    cluster.nodes[1].pause()
    cluster.heal()
    assert written(cluster, "healed") == [None]


def test_async_with_keeps_the_data_of_a_directory_that_was_named(tmp_path: Path) -> None:
    async def first() -> None:
        async with antiphon.testing.cluster(nodes=1, directory=tmp_path / "data") as made:
            admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
            await asyncio.wrap_future(admin.create_topics([NewTopic("kept", 3)])["kept"])
            with pytest.raises(InvalidRequestError, match="runs already"):
                made.start()
        with pytest.raises(InvalidRequestError, match="does not run"):
            _ = made.bootstrap_servers

    asyncio.run(first())
    injected_faults.tell(
        tmp_path / "data" / "node-0", listener={"caps": {"Fetch": 4}}
    )  # what an earlier test left
    with antiphon.testing.cluster(nodes=1, directory=tmp_path / "data") as again:
        admin = AdminClient({"bootstrap.servers": again.bootstrap_servers})
        assert len(admin.list_topics("kept", timeout=20).topics["kept"].partitions) == 3
        assert not (again.nodes[0].directory / injected_faults.FAULTS_FILE).exists()


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("something")
    with pytest.raises(AntiphonError, match="holds other things"):
        antiphon.testing.cluster(directory=tmp_path).start()
