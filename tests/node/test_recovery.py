"""Most voters of `__cluster` lose their directories, and the cluster goes on from one voter's log."""

import pytest

from antiphon.errors import InvalidRequestError
from antiphon.log.directory import SHARDS_NAME
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import CreateTopic
from antiphon.node.node import Node
from antiphon.node.recovering import join, look, recover
from tests.node.in_process import DIRECTORY, Nodes, cluster_of, eventually, in_virtual_time
from tests.node.test_voters import become_voters, change, works

NOW_MS = 1_700_000_000_000


async def with_records(nodes: Nodes) -> int:
    """A shard on all nodes, with three records; returns its id."""
    topic = await nodes.nodes[2].gateway.create_topic(CreateTopic("kept", replicas=5))
    shard_id = topic.shards[0].shard_id
    for value in (b"one", b"two", b"three"):
        end = await nodes.append(shard_id, value)
    assert end == 3
    return shard_id


async def lose_voters(nodes: Nodes, *, wiped: bool = True) -> None:
    """Node 2 is the last voter; nodes 0 and 1 are gone, with their disks or without."""
    for node_id in (0, 1):
        await nodes.stop(node_id)
        if wiped:
            nodes.lose_directory(node_id)
    await nodes.stop(2)
    recovery = recover(nodes.disks[2], DIRECTORY, (), NOW_MS)
    assert (recovery.term, recovery.node, recovery.number) == (1_000_000, 2, 1)


def is_member(node: Node) -> bool:
    return node.agent.registered.is_set()


@in_virtual_time
async def test_a_cluster_goes_on_from_one_voter_and_the_lost_ones_start_anew() -> None:
    async with cluster_of(5) as nodes:
        shard_id = await with_records(nodes)
        term = (await nodes.leader(shard_id)).state.term
        await lose_voters(nodes)
        await nodes.start(2)
        await works(nodes, "after")
        host = await nodes.leader(shard_id)
        assert host.state.high_watermark >= 3, "what was acknowledged is there"
        assert host.state.term > term + 1_000, "no term is used that a lost record may have begun"
        for node_id in (0, 1):
            await nodes.start(node_id)
        await eventually(lambda: all(map(is_member, nodes.nodes.values())))
        await become_voters(nodes, {2})
        await change(nodes, add=3, become={2, 3})
        await change(nodes, add=0, become={0, 2, 3})
        nodes.kill(2)
        await works(nodes, "later")
        found = nodes.nodes[1].view.cluster().recovery
        assert found is not None
        assert found.node == 2


@in_virtual_time
async def test_voters_with_the_old_history_are_refused_and_told_why() -> None:
    """Both come back whole: together they could elect, and go on as if nothing had happened."""
    async with cluster_of(5) as nodes:
        shard_id = await with_records(nodes)
        await lose_voters(nodes, wiped=False)
        await nodes.start(2)
        await works(nodes, "after")
        for node_id in (0, 1):
            await nodes.start(node_id)
        await eventually(
            lambda: all("before the recovery" in str(nodes.nodes[n].shards.broken.get(0)) for n in (0, 1))
        )
        assert not any(is_member(nodes.nodes[n]) for n in (0, 1))
        for node_id in (0, 1):
            await nodes.stop(node_id)
            await nodes.start(node_id)
            assert CLUSTER_SHARD_ID not in nodes.nodes[node_id].hosts, "it remembers that its history is over"
            await nodes.stop(node_id)
            join(nodes.disks[node_id], DIRECTORY)
            node = await nodes.start(node_id)
            await eventually(lambda node=node: is_member(node) and 0 not in node.hosts)  # type: ignore[misc]
            await eventually(lambda node=node: node.hosts[shard_id].log.log_end >= 3)  # type: ignore[misc]
        assert nodes.nodes[2].view.controller == 2
        await change(nodes, add=1, become={1, 2})


@in_virtual_time
async def test_what_a_voter_has_is_told_and_the_longest_log_is_wanted() -> None:
    async with cluster_of(3) as nodes:
        leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
        behind, other = (leader + 1) % 3, (leader + 2) % 3
        await nodes.stop(behind)
        await nodes.nodes[leader].gateway.create_topic(CreateTopic("t", replicas=3))
        for node_id in (leader, other):
            await nodes.stop(node_id)
        found = {node_id: look(nodes.disks[node_id], DIRECTORY) for node_id in range(3)}
        assert found[behind].head < found[leader].head
        assert "t" in found[leader].state.topics
        assert "t" not in found[behind].state.topics
        disk = nodes.disks[behind]
        disk.restore("/longer", nodes.disks[leader].copy(DIRECTORY))
        with pytest.raises(InvalidRequestError, match="the log in /longer has more"):
            recover(disk, DIRECTORY, ["/longer"], NOW_MS)
        assert look(disk, DIRECTORY).head == found[behind].head, "nothing was changed"
        recovery = recover(disk, "/longer", [DIRECTORY], NOW_MS)
        assert recovery.at == found[leader].head.offset


@in_virtual_time
async def test_a_directory_that_is_no_voters_is_refused() -> None:
    async with cluster_of(4) as nodes:
        await nodes.stop(3)
        with pytest.raises(InvalidRequestError, match="node 3, which has no log"):
            look(nodes.disks[3], DIRECTORY)
        with pytest.raises(InvalidRequestError, match="no node's directory"):
            look(nodes.disks[3], "/nowhere")
        await nodes.stop(0)
        disk = nodes.disks[0]
        disk.lose(f"{DIRECTORY}/{SHARDS_NAME}/0")
        with pytest.raises(InvalidRequestError, match="of node 0, which has no log"):
            look(disk, DIRECTORY)
