"""Shares of what a node keeps for its clients, of which there is a bounded number.

Whoever has many has to leave as many for the others: one client may have half of all, two a third each, and some are always
left for the next one. What is there is never taken away. What a node has read from its tables is nobody's before a client
asks about it again, and counts among all that is there.
"""

from collections import Counter
from contextvars import ContextVar
from typing import Final

import structlog

from antiphon import system
from antiphon.errors import OverloadedError

TELL_EVERY_S: Final = 5.0

asking: Final[ContextVar[object]] = ContextVar("asking", default=None)
"""The client (a user, or an address where nobody has logged in) whose request is carried out; None: the node itself."""


class Shares:
    """See the module's text. `most`: how many there may be; `what`: their name, for people."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._client_of: dict[object, object] = {}  # by what is kept, which is compared as itself
        self._of = Counter[object]()  # by client
        self._tell_s = 0.0

    def check(self, taken: int) -> None:
        """Raise OverloadedError where `taken` are there, and the client who asks may not have one more."""
        client = asking.get()
        if taken >= self._most:
            reason = f"this node has {self._most:,} {self._what} already"
        elif client is not None and self._of[client] >= self._most - taken:
            reason = (
                f"this client has {self._of[client]:,} {self._what} of {taken:,} of this node, which has "
                f"{self._most:,} at most: the rest is for others"
            )
        else:
            return
        now_s = system.monotonic_s()
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_EVERY_S
            structlog.get_logger().warning("client_has_its_share", client=str(client)[:256], reason=reason)
        raise OverloadedError(reason)

    def add(self, thing: object) -> None:
        """It is the client's who asks now, unless it is somebody's already."""
        client = asking.get()
        if client is not None and thing not in self._client_of:
            self._client_of[thing] = client
            self._of[client] += 1

    def drop(self, thing: object) -> None:
        """It is gone; harmless where it was nobody's."""
        client = self._client_of.pop(thing, None)
        if client is None:
            return
        self._of[client] -= 1
        if not self._of[client]:
            del self._of[client]
