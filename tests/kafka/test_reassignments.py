"""Replicas placed by hand: at creation, for more partitions, and by moves that are begun, seen and taken back."""

from typing import Any

from antiphon.kafka import error_codes as code
from antiphon.kafka.messages import admin
from antiphon.kafka.messages import reassignments as m
from antiphon.kafka.messages.shared import PartitionsOfTopic
from antiphon.model.metadata import TopicMeta
from tests.kafka.kafka_nodes import KafkaNodes
from tests.kafka.raw import RawClient, batch, fetch, listening, produce
from tests.node.in_process import eventually, in_virtual_time


async def move(
    client: RawClient, *wanted: tuple[int, list[int] | None], topic: str = "t", **fields: Any
) -> list[int]:
    partitions = [m.ReassignedPartition(partition_index=at, replicas=nodes) for at, nodes in wanted]
    topics = [m.ReassignedTopic(name=topic, partitions=partitions)]
    request = m.AlterPartitionReassignmentsRequest(timeout_ms=5000, topics=topics, **fields)
    answer = await client.ask(request, 45, 1)
    assert answer.error_code == code.NONE
    assert answer.allow_replication_factor_change == request.allow_replication_factor_change
    return [p.error_code for p in answer.responses[0].partitions]


async def moves(
    client: RawClient, wanted: list[PartitionsOfTopic] | None = None
) -> dict[tuple[str, int], Any]:
    answer = await client.ask(m.ListPartitionReassignmentsRequest(timeout_ms=1000, topics=wanted), 46, 0)
    assert answer.error_code == code.NONE
    return {(topic.name, p.partition_index): p for topic in answer.topics for p in topic.partitions}


def topic_of(served: KafkaNodes, name: str = "t") -> TopicMeta:
    return served.first.gateway.topic(name)


def assigned(*partitions: list[int]) -> list[admin.ReplicaAssignment]:
    return [admin.ReplicaAssignment(partition_index=at, broker_ids=p) for at, p in enumerate(partitions)]


async def create(client: RawClient, assignments: list[admin.ReplicaAssignment], **fields: Any) -> Any:
    fields = {"name": "t", "num_partitions": -1, "replication_factor": -1, "configs": [], **fields}
    topic = admin.CreatableTopic(assignments=assignments, **fields)
    return (await client.ask(admin.CreateTopicsRequest(topics=[topic], timeout_ms=5000), 19, 7)).topics[0]


@in_virtual_time
async def test_new_partitions_are_placed_as_the_client_says() -> None:
    async with listening(3) as (served, connect):
        client = await connect()
        made = await create(client, assigned([2, 0], [1, 2]))
        assert (made.error_code, made.num_partitions, made.replication_factor) == (code.NONE, 2, 2)
        assert [shard.ensemble for shard in topic_of(served).shards] == [(2, 0), (1, 2)]
        assert [shard.leader for shard in topic_of(served).shards] == [2, 1]
        for nodes, error in (
            ([[0, 1], [1]], code.INVALID_REPLICA_ASSIGNMENT),
            ([[0, 1]], code.NONE),
        ):
            grown = admin.GrowingTopic(
                name="t", count=3, assignments=[admin.PartitionAssignment(broker_ids=one) for one in nodes]
            )
            request = admin.CreatePartitionsRequest(topics=[grown], timeout_ms=5000, validate_only=False)
            answer = await client.ask(request, 37, 3)
            assert answer.results[0].error_code == error
        assert topic_of(served).shards[2].ensemble == (0, 1)


@in_virtual_time
async def test_placements_that_make_no_sense_are_refused() -> None:
    async with listening(2) as (_, connect):
        client = await connect()
        bad = code.INVALID_REPLICA_ASSIGNMENT
        for assignments, fields, error in (
            (assigned([0, 1]), {"num_partitions": 1}, code.INVALID_REQUEST),
            (assigned([0, 1]), {"replication_factor": 2}, code.INVALID_REQUEST),
            (assigned([0, 1], [0]), {}, bad),
            (assigned([]), {}, bad),
            (assigned([0, 0]), {}, bad),
            (assigned([7, 0]), {}, bad),
            ([admin.ReplicaAssignment(partition_index=1, broker_ids=[0])], {}, bad),
            (assigned([0])[:1] * 2, {}, bad),
        ):
            answer = await create(client, assignments, **fields)
            assert answer.error_code == error, (assignments, fields)
            assert answer.error_message


@in_virtual_time
async def test_a_partition_moves_while_it_is_used_and_the_move_is_listed() -> None:
    async with listening(4) as (served, connect):
        client = await connect()
        await create(client, assigned([0, 1], [0, 1]))
        await produce(client, "t", batch(b"x"))
        served.nodes.slow_s[3] = 1.0  # so that it takes a while
        assert await move(client, (0, [3, 1])) == [code.NONE]
        await eventually(lambda: bool(topic_of(served).shards[0].goal))
        found = await moves(client)
        assert list(found) == [("t", 0)]
        assert (found["t", 0].adding_replicas, found["t", 0].removing_replicas) == ([3], [0])
        assert set(found["t", 0].replicas) == {0, 1, 3}
        assert await moves(client, [PartitionsOfTopic(name="t", partitions=[1])]) == {}
        served.nodes.slow_s.clear()
        await eventually(lambda: not topic_of(served).shards[0].goal)
        shard = topic_of(served).shards[0]
        assert (shard.ensemble, shard.leader) == ((3, 1), 3)
        assert await moves(client) == {}
        assert (await fetch(await connect(3), "t", 0)).records


@in_virtual_time
async def test_a_move_is_taken_back() -> None:
    async with listening(4) as (served, connect):
        client = await connect()
        await create(client, assigned([0, 1]))
        assert await move(client, (0, None)) == [code.NO_REASSIGNMENT_IN_PROGRESS]
        served.nodes.slow_s[3] = 1.0
        assert await move(client, (0, [3, 1])) == [code.NONE]
        await eventually(lambda: bool(topic_of(served).shards[0].goal))
        assert await move(client, (0, None)) == [code.NONE]
        await eventually(lambda: not topic_of(served).shards[0].goal)
        assert topic_of(served).shards[0].ensemble == (0, 1)
        assert topic_of(served).shards[0].everybody == (0, 1)


@in_virtual_time
async def test_moves_that_cannot_be_are_refused_one_by_one() -> None:
    async with listening(2) as (served, connect):
        client = await connect()
        await create(client, assigned([0], [0], [0], [0]))
        bad = code.INVALID_REPLICA_ASSIGNMENT
        done = await move(client, (0, []), (1, [1, 1]), (2, [9]), (7, [0]), (3, [1]))
        assert done == [bad, bad, bad, code.UNKNOWN_TOPIC_OR_PARTITION, code.NONE]
        assert await move(client, (0, [0]), topic="none") == [code.UNKNOWN_TOPIC_OR_PARTITION]
        more = await move(client, (0, [0, 1]), allow_replication_factor_change=False)
        assert more == [code.INVALID_REPLICATION_FACTOR]
        assert await move(client, *((at, [0, 1]) for at in range(4))) == [code.NONE] * 4
        await eventually(lambda: not any(shard.goal for shard in topic_of(served).shards))
        assert topic_of(served).replicas == 2
