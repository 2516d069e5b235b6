"""Three Kafka libraries, unchanged, on a compacted topic: they skip what is gone, whatever they ask for."""

import asyncio
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from antiphon.errors import InvalidRecordError
from antiphon.node.compaction import extent_now
from antiphon.records.batch import read_header
from antiphon.records.builder import build_batch
from tests.kafka.served import Served, serve

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka import KafkaConsumer
    from kafka import TopicPartition as PyPartition

TOPIC = "newest"
KEYS = 7
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "4096", "min.cleanable.dirty.ratio": "0"}
Found = dict[bytes, tuple[int, bytes | None]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(Path(tmp_path_factory.mktemp("compacted"))) as made:
        made.create(TOPIC, config=CONFIG)
        fill(made)
        yield made


def fill(made: Served) -> None:
    """Many records of few keys, some of them in transactions that are aborted, and then a pass of compaction."""
    plain = Producer({"bootstrap.servers": made.address, "enable.idempotence": True, "linger.ms": 0})
    parted = Producer({"bootstrap.servers": made.address, "transactional.id": "t"})
    parted.init_transactions(10)
    for number in range(300):
        key = b"k%d" % (number % KEYS)
        plain.produce(TOPIC, None if number % 11 == 5 else b"plain %d" % number, key, 0)
        plain.flush(10)  # a batch each, so that whole ones go
        if number % 10 == 0:
            parted.begin_transaction()
            parted.produce(TOPIC, b"part %d" % number, key, 0)
            parted.flush(10)
            parted.commit_transaction(10) if number % 20 else parted.abort_transaction(10)
    assert plain.flush(10) == 0
    host = host_of(made)
    before = host.log.size_bytes
    made.call(lambda: made.node.care.cleaner.clean(host, extent_now(host)))
    assert host.log.size_bytes < before / 2
    assert made.node.metrics.compactions == 1


def host_of(made: Served) -> Any:
    return made.node.hosts[made.node.gateway.topic(TOPIC).shards[0].shard_id]


def wanted(made: Served) -> dict[bytes, bytes | None]:
    """The newest value of each key, by what was written, which nothing here has read back."""
    found: dict[bytes, bytes | None] = {}
    for number in range(300):
        key = b"k%d" % (number % KEYS)
        found[key] = None if number % 11 == 5 else b"plain %d" % number
        if number % 20 == 10:
            found[key] = b"part %d" % number
    return found


def values(found: Found) -> dict[bytes, bytes | None]:
    return {key: value for key, (_, value) in found.items()}


def by_confluent(address: str, start: int, isolation: str = "read_committed") -> tuple[Found, int]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "c",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, start)])
    found: Found = {}
    while True:
        message = consumer.poll(10)
        assert message is not None, "nothing came, and no end"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            break
        found[message.key()] = (message.offset(), message.value())
    end = consumer.position([TopicPartition(TOPIC, 0)])[0].offset
    consumer.close()
    return found, end


def by_kafka_python(address: str, start: int) -> tuple[Found, int]:
    consumer = KafkaConsumer(
        bootstrap_servers=address,
        isolation_level="read_committed",
        consumer_timeout_ms=3000,
        enable_auto_commit=False,
    )
    partition = PyPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek(partition, start)
    end = consumer.end_offsets([partition])[partition]
    found: Found = {}
    while consumer.position(partition) < end:
        before = consumer.position(partition)
        for message in consumer.poll(3000).get(partition, []):
            found[message.key] = (message.offset, message.value)
        assert consumer.position(partition) > before, "stands still"
    consumer.close()
    return found, end


def by_aiokafka(address: str, start: int) -> tuple[Found, int]:
    async def read() -> tuple[Found, int]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=address, isolation_level="read_committed", enable_auto_commit=False
        )
        await consumer.start()
        partition = AioPartition(TOPIC, 0)
        consumer.assign([partition])
        consumer.seek(partition, start)
        end = (await consumer.end_offsets([partition]))[partition]
        found: Found = {}
        while await consumer.position(partition) < end:
            before = await consumer.position(partition)
            for message in (await consumer.getmany(timeout_ms=3000)).get(partition, []):
                found[message.key] = (message.offset, message.value)
            assert await consumer.position(partition) > before, "stands still"
        await consumer.stop()
        return found, end

    return asyncio.run(read())


READERS = [by_confluent, by_kafka_python, by_aiokafka]


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_from_the_start_gets_the_newest_value_of_each_key(served: Served, reader: Any) -> None:
    found, end = reader(served.address, 0)
    assert values(found) == wanted(served)
    assert end == host_of(served).log.log_end


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_may_begin_where_nothing_is_left(served: Served, reader: Any) -> None:
    log = host_of(served).log
    headers = [header for header, _ in served.do(lambda: list(log.reader.batches_from(0)))]
    filler = next(one for one in headers if not one.record_count and one.next_offset - one.base_offset > 2)
    from_there, _ = reader(served.address, filler.base_offset + 1)
    from_the_start, _ = reader(served.address, 0)
    assert from_there == {key: one for key, one in from_the_start.items() if one[0] > filler.base_offset}


def test_who_reads_uncommitted_records_gets_no_aborted_ones_of_what_is_compacted(served: Served) -> None:
    log = host_of(served).log
    clean = log.compacting.clean.end
    found, _ = by_confluent(served.address, 0, "read_uncommitted")
    assert clean > log.log_end / 2
    committed, _ = by_confluent(served.address, 0)
    assert {key: one for key, one in found.items() if one[0] < clean}.items() <= committed.items()


def test_a_record_without_a_key_is_refused_by_every_way_in(served: Served) -> None:
    producer = Producer({"bootstrap.servers": served.address, "message.timeout.ms": 5000})
    errors: list[Any] = []
    producer.produce(TOPIC, b"no key", None, 0, on_delivery=lambda error, _: errors.append(error))
    producer.flush(10)
    assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD]
    end = host_of(served).log.log_end
    for codec in ("none", "gzip"):
        batch = bytes(build_batch([(b"k", b"", (), 1), (None, b"", (), 1)], compression=codec))
        with pytest.raises(InvalidRecordError, match="needs one"):
            served.call(partial(served.node.gateway.append, host_of(served).shard_id, batch))
    assert host_of(served).log.log_end == end


def test_a_repeated_batch_is_known_though_its_records_are_gone(served: Served) -> None:
    log = host_of(served).log
    emptied = [
        header
        for header, _ in served.do(lambda: list(log.reader.batches_from(0)))
        if not header.record_count and header.producer_id >= 0
    ]
    assert emptied
    last = log.producers.last_batch(emptied[-1].producer_id)
    assert last is not None
    again = build_batch(
        [(b"k", b"again", (), 1)],
        producer_id=emptied[-1].producer_id,
        producer_epoch=emptied[-1].producer_epoch,
        base_sequence=emptied[-1].base_sequence,
    )
    assert log.producers.check(read_header(again)) is not None


def test_a_topic_may_become_compacted_and_keeps_what_has_no_key(served: Served) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    served.create("turned", config={"segment.bytes": "4096"})
    producer = Producer({"bootstrap.servers": served.address})
    for number in range(100):
        producer.produce("turned", bytes(100), b"k" if number % 2 else None, 0)
        producer.flush(10)
    admin = AdminClient({"bootstrap.servers": served.address})
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "turned", incremental_configs=[entry])
    assert admin.incremental_alter_configs([resource])[resource].result(10) is None
    entry = ConfigEntry("writers", "multi", incremental_operation=AlterConfigOpType.SET)
    wrong = ConfigResource(ResourceType.TOPIC, "turned", incremental_configs=[entry])
    with pytest.raises(KafkaException):
        admin.incremental_alter_configs([wrong])[wrong].result(10)
    host = served.node.hosts[served.node.gateway.topic("turned").shards[0].shard_id]
    extent = served.do(lambda: extent_now(host))
    assert extent.dirty_bytes
    served.call(lambda: served.node.care.cleaner.clean(host, extent))
    kept = [header.record_count for header, _ in served.do(lambda: list(host.log.reader.batches_from(0)))]
    assert sum(kept) > 50
    assert len(kept) > sum(kept)
