"""confluent-kafka (librdkafka), unchanged, against the listener."""

import threading
import time
import uuid
from typing import Any
from unittest.mock import patch

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from antiphon.errors import NotLeaderError, TimedOutError
from antiphon.kafka.listener import KafkaListener
from antiphon.model.client_metrics import AlterSubscription
from antiphon.model.metadata import Kind
from tests.kafka.served import Served


def term(served: Served, topic: str) -> int:
    """Of the leader of a topic's first shard."""
    return served.do(lambda: served.node.gateway.topic(topic).shards[0].term)


def producer(served: Served, **settings: Any) -> Any:
    return Producer({"bootstrap.servers": served.address, "enable.idempotence": True, **settings})


def consumer(served: Served, group: str, **settings: Any) -> Any:
    return Consumer({
        "bootstrap.servers": served.address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        **settings,
    })  # fmt: skip


def consume(client: Any, count: int, polls: int = 600) -> list[Any]:
    """Poll until `count` records came, or too often."""
    found: list[Any] = []
    for _ in range(polls):
        for message in client.consume(500, timeout=0.1):
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
        if len(found) >= count:
            break
    return found


def send(client: Any, topic: str, values: range, **how: Any) -> list[Any]:
    reports: list[Any] = []
    for value in values:
        client.produce(
            topic, value=str(value).encode(), on_delivery=lambda err, msg: reports.append((err, msg)), **how
        )
    assert client.flush(20) == 0
    return reports


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_idempotent_produce_and_group_consume(served: Served, codec: str) -> None:
    topic = f"codec-{codec}"
    reports = send(producer(served, **{"compression.type": codec}), topic, range(1000))
    assert [err for err, _ in reports if err] == []
    assert sorted(msg.offset() for _, msg in reports) == list(range(1000))
    reader = consumer(served, f"group-{codec}")
    reader.subscribe([topic])
    found = consume(reader, 1000)
    assert [m.value() for m in found] == [str(v).encode() for v in range(1000)]
    assert {m.leader_epoch() for m in found} == {term(served, topic)}
    reader.commit(asynchronous=False)
    reader.close()
    again = consumer(served, f"group-{codec}")
    assert again.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 1000
    again.subscribe([topic])
    send(producer(served), topic, range(1000, 1005))
    assert [m.value() for m in consume(again, 5)] == [str(v).encode() for v in range(1000, 1005)]
    again.close()


def test_large_messages_and_many_partitions(served: Served) -> None:
    served.create("wide", shards=6)
    writer = producer(served, **{"message.max.bytes": 1_000_000})
    values = [bytes([n % 251]) * 300_000 for n in range(24)]
    for n, value in enumerate(values):
        writer.produce("wide", value=value, partition=n % 6, headers={"n": str(n)})
    assert writer.flush(20) == 0
    reader = consumer(served, "wide")
    reader.assign([TopicPartition("wide", p, OFFSET_BEGINNING) for p in range(6)])
    found = consume(reader, 24)
    assert {int(dict(m.headers())["n"]): m.value() for m in found} == dict(enumerate(values))
    reader.close()


def test_two_members_share_and_one_takes_over(served: Served) -> None:
    served.create("shared", shards=4)
    group = f"shared-{uuid.uuid4()}"
    both = [consumer(served, group, **{"heartbeat.interval.ms": 100}) for _ in range(2)]
    for reader in both:
        reader.subscribe(["shared"])

    def shares() -> list[int]:
        for reader in both:
            reader.poll(0.05)
        return sorted(len(reader.assignment()) for reader in both)

    for _ in range(200):
        if shares() == [2, 2]:
            break
    assert shares() == [2, 2]
    admin = AdminClient({"bootstrap.servers": served.address})
    described = admin.describe_consumer_groups([group])[group].result(10)
    assert described.state.name == "STABLE"
    assert len(described.members) == 2
    gone = both.pop()
    gone.close()
    for _ in range(200):
        if shares() == [4]:
            break
    assert shares() == [4]
    both[0].close()


def test_retriable_errors_are_retried_without_duplicates(served: Served) -> None:
    served.create("bumpy")
    errors = [
        NotLeaderError("not here", leader=None),
        TimedOutError("too slow"),
        NotLeaderError("no", leader=1),
    ]
    append = served.node.gateway.submit_append

    def failing(*what: Any) -> None:
        if errors:
            raise errors.pop(0)
        append(*what)

    with patch.object(served.node.gateway, "submit_append", failing):
        reports = send(producer(served, **{"retry.backoff.ms": 10}), "bumpy", range(50))
    assert not errors
    assert [err for err, _ in reports if err] == []
    assert sorted(msg.offset() for _, msg in reports) == list(range(50))


def test_errors_that_cannot_succeed_are_told(served: Served) -> None:
    served.create("atable", kind=Kind.TABLE)
    (err, _), *_ = send(producer(served), "atable", range(1))
    assert err.code() == KafkaError.POLICY_VIOLATION
    served.create("small", config={"max.message.bytes": "1024"})
    client = producer(served, **{"enable.idempotence": False})
    reports: list[Any] = []
    client.produce("small", value=bytes(5000), on_delivery=lambda err, msg: reports.append(err))
    assert client.flush(20) == 0
    assert reports[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_what_belongs_to_the_cluster_is_neither_written_nor_administered(served: Served) -> None:
    """Nor does any client make a topic of such a name."""
    served.create("__staged", internal=True)
    served.create("__jobs", kind=Kind.TABLE, internal=True)
    admin = AdminClient({"bootstrap.servers": served.address})
    entry = ConfigEntry("retention.ms", "0", incremental_operation=AlterConfigOpType.SET)
    for name in ("__staged", "__jobs"):
        (err, _), *_ = send(producer(served), name, range(1))
        assert err.code() == KafkaError.TOPIC_EXCEPTION
        change = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        for refused in (
            admin.create_topics([NewTopic(name, 1, 1)])[name],
            admin.create_topics([NewTopic(f"{name}2", 1, 1)])[f"{name}2"],
            admin.delete_topics([name])[name],
            admin.create_partitions([NewPartitions(name, 5)])[name],
            admin.incremental_alter_configs([change])[change],
            *admin.delete_records([TopicPartition(name, 0, 0)]).values(),
        ):
            with pytest.raises(KafkaException) as caught:
                refused.result(10)
            assert caught.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
        found = served.do(lambda name=name: served.node.gateway.topic(name))  # type: ignore[misc]
        assert (len(found.shards), found.config) == (1, {})


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(served: Served, acks: str) -> None:
    topic = f"acks-{acks}"
    served.create(topic)
    client = producer(served, **{"enable.idempotence": False, "acks": acks})
    reports = send(client, topic, range(20))
    assert [err for err, _ in reports if err] == []
    reader = consumer(served, "acks")
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert len(consume(reader, 20)) == 20
    reader.close()


def test_offsets_by_timestamp(served: Served) -> None:
    client = producer(served)
    for n in range(10):
        client.produce("timed", value=b"x", timestamp=1_000_000 + n * 1000)
        client.flush(10)
    reader = consumer(served, "timed")
    assert reader.get_watermark_offsets(TopicPartition("timed", 0), timeout=10) == (0, 10)
    found = reader.offsets_for_times([TopicPartition("timed", 0, 1_003_500)], timeout=10)
    assert found[0].offset == 4
    beyond = reader.offsets_for_times([TopicPartition("timed", 0, 9_000_000)], timeout=10)
    assert beyond[0].offset == -1
    admin = AdminClient({"bootstrap.servers": served.address})
    partition = TopicPartition("timed", 0)
    listed = admin.list_offsets({partition: OffsetSpec.max_timestamp()})[partition].result(10)
    assert (listed.offset, listed.timestamp, listed.leader_epoch) == (9, 1_009_000, term(served, "timed"))
    reader.close()


def test_topics_are_administered(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.address})
    made = admin.create_topics([NewTopic("made", 3, 1, config={"retention.ms": "60000"})])
    assert made["made"].result(10) is None
    with pytest.raises(KafkaException) as twice:
        admin.create_topics([NewTopic("made", 3, 1)])["made"].result(10)
    assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    for wrong, error in (
        (NewTopic("a b", 1, 1), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x", 1, 9), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("x", 1, 1, config={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (NewTopic("x", 1, 1, config={"no.such": "1"}), KafkaError.INVALID_CONFIG),
    ):
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([wrong])[wrong.topic].result(10)
        assert refused.value.args[0].code() == error
    admin.create_partitions([NewPartitions("made", 5)])["made"].result(10)
    assert len(admin.list_topics("made", timeout=10).topics["made"].partitions) == 5
    with pytest.raises(KafkaException):
        admin.create_partitions([NewPartitions("made", 2)])["made"].result(10)
    admin.delete_topics(["made"])["made"].result(10)
    assert "made" not in admin.list_topics(timeout=10).topics


def test_settings_are_described_and_altered(served: Served) -> None:
    served.create("settings")
    admin = AdminClient({"bootstrap.servers": served.address})

    def described() -> Any:
        resource = ConfigResource(ResourceType.TOPIC, "settings")
        return admin.describe_configs([resource])[resource].result(10)

    assert described()["retention.ms"].value == "-1"
    entry = ConfigEntry("retention.ms", "1234", incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, "settings", incremental_configs=[entry])
    admin.incremental_alter_configs([change])[change].result(10)
    found = described()["retention.ms"]
    assert found.value == "1234"
    assert ConfigSource(found.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG
    wrong = ConfigEntry("retention.ms", "x", incremental_operation=AlterConfigOpType.SET)
    refused = ConfigResource(ResourceType.TOPIC, "settings", incremental_configs=[wrong])
    with pytest.raises(KafkaException):
        admin.incremental_alter_configs([refused])[refused].result(10)


def test_a_few_settings_of_a_broker_are_described(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.address})
    broker = ConfigResource(ResourceType.BROKER, "0")
    found = admin.describe_configs([broker])[broker].result(10)
    assert found["advertised.listeners"].value == f"PLAINTEXT://{served.address}"
    assert found["node.id"].value == "0"
    assert found["node.id"].is_read_only
    assert not found["num.partitions"].is_read_only  # it can be changed while the node runs


def test_cluster_is_described(served: Served) -> None:
    admin = AdminClient({"bootstrap.servers": served.address})
    cluster = admin.describe_cluster().result(10)
    assert (cluster.cluster_id, cluster.controller.id) == ("test", 0)
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [served.address]


def test_groups_are_listed_and_deleted(served: Served) -> None:
    send(producer(served), "kept", range(5))
    names = sorted(f"dept/50%/{n}" for n in range(9))
    for name in names:
        reader = consumer(served, name)
        reader.commit(offsets=[TopicPartition("kept", 0, 3)], asynchronous=False)
        reader.close()
    admin = AdminClient({"bootstrap.servers": served.address})
    listed = {group.group_id for group in admin.list_consumer_groups().result(10).valid}
    assert set(names) <= listed
    assert admin.describe_consumer_groups([names[0]])[names[0]].result(10).state.name == "EMPTY"
    admin.delete_consumer_groups([names[0]])[names[0]].result(10)
    reader = consumer(served, names[0])
    assert reader.committed([TopicPartition("kept", 0)], timeout=10)[0].offset == -1001
    reader.close()
    with pytest.raises(KafkaException) as unknown:
        admin.delete_consumer_groups([names[0]])[names[0]].result(10)
    assert unknown.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


def test_an_offset_of_a_deleted_topic_does_not_apply_to_its_successor(served: Served) -> None:
    served.create("reborn")
    reader = consumer(served, "reborn")
    reader.commit(offsets=[TopicPartition("reborn", 0, 42)], asynchronous=False)
    assert reader.committed([TopicPartition("reborn", 0)], timeout=10)[0].offset == 42
    served.call(lambda: served.node.gateway.delete_topic("reborn"))
    served.create("reborn")
    assert reader.committed([TopicPartition("reborn", 0)], timeout=10)[0].offset == -1001
    reader.close()


def test_a_consumer_waits_for_data_and_gets_it_at_once(served: Served) -> None:
    served.create("awaited")
    reader = consumer(served, "awaited", **{"fetch.wait.max.ms": 20_000})
    reader.assign([TopicPartition("awaited", 0, OFFSET_BEGINNING)])
    reader.poll(0.2)
    writer = producer(served)
    timer = threading.Timer(0.2, lambda: (writer.produce("awaited", value=b"now"), writer.flush(10)))
    timer.start()
    assert [m.value() for m in consume(reader, 1)] == [b"now"]
    timer.join()
    reader.close()


def test_delete_records_moves_the_low_watermark(served: Served) -> None:
    send(producer(served), "trimmed", range(10), partition=0)
    client = AdminClient({"bootstrap.servers": served.address})

    def delete(offset: int) -> int:
        part = TopicPartition("trimmed", 0, offset)
        return int(client.delete_records([part], request_timeout=10)[part].result(10).low_watermark)

    first = delete(1)
    assert first in {0, 1}  # no batch is cut, and how the producer cut them is its own
    assert delete(-1) == 10
    with pytest.raises(KafkaException) as caught:
        delete(11)
    assert caught.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
    send(producer(served), "trimmed", range(10, 12), partition=0)
    reader = consumer(served, "trimmed-group")
    reader.assign([TopicPartition("trimmed", 0, OFFSET_BEGINNING)])
    assert [m.value() for m in consume(reader, 2)] == [b"10", b"11"]
    reader.close()


def test_consumer_protocol_members_come_and_go(served: Served) -> None:
    """KIP-848: join, leave, a topic that grows, a regular expression, and what the administration client is told."""
    served.create("new-protocol", shards=4)
    group = f"new-{uuid.uuid4()}"

    def member(topic: str) -> Any:
        found = Consumer({
            "bootstrap.servers": served.address,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 500,
        })  # fmt: skip
        found.subscribe([topic])
        return found

    def settle(members: list[Any], shares: list[int], polls: int = 400) -> list[int]:
        for _ in range(polls):
            for reader in members:
                reader.poll(0.02)
            if sorted(len(reader.assignment()) for reader in members) == shares:
                break
        return sorted(len(reader.assignment()) for reader in members)

    fast = served.listener._coordinator.consumers
    fast.bounds = fast.bounds._replace(heartbeat_interval_ms=200)
    both = [member("new-protocol"), member("^new-prot.*")]
    assert settle(both, [2, 2]) == [2, 2]
    send(producer(served), "new-protocol", range(100), partition=1)
    found = [message for reader in both for message in consume(reader, 100, polls=20)]
    assert [message.value() for message in found] == [str(value).encode() for value in range(100)]
    reader = next(one for one in both if any(place.partition == 1 for place in one.assignment()))
    reader.commit(asynchronous=False)
    admin = AdminClient({"bootstrap.servers": served.address})
    described = admin.describe_consumer_groups([group])[group].result(10)
    assert (described.state.name, described.type.name, len(described.members)) == ("STABLE", "CONSUMER", 2)
    admin.create_partitions([NewPartitions("new-protocol", 6)])["new-protocol"].result(10)
    assert settle(both, [3, 3]) == [3, 3]
    both.pop(0).close()
    assert settle(both, [6]) == [6]
    assert both[0].committed([TopicPartition("new-protocol", 1)], timeout=10)[0].offset == 100
    both[0].close()
    assert admin.delete_consumer_groups([group])[group].result(10) is None


def test_clients_have_nothing_to_say_while_nobody_wants_their_metrics(
    served: Served, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where a node tells of the APIs for them, each client has a line in its log, by default: that it was given an id."""
    served.create("quiet")
    sender, reader = producer(served), consumer(served, "quiet-readers")
    sender.produce("quiet", b"x")
    assert sender.flush(10) == 0
    reader.subscribe(["quiet"])
    assert [message.value() for message in consume(reader, 1)] == [b"x"]
    sender.poll(0.5)
    sender.close()
    reader.close()
    told = [line for text in capfd.readouterr() for line in text.splitlines() if line.startswith("%")]
    assert told == [], "%6|...|GETSUBSCRIPTIONS|... Telemetry client instance id changed from ..."


def hang_up(listener: KafkaListener) -> None:
    """Break all connections of clients."""
    for connection in list(listener._connections):
        connection.abort()


def test_its_metrics_are_shown_and_gone_with_it(served: Served) -> None:
    """Real clients push what the cluster's subscriptions want, by default, and say when they end.

    One that was connected before there was a subscription hears of it when it connects again.
    """
    early = producer(served, **{"client.id": "told-early"})
    early.list_topics(timeout=10)
    wanted: dict[str, str | None] = {
        "metrics": "org.apache.kafka.producer.",
        "interval.ms": "1000",
        "match": "client_id=told-.*,client_software_name=confluent-kafka-python",
    }
    served.call(lambda: served.node.gateway.administer(AlterSubscription("producers", wanted)))
    served.create("measured")

    def lines() -> list[str]:
        text = served.do(served.node.metrics.render).decode()
        return [line for line in text.splitlines() if line.startswith("org_apache_kafka_")]

    told = producer(served, **{"client.id": "told-1"})
    silent = producer(served, **{"client.id": "other"})
    for client in (told, silent):
        client.produce("measured", b"x")
        assert client.flush(10) == 0
    deadline = time.monotonic() + 20
    while not any('client_id="told-1"' in line for line in lines()):
        assert time.monotonic() < deadline, "nothing was pushed"
        time.sleep(0.1)
    assert not any('client_id="other"' in line for line in lines())
    name = "org_apache_kafka_producer_connection_creation_total"
    (made,) = [line for line in lines() if line.startswith(name) and 'client_id="told-1"' in line]
    assert float(made.rsplit(" ", 1)[1]) >= 1
    assert served.do(lambda: served.listener.clients.refusals) == 0
    served.do(lambda: hang_up(served.listener))
    while not any('client_id="told-early"' in line for line in lines()):
        assert time.monotonic() < deadline, "nothing was pushed on the new connection"
        early.poll(0.1)
    early.close()
    told.close()
    while lines():
        assert time.monotonic() < deadline, "it said that it ends"
        time.sleep(0.1)
    served.call(lambda: served.node.gateway.administer(AlterSubscription("producers", dict.fromkeys(wanted))))


def test_an_idempotent_producer_goes_on_after_a_condition_that_was_not_met(served: Served) -> None:
    """KIP-27 by a header: librdkafka begins a new epoch after the refusal, and loses and doubles nothing."""
    served.create("turns", config={"expected.offset.header": "true"})
    producer = Producer({"bootstrap.servers": served.address, "enable.idempotence": True})
    told: list[tuple[bytes, int]] = []
    for value, expected in ((b"a", 0), (b"b", 0), (b"c", 1), (b"d", 7), (b"e", 2), (b"f", None)):
        headers = None if expected is None else {"antiphon.expected.offset": str(expected)}
        producer.produce(
            "turns",
            value,
            headers=headers,
            on_delivery=lambda error, message: told.append(
                (message.value(), -error.code() if error else message.offset())
            ),
        )
        assert producer.flush(20) == 0
    assert told == [(b"a", 0), (b"b", -87), (b"c", 1), (b"d", -87), (b"e", 2), (b"f", 3)]
