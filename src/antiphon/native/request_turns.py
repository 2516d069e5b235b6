"""How many requests of one client are begun in a turn of the event loop, and when the rest of them has its turn."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from antiphon.gateway.turns import Turns

REQUEST_WORK: Final = 4  # units of `Turns.did`, about: 64 requests of a connection are a turn
BUSY_SHARE: Final = (
    8  # in a turn that has had its work, a part of as many are begun: who sends little never waits
)


class RequestTurns:
    """See the module's text; of one connection. `client` says whose turn it waits for. See `transport.connection.Share`."""

    __slots__ = ("_client", "_turns")

    def __init__(self, turns: "Turns", client: Callable[[], object]) -> None:
        self._turns = turns
        self._client = client

    @property
    def frames_at_once(self) -> int:
        """That may be begun now."""
        turns = self._turns
        at_once = turns.work_max // REQUEST_WORK
        return max(1, at_once // BUSY_SHARE) if turns.is_busy else at_once

    def took(self, frames: int) -> None:
        """So many were begun in this turn."""
        self._turns.did(frames * REQUEST_WORK)

    def when_turn(self, work: Callable[[], None]) -> None:
        """Run `work` when it is the connection's turn."""
        self._turns.add(self, work, self._client())
