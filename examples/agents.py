"""Agents over topics, with tables: the way of writing stream processors that Faust made known, in a page of code.

antiphon up --nodes 3          # in another terminal
python examples/agents.py 127.0.0.1:9092 127.0.0.1:7400

An agent reads a topic as a member of a group. Its table is in the cluster, so there is nothing to restore when it starts
elsewhere. A row says with which record it was changed last: a record that comes again, because the agent ended before its
offset was committed, changes nothing. `test_agents.py` beside it brings that about.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

from aiokafka import AIOKafkaConsumer, ConsumerRecord

import antiphon
import antiphon.aio

Stream = AsyncIterator[ConsumerRecord]
Agent = Callable[[Stream], Awaitable[None]]


class App:
    """Agents that run together. `kafka` and `servers` are the addresses of the Kafka and the native listeners."""

    def __init__(self, name: str, kafka: str, servers: str) -> None:
        self.name = name
        self._kafka = kafka
        self._servers = servers
        self._agents: dict[str, Agent] = {}
        self._db: antiphon.aio.AsyncClient | None = None

    def agent(self, topic: str) -> Callable[[Agent], Agent]:
        """Have a function read this topic."""

        def take(function: Agent) -> Agent:
            self._agents[topic] = function
            return function

        return take

    async def table(self, name: str) -> antiphon.aio.AsyncTable:
        """A table of the cluster, which is made when it is not there."""
        assert self._db is not None, "an agent asks for its table when it runs"
        with suppress(antiphon.TopicExistsError):
            await self._db.create_table(name)
        return await self._db.table(name)

    async def run(self) -> None:
        """Run every agent, until one of them fails or this is cancelled."""
        async with antiphon.aio.connect(self._servers) as self._db, asyncio.TaskGroup() as group:
            for topic, agent in self._agents.items():
                group.create_task(self._run(topic, agent))

    async def _run(self, topic: str, agent: Agent) -> None:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=self._kafka,
            group_id=f"{self.name}-{topic}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with consumer:
            await agent(_stream(consumer))


async def _stream(consumer: AIOKafkaConsumer) -> Stream:
    """The records of a topic; when the agent asks for the next ones, it has done with those before."""
    while True:
        batches = await consumer.getmany(timeout_ms=200)
        for records in batches.values():
            for record in records:
                yield record
        if batches:
            await consumer.commit()


def views_app(kafka: str, servers: str, topic: str = "views", table: str = "counts") -> App:
    """Counts the views of each page: the key of a record is a page."""
    app = App("views", kafka, servers)

    @app.agent(topic)
    async def count(stream: Stream) -> None:
        counts = await app.table(table)
        async for record in stream:
            page = record.key or b""
            try:
                found = json.loads((await counts.get(page)).value)
            except antiphon.KeyNotFoundError:
                found = {"views": 0, "offset": -1}
            if record.offset > found["offset"]:  # a page is in one partition, so its offsets only grow
                changed = {"views": found["views"] + 1, "offset": record.offset}
                await counts.put(page, json.dumps(changed).encode())

    return app


if __name__ == "__main__":
    asyncio.run(views_app(*(sys.argv[1:] or ["127.0.0.1:9092", "127.0.0.1:7400"])).run())
