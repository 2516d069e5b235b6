"""Clients at shards that every replica writes: this project's own, and Kafka's."""

import asyncio
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

import antiphon
from antiphon.errors import VersionMismatchError
from antiphon.model.requests import TableScan
from tests.node.processes import Processes
from tests.node.processes import eventually as wait_until

pytestmark = pytest.mark.cluster

MULTI = {"writers": "multi"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with Processes(tmp_path_factory.mktemp("cluster")) as processes:
        yield processes


def test_the_python_client_uses_such_a_table_like_any(cluster: Processes) -> None:
    with antiphon.connect(cluster.servers) as db:
        carts = db.create_table("carts", shards=2, replicas=3, config=MULTI)
        first = carts.put("a", b"1")
        second = carts.put("a", b"2", expected_version=first.id)
        with pytest.raises(VersionMismatchError):
            carts.put("a", b"3", expected_version=first.id)
        assert carts.get("a").value == b"2"
        assert carts.get("a").version == second
        for number in range(200):
            carts.put(f"k{number}", b"%d" % number)
        carts.delete("k7")
        assert len(list(carts.scan())) == 200
        carts.delete_range("k10", "k19")
        assert carts.find("k11") is None
    shards = [
        shard.shard_id
        for topic in cluster.metadata(0).topics
        if topic.name == "carts"
        for shard in topic.shards
    ]

    def same() -> bool:
        return all(
            cluster.ask(0, TableScan(shard, b"", b"")) == cluster.ask(n, TableScan(shard, b"", b""))
            for shard in shards
            for n in (1, 2)
        )

    wait_until(same)


def test_the_python_client_follows_such_a_log_when_its_home_is_killed(cluster: Processes) -> None:
    with antiphon.connect(cluster.servers) as db:
        log = db.create_topic("events", shards=1, replicas=3, config=MULTI)
        for number in range(100):
            log.append(b"%d" % number)
        shard = cluster.shard(0, "events")
        everywhere = [n for n in cluster.alive() if n != shard.leader]
        wait_until(lambda: all(cluster.statuses(n)[shard.shard_id].high_watermark >= 100 for n in everywhere))
        cluster.kill(shard.leader)
        for number in range(100, 150):
            log.append(b"%d" % number)
        cluster.start(shard.leader)
        wait_until(lambda: len({cluster.statuses(n)[shard.shard_id].vclock for n in range(3)}) == 1)
        found = [int(record.value or b"-1") for record in log.read(0)]
        assert sorted(set(found)) == list(range(150))


def test_kafka_clients_append_and_read_with_idempotence(cluster: Processes) -> None:
    with antiphon.connect(cluster.servers) as db:
        db.create_topic("kafka-events", shards=1, replicas=3, config=MULTI)
    addresses = ",".join(node.kafka for node in cluster.metadata(0).nodes)

    async def run() -> list[bytes | None]:
        producer = AIOKafkaProducer(bootstrap_servers=addresses, enable_idempotence=True)
        await producer.start()
        try:
            for number in range(50):
                await producer.send_and_wait("kafka-events", b"%d" % number)
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=addresses, auto_offset_reset="earliest")
        await consumer.start()
        try:
            place = TopicPartition("kafka-events", 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            found: list[bytes | None] = []
            while len(found) < 50:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found += [record.value for record in records]
        finally:
            await consumer.stop()
        return found

    assert asyncio.run(asyncio.wait_for(run(), 40)) == [b"%d" % number for number in range(50)]
