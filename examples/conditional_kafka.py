"""Conditional appends (KIP-27) with three Kafka libraries: a turn in a game is written only if nobody else moved first.

antiphon up --nodes 3          # in another terminal
python examples/conditional_kafka.py 127.0.0.1:9092

The topic has `expected.offset.header=true`. So a record with the header `antiphon.expected.offset` is written at exactly
that offset, or it is refused with INVALID_RECORD and has no effect.
"""

import asyncio
import sys
import uuid

import aiokafka
import confluent_kafka
from aiokafka.errors import UnknownError
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.errors import KafkaError

import kafka

INVALID_RECORD = 87
HEADER = "antiphon.expected.offset"


def with_confluent_kafka(servers: str, topic: str) -> list[str]:
    """librdkafka tells the outcome to a callback."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "nobody"})
    _, end = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=10)
    consumer.close()
    told = []

    def outcome(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            told.append(f"written at {message.offset()}")
        elif error.code() == INVALID_RECORD:
            told.append("somebody else was first")
        else:
            raise confluent_kafka.KafkaException(error)

    for move in (b"e2-e4", b"d2-d4"):  # both want the same offset
        producer.produce(topic, move, headers={HEADER: str(end)}, on_delivery=outcome)
        producer.flush(10)  # one append in flight: what follows one that is refused is refused, too
    return told


def with_kafka_python(servers: str, topic: str) -> list[str]:
    """kafka-python gives a future."""
    producer = kafka.KafkaProducer(bootstrap_servers=servers, acks="all")
    consumer = kafka.KafkaConsumer(bootstrap_servers=servers)
    partition = kafka.TopicPartition(topic, 0)
    end = consumer.end_offsets([partition])[partition]
    consumer.close()
    told = []
    for move in (b"e7-e5", b"c7-c5"):
        try:
            done = producer.send(topic, move, headers=[(HEADER, b"%d" % end)], partition=0).get(10)
            told.append(f"written at {done.offset}")
        except KafkaError as error:
            if getattr(error, "errno", None) != INVALID_RECORD:
                raise
            told.append("somebody else was first")
    producer.close()
    return told


async def with_aiokafka(servers: str, topic: str) -> list[str]:
    """aiokafka gives an awaitable."""
    partition = aiokafka.TopicPartition(topic, 0)
    told = []
    async with (
        aiokafka.AIOKafkaConsumer(bootstrap_servers=servers) as consumer,
        aiokafka.AIOKafkaProducer(bootstrap_servers=servers, acks="all") as producer,
    ):
        end = (await consumer.end_offsets([partition]))[partition]
        for move in (b"g1-f3", b"b1-c3"):
            try:
                done = await producer.send_and_wait(topic, move, headers=[(HEADER, b"%d" % end)], partition=0)
                told.append(f"written at {done.offset}")
            except UnknownError:  # aiokafka has no name for INVALID_RECORD
                told.append("somebody else was first")
    return told


def main(servers: str) -> None:
    """Run with all three."""
    topic = f"game-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": servers})
    config = {"expected.offset.header": "true"}
    admin.create_topics([NewTopic(topic, num_partitions=1, config=config)])[topic].result(10)
    print("confluent-kafka:", *with_confluent_kafka(servers, topic), sep="\n  ")
    print("kafka-python:", *with_kafka_python(servers, topic), sep="\n  ")
    print("aiokafka:", *asyncio.run(with_aiokafka(servers, topic)), sep="\n  ")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092")
