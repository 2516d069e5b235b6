"""When the sessions of a shard expire, for its leader. Pure: whoever drives it says what time it is.

A session is due when its time-out has passed since the last sign of its client, or since this leader first saw it: a new
leader counts every session's time-out in full, for it does not know what the leaders before it have heard.

Time in which this node stood still counts for nobody: signs of life may have come and not been read. Turns come every so
often; where the time between two is longer than `STALL_S`, everything is due that much later.
"""

import heapq
from collections.abc import Mapping
from typing import Final

from antiphon.table.sessions import OpenSession, OpenSessions

STALL_S: Final = 1.0
AGAIN_S: Final = 0.5  # after which one that is due and still open comes up again


class SessionClock:
    """See the module's text; for one term of leadership."""

    def __init__(self, now_s: float) -> None:
        self._due_s: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []  # at the time or later, the session is due; each once
        self._queued: set[int] = set()  # those in there
        self._turn_s = now_s

    def kept(self, session_id: int, session: OpenSession, now_s: float) -> None:
        """There is a sign of life."""
        self._due_s[session_id] = now_s + session.timeout_ms / 1000

    def is_due(self, session_id: int, now_s: float) -> bool:
        """Has its time-out passed?"""
        return self._due_s.get(session_id, now_s + 1) <= now_s

    def age_ms(self, session: OpenSession, now_s: float) -> int:
        """How long it is known here to be open."""
        return 0 if session.since_s is None else max(0, int((now_s - session.since_s) * 1000))

    def left_ms(self, session_id: int, session: OpenSession, now_s: float) -> int:
        """How long until it is due."""
        due_s = self._due_s.get(session_id)
        return session.timeout_ms if due_s is None else max(0, int((due_s - now_s) * 1000))

    def begin(self, sessions: OpenSessions, now_s: float) -> None:
        """Count the time-outs of all sessions from now on."""
        self._due_s.clear()
        self._heap.clear()
        self._queued.clear()
        sessions.fresh = list(sessions.by_id)
        self._turn_s = now_s

    def turn(self, sessions: OpenSessions, now_s: float, at_most: int) -> list[int]:
        """Time has passed: sessions that are due, the first ones first. They come again until they have ended."""
        stalled_s = now_s - self._turn_s
        self._turn_s = now_s
        if stalled_s > STALL_S:
            self._due_s = {session_id: due_s + stalled_s for session_id, due_s in self._due_s.items()}
        fresh, sessions.fresh = sessions.fresh, []
        for session_id in fresh:
            session = sessions.by_id.get(session_id)
            if session is not None:
                self.kept(session_id, session, now_s)
                if session.since_s is None:
                    session.since_s = now_s
                if session_id not in self._queued:
                    self._queued.add(session_id)
                    heapq.heappush(self._heap, (self._due_s[session_id], session_id))
        return self._take(sessions.by_id, now_s, at_most)

    def _take(self, open_now: Mapping[int, OpenSession], now_s: float, at_most: int) -> list[int]:
        found: list[int] = []
        while self._heap and self._heap[0][0] <= now_s and len(found) < at_most:
            _, session_id = heapq.heappop(self._heap)
            if session_id not in open_now:
                self._due_s.pop(session_id, None)
                self._queued.discard(session_id)
                continue
            due_s = self._due_s[session_id]
            if due_s <= now_s:
                found.append(session_id)
                due_s = now_s + AGAIN_S
            heapq.heappush(self._heap, (due_s, session_id))
        return found
