"""How many topics, partitions and replicas a cluster takes: the coordinator refuses what is more, and nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from antiphon.coordination.capacity import Capacity
from antiphon.errors import LimitReachedError
from antiphon.model.cluster import CommandDone
from antiphon.model.metadata import Kind
from antiphon.model.requests import AlterTopic, CreateTopic, DeleteTopic, SplitShard
from antiphon.replication.messages import NodeId
from tests.coordination.world import World

ROOMY = Capacity(topics=100, partitions=100, node_replicas=100, request_partitions=100)


def started(nodes: int = 3, **bounds: int) -> World:
    """A cluster with these bounds, in which table `default` has 4 shards."""
    world = World(nodes)
    world.config = replace(world.config, capacity=replace(ROOMY, **bounds))
    world.start()
    return world


def done(world: World, request: Any) -> None:
    answer = world.ask(request)
    assert isinstance(answer, CommandDone), answer


def refused(world: World, request: Any, limit: str, words: str) -> None:
    """It is, by this bound, with these words, and nothing was written."""
    before = world.state.version
    answer = world.ask(request)
    assert isinstance(answer, LimitReachedError), answer
    assert answer.details["limit"] == limit
    assert words in answer.message
    assert f"antiphon node settings --all --set limits.{limit}=" in answer.message
    assert world.state.version == before


def test_topics() -> None:
    world = started(topics=3)
    done(world, CreateTopic("a"))
    done(world, CreateTopic("b"))
    refused(world, CreateTopic("c"), "topics", "has 3 topics and tables, 3 are the most")
    refused(world, CreateTopic("c", Kind.TABLE), "topics", "delete some")
    done(world, CreateTopic("__groups", Kind.TABLE, internal=True))  # the cluster's own are never refused
    done(world, AlterTopic("a", shards=2))
    done(world, DeleteTopic("b"))
    done(world, DeleteTopic("a"))
    done(world, CreateTopic("c"))


def test_partitions() -> None:
    world = started(partitions=10)
    done(world, CreateTopic("a", shards=4))
    refused(
        world, CreateTopic("b", shards=3), "partitions", "has 8 partitions and is asked for 3 more, 10 are"
    )
    refused(world, AlterTopic("a", shards=7), "partitions", "asked for 3 more")
    done(world, AlterTopic("a", shards=6))
    shard = world.state.topic_with_shards("default").shards[0].shard_id
    refused(world, SplitShard(shard), "partitions", "has 10 partitions and is asked for 1 more")
    done(world, AlterTopic("a", config={"retention.ms": "1000"}))
    done(world, CreateTopic("__staged", internal=True))


def test_partitions_of_one_request() -> None:
    world = started(request_partitions=5)
    refused(world, CreateTopic("a", shards=6), "request_partitions", "6 partitions in one request, 5 are")
    done(world, CreateTopic("a", shards=5))
    refused(world, AlterTopic("a", shards=11), "request_partitions", "6 partitions in one request")
    done(world, AlterTopic("a", shards=10))


def test_replicas_of_a_node() -> None:
    world = started(node_replicas=6)  # `default` is 4 of them
    refused(
        world, CreateTopic("a", shards=3), "node_replicas", "to hold 4 replicas and would get 3 more, 6 are"
    )
    done(world, CreateTopic("a", shards=3, replicas=1))  # one on each node
    done(world, CreateTopic("b"))
    refused(world, CreateTopic("c", replicas=1), "node_replicas", "add nodes")
    refused(world, AlterTopic("a", shards=4), "node_replicas", "to hold 6 replicas")
    refused(world, AlterTopic("a", replicas=2), "node_replicas", "to hold 6 replicas")
    refused(
        world,
        SplitShard(world.state.topic_with_shards("default").shards[0].shard_id),
        "node_replicas",
        "would get 1 more",
    )
    done(world, CreateTopic("__groups", Kind.TABLE, internal=True))


@pytest.mark.parametrize("node", [0, 1, 2])
def test_what_is_there_stays_where_a_bound_was_lowered(node: NodeId) -> None:
    """A coordinator with narrower bounds than those before it elects leaders for all of it."""
    world = started()
    done(world, CreateTopic("a", shards=20))
    world.config = replace(world.config, capacity=Capacity(1, 1, 1, 1))
    world.crash_coordinator()
    world.start_coordinator()
    assert world.run(5_000, world.all_online)
    world.crash_node(node)
    assert world.run(5_000, world.all_online)
    refused(world, CreateTopic("b"), "topics", "2 topics")
    done(world, DeleteTopic("a"))


def test_ten_thousand_partitions_are_taken_by_default() -> None:
    """A cluster of that size is legitimate: three replicas each, on three nodes."""
    bounds, world = Capacity(), started()
    bounds.check_topic(world.state)
    bounds.check_shards(world.state, 10_000)
    bounds.check_nodes(world.state, [(0, 1, 2)] * 10_000)
