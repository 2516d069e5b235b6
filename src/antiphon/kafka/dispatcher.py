"""What a connection hands its requests to: the listener, as connections see it."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from antiphon.kafka.connection import Answer, Connection


class Dispatcher(Protocol):
    """What a connection hands its requests to."""

    def dispatch(self, frame: memoryview, answer: "Answer") -> None:
        """Start working on a request (a frame without its length); `answer.send` is called once, now or later. May raise
        ProtocolViolationError.
        """
        ...

    def connected(self, connection: "Connection") -> bool:
        """A client connected; False refuses it."""
        ...

    def disconnected(self, connection: "Connection") -> None:
        """The connection is gone; answers to it go nowhere."""
        ...
