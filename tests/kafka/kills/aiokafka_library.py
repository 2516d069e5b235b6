"""aiokafka, on a loop in a thread of its own."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiokafka
from aiokafka import errors

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

PRODUCER_LOST = (errors.ProducerFenced, errors.InvalidTxnState, errors.OutOfOrderSequenceNumber)


class Loop:
    """Runs coroutines for threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, call: Callable[..., Awaitable[Any]], *what: Any) -> Any:
        async def bounded() -> Any:
            return await asyncio.wait_for(call(*what), CALL_S)

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result(CALL_S + 5)


class Idempotent:
    """See the protocol."""

    def __init__(self, loop: Loop, servers: str) -> None:
        self._loop = loop

        async def made() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers, acks="all", enable_idempotence=True
            )
            await producer.start()
            return producer

        self._producer = loop(made)

    def send(self, topic: str, records: Sequence[tuple[str, str]], done: Delivered) -> None:
        def delivered(future: Any) -> None:
            error = future.exception()
            if error is not None:
                done(-1, -1, type(error).__name__)
            else:
                done(future.result().partition, future.result().offset, "")

        async def sent() -> None:
            for key, value in records:
                future = await self._producer.send(topic, value.encode(), key.encode())
                future.add_done_callback(delivered)

        self._loop(sent)

    def close(self) -> None:
        self._loop(self._producer.stop)


class Transactional:
    """See the protocol."""

    def __init__(self, loop: Loop, servers: str, name: str, told: Callable[[str], None]) -> None:
        self._told = told
        self._loop = loop

        async def made() -> Any:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=servers, transactional_id=name, transaction_timeout_ms=TRANSACTION_MS
            )
            await producer.start()
            return producer

        self._producer = loop(made)

    def _do(self, call: Callable[..., Awaitable[Any]], *what: Any) -> None:
        try:
            self._loop(call, *what)
        except PRODUCER_LOST as error:
            self._told(type(error).__name__)
            raise LostProducerError(repr(error)) from error
        except (errors.KafkaError, TimeoutError) as error:
            self._told(type(error).__name__)
            raise AbortableError(repr(error)) from error

    def begin(self) -> None:
        self._do(self._producer.begin_transaction)

    def send(self, records: Sequence[tuple[str, int, str]]) -> None:
        async def sent() -> None:
            futures = [
                await self._producer.send(topic, value.encode(), partition=partition)
                for topic, partition, value in records
            ]
            await asyncio.gather(*futures)

        self._do(sent)

    def offsets(self, _member: Any, group: str, offsets: Mapping[Place, int]) -> None:
        at = {aiokafka.TopicPartition(*place): offset for place, offset in offsets.items()}
        self._do(self._producer.send_offsets_to_transaction, at, group)

    def commit(self) -> None:
        self._do(self._producer.commit_transaction)

    def abort(self) -> None:
        try:
            self._do(self._producer.abort_transaction)
        except AbortableError as error:
            raise LostProducerError(str(error)) from error

    def abandon(self) -> None:
        """It cannot be closed without an end of its transaction; nobody asks it for anything any more."""


class Member:
    """See the protocol."""

    def __init__(self, loop: Loop, servers: str, group: str, topics: Sequence[str]) -> None:
        self._loop = loop
        self.assignments = 0
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None:
                pass

            def on_partitions_assigned(self, assigned: Any) -> None:
                member.assignments += 1

        async def made() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=servers,
                group_id=group,
                isolation_level=READ_COMMITTED,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                session_timeout_ms=SESSION_MS,
                heartbeat_interval_ms=500,
            )
            consumer.subscribe(list(topics), listener=Listener())
            await consumer.start()
            return consumer

        self._consumer = loop(made)

    def poll(self) -> list[Record]:
        async def polled() -> Any:
            return await self._consumer.getmany(timeout_ms=200, max_records=200)

        return [record_of(record) for records in self._loop(polled).values() for record in records]

    def commit(self, offsets: Mapping[Place, int]) -> None:
        at = {aiokafka.TopicPartition(*place): offset for place, offset in offsets.items()}
        try:
            self._loop(self._consumer.commit, at)
        except (
            errors.CommitFailedError,
            errors.IllegalStateError,
        ) as error:  # the group changed; it has not the partition
            raise NotCommittedError(type(error).__name__) from error
        except errors.KafkaError as error:
            if not error.retriable:
                raise
            raise NotCommittedError(type(error).__name__) from error

    def committed(self, places: Sequence[Place]) -> dict[Place, int]:
        return {
            place: self._loop(self._consumer.committed, aiokafka.TopicPartition(*place)) or 0
            for place in places
        }

    def seek(self, place: Place, offset: int) -> None:
        async def sought() -> None:
            with contextlib.suppress(errors.IllegalStateError):  # it was taken away, and is given anew
                self._consumer.seek(aiokafka.TopicPartition(*place), offset)

        self._loop(sought)

    def close(self) -> None:
        self._loop(self._consumer.stop)


def record_of(record: Any) -> Record:
    """A record of ours."""
    return Record(record.topic, record.partition, record.offset, record.value.decode())


class Aiokafka:
    """Makes all of them. Its consumers do not ask for stable offsets, and its producers tell no generation of a group."""

    stable = False

    def __init__(self, told: Callable[[str], None]) -> None:
        self.told = told
        self._loop = Loop()

    def idempotent(self, servers: str) -> Idempotent:
        return Idempotent(self._loop, servers)

    def transactional(self, servers: str, name: str) -> Transactional:
        return Transactional(self._loop, servers, name, self.told)

    def member(self, servers: str, group: str, topics: Sequence[str], *, transforms: bool) -> Member:
        del transforms
        return Member(self._loop, servers, group, topics)

    def read(self, servers: str, topics: Sequence[str], isolation: str) -> list[Record]:
        async def done() -> list[Record]:
            reader = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=servers, isolation_level=isolation, enable_auto_commit=False
            )
            await reader.start()
            places = [
                aiokafka.TopicPartition(topic, partition)
                for topic in topics
                for partition in range(PARTITIONS)
            ]
            reader.assign(places)
            await reader.seek_to_beginning()
            ends = await reader.end_offsets(places)
            found: list[Record] = []
            end_s = time.monotonic() + CALL_S - 5
            while [place for place in places if await reader.position(place) < ends[place]]:
                if time.monotonic() > end_s:
                    raise TimeoutError(f"not read to the end: {ends}")
                for records in (await reader.getmany(timeout_ms=200)).values():
                    found.extend(record_of(record) for record in records)
            await reader.stop()
            return found

        found: list[Record] = self._loop(done)
        return found
