"""What one client of HTTP/2 may have this node do: frames that ask for nothing, and work in one turn of the event loop.

A frame that makes nothing go on takes tokens, of which there are `Bounds.idle_frames` at first and so many a second. What
makes something go on gives some. Work is counted in units of about 5 us of a core, whatever the bytes say that cause it, so
that a turn takes about as long for every kind of frame. Pure.
"""

from typing import Final, NamedTuple

RESET_COST: Final = 20  # tokens, of a stream that is reset while it is worked on
CRUMB_BYTES: Final = 256  # of a DATA frame; smaller ones give tokens only where they complete a message
CRUMB_COST: Final = 4  # tokens of such a frame, which come back with the message
USEFUL: Final = 3.0  # tokens that a frame earns which makes something go on: its pings and windows
STREAMS_A_TOKEN: Final = 16  # whose windows a setting changes
BLOCK_TOKEN_BYTES: Final = 512  # of headers that cost a token
BLOCK_USUAL_BYTES: Final = 4 * 1024  # of headers; what is more costs four times as much
FIELDS_USUAL: Final = 32  # of headers; what is more costs a token for each `FIELDS_A_UNIT`
FIELDS_MAX: Final = 128  # of a call's headers

WORK_MAX: Final = 256  # units that one connection does in a turn (as `Turns.work_max`); a frame is one
OPEN_WORK: Final = 8  # to begin a call
RESET_WORK: Final = 4  # to end one that is worked on
BLOCK_UNIT_BYTES: Final = 32  # of headers, in Huffman's code
FIELDS_A_UNIT: Final = 2


class Bounds(NamedTuple):
    """What a client may do."""

    streams: int = 1_024
    idle_frames: int = 4_000  # at once
    idle_frames_s: int = 1_000  # and more of them each second


class Allowance:
    """See the module's text; of one connection.

    Attributes:
        work: units that were done in this turn.
    """

    __slots__ = ("_bounds", "_tokens", "_work_max", "work")

    def __init__(self, bounds: Bounds, work_max: int) -> None:
        self._bounds = bounds
        self._work_max = work_max
        self._tokens = float(bounds.idle_frames)
        self.work = 0

    def refill(self, passed_s: float) -> None:
        """So much time has passed."""
        self._tokens = min(self._bounds.idle_frames, self._tokens + passed_s * self._bounds.idle_frames_s)

    def earn(self, tokens: float = USEFUL) -> None:
        """Something goes on."""
        self._tokens = min(self._bounds.idle_frames, self._tokens + tokens)

    def pay(self, cost: float) -> bool:
        """Nothing goes on by a frame. False: there were too many of them."""
        self._tokens -= cost
        return self._tokens >= 0

    @property
    def is_spent(self) -> bool:
        """Was so much done in this turn that the rest has to wait for another one?"""
        return self.work >= self._work_max

    def block(self, size_bytes: int, fields: int) -> float:
        """A block of headers was read. Returns what it costs in tokens."""
        self.work += size_bytes // BLOCK_UNIT_BYTES + fields // FIELDS_A_UNIT
        counted_bytes = size_bytes + 3 * max(0, size_bytes - BLOCK_USUAL_BYTES)
        return counted_bytes // BLOCK_TOKEN_BYTES + max(0, fields - FIELDS_USUAL) // FIELDS_A_UNIT
