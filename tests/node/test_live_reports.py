"""What a leader's node tells the coordinator of a follower: that it feeds it only where it is heard from."""

import asyncio

from antiphon.model.cluster import LiveSet
from antiphon.node.node import Node
from antiphon.partition.single_writer import SingleWriterPartition
from antiphon.replication.replica_state import LogCondition
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time


async def in_step(nodes: Nodes) -> tuple[int, SingleWriterPartition]:
    """The id and the leader of a shard whose three replicas all keep up."""
    shard_id = await nodes.new_shard(profile="oxia", replicas=3)
    await nodes.append(shard_id, b"one")
    leader = await nodes.leader(shard_id)
    assert isinstance(leader, SingleWriterPartition)
    await eventually(lambda: set(leader.reports.live_set(None).live) == set(nodes.nodes))
    return shard_id, leader


@in_virtual_time
async def test_a_damaged_follower_is_fed_and_is_not_said_to_keep_up() -> None:
    """Its promise would be no vote: members that are left with it could elect nobody."""
    async with cluster_of(3) as nodes:
        shard_id, leader = await in_step(nodes)
        live_set = leader.reports.live_set
        other = min(set(nodes.nodes) - {leader.services.node_id})
        before = live_set(None)
        follower = nodes.nodes[other].hosts[shard_id]
        assert isinstance(follower, SingleWriterPartition)
        replica = follower.replica
        repair = replica._state.repair  # as it is opened with a damaged log
        repair.condition, repair.floor = LogCondition.DAMAGED, replica.term
        await nodes.append(shard_id, b"two")
        await eventually(lambda: live_set(before).lagging == (other,))
        assert other not in live_set(before).live


@in_virtual_time
async def test_a_follower_that_is_connected_and_silent_is_not_said_to_be_fed() -> None:
    async with cluster_of(3) as nodes:
        _, leader = await in_step(nodes)
        live_set = leader.reports.live_set
        others = sorted(set(nodes.nodes) - {leader.services.node_id})
        leader.driver.call(leader.replica.peer_lost, others[0])
        assert live_set(None).lagging == (others[0],), "it may be back at any moment"
        before = live_set(None)
        leader.driver.call(leader.replica.peer_connected, others[0])
        assert others[0] not in live_set(before).lagging
        assert others[0] not in live_set(before).live, "what it acknowledged it may have lost since"


@in_virtual_time
async def test_an_idle_shard_is_not_looked_at_by_each_heartbeat() -> None:
    async with cluster_of(3) as nodes:
        shard_id, leader, node = await idle(nodes)
        looks = Looks(leader)
        await asyncio.sleep(5)
        assert looks.count == 0
        follower = min(set(nodes.nodes) - {node.node_id})
        leader.driver.call(leader.replica.peer_lost, follower)
        await eventually(lambda: node.agent._live_told[shard_id].lagging == (follower,))
        assert looks.count > 0, "an event"
        await eventually(lambda: shard_id not in node.stirred)


@in_virtual_time
async def test_a_new_coordinator_is_told_of_idle_shards() -> None:
    async with cluster_of(3) as nodes:
        _, leader, node = await idle(nodes)
        looks = Looks(leader)
        for _ in range(20):
            node.agent._coordinator_term += 1  # as the answer of another coordinator says
            await asyncio.sleep(
                0.1
            )  # an answer that is under way may say before long that it is the same one
            if looks.count:
                break
        assert looks.count > 0


async def idle(nodes: Nodes) -> tuple[int, SingleWriterPartition, Node]:
    """A shard to which nothing has happened since the coordinator was told of it, its leader and that one's node."""
    shard_id, leader = await in_step(nodes)
    node = nodes.nodes[leader.services.node_id]
    await eventually(lambda: shard_id not in node.stirred)
    return shard_id, leader, node


class Looks:
    """Counts how often it is asked what is to be told of a shard."""

    def __init__(self, leader: SingleWriterPartition) -> None:
        self.count = 0
        self._due = leader.reports.due
        leader.reports.due = self._counted  # type: ignore[method-assign]

    def _counted(self, told: LiveSet | None) -> LiveSet | None:
        self.count += 1
        return self._due(told)
