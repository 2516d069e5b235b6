"""What kafka-python does in the tests, as a program: it leaves sockets and threads to the end of its process.

Run as `python -m tests.kafka.kafka_python_scenarios SCENARIO ADDRESS`; exits 0 when everything was as asserted.
"""

import sys
import time
from typing import Any

from tests.kafka.oracles import kafka_python

kafka = kafka_python()


def read(consumer: Any, count: int) -> list[Any]:
    """Poll until `count` records came, or too often."""
    found: list[Any] = []
    for _ in range(200):
        for records in consumer.poll(timeout_ms=100).values():
            found.extend(records)
        if len(found) >= count:
            break
    return found


def produce_and_consume(address: str, codec: str | None) -> None:
    """Idempotent produce, group consume, commit."""
    topic = f"codec-{codec}"
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=codec)
    sent = [producer.send(topic, str(n).encode(), headers=[("h", b"v")]) for n in range(300)]
    assert [each.get(10).offset for each in sent] == list(range(300))
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=address,
        group_id=f"g-{codec}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    found = read(consumer, 300)
    assert [m.value for m in found] == [str(n).encode() for n in range(300)]
    assert found[0].headers == [("h", b"v")]
    consumer.commit()
    assert consumer.committed(kafka.TopicPartition(topic, 0)) == 300
    consumer.close()


def plain(address: str) -> None:
    produce_and_consume(address, None)


def gzip(address: str) -> None:
    produce_and_consume(address, "gzip")


def offsets(address: str) -> None:
    """Offsets by time, first and last."""
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    for n in range(5):
        producer.send("timed", b"x", timestamp_ms=1000 * n + 1).get(10)
    producer.close()
    consumer = kafka.KafkaConsumer(bootstrap_servers=address)
    partition = kafka.TopicPartition("timed", 0)
    assert consumer.offsets_for_times({partition: 2500})[partition].offset == 3
    assert consumer.end_offsets([partition]) == {partition: 5}
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    consumer.close()


def sessions(address: str) -> None:
    """A consumer of many partitions in one fetch session: each record comes once, whichever partitions are paused."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
    partitions = [kafka.TopicPartition("sessions", n) for n in range(48)]
    consumer.assign(partitions)
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    found: list[Any] = []
    for turn in range(6):
        sent = [producer.send("sessions", f"{turn}-{n}".encode(), partition=n) for n in range(turn, 48, 6)]
        for each in sent:
            each.get(10)
        found += read(consumer, 8 * turn + (7 if turn else 8) - len(found))  # one is paused
        consumer.resume(*partitions[turn : turn + 1])
        consumer.pause(*partitions[turn + 1 : turn + 2])
    consumer.resume(*partitions)
    found += read(consumer, 48 - len(found))
    assert sorted(m.value.decode() for m in found) == sorted(f"{n % 6}-{n}" for n in range(48))
    handlers = consumer._fetcher._session_handlers
    assert [each.next_metadata.session_id > 0 for each in handlers.values()] == [True]
    producer.close()
    consumer.close()


def static(address: str) -> None:
    """A static member is replaced by itself."""
    for _ in range(2):
        member = kafka.KafkaConsumer(
            "static",
            bootstrap_servers=address,
            group_id="static",
            group_instance_id="instance-1",
            enable_auto_commit=False,
        )
        for _ in range(300):
            member.poll(timeout_ms=50)
            if len(member.assignment()) == 2:
                break
        assert len(member.assignment()) == 2
        # The process of the first ends without a goodbye, as far as the group can see.


def table(address: str) -> None:
    """Tables are not written through this listener."""
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    try:
        producer.send("atable", b"x").get(10)
    except kafka.errors.PolicyViolationError:
        producer.close()
    else:
        raise AssertionError("a table was written")


def administration(address: str) -> None:
    """Topics and cluster."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([kafka.admin.NewTopic(name="made", num_partitions=2, replication_factor=1)])
    assert "made" in admin.list_topics()
    assert admin.describe_cluster()["cluster_id"] == "test"
    producer = kafka.KafkaProducer(bootstrap_servers=address)
    producer.send("made", b"x" * 1000, partition=1).get(10)
    producer.close()
    (node,) = admin.describe_log_dirs(["made"])
    (directory,) = node["log_dirs"]
    (topic,) = directory["topics"]
    sizes = {found["partition_index"]: found["partition_size"] for found in topic["partitions"]}
    assert sizes[0] < 1000 < sizes[1] < 2000
    admin.delete_topics(["made"])
    assert "made" not in admin.list_topics()
    admin.close()


def quotas(address: str) -> None:
    """Quotas: set, told, removed; and a producer that is told to wait."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    alter, describe = (
        kafka.protocol.admin.AlterClientQuotasRequest,
        kafka.protocol.admin.DescribeClientQuotasRequest,
    )
    entity = [("user", "ANONYMOUS"), ("client-id", None)]

    def ask(request: Any) -> Any:
        return admin._manager.run(admin._manager.send, request)

    def known() -> list[Any]:
        told = ask(describe(components=[("user", 0, "ANONYMOUS")], strict=False))
        assert told.error_code == 0, told
        return [(one.entity[1].entity_name, [(v.key, v.value) for v in one.values]) for one in told.entries]

    def change(*ops: Any, validate_only: bool = False) -> None:
        told = ask(alter(entries=[(entity, list(ops))], validate_only=validate_only))
        assert [one.error_code for one in told.entries] == [0], told

    change(("producer_byte_rate", 5000.0, False), validate_only=True)
    assert known() == []
    change(("producer_byte_rate", 5000.0, False), ("request_percentage", 12.5, False))
    assert known() == [(None, [("producer_byte_rate", 5000.0), ("request_percentage", 12.5)])]
    producer = kafka.KafkaProducer(bootstrap_servers=address, batch_size=20_000, linger_ms=0)
    began_s = time.monotonic()
    for _ in range(4):
        producer.send("timed", b"x" * 18_000).get(60)
    assert time.monotonic() - began_s > 0.5, "50 kB at once, then 5 kB a second"
    change(("producer_byte_rate", 0.0, True), ("request_percentage", 0.0, True))
    assert known() == []
    admin.close()
    producer.close()


def described(address: str) -> None:
    """What newer tools ask of a cluster, and moves to the nodes that there are."""
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics({"described": {"num_partitions": 5, "replication_factor": 1}})
    page = admin.describe_topic_partitions(["described"], response_partition_limit=3)
    assert [p["partition_index"] for p in page["topics"][0]["partitions"]] == [0, 1, 2]
    assert page["next_cursor"] == {"topic_name": "described", "partition_index": 3}
    rest = admin.describe_topic_partitions(["described"], cursor=page["next_cursor"])
    assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3, 4]
    assert rest["next_cursor"] is None
    [partition] = admin.describe_metadata_quorum()["topics"][0]["partitions"]
    assert (partition["leader_id"], partition["error"]) == (0, None)
    assert partition["current_voters"][0]["log_end_offset"] >= partition["high_watermark"] > 0
    resources = admin.list_config_resources()
    assert "described" in resources["topic"]
    assert resources["broker"] == ["0"]
    wanted = kafka.TopicPartition("described", 0)
    done = admin.alter_partition_reassignments({wanted: [0]})
    assert not any(done.values()), done
    assert admin.list_partition_reassignments() == {}
    admin.close()


def stored(address: str) -> None:
    """Batches that the leader packed anew (`test_stored_codecs`)."""
    for topic in ("stored-gzip", "stored-uncompressed"):
        consumer = kafka.KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        consumer.assign([kafka.TopicPartition(topic, 0)])
        assert [m.value for m in read(consumer, 500)] == [b"value %d " % n * 20 for n in range(500)]
        consumer.close()


def archived(address: str) -> None:
    """Records of which most left the log for the archive (`tests.archive.test_archived_kafka`)."""
    consumer = kafka.KafkaConsumer(
        "t", bootstrap_servers=address, auto_offset_reset="earliest", group_id="py"
    )
    found = read(consumer, 600)
    assert [(m.offset, m.value) for m in found] == [(n, b"%d" % n) for n in range(600)]
    assert found[7].headers == [("h", b"x"), ("none", None)]
    at = kafka.TopicPartition("t", 0)
    assert consumer.beginning_offsets([at]) == {at: 0}
    consumer.close()


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        plain,
        gzip,
        stored,
        archived,
        offsets,
        sessions,
        described,
        static,
        table,
        administration,
        quotas,
    )
}

if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](sys.argv[2])
