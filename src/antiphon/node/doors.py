"""Starts the doors that a node has besides the native one; each is imported only where it is open."""

import socket
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon.node.file_limits import connection_shares

if TYPE_CHECKING:
    from antiphon.http.door import HttpDoor
    from antiphon.kafka.door import KafkaDoor
    from antiphon.node.node import Node


@lru_cache(maxsize=1)
def version() -> str:
    """The installed version of Antiphon; `0` when it runs from a tree that was never installed."""
    try:
        return metadata.version("antiphon")
    except metadata.PackageNotFoundError:
        return "0"


def _told(node: "Node", port: int) -> str:
    host = node.config.host_told
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def start_http_door(node: "Node", sock: socket.socket | None) -> tuple["HttpDoor", str]:
    """Open the HTTP door; returns it and its address."""
    from antiphon.http.door import HttpDoor

    def status() -> dict[str, Any]:
        plain = msgspec.structs.asdict(node.status(version()))
        plain["node"] = msgspec.structs.asdict(plain["node"])
        plain["replicas"] = [msgspec.structs.asdict(replica) for replica in plain["replicas"]]
        return plain

    shares = connection_shares()
    door = HttpDoor(node, metrics=node.metrics.render, status=status, connections_max=shares.http)
    port = await door.start(node.config.listen_host, node.config.ports.http, sock)
    return door, _told(node, port)


async def start_kafka_door(node: "Node", sock: socket.socket | None) -> tuple["KafkaDoor", str]:
    """Open the Kafka door; returns it and its address."""
    from antiphon.kafka.door import KafkaDoor, KafkaDoorConfig

    config = KafkaDoorConfig(auto_create_topics=node.config.auto_create_topics)
    config = config._replace(connections_max=min(config.connections_max, connection_shares().kafka))
    door = KafkaDoor(node, node.config.listen_host, node.config.ports.kafka, config)
    await door.start(sock)
    return door, _told(node, door.port)
