"""Framed connections over the event loop: bounded both ways, one write a turn, no task per message.

Theory of operation. A `Connection` hands each received frame to its owner at once and collects what the owner sends
until the end of the loop's turn, when it leaves in one write. What waits to be sent is bounded: above the limit
`send` still takes the message (the owner decides), `congested` is True and the owner stops sending, or stops
reading what would make it answer more. Reading is stopped by `hold(reason)` and goes on when every reason was
released, so that several owners of back-pressure do not undo each other's. Frames that had arrived by then are kept and
handed over afterwards. What has arrived and what waits to be sent is counted in the owner's `account`, if it has one.
Of what a client sends a few frames are handed over in each turn; the rest waits for its turn among all clients (`Share`).
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from antiphon.errors import FrameTooLargeError, ProtocolViolationError
from antiphon.wire.frames import PREFIX, Buffer, Frame, FrameDecoder

JOIN_BELOW_BYTES = 128 * 1024  # small messages are copied into one write, large ones go out as they are
TOLD_BYTES = 16 * 1024  # the owner of a connection with an account hears when less waits again
COUNTED_BYTES = 16 * 1024  # what waits to be sent is counted at once from here on, and each second below
JOIN_PARTS_BELOW_BYTES = 2048  # and so are many small parts, which cost more one by one than copied


class EndOfTurn(Protocol):
    """Runs work once at the end of the event loop's turn."""

    def for_connection(self, work: Callable[[], None]) -> None:
        """Run `work` when everything else of this turn is done."""


class Account(Protocol):
    """Counts what a connection holds (`gateway.budget`)."""

    half: bool
    outgoing_bytes: int

    @property
    def has_room(self) -> bool:
        """May it read more?"""

    def add(self, change_bytes: int) -> None:
        """It holds so much more."""

    def outgoing(self, size_bytes: int) -> None:
        """So much waits to be sent now."""


class Share(Protocol):
    """A connection's part in the turns of the event loop (`gateway.turns`)."""

    @property
    def frames_at_once(self) -> int:
        """That may be handed over now."""

    def took(self, frames: int) -> None:
        """So many were handed over in this turn."""

    def when_turn(self, work: Callable[[], None]) -> None:
        """Run `work` when it is the connection's turn."""


class ConnectionOwner(Protocol):
    """Who uses a connection."""

    def connected(self, connection: "Connection") -> None:
        """The connection stands; called before anything else."""

    def received(self, connection: "Connection", frame: Frame) -> None:
        """One frame arrived. An AntiphonError from here closes the connection."""

    def drained(self, _connection: "Connection") -> None:
        """The connection was congested and is no more."""

    def disconnected(self, _connection: "Connection", reason: Exception | None) -> None:
        """The connection is gone; nothing is called afterwards."""


class Connection(asyncio.Protocol):
    """One framed TCP connection."""

    def __init__(self, owner: ConnectionOwner, turn: EndOfTurn, write_limit_bytes: int) -> None:
        self._owner = owner
        self._turn = turn
        self._limit = self._congested_bytes = write_limit_bytes
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
        self._frames: deque[Frame] = deque()  # that arrived while nothing was to be read
        self.peer = "?"
        self._incoming = 0  # as it was counted last
        self.account: Account | None = None
        self.full: Callable[[], None] = _nothing  # called when the account has no room
        self.share: Share | None = (
            None  # of the turns of the event loop; None: all that arrives is handed over at once
        )
        self.received_bytes = 0
        self.sent_bytes = 0  # handed to the transport

    def get_extra_info(self, name: str) -> Any:
        """What the transport knows, as asyncio names it; None once it is gone."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    @property
    def congested(self) -> bool:
        """More waits to be sent than the limit allows; with an account, than is counted each second only."""
        return self._writing_paused or self._out_bytes > self._congested_bytes

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
        self.received_bytes += len(data)
        frames = self._frames
        try:
            frames.extend(self._decoder.feed(data))
            if len(frames) > 1 and self.share is not None:
                self._hand_over(self.share)
            else:  # the loop itself has each connection wait for its next chunk
                while frames and not self._holds and not self._closing:
                    self._owner.received(self, frames.popleft())
        except (ProtocolViolationError, FrameTooLargeError) as error:
            self.close(error)
            return
        if self.account is not None and (frames or self._incoming or self._decoder.buffered_bytes):
            self._count_incoming(self.account)
            if not self.account.has_room:
                self.full()

    def _hand_over(self, share: Share) -> None:
        """Give the owner what a client sent at once: a few frames in each turn of the event loop."""
        frames = self._frames
        most = left = min(len(frames), share.frames_at_once)
        while left and not self._holds and not self._closing:
            left -= 1
            self._owner.received(self, frames.popleft())
        share.took(most - left)
        if frames and not self._holds and not self._closing:
            self.hold("turn")
            share.when_turn(self._my_turn)

    def _my_turn(self) -> None:
        if self._holds.pop("turn", None) and not self._holds:
            self._go_on()

    def _count_incoming(self, account: Account) -> None:
        """Count what has arrived and is not handed over."""
        waiting = self._decoder.buffered_bytes
        for frame in self._frames:
            waiting += PREFIX.size + len(frame.header) + len(frame.payload)
        change, self._incoming = waiting - self._incoming, waiting
        account.add(change)
        account.half = not self._frames and self._decoder.buffered_bytes > 0

    def _go_on(self) -> None:
        """Nothing holds the connection any more: first what has arrived, then what comes."""
        if self._holds or not self.open:
            return
        self.data_received(b"")
        if not self._holds and self.open:
            self._transport.resume_reading()  # type: ignore[union-attr]  # `open` saw it

    @property
    def is_held(self) -> bool:
        """Is nothing read now?"""
        return bool(self._holds)

    @property
    def is_half_received(self) -> bool:
        """Did a frame begin to arrive?"""
        return self._decoder.buffered_bytes > 0

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
        self._frames.clear()
        self._out_bytes = 0
        self._owner.disconnected(self, self._reason or exc)

    def count_in(self, account: Account, full: Callable[[], None], share: Share) -> None:
        """Count what this connection holds in `account`, and call `full` when it has no room. The owner is then told of a
        drained connection at `TOLD_BYTES` already. What arrives is handed over as the `share` allows.
        """
        self.account, self.full, self.share = account, full, share
        self._congested_bytes = COUNTED_BYTES
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=min(self._limit, TOLD_BYTES))

    def limit_frames(self, limit_bytes: int) -> None:
        """Bound the frames that follow; those that came in one piece with this one are read already."""
        self._decoder.limit(limit_bytes)

    def count_no_more(self) -> None:
        """This connection has no account any more."""
        self.account, self.full, self.share = None, _nothing, None
        self._congested_bytes = self._limit
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=self._limit)

    # -- for the owner ------------------------------------------------------------------------------------------

    def send(self, parts: Sequence[Buffer]) -> bool:
        """Send a frame's parts at the end of this turn; dropped when the connection is gone. Returns `congested`."""
        if self._transport is None:
            return False
        self._out.extend(parts)
        for part in parts:
            self._out_bytes += len(part)
        if not self._flush_asked:
            self._flush_asked = True
            self._turn.for_connection(self._flush)
        return self._writing_paused or self._out_bytes > self._congested_bytes

    def _flush(self) -> None:
        self._flush_asked = False
        transport, out, size = self._transport, self._out, self._out_bytes
        if transport is None or transport.is_closing() or not out or self._cut:
            return
        self._out = []
        self._out_bytes = 0
        self.sent_bytes += size
        if len(out) == 1:
            transport.write(out[0])
        elif size <= JOIN_BELOW_BYTES or size < len(out) * JOIN_PARTS_BELOW_BYTES:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)
        account = self.account
        if account is None:
            return
        waiting = transport.get_write_buffer_size()
        if waiting > COUNTED_BYTES or account.outgoing_bytes:
            account.outgoing(waiting)
            if not account.has_room:
                self.full()

    def count_waiting(self) -> None:
        """Count what waits to be sent now."""
        if self.account is not None:
            self.account.outgoing(self.waiting_bytes)

    def hold(self, reason: str) -> None:
        """Stop reading until `release(reason)`."""
        if not self._holds and self.open:
            self._transport.pause_reading()  # type: ignore[union-attr]  # `open` saw it
        self._holds[reason] = True

    def release(self, reason: str) -> None:
        """One reason less not to read; harmless when it was not given."""
        if not self._holds.pop(reason, None) or self._holds or not self.open:
            return
        if self._frames:
            asyncio.get_running_loop().call_soon(self._go_on)
        else:
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


def _nothing() -> None:
    pass


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
