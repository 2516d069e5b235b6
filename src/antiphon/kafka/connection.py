"""One client's connection: frames in, responses out in the order of their requests.

Bytes are read straight into a buffer of ours: small frames are cut out of a shared 64 KiB one, a frame that does not fit
gets its own buffer that the socket fills, so the bytes of a large Produce request are copied nowhere on their way in.

A client may send many requests before it reads an answer. They are worked on side by side, but each answer waits for those
before it, as Kafka's clients expect. The number of requests and bytes under way is bounded: over the bound, or while the
client does not read its answers, the connection stops reading.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.framing import LENGTH_BYTES, frame_size
from antiphon.kafka.refused_sequences import RefusedSequences
from antiphon.records.batch import Buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

RECEIVE_BYTES: Final = 64 * 1024
REQUESTS_MAX: Final = 128
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024  # or one request, where that one is larger


class Answer:
    """The place of one response in the order of a connection's responses."""

    __slots__ = ("buffers", "connection", "ready", "size_bytes")

    def __init__(self, connection: "Connection", size_bytes: int) -> None:
        self.connection = connection
        self.size_bytes = size_bytes
        self.ready = False
        self.buffers: Sequence[Buffer] = ()

    def send(self, *buffers: Buffer) -> None:
        """The response is these buffers; none at all for a request that has no response."""
        self.ready = True
        self.buffers = buffers
        self.connection.answered()


class Dispatcher(Protocol):
    """What a connection hands its requests to."""

    def dispatch(self, frame: memoryview, answer: Answer) -> None:
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


class Connection(asyncio.BufferedProtocol):
    """Protocol of one accepted socket. `client_host` is for logs and group descriptions, `refused_sequences` for Produce."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._transport: asyncio.Transport | None = None
        self._shared = memoryview(bytearray(RECEIVE_BYTES))
        self._start = 0  # of what is not yet cut into frames, in _shared
        self._end = 0
        self._large: memoryview | None = None  # a frame (without length) that does not fit into _shared
        self._large_filled = 0
        self._answers: deque[Answer] = deque()
        self._pending_bytes = 0
        self._reading = True
        self._writable = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.client_host = ""
        self._requests = 0
        self.refused_sequences = RefusedSequences()

    # -- what the transport calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a Transport
        peer = transport.get_extra_info("peername")
        self.client_host = str(peer[0]) if peer else ""
        if not self._dispatcher.connected(self):
            transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """The client went away: stop working for it. Appends that were begun go on; only their answer is dropped."""
        self._transport = None
        self._answers.clear()
        for task in self._tasks:
            task.cancel()
        self._dispatcher.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Where the next bytes go."""
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._shared[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` arrived."""
        if self._large is None:
            self._end += nbytes
        else:
            self._large_filled += nbytes
            if self._large_filled < len(self._large):
                return
        self._work()

    def eof_received(self) -> bool:
        """The client will send no more; the transport closes."""
        return False

    def pause_writing(self) -> None:
        """The client does not read its answers."""
        self._writable = False

    def resume_writing(self) -> None:
        """It does again."""
        self._writable = True
        self._work()

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """No answer can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        return not self._answers

    def requests_since_check(self) -> int:
        """How many requests came since this was called last."""
        count, self._requests = self._requests, 0
        return count

    def close(self) -> None:
        """Close after what was written so far."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def fail(self, reason: str, **facts: Any) -> None:
        """Close because of what the client sent, with a line in the log."""
        if not self.is_closed:
            structlog.get_logger().warning(
                "kafka connection closed", reason=reason, client=self.client_host, **facts
            )
        self.abort()

    def start_task(self, work: Any, name: str) -> None:
        """Run a coroutine for this connection; it is cancelled when the connection is lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _work(self) -> None:
        """Cut frames and dispatch them, as far as the bounds allow; read on, or stop reading."""
        try:
            while self._has_room():
                frame = self._next_frame()
                if frame is None:
                    break
                self._handle(frame)
        except ProtocolViolationError as error:
            self.fail(error.message)
            return
        self._set_reading(self._has_room())

    def _has_room(self) -> bool:
        return (
            self._writable
            and not self.is_closed
            and len(self._answers) < REQUESTS_MAX
            and self._pending_bytes < REQUEST_BYTES_MAX
        )

    def _set_reading(self, reading: bool) -> None:
        if self._transport is None or reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _next_frame(self) -> memoryview | None:
        if self._large is not None:
            frame = self._large
            if self._large_filled < len(frame):
                return None
            self._large, self._large_filled = None, 0
            return frame
        have = self._end - self._start
        if have < LENGTH_BYTES:
            self._compact()
            return None
        size = frame_size(self._shared, self._start)
        first = self._start + LENGTH_BYTES
        if have >= LENGTH_BYTES + size:
            self._start = first + size
            return memoryview(bytes(self._shared[first : first + size]))
        if LENGTH_BYTES + size > RECEIVE_BYTES // 4:
            self._begin_large(size, first)
        else:
            self._compact()
        return None

    def _begin_large(self, size: int, first: int) -> None:
        """The rest of this frame is read into a buffer of its own."""
        self._large = memoryview(bytearray(size))
        self._large_filled = self._end - first
        self._large[: self._large_filled] = self._shared[first : self._end]
        self._start = self._end = 0

    def _compact(self) -> None:
        """Move the beginning of a frame to the start of the buffer, so that there is room for its rest."""
        have = self._end - self._start
        if self._start and have:
            self._shared[:have] = bytes(self._shared[self._start : self._end])
        self._start, self._end = 0, have

    def _handle(self, frame: memoryview) -> None:
        answer = Answer(self, len(frame))
        self._answers.append(answer)
        self._pending_bytes += len(frame)
        self._requests += 1
        self._dispatcher.dispatch(frame, answer)

    # -- responses ------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Some answer is ready: write those that no earlier one holds up."""
        if self.is_closed:
            self._answers.clear()
            return
        buffers: list[Buffer] = []
        answers = self._answers
        while answers and answers[0].ready:
            done = answers.popleft()
            self._pending_bytes -= done.size_bytes
            buffers.extend(done.buffers)
        if buffers and self._transport is not None:
            self._transport.writelines(buffers)
        if not self._reading:
            asyncio.get_running_loop().call_soon(self._work)
