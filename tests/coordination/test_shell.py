"""The coordinator on real nodes: sockets, disks and the log of `__cluster` in one process."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from antiphon.coordination.actions import Action
from antiphon.errors import AntiphonError, InvalidRequestError, TopicExistsError
from antiphon.invariants import InvariantError
from antiphon.model.cluster import Heartbeat, HeartbeatReply, Register
from antiphon.model.metadata import ShardStatus
from antiphon.model.requests import AlterTopic, CreateTopic
from antiphon.node.config import Member, NodeConfig, Ports
from antiphon.node.node import Node
from antiphon.records.builder import build_batch
from antiphon.server.server import Server
from tests.coroutines import run_by

pytestmark = pytest.mark.cluster


def _run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test())


on_uvloop = run_by(_run)


class LocalNodes:
    """Nodes on this event loop, on ports that stay theirs."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
        self.ports = [one.getsockname()[1] for one in held]
        self.sockets = dict(enumerate(held))
        self.servers: dict[int, Server] = {}
        self.nodes: dict[int, Node] = {}

    async def start(self, node_id: int) -> Node:
        directory = self.directory / f"node-{node_id}"
        directory.mkdir(exist_ok=True)
        config = NodeConfig(
            cluster_id="cluster",
            node_id=node_id,
            nodes=[Member(i, f"127.0.0.1:{port}") for i, port in enumerate(self.ports)],
            dir=directory,
            bootstrap=True,
            ports=Ports(native=self.ports[node_id], kafka=-1, http=-1),
        )
        held = self.sockets.pop(node_id, None)
        sockets = {"native": held} if held is not None else None
        server = self.servers[node_id] = Server(config, sockets, finishes_epochs=False)
        self.nodes[node_id] = server.node
        await server.start()
        return server.node

    async def start_all(self) -> None:
        for node_id in range(len(self.ports)):
            await self.start(node_id)
        await self.until(lambda: all(self.is_online(node) for node in self.nodes.values()))

    async def stop(self, node_id: int) -> None:
        del self.nodes[node_id]
        await self.servers.pop(node_id).stop()

    async def stop_all(self) -> None:
        for node_id in list(self.nodes):
            await self.stop(node_id)

    async def until(self, condition: Callable[[], bool], within_s: float = 20.0) -> None:
        """Ask every few milliseconds; fails after `within_s`."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - several nodes' states have no event in common
                await asyncio.sleep(0.005)

    def is_online(self, node: Node) -> bool:
        """Does the node's metadata show every shard led, and followed by all nodes that run?"""
        topics = node.view.cluster().topics
        return bool(topics) and all(
            shard.status is ShardStatus.ONLINE and set(shard.live) == set(self.nodes)
            for topic in topics
            for shard in topic.shards
        )

    def all_online(self) -> bool:
        return all(self.is_online(node) for node in self.nodes.values())

    def coordinator(self) -> Node:
        return next(n for n in self.nodes.values() if n.coordinator is not None and n.coordinator.is_active)


@on_uvloop
async def test_cluster_through_coordinator_loss_and_returns(tmp_path: Path) -> None:
    local = LocalNodes(tmp_path, 3)
    await local.start_all()
    try:
        first = local.coordinator()
        asked = next(node for node in local.nodes.values() if node is not first)
        topic = await asked.gateway.create_topic(CreateTopic("t", shards=12, replicas=3))
        leaders = [shard.leader for shard in topic.shards]
        assert sorted(set(leaders)) == [0, 1, 2]
        with pytest.raises(TopicExistsError):
            await asked.gateway.create_topic(CreateTopic("t"))
        with pytest.raises(InvalidRequestError, match="did you mean"):
            await asked.gateway.alter_topic(AlterTopic("t", config={"retention.mss": "1"}))
        await asked.gateway.alter_topic(AlterTopic("t", config={"retention.ms": "60000"}))
        assert asked.gateway.topic("t").config == {"retention.ms": "60000"}
        ids = [await node.gateway.new_producer_id() for node in local.nodes.values() for _ in range(3)]
        assert len(set(ids)) == len(ids)

        gone = first.node_id
        await local.stop(gone)
        await local.until(local.all_online)
        second = local.coordinator()
        assert second is not first
        assert gone not in {shard.leader for shard in second.gateway.topic("t").shards}
        shard = second.gateway.topic("t").shards[0]
        leader = local.nodes[shard.leader]
        result = await leader.gateway.append(shard.shard_id, build_batch([(None, b"x", (), 0)]))
        assert result.term == shard.term

        back = await local.start(gone)
        await local.until(local.all_online)
        assert back.gateway.topic("t").config == {"retention.ms": "60000"}
        assert back.view.controller == local.coordinator().node_id
        await asked.gateway.delete_topic("t")
        await local.until(lambda: all("t" not in node.view.topics for node in local.nodes.values()))
    finally:
        await local.stop_all()


@on_uvloop
async def test_quick_restart_is_noticed_and_mended(tmp_path: Path) -> None:
    local = LocalNodes(tmp_path, 3)
    await local.start_all()
    try:
        coordinator = local.coordinator()
        victim = next(node_id for node_id in local.nodes if node_id != coordinator.node_id)
        await coordinator.gateway.create_topic(CreateTopic("t", shards=6, replicas=3))
        terms = {s.shard_id: s.term for s in coordinator.gateway.topic("t").shards if s.leader == victim}
        assert terms
        await local.stop(victim)
        again = await local.start(victim)
        await local.until(
            lambda: (
                local.all_online()
                and coordinator.view.nodes[victim].incarnation == again.incarnation
                and all(coordinator.gateway.shard(s)[1].term > term for s, term in terms.items())
            )
        )
    finally:
        await local.stop_all()


@on_uvloop
async def test_whole_cluster_restarts_with_its_metadata(tmp_path: Path) -> None:
    local = LocalNodes(tmp_path, 3)
    await local.start_all()
    topic = await local.nodes[0].gateway.create_topic(CreateTopic("t", shards=5, replicas=3))
    before = await local.nodes[0].gateway.new_producer_id()
    await local.stop_all()
    await local.start_all()
    try:
        again = local.nodes[1].gateway.topic("t")
        assert again.topic_id == topic.topic_id
        assert [s.shard_id for s in again.shards] == [s.shard_id for s in topic.shards]
        assert await local.nodes[0].gateway.new_producer_id() > before
    finally:
        await local.stop_all()


@on_uvloop
async def test_single_node_and_what_the_shell_refuses(tmp_path: Path) -> None:
    local = LocalNodes(tmp_path, 1)
    await local.start_all()
    node = local.nodes[0]
    try:
        shell = node.coordinator
        assert shell is not None
        answers: list[Any] = []
        shell.request(7, Heartbeat(8, "x", 0), answers.append)
        shell.request(7, Register("cluster", node.meta()), answers.append)
        shell.request(7, CreateTopic("x"), answers.append)
        assert [type(answer) for answer in answers] == [InvalidRequestError] * 3
        answers.clear()
        shell.request(7, Heartbeat(7, "x", 0), answers.append)
        assert isinstance(answers[0], HeartbeatReply)
        assert not answers[0].registered
    finally:
        await local.stop_all()
    answers.clear()
    shell.request(0, Register("cluster", node.meta()), answers.append)
    assert isinstance(answers[0], AntiphonError), "a node that stopped coordinates no more"


@on_uvloop
async def test_coordinator_that_breaks_down_starts_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalNodes(tmp_path, 1)
    await local.start_all()
    node = local.nodes[0]
    shell = node.coordinator
    assert shell is not None
    broken = shell.coordinator
    assert broken is not None

    def bug(_now_ms: int, _has_room: bool, _own: object) -> list[Action]:
        raise InvariantError("a bug")

    try:
        monkeypatch.setattr("antiphon.node.coordinator_shell.RESTART_PAUSE_S", 0.05)
        monkeypatch.setattr(broken, "tick", bug)
        await local.until(lambda: shell.coordinator not in {None, broken})
        await node.gateway.create_topic(CreateTopic("t"))
    finally:
        await local.stop_all()
