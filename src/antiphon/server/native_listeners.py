"""The listeners of the native protocol: one for clients and nodes alike, or one for each where nodes prove who they are."""

from typing import TYPE_CHECKING

import msgspec

from antiphon.native.exchange import NativeLimits
from antiphon.native.listener import PEER_ROOM, NativeListener
from antiphon.native.session import Greets
from antiphon.server.file_limits import Places, connection_shares, places

if TYPE_CHECKING:
    from antiphon.gateway.budget import Pool
    from antiphon.node.config import NodeConfig
    from antiphon.node.node import Node
    from antiphon.security.tls import ServerTls


def clients_listener(node: "Node", pool: "Pool") -> NativeListener:
    """The native listener; other nodes use it too where neither they nor clients must prove who they are."""
    proved = node.network.security.own_port or node.config.security.authentication
    greets = Greets.CLIENTS if proved else Greets.ANYBODY
    share = connection_shares().native
    return _listener(node, places(share, tls=node.config.security.tls.on), greets, pool)


def nodes_listener(node: "Node", pool: "Pool") -> NativeListener | None:
    """The listener for nodes that prove that they are nodes, where that is wanted."""
    security = node.network.security
    if not security.own_port:
        return None
    greets = Greets.NODES if security.key is None else Greets.PROVEN_NODES
    share = places(connection_shares().peers, tls=node.config.security.peer_tls.on)
    return _listener(node, share, greets, pool)


def bound_connections(listener: NativeListener, config: "NodeConfig") -> None:
    """Let a listener for clients hold as many connections as the node's settings say now, and the process has files for."""
    connections = _connections_of_clients(config)
    listener.bound(connections, config.limits.of_address(connections))


def _connections_of_clients(config: "NodeConfig") -> int:
    most = places(max(16, connection_shares().native - PEER_ROOM), tls=config.security.tls.on).connections
    return min(config.limits.connections, most)


def _listener(node: "Node", share: Places, greets: Greets, pool: "Pool") -> NativeListener:
    limits = node.limits
    security = node.network.security
    for_nodes = greets in {Greets.NODES, Greets.PROVEN_NODES}
    connections = share.connections if for_nodes else _connections_of_clients(node.config)
    made = NativeListener(
        node.gateway,
        node.network.accepted,
        node.turn,
        NativeLimits(
            connections,
            limits.requests_per_connection,
            limits.connection_write,
            handshakes=share.handshakes,
            address_connections=limits.of_address(connections),
        ),
        node.metrics,
        pool,
        greets,
        security.key if greets is Greets.PROVEN_NODES else None,
    )
    node.back_pressure.intakes.append(made)
    return made


def nodes_tls(node: "Node") -> "ServerTls | None":
    """The TLS of the listener for nodes: the other side always shows a certificate. Raises InvalidRequestError."""
    tls = node.config.security.peer_tls
    if not tls.on:
        return None
    from antiphon.security.tls import ServerTls

    demanding = msgspec.structs.replace(tls, client_auth="required")
    return ServerTls(demanding, node.config.dir, "peer_tls", node.metrics)
