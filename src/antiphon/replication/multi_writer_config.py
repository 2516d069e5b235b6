"""Settings of a replica where every replica writes. Times are in ticks of whoever drives it."""

from dataclasses import dataclass

from antiphon.errors import InvalidRequestError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class MultiWriterConfig:
    """How entries are relayed.

    Attributes:
        window_bytes: what may be underway to one peer without an acknowledgement.
        feed_bytes_max: what is read from the log at once for one peer.
        resend_ticks: without an answer for so long, ask again.
        stall_ticks: a peer is ahead by so many ticks with what should come straight from its origin: take it from the peer.
        first_hand: take each origin's entries from its own node while that is connected, from the others only what does not
            come that way; False: everybody passes everything on to everybody (a mesh that is redundant all the time).
    """

    window_bytes: int = 8 * MIB
    feed_bytes_max: int = 1 * MIB
    resend_ticks: int = 4
    stall_ticks: int = 20
    first_hand: bool = True

    def __post_init__(self) -> None:
        for name in ("window_bytes", "feed_bytes_max", "resend_ticks", "stall_ticks"):
            if getattr(self, name) < 1:
                raise InvalidRequestError(f"{name} must be at least 1, is {getattr(self, name)}")
