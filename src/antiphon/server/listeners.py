"""Starts the listeners that a node has besides the native one; each is imported only where it is wanted."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from antiphon.server.file_limits import connection_shares, places
from antiphon.server.followed_settings import group_config

if TYPE_CHECKING:
    from antiphon.gateway.budget import Pool
    from antiphon.gateway.interface import Gateway
    from antiphon.gateway.quotas import Quotas
    from antiphon.http.listener import HttpListener
    from antiphon.kafka.listener import KafkaListener
    from antiphon.node.config import NodeConfig
    from antiphon.node.injected_faults import InjectedFaults
    from antiphon.node.metrics import NodeMetrics
    from antiphon.oxia.listener import OxiaListener
    from antiphon.security.authenticator import Authenticator
    from antiphon.security.tls import ServerTls
    from antiphon.transactions.service import TransactionService


class Guards(NamedTuple):
    """Who looks at every request: who sends it and whether it may, and how much it may ask for."""

    authenticator: "Authenticator"
    quotas: "Quotas"


def clients_tls(config: "NodeConfig", metrics: "NodeMetrics", protocol: str = "") -> "ServerTls | None":
    """The TLS of the listeners for clients; None where they speak without. Raises InvalidRequestError."""
    if not config.security.tls.on:
        return None
    from antiphon.security.tls import ServerTls

    return ServerTls(config.security.tls, config.dir, "tls", metrics, protocol)


def _advertised(config: "NodeConfig", port: int) -> str:
    host = config.public_host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def start_http(
    gateway: "Gateway",
    config: "NodeConfig",
    sock: socket.socket | None,
    tls: "ServerTls | None",
    metrics: Callable[[], bytes],
    pool: "Pool",
    guards: Guards,
) -> tuple["HttpListener", str]:
    """Listen for HTTP; returns the listener and its address."""
    from antiphon.http.listener import CONNECTIONS_MAX, HttpListener

    def status() -> dict[str, Any]:
        plain = msgspec.structs.asdict(gateway.status())
        del plain["counters"]  # `/metrics` has them
        plain["node"] = msgspec.structs.asdict(plain["node"])
        plain["scrub"] = msgspec.structs.asdict(plain["scrub"])
        for name in ("replicas", "findings"):
            plain[name] = [msgspec.structs.asdict(one) for one in plain[name]]
        return plain

    most = places(connection_shares().http, tls=tls is not None)
    made = HttpListener(gateway, metrics=metrics, status=status, connections_max=most.connections, pool=pool)
    made.handshakes_max = most.handshakes
    made.addresses.most = config.limits.of_address(min(CONNECTIONS_MAX, most.connections))
    made.authenticator, made.quotas = guards
    port = await made.start(config.listen_host, config.ports.http, sock, tls)
    return made, _advertised(config, port)


async def start_oxia(
    gateway: "Gateway",
    config: "NodeConfig",
    sock: socket.socket | None,
    tls: "ServerTls | None",
    pool: "Pool",
    guards: Guards,
) -> tuple["OxiaListener", str]:
    """Listen for Oxia's clients; returns the listener and its address."""
    from antiphon.oxia.listener import OxiaListener, OxiaListenerConfig

    told = OxiaListenerConfig()
    most = places(connection_shares().oxia, tls=tls is not None)
    connections = min(told.connections_max, most.connections)
    made = OxiaListener(
        gateway,
        pool,
        told._replace(
            connections_max=connections,
            handshakes_max=most.handshakes,
            address_connections_max=config.limits.of_address(connections),
        ),
    )
    made.authenticator, made.quotas = guards
    port = await made.start(config.listen_host, config.ports.oxia, sock, tls)
    return made, _advertised(config, port)


def _faulty_listener(faults: "InjectedFaults", *place: Any) -> "KafkaListener":
    from antiphon.kafka.faulty_listener import FaultyListener

    listener = FaultyListener(*place)

    def follow() -> None:
        listener.take(faults.listener)

    follow()
    faults.followers.append(follow)
    return listener


async def start_kafka(
    gateway: "Gateway",
    config: "NodeConfig",
    sock: socket.socket | None,
    tls: "ServerTls | None",
    pool: "Pool",
    guards: Guards,
    transactions: "TransactionService",
    faults: "InjectedFaults | None" = None,
) -> tuple["KafkaListener", str]:
    """Listen for Kafka's clients; returns the listener and its address. With `faults` it does wrong as they say."""
    from antiphon.kafka.listener import KafkaListener
    from antiphon.kafka.listener_config import KafkaListenerConfig

    told = KafkaListenerConfig(
        auto_create_topics=config.auto_create_topics,
        shards_default=config.num_partitions,
        topics_on_demand=config.limits.topics_on_demand,
        archive_bytes=config.limits.archive_memory,
        authenticator=guards.authenticator,
        quotas=guards.quotas,
    )
    told = told._replace(groups=group_config(config, told.groups))
    most = places(connection_shares().kafka, tls=tls is not None)
    connections = min(told.connections_max, most.connections)
    told = told._replace(
        connections_max=connections,
        handshakes_max=most.handshakes,
        address_connections_max=config.limits.of_address(connections),
    )
    place = (gateway, config.listen_host, config.ports.kafka, transactions, told, pool)
    listener = KafkaListener(*place) if faults is None else _faulty_listener(faults, *place)
    await listener.start(sock, tls)
    return listener, _advertised(config, listener.port)
