"""Share sessions (KIP-932): which partitions a member of a share group fetches from here.

A session belongs to a member of a group, and ends with the connection that it is used on: what the member had acquired is
available to others then. What it keeps is counted in the connection's account (`gateway.budget`).
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.errors import OverloadedError
from antiphon.gateway.shares import Shares
from antiphon.kafka import error_codes as code
from antiphon.kafka.handlers.refusals import RefusedError

if TYPE_CHECKING:
    from antiphon.kafka.connection import Connection

INITIAL: Final = 0  # the epoch of a request that opens a session
FINAL: Final = -1  # and of one that ends it
EPOCH_MAX: Final = (1 << 31) - 1
EVICT_S: Final = 120.0  # unused for so long, a session gives its place to a new one
PARTITION_COSTS_BYTES: Final = 1024
PARTITIONS_MAX: Final = 10_000  # of one session
Key = tuple[str, str]  # group, member
Place = tuple[bytes, int]  # topic id, partition


class ShareSession:
    """What one member fetches from here. `partitions`: the one that was served longest ago first."""

    def __init__(self, key: Key, connection: "Connection") -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1
        self.used_s = asyncio.get_running_loop().time()
        self.partitions: dict[Place, None] = {}
        self.costs_bytes = 0

    def want(self, place: Place) -> None:
        """Fetch from a partition, too."""
        self.partitions.setdefault(place)
        if len(self.partitions) > PARTITIONS_MAX:
            raise RefusedError(
                code.INVALID_REQUEST, f"a share session has {PARTITIONS_MAX} partitions at most"
            )

    def served(self, place: Place) -> None:
        """Its turn comes last the next time."""
        if place in self.partitions:
            del self.partitions[place]
            self.partitions[place] = None

    def count(self) -> None:
        """Count what it keeps."""
        costs_bytes = len(self.partitions) * PARTITION_COSTS_BYTES
        self.connection.account.add(costs_bytes - self.costs_bytes)
        self.costs_bytes = costs_bytes


class ShareSessions:
    """The sessions of a node's listener."""

    def __init__(self, sessions_max: int) -> None:
        self._max = sessions_max
        self._sessions: dict[Key, ShareSession] = {}  # the longest unused first
        self._of: dict[Connection, dict[Key, ShareSession]] = {}
        self._shares = Shares(sessions_max, "share sessions")

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, key: Key, epoch: int) -> ShareSession:
        """The session that a request goes on with, or ends. Raises RefusedError."""
        session = self._sessions.get(key)
        if session is None:
            raise RefusedError(code.SHARE_SESSION_NOT_FOUND, "the member has no share session here")
        if epoch == FINAL:
            return session
        if epoch != session.epoch:
            raise RefusedError(
                code.INVALID_SHARE_SESSION_EPOCH,
                f"the share session's next epoch is {session.epoch}, and the request's is {epoch}",
            )
        session.epoch = 1 if session.epoch == EPOCH_MAX else session.epoch + 1
        session.used_s = asyncio.get_running_loop().time()
        self._sessions[key] = self._sessions.pop(key)
        return session

    def open(self, key: Key, connection: "Connection") -> ShareSession:
        """A new session, in the place of the one that the member may have had. Raises RefusedError."""
        self.close(key)
        if len(self._sessions) >= self._max:
            oldest = next(iter(self._sessions.values()))
            if asyncio.get_running_loop().time() - oldest.used_s < EVICT_S:
                raise RefusedError(
                    code.SHARE_SESSION_LIMIT_REACHED, f"{self._max} share sessions are open here"
                )
            self.close(oldest.key)
        try:
            self._shares.check(len(self._sessions))
        except OverloadedError as error:
            raise RefusedError(code.SHARE_SESSION_LIMIT_REACHED, error.message) from None
        session = self._sessions[key] = ShareSession(key, connection)
        self._of.setdefault(connection, {})[key] = session
        self._shares.add(session)
        return session

    def close(self, key: Key) -> None:
        """End a session; harmless where there is none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return
        self._shares.drop(session)
        session.partitions.clear()
        session.count()
        own = self._of[session.connection]
        del own[key]
        if not own:
            del self._of[session.connection]

    def ended(self, connection: "Connection") -> list[tuple[Key, list[Place]]]:
        """The connection is gone, and its sessions with it; what they fetched from."""
        found = [(key, list(session.partitions)) for key, session in self._of.get(connection, {}).items()]
        for key, _ in found:
            self.close(key)
        return found
