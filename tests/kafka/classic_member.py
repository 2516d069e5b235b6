"""A member of a classic consumer group, by one of three libraries, as a program: it says in lines what happens to it.

Run as `python -m tests.kafka.classic_member LIBRARY SERVERS TOPIC GROUP`. It writes `assigned N` and `revoked N` when its
library calls, `owns P ...` and `committed` about twice a second, `failed ...` where a commit is refused; and ends with its
standard input.
"""

import asyncio
import sys
import threading
from typing import Any

SESSION_MS = 6_000
BEAT_MS = 300
PAUSE_S = 0.2


def say(*words: object) -> None:
    print(*words, flush=True)


def with_confluent(servers: str, topic: str, group: str, ended: threading.Event) -> None:
    """librdkafka."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    member = Consumer({
        "bootstrap.servers": servers,
        "group.id": group,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": BEAT_MS,
        "retry.backoff.ms": 50,
        "enable.auto.commit": False,
    })  # fmt: skip
    member.subscribe(
        [topic],
        on_assign=lambda _, places: say("assigned", len(places)),
        on_revoke=lambda _, places: say("revoked", len(places)),
        on_lost=lambda _, places: say("revoked", len(places)),
    )
    at = 0
    while not ended.is_set():
        member.poll(PAUSE_S)
        at += 1
        owned = [place.partition for place in member.assignment()]
        say("owns", *owned)
        if owned:
            try:
                member.commit(offsets=[TopicPartition(topic, one, at) for one in owned], asynchronous=False)
                say("committed")
            except KafkaException as error:
                say("failed", error)
    member.close()


def with_kafka_python(servers: str, topic: str, group: str, ended: threading.Event) -> None:
    """kafka-python."""
    from tests.kafka.oracles import kafka_python

    kafka = kafka_python()
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.structs import OffsetAndMetadata

    class Told(kafka.ConsumerRebalanceListener):  # type: ignore[name-defined, misc]
        def on_partitions_assigned(self, assigned: Any) -> None:
            say("assigned", len(assigned))

        def on_partitions_revoked(self, revoked: Any) -> None:
            say("revoked", len(revoked))

    member = kafka.KafkaConsumer(
        bootstrap_servers=servers.split(","),
        group_id=group,
        partition_assignment_strategy=[RangePartitionAssignor],
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=BEAT_MS,
        retry_backoff_ms=50,
        enable_auto_commit=False,
    )
    member.subscribe([topic], listener=Told())
    at = 0
    while not ended.is_set():
        member.poll(timeout_ms=int(1000 * PAUSE_S))
        at += 1
        owned = [place.partition for place in member.assignment()]
        say("owns", *owned)
        if owned:
            try:
                member.commit(
                    {kafka.TopicPartition(topic, one): OffsetAndMetadata(at, "", -1) for one in owned}
                )
                say("committed")
            except Exception as error:  # noqa: BLE001 - each library has errors of its own
                say("failed", repr(error))
    member.close()


def with_aiokafka(servers: str, topic: str, group: str, ended: threading.Event) -> None:
    """aiokafka."""
    import aiokafka
    from aiokafka.coordinator.assignors.range import RangePartitionAssignor
    from aiokafka.errors import KafkaError

    class Told(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_assigned(self, assigned: Any) -> None:
            say("assigned", len(assigned))

        async def on_partitions_revoked(self, revoked: Any) -> None:
            say("revoked", len(revoked))

    async def live() -> None:
        member = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers,
            group_id=group,
            partition_assignment_strategy=[RangePartitionAssignor],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=BEAT_MS,
            retry_backoff_ms=50,
            enable_auto_commit=False,
        )
        member.subscribe([topic], listener=Told())
        await member.start()
        at = 0
        while not ended.is_set():
            await member.getmany(timeout_ms=int(1000 * PAUSE_S))
            at += 1
            owned = [place.partition for place in member.assignment()]
            say("owns", *owned)
            if owned:
                try:
                    await member.commit({aiokafka.TopicPartition(topic, one): at for one in owned})
                    say("committed")
                except KafkaError as error:
                    say("failed", repr(error))
        await member.stop()

    asyncio.run(live())


LIBRARIES = {
    "confluent-kafka": with_confluent,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
}


def main(library: str, servers: str, topic: str, group: str) -> None:
    ended = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    LIBRARIES[library](servers, topic, group, ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
