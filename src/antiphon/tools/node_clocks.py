"""How far the clocks of nodes are from this machine's, by what `/livez` of each one tells."""

import http.client
import json
import ssl
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

from antiphon.client.tls import context_for
from antiphon.errors import AntiphonError
from antiphon.model.metadata import NodeMeta

ANSWER_S: Final = 3.0
OFF_S: Final = 1.0  # a difference that is told
ASKED_MAX: Final = 100
ANSWER_BYTES_MAX: Final = 4096


class Difference(NamedTuple):
    """How far a node's clock is ahead of this machine's (below 0: behind), give or take `unsure_s`."""

    node: int
    ahead_s: float
    unsure_s: float

    @property
    def is_off(self) -> bool:
        """Is it further away than the way there and back explains?"""
        return abs(self.ahead_s) - self.unsure_s > OFF_S

    def __str__(self) -> str:
        return f"node {self.node} is {abs(self.ahead_s):.1f} s {'ahead' if self.ahead_s > 0 else 'behind'}"


def differences(nodes: Sequence[NodeMeta]) -> list[Difference]:
    """Of those nodes that are alive, have an HTTP port and answer."""
    asked = [node for node in nodes if node.alive and node.http][:ASKED_MAX]
    return [found for node in asked if (found := _difference(node)) is not None]


def _difference(node: NodeMeta) -> Difference | None:
    host, _, port = node.http.rpartition(":")
    try:
        context = context_for(None, host.strip("[]"), int(port))
        began, began_s = time.time(), time.monotonic()
        told_ms = _clock_of(host.strip("[]"), int(port), context)
        took_s = time.monotonic() - began_s
    except (OSError, ValueError, http.client.HTTPException, AntiphonError):
        return None
    return Difference(node.node_id, told_ms / 1000 - (began + took_s / 2), took_s / 2)


def _clock_of(host: str, port: int, context: ssl.SSLContext | None) -> int:
    if context is None:
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=context)
    with closing(connection):
        connection.request("GET", "/livez")
        found: Any = json.loads(connection.getresponse().read(ANSWER_BYTES_MAX))
    told = found.get("clock_ms") if isinstance(found, dict) else None
    if not isinstance(told, int) or isinstance(told, bool):
        raise ValueError("a node of an earlier version does not report its time")
    return told
