"""The soak's connections that come and go: short-lived clients, pages, topics that are made and removed."""

import asyncio
import contextlib
import itertools
import random
from typing import Any, Final

from antiphon import aio
from tests.soak.ledger import parse, value_of
from tests.soak.load import KEYS, LOG, SHARDS, TABLE, TIMEOUT_S, Pace, row_key

NATIVE_PERIOD_S: Final = 0.5
KAFKA_PERIOD_S: Final = 2.0
PAGE_PERIOD_S: Final = 0.25
TOPIC_PERIOD_S: Final = 30.0
RECORDS: Final = 3
PAGES: Final = ("/", "/healthz", "/metrics", "/status", "/topics")
PAGE_BYTES_MAX: Final = 16 * 1024 * 1024


def host_port(text: str) -> tuple[str, int]:
    """`host:port` in two."""
    host, _, port = text.rpartition(":")
    return host, int(port)


class Visitors:
    """Each visit is a client of its own: it connects, does a little, and leaves."""

    def __init__(self, cluster: Any, pace: Pace) -> None:
        self._cluster = cluster
        self._pace = pace
        self._ledger = pace.ledger
        self._numbers = itertools.count()
        self._rng = random.Random("visitors")

    async def run(self) -> None:
        """Visit until the pace is told to stop."""
        every = self._pace.every
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(every(NATIVE_PERIOD_S, "native visit", self._native))
            tasks.create_task(every(KAFKA_PERIOD_S, "kafka visit", self._kafka))
            tasks.create_task(every(PAGE_PERIOD_S, "page", self._page))
            tasks.create_task(every(TOPIC_PERIOD_S, "topic made and removed", self._topic))

    async def _native(self, number: int) -> None:
        """An append and a get; now and then also a watch that is left in the middle."""
        writer, shard = f"visit-{next(self._numbers)}", number % SHARDS
        async with aio.connect(self._cluster.native, client_id=writer) as db:
            at = await db.topic(LOG).append(value_of(writer, 0), shard=shard, timeout_s=TIMEOUT_S)
            self._ledger.acknowledged(LOG, shard, writer, 0, at.offset)
            await db.table(TABLE).find(row_key(self._rng.randrange(KEYS)), timeout_s=TIMEOUT_S)
            if number % 4 == 0:
                await self._watch_a_little(db.table(TABLE))

    async def _watch_a_little(self, table: Any) -> None:
        async with asyncio.timeout(TIMEOUT_S), table.watch() as changes:
            change = asyncio.ensure_future(anext(aiter(changes)))
            stopped = asyncio.create_task(self._pace.stopping.wait())  # then nobody changes anything any more
            await asyncio.wait([change, stopped], return_when=asyncio.FIRST_COMPLETED)
            for waiting in (change, stopped):
                waiting.cancel()

    async def _kafka(self, number: int) -> None:
        """A producer and a reader with their own connections."""
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

        writer, shard = f"kafka-visit-{next(self._numbers)}", number % SHARDS
        at: list[int] = []
        async with AIOKafkaProducer(
            bootstrap_servers=self._cluster.kafka, enable_idempotence=True, acks="all"
        ) as producer:
            for n in range(RECORDS):
                done = await producer.send_and_wait(LOG, value_of(writer, n), partition=shard)
                self._ledger.acknowledged(LOG, shard, writer, n, done.offset)
                at.append(done.offset)
        consumer = AIOKafkaConsumer(bootstrap_servers=self._cluster.kafka, group_id=None)
        async with consumer:
            partition = TopicPartition(LOG, shard)
            consumer.assign([partition])
            consumer.seek(partition, at[0])
            async with asyncio.timeout(TIMEOUT_S):
                found = await consumer.getone()
        if (found.offset, parse(found.value)[0]) != (at[0], writer):
            self._ledger.problem(f"{writer} was acknowledged at {at[0]}, a reader got {found.value[:40]!r}")

    async def _page(self, number: int) -> None:
        node = list(self._cluster.nodes.values())[number % len(self._cluster.nodes)]
        path = PAGES[number % len(PAGES)]
        reader, writer = await asyncio.open_connection(*host_port(node.http))
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: soak\r\nConnection: close\r\n\r\n".encode())
            async with asyncio.timeout(TIMEOUT_S):
                answer = await reader.read(PAGE_BYTES_MAX)
                while data := await reader.read(PAGE_BYTES_MAX):
                    answer += data
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise ValueError(f"{path} of node {node.id} answered {answer[:60]!r}")

    async def _topic(self, number: int) -> None:
        """A topic that is made, written to and removed."""
        name = f"soak-brief-{number}"
        async with aio.connect(self._cluster.native) as db:
            topic = await db.create_topic(name, shards=2)
            await topic.append(b"brief", shard=0, timeout_s=TIMEOUT_S)
            await db.delete_topic(name)


def connections(operations: dict[str, int]) -> int:
    """At least so many connections were opened by visitors: a native client has one to each node that it needs."""
    return (
        2 * operations.get("native visit", 0)
        + 3 * operations.get("kafka visit", 0)
        + operations.get("page", 0)
        + operations.get("oxia visit", 0)
        + operations.get("rude client", 0)
    )
