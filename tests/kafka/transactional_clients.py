"""A transactional producer and a consumer of each of Kafka's clients for Python, with one face.

kafka-python leaves sockets and threads to the end of its process. Run as
`python -m tests.kafka.transactional_clients CLIENT ADDRESS`, this does everything with one client and exits 0 when all was
as asserted.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

WAIT_S = 30.0


class FencedError(Exception):
    """The client said that a newer producer has its transactional id, or that its transaction was ended."""


class Writer(Protocol):
    """A transactional producer, which has its producer id. What the broker refuses for good raises FencedError."""

    def begin(self) -> None: ...
    def send(self, topic: str, *values: str) -> None: ...
    def offsets(self, group: str, topic: str, offset: int) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Confluent:
    """librdkafka."""

    def __init__(self, address: str, name: str, timeout_ms: int = 60_000) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({
            "bootstrap.servers": address,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
        })  # fmt: skip
        self._producer.init_transactions(WAIT_S)

    def _do(self, call: Callable[..., Any], *what: Any) -> None:
        from confluent_kafka import KafkaException

        try:
            call(*what)
        except KafkaException as error:
            raise FencedError(str(error)) from error

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, *values: str) -> None:
        for value in values:
            self._do(self._producer.produce, topic, value.encode())
        self._do(self._producer.flush, WAIT_S)

    def offsets(self, group: str, topic: str, offset: int) -> None:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": group})
        metadata = consumer.consumer_group_metadata()
        at = [TopicPartition(topic, 0, offset)]
        self._do(self._producer.send_offsets_to_transaction, at, metadata, WAIT_S)
        consumer.close()

    def commit(self) -> None:
        self._do(self._producer.commit_transaction, WAIT_S)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction, WAIT_S)

    def close(self) -> None:
        self._producer.purge()

    @staticmethod
    def read(address: str, topic: str, count: int, isolation: str) -> list[str]:
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        reader = Consumer({
            "bootstrap.servers": address,
            "group.id": "readers",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        })  # fmt: skip
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[str] = []

        def more() -> bool:
            for message in reader.consume(500, timeout=0.2):
                assert not message.error(), message.error()
                found.append(message.value().decode())
            return len(found) >= count

        _until(more)
        time.sleep(0.3)
        more()
        reader.close()
        return found

    @staticmethod
    def committed(address: str, group: str, topic: str) -> int:
        from confluent_kafka import Consumer, TopicPartition

        reader = Consumer({"bootstrap.servers": address, "group.id": group})
        found = int(reader.committed([TopicPartition(topic, 0)], timeout=WAIT_S)[0].offset)
        reader.close()
        return -1 if found < 0 else found


class KafkaPython:
    """kafka-python."""

    def __init__(self, address: str, name: str, timeout_ms: int = 60_000) -> None:
        from tests.kafka.oracles import kafka_python

        self._kafka = kafka_python()
        self._producer = self._kafka.KafkaProducer(
            bootstrap_servers=address.split(","), transactional_id=name, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def _do(self, call: Callable[..., Any], *what: Any) -> None:
        from kafka.errors import KafkaError

        try:
            call(*what)
        except KafkaError as error:
            raise FencedError(str(error)) from error

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, *values: str) -> None:
        def sent() -> None:
            futures = [self._producer.send(topic, value.encode()) for value in values]
            for future in futures:
                future.get(WAIT_S)

        self._do(sent)

    def offsets(self, group: str, topic: str, offset: int) -> None:
        from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata

        at = {self._kafka.TopicPartition(topic, 0): OffsetAndMetadata(offset, "", -1)}
        metadata = ConsumerGroupMetadata(group, -1, "", None)
        self._do(self._producer.send_offsets_to_transaction, at, metadata)

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction)

    def close(self) -> None:
        self._producer.close(0)

    @staticmethod
    def read(address: str, topic: str, count: int, isolation: str) -> list[str]:
        from tests.kafka.oracles import kafka_python

        kafka = kafka_python()
        reader = kafka.KafkaConsumer(
            bootstrap_servers=address.split(","), isolation_level=isolation, enable_auto_commit=False
        )
        at = kafka.TopicPartition(topic, 0)
        reader.assign([at])
        reader.seek(at, 0)
        found: list[str] = []

        def more() -> bool:
            for records in reader.poll(timeout_ms=200).values():
                found.extend(record.value.decode() for record in records)
            return len(found) >= count

        _until(more)
        more()
        reader.close()
        return found

    @staticmethod
    def committed(address: str, group: str, topic: str) -> int:
        from tests.kafka.oracles import kafka_python

        kafka = kafka_python()
        reader = kafka.KafkaConsumer(
            bootstrap_servers=address.split(","), group_id=group, isolation_level="read_committed"
        )
        found = reader.committed(kafka.TopicPartition(topic, 0))
        reader.close()
        return -1 if found is None else int(found)


class Aiokafka:
    """aiokafka, on a loop of its own that runs while it is asked."""

    def __init__(self, address: str, name: str, timeout_ms: int = 60_000) -> None:
        from aiokafka import AIOKafkaProducer

        self._loop = asyncio.new_event_loop()

        async def made() -> Any:
            producer = AIOKafkaProducer(
                bootstrap_servers=address, transactional_id=name, transaction_timeout_ms=timeout_ms
            )
            await producer.start()
            return producer

        self._producer = self._loop.run_until_complete(made())

    def _do(self, call: Callable[..., Any], *what: Any) -> Any:
        from aiokafka.errors import KafkaError

        async def bounded() -> Any:
            return await asyncio.wait_for(call(*what), WAIT_S)

        try:
            return self._loop.run_until_complete(bounded())
        except KafkaError as error:
            raise FencedError(str(error)) from error

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, topic: str, *values: str) -> None:
        async def sent() -> None:
            for future in [await self._producer.send(topic, value.encode()) for value in values]:
                await future

        self._do(sent)

    def offsets(self, group: str, topic: str, offset: int) -> None:
        from aiokafka import TopicPartition

        self._do(self._producer.send_offsets_to_transaction, {TopicPartition(topic, 0): offset}, group)

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        self._do(self._producer.abort_transaction)

    def close(self) -> None:
        async def closed() -> None:
            try:
                await asyncio.wait_for(self._producer.stop(), 2)
            except Exception as error:  # noqa: BLE001 (it may be fenced; nothing depends on how it ends)
                print(f"closed: {error}", file=sys.stderr)

        self._loop.run_until_complete(closed())

    @staticmethod
    def read(address: str, topic: str, count: int, isolation: str) -> list[str]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def work() -> list[str]:
            reader = AIOKafkaConsumer(bootstrap_servers=address, isolation_level=isolation)
            await reader.start()
            reader.assign([TopicPartition(topic, 0)])
            await reader.seek_to_beginning()
            found: list[str] = []
            deadline_s = time.monotonic() + WAIT_S
            while len(found) < count and time.monotonic() < deadline_s:
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(record.value.decode() for record in records)
            for records in (await reader.getmany(timeout_ms=300)).values():
                found.extend(record.value.decode() for record in records)
            await reader.stop()
            return found

        return asyncio.run(work())

    @staticmethod
    def committed(address: str, group: str, topic: str) -> int:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        async def work() -> int:
            reader = AIOKafkaConsumer(bootstrap_servers=address, group_id=group)
            await reader.start()
            found = await reader.committed(TopicPartition(topic, 0))
            await reader.stop()
            return -1 if found is None else int(found)

        return asyncio.run(work())


CLIENTS: dict[str, Any] = {"confluent": Confluent, "kafka-python": KafkaPython, "aiokafka": Aiokafka}


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, "too late"


def _fails(call: Callable[..., Any], *what: Any) -> None:
    try:
        call(*what)
    except FencedError:
        return
    raise AssertionError("nothing was refused")


def everything(name: str, address: str) -> None:
    """Commit, abort, offsets with the transaction, a zombie, a time-out; read by each client."""
    client = CLIENTS[name]
    topic, id_ = f"of-{name}", f"tx-{name}"
    writer = client(address, id_)
    writer.begin()
    writer.send(topic, "a", "b")
    writer.commit()
    writer.begin()
    writer.send(topic, "aborted")
    writer.abort()
    writer.begin()
    writer.send(topic, "c")
    writer.offsets(f"g-{name}", topic, 3)
    writer.commit()
    writer.begin()
    writer.offsets(f"g-{name}", topic, 9)
    writer.abort()
    assert client.committed(address, f"g-{name}", topic) == 3

    # The next producer of the id fences this one, whose transaction is aborted.
    writer.begin()
    writer.send(topic, "zombie's")
    newer = client(address, id_)

    def go_on() -> None:
        writer.send(topic, "late")
        writer.commit()

    _fails(go_on)
    newer.begin()
    newer.send(topic, "d")
    newer.commit()
    newer.close()

    slow = client(address, f"slow-{name}", 2_000)
    slow.begin()
    slow.send(topic, "too slow")
    time.sleep(4)
    _fails(slow.commit)

    for reader, reads in CLIENTS.items():
        found = reads.read(address, topic, 4, "read_committed")
        assert found == ["a", "b", "c", "d"], f"{reader}: {found}"
        found = reads.read(address, topic, 7, "read_uncommitted")
        assert found == ["a", "b", "aborted", "c", "zombie's", "d", "too slow"], f"{reader}: {found}"


if __name__ == "__main__":
    everything(sys.argv[1], sys.argv[2])
