"""kafka-python."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

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
from tests.kafka.oracles import kafka_python

kafka = kafka_python()
errors: Any = kafka.errors
PRODUCER_LOST = (
    errors.ProducerFencedError, errors.InvalidProducerEpochError, errors.InvalidProducerIdMappingError,
    errors.OutOfOrderSequenceNumberError, errors.InvalidTxnStateError, errors.IllegalStateError,
)  # fmt: skip
# A producer that asks a coordinator keeps on at its node, though that is gone, for `request_timeout_ms` (30 s by default).
PATIENCE: dict[str, Any] = {"request_timeout_ms": 2_000, "reconnect_backoff_max_ms": 1_000}
HANGS_S: Final = 4.0
# An application that commits polls on after these: the group or its coordinator changes.
COMMIT_LATER = (
    errors.CommitFailedError, errors.RebalanceInProgressError, errors.IllegalGenerationError,
    errors.UnknownMemberIdError, errors.RetriableError,
)  # fmt: skip


class Idempotent:
    """See the protocol."""

    def __init__(self, servers: str) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers.split(","), acks="all", enable_idempotence=True, **PATIENCE
        )

    def send(self, topic: str, records: Sequence[tuple[str, str]], done: Delivered) -> None:
        for key, value in records:
            sent = self._producer.send(topic, value.encode(), key.encode())
            sent.add_callback(lambda told: done(told.partition, told.offset, ""))
            sent.add_errback(lambda error: done(-1, -1, type(error).__name__))

    def close(self) -> None:
        self._producer.flush(CALL_S)


class Transactional:
    """See the protocol."""

    def __init__(self, servers: str, name: str, told: Callable[[str], None]) -> None:
        self._told = told
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=servers.split(","),
            transactional_id=name,
            transaction_timeout_ms=TRANSACTION_MS,
            **PATIENCE,
        )
        self._do(self._producer.init_transactions)

    def _do(self, call: Callable[..., Any], *what: Any) -> None:
        """As with Java's client: some errors are the producer's end, after the others the transaction is aborted."""
        try:
            bounded(call, *what)
        except TimeoutError as error:
            self._told("hangs")
            raise LostProducerError("kafka-python hangs") from error
        except PRODUCER_LOST as error:
            self._told(type(error).__name__)
            raise LostProducerError(repr(error)) from error
        except errors.KafkaError as error:
            self._told(type(error).__name__)
            raise AbortableError(repr(error)) from error

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, records: Sequence[tuple[str, int, str]]) -> None:
        def sent() -> None:
            futures = [
                self._producer.send(topic, value.encode(), partition=partition)
                for topic, partition, value in records
            ]
            for future in futures:
                future.get(CALL_S)

        self._do(sent)

    def offsets(self, member: "Member", _group: str, offsets: Mapping[Place, int]) -> None:
        self._do(
            self._producer.send_offsets_to_transaction, at_offsets(offsets), member.consumer.group_metadata()
        )

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        try:
            self._do(self._producer.abort_transaction)
        except AbortableError as error:
            raise LostProducerError(str(error)) from error

    def abandon(self) -> None:
        threading.Thread(target=self._producer.close, args=(0,), daemon=True).start()


def bounded(call: Callable[..., Any], *what: Any) -> None:
    """Make a call that has no time limit of its own; raises TimeoutError.

    A producer forgets what it wanted to ask its coordinator if no connection could be made to that (3.0.12, the exception's
    path in `Sender._maybe_send_pending_request`). Whoever waits for the answer waits for ever.
    """
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call(*what)
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    if thread.is_alive():
        raise TimeoutError
    if failed:
        raise failed[0]


def at_offsets(offsets: Mapping[Place, int]) -> dict[Any, Any]:
    """As the library takes them."""
    made = kafka.structs.OffsetAndMetadata
    return {kafka.TopicPartition(*place): made(offset, "", -1) for place, offset in offsets.items()}


class Member:
    """See the protocol."""

    def __init__(self, servers: str, group: str, topics: Sequence[str]) -> None:
        self.assignments = 0
        self.consumer = kafka.KafkaConsumer(
            bootstrap_servers=servers.split(","),
            group_id=group,
            isolation_level=READ_COMMITTED,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=500,
        )
        member = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc, name-defined]
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.assignments += 1

        self.consumer.subscribe(list(topics), listener=Listener())

    def poll(self) -> list[Record]:
        found = self.consumer.poll(timeout_ms=200, max_records=200)
        return [record_of(record) for records in found.values() for record in records]

    def commit(self, offsets: Mapping[Place, int]) -> None:
        try:
            self.consumer.commit(at_offsets(offsets))
        except COMMIT_LATER as error:
            raise NotCommittedError(type(error).__name__) from error

    def committed(self, places: Sequence[Place]) -> dict[Place, int]:
        return {place: self.consumer.committed(kafka.TopicPartition(*place)) or 0 for place in places}

    def seek(self, place: Place, offset: int) -> None:
        self.consumer.seek(kafka.TopicPartition(*place), offset)

    def close(self) -> None:
        self.consumer.close()


def record_of(record: Any) -> Record:
    """A record of ours."""
    return Record(record.topic, record.partition, record.offset, record.value.decode())


class KafkaPython:
    """Makes all of them."""

    stable = True

    def __init__(self, told: Callable[[str], None]) -> None:
        self.told = told

    def idempotent(self, servers: str) -> Idempotent:
        return Idempotent(servers)

    def transactional(self, servers: str, name: str) -> Transactional:
        return Transactional(servers, name, self.told)

    def member(self, servers: str, group: str, topics: Sequence[str], *, transforms: bool) -> Member:
        del transforms
        return Member(servers, group, topics)

    def read(self, servers: str, topics: Sequence[str], isolation: str) -> list[Record]:
        reader = kafka.KafkaConsumer(
            bootstrap_servers=servers.split(","), isolation_level=isolation, enable_auto_commit=False
        )
        places = [
            kafka.TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)
        ]
        reader.assign(places)
        reader.seek_to_beginning()
        ends = reader.end_offsets(places)
        found: list[Record] = []
        end_s = time.monotonic() + CALL_S
        while any(reader.position(place) < ends[place] for place in places):
            if time.monotonic() > end_s:
                raise TimeoutError(f"not read to the end: {ends}")
            for records in reader.poll(timeout_ms=200, max_records=2_000).values():
                found.extend(record_of(record) for record in records)
        reader.close()
        return found
