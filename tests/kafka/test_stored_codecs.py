"""compression.type with real clients: they send what they like, and read what the topic's codec makes of it."""

import subprocess
import sys
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

import antiphon
from antiphon.records.batch import CODEC_NAMES, iter_batches, validate_batch
from tests.kafka.served import Served
from tests.kafka.test_kafka_python import ROOT

VALUES = [b"value %d " % n * 20 for n in range(500)]


def make(served: Served, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": served.address})
    new = NewTopic(topic, 1, 1, config={name.replace("_", "."): value for name, value in config.items()})
    for future in admin.create_topics([new]).values():
        future.result(10)


def write(served: Served, topic: str, codec: str, **settings: Any) -> None:
    writer = Producer(
        {
            "bootstrap.servers": served.address,
            "compression.type": codec,
            "enable.idempotence": True,
            "linger.ms": 20,
            **settings,
        }
    )
    failed: list[Any] = []
    for value in VALUES:
        writer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert writer.flush(20) == 0
    assert failed == []


def read(served: Served, topic: str) -> list[bytes]:
    reader = Consumer({"bootstrap.servers": served.address, "group.id": "r", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[bytes] = []
    for _ in range(100):
        found += [bytes(message.value() or b"") for message in reader.consume(len(VALUES), 0.2)]
        if len(found) >= len(VALUES):
            break
    reader.close()
    return found


def read_natively(served: Served, topic: str) -> list[bytes]:
    servers = served.do(lambda: served.node.meta().native)
    with antiphon.connect(servers) as db:
        rows = db.topic(topic).read(0, 0, follow=False)
        return [bytes(row.value or b"") for row in rows]


def codecs(served: Served, topic: str) -> set[str]:
    """Of the batches that are stored."""

    async def fetched() -> set[str]:
        gateway = served.node.gateway
        shard = gateway.topic(topic).shards[0].shard_id
        found, at = set(), 0
        while batches := (await gateway.fetch(shard, at, 1 << 22, "committed")).batches:
            for buffer in batches:
                for header, data in iter_batches(buffer):
                    validate_batch(data)
                    found.add(CODEC_NAMES[header.codec])
                    at = header.next_offset
        return found

    return served.call(fetched)


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", ["none", "gzip", "lz4"])
def test_confluent_writes_with_one_codec_and_reads_another(served: Served, sent: str, wanted: str) -> None:
    topic = f"{sent}-to-{wanted}"
    make(served, topic, compression_type=wanted)
    write(served, topic, sent)
    assert codecs(served, topic) == {"none" if wanted == "uncompressed" else wanted}
    assert read(served, topic) == VALUES
    assert read_natively(served, topic) == VALUES


def test_kafka_python_reads_what_was_packed_anew(served: Served) -> None:
    """It has these codecs without further libraries."""
    for wanted in ("gzip", "uncompressed"):
        make(served, f"stored-{wanted}", compression_type=wanted)
        write(served, f"stored-{wanted}", "zstd")
    ended = subprocess.run(
        (sys.executable, "-m", "tests.kafka.kafka_python_scenarios", "stored", served.address),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


def described(served: Served, topic: str) -> dict[str, ConfigEntry]:
    admin = AdminClient({"bootstrap.servers": served.address})
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    found: dict[str, ConfigEntry] = future.result(10)
    return found


def alter(served: Served, topic: str, **settings: str | None) -> None:
    admin = AdminClient({"bootstrap.servers": served.address})
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


def test_the_setting_is_described_and_altered(served: Served) -> None:
    make(served, "altered")
    found = described(served, "altered")
    names = ["compression.type", *(f"compression.{codec}.level" for codec in ("gzip", "lz4", "zstd"))]
    assert [(found[name].value, found[name].is_default) for name in names] == [
        ("producer", True),
        ("-1", True),
        ("9", True),
        ("3", True),
    ]
    write(served, "altered", "gzip")
    alter(served, "altered", compression_type="zstd", compression_zstd_level="7")
    found = described(served, "altered")
    assert (found["compression.type"].value, found["compression.zstd.level"].value) == ("zstd", "7")
    write(served, "altered", "gzip")
    assert codecs(served, "altered") == {"gzip", "zstd"}
    alter(served, "altered", compression_type=None)
    assert described(served, "altered")["compression.type"].value == "producer"
