"""How many connections of a listener one address holds: a share, so that it leaves some to others."""

from collections import Counter

LOOPBACK = ("127.", "::1", "::ffff:127.")


class Addresses:
    """Connections by the address that made them. This machine's own, and what is not known, is not bounded.

    Attributes:
        most: that one address may hold.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._held: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Count a connection; False: its address has as many as it may. Each is to `leave`, whatever this said."""
        self._held[host] += 1
        return not host or host.startswith(LOOPBACK) or self._held[host] <= self.most

    def leave(self, host: str) -> None:
        """A connection is gone."""
        self._held[host] -= 1
        if self._held[host] <= 0:
            del self._held[host]
