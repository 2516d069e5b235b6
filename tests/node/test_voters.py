"""The voters of `__cluster` change: they are added, removed and replaced, and nodes go by who votes now."""

from collections.abc import Collection
from random import Random

import msgspec
import pytest

from antiphon.errors import InvalidRequestError
from antiphon.log.disk import read_whole, replace_file
from antiphon.log.simulated_disk import SimulatedDisk
from antiphon.model.metadata import CLUSTER_SHARD_ID, ShardMeta
from antiphon.model.requests import AlterVoters, CreateTopic, RemoveNode
from antiphon.node.config import Member, NodeConfig, Ports
from antiphon.node.known_voters import Address, Note, read_note, write_note
from antiphon.node.node import Node
from antiphon.replication.members import Members
from antiphon.replication.raft import RaftReplica
from antiphon.simulation.runtime.network import Network
from tests.node.in_process import (
    DIRECTORY,
    NATIVE_PORT,
    Nodes,
    cluster_of,
    eventually,
    in_virtual_time,
)


def some(nodes: Nodes) -> Node:
    return next(iter(nodes.nodes.values()))


def voters(nodes: Nodes, node_id: int) -> ShardMeta:
    found = nodes.nodes[node_id].view.cluster().voters
    assert found is not None
    return found


def members(nodes: Nodes, node_id: int) -> Members:
    replica = nodes.nodes[node_id].hosts[CLUSTER_SHARD_ID].replica
    assert isinstance(replica, RaftReplica)
    return replica.members


async def change(nodes: Nodes, *, add: int = -1, remove: int = -1, become: Collection[int]) -> None:
    """Carry a change out, and wait until every node that runs knows that it is done."""
    await some(nodes).gateway.administer(AlterVoters(add, remove))
    await become_voters(nodes, become)


async def become_voters(nodes: Nodes, wanted: Collection[int]) -> None:
    def done() -> bool:
        for node_id, node in nodes.nodes.items():
            known = voters(nodes, node_id)
            if set(known.everybody) != set(wanted) or known.goal:
                return False
            if (CLUSTER_SHARD_ID in node.hosts) != (node_id in wanted):
                return False
        return True

    await eventually(done)
    for node_id in wanted:
        if node_id in nodes.nodes:
            await eventually(lambda one=node_id: set(members(nodes, one).voters) == set(wanted))  # type: ignore[misc]


async def works(nodes: Nodes, topic: str) -> None:
    """A topic can be made, and every node hears of it."""
    await some(nodes).gateway.create_topic(CreateTopic(topic, replicas=3))
    await eventually(lambda: all(topic in node.view.topics for node in nodes.nodes.values()))


def test_a_note_that_cannot_be_read_says_nothing() -> None:
    disk = SimulatedDisk(Random(0))
    disk.makedirs("/d")
    note = Note(ShardMeta(CLUSTER_SHARD_ID, 0, (3, 4)), (Address(3, "a:1"), Address(4, "b:2", "b:3")), 7)
    write_note(disk, "/d/voters", note)
    assert read_note(disk, "/d/voters") == note
    written = read_whole(disk, "/d/voters")
    assert written is not None
    assert read_note(disk, "/d/none") is None
    for cut in range(len(written)):
        replace_file(disk, "/d/voters", written[:cut])
        assert read_note(disk, "/d/voters") is None
        replace_file(disk, "/d/voters", written[:cut] + bytes([written[cut] ^ 1]) + written[cut + 1 :])
        assert read_note(disk, "/d/voters") is None


class FewFounders(Nodes):
    """Only node 0 is named as a founder; the others are told of it alone."""

    def config(self, node_id: int, *, first: bool = False) -> NodeConfig:
        return msgspec.structs.replace(
            super().config(node_id, first=first and node_id == 0), nodes=self.members[:1]
        )


@in_virtual_time
async def test_a_cluster_goes_from_one_voter_to_three_to_five_and_survives_its_founder() -> None:
    nodes = FewFounders(6)
    try:
        await nodes.start_all()
        for new, now in ((1, {0, 1}), (2, {0, 1, 2}), (3, {0, 1, 2, 3}), (4, {0, 1, 2, 3, 4})):
            await change(nodes, add=new, become=now)
        await works(nodes, "a")
        nodes.kill(0)
        nodes.kill(3)
        await works(nodes, "b")
        await nodes.start(3)
        await change(nodes, add=5, remove=0, become={1, 2, 3, 4, 5})
        for node_id in list(nodes.nodes):  # nobody whom the configuration names is there
            await nodes.stop(node_id)
        for node_id in (1, 2, 3, 4, 5):
            await nodes.start(node_id)
        await works(nodes, "c")
        await nodes.start(0)  # it knows nobody, and nobody whom it knows votes
        await become_voters(nodes, {1, 2, 3, 4, 5})
        assert "c" in nodes.nodes[0].view.topics
    finally:
        await nodes.close()


@in_virtual_time
async def test_a_voter_whose_disk_is_lost_is_replaced() -> None:
    async with cluster_of(4) as nodes:
        await works(nodes, "a")
        nodes.kill(1)
        nodes.lose_directory(1)
        await change(nodes, add=3, remove=1, become={0, 2, 3})
        await nodes.start(1)
        await become_voters(nodes, {0, 2, 3})
        nodes.kill(0)
        await works(nodes, "b")


@in_virtual_time
async def test_the_leader_is_removed_and_comes_back_later() -> None:
    async with cluster_of(4) as nodes:
        leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
        rest = {0, 1, 2, 3} - {leader}
        await change(nodes, add=3, remove=leader, become=rest)
        term = (await nodes.leader(CLUSTER_SHARD_ID)).state.term
        await nodes.stop(leader)
        await nodes.start(leader)
        await works(nodes, "a")
        assert (await nodes.leader(CLUSTER_SHARD_ID)).state.term == term, "who was removed disturbs nobody"
        await change(nodes, add=leader, become={0, 1, 2, 3})
        nodes.kill(next(iter(rest)))
        await works(nodes, "b")


@in_virtual_time
async def test_a_voter_that_was_down_while_it_was_removed_disturbs_nobody() -> None:
    async with cluster_of(4) as nodes:
        leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
        victim = (leader + 1) % 3
        nodes.kill(victim)
        await change(nodes, add=3, remove=victim, become={0, 1, 2, 3} - {victim})
        term = (await nodes.leader(CLUSTER_SHARD_ID)).state.term
        await nodes.start(victim)
        await become_voters(nodes, {0, 1, 2, 3} - {victim})
        assert (await nodes.leader(CLUSTER_SHARD_ID)).state.term == term


@in_virtual_time
async def test_an_added_voter_that_comes_back_empty_has_forgotten_what_it_promised() -> None:
    """Its configuration does not name it among the voters."""
    async with cluster_of(4) as nodes:
        await change(nodes, add=3, become={0, 1, 2, 3})
        nodes.kill(3)
        nodes.lose_directory(3)
        await nodes.start(3)
        await eventually(lambda: CLUSTER_SHARD_ID in nodes.nodes[3].hosts)
        host = nodes.nodes[3].hosts[CLUSTER_SHARD_ID]
        assert host.replica.damaged
        await eventually(lambda: host.log.damaged is None)
        leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
        nodes.kill(next(one for one in (0, 1, 2) if one != leader))
        await works(nodes, "a")


@in_virtual_time
async def test_what_cannot_be_is_refused_with_the_reason() -> None:
    async with cluster_of(4) as nodes:
        for request, reason in (
            (AlterVoters(), "no node was named"),
            (AlterVoters(add=9), "node 9 is no member of this cluster"),
            (AlterVoters(add=1), "votes in `__cluster` already"),
            (AlterVoters(remove=3), "node 3 does not vote"),
            (AlterVoters(cancel=True), "no change"),
        ):
            with pytest.raises(InvalidRequestError, match=reason):
                await some(nodes).gateway.administer(request)
        await nodes.stop(3)
        await eventually(lambda: not some(nodes).view.nodes[3].alive)
        with pytest.raises(InvalidRequestError, match="node 3 is down"):
            await some(nodes).gateway.administer(AlterVoters(add=3))
        victim = next(one for one in (0, 1, 2) if one != some(nodes).view.controller)
        await nodes.stop(victim)
        await eventually(lambda: not some(nodes).view.nodes[victim].alive)
        with pytest.raises(InvalidRequestError, match="would lose the majority"):
            await some(nodes).gateway.administer(AlterVoters(remove=some(nodes).view.controller))
        with pytest.raises(InvalidRequestError, match="node voters --replace"):
            await some(nodes).gateway.administer(RemoveNode(victim))


@in_virtual_time
async def test_a_change_that_cannot_go_on_is_taken_back() -> None:
    async with cluster_of(4) as nodes:
        leader = (await nodes.leader(CLUSTER_SHARD_ID)).services.node_id
        assert isinstance(nodes.network, Network)
        nodes.network.cut(f"node-{leader}", "node-3")
        await some(nodes).gateway.administer(AlterVoters(add=3))
        await eventually(lambda: 3 in voters(nodes, leader).learners)
        with pytest.raises(InvalidRequestError, match="one change is made at a time"):
            await some(nodes).gateway.administer(AlterVoters(remove=0))
        await some(nodes).gateway.administer(AlterVoters(cancel=True))
        nodes.network.heal(f"node-{leader}", "node-3")
        await become_voters(nodes, {0, 1, 2})
        await works(nodes, "a")


def moved(nodes: Nodes, port: int) -> None:
    """All nodes are configured to listen elsewhere, and node.toml of each says where all others are."""
    nodes.members = [Member(member.id, f"node-{member.id}:{port}") for member in nodes.members]
    nodes.told["ports"] = Ports(port, -1, -1, -1)


async def stopped(nodes: Nodes) -> None:
    for node_id in list(nodes.nodes):
        await nodes.stop(node_id)


async def started_again(nodes: Nodes) -> None:
    for member in nodes.members:
        await nodes.start(member.id)
    for node in nodes.nodes.values():
        assert await node.joined(20)


@in_virtual_time
async def test_all_nodes_move_to_new_addresses_while_they_are_down() -> None:
    """What was noted of the voters, and what the metadata says, is of before: the operator's word counts too."""
    async with cluster_of(3) as nodes:
        await change(nodes, remove=2, become={0, 1})
        await change(nodes, add=2, become={0, 1, 2})
        await stopped(nodes)
        assert read_note(nodes.disks[0], f"{DIRECTORY}/voters") is not None
        moved(nodes, 7500)
        await started_again(nodes)
        await works(nodes, "after")
        await eventually(
            lambda: all(
                one.native.endswith(":7500")
                for node in nodes.nodes.values()
                for one in node.view.nodes.values()
            )
        )
        await stopped(nodes)  # and what is noted now is where they are
        await started_again(nodes)
        await works(nodes, "again")


@in_virtual_time
async def test_nodes_that_were_moved_without_a_word_in_node_toml_are_found_where_they_were_noted() -> None:
    async with cluster_of(3) as nodes:
        await change(nodes, remove=2, become={0, 1})
        await change(nodes, add=2, become={0, 1, 2})
        configured = list(nodes.members)
        await stopped(nodes)
        moved(nodes, 7500)
        await started_again(nodes)
        await works(nodes, "after")
        await stopped(nodes)
        nodes.members = configured  # one that was written before the move
        await started_again(nodes)
        await works(nodes, "again")


@in_virtual_time
async def test_a_note_that_leads_to_other_nodes_does_no_harm() -> None:
    async with cluster_of(3) as nodes:
        await stopped(nodes)
        for disk in nodes.disks.values():
            wrong = tuple(Address(one, f"node-{(one + 1) % 3}:{NATIVE_PORT}") for one in range(3))
            note = Note(ShardMeta(CLUSTER_SHARD_ID, 0, (0, 1, 2)), wrong)
            write_note(disk, f"{DIRECTORY}/voters", note)
        await started_again(nodes)
        await works(nodes, "after")
