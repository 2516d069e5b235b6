"""Nodes that share a key: they are a cluster, nobody else becomes a node of it, and it takes no part in another one."""

import asyncio
from typing import Any

import pytest
import structlog

from antiphon.errors import AntiphonError, InvalidRequestError, UnprovenNodeError
from antiphon.model.peer_handshake import PeerChallenge, PeerHello, PeerProof
from antiphon.model.requests import PROTOCOL_VERSION, CreateTopic, GetMetadata, Hello, HelloReply
from antiphon.node.config import Member, NodeConfig, Ports, check_config
from antiphon.security.settings import Security
from antiphon.wire.frames import FrameDecoder, MessageDecoder, encode_message
from tests.node.in_process import (
    NATIVE_PORT,
    PEER_PORT,
    Nodes,
    ask,
    cluster_of,
    eventually,
    in_virtual_time,
)

KEY = b"the key of all nodes, long enough it is"
decode = MessageDecoder(PeerChallenge | HelloReply | Any)


class Stranger:
    """Somebody who speaks to a node without being one."""

    async def connect(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("node-0", port)
        self._frames = FrameDecoder()

    async def say(self, body: Any) -> list[Any]:
        """What comes back: [type, ...], or the end of the connection as []."""
        self._writer.writelines(encode_message(1, body))
        while True:
            data = await self._reader.read(65536)
            if not data:
                return []
            for frame in self._frames.feed(data):
                answer: list[Any] = decode(frame.header)[1]
                return answer

    async def is_cut(self) -> bool:
        return await self._reader.read(65536) == b""


def hello(**change: Any) -> PeerHello:
    told = {"cluster_id": "test", "node_id": 2, "to_node": 0, "incarnation": "i", "nonce": bytes(32)}
    return PeerHello(PROTOCOL_VERSION, **{**told, **change})


@in_virtual_time
async def test_nodes_with_one_key_are_a_cluster() -> None:
    async with cluster_of(3, secrets=dict.fromkeys(range(3), KEY)) as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("flights"))
        assert await nodes.append(nodes.nodes[0].gateway.topic("flights").shards[0].shard_id, b"x") == 1
        metas = sorted(nodes.nodes[0].view.nodes.values(), key=lambda meta: meta.node_id)
        assert [meta.peer for meta in metas] == [f"node-{i}:{PEER_PORT}" for i in range(3)]
        for node in nodes.nodes.values():
            assert {link.address for link in node.network.links.values()} <= {m.peer for m in nodes.members}
            assert node.metrics.nodes_refused == 0


@in_virtual_time
async def test_a_node_comes_back_and_proves_itself_again() -> None:
    async with cluster_of(3, secrets=dict.fromkeys(range(3), KEY)) as nodes:
        nodes.kill(1)
        await eventually(lambda: 1 in nodes.nodes[0].network.lost)
        await nodes.start(1)
        assert await nodes.nodes[1].joined(20)
        await eventually(lambda: not nodes.nodes[0].network.lost)


@pytest.mark.parametrize("dial", ["leader", "follower"])
@in_virtual_time
async def test_proven_connections_carry_feeds_both_ways(dial: str) -> None:
    async with cluster_of(3, dial=dial, secrets=dict.fromkeys(range(3), KEY)) as nodes:
        await nodes.nodes[0].gateway.create_topic(CreateTopic("flights"))
        assert await nodes.append(nodes.nodes[0].gateway.topic("flights").shards[0].shard_id, b"x") == 1


@in_virtual_time
async def test_a_node_with_another_key_takes_no_part() -> None:
    nodes = Nodes(3, secrets={0: KEY, 1: KEY, 2: b"another key, that nobody else knows of"})
    with structlog.testing.capture_logs() as told:
        for node_id in range(3):
            await nodes.start(node_id, first=True)
        assert await nodes.nodes[0].joined(20)
        assert await nodes.nodes[1].joined(20)
        assert not await nodes.nodes[2].joined(5)
    assert 2 not in nodes.nodes[0].view.nodes
    assert any("did not prove" in line.get("answer", "") for line in told)
    for node in nodes.nodes.values():
        for link in node.network.links.values():
            assert not (link.up and 2 in {node.node_id, link.node_id})
    await nodes.close()


@in_virtual_time
async def test_saying_so_makes_nobody_a_node() -> None:
    async with cluster_of(1, secrets={0: KEY}) as nodes:
        for port in (NATIVE_PORT, PEER_PORT):
            stranger = Stranger()
            await stranger.connect(port)
            answer = await stranger.say(Hello(PROTOCOL_VERSION, "node", "test", 2, "i"))
            assert not answer or answer[1] == UnprovenNodeError.code
            assert await stranger.is_cut()
        assert nodes.nodes[0].metrics.nodes_refused == 1  # the other one broke the protocol of the port
        assert not nodes.nodes[0].network.accepted.newest


@in_virtual_time
async def test_a_wrong_proof_is_refused() -> None:
    async with cluster_of(1, secrets={0: KEY}) as nodes:
        stranger = Stranger()
        await stranger.connect(PEER_PORT)
        challenge = await stranger.say(hello())
        assert challenge[0] == "PeerChallenge"
        answer = await stranger.say(PeerProof(challenge[2]))  # its own
        assert answer[1] == UnprovenNodeError.code
        assert await stranger.is_cut()
        assert not nodes.nodes[0].network.accepted.newest


@in_virtual_time
async def test_who_proves_nothing_is_not_waited_for() -> None:
    async with cluster_of(1, secrets={0: KEY}) as nodes:
        stranger = Stranger()
        await stranger.connect(PEER_PORT)
        assert await stranger.is_cut()
        assert nodes.nodes[0].metrics.nodes_refused == 1


@in_virtual_time
async def test_clients_do_not_get_in_by_the_listener_for_nodes() -> None:
    async with cluster_of(1, secrets={0: KEY}):
        assert await ask(f"node-0:{NATIVE_PORT}", GetMetadata())
        with pytest.raises((AntiphonError, ConnectionError)):
            await ask(f"node-0:{PEER_PORT}", GetMetadata())


@in_virtual_time
async def test_a_key_that_is_not_there_is_named() -> None:
    nodes = Nodes(1, secrets={})
    with pytest.raises(InvalidRequestError, match="copy it from another node"):
        await nodes.start(0, first=True)


@pytest.mark.parametrize(
    ("ports", "security"), [(Ports(peer=0), Security()), (Ports(), Security(peer_key="k"))]
)
def test_key_and_port_belong_together(ports: Ports, security: Security) -> None:
    config = NodeConfig(cluster_id="c", node_id=0, nodes=[Member(0, "h:1")], ports=ports, security=security)
    with pytest.raises(InvalidRequestError, match="belong together"):
        check_config(config)


@in_virtual_time
async def test_silent_connections_do_not_keep_a_node_out() -> None:
    """Strangers hold every place on the nodes' port, and take each one that becomes free at once."""
    async with cluster_of(3, secrets=dict.fromkeys(range(3), KEY)) as nodes:
        peers = nodes.servers[0].peers
        assert peers is not None
        peers.limits = peers.limits._replace(connections=10)
        nodes.kill(2)
        over = False

        async def silent() -> None:
            while not over:
                reader, writer = await asyncio.open_connection("node-0", PEER_PORT)
                try:
                    await reader.read(1)
                finally:
                    writer.close()

        strangers = [asyncio.create_task(silent()) for _ in range(40)]
        await asyncio.sleep(1)
        node = await nodes.start(2)
        await eventually(lambda: any(one.peer_id == 2 for one in peers.sessions.values()), 20)
        assert len(peers.sessions) <= 10 + 2
        over = True
        for task in strangers:
            task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        assert node.node_id == 2


@in_virtual_time
async def test_one_address_holds_a_share_of_the_clients_connections() -> None:
    """Nodes of that address are let in all the same."""
    async with cluster_of(1) as nodes:
        native = nodes.servers[0].native
        native._addresses.most = 3
        clients = [Stranger() for _ in range(5)]
        answers = []
        for client in clients:
            await client.connect(NATIVE_PORT)
            answers.append(await client.say(Hello(PROTOCOL_VERSION, "t")))
        assert [bool(answer) for answer in answers[:3]] == [True] * 3
        assert len(native.sessions) <= 4
        node = Stranger()
        await node.connect(NATIVE_PORT)
        assert await node.say(Hello(PROTOCOL_VERSION, "n", "test", 7, "i"))
        await eventually(lambda: any(one.peer_id == 7 for one in native.sessions.values()))
        for client in (*clients, node):
            client._writer.close()
