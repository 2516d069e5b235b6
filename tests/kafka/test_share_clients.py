"""confluent-kafka's share consumer (librdkafka), unchanged, against the listener."""

import time
import uuid
from typing import Any

from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.kafka.served import Served


def configure(served: Served, group: str, **settings: str) -> None:
    """Set what holds for a share group."""
    entries = [
        ConfigEntry(f"share.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": served.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def share_consumer(served: Served, group: str, topic: str, **settings: Any) -> Any:
    client = ShareConsumer({"bootstrap.servers": served.address, "group.id": group, **settings})
    client.subscribe([topic])
    return client


def produce(served: Served, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": served.address})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % 2)
    assert not producer.flush(20)


def poll(client: Any, count: int, within_s: float = 30.0) -> list[Any]:
    """Records until there are `count`, or the time is over."""
    found: list[Any] = []
    ends_s = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < ends_s:
        for message in client.poll(0.2):
            assert message.error() is None, message.error()
            found.append(message)
    return found


def names(served: Served) -> tuple[str, str]:
    topic = f"shared-{uuid.uuid4().hex[:8]}"
    served.create(topic, 2)
    return topic, f"group-{topic}"


def test_two_members_share_the_records_of_a_topic(served: Served) -> None:
    topic, group = names(served)
    configure(served, group, auto_offset_reset="earliest")
    produce(served, topic, 200)
    with share_consumer(served, group, topic) as one, share_consumer(served, group, topic) as other:
        found: list[bytes] = []
        ends_s = time.monotonic() + 30
        while len(found) < 200 and time.monotonic() < ends_s:
            for client in (one, other):
                found += [message.value() for message in client.poll(0.2)]
        assert sorted(found, key=int) == [str(number).encode() for number in range(200)]
        for client in (one, other):
            assert not client.poll(1.0), "this accepts what came with the poll before"
    with share_consumer(served, group, topic) as third:
        assert poll(third, 1, within_s=2.0) == [], "all were accepted"


def test_what_is_released_comes_again_and_what_is_rejected_does_not(served: Served) -> None:
    topic, group = names(served)
    configure(served, group, auto_offset_reset="earliest")
    produce(served, topic, 10)
    explicit = {"share.acknowledgement.mode": "explicit"}
    with share_consumer(served, group, topic, **explicit) as client:
        first = poll(client, 10)
        assert len(first) == 10
        kinds = {0: AcknowledgeType.ACCEPT, 1: AcknowledgeType.RELEASE, 2: AcknowledgeType.REJECT}
        for message in first:
            client.acknowledge(message, kinds[int(message.value()) % 3])
        assert all(error is None for error in client.commit_sync(10).values())
        again = poll(client, 3)
        assert sorted(int(message.value()) for message in again) == [1, 4, 7]
        for message in again:
            client.acknowledge(message, AcknowledgeType.ACCEPT)
        assert all(error is None for error in client.commit_sync(10).values())
        assert poll(client, 1, within_s=1.0) == []


def test_a_record_is_delivered_no_more_often_than_the_limit(served: Served) -> None:
    topic, group = names(served)
    configure(served, group, auto_offset_reset="earliest", delivery_count_limit="3")
    produce(served, topic, 1)
    deliveries = 0
    with share_consumer(served, group, topic, **{"share.acknowledgement.mode": "explicit"}) as client:
        while found := poll(client, 1, within_s=3.0):
            deliveries += 1
            client.acknowledge(found[0], AcknowledgeType.RELEASE)
            client.commit_sync(10)
    assert deliveries == 3


def test_a_group_begins_at_the_end_where_nothing_else_is_set(served: Served) -> None:
    topic, group = names(served)
    produce(served, topic, 4)
    with share_consumer(served, group, topic) as client:
        assert poll(client, 1, within_s=4.0) == []
        produce(served, topic, 2)
        assert len(poll(client, 2)) == 2
