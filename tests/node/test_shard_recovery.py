"""A shard of which most replicas are lost goes on from the one that an operator names: whole nodes, topics and tables."""

import asyncio
from typing import Any

import pytest
import structlog

import antiphon.aio
from antiphon.coordination.recovery import RECOVERY_TERMS
from antiphon.errors import InvalidRequestError
from antiphon.model.events import EventKind
from antiphon.model.metadata import Kind, ShardMeta
from antiphon.model.placement import RecoverShard
from antiphon.model.requests import AlterTopic, MoveReplica
from antiphon.node.node import Node
from antiphon.partition.partition import Partition
from antiphon.simulation.runtime.network import Network
from tests.node.in_process import Nodes, ask, cluster_of, eventually, in_virtual_time

LEFT, GONE = 2, (3, 4)  # nodes 0 to 2 hold `__cluster`, which lives on
PROFILES = ("oxia", "raft", "tarantool")


def some(nodes: Nodes) -> Node:
    return nodes.nodes[1]


def meta(nodes: Nodes, shard_id: int) -> ShardMeta:
    found = some(nodes).view.shard(shard_id)
    assert found is not None
    return found[1]


async def a_shard(nodes: Nodes, **how: Any) -> int:
    """On node 2 and the two that are to be lost, with a record."""
    shard_id = await nodes.new_shard(replicas=3, placement=((LEFT, *GONE),), **how)
    await nodes.append(shard_id, b"kept")
    await eventually(
        lambda: all(host.log.log_end == ends(nodes, shard_id)[0] for host in hosts(nodes, shard_id))
    )
    return shard_id


def hosts(nodes: Nodes, shard_id: int) -> list[Partition]:
    return [node.hosts[shard_id] for node in nodes.nodes.values() if shard_id in node.hosts]


def ends(nodes: Nodes, shard_id: int) -> list[int]:
    return [host.log.log_end for host in hosts(nodes, shard_id)]


async def lose(nodes: Nodes, shard_id: int, *, disks: bool = True) -> None:
    """Both other replicas go, and for ever if their disks do."""
    for node_id in GONE:
        nodes.kill(node_id)
        if disks:
            nodes.lose_directory(node_id)
    await eventually(lambda: meta(nodes, shard_id).status == "Offline")


async def only_on_the_others(nodes: Nodes, shard_id: int, *values: bytes) -> None:
    """Node 2 is away while these are written."""
    nodes.kill(LEFT)
    for value in values:
        await nodes.append(shard_id, value)
    for node_id in GONE:
        host = nodes.nodes[node_id].hosts[shard_id]
        await eventually(lambda host=host: host.state.high_watermark == host.log.log_end)  # type: ignore[misc]
    for node_id in GONE:
        nodes.kill(node_id)
    await nodes.start(LEFT)
    await eventually(lambda: shard_id in nodes.nodes[LEFT].hosts)
    await eventually(lambda: meta(nodes, shard_id).status == "Offline")


def request(nodes: Nodes, shard_id: int, number: int = 1) -> RecoverShard:
    host = nodes.nodes[LEFT].hosts[shard_id]
    return RecoverShard(shard_id, LEFT, host.state.term, host.log.log_end, number)


async def recover(nodes: Nodes, shard_id: int) -> None:
    await some(nodes).gateway.administer(request(nodes, shard_id))
    known = meta(nodes, shard_id).recovery
    assert known is not None
    assert (known.node, known.done, known.term % RECOVERY_TERMS) == (LEFT, True, 0)


async def is_whole(nodes: Nodes, shard_id: int, replicas: int = 3) -> None:
    """It has its replicas again, and they have the same log."""

    def whole() -> bool:
        shard = meta(nodes, shard_id)
        if shard.goal or shard.outgoing or shard.learners or len(shard.ensemble) != replicas:
            return False
        found = hosts(nodes, shard_id)
        held = {host.services.node_id for host in found}
        logs = {(host.log.end, host.log.durable_end, host.state.high_watermark) for host in found}
        return held == set(shard.ensemble) and len(logs) == 1

    await eventually(whole)


async def values(nodes: Nodes, name: str = "t") -> list[bytes]:
    async with antiphon.aio.connect([nodes.members[0].native]) as client:
        return [bytes(record.value or b"") async for record in client.topic(name).read()]


@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_most_disks_are_lost_and_the_shard_goes_on(profile: str) -> None:
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes, profile=profile)
        await lose(nodes, shard_id)
        await recover(nodes, shard_id)
        await is_whole(nodes, shard_id)
        assert set(meta(nodes, shard_id).ensemble) == {0, 1, LEFT}
        await nodes.append(shard_id, b"after")
        await is_whole(nodes, shard_id)
        assert await values(nodes) == [b"kept", b"after"]
        counted = sum(node.metrics.shards_recovered for node in nodes.nodes.values())
        assert counted == 1, "announced"


@in_virtual_time
async def test_the_log_keeps_who_asked_and_what_is_lost() -> None:
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes)
        await lose(nodes, shard_id)
        with structlog.testing.capture_logs() as logs:
            await ask(nodes.members[0].native, request(nodes, shard_id))
        [asked] = [line for line in logs if line["event"] == "shard_recovery_asked"]
        assert (asked["shard"], asked["node"], asked["by"]) == (shard_id, LEFT, "User:ANONYMOUS")
        [told] = [line for line in logs if line["event"] == "shard_recovered"]
        assert (told["shard"], told["node"], told["lost_from"]) == (shard_id, LEFT, 1)
        await eventually(lambda: any(one.kind == EventKind.RECOVERED for one in some(nodes).gateway.events))


@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_empty_disks_are_filled_again(profile: str) -> None:
    """Three nodes that hold everything, of a cluster of five: those with the new disks are back before the command."""
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes, profile=profile)
        await lose(nodes, shard_id)
        for node_id in GONE:
            await nodes.start(node_id)
        await asyncio.sleep(1)
        assert meta(nodes, shard_id).status == "Offline"
        await recover(nodes, shard_id)
        await is_whole(nodes, shard_id)
        assert await values(nodes) == [b"kept"]


@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_old_replicas_that_come_back_never_act(profile: str) -> None:
    """They hold what was committed and is lost. Each comes back, is a member again by a command, and has the new log."""
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes, profile=profile)
        await only_on_the_others(nodes, shard_id, b"lost", b"lost too")
        await recover(nodes, shard_id)
        await nodes.append(shard_id, b"after")
        await is_whole(nodes, shard_id)
        for node_id, other in zip(GONE, (0, 1), strict=True):
            await nodes.start(node_id)
            assert await nodes.nodes[node_id].joined(20)
            await some(nodes).gateway.administer(MoveReplica(shard_id, other, node_id))
            await eventually(lambda node_id=node_id: node_id in meta(nodes, shard_id).ensemble)  # type: ignore[misc]
            await is_whole(nodes, shard_id)
        assert set(meta(nodes, shard_id).ensemble) == {LEFT, *GONE}
        await nodes.append(shard_id, b"last")
        await is_whole(nodes, shard_id)
        assert await values(nodes) == [b"kept", b"after", b"last"]


@pytest.mark.parametrize("kind", [Kind.TOPIC, Kind.TABLE])
@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_another_replica_that_was_left_and_has_more_begins_anew(profile: str, kind: Kind) -> None:
    """Two of five are left, and the one that has less is named. The other one's node holds the shard again at once."""
    async with cluster_of(5) as nodes, antiphon.aio.connect([one.native for one in nodes.members]) as client:
        shard_id = await nodes.new_shard("t", kind, replicas=5, profile=profile)

        async def write(value: bytes) -> None:
            if kind is Kind.TOPIC:
                await client.topic("t").append(value)
            else:
                await client.table("t").put(value, value)

        await write(b"kept")
        await eventually(lambda: len(set(ends(nodes, shard_id))) == 1)
        nodes.kill(LEFT)
        await write(b"lost")
        await write(b"lost too")
        await eventually(lambda: len(set(ends(nodes, shard_id))) == 1)
        for node_id in (*GONE, 0):
            nodes.kill(node_id)
        await nodes.start(LEFT)
        await eventually(lambda: len(hosts(nodes, shard_id)) == 2)
        await eventually(lambda: meta(nodes, shard_id).status == "Offline")
        assert ends(nodes, shard_id)[0] != ends(nodes, shard_id)[1]
        await recover(nodes, shard_id)
        await write(b"after")
        await is_whole(nodes, shard_id, 2)
        for node_id in (0, *GONE):  # with their old disks
            await nodes.start(node_id)
        await eventually(lambda: all(node.agent.registered.is_set() for node in nodes.nodes.values()))
        await some(nodes).gateway.administer(AlterTopic("t", replicas=5))
        await is_whole(nodes, shard_id, 5)
        await write(b"last")
        if kind is Kind.TOPIC:
            found = [record.value async for record in client.topic("t").read()]
            assert found == [b"kept", b"after", b"last"]
        else:
            assert [row.key async for row in client.table("t").scan()] == [b"after", b"kept", b"last"]


@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_a_majority_that_is_alive_refuses(profile: str) -> None:
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes, profile=profile)
        nodes.kill(GONE[0])
        before = meta(nodes, shard_id)
        with pytest.raises(InvalidRequestError, match=r"is led by node|enough to elect"):
            await some(nodes).gateway.administer(request(nodes, shard_id))
        await nodes.append(shard_id, b"after")
        after = meta(nodes, shard_id)
        assert after.recovery is None
        assert set(after.ensemble) == set(before.ensemble)


@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_nodes_and_the_coordinator_end_while_it_is_carried_out(profile: str) -> None:
    """The node that coordinates and the one that is left are killed, again and again; the request is repeated."""
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes, profile=profile)
        await lose(nodes, shard_id)
        asked = request(nodes, shard_id)
        for wait_s in (0.003, 0.006, 0.012, 0.05):
            command = asyncio.ensure_future(some(nodes).gateway.administer(asked, timeout_s=5))
            await asyncio.sleep(wait_s)
            for node_id in (LEFT, 0):
                nodes.kill(node_id)
            for node_id in (LEFT, 0):
                await nodes.start(node_id)
            await asyncio.gather(command, return_exceptions=True)
            for node in nodes.nodes.values():
                assert await node.joined(20)
        await eventually(lambda: LEFT in nodes.nodes and shard_id in nodes.nodes[LEFT].hosts)
        await some(nodes).gateway.administer(asked)
        await is_whole(nodes, shard_id)
        known = meta(nodes, shard_id).recovery
        assert known is not None
        assert (known.number, known.node, known.done) == (1, LEFT, True)
        await nodes.append(shard_id, b"after")
        assert await values(nodes) == [b"kept", b"after"]


def cut(nodes: Nodes, sources: tuple[int, ...], targets: tuple[int, ...], *, heal: bool = False) -> None:
    """Nothing gets from these nodes to those, or all does again."""
    network = nodes.network
    assert isinstance(network, Network)
    for source in sources:
        for target in targets:
            (network.heal if heal else network.cut)(f"node-{source}", f"node-{target}")


@in_virtual_time
async def test_a_lost_leader_that_has_not_heard_fills_no_new_replica() -> None:
    """Both lost nodes come back with their disks, and elect in the old history. The one that follows hears of the new."""
    others = (0, 1, LEFT)
    async with cluster_of(5) as nodes:
        shard_id = await a_shard(nodes, profile="raft")
        await only_on_the_others(nodes, shard_id, b"lost", b"lost too")
        await recover(nodes, shard_id)
        await nodes.append(shard_id, b"after")
        await is_whole(nodes, shard_id)
        cut(nodes, others, GONE)
        cut(nodes, GONE, others)
        for node_id in GONE:
            await nodes.start(node_id)
        old = [nodes.nodes[node_id] for node_id in GONE]
        await eventually(lambda: any(node.hosts[shard_id].state.is_serving for node in old))
        deaf = next(node.node_id for node in old if node.hosts[shard_id].state.is_serving)
        hears = sum(GONE) - deaf
        cut(nodes, others, (hears,), heal=True)
        cut(nodes, (hears,), others, heal=True)
        assert await nodes.nodes[hears].joined(20)
        cut(nodes, (LEFT,), (hears,))  # the lost leader is the first to be heard
        await some(nodes).gateway.administer(MoveReplica(shard_id, 1, hears))
        await eventually(lambda: shard_id in nodes.nodes[hears].hosts)
        await asyncio.sleep(0.3)
        assert nodes.nodes[hears].hosts[shard_id].log.log_end == 0
        cut(nodes, (LEFT,), (hears,), heal=True)
        await eventually(lambda: hears in meta(nodes, shard_id).ensemble)
        found = nodes.nodes[hears].hosts[shard_id]
        assert found.state.term > RECOVERY_TERMS
        assert found.log.end == nodes.nodes[LEFT].hosts[shard_id].log.end
        assert not nodes.nodes[deaf].agent.registered.is_set()
        cut(nodes, others, GONE, heal=True)
        cut(nodes, GONE, others, heal=True)
        await eventually(lambda: shard_id not in nodes.nodes[deaf].hosts)


@pytest.mark.parametrize("profile", PROFILES)
@in_virtual_time
async def test_who_hears_of_both_at_once_gives_up_what_is_open(profile: str) -> None:
    """A replica that was left is a learner of the new history before its node hears of the recovery, and starts anew."""
    async with cluster_of(7) as nodes:
        shard_id = await nodes.new_shard(replicas=5, profile=profile, placement=((2, 3, 4, 5, 6),))
        await nodes.append(shard_id, b"kept")
        await eventually(lambda: len(set(ends(nodes, shard_id))) == 1)
        nodes.kill(LEFT)
        await nodes.append(shard_id, b"lost")
        await eventually(lambda: len(set(ends(nodes, shard_id))) == 1)
        for node_id in (4, 5, 6):
            nodes.kill(node_id)
        cut(nodes, (LEFT,), (3,))  # before it can be told what it lacks
        await nodes.start(LEFT)
        await eventually(lambda: shard_id in nodes.nodes[LEFT].hosts)
        await eventually(lambda: meta(nodes, shard_id).status == "Offline")
        cut(nodes, (0, 1), (3,))
        await recover(nodes, shard_id)
        await eventually(lambda: 3 in meta(nodes, shard_id).learners)
        nodes.kill(3)
        cut(nodes, (0, 1, LEFT), (3,), heal=True)
        await nodes.start(3)
        await eventually(lambda: 3 in meta(nodes, shard_id).ensemble)
        await nodes.append(shard_id, b"after")
        assert await values(nodes) == [b"kept", b"after"]
        found = nodes.nodes[3].hosts[shard_id]
        await eventually(lambda: found.log.end == nodes.nodes[LEFT].hosts[shard_id].log.end)


@in_virtual_time
async def test_a_table_goes_on_with_its_rows() -> None:
    async with cluster_of(5) as nodes, antiphon.aio.connect([nodes.members[0].native]) as client:
        shard_id = await nodes.new_shard("rows", Kind.TABLE, replicas=3, placement=((LEFT, *GONE),))
        table = client.table("rows")
        await table.put("kept", b"1")
        await eventually(lambda: len(set(ends(nodes, shard_id))) == 1)
        nodes.kill(LEFT)
        await table.put("lost", b"2")
        for node_id in GONE:
            nodes.kill(node_id)
        await nodes.start(LEFT)
        await eventually(lambda: shard_id in nodes.nodes[LEFT].hosts)
        await eventually(lambda: meta(nodes, shard_id).status == "Offline")
        await recover(nodes, shard_id)
        assert (await table.get("kept")).value == b"1"
        await table.put("after", b"3")
        await is_whole(nodes, shard_id)
        await some(nodes).gateway.administer(AlterTopic("rows", replicas=3))
        assert [row.key async for row in table.scan()] == [b"after", b"kept"]


@in_virtual_time
async def test_who_was_away_at_the_recovery_finds_it_done() -> None:
    """The second replica that is left is away when the first one is named, and finds that all is over."""
    async with cluster_of(5) as nodes:
        shard_id = await nodes.new_shard(replicas=5)
        await nodes.append(shard_id, b"kept")
        await eventually(lambda: len(set(ends(nodes, shard_id))) == 1)
        other = nodes.nodes[1].hosts[shard_id]
        end = other.log.log_end
        for node_id in GONE:
            nodes.kill(node_id)
            nodes.lose_directory(node_id)
        nodes.kill(LEFT)  # for a moment: `__cluster` has two of its three
        await eventually(lambda: meta(nodes, shard_id).status == "Offline")
        with pytest.raises(Exception, match="is not alive"):
            await some(nodes).gateway.administer(RecoverShard(shard_id, LEFT, 9, end))
        await some(nodes).gateway.administer(RecoverShard(shard_id, 1, 9, end))
        await eventually(lambda: meta(nodes, shard_id).status == "Online")
        await nodes.start(LEFT)
        await eventually(lambda: len(meta(nodes, shard_id).ensemble) >= 2)
        assert await values(nodes) == [b"kept"]
        assert (
            not nodes.disks[LEFT].exists(nodes.shard_path(LEFT, shard_id)[1])
            or LEFT in meta(nodes, shard_id).everybody
        )
