"""Over whose connection a shard's Append and Ack travel (C3: S0.25, S3.4, S3.20, S4.20), and how many there are (S3.21)."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from antiphon.model.requests import CreateTopic
from antiphon.node.accepted_peers import AcceptedPeer
from antiphon.node.peers import PeerLink
from antiphon.replication.messages import Ack, Append
from tests.node.in_process import Nodes, cluster_of, eventually, in_virtual_time


def spy(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Counts (kind of message, "made" or "accepted" connection) of what is sent about shards of topics."""
    seen: Counter[tuple[str, str]] = Counter()

    def note(how: str, kind: type) -> None:
        send = kind.send_replica_message  # type: ignore[attr-defined]  # both kinds have it

        def sending(self: Any, message: Any, frame: Any) -> None:
            if message.shard:
                seen[type(message).__name__, how] += 1
            send(self, message, frame)

        monkeypatch.setattr(kind, "send_replica_message", sending)

    note("made", PeerLink)
    note("accepted", AcceptedPeer)
    return seen


HOW: dict[str, dict[type, str]] = {
    "each": {Append: "made", Ack: "made"},
    "leader": {Append: "made", Ack: "accepted"},
    "follower": {Append: "accepted", Ack: "made"},
}
"""On a connection that the sender made or accepted. With `follower` it is the followers that dial (S3.4, S3.20)."""


@pytest.mark.parametrize("dial", ["each", "leader", "follower"])
@in_virtual_time
async def test_s0_25_s3_20_c3_who_dials_is_the_operators_choice(
    monkeypatch: pytest.MonkeyPatch, dial: str
) -> None:
    seen = spy(monkeypatch)
    async with cluster_of(3, dial=dial) as nodes:
        shard_id = await nodes.new_shard()
        seen.clear()
        for number in range(20):
            await nodes.append(shard_id, b"%d" % number)
        await eventually(
            lambda: all(node.hosts[shard_id].state.high_watermark == 20 for node in nodes.nodes.values())
        )
        for kind, own in HOW[dial].items():
            other = "made" if own == "accepted" else "accepted"
            assert seen[kind.__name__, own] >= 20
            assert seen[kind.__name__, other] == 0


def connections(nodes: Nodes) -> Counter[frozenset[int]]:
    """Connections between each pair of nodes, both directions."""
    return Counter(
        frozenset((node_id, session.peer_id))
        for node_id, server in nodes.servers.items()
        for session in server.native.sessions.values()
        if session.peer_id is not None
    )


@pytest.mark.parametrize("dial", ["leader", "follower"])
@in_virtual_time
async def test_s3_21_two_connections_serve_all_shards_of_a_pair_and_a_broken_one_is_made_good(
    dial: str,
) -> None:
    async with cluster_of(3, dial=dial) as nodes:
        topic = await nodes.nodes[0].gateway.create_topic(CreateTopic("t", shards=6))
        shards = [shard.shard_id for shard in topic.shards]
        assert len({(await nodes.leader(one)).services.node_id for one in shards}) > 1
        for shard_id in shards:
            await nodes.append(shard_id, b"x")
        assert set(connections(nodes).values()) == {2}
        for node in nodes.nodes.values():
            for link in node.network.links.values():
                _cut(link)
        await asyncio.sleep(0.05)
        for shard_id in shards:
            assert await nodes.append(shard_id, b"y") >= 2
        await eventually(lambda: set(connections(nodes).values()) == {2})


def _cut(link: PeerLink) -> None:
    connection = link._connection
    if connection is not None:
        connection.abort()
