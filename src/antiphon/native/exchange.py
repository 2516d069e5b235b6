"""The requests of one connection: which are open, what is answered, and when no more is read.

Requests are carried out as they come and answered as they are done, in any order: the request id tells which. A connection
is no longer read from while it has too many requests open, or while its answers are not taken. So a client that goes too
fast feels it as a full socket, never as lost requests.
"""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from antiphon.errors import AntiphonError, FrameTooLargeError, InternalError, NotLeaderError
from antiphon.gateway.interface import Gateway, ShardRequest
from antiphon.model.requests import Failure
from antiphon.wire.frames import Buffer, encode_message

if TYPE_CHECKING:
    from antiphon.transport.connection import Connection

Spawn = Callable[[Coroutine[Any, Any, Any]], object]
"""Runs a rare piece of work in a task that ends with the listener."""


class NativeLimits(NamedTuple):
    """Bounds of the listener. Over `connection_write_bytes` that wait to be sent, a connection is read no more."""

    connections: int
    requests_per_connection: int
    connection_write_bytes: int


class Exchange:
    """See the module's text."""

    def __init__(self, gateway: Gateway, limits: NativeLimits, spawn: Spawn) -> None:
        self.gateway = gateway
        self.spawn = spawn
        self.connection: Connection | None = None
        self.is_peers = False  # does another node send these requests?
        self.following: dict[int, int] = {}  # key of a waiting fetch -> its shard
        self._requests_max = limits.requests_per_connection
        self._open_requests = 0
        self._log = structlog.get_logger()

    def gone(self) -> None:
        """The connection is closed: nothing is answered any more, and nothing waited for."""
        self.connection = None
        for key, shard_id in self.following.items():
            self.gateway.unfollow(shard_id, key)
        self.following.clear()

    # -- answers ------------------------------------------------------------------------------------------------

    def reply(self, request_id: int, body: Any, payload: list[Buffer] | None = None) -> None:
        """Answer a request."""
        connection = self.connection
        if connection is None:
            return
        try:
            connection.send(encode_message(request_id, body, payload or ()))
        except FrameTooLargeError as error:
            connection.send(encode_message(request_id, _failure(error)))
        if connection.congested and not self.is_peers:
            connection.hold("answers")

    def fail(self, request_id: int, error: AntiphonError) -> None:
        """Answer a request with an error."""
        self.reply(request_id, _failure(error))

    def begin(self, request_id: int) -> Callable[[Any], None]:
        """Count an open request; returns what takes its result, a reply body or an error."""
        self._open_requests += 1
        if self._open_requests >= self._requests_max and self.connection is not None:
            self.connection.hold("requests")

        def done(result: Any) -> None:
            self.end()
            if isinstance(result, AntiphonError):
                self.fail(request_id, result)
            else:
                self.reply(request_id, result)

        return done

    def end(self) -> None:
        """One request is open no more."""
        self._open_requests -= 1
        if self._open_requests == self._requests_max // 2 and self.connection is not None:
            self.connection.release("requests")

    def later(self, request_id: int, work: Coroutine[Any, Any, Any]) -> None:
        """Carry out a rare request in a task of its own."""
        done = self.begin(request_id)

        async def run() -> None:
            try:
                done(await work)
            except AntiphonError as error:
                done(error)
            except Exception as error:  # noqa: BLE001 - answered as a bug of this node
                self._log.error("request_failed", exc_info=error)
                done(self.bug(error))

        self.spawn(run())

    def bug(self, error: Exception) -> InternalError:
        """What the client is told of an exception that nobody meant."""
        return InternalError(f"node {self.gateway.node_id}: {type(error).__name__}: {error}")

    def forward(self, request_id: int, body: Any, payload: memoryview, error: NotLeaderError) -> bool:
        """Have the shard's leader answer a client, where the topic wants that; never for another node (C12)."""
        if self.is_peers or not isinstance(body, ShardRequest):
            return False

        def answered(reply: Any, bulk: memoryview) -> None:
            self.end()
            if isinstance(reply, AntiphonError):
                self.fail(request_id, reply)
            else:
                self.reply(request_id, reply, [bulk] if bulk else None)

        self.begin(request_id)
        if self.gateway.forward(body, payload, error, answered):
            return True
        self.end()
        return False


def _failure(error: AntiphonError) -> Failure:
    """An error with its facts in the types that the wire carries."""
    details = {
        key: value if value is None or isinstance(value, str | int | bool) else str(value)
        for key, value in error.details.items()
    }
    return Failure(error.code, error.message, details)
