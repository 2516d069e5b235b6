"""Mutants of what clients of Kafka's protocol are told, and in how those are treated that do not read it."""

from typing import Any, Final

from antiphon.gateway.budget import Account
from antiphon.http.connection import HttpConnection
from antiphon.kafka.connection import Connection
from antiphon.kafka.handlers import produce
from antiphon.log.producer_state import ProducerState
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_STALLED: Final[dict[str, Any]] = {**CALM, **only(operations_per_s=100, stalled_readers=3, settle_ms=60_000)}

_PRODUCERS: Final[dict[str, Any]] = {**CALM, **only(kafka_producers=2)}

READER_MUTANTS: Final = (
    ClusterMutant(
        "listener-tells-no-append-time",
        "the answer to a Produce does not say which time the log gave the records",
        Edit(vars(produce)["_Work"], "wait_for", "append_time_ms=result.append_time_ms,", ""),
        options=_PRODUCERS,
        first_seed=2,
    ),
    ClusterMutant(
        "listener-describes-first-sequences",
        "DescribeProducers names the first sequence of a producer's last batch instead of the last one",
        Edit(ProducerState, "_known", "last.last_sequence", "last.first_sequence"),
        options=_PRODUCERS,
    ),
    ClusterMutant(
        "listener-answers-whoever-reads",
        "a connection has room for more, however much its client has not read",
        (
            Edit(
                Account,
                "has_room",
                "self.held_bytes < FLOOR_BYTES or (not self.budget.holds and self.room_bytes > 0)",
                "True",
            ),
            Edit(Account, "room_bytes", "return bound - self.held_bytes", "return bound"),
        ),
        options=_STALLED,
    ),
    ClusterMutant(
        "listener-sends-whatever-it-read",
        "an answer of any size is sent to who holds little, as if there were room for it",
        Edit(
            Account,
            "fits",
            "return small or size_bytes - own_bytes <= self.room_bytes",
            "return self.has_room",
        ),
        options=_STALLED,
        first_seed=11,
    ),
    ClusterMutant(
        "listener-has-many-large-answers",
        "each connection may be the one whose answer is larger than the room",
        Edit(Account, "is_large", "return self.budget.large is self", "return True"),
        options=_STALLED,
        first_seed=14,
    ),
    ClusterMutant(
        "listener-makes-pages-ahead",
        "a page is made while the client has not taken the one before",
        (
            Edit(HttpConnection, "pause_writing", "self._writable = False", "pass"),
            Edit(
                HttpConnection,
                "_take_turn",
                "if not self._account.has_room and self._account.outgoing_bytes:",
                "if False:",
            ),
        ),
        options=_STALLED,
    ),
    ClusterMutant(
        "listener-waits-for-ever",
        "a client that does not read on is never hung up on",
        Edit(Connection, "is_slow", "self._sending.is_over(now_s, self._sent_bytes - waiting)", "False"),
        options=_STALLED,
    ),
)
