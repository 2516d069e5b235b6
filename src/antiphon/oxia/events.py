"""What happens on a connection of HTTP/2, as `http2.Http2` tells it. Pure."""

from typing import Final, NamedTuple


class Opened(NamedTuple):
    """A request began: its header fields."""

    stream_id: int
    headers: list[tuple[bytes, bytes]]
    ended: bool


class Received(NamedTuple):
    """Bytes of a request. `flow_bytes` are to be given back by `consumed`."""

    stream_id: int
    data: bytes
    flow_bytes: int
    ended: bool


class Reset(NamedTuple):
    """The client gave a request up."""

    stream_id: int


class Sendable(NamedTuple):
    """Some of what waited could be sent."""


SENDABLE: Final = Sendable()
Event = Opened | Received | Reset | Sendable
