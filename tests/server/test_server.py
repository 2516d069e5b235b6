"""What a server puts together beside the node: listeners, the thread that finishes epochs, and how all of it ends."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from antiphon.node.config import Member, NodeConfig, Ports
from antiphon.server.server import Server
from antiphon.spark.staging import housekeeper
from tests.node.real_nodes import in_real_time


def config_for(directory: Path, ports: Ports) -> NodeConfig:
    return NodeConfig(
        cluster_id="test",
        node_id=0,
        nodes=[Member(0, "127.0.0.1:1")],
        dir=directory,
        bootstrap=True,
        ports=ports,
    )


@in_real_time
async def test_an_embedded_server_finishes_epochs_at_the_port_that_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []
    ended: list[str] = []

    def start(node_id: int, address: tuple[str, int], _account: Any, _tls: Any) -> Any:
        begun.append((node_id, address))
        return lambda: ended.append("finisher")

    monkeypatch.setattr(housekeeper, "start", start)
    server = Server(config_for(tmp_path, Ports(0, -1, -1, -1)))
    await server.start()
    port = int(server.node.meta().native.rpartition(":")[2])
    assert port
    assert begun == [(0, ("127.0.0.1", port))]
    assert not ended
    await server.stop()
    assert ended == ["finisher"]


def test_the_thread_that_finishes_epochs_ends_when_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(housekeeper.WAIT_VARIABLE, "600")
    before = set(threading.enumerate())
    stop = housekeeper.start(0, ("127.0.0.1", 1))
    (thread,) = set(threading.enumerate()) - before
    stop()
    thread.join(10)
    assert not thread.is_alive()


@in_real_time
async def test_all_listeners_see_the_node_through_one_gateway(tmp_path: Path) -> None:
    server = Server(config_for(tmp_path, Ports(0, 0, -1, 0)), finishes_epochs=False)
    await server.start()
    try:
        assert await server.node.joined(20)
        meta = server.node.meta()
        assert all((meta.native, meta.kafka, meta.http))
        host, _, port = meta.native.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        assert b"antiphon_connections 1.0" in server.node.metrics.render()
        writer.close()
        await writer.wait_closed()
        assert server.kafka is not None
        assert server.http is not None
        for listener in (server.native, server.kafka, server.http):
            assert vars(listener)["_gateway"] is server.node.gateway
    finally:
        await server.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(host, int(port))
