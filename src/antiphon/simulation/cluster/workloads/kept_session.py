"""Until when a session of a simulated client is promised to be open: by the clocks of the nodes, and by its client's own.

The client counts the time-out by its own clock, and the leader of a shard by the node's. So where the client's clock is the
faster one, the client takes its session for lost before any shard may end it. It closes it then, as far as it can: from that
moment nothing is promised any more.
"""

from typing import TYPE_CHECKING

from antiphon.client.session import SILENT

if TYPE_CHECKING:
    from antiphon.client.session import AsyncSession
    from antiphon.errors import SessionNotFoundError
    from antiphon.simulation.runtime.process import Process


class KeptSession:
    """A session and the process of its client. `is_over`: its client has begun to end it, or to give up what it is for."""

    def __init__(self, session: "AsyncSession", process: "Process") -> None:
        self.session = session
        self._process = process
        self.is_over = False

    def kept_until_s(self, fastest: float) -> float:
        """No shard may end the session before, by the world's clock; `fastest`: of a node's clock."""
        kept_s = self.session.kept_s
        if self.is_over or kept_s is None:
            return 0.0
        return self._process.world_s(kept_s) + self.session.timeout_s / fastest

    def lost(self, error: "SessionNotFoundError") -> None:
        """Its client is told that it is lost."""
        if SILENT in error.message:
            self.is_over = True

    def lost_from_s(self, error: "SessionNotFoundError", fastest: float) -> float:
        """The same, and from when on that may be so, by the world's clock: no shard, and no client, says it before."""
        until_s = self.kept_until_s(fastest)
        if until_s and SILENT in error.message:
            kept_s = self.session.kept_s or 0.0
            until_s = 0.0 if self._is_due(kept_s) else self._process.world_s(kept_s + self.session.timeout_s)
        self.lost(error)
        return until_s

    def _is_due(self, kept_s: float) -> bool:
        """Has the time-out passed by the client's clock?"""
        return kept_s + self.session.timeout_s - self._process.monotonic_s() <= 0
