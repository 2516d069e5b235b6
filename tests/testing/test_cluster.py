"""A cluster inside a test: what can be done to its nodes, and its faults against clients that people use."""

import asyncio
import contextlib
import inspect
import json
import re
import socket
import threading
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import antiphon
import antiphon.testing
from antiphon.client.local_folder import load_cluster
from antiphon.errors import AntiphonError, InvalidRequestError
from antiphon.kafka.apis import APIS
from antiphon.kafka.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from antiphon.kafka.schema import decode
from antiphon.node import injected_faults
from antiphon.testing import Cluster, Node
from antiphon.tools.cluster_files import running_pid
from antiphon.tools.local_cluster import LocalCluster
from tests.coroutines import on_a_loop
from tests.kafka.raw import RawClient

PAGE = Path(__file__).parent.parent.parent / "docs" / "testing.md"
API_VERSIONS = 18
FETCH = 1

pytestmark = pytest.mark.cluster

# A node that is paused or cut off may be taken for the leader a moment longer, and does not answer.
IMPATIENT = {"request.timeout.ms": 500, "socket.timeout.ms": 1000}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster") / "data"
    made = antiphon.testing.cluster(nodes=3, directory=directory)
    asyncio.run(made.__aenter__())
    yield made
    asyncio.run(made.__aexit__(None, None, None))
    assert running_pid(directory / "node-0") is None
    assert load_cluster(directory) is not None  # a directory that was named stays


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


def test_heal_brings_all_back_also_where_no_majority_is_left(cluster: Cluster) -> None:
    broken, killed, paused = cluster.nodes
    before = (broken.directory / "node.pid").read_text()
    broken.break_disk()
    killed.kill()
    paused.pause()
    cluster.heal()
    assert [node.id for node in cluster.nodes if not node.is_running] == []
    assert not cluster.is_hurt, vars(cluster)
    assert (broken.directory / "node.pid").read_text() != before  # what it could not sync it does not trust
    assert written(cluster, "healed") == [None]


def test_a_node_waits_for_its_port_where_somebody_has_it_for_a_moment(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    node.kill()
    host, _, port = node.bootstrap_server.rpartition(":")
    taken = socket.create_server((host, int(port)))
    release = threading.Timer(1.5, taken.close)
    release.start()
    began = time.monotonic()
    node.start()
    assert time.monotonic() - began > 1
    assert node.is_running
    release.join()


def test_it_is_started_once_and_has_no_addresses_before(cluster: Cluster) -> None:
    with pytest.raises(InvalidRequestError, match="runs already"):
        cluster.start()
    with pytest.raises(InvalidRequestError, match="does not run"):
        _ = antiphon.testing.cluster().bootstrap_servers


def test_nodes_are_not_told_what_an_earlier_test_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node-0").mkdir()
    injected_faults.inject(tmp_path / "node-0", listener={"caps": {"Fetch": 4}})

    def start(*_: Any, **__: Any) -> LocalCluster:
        raise AntiphonError(str(list((tmp_path / "node-0").iterdir())))

    monkeypatch.setattr(LocalCluster, "start", start)
    with pytest.raises(AntiphonError, match=r"^\[\]$"):
        antiphon.testing.cluster(directory=tmp_path).start()


def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("something")
    with pytest.raises(AntiphonError, match="holds other things"):
        antiphon.testing.cluster(directory=tmp_path).start()


# -- faults of the listeners ------------------------------------------------------------------------------------------


def producer(cluster: Cluster, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})


def send(client: Any, topic: str, *values: bytes, partition: int = 0) -> list[Any]:
    """The errors of these records, in their order."""
    found: dict[bytes, Any] = {}
    for value in values:
        client.produce(
            topic, value, partition=partition, on_delivery=lambda error, m: found.update({m.value(): error})
        )
    assert client.flush(60) == 0
    return [found[value] for value in values]


def create(cluster: Cluster, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(30)


def end(cluster: Cluster, topic: str, partition: int = 0) -> int:
    """How many records a partition has got."""
    client = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "ends"})
    found: int = client.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
    client.close()
    return found


async def connected(node: Node) -> RawClient:
    host, _, port = node.bootstrap_server.partition(":")
    return RawClient(*await asyncio.open_connection(host, int(port)))


async def highest(client: RawClient) -> dict[str, int]:
    """The highest versions that ApiVersions tells of, by API."""
    answer = await client.ask(
        ApiVersionsRequest(client_software_name="test", client_software_version="1"), API_VERSIONS, 3
    )
    return {APIS[one.api_key].name: one.max_version for one in answer.api_keys}


def test_an_idempotent_producer_gets_over_not_leader(cluster: Cluster) -> None:
    create(cluster, "retried", 1)
    fault = cluster.fail(api="Produce", code="NOT_LEADER_OR_FOLLOWER", times=3)
    assert (fault.used, fault.left) == (0, 3)
    values = [b"%d" % n for n in range(50)]
    assert send(producer(cluster, **{"enable.idempotence": True}), "retried", *values) == [None] * 50
    assert (fault.used, fault.left) == (3, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # what it imports
        from kafka import KafkaConsumer
    reader = KafkaConsumer(
        "retried",
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    assert [next(reader).value for _ in values] == values
    reader.close()
    assert end(cluster, "retried") == 50


def test_so_many_requests_fail_over_all_nodes_and_connections_and_none_is_carried_out(
    cluster: Cluster,
) -> None:
    create(cluster, "counted", 4)
    clients = [producer(cluster, **{"message.send.max.retries": 0}) for _ in range(2)]
    fault = cluster.fail("Produce", 7, times=5)
    told = [
        send(clients[n % 2], "counted", b"%d" % n, partition=partition)[0]
        for n in range(3)
        for partition in range(4)
    ]
    assert [error.code() for error in told if error] == [7] * 5
    assert fault.left == 0
    assert sum(end(cluster, "counted", partition) for partition in range(4)) == 12 - 5


def test_one_node_alone_fails_when_it_is_named(cluster: Cluster) -> None:
    create(cluster, "named", 8)
    topics = AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics("named", timeout=30)
    leaders = {one.leader: one.id for one in topics.topics["named"].partitions.values()}
    assert leaders.keys() == {0, 1, 2}
    fault = cluster.fail("Produce", "KAFKA_STORAGE_ERROR", times=9, node=cluster.nodes[1])
    client = producer(cluster, **{"message.send.max.retries": 0})
    assert send(client, "named", b"one", partition=leaders[0]) == [None]
    assert [e.name() for e in send(client, "named", b"two", partition=leaders[1])] == ["KAFKA_STORAGE_ERROR"]
    fault.end()
    assert send(client, "named", b"three", partition=leaders[1]) == [None]
    assert fault.used == 1


def test_a_consumer_goes_on_after_broken_answers(cluster: Cluster) -> None:
    values = [b"%d" % n for n in range(100)]
    assert send(producer(cluster), "broken-off", *values) == [None] * 100
    faults = [cluster.hang_up("Fetch", times=2), cluster.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2)]

    async def read() -> list[bytes]:
        client = AIOKafkaConsumer(
            "broken-off",
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            retry_backoff_ms=20,
        )
        await client.start()
        try:
            return [(await asyncio.wait_for(client.getone(), 60)).value for _ in values]
        finally:
            await client.stop()

    assert asyncio.run(read()) == values
    assert [fault.left for fault in faults] == [0, 0]


def test_what_is_hung_up_on_was_carried_out(cluster: Cluster) -> None:
    assert send(producer(cluster), "unsure", b"first") == [None]
    fault = cluster.hang_up("Produce")
    (error,) = send(producer(cluster, **{"message.send.max.retries": 0}), "unsure", b"second")
    assert error is not None
    assert fault.left == 0
    assert end(cluster, "unsure") == 2


def test_answers_about_a_topic_come_later(cluster: Cluster) -> None:
    client = producer(cluster)
    assert send(client, "late", b"first") == [None]
    cluster.delay("other", 100_000)
    cluster.delay("late", 400)
    began_s = time.monotonic()
    assert send(client, "late", b"second") == [None]
    assert time.monotonic() - began_s >= 0.4
    cluster.delay("late", 100_000)
    impatient = producer(cluster, **{"message.timeout.ms": 1500})
    assert [error.name() for error in send(impatient, "late", b"third")] == ["_MSG_TIMED_OUT"]
    cluster.delay("late", 0)
    assert send(producer(cluster), "late", b"fourth") == [None]


@on_a_loop
async def test_a_capped_version_is_told_and_a_higher_one_refused(cluster: Cluster) -> None:
    before = producer(cluster)
    assert send(before, "capped", b"first") == [None]
    cluster.cap("Produce", 7)
    cluster.cap("Fetch", 11)
    assert send(before, "capped", b"second") == [None]  # hung up on, asked again
    reader = Consumer({
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": "capped", "auto.offset.reset": "earliest",
    })  # fmt: skip
    reader.subscribe(["capped"])
    assert [message.value() for message in reader.consume(2, timeout=30)] == [b"first", b"second"]
    reader.close()

    for node in cluster.nodes:
        client = await connected(node)
        versions = await highest(client)
        assert (versions["Produce"], versions["Fetch"], versions["Metadata"]) == (7, 11, 13)
        client.send(FETCH, 12, b"")
        assert await client.is_closed()
        client.writer.close()
    cluster.cap("ApiVersions", 2)
    client = await connected(cluster.nodes[0])
    answer = await client.receive(client.send(API_VERSIONS, 3, b"\x02t\x021\x00"))
    found = decode(ApiVersionsResponse, memoryview(answer), 0, flexible=False)
    assert (found.error_code, found.api_keys[0].api_key, found.api_keys[0].max_version) == (35, 18, 2)
    client.writer.close()


def test_groups_get_over_errors_of_their_coordinator_and_commits_tell_them(cluster: Cluster) -> None:
    assert send(producer(cluster), "grouped", b"value") == [None]
    faults = [
        cluster.fail("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        cluster.fail("JoinGroup", "NOT_COORDINATOR"),
        cluster.fail("Metadata", "LEADER_NOT_AVAILABLE"),
    ]
    reader = Consumer({
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": "grouped", "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip
    reader.subscribe(["grouped"])
    messages = iter(lambda: reader.poll(60), None)  # errors among them: the client tells them, and goes on
    assert next(message.value() for message in messages if not message.error()) == b"value"
    assert [fault.left for fault in faults] == [0, 0, 0]
    cluster.fail("OffsetCommit", "OFFSET_METADATA_TOO_LARGE")
    with pytest.raises(KafkaException, match="OFFSET_METADATA_TOO_LARGE"):
        reader.commit(asynchronous=False)
    assert reader.commit(asynchronous=False)[0].offset == 1
    reader.close()


def test_a_failed_metadata_makes_no_topic(cluster: Cluster) -> None:
    fault = cluster.fail("Metadata", 29, times=10_000)  # librdkafka may ask again before it gives a record up
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        send_and_raise(producer(cluster), "never-made")
    assert fault.used
    with antiphon.connect(cluster.servers) as db, pytest.raises(antiphon.UnknownTopicError):
        db.topic("never-made").append(b"value")


def send_and_raise(client: Any, topic: str) -> None:
    (error,) = send(client, topic, b"value")
    if error is not None:
        raise KafkaException(error)


def test_faults_of_a_listener_outlive_its_process_and_end_with_heal(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    cluster.cap("Fetch", 4, node=1)
    node.kill()
    cluster.cap("Produce", 5)  # it is down
    node.start()

    async def ask(node: Node) -> tuple[int, int]:
        client = await connected(node)
        versions = await highest(client)
        client.writer.close()
        return versions["Produce"], versions["Fetch"]

    assert [asyncio.run(ask(one)) for one in cluster.nodes] == [(5, 16), (5, 4), (5, 16)]
    cluster.heal()
    assert [asyncio.run(ask(one)) for one in cluster.nodes] == [(12, 16)] * 3


def test_what_makes_no_sense_is_refused_and_changes_nothing(cluster: Cluster) -> None:
    cluster.cap("Fetch", 5)
    for wrong, why in (
        (
            lambda: cluster.fail("Prodce", 6),
            "no API of Kafka's is called 'Prodce' here; there are Produce, Fetch",
        ),
        (lambda: cluster.fail("Produce", "NOT_LEADER"), "'NOT_LEADER' is no error code of Kafka's"),
        (
            lambda: cluster.fail("SaslHandshake", 33),
            "SaslHandshake has no answer to be failed with; these have",
        ),
        (lambda: cluster.fail("Produce", 6, times=0), "a fault happens 1 to 1000000 times, not 0"),
        (lambda: cluster.fail("Produce", 6, node=5), r"there is no node 5; there are \[0, 1, 2\]"),
        (lambda: cluster.hang_up("Login"), "no API of Kafka's is called 'Login'"),
        (
            lambda: cluster.cap("Fetch", 99),
            "Fetch is served in versions 4 to 16, so its highest cannot be 99",
        ),
        (lambda: cluster.delay("x", -1), "answers about 'x' can come 0 to 600000 ms later, not -1"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            wrong()
    assert [node.listener for node in cluster.nodes] == [{"caps": {"Fetch": 5}}] * 3


# -- the page -----------------------------------------------------------------------------------------------------------


def examples() -> dict[str, Callable[..., None]]:
    """The tests in the page's code blocks, by name."""
    found: dict[str, Callable[..., None]] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        names: dict[str, Any] = {}
        exec(block, names)
        tests = {name: what for name, what in names.items() if name.startswith("test_")}
        assert tests, block
        found |= tests
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_the_page(cluster: Cluster, name: str) -> None:
    fixtures = {
        "antiphon_cluster": cluster,
        "antiphon_topic": f"page-{name}",
        "servers": cluster.bootstrap_servers,  # a fixture that the page defines
    }
    EXAMPLES[name](*(fixtures[wanted] for wanted in inspect.signature(EXAMPLES[name]).parameters))
