"""Shards whose replicas vote, on real nodes: elections, moves and lost disks, also with no coordinator in reach."""

import asyncio

import msgspec
import structlog

import antiphon.aio
from antiphon.model.metadata import CLUSTER_SHARD_ID, ShardMeta
from antiphon.model.requests import CreateTopic, ElectLeader, MoveReplica
from antiphon.node.config import NodeConfig, Timings
from antiphon.partition.partition import Partition
from antiphon.records.builder import committed_of
from antiphon.records.members import Members
from antiphon.replication.raft import RaftReplica
from tests.node.in_process import DIRECTORY, Nodes, cluster_of, eventually, in_virtual_time


async def raft_shard(nodes: Nodes, replicas: int = 3, profile: str = "raft") -> int:
    node = next(iter(nodes.nodes.values()))
    topic = await node.gateway.create_topic(CreateTopic("t", profile=profile, replicas=replicas))
    return topic.shards[0].shard_id


def replica_of(host: Partition) -> RaftReplica:
    assert isinstance(host.replica, RaftReplica)
    return host.replica


async def leader_of(nodes: Nodes, shard_id: int) -> int:
    return (await nodes.leader(shard_id)).services.node_id


def shard_meta(nodes: Nodes, node_id: int, shard_id: int) -> ShardMeta:
    found = nodes.nodes[node_id].view.shard(shard_id)
    assert found is not None
    return found[1]


async def agree(nodes: Nodes, shard_id: int, *node_ids: int) -> None:
    """Wait until these nodes hold the same log, committed to its end."""

    def same() -> bool:
        hosts = [nodes.nodes[node_id].hosts.get(shard_id) for node_id in node_ids]
        ends = {
            (host.log.end, host.state.high_watermark, host.log.durable_end) if host is not None else None
            for host in hosts
        }
        return (
            len(ends) == 1
            and None not in ends
            and all(h and h.state.high_watermark == h.log.log_end for h in hosts)
        )

    await eventually(same)


async def lead_with(nodes: Nodes, shard_id: int, wanted: int) -> None:
    """Have a node lead, by way of the coordinator."""
    some = next(iter(nodes.nodes.values()))
    await some.gateway.administer(ElectLeader(shard_id, wanted))
    await eventually(lambda: nodes.nodes[wanted].hosts[shard_id].state.is_serving)


@in_virtual_time
async def test_writes_go_on_when_the_leader_dies() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await raft_shard(nodes)
        assert await nodes.append(shard_id, b"one") == 1, "the first record has offset 0"
        victim = await leader_of(nodes, shard_id)
        await nodes.stop(victim)
        await nodes.append(shard_id, b"two")
        leader = await leader_of(nodes, shard_id)
        assert leader != victim
        await eventually(lambda: shard_meta(nodes, leader, shard_id).leader == leader)
        await nodes.start(victim)
        await nodes.append(shard_id, b"three")
        await agree(nodes, shard_id, 0, 1, 2)


@in_virtual_time
async def test_s4_07_a_further_record_marks_what_is_committed() -> None:
    """The profile `tarantool`: votes, and a CONFIRM in the log, which readers do not see."""
    async with cluster_of(3) as nodes:
        shard_id = await raft_shard(nodes, profile="tarantool")
        for value in (b"one", b"two"):
            await nodes.append(shard_id, value)
        host = await nodes.leader(shard_id)
        await eventually(lambda: host.state.high_watermark == host.log.log_end > 3)
        batches = [bytes(batch) for _, batch in host.log.reader.batches_from(0)]
        marks = [mark for mark in map(committed_of, batches) if mark is not None]
        assert marks[0] == 1
        assert marks[-1] >= 3, "the last record is told of"
        async with antiphon.aio.connect([member.native for member in nodes.members]) as client:
            assert [record.value async for record in client.topic("t").read()] == [b"one", b"two"]
            table = await client.create_table("of-keys", profile="tarantool")
            version = await table.put("k", b"v")
            await table.put("k", b"w", expected_version=version.id)
            assert (await table.get("k")).value == b"w"


@in_virtual_time
async def test_the_operator_moves_the_leader() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await raft_shard(nodes)
        await nodes.append(shard_id, b"one")
        leader = await leader_of(nodes, shard_id)
        term = nodes.nodes[leader].hosts[shard_id].state.term
        await lead_with(nodes, shard_id, (leader + 1) % 3)
        assert nodes.nodes[leader].hosts[shard_id].state.term == term + 1, "one election, by appointment"
        await nodes.append(shard_id, b"two")


class PatientNodes(Nodes):
    """Nodes that wait for so long for a leader that a test can tell whether they had to."""

    def config(self, node_id: int, *, first: bool = False) -> NodeConfig:
        timings = Timings(tick=10, election_min=1500, election_max=3000)
        return msgspec.structs.replace(super().config(node_id, first=first), timings=timings)


@in_virtual_time
async def test_a_node_that_is_stopped_hands_over_first() -> None:
    nodes = PatientNodes(3)
    try:
        await nodes.start_all()
        shard_id = await raft_shard(nodes)
        await nodes.append(shard_id, b"one")
        leader = await leader_of(nodes, shard_id)
        others = [node for n, node in nodes.nodes.items() if n != leader]
        term = others[0].hosts[shard_id].state.term
        await nodes.stop(leader)
        assert any(node.hosts[shard_id].state.is_leader for node in others), "nobody's patience had to end"
        assert {node.hosts[shard_id].state.term for node in others} == {term + 1}
        await nodes.append(shard_id, b"two")
    finally:
        await nodes.close()


@in_virtual_time
async def test_it_elects_and_takes_writes_with_no_coordinator_in_reach() -> None:
    """Two of the three nodes that hold `__cluster` are gone, and the shard's leader with them."""
    async with cluster_of(5) as nodes:
        shard_id = await raft_shard(nodes, replicas=5)
        await lead_with(nodes, shard_id, 0)
        client = await antiphon.aio.connect([nodes.members[4].native, nodes.members[3].native])
        topic = client.topic("t")
        await topic.append(b"one")
        for victim in (0, 1):
            await nodes.stop(victim)
        await eventually(lambda: not nodes.nodes[2].hosts[CLUSTER_SHARD_ID].state.is_serving)
        await topic.append(b"two")
        await nodes.stop(3)
        await nodes.start(3)  # and takes part again: it is needed
        await topic.append(b"three")
        assert [record.value async for record in topic.read()] == [b"one", b"two", b"three"]
        await client.close()


@in_virtual_time
async def test_a_replica_moves_to_a_node_that_had_none() -> None:
    async with cluster_of(4) as nodes:
        shard_id = await raft_shard(nodes)
        await nodes.append(shard_id, b"one")
        leader = await leader_of(nodes, shard_id)
        before = set(shard_meta(nodes, leader, shard_id).ensemble)
        (free,) = set(range(4)) - before
        await nodes.nodes[free].gateway.administer(MoveReplica(shard_id, leader, free))
        after = before - {leader} | {free}
        await eventually(lambda: set(shard_meta(nodes, free, shard_id).ensemble) == after)
        await eventually(lambda: shard_id not in nodes.nodes[leader].hosts)
        assert replica_of(nodes.nodes[free].hosts[shard_id]).settled_members is not None
        await nodes.append(shard_id, b"two")
        await agree(nodes, shard_id, *after)
        for node_id in after:
            members = replica_of(nodes.nodes[node_id].hosts[shard_id]).members
            assert set(members.voters) == after
            await nodes.stop(node_id)
            await nodes.start(node_id)
            again = nodes.nodes[node_id]
            await eventually(lambda again=again: shard_id in again.hosts)  # type: ignore[misc]
            assert replica_of(again.hosts[shard_id]).members == Members(members.voters)


@in_virtual_time
async def test_a_replica_that_moved_while_its_node_was_down_is_given_up() -> None:
    async with cluster_of(4) as nodes:
        shard_id = await raft_shard(nodes)
        await nodes.append(shard_id, b"one")
        members = set(shard_meta(nodes, 0, shard_id).ensemble)
        (free,) = {0, 1, 2, 3} - members
        away = max(members - {await leader_of(nodes, shard_id), 0})
        await nodes.stop(away)
        await nodes.nodes[free].gateway.administer(MoveReplica(shard_id, away, free))
        after = members - {away} | {free}
        await eventually(lambda: set(shard_meta(nodes, free, shard_id).ensemble) == after)
        node = await nodes.start(away)
        assert await node.joined(20)
        await eventually(lambda: shard_id not in node.hosts)
        await eventually(lambda: not nodes.disks[away].exists(f"{DIRECTORY}/shards/{shard_id}"))
        await nodes.append(shard_id, b"two")
        await agree(nodes, shard_id, *after)


@in_virtual_time
async def test_a_replica_whose_topic_was_deleted_while_its_node_was_down_is_given_up_for_good() -> None:
    """What the node remembers of it opens it at the start, and must not open it again once it is gone."""
    async with cluster_of(3) as nodes:
        shard_id = await raft_shard(nodes)
        await nodes.append(shard_id, b"one")
        leader = await leader_of(nodes, shard_id)
        away = next(one for one in nodes.nodes if one != leader and nodes.nodes[one].coordinator is not None)
        nodes.kill(away)
        gateway = nodes.nodes[leader].gateway
        await gateway.delete_topic("t")
        others = [node for one, node in nodes.nodes.items() if one != away]
        await eventually(lambda: all(shard_id not in node.hosts for node in others))
        with structlog.testing.capture_logs() as lines:
            node = await nodes.start(away)
            disk, path = nodes.shard_path(away, shard_id)
            await eventually(node.agent.registered.is_set)
            await eventually(lambda: shard_id not in node.hosts and not disk.exists(path))
            for number in range(3):  # the metadata goes on
                await gateway.create_topic(CreateTopic(f"later-{number}"))
                await asyncio.sleep(0.1)
        assert shard_id not in node.hosts
        assert not disk.exists(path)
        assert [line["event"] for line in lines].count("replica_removed") == 1


@in_virtual_time
async def test_a_replica_that_lost_its_disk_forgot_and_is_repaired() -> None:
    async with cluster_of(3) as nodes:
        shard_id = await raft_shard(nodes)
        await nodes.append(shard_id, b"one")
        leader = await leader_of(nodes, shard_id)
        victim = (leader + 1) % 3
        await nodes.stop(victim)
        nodes.lose_directory(victim)
        node = await nodes.start(victim)
        await eventually(lambda: shard_id in node.hosts)
        host = node.hosts[shard_id]
        await eventually(lambda: host.log.damaged is None)
        assert host.state.term > 1, "only a new term proves that it has everything"
        await agree(nodes, shard_id, 0, 1, 2)
        await eventually(lambda: nodes.disks[victim].exists(f"{DIRECTORY}/joined"))
        await nodes.stop(({0, 1, 2} - {victim, await leader_of(nodes, shard_id)}).pop())
        await nodes.append(shard_id, b"two")
