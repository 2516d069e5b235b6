"""confluent-kafka, so librdkafka."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.kafka.kills.faces import (
    CALL_S,
    READ_COMMITTED,
    SESSION_MS,
    TRANSACTION_MS,
    AbortableError,
    Delivered,
    LostProducerError,
    NotCommittedError,
    Place,
)
from tests.kafka.kills.ledger import PARTITIONS, Record

# An application that commits polls on after these: the group or its coordinator changes.
COMMIT_LATER = frozenset({
    KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID, KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.STALE_MEMBER_EPOCH, KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT,
    KafkaError._WAIT_COORD, KafkaError._TIMED_OUT, KafkaError._ASSIGNMENT_LOST,
})  # fmt: skip


def common(servers: str) -> dict[str, Any]:
    """Settings of every client: one tries a node that was killed again after a second, not ten."""
    return {"bootstrap.servers": servers, "reconnect.backoff.max.ms": 1_000, "log_level": 2}


class Idempotent:
    """See the protocol."""

    def __init__(self, servers: str) -> None:
        self._producer = Producer(
            {**common(servers), "enable.idempotence": True, "acks": "all", "delivery.timeout.ms": 120_000}
        )

    def send(self, topic: str, records: Sequence[tuple[str, str]], done: Delivered) -> None:
        def delivered(error: Any, message: Any) -> None:
            done(message.partition(), message.offset(), "" if error is None else error.name())

        for key, value in records:
            self._producer.produce(topic, value, key, on_delivery=delivered)
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.flush(CALL_S)


class Transactional:
    """See the protocol."""

    def __init__(self, servers: str, name: str, told: Callable[[str], None]) -> None:
        self._told = told
        self._producer = Producer({
            **common(servers),
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "delivery.timeout.ms": TRANSACTION_MS,
            "linger.ms": 0,
        })  # fmt: skip
        self._do(partial(self._producer.init_transactions, CALL_S))

    def _do(self, call: Callable[[], Any]) -> None:
        """librdkafka says of each error what it takes."""
        end_s = time.monotonic() + CALL_S
        while True:
            try:
                call()
            except KafkaException as error:
                found = error.args[0]
                self._told(f"{found.name()}")
                if found.txn_requires_abort():
                    raise AbortableError(str(found)) from error
                if not found.retriable() or time.monotonic() > end_s:
                    raise LostProducerError(str(found)) from error
            else:
                return

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, records: Sequence[tuple[str, int, str]]) -> None:
        failed: list[str] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error.name())

        for topic, partition, value in records:
            self._do(
                partial(self._producer.produce, topic, value, partition=partition, on_delivery=delivered)
            )
        self._producer.flush(CALL_S)
        if failed:
            self._told(failed[0])
            raise AbortableError(failed[0])

    def offsets(self, member: "Member", group: str, offsets: Mapping[Place, int]) -> None:
        at = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        metadata = member.consumer.consumer_group_metadata()
        self._do(lambda: self._producer.send_offsets_to_transaction(at, metadata, CALL_S))

    def commit(self) -> None:
        self._do(lambda: self._producer.commit_transaction(CALL_S))

    def abort(self) -> None:
        self._do(lambda: self._producer.abort_transaction(CALL_S))

    def abandon(self) -> None:
        self._producer.purge()


class Member:
    """See the protocol."""

    def __init__(
        self, servers: str, group: str, topics: Sequence[str], told: Callable[[str], None], *, classic: bool
    ) -> None:
        self._told = told
        self.assignments = 0
        protocol = (
            {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": 500}
            if classic
            else {"group.protocol": "consumer"}
        )
        self.consumer = Consumer({
            **common(servers),
            **protocol,
            "group.id": group,
            "isolation.level": READ_COMMITTED,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })  # fmt: skip
        self.consumer.subscribe(list(topics), on_assign=self._assigned)

    def _assigned(self, _consumer: Any, _places: Any) -> None:
        self.assignments += 1

    def poll(self) -> list[Record]:
        found = []
        for message in self.consumer.consume(200, 0.2):
            error = message.error()
            if error is None:
                found.append(record_of(message))
            elif error.fatal():
                raise KafkaException(error)
            else:
                self._told(error.name())
        return found

    def commit(self, offsets: Mapping[Place, int]) -> None:
        try:
            done = self.consumer.commit(
                offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()],
                asynchronous=False,
            )
            for place in done or ():
                if place.error is not None:
                    raise KafkaException(place.error)
        except KafkaException as error:
            found = error.args[0]
            if found.code() not in COMMIT_LATER:
                raise
            raise NotCommittedError(found.name()) from error

    def committed(self, places: Sequence[Place]) -> dict[Place, int]:
        found = self.consumer.committed([TopicPartition(*place) for place in places], timeout=CALL_S)
        return {(place.topic, place.partition): max(place.offset, 0) for place in found}

    def seek(self, place: Place, offset: int) -> None:
        self.consumer.seek(TopicPartition(*place, offset))

    def close(self) -> None:
        self.consumer.close()


def record_of(message: Any) -> Record:
    """A record of ours."""
    return Record(message.topic(), message.partition(), message.offset(), message.value().decode())


class Librdkafka:
    """Makes all of them. The transformer is a member of the classic protocol, the others of the new one."""

    stable = True

    def __init__(self, told: Callable[[str], None]) -> None:
        self.told = told

    def idempotent(self, servers: str) -> Idempotent:
        return Idempotent(servers)

    def transactional(self, servers: str, name: str) -> Transactional:
        return Transactional(servers, name, self.told)

    def member(self, servers: str, group: str, topics: Sequence[str], *, transforms: bool) -> Member:
        return Member(servers, group, topics, self.told, classic=transforms)

    def read(self, servers: str, topics: Sequence[str], isolation: str) -> list[Record]:
        reader = Consumer({
            **common(servers),
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        })  # fmt: skip
        places = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in range(PARTITIONS)
        ]
        reader.assign(places)
        found: list[Record] = []
        left = {(place.topic, place.partition) for place in places}
        end_s = time.monotonic() + CALL_S
        while left and time.monotonic() < end_s:
            for message in reader.consume(1_000, 0.2):
                error = message.error()
                if error is None:
                    found.append(record_of(message))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
        reader.close()
        if left:
            raise TimeoutError(f"not read to the end: {sorted(left)}")
        return found
