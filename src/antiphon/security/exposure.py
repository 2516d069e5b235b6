"""Where others than this machine reach a node, its listeners take TLS and want to know who is asking, unless it is said in
words that they need not.
"""

import ipaddress
import socket

from antiphon.errors import InvalidRequestError
from antiphon.security.settings import Security

_IN_WORDS = "--insecure (in node.toml: insecure = true under [security])"


def is_loopback(host: str) -> bool:
    """Does only this machine reach what listens on `host`? A name is looked up; one that is unknown may be anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:
        return False
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in found)


def missing(security: Security) -> list[str]:
    """What a node lacks to listen where others reach it."""
    lacks = []
    if not security.tls.on:
        lacks.append("TLS for clients ([security.tls])")
    if not (security.authentication or (security.tls.on and security.tls.client_auth == "required")):
        lacks.append("authentication (authentication = true under [security])")
    if security.proves_nodes and not security.peer_tls.on:
        lacks.append("TLS among the nodes ([security.peer_tls])")
    return lacks


def refuse_exposure(host: str, security: Security) -> None:
    """Raise InvalidRequestError where a node would listen on `host`, which others reach, with less than it takes."""
    lacks = missing(security)
    if not lacks or security.insecure or is_loopback(host):
        return
    raise InvalidRequestError(
        f"asked to listen on {host or 'all addresses'}, where other machines reach the node, without {', '.join(lacks)}: "
        "make the cluster with `antiphon up --secure`, or set what is missing in each node.toml (docs/security.md), or "
        f"listen on 127.0.0.1. If everybody who reaches it may read and write everything, say so with {_IN_WORDS}"
    )


def refuse_believing(nodes: int, security: Security) -> None:
    """Raise InvalidRequestError where one of several nodes would take anybody for another one who says so."""
    if nodes == 1 or security.proves_nodes or security.insecure:
        return
    raise InvalidRequestError(
        f"node.toml names {nodes} nodes, and nothing proves who is one: whoever reaches the port could say so. Give all "
        "nodes the same `peer_key` under [security] (one line: openssl rand -hex 32) with `ports.peer` and the `peer` "
        "addresses of [[nodes]], or `peer_tls` (docs/security.md), as `antiphon up` does. To take anybody who says so "
        f"for a node, use {_IN_WORDS}"
    )


__all__ = ["is_loopback", "missing", "refuse_believing", "refuse_exposure"]
