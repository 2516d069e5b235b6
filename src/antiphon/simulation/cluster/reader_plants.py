"""Bugs to plant in how nodes treat clients that do not read what they asked for."""

from typing import Any, Final

from antiphon.gateway.budget import Account
from antiphon.http import listener as http_listener
from antiphon.kafka.connection import Connection
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM

_STALLED: Final[dict[str, Any]] = {
    **CALM,
    "appenders": 0,
    "putters": 0,
    "operations_per_s": 100,
    "stalled_readers": 3,
    "settle_ms": 60_000,
}

READER_PLANTS: Final = (
    ClusterPlant(
        "listener-answers-whoever-reads",
        "a connection has room for more, however much its client has not read",
        (
            Edit(Account, "has_room", "self.held_bytes < FLOOR_BYTES or self.room_bytes > 0", "True"),
            Edit(Account, "room_bytes", "return bound - self.held_bytes", "return bound"),
        ),
        options=_STALLED,
    ),
    ClusterPlant(
        "listener-makes-pages-ahead",
        "a page is made while the client has not taken the one before",
        (
            Edit(vars(http_listener)["_HttpConnection"], "pause_writing", "self._writable = False", "pass"),
            Edit(
                vars(http_listener)["_HttpConnection"],
                "_take_turn",
                "if not self._account.has_room and self._account.outgoing_bytes:",
                "if False:",
            ),
        ),
        options=_STALLED,
    ),
    ClusterPlant(
        "listener-waits-for-ever",
        "a client that does not read on is never hung up on",
        (Edit(Connection, "is_slow", "self._sending.is_over(now_s, self._sent_bytes - waiting)", "False"),),
        options=_STALLED,
    ),
)
