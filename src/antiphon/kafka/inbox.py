"""What the connections of one listener share: where they read, and how the log is told of those that are closed."""

from typing import Any, Final

from antiphon.security.bounded_lines import BoundedLines

RECEIVE_BYTES: Final = 64 * 1024


class Inbox:
    """See the module's text. A connection's `get_buffer` and `buffer_updated` follow each other without a break."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(2 * RECEIVE_BYTES))
        self._closed = 0
        self._lines = BoundedLines("kafka connection closed", "client", "connections", "closed")

    def log_closed(self, client: str, reason: str, **facts: Any) -> None:
        """A connection is closed because of what its client sent, or did not: a line, of which an address has a few."""
        self._closed += 1
        self._lines.log(client, self._closed, reason=reason, **facts)
