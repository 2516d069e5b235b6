"""One end of a simulated TCP connection: an asyncio transport over two pipes, one each way."""

import asyncio
from asyncio import transports
from collections import deque
from contextvars import Context
from typing import Any, Final

from antiphon.simulation.runtime.pipe import Medium, Pipe
from antiphon.simulation.runtime.process import Process, Shield

SILENCE_S: Final = 20.0  # after which a side gives up a connection that nothing gets through
HIGH_WATER_BYTES: Final = 64 * 1024

Address = tuple[str, int]


class Transport(transports.Transport):
    """One end of a connection."""

    def __init__(
        self,
        medium: Medium,
        process: Process,
        context: Context,
        number: int,
        local: Address,
        remote: Address,
    ) -> None:
        super().__init__()
        self._medium = medium
        self.process = process
        self.context = context
        self.number = number
        self.local, self.remote = local, remote
        self.shield: Shield | None = None  # both ends have that of the process that connected
        self.accepted = False  # is this the end of who listened?
        self.protocol: asyncio.Protocol | asyncio.BufferedProtocol
        self.out: Pipe
        self.inward: Pipe
        self.other: Transport
        self.closing = False
        self.lost = False
        self.reading = True
        self._inbox: deque[bytes | None] = deque()
        self._writing_paused = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        process.connections[self] = None

    # -- asyncio's side ---------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See asyncio."""
        found: dict[str, Any] = {"peername": self.remote, "sockname": self.local}
        if self.shield is not None:
            found["ssl_object"] = self.shield
            if self.accepted:
                found["peercert"] = {"subject": self.shield.subject}
        return found.get(name, default)

    def is_closing(self) -> bool:
        """See asyncio."""
        return self.closing

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self.protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio."""
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return self.out.unsent_bytes

    def pause_reading(self) -> None:
        """See asyncio."""
        self.reading = False

    def resume_reading(self) -> None:
        """See asyncio."""
        if not self.reading:
            self.reading = True
            self._medium.loop.in_context(0.0, self.context, self._read)

    def is_reading(self) -> bool:
        """See asyncio."""
        return self.reading and not self.closing

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self.closing or not data:
            return
        piece = bytes(data)
        self._medium.observe("write", self, piece)
        self.out.write(piece)
        self._wrote()
        if not self._writing_paused and self.out.unsent_bytes > self._high:
            self._writing_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """See asyncio."""
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return False

    def close(self) -> None:
        """See asyncio."""
        self.end(None, refuses=True)

    def abort(self) -> None:
        """See asyncio."""
        self.end(None, drops=True, refuses=True)

    def end(
        self, error: Exception | None, *, drops: bool = False, finishes: bool = True, refuses: bool = False
    ) -> None:
        """Close this end, if it is open.

        Args:
            error: what its protocol is told; None: nothing is wrong.
            drops: what is under way to the other end is lost.
            finishes: the other end is told.
            refuses: what the other end has sent, and this one has not taken, is answered with a reset.
        """
        if self.closing:
            return
        self.closing = True
        if drops:
            self.out.drop()
        if finishes:
            self.out.finish()
        if refuses and self.inward.unsent_bytes:
            self._refuse_rest()
        self.ended(error)

    def _refuse_rest(self) -> None:
        """What comes to an end that is closed is answered with a reset. Who reads has learned of the end before that."""
        link, other = self.out.link, self.other
        if not (other.reading or other.closing or link.cut):
            self._medium.loop.in_context(link.delay_s[0], other.context, other.was_reset)

    def was_reset(self) -> None:
        """The other end takes no more: what it did not get is lost, and this one is told, whether it reads or not."""
        self.end(ConnectionResetError(104, "reset"), drops=True, finishes=False)

    def ended(self, error: Exception | None) -> None:
        """The protocol is told that this end of the connection is gone."""
        if not self.lost:
            self.lost = True
            self._inbox.clear()
            self.process.connections.pop(self, None)
            self._medium.loop.in_context(0.0, self.context, self.protocol.connection_lost, error)

    # -- the world's side -------------------------------------------------------------------------------------------

    def arrived(self, data: bytes | None) -> None:
        """Bytes came out of the pipe, or its end."""
        if not self.closing:
            self._inbox.append(data)
            self._read()
        elif data is not None and self.other.local[0] not in self._medium.down:
            self._refuse_rest()

    def _read(self) -> None:
        while self._inbox and self.reading and not self.closing:
            data = self._inbox.popleft()
            if data is None:
                self.end(None)
                return
            buffer: Any = None
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                buffer = self.protocol.get_buffer(-1)
                if len(buffer) < len(data):  # the rest stays in the kernel until the next read
                    self._inbox.appendleft(data[len(buffer) :])
                    data = data[: len(buffer)]
            self._medium.observe("read", self, data)
            self.inward.consumed(len(data))
            self._hand_over(data, buffer)

    def _hand_over(self, data: bytes, buffer: Any) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(data)
            return
        if not data:
            raise RuntimeError("get_buffer() returned an empty buffer")  # as asyncio says it
        buffer[: len(data)] = data
        self.protocol.buffer_updated(len(data))

    def drained(self) -> None:
        """The other side has read: perhaps writing may go on."""
        if self._writing_paused and self.out.unsent_bytes <= self._low and not self.closing:
            self._writing_paused = False
            self._medium.loop.in_context(0.0, self.context, self.protocol.resume_writing)

    def reset(self) -> None:
        """The connection breaks: what is under way is lost, both ends are told."""
        for end in (self, self.other):
            end.end(ConnectionResetError(104, "reset"), drops=True, finishes=False)

    def break_off(self, late_s: float) -> None:
        """This end is told that the connection broke; what it had sent arrives all the same, later by `late_s`."""
        if not self.closing:
            self.out.stall(late_s)
            self.end(ConnectionResetError(104, "reset"))

    def give_up(self) -> None:
        """This end has not heard anything for too long."""
        self.end(TimeoutError(110, "timed out"), drops=True)

    def process_died(self, *, silently: bool, sent_arrives: bool) -> None:
        """The process is gone; its kernel ends the connection, or the whole machine is gone."""
        if self.closing:
            return
        self.closing = self.lost = True
        self._inbox.clear()
        if silently:
            self.out.drop(sent_too=not sent_arrives)
            self.other.half_open()
        else:
            self.out.finish()
            if self.inward.unsent_bytes:
                self._refuse_rest()

    def _wrote(self) -> None:
        """Who writes into a direction that is cut gives up some time; a machine that is up again answers with a reset."""
        other, down = self.other, self._medium.down
        if other.closing and not other.process.alive and other.local[0] not in down:
            link = self.out.link
            if not link.cut:
                delay_s = self._medium.rng.uniform(*link.delay_s)
                self._medium.loop.in_context(delay_s, self.context, self.reset)
                return
        if self.out.link.cut or other.local[0] in down:
            self.half_open()

    def half_open(self) -> None:
        """Nothing gets through to the other end: this one gives up after a while, if that is still so."""

        def look() -> None:
            other = self.other
            if self.out.link.cut or not other.process.alive or other.local[0] in self._medium.down:
                self.give_up()

        self._medium.loop.in_context(SILENCE_S, self.context, look)

    def __repr__(self) -> str:
        return f"<connection {self.number} {self.process.name} {self.local} - {self.remote}>"
