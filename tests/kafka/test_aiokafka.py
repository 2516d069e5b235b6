"""aiokafka, unchanged, against the listener: the client with the oldest versions on the wire."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError

from antiphon.node.node import Node
from tests.kafka.kafka_nodes import create, listener_of, real_node

Scenario = Callable[[Node, str], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario with a node on the same real loop: the client asks the real clock."""

    def with_a_node(scenario: Scenario) -> None:
        async def main() -> None:
            async with real_node(tmp_path) as server:
                await asyncio.wait_for(scenario(server.node, listener_of(server).address), 40)

        asyncio.run(main())

    return with_a_node


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_idempotent_produce_and_group_consume(run: Run, codec: str | None) -> None:
    async def scenario(node: Node, address: str) -> None:
        writer = AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, compression_type=codec)
        async with started(writer):
            sent = [await writer.send("flights", str(n).encode(), key=b"k") for n in range(1000)]
            assert [(await each).offset for each in sent] == list(range(1000))
        reader = AIOKafkaConsumer(
            "flights", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
        )
        async with started(reader):
            found = [await reader.getone() for _ in range(1000)]
            assert [m.value for m in found] == [str(n).encode() for n in range(1000)]
            await reader.commit()
        again = AIOKafkaConsumer(bootstrap_servers=address, group_id="g", enable_auto_commit=False)
        async with started(again):
            assert await again.committed(TopicPartition("flights", 0)) == 1000

    run(scenario)


def test_offsets_and_administration(run: Run) -> None:
    async def scenario(node: Node, address: str) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic("made", 2, 1, topic_configs={"retention.ms": "5000"})])
            assert node.gateway.topic("made").config == {"retention.ms": "5000"}
            made_again = await admin.create_topics([NewTopic("made", 2, 1)])
            assert made_again.topic_errors[0][1] == TopicAlreadyExistsError.errno
            assert "made" in await admin.list_topics()
            await admin.delete_topics(["made"])
            assert "made" not in await admin.list_topics()
        finally:
            await admin.close()
        await create(node, "timed")
        async with started(AIOKafkaProducer(bootstrap_servers=address)) as writer:
            for n in range(5):
                await writer.send_and_wait("timed", b"x", timestamp_ms=1000 * n + 1)
        async with started(AIOKafkaConsumer(bootstrap_servers=address)) as reader:
            partition = TopicPartition("timed", 0)
            found = await reader.offsets_for_times({partition: 2500})
            assert found[partition].offset == 3
            assert await reader.end_offsets([partition]) == {partition: 5}
            assert await reader.beginning_offsets([partition]) == {partition: 0}

    run(scenario)


def test_two_members_share_and_one_takes_over(run: Run) -> None:
    async def scenario(node: Node, address: str) -> None:
        await create(node, "shared", shards=4)

        def member() -> Any:
            return AIOKafkaConsumer(
                "shared",
                bootstrap_servers=address,
                group_id="both",
                heartbeat_interval_ms=50,
                session_timeout_ms=6000,
            )

        async with started(member()) as one:
            async with started(member()) as two:
                while len(one.assignment()) != 2 or len(two.assignment()) != 2:
                    await asyncio.gather(one.getmany(timeout_ms=20), two.getmany(timeout_ms=20))
                assert one.assignment().isdisjoint(two.assignment())
            while len(one.assignment()) != 4:
                await one.getmany(timeout_ms=20)

    run(scenario)


def test_a_group_goes_on_when_its_coordinator_forgets_it(run: Run) -> None:
    """The new coordinator knows no members: they join again and go on from the committed offset."""

    async def scenario(node: Node, address: str) -> None:
        await create(node, "flights")
        async with started(AIOKafkaProducer(bootstrap_servers=address)) as writer:
            reader = AIOKafkaConsumer(
                "flights",
                bootstrap_servers=address,
                group_id="g",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                heartbeat_interval_ms=50,
                retry_backoff_ms=20,
            )
            async with started(reader):
                await writer.send_and_wait("flights", b"one")
                assert (await reader.getone()).value == b"one"
                await reader.commit()
                for shard in node.gateway.topic("__groups").shards:
                    await node.gateway.elect_leader(shard.shard_id)
                    assert node.gateway.shard(shard.shard_id)[1].term > shard.term
                await writer.send_and_wait("flights", b"two")
                assert (await reader.getone()).value == b"two"
                while await reader.committed(TopicPartition("flights", 0)) != 2:
                    try:  # until it has joined again, and read "two" again as a member
                        await reader.getmany(timeout_ms=20)
                        await reader.commit()
                    except KafkaError:
                        await asyncio.sleep(0.02)

    run(scenario)
