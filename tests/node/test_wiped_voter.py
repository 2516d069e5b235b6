"""A voter of `__cluster` whose data directory was lost: it comes back empty and must not vote as if it remembered."""

import json

from antiphon.log.disk import read_whole
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import CreateTopic
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.replication.messages import RequestVote
from antiphon.replication.multi_messages import ReplicaMessage
from tests.node.in_process import DIRECTORY, Nodes, cluster_of, eventually, in_virtual_time


async def followers(nodes: Nodes) -> tuple[int, int, int]:
    """(leader, follower, follower) of `__cluster`."""
    leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
    return leader, (leader + 1) % 3, (leader + 2) % 3


async def wipe(nodes: Nodes, node_id: int) -> None:
    """Stop a node and lose its directory."""
    await nodes.stop(node_id)
    nodes.lose_directory(node_id)


def voter(node: Node) -> Partition:
    return node.hosts[CLUSTER_SHARD_ID]


async def is_asked_in_vain(node: Node) -> None:
    """Wait until somebody has asked for its vote a few times."""
    host = voter(node)
    receive = host.receive
    asked = []

    def listen(sender: int, message: ReplicaMessage) -> None:
        if isinstance(message, RequestVote):
            asked.append(message)
        receive(sender, message)

    host.receive = listen  # type: ignore[method-assign]  # to count what it is asked
    await eventually(lambda: len(asked) >= 4)
    assert host.replica.damaged
    assert host.log.hard_state.voted_for is None


@in_virtual_time
async def test_a_wiped_voter_is_repaired_and_then_another_may_be_lost() -> None:
    async with cluster_of(3) as nodes:
        leader, victim, _ = await followers(nodes)
        await nodes.nodes[leader].gateway.create_topic(CreateTopic("t"))
        term = voter(nodes.nodes[leader]).state.term
        await wipe(nodes, victim)
        host = voter(await nodes.start(victim))
        assert host.status().state == "damaged"
        disk, marker = nodes.disks[victim], f"{DIRECTORY}/shards/0/damaged"
        assert disk.exists(marker)
        await eventually(lambda: host.log.damaged is None)
        await eventually(lambda: not disk.exists(marker))
        assert host.status().state == "ok"
        assert host.state.term > term, "only a term begun since proves that nothing is missing"
        assert await nodes.nodes[victim].joined(20)
        leader, *_ = await followers(nodes)
        await nodes.stop(leader if leader != victim else (victim + 1) % 3)
        await nodes.leader(CLUSTER_SHARD_ID)
        await eventually(lambda: "t" in nodes.nodes[victim].view.topics)
        await nodes.nodes[victim].gateway.create_topic(CreateTopic("u"))


@in_virtual_time
async def test_a_wiped_voter_elects_nobody_not_even_after_a_restart() -> None:
    async with cluster_of(3) as nodes:
        leader, victim, other = await followers(nodes)
        await nodes.nodes[leader].gateway.create_topic(CreateTopic("t"))
        await wipe(nodes, victim)
        await nodes.stop(leader)
        for _ in range(2):
            await is_asked_in_vain(await nodes.start(victim))
            assert not voter(nodes.nodes[other]).state.is_leader
            await nodes.stop(victim)
        await nodes.start(victim)
        await nodes.start(leader)
        host = voter(nodes.nodes[victim])
        await eventually(lambda: not host.replica.damaged)
        await nodes.leader(CLUSTER_SHARD_ID)
        await nodes.nodes[other].gateway.create_topic(CreateTopic("u"))


@in_virtual_time
async def test_only_the_start_that_makes_the_directory_founds() -> None:
    """An only node is its own majority: with its directory all is gone, unless it is told that this is a new cluster."""
    async with cluster_of(1) as nodes:
        identity = json.loads(read_whole(nodes.disks[0], f"{DIRECTORY}/identity.json") or b"")
        assert identity["bootstrap"]
        await nodes.stop(0)
        node = await nodes.start(0)  # again, without being told
        assert await node.joined(20)
        await wipe(nodes, 0)
        node = await nodes.start(0)
        assert voter(node).status().state == "damaged"


@in_virtual_time
async def test_a_voter_with_a_rotten_old_segment_starts_and_is_repaired() -> None:
    """A snapshot stands for what is rotten, so only the fold of the metadata reads it."""
    async with cluster_of(3) as nodes:
        leader, victim, _ = await followers(nodes)
        await nodes.nodes[leader].gateway.create_topic(CreateTopic("t"))
        await nodes.stop(victim)
        disk, directory = nodes.shard_path(victim, CLUSTER_SHARD_ID)
        path = f"{directory}/{0:020d}.log"
        disk.flip_bit(path, 8 * (disk.open(path).size() // 2) + 2)
        node = await nodes.start(victim)
        host = voter(node)
        assert host.status().state == "damaged"
        await eventually(lambda: host.log.damaged is None)
        assert host.status().state == "ok"
        await eventually(lambda: "t" in node.view.topics)
