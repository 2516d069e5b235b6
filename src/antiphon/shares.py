"""Shares of what a node keeps for its clients, of which there is a bounded number, or so many bytes.

Whoever has much has to leave as much for the others: one client may have half of all, two a third each, and some is always
left for the next one. What is there is never taken away. What a node has read from its tables is nobody's before a client
asks about it again, and counts among all that is there.
"""

from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

import structlog

from antiphon import system
from antiphon.errors import OverloadedError

TELL_EVERY_S: Final = 5.0

asking: Final[ContextVar[object]] = ContextVar("asking", default=None)
"""The client (a user, or an address where nobody has logged in) whose request is carried out; None: the node itself."""
WHO_ASKS: Final = object()


class Shares:
    """See the module's text.

    Args:
        most: how much there may be.
        what: what it is called, for people.
        where: who keeps it.
    """

    def __init__(self, most: int, what: str, where: str = "this node") -> None:
        self.most = most
        self._what = what
        self._where = where
        self._parts: dict[
            object, Mapping[object, int]
        ] = {}  # of what is kept, which is compared as itself, by client
        self._of = Counter[object]()  # by client
        self._tell_s = 0.0

    def check(self, taken: int, more: int = 1, *, client: object = WHO_ASKS) -> None:
        """Raise OverloadedError where `taken` is there, and a client may not have so much more.

        `client`: who wants it, if not the one who asks now.
        """
        client = asking.get() if client is WHO_ASKS else client
        if taken + more > self.most:
            reason = f"{self._where} has {taken:,} of {self.most:,} {self._what} already"
        elif client is not None and self._of[client] + 2 * more - 1 > self.most - taken:
            reason = (
                f"this client has {self._of[client]:,} {self._what} of {taken:,} of {self._where}, which has "
                f"{self.most:,} at most: the rest is for others"
            )
        else:
            return
        now_s = system.monotonic_s()
        if now_s >= self._tell_s:
            self._tell_s = now_s + TELL_EVERY_S
            structlog.get_logger().warning("client_has_its_share", client=str(client)[:256], reason=reason)
        raise OverloadedError(reason)

    def add(self, thing: object, *, client: object = WHO_ASKS) -> None:
        """It is the client's, if not of the one who asks now, unless it is somebody's already."""
        client = asking.get() if client is WHO_ASKS else client
        if client is not None and thing not in self._parts:
            self.divide(thing, {client: 1})

    def divide(self, thing: object, parts: Mapping[object, int]) -> None:
        """A thing that several clients have a part in: so much of it is whose now. What is None's is nobody's."""
        self.drop(thing)
        own = {client: size for client, size in parts.items() if client is not None and size > 0}
        if own:
            self._parts[thing] = own
            self._of.update(own)

    def drop(self, thing: object) -> None:
        """It is gone; harmless where it was nobody's."""
        for client, size in self._parts.pop(thing, {}).items():
            self._of[client] -= size
            if not self._of[client]:
                del self._of[client]

    def keep_only(self, things: "Mapping[object, object] | set[object]") -> None:
        """Whatever is not among these is gone."""
        for thing in [one for one in self._parts if one not in things]:
            self.drop(thing)
