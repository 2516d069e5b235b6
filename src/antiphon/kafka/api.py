"""What an API of Kafka's protocol is, and what a handler is told of a request beside its message.

The table of the APIs that are served, with their handlers, is in `apis`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from antiphon.gateway.quotas import Charged, Payer
from antiphon.kafka.pacing import TurnBudget, at_once
from antiphon.kafka.schema import Message
from antiphon.security.authorizer import Rights
from antiphon.security.session import OPEN, Session

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS: Final = 18
SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
GET_TELEMETRY_SUBSCRIPTIONS: Final = 71
PUSH_TELEMETRY: Final = 72
SHARE_FETCH: Final = 78
NEVER_FLEXIBLE: Final = 1 << 15
FEW: Final = 100
ELEMENTS_OF: Final[Mapping[int, int]] = {
    **dict.fromkeys((API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE), FEW),
    **dict.fromkeys((12, 22, 25, 26, 55, 60, GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY), FEW),
    **dict.fromkeys((16, 29, 74), FEW),  # lists of states and types of groups, a filter, types of resources
    **dict.fromkeys((11, 48, 57), 1_000),  # JoinGroup: a member's protocols; a filter's parts; features
    **dict.fromkeys((13, 14, 66), 10_000),  # LeaveGroup, SyncGroup: a group's members; ListTransactions
    **dict.fromkeys((68, 76), 25_000),  # heartbeats: topics, and the partitions that a member has
}
"""Elements of arrays and tagged fields of a request, by its API; of others `primitives.ELEMENTS_MAX`."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API. `request` and `response` are None where the codec is hand-written (Produce, Fetch, ShareFetch)."""

    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int
    request: type[Message] | None
    response: type[Message] | None

    def is_flexible(self, version: int) -> bool:
        """Does this version use varint lengths and tagged fields?"""
        return version >= self.flexible_since


class Software:
    """What a client says that it is, by the ApiVersions of its connection."""

    __slots__ = ("name", "version")

    def __init__(self) -> None:
        self.name = self.version = "unknown"


class RequestContext(NamedTuple):
    """What a handler may want to know of a request: its version, who sent it, who pays for it and with what."""

    version: int
    flexible: bool
    client_id: str
    client_host: str
    session: Session = OPEN
    payer: Payer | None = None
    charged: Charged | None = None
    turn: Callable[[], Awaitable[None]] = at_once
    client_port: int = 0
    software: Software | None = None

    @property
    def turn_budget(self) -> TurnBudget:
        """How a request goes on that names much."""
        return TurnBudget(self.turn)

    @property
    def client(self) -> object:
        """Who shares his turns with all of his connections."""
        return self.session.client(self.client_host)

    @property
    def rights(self) -> Rights:
        """What the client may do."""
        return self.session.rights


# A handler answers with a message, or with an encoded body where it keeps one.
Handler = Callable[[Any, RequestContext], Awaitable[Message | bytes]]
