"""Framed connections over the event loop: bounded both ways, one write a turn, no task per message.

Theory of operation. A `Connection` hands each received frame to its owner at once and collects what the owner sends
until the end of the loop's turn, when it leaves in one write. What waits to be sent is bounded: above the limit
`send` still takes the message (the owner decides), `congested` is True and the owner stops feeding it, or stops
reading what would make it answer more. Reading is stopped by `hold(reason)` and goes on when every reason was
released, so that several owners of back-pressure do not undo each other's.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.errors import FrameTooLargeError, ProtocolViolationError
from antiphon.wire.frames import Buffer, Frame, FrameDecoder

JOIN_BELOW_BYTES = 128 * 1024  # small messages are copied into one write, large ones go out as they are
JOIN_PARTS_BELOW_BYTES = 2048  # and so are many small parts, which cost more one by one than copied


class EndOfTurn(Protocol):
    """Runs work once at the end of the event loop's turn."""

    def for_connection(self, work: Callable[[], None]) -> None:
        """Run `work` when everything else of this turn is done."""
        ...


class ConnectionOwner(Protocol):
    """Who uses a connection."""

    def connected(self, connection: "Connection") -> None:
        """The connection stands; called before anything else."""
        ...

    def received(self, connection: "Connection", frame: Frame) -> None:
        """One frame arrived. An AntiphonError from here closes the connection."""
        ...

    def drained(self, _connection: "Connection") -> None:
        """The connection was congested and is no more."""
        ...

    def disconnected(self, _connection: "Connection", reason: Exception | None) -> None:
        """The connection is gone; nothing is called afterwards."""
        ...


class Connection(asyncio.Protocol):
    """One framed TCP connection."""

    def __init__(self, owner: ConnectionOwner, turn: EndOfTurn, write_limit_bytes: int) -> None:
        self._owner = owner
        self._turn = turn
        self._limit = write_limit_bytes
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder()
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_asked = False
        self._writing_paused = False
        self._holds: dict[str, bool] = {}
        self._reason: Exception | None = None
        self._closing = False
        self._cut = False
        self.peer = "?"

    @property
    def congested(self) -> bool:
        """More waits to be sent than the limit allows."""
        return self._writing_paused or self._out_bytes > self._limit

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait to be sent."""
        return self._out_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def open(self) -> bool:
        """Can messages be sent?"""
        return self._transport is not None and not self._transport.is_closing()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = transport  # type: ignore[assignment]  # TCP connections are Transports
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in {socket.AF_INET, socket.AF_INET6}:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _notice_silence(sock)
        self._transport.set_write_buffer_limits(high=self._limit)  # type: ignore[union-attr]  # set just above
        self._owner.connected(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        try:
            for frame in self._decoder.feed(data):
                self._owner.received(self, frame)
                if self._closing:
                    return
        except (ProtocolViolationError, FrameTooLargeError) as error:
            self.close(error)

    def pause_writing(self) -> None:
        """See asyncio."""
        self._writing_paused = True

    def resume_writing(self) -> None:
        """See asyncio."""
        self._writing_paused = False
        self._owner.drained(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None
        self._out.clear()
        self._out_bytes = 0
        self._owner.disconnected(self, self._reason or exc)

    # -- for the owner ------------------------------------------------------------------------------------------

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send a frame's parts at the end of this turn; dropped when the connection is gone."""
        if self._transport is None:
            return
        self._out.extend(parts)
        for part in parts:
            self._out_bytes += len(part)
        if not self._flush_asked:
            self._flush_asked = True
            self._turn.for_connection(self._flush)

    def _flush(self) -> None:
        self._flush_asked = False
        transport, out, size = self._transport, self._out, self._out_bytes
        if transport is None or transport.is_closing() or not out or self._cut:
            return
        self._out = []
        self._out_bytes = 0
        if len(out) == 1:
            transport.write(out[0])
        elif size <= JOIN_BELOW_BYTES or size < len(out) * JOIN_PARTS_BELOW_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    def hold(self, reason: str) -> None:
        """Stop reading until `release(reason)`."""
        if not self._holds and self.open:
            self._transport.pause_reading()  # type: ignore[union-attr]  # `open` saw it
        self._holds[reason] = True

    def release(self, reason: str) -> None:
        """One reason less not to read; harmless when it was not given."""
        if self._holds.pop(reason, None) and not self._holds and self.open:
            self._transport.resume_reading()  # type: ignore[union-attr]  # `open` saw it

    def cut(self, on: bool) -> None:
        """Let nothing through in either direction, or again what was held; the work of injected faults."""
        if on == self._cut:
            return
        self._cut = on
        if on:
            self.hold("cut")
        else:
            self.release("cut")
            self._flush()

    def close(self, reason: Exception | None = None) -> None:
        """Send what was handed over, then close."""
        if self._reason is None:
            self._reason = reason
        self._closing = True
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once; what was not sent is lost."""
        if self._transport is not None:
            self._transport.abort()


def _notice_silence(sock: socket.socket) -> None:
    """Let the kernel end connections whose other machine has vanished without a word, within half a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 20_000),
    ):
        number = getattr(socket, option, None)  # not every system has all of them
        if number is not None:
            sock.setsockopt(socket.IPPROTO_TCP, number, value)
