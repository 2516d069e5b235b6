"""Kafka's clients on three real node processes: nothing acknowledged is lost or doubled when a leader is killed."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import antiphon
from antiphon.records.batch import stamp
from antiphon.records.builder import build_batch
from tests.node.processes import Processes, eventually

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("kafka-cluster")) as processes:
        yield processes


def bootstrap(cluster: Processes) -> str:
    return ",".join(node.kafka for node in cluster.metadata(cluster.alive()[0]).nodes)


def create(cluster: Processes, name: str, shards: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap(cluster)})
    admin.create_topics([NewTopic(name, shards, 3)])[name].result(20)


def test_each_library_appends_conditionally(cluster: Processes) -> None:
    """The example, without the warnings that kafka-python itself gives."""
    example = Path(__file__).parent.parent.parent / "examples" / "conditional_kafka.py"
    ran = subprocess.run(
        [sys.executable, example, bootstrap(cluster)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    outcomes = [line.strip() for line in ran.stdout.splitlines()]
    names = "confluent-kafka:", "kafka-python:", "aiokafka:"
    assert outcomes == [
        line
        for at, name in enumerate(names)
        for line in (name, f"written at {at}", "somebody else was first")
    ]


class Writer:
    """An idempotent producer in a thread, one numbered record after the other, until it is told to stop."""

    def __init__(self, servers: str, topic: str) -> None:
        self._producer = Producer({
            "bootstrap.servers": servers,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 2,
            "retry.backoff.ms": 20,
            "message.timeout.ms": 40_000,
            "topic.metadata.refresh.interval.ms": 500,
        })  # fmt: skip
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: dict[int, int] = {}  # value -> offset
        self.failed: list[Any] = []
        self.sent = 0
        self._thread.start()

    def _delivered(self, error: Any, message: Any) -> None:
        if error:
            self.failed.append(error)
        else:
            self.acknowledged[int(message.value())] = message.offset()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(self._topic, str(self.sent).encode(), on_delivery=self._delivered)
            self.sent += 1
            self._producer.poll(0.001)

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(40) == 0


def read_all(servers: str, topic: str, group: str, count: int) -> list[Any]:
    reader = Consumer({
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
    })  # fmt: skip
    reader.subscribe([topic])
    found: list[Any] = []
    deadline = time.monotonic() + 40
    try:
        while len(found) < count and time.monotonic() < deadline:
            for message in reader.consume(1000, timeout=0.2):
                if message.error():
                    raise KafkaException(message.error())
                found.append(message)
        reader.commit(asynchronous=False)
        committed = reader.committed([TopicPartition(topic, 0)], timeout=20)[0].offset
        assert committed == found[-1].offset() + 1
    finally:
        reader.close()
    return found


def test_nothing_acknowledged_is_lost_or_doubled_when_the_leader_is_killed(cluster: Processes) -> None:
    create(cluster, "flights")
    servers = bootstrap(cluster)
    writer = Writer(servers, "flights")
    eventually(lambda: len(writer.acknowledged) > 200)
    leader = cluster.shard(cluster.alive()[0], "flights").leader
    cluster.kill(leader)
    before = len(writer.acknowledged)
    eventually(lambda: len(writer.acknowledged) > before + 200, 30)
    cluster.start(leader)
    writer.finish()
    assert writer.failed == []
    assert len(writer.acknowledged) == writer.sent
    found = read_all(servers, "flights", "after", writer.sent)
    assert [int(m.value()) for m in found] == list(range(writer.sent))
    assert {int(m.value()): m.offset() for m in found} == writer.acknowledged


def test_committed_offsets_and_members_survive_their_coordinator(cluster: Processes) -> None:
    create(cluster, "followed")
    servers = bootstrap(cluster)
    producer = Producer({"bootstrap.servers": servers})
    reader = Consumer({
        "bootstrap.servers": servers,
        "group.id": "followers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
        "retry.backoff.ms": 20,
    })  # fmt: skip
    changes: list[str] = []
    reader.subscribe(
        ["followed"],
        on_assign=lambda _reader, places: changes.append(f"+{len(places)}"),
        on_revoke=lambda _reader, places: changes.append(f"-{len(places)}"),
        on_lost=lambda _reader, places: changes.append(f"lost {len(places)}"),
    )

    def exchange(value: bytes) -> None:
        producer.produce("followed", value)
        assert producer.flush(30) == 0
        deadline = time.monotonic() + 40
        while time.monotonic() < deadline:
            message = reader.poll(0.2)
            if message is not None and message.error() is None and message.value() == value:
                return
        raise AssertionError(f"{value!r} did not come")

    def commit(offset: int) -> None:
        """As clients do: again, until the coordinator has been found."""
        deadline = time.monotonic() + 40
        while True:
            try:
                reader.commit(offsets=[TopicPartition("followed", 0, offset)], asynchronous=False)
                return
            except KafkaException:
                assert time.monotonic() < deadline
                reader.poll(0.1)

    exchange(b"one")
    commit(1)
    admin = AdminClient({"bootstrap.servers": servers})
    victim = admin.describe_consumer_groups(["followers"])["followers"].result(10).coordinator.id
    cluster.kill(victim)
    try:
        exchange(b"two")
        assert reader.committed([TopicPartition("followed", 0)], timeout=30)[0].offset >= 1
        commit(2)
        assert reader.committed([TopicPartition("followed", 0)], timeout=30)[0].offset == 2
        assert changes == ["+1"], "it did not join again"
    finally:
        reader.close()
        cluster.start(victim)


def topic_shards(cluster: Processes, name: str) -> Any:
    meta = cluster.metadata(cluster.alive()[0])
    return next(topic for topic in meta.topics if topic.name == name).shards


def test_a_table_is_followed_by_a_kafka_consumer(cluster: Processes) -> None:
    """A table's log is its change log: keys, values and tombstones, for anybody who speaks Kafka."""
    from antiphon.model.metadata import Kind
    from antiphon.model.requests import CreateTopic, Delete, Put, TableWrite

    cluster.ask(cluster.alive()[0], CreateTopic("aircraft", kind=Kind.TABLE))
    shard_id = cluster.shard(cluster.alive()[0], "aircraft").shard_id
    for op in (Put(b"N1", b"new"), Put(b"N1", b"old"), Delete(b"N1")):
        cluster.on_leader(shard_id, TableWrite(shard_id, (op,)))
    found = read_all(bootstrap(cluster), "aircraft", "tail", 3)
    assert [(m.key(), m.value()) for m in found] == [(b"N1", b"new"), (b"N1", b"old"), (b"N1", None)]


def test_conditional_append_over_kafkas_protocol(cluster: Processes) -> None:
    """S2.9, S2.12: the base offset `~expected` lands exactly there, on a replicated log."""
    import asyncio

    from tests.kafka.raw import RawClient, produce

    create(cluster, "conditional")
    meta = cluster.metadata(cluster.alive()[0])
    leader = cluster.shard(cluster.alive()[0], "conditional").leader
    host, port = next(node.kafka for node in meta.nodes if node.node_id == leader).split(":")

    async def scenario() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        client = RawClient(reader, writer)

        async def append(expected: int) -> Any:
            batch = build_batch([(None, b"x", (), 1)])
            stamp(batch, ~expected, 0)
            done, _ = await produce(client, "conditional", batch)
            return done

        for expected in (0, 1, 2):
            done = await append(expected)
            assert (int(done.error_code), done.base_offset) == (0, expected)
            refused = await append(expected)
            assert (int(refused.error_code), refused.base_offset) == (87, -1)
            assert str(expected + 1) in refused.error_message
        writer.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_delete_records_reaches_every_replica(cluster: Processes) -> None:
    create(cluster, "deleted")
    producer = Producer({"bootstrap.servers": bootstrap(cluster)})
    for number in range(60):
        producer.produce("deleted", str(number).encode())
        if number % 10 == 9:
            assert producer.flush(20) == 0
    admin = AdminClient({"bootstrap.servers": bootstrap(cluster)})
    part = TopicPartition("deleted", 0, 35)
    begins = admin.delete_records([part])[part].result(20).low_watermark
    assert begins == 35
    alive = cluster.alive()
    nodes = [node for node in cluster.metadata(alive[0]).nodes if node.node_id in alive]
    with antiphon.connect([node.native for node in nodes]) as db:
        (meta,) = [topic for topic in db.metadata().topics if topic.name == "deleted"]
        found = {
            node.node_id: replica.log_start
            for node in nodes
            for replica in db.node_status(node.node_id).replicas
            if replica.shard_id == meta.shards[0].shard_id
        }
    assert found == dict.fromkeys(alive, begins)


def test_partitions_go_back_to_their_preferred_leaders(cluster: Processes) -> None:
    create(cluster, "elected", 3)
    servers = [node.native for node in cluster.metadata(cluster.alive()[0]).nodes]
    with antiphon.connect(servers) as db:
        for shard in topic_shards(cluster, "elected"):
            db.elect_leader("elected", shard.index, node=shard.ensemble[1])
    admin = AdminClient({"bootstrap.servers": bootstrap(cluster)})
    wanted = [TopicPartition("elected", index) for index in range(3)]
    done = admin.elect_leaders(ElectionType.PREFERRED, wanted[:2]).result(30)
    assert done == dict.fromkeys(wanted[:2])
    again = admin.elect_leaders(ElectionType.PREFERRED, wanted).result(30)
    assert [error and error.code() for error in again.values()] == [KafkaError.ELECTION_NOT_NEEDED] * 2 + [
        None
    ]
    eventually(lambda: all(s.leader == s.ensemble[0] for s in topic_shards(cluster, "elected")))


def test_members_of_the_consumer_protocol_outlive_their_coordinator(cluster: Processes) -> None:
    """librdkafka's members go on with the next coordinator: nothing is revoked, lost or assigned anew."""
    create(cluster, "outlived", shards=4)
    servers = bootstrap(cluster)
    changes: list[str] = []
    members = [
        Consumer({
            "bootstrap.servers": servers,
            "group.id": "outlives",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })
        for _ in range(2)
    ]  # fmt: skip
    for member in members:
        member.subscribe(
            ["outlived"],
            on_assign=lambda _member, places: changes.append(f"+{len(places)}"),
            on_revoke=lambda _member, places: changes.append(f"-{len(places)}"),
            on_lost=lambda _member, places: changes.append(f"lost {len(places)}"),
        )

    def poll_until(condition: Any, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and not condition():
            for member in members:
                member.poll(0.05)
        return bool(condition())

    assert poll_until(lambda: [len(member.assignment()) for member in members] == [2, 2], 40)
    before = [sorted((place.topic, place.partition) for place in member.assignment()) for member in members]
    known = len(changes)
    admin = AdminClient({"bootstrap.servers": servers})
    coordinator = admin.describe_consumer_groups(["outlives"])["outlives"].result(10).coordinator.id
    cluster.kill(coordinator)
    try:
        poll_until(lambda: False, 12)  # more than two heartbeats
        offsets = [TopicPartition("outlived", before[0][0][1], 1)]
        assert members[0].commit(offsets=offsets, asynchronous=False)[0].error is None
        after = [
            sorted((place.topic, place.partition) for place in member.assignment()) for member in members
        ]
        assert (after, changes[known:]) == (before, [])
        group = admin.describe_consumer_groups(["outlives"])["outlives"].result(10)
        assert group.coordinator.id != coordinator
        assert len(group.members) == 2
    finally:
        cluster.start(coordinator)
        for member in members:
            member.close()
