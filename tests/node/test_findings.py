"""What a node knows to be wrong, however many healthy replicas it has."""

from typing import Any

import pytest

from antiphon.errors import DamagedLogError, StorageFailedError
from antiphon.log.recovery import DamageReport
from antiphon.model.requests import CreateTopic
from antiphon.node import findings
from antiphon.node.node import Node
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time

SHARDS = 120


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards whose replicas were asked how they are."""
    found: list[int] = []
    at_once = findings._state_of

    def state_of(shard_id: int, host: Any) -> Any:
        found.append(shard_id)
        return at_once(shard_id, host)

    monkeypatch.setattr(findings, "_state_of", state_of)
    return found


async def many_shards(nodes: Nodes) -> list[int]:
    topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", shards=SHARDS, replicas=1))
    shards = [shard.shard_id for shard in topic.shards]
    for shard_id in shards:
        await nodes.leader(shard_id)
    return shards


def kinds(node: Node) -> dict[int, str]:
    return {one.shard_id: one.kind for one in node.care.findings.now}


@in_virtual_time
async def test_a_look_asks_few_of_many_healthy_replicas_and_all_of_them_in_turn(asked: list[int]) -> None:
    async with cluster_of(1) as nodes:
        shards = await many_shards(nodes)
        node = nodes.nodes[0]
        node.care.findings.look()
        asked.clear()
        node.care.findings.look()
        assert len(asked) <= findings.OTHERS < SHARDS
        for _ in range(2 * len(node.hosts) // findings.OTHERS):
            node.care.findings.look()
        assert set(shards) <= set(asked)


@in_virtual_time
async def test_a_replica_that_stops_is_told_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(1) as nodes:
        shards = await many_shards(nodes)
        node = nodes.nodes[0]
        monkeypatch.setattr(findings, "OTHERS", 0)  # nobody finds it by chance
        node.care.findings.look()
        node.hosts[shards[7]].driver.fail(StorageFailedError("the disk failed"))
        await eventually(lambda: kinds(node) == {shards[7]: "replica_stopped"}, 3.0)
        node.care.findings.look()
        assert kinds(node) == {shards[7]: "replica_stopped"}, "and for as long as it is so"


@in_virtual_time
async def test_a_damaged_replica_is_told_from_its_opening_until_it_is_mended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of(3) as nodes:
        monkeypatch.setattr(findings, "OTHERS", 0)
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", replicas=3))
        shard_id = topic.shards[0].shard_id
        for number in range(4):
            await nodes.append(shard_id, b"%d" % number)
        leader = (await nodes.leader(shard_id)).services.node_id
        node = nodes.nodes[(leader + 1) % 3]
        host = node.hosts[shard_id]
        await eventually(lambda: host.log.durable_end >= 4)
        await nodes.stop((leader + 2) % 3)  # two of three, of which one is damaged, elect nobody
        host.log.note_damage(DamageReport(2, host.log.path, 0, "the disk lost it"))
        host.driver.fail(DamagedLogError("the disk lost it", offset=2, position=0))
        await eventually(lambda: kinds(node).get(shard_id) == "log_damaged")
        nodes.kill(node.node_id)
        node = await nodes.start(node.node_id)
        await eventually(lambda: kinds(node).get(shard_id) == "log_damaged")
        await nodes.start((leader + 2) % 3)
        await eventually(lambda: node.hosts[shard_id].status().state == "ok")
        await eventually(lambda: shard_id not in kinds(node))
