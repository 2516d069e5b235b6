"""Requests that are the leader's to answer, passed on to it (C12, S4.2), for topics with `on.not.leader=forward`.

A client that reached the wrong node gets the leader's answer from it, also where the client cannot reach the leader. A
request is passed on once: what comes from another node is answered or refused where it arrives, so two nodes that take
each other for the leader do not play ball. Everything is bounded: how many are underway, and for how long.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    NotLeaderError,
    TimedOutError,
    UnavailableError,
)
from antiphon.gateway.answers import AnsweredWithBulk
from antiphon.gateway.interface import ShardRequest
from antiphon.model.loads import LoadRows
from antiphon.model.requests import AppendBatch, Fetch, TableWrite
from antiphon.model.table_transactions import PrepareWrite
from antiphon.node.peers import PeerLink

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.node.local_view import LocalView
    from antiphon.node.metrics import NodeMetrics
    from antiphon.node.topic_settings import SettingsBook

FORWARDED_MAX: Final = 1000  # underway on this node
OTHER_TIMEOUT_S: Final = 30.0
EXTRA_S: Final = 1.0  # beyond what the request itself may take at the leader


class Forwarder:
    """What one node has passed on. `link` gives the connection to a node, or UnavailableError."""

    def __init__(
        self,
        view: "LocalView",
        settings: "SettingsBook",
        link: "Callable[[int], PeerLink]",
        metrics: "NodeMetrics",
    ) -> None:
        self._view = view
        self._settings = settings
        self._link = link
        self._metrics = metrics
        self.underway = 0

    def forward(
        self, body: ShardRequest, payload: memoryview, error: NotLeaderError, answered: AnsweredWithBulk
    ) -> bool:
        """Pass a request on that failed with `error` before it had any effect; False: let the client have the error."""
        link = self._link_for(body, error)
        if link is None or self.underway >= FORWARDED_MAX:
            return False
        self.underway += 1
        self._metrics.forwarded += 1
        timeout_s = _timeout_s(body)

        def finished(reply: Any, bulk: memoryview) -> None:
            timer.cancel()
            self.underway -= 1
            answered(reply, bulk)

        def late() -> None:
            if link.forget(request_id):
                finished(_late(body, link.node_id, timeout_s), memoryview(b""))

        timer = asyncio.get_running_loop().call_later(timeout_s, late)
        request_id = link.forward(body, payload, finished)
        return True

    def _link_for(self, body: ShardRequest, error: NotLeaderError) -> PeerLink | None:
        """The connection to the leader, where there is one that may be used."""
        found = self._view.shard(body.shard_id)
        if found is None:
            return None
        leader = error.details.get("leader")
        if not isinstance(leader, int):
            leader = found[1].leader
        try:
            if self._settings.of(found[0]).replication.on_not_leader != "forward":
                return None
            link = self._link(leader)
        except (InvalidRequestError, UnavailableError):
            return None
        return link if link.up and not link.congested else None


def _timeout_s(body: ShardRequest) -> float:
    if isinstance(body, AppendBatch | TableWrite | LoadRows | PrepareWrite):
        return body.timeout_ms / 1000 + EXTRA_S
    wait_s = body.wait_ms / 1000 if isinstance(body, Fetch) else 0.0
    return OTHER_TIMEOUT_S + wait_s


def _late(body: ShardRequest, leader: int, timeout_s: float) -> AntiphonError:
    return TimedOutError(
        f"node {leader}, which leads shard {body.shard_id}, did not answer a request passed on to it in {timeout_s:.1f} s; "
        "the outcome of a write is unknown unless it is retried with the same producer and sequence",
        shard_id=body.shard_id,
    )
