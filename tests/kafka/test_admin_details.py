"""What administrators of groups and topics are told: the same by a rehearsal as by the deed, and per topic, not for all."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from antiphon.kafka import error_codes as code
from antiphon.kafka.groups.subscription import LOOKED_AT_BYTES_MAX, subscribed_topics
from antiphon.kafka.groups.types import Member
from tests.kafka.served import Served


@pytest.fixture
def admin(served: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": served.address})


@pytest.fixture
def client(served: Served) -> Iterator[Any]:
    """kafka-python's: it shows answers that librdkafka keeps to itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        from kafka import KafkaAdminClient
    made = KafkaAdminClient(bootstrap_servers=served.address)
    yield made
    made.close()


def refusal(future: Any) -> int:
    with pytest.raises(KafkaException) as refused:
        future.result(10)
    return int(refused.value.args[0].code())


WRONG = [
    (
        NewTopic("x", 1, 1, config={"cleanup.policy": "compact", "writers": "multi"}),
        KafkaError.INVALID_CONFIG,
    ),
    (NewTopic("x", 1, 1, config={"compression.type": "brotli"}), KafkaError.INVALID_CONFIG),
    (NewTopic("x", 1, 1, config={"min.insync.replicas": "2"}), KafkaError.INVALID_CONFIG),
    (NewTopic("x", 1, 2), KafkaError.INVALID_REPLICATION_FACTOR),
    (NewTopic("taken", 1, 1), KafkaError.TOPIC_ALREADY_EXISTS),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG, ids=lambda one: str(getattr(one, "config", one)))
def test_a_rehearsal_of_creating_is_refused_as_the_deed_is(
    served: Served, admin: AdminClient, wrong: NewTopic, error: int
) -> None:
    if "taken" not in admin.list_topics(timeout=10).topics:
        served.create("taken")
    for validate_only in (True, False):
        assert refusal(admin.create_topics([wrong], validate_only=validate_only)[wrong.topic]) == error


def test_a_rehearsal_of_creating_says_what_would_be_made_and_makes_nothing(
    admin: AdminClient, client: Any
) -> None:
    wanted = NewTopic("rehearsed", 3, 1, config={"retention.ms": "60000"})
    assert admin.create_topics([wanted], validate_only=True)["rehearsed"].result(10) is None
    told = client.create_topics({"rehearsed": {"num_partitions": 3}}, validate_only=True)
    (topic,) = told["topics"]
    assert (topic["num_partitions"], topic["replication_factor"]) == (3, 1)
    assert topic["configs"]["cleanup.policy"]["value"] == "delete"
    assert "rehearsed" not in admin.list_topics(timeout=10).topics


def test_a_rehearsal_of_more_partitions(served: Served, admin: AdminClient) -> None:
    served.create("grows", 2)
    assert (
        admin.create_partitions([NewPartitions("grows", 4)], validate_only=True)["grows"].result(10) is None
    )
    assert len(admin.list_topics("grows", timeout=10).topics["grows"].partitions) == 2
    assert refusal(admin.create_partitions([NewPartitions("grows", 1)], validate_only=True)["grows"])


def changed(
    admin: AdminClient, topic: str, name: str, value: str, operation: AlterConfigOpType, **options: Any
) -> Any:
    entry = ConfigEntry(name, value, incremental_operation=operation)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    return admin.incremental_alter_configs([resource], **options)[resource]


def setting(admin: AdminClient, topic: str, name: str) -> str:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return str(admin.describe_configs([resource])[resource].result(10)[name].value)


def test_a_rehearsal_of_altering_is_refused_as_the_deed_is(served: Served, admin: AdminClient) -> None:
    served.create("altered")
    for name, value in (("cleanup.policy", "shrink"), ("min.insync.replicas", "2"), ("retention.ms", "-7")):
        for rehearsal in (True, False):
            future = changed(admin, "altered", name, value, AlterConfigOpType.SET, validate_only=rehearsal)
            assert refusal(future) == KafkaError.INVALID_CONFIG, (name, rehearsal)
    assert (
        changed(admin, "altered", "retention.ms", "7", AlterConfigOpType.SET, validate_only=True).result(10)
        is None
    )
    assert setting(admin, "altered", "retention.ms") == "-1"


def test_settings_of_brokers_by_both_clients(served: Served, admin: AdminClient, client: Any) -> None:
    """Of one broker; neither takes the empty name that all of them have."""
    one = str(served.node.node_id)

    def asked(name: str) -> dict[str, tuple[str, int]]:
        resource = ConfigResource(ResourceType.BROKER, name)
        found = admin.describe_configs([resource])[resource].result(10)
        return {entry.name: (entry.value, entry.source) for entry in found.values()}

    def alter(name: str, setting: str, value: str | None) -> Any:
        operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(setting, value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.BROKER, name, incremental_configs=[entry])
        return admin.incremental_alter_configs([resource])[resource]

    assert alter(one, "log.cleaner.backoff.ms", "7000").result(10) is None
    assert asked(one)["log.cleaner.backoff.ms"] == ("7000", 2)
    assert served.node.config.cleaner.backoff_ms == 7_000
    assert refusal(alter(one, "listeners", "x")) == KafkaError.INVALID_REQUEST
    assert refusal(alter(one, "log.cleaner.backoff.ms", "soon")) == KafkaError.INVALID_CONFIG
    assert alter(one, "log.cleaner.backoff.ms", None).result(10) is None
    assert asked(one)["log.cleaner.backoff.ms"] == ("15000", 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kafka.admin import ConfigResource as PythonResource
        from kafka.admin import ConfigResourceType
    for number in ("3", "4"):
        wanted = {"num.partitions": number, "auto.create.topics.enable": "true"}
        resource = PythonResource(ConfigResourceType.BROKER, one, wanted)
        client.alter_configs([resource], incremental=number == "3")
        assert served.node.config.num_partitions == int(number)
        assert asked(one)["num.partitions"] == (number, 2)
    resource = PythonResource(ConfigResourceType.BROKER, one, {"num.partitions": "5"})
    client.alter_configs([resource], incremental=False)
    assert asked(one)["num.partitions"] == ("5", 2)
    assert asked(one)["auto.create.topics.enable"] == ("true", 2), "this client names what it finds set"
    for name in ("num.partitions", "auto.create.topics.enable"):
        assert alter(one, name, None).result(10) is None
    assert served.node.settings.entries == {}


def test_lists_are_appended_to_and_taken_from(served: Served, admin: AdminClient) -> None:
    served.create("listed")
    policy, append, subtract = "cleanup.policy", AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT
    assert changed(admin, "listed", policy, "delete", append).result(10) is None
    assert setting(admin, "listed", policy) == "delete"
    assert changed(admin, "listed", policy, "compact", subtract).result(10) is None, "it was not in there"
    assert setting(admin, "listed", policy) == "delete"
    assert changed(admin, "listed", policy, "compact", append).result(10) is None
    assert setting(admin, "listed", policy) == "delete,compact"
    assert changed(admin, "listed", policy, "delete", subtract).result(10) is None
    assert setting(admin, "listed", policy) == "compact"
    assert refusal(changed(admin, "listed", policy, "shrink", append)) == KafkaError.INVALID_CONFIG
    assert refusal(changed(admin, "listed", policy, "compact", subtract)) == KafkaError.INVALID_CONFIG
    assert refusal(changed(admin, "listed", "retention.ms", "7", append)) == KafkaError.INVALID_CONFIG
    assert setting(admin, "listed", policy) == "compact"


def test_offsets_are_deleted_of_topics_that_no_member_reads(served: Served, client: Any) -> None:
    for name in ("read", "left"):
        served.create(name)
        producer = Producer({"bootstrap.servers": served.address})
        producer.produce(name, b"value")
        assert producer.flush(10) == 0
    consumer = Consumer({
        "bootstrap.servers": served.address, "group.id": "readers", "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip
    wanted = [TopicPartition(name, 0, 1) for name in ("read", "left")]
    consumer.commit(offsets=wanted, asynchronous=False)
    consumer.subscribe(["read"])
    consumer.poll(10)
    assert deleted(client, wanted) == {"read": code.GROUP_SUBSCRIBED_TO_TOPIC, "left": code.NONE}
    found = consumer.committed(wanted, timeout=10)
    assert [one.offset for one in found] == [1, OFFSET_INVALID]
    consumer.close()
    assert deleted(client, wanted) == {"read": code.NONE, "left": code.NONE}


def deleted(client: Any, wanted: list[TopicPartition]) -> dict[str, int]:
    """kafka-python's answer to DeleteConsumerGroupOffsets: an error code for each topic's one partition."""
    from kafka import TopicPartition as Partition

    told = client.delete_group_offsets("readers", [Partition(one.topic, one.partition) for one in wanted])
    return {partition.topic: error.errno for partition, error in told.items()}


def member(*protocols: tuple[str, bytes]) -> Member:
    return Member("m", None, "c", "h", 1_000, 1_000, protocols, 0)


def test_what_members_subscribe_to() -> None:
    first = b"\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x02bc" + b"owned partitions and more"
    everything = frozenset({"a", "bc", "d"})
    second = b"\x00\x00\x00\x00\x00\x01\x00\x01d\xff\xff\xff\xff"
    assert subscribed_topics([member(("range", first)), member(("range", second))], "range") == everything
    assert subscribed_topics([member(("range", first), ("sticky", second))], "sticky") == frozenset({"d"})
    assert subscribed_topics([member(("range", first), ("sticky", second))], None) == everything
    assert subscribed_topics([], "range") == frozenset()
    for cut in (0, 1, 5, 9):
        assert subscribed_topics([member(("range", first[:cut]))], "range") is None
    assert subscribed_topics([member(("range", b"\xff\xff" + first[2:]))], "range") is None
    large = first + bytes(LOOKED_AT_BYTES_MAX)
    assert subscribed_topics([member(("range", large))], "range") is None, (
        "nobody may keep a node busy with it"
    )
