"""Requests that are the leader's to answer, passed on to it (C12, S4.2), for topics with `on.not.leader=forward`.

A client that reached the wrong node gets the leader's answer from it, also where the client cannot reach the leader. A
request is passed on once: what comes from another node is answered or refused where it arrives, so two nodes that take
each other for the leader do not play ball. Everything is bounded: how many are underway, and for how long.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotLeaderError,
    TimedOutError,
    UnavailableError,
)
from antiphon.model.requests import AppendBatch, Fetch, ListOffset, TableGet, TableScan, TableWrite
from antiphon.node.peers import PeerLink

if TYPE_CHECKING:
    from antiphon.node.node import Node

FORWARDED_MAX: Final = 1000  # underway on this node
OTHER_TIMEOUT_S: Final = 30.0
EXTRA_S: Final = 1.0  # beyond what the request itself may take at the leader

Answered = Callable[[Any, memoryview], None]
"""Called once with the reply's body and its bulk bytes, or with an AntiphonError and none."""

ShardRequest = AppendBatch | Fetch | ListOffset | TableWrite | TableGet | TableScan


class Forwarder:
    """What one node has passed on."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.underway = 0

    def forward(
        self, body: ShardRequest, payload: memoryview, error: NotLeaderError, answered: Answered
    ) -> bool:
        """Pass a request on that failed with `error` before it had any effect; False: let the client have the error."""
        node = self._node
        link = self._link_for(body, error)
        if link is None or self.underway >= FORWARDED_MAX:
            return False
        self.underway += 1
        node.metrics.forwarded += 1
        timeout_s = _timeout_s(body)

        def finished(reply: Any, bulk: memoryview) -> None:
            timer.cancel()
            self.underway -= 1
            answered(reply, bulk)

        def late() -> None:
            if link.forget(request_id):
                finished(_late(body, link.node_id, timeout_s), memoryview(b""))

        timer = node.loop.call_later(timeout_s, late)
        request_id = link.forward(body, payload, finished)
        return True

    def _link_for(self, body: ShardRequest, error: NotLeaderError) -> PeerLink | None:
        """The connection to the leader, where there is one that may be used."""
        node = self._node
        found = node.view.shard(body.shard_id)
        if found is None:
            return None
        leader = error.details.get("leader")
        if not isinstance(leader, int):
            leader = found[1].leader
        try:
            if node.shards.settings.of(found[0]).replication.on_not_leader != "forward":
                return None
            link = node.link(leader)
        except (InvalidRequestError, UnavailableError):
            return None
        return link if link.up and not link.congested else None


def _timeout_s(body: ShardRequest) -> float:
    if isinstance(body, AppendBatch | TableWrite):
        return body.timeout_ms / 1000 + EXTRA_S
    wait_s = body.wait_ms / 1000 if isinstance(body, Fetch) else 0.0
    return OTHER_TIMEOUT_S + wait_s


def _late(body: ShardRequest, leader: int, timeout_s: float) -> AntiphonError:
    return TimedOutError(
        f"node {leader}, which leads shard {body.shard_id}, did not answer a request passed on to it in {timeout_s:.1f} s; "
        "the outcome of a write is unknown unless it is retried with the same producer and sequence",
        shard_id=body.shard_id,
    )
