"""kafka-python 3, unchanged, against the door: the client with the newest versions on the wire."""

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.wire.metadata import Kind
from tests.kafka.oracles import kafka_python
from tests.kafka.served import Served, serve

kafka = kafka_python()


# kafka-python leaves sockets to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve() as running:
        yield running


@pytest.fixture(autouse=True)
def _collect_what_is_left_open() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def read(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(200):
        for records in consumer.poll(timeout_ms=100).values():
            found.extend(records)
        if len(found) >= count:
            break
    return found


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_idempotent_produce_and_group_consume(served: Served, codec: str | None) -> None:
    topic = f"codec-{codec}"
    served.do(lambda: served.gateway.add_topic(topic))
    producer = kafka.KafkaProducer(bootstrap_servers=served.address, compression_type=codec)
    sent = [producer.send(topic, str(n).encode(), headers=[("h", b"v")]) for n in range(300)]
    assert [each.get(10).offset for each in sent] == list(range(300))
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=served.address,
        group_id=f"g-{codec}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found = read(consumer, 300)
    assert [m.value for m in found] == [str(n).encode() for n in range(300)]
    assert found[0].headers == [("h", b"v")]
    consumer.commit()
    partition = kafka.TopicPartition(topic, 0)
    assert consumer.committed(partition) == 300
    consumer.close()


def test_offsets_for_times_and_ends(served: Served) -> None:
    served.do(lambda: served.gateway.add_topic("timed"))
    producer = kafka.KafkaProducer(bootstrap_servers=served.address)
    for n in range(5):
        producer.send("timed", b"x", timestamp_ms=1000 * n + 1).get(10)
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=served.address)
    partition = kafka.TopicPartition("timed", 0)
    assert consumer.offsets_for_times({partition: 2500})[partition].offset == 3
    assert consumer.end_offsets([partition]) == {partition: 5}
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    consumer.close()


def test_static_member_comes_back_without_a_rebalance(served: Served) -> None:
    served.do(lambda: served.gateway.add_topic("static", shards=2))

    def member() -> Any:
        return kafka.KafkaConsumer(
            "static",
            bootstrap_servers=served.address,
            group_id="static",
            group_instance_id="instance-1",
            enable_auto_commit=False,
        )

    first = member()
    while len(first.assignment()) != 2:
        first.poll(timeout_ms=50)
    generation = served.do(lambda: served.door._coordinator.find("static").generation)  # type: ignore[union-attr]
    second = member()
    while len(second.assignment()) != 2:
        second.poll(timeout_ms=50)
    assert served.do(lambda: served.door._coordinator.find("static").generation) == generation  # type: ignore[union-attr]
    second.close()
    first.close()


def test_a_table_can_be_read_but_not_written(served: Served) -> None:
    served.do(lambda: served.gateway.add_topic("atable", kind=Kind.TABLE))
    producer = kafka.KafkaProducer(bootstrap_servers=served.address)
    with pytest.raises(kafka.errors.PolicyViolationError):
        producer.send("atable", b"x").get(10)
    producer.close()


def test_administration(served: Served) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=served.address)
    admin.create_topics([kafka.admin.NewTopic(name="made", num_partitions=2, replication_factor=1)])
    assert "made" in admin.list_topics()
    assert admin.describe_cluster()["cluster_id"] == "memory"
    admin.delete_topics(["made"])
    assert "made" not in admin.list_topics()
    admin.close()
