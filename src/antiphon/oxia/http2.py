"""One end of an HTTP/2 connection that serves gRPC: bytes in, events out, and bytes to be sent. No socket, no clock.

Everything that the other side can make this one keep, or do for nothing, has a bound; who goes beyond is told why in a
GOAWAY and is hung up on:

* Header blocks have `HEADER_BLOCK_BYTES` at most, CONTINUATION frames included, and what they say as much, in `FIELDS_MAX`
  fields.
* Streams that are open at once: `Bounds.streams`. Others are refused one by one.
* Frames that make nothing go on (PING, SETTINGS, RST_STREAM, PRIORITY, updates of windows, empty DATA, refused streams):
  each costs a token (`allowance.py`).
* Small DATA frames cost `CRUMB_COST` tokens, which come back with the message that they complete (`completed`).
* Streams that are reset while they are worked on ("rapid reset") cost `RESET_COST`.
* Settings cost as many as there are and as streams that they change, large headers what reading them takes.
* Work in one turn: `WORK_MAX` frames, or what takes as long.
* Bytes of requests that nobody has taken: the windows. Those are opened again by `consumed` only.
* What is to be sent waits for the other side's windows; who sends asks `Http2.waiting_bytes`.
"""

from collections import deque
from typing import Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from antiphon.oxia import frames as f
from antiphon.oxia.allowance import (
    CRUMB_BYTES,
    CRUMB_COST,
    FIELDS_MAX,
    OPEN_WORK,
    RESET_COST,
    RESET_WORK,
    STREAMS_A_TOKEN,
    USEFUL,
    WORK_MAX,
    Allowance,
    Bounds,
)
from antiphon.oxia.events import SENDABLE, Event, Opened, Received, Reset

HEADER_BLOCK_BYTES: Final = 16 * 1024
WINDOW_BYTES: Final = 1024 * 1024  # of requests on the way, for a connection and for each stream
PIECE_BYTES: Final = 1_024  # of a larger answer that are sent at least: windows do not fall into crumbs


class ConnectionFailedError(Exception):
    """The other side broke the protocol, or a bound: nothing more is read. What there is to say is in `outgoing`."""


class _Stream:
    """What is left to send on one stream."""

    __slots__ = ("ended_here", "ended_there", "freed", "queue", "received", "trailers", "waiting", "window")

    def __init__(self, window: int) -> None:
        self.window = window  # what may still be sent
        self.received = 0  # bytes that were received and not given back
        self.freed = 0  # that may be given back, and are collected
        self.waiting = 0  # bytes in the queue
        self.queue: deque[memoryview] = deque()
        self.trailers: bytes | None = None
        self.ended_there = False
        self.ended_here = False


class Http2:
    """See the module's text. `outgoing` is for whoever has the socket: take it all, and clear it.

    Attributes:
        waiting_bytes: of answers, which wait for the client's windows.
        is_interrupted: is there more to be read than `receive` does at a time? It goes on with `receive(b"")`.
    """

    def __init__(self, bounds: Bounds | None = None, work_max: int = WORK_MAX) -> None:
        self.bounds = bounds = bounds or Bounds()
        self.outgoing = bytearray(
            f.settings_frame(
                [
                    (f.MAX_CONCURRENT_STREAMS, bounds.streams),
                    (f.INITIAL_WINDOW_SIZE, WINDOW_BYTES),
                    (f.MAX_HEADER_LIST_SIZE, HEADER_BLOCK_BYTES),
                    (f.ENABLE_PUSH, 0),
                ]
            )
            + f.window_update(0, WINDOW_BYTES - f.WINDOW_DEFAULT)
        )
        self.waiting_bytes = 0
        self.is_interrupted = False
        self._received = bytearray()
        self._streams: dict[int, _Stream] = {}
        self._held_up: dict[int, _Stream] = {}  # that wait for the connection's window, and not for their own
        self._last_stream = 0
        self._window = f.WINDOW_DEFAULT  # what may be sent on the connection
        self._stream_window = f.WINDOW_DEFAULT
        self._least = PIECE_BYTES
        self._frame_bytes = f.FRAME_BYTES_DEFAULT
        self._unread = 0  # bytes that were received and not given back, on the connection
        self._consumed = 0  # that may be given back, and are collected
        self._allowed = Allowance(bounds, work_max)
        self._decoder = Decoder(max_header_list_size=HEADER_BLOCK_BYTES)
        self._block: tuple[int, int, bytearray] | None = None  # stream, flags, fragments of headers
        self._greeted = False
        self._events: list[Event] = []

    def refill(self, passed_s: float) -> None:
        """So much time has passed: more frames that make nothing go on are taken."""
        self._allowed.refill(passed_s)

    @property
    def work(self) -> int:
        """Units that the last `receive` took."""
        return self._allowed.work

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """What bytes from the other side say, or what is left of earlier ones. Raises ConnectionFailedError."""
        self._received += data
        received, at = self._received, 0
        allowed = self._allowed
        allowed.work, self.is_interrupted = 0, False
        if not self._greeted:
            if not f.PREFACE.startswith(received[: len(f.PREFACE)]):
                raise self._failed(f.PROTOCOL_ERROR, "this port speaks HTTP/2 (gRPC) only")
            if len(received) < len(f.PREFACE):
                return []
            self._greeted, at = True, len(f.PREFACE)
        end = len(received)
        try:
            while end - at >= f.HEADER_BYTES:
                size, kind, flags, stream_id = f.read_frame_header(received, at)
                if size > f.FRAME_BYTES_DEFAULT:
                    raise self._failed(
                        f.FRAME_SIZE_ERROR, f"a frame has {f.FRAME_BYTES_DEFAULT} bytes at most"
                    )
                if end - at < f.HEADER_BYTES + size:
                    break
                if allowed.is_spent:
                    self.is_interrupted = True
                    break
                allowed.work += 1
                at += f.HEADER_BYTES
                self._frame(kind, flags, stream_id, bytes(received[at : at + size]))
                at += size
        finally:
            del received[:at]
        events, self._events = self._events, []
        return events

    def receive_later(self, data: bytes) -> None:
        """Keep bytes that came although the other side's turn is not yet."""
        self._received += data

    @property
    def is_half_received(self) -> bool:
        """Has a frame begun that is not here yet, or a block of headers?"""
        return bool(self._received) or self._block is not None

    @property
    def held_bytes(self) -> int:
        """Bytes of frames and headers that are not whole yet, or were not read yet."""
        return len(self._received) + (0 if self._block is None else len(self._block[2]))

    def _failed(self, code: int, why: str) -> ConnectionFailedError:
        self.outgoing += f.goaway(self._last_stream, code, why)
        return ConnectionFailedError(why)

    def _idle(self, cost: float = 1.0) -> None:
        """A frame that makes nothing go on."""
        if not self._allowed.pay(cost):
            raise self._failed(f.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def completed(self, messages: int) -> None:
        """DATA frames have completed messages: the client gets on."""
        self._allowed.earn(messages * (CRUMB_COST + USEFUL))

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != f.CONTINUATION or stream_id != self._block[0]):
            raise self._failed(f.PROTOCOL_ERROR, "a block of headers is interrupted")
        match kind:
            case f.DATA:
                self._data(flags, stream_id, payload)
            case f.HEADERS:
                self._headers(flags, stream_id, payload)
            case f.CONTINUATION:
                self._continuation(flags, payload)
            case f.SETTINGS:
                self._settings(flags, stream_id, payload)
            case f.WINDOW_UPDATE:
                self._window_update(stream_id, payload)
            case f.RST_STREAM:
                self._reset(stream_id, payload)
            case f.PING:
                self._ping(flags, stream_id, payload)
            case f.PUSH_PROMISE:
                raise self._failed(f.PROTOCOL_ERROR, "clients promise nothing")
            case _:  # PRIORITY, GOAWAY, and types that nobody knows yet: passed over
                self._idle()

    def _unpadded(self, flags: int, payload: bytes) -> bytes:
        if not flags & f.PADDED:
            return payload
        if not payload or payload[0] >= len(payload):
            raise self._failed(f.PROTOCOL_ERROR, "more padding than frame")
        return payload[1 : len(payload) - payload[0]]

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._unread += size
        if self._unread > WINDOW_BYTES:
            raise self._failed(f.FLOW_CONTROL_ERROR, "more bytes than the window allows")
        data = self._unpadded(flags, payload)
        stream, ended = self._streams.get(stream_id), bool(flags & f.END_STREAM)
        if len(data) >= CRUMB_BYTES:
            self._allowed.earn()
        elif data:
            self._idle(CRUMB_COST)
        elif not ended:
            self._idle()
        if stream is None or stream.ended_there:
            if stream_id > self._last_stream or not stream_id % 2:
                raise self._failed(f.PROTOCOL_ERROR, "data on a stream that was never opened")
            self._idle()  # it ended here, and the client had not heard of it
            self.consumed(0, size)
            return
        stream.received += size
        if stream.received > WINDOW_BYTES:
            raise self._failed(f.FLOW_CONTROL_ERROR, "more bytes than the stream's window allows")
        if not data and not ended:  # nobody needs to hear of padding
            self.consumed(stream_id, size)
            return
        stream.ended_there = ended
        self._events.append(Received(stream_id, data, size, ended))
        self._forget(stream_id, stream)

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id % 2:
            raise self._failed(f.PROTOCOL_ERROR, "a client's streams have odd numbers")
        payload = self._unpadded(flags, payload)
        if flags & f.HAS_PRIORITY:
            if len(payload) < 5:
                raise self._failed(f.FRAME_SIZE_ERROR, "a frame of headers is cut short")
            payload = payload[5:]
        self._block = (stream_id, flags, bytearray(payload))
        if flags & f.END_HEADERS:
            self._block_ends()

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise self._failed(f.PROTOCOL_ERROR, "a block of headers goes on that never began")
        self._idle()
        self._block[2].extend(payload)
        if len(self._block[2]) > HEADER_BLOCK_BYTES:
            raise self._failed(f.ENHANCE_YOUR_CALM, f"headers have {HEADER_BLOCK_BYTES} bytes at most")
        if flags & f.END_HEADERS:
            self._block_ends()

    def _block_ends(self) -> None:
        stream_id, flags, block = self._block or (0, 0, bytearray())
        self._block = None
        try:
            f.check_size_updates(block)
            headers = list(self._decoder.decode(bytes(block), raw=True))
        except (HPACKError, ValueError, IndexError):
            raise self._failed(
                f.COMPRESSION_ERROR,
                f"headers that cannot be read, or more than {HEADER_BLOCK_BYTES} bytes of them",
            ) from None
        if len(headers) > FIELDS_MAX:
            raise self._failed(f.ENHANCE_YOUR_CALM, f"headers have {FIELDS_MAX} fields at most")
        self._idle(self._allowed.block(len(block), len(headers)))
        ended = bool(flags & f.END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is not None:  # trailers of a request: gRPC's clients send none
            stream.ended_there = stream.ended_there or ended
            self._idle()
            self._events.append(Received(stream_id, b"", 0, ended))
            self._forget(stream_id, stream)
            return
        if stream_id <= self._last_stream:
            self._idle()  # it ended here already
            return
        self._last_stream = stream_id
        if len(self._streams) >= self.bounds.streams:
            self.refuse(stream_id)
            return
        self._allowed.earn()
        self._allowed.work += OPEN_WORK
        opened = self._streams[stream_id] = _Stream(self._stream_window)
        opened.ended_there = ended
        self._events.append(Opened(stream_id, [(bytes(one[0]), bytes(one[1])) for one in headers], ended))

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) % 6 or (flags & f.ACK and payload):
            raise self._failed(f.FRAME_SIZE_ERROR, "settings that cannot be read")
        self._idle(1 + len(payload) // 6)
        if flags & f.ACK:
            return
        window = None
        for name, value in f.read_settings(payload):
            if name == f.INITIAL_WINDOW_SIZE:
                if value > f.WINDOW_MAX:
                    raise self._failed(f.FLOW_CONTROL_ERROR, "an impossible window")
                window = value  # the last one counts: there are as many as the frame has room for
            elif name == f.MAX_FRAME_SIZE:
                if not f.FRAME_BYTES_DEFAULT <= value <= f.FRAME_BYTES_MAX:
                    raise self._failed(f.PROTOCOL_ERROR, "an impossible size of frames")
                self._frame_bytes = min(value, 64 * 1024)
        self.outgoing += f.frame(f.SETTINGS, f.ACK, 0)
        if window is not None and window != self._stream_window:
            self._change_windows(window)

    def _change_windows(self, value: int) -> None:
        self._idle(len(self._streams) // STREAMS_A_TOKEN)
        self._allowed.work += len(self._streams) // STREAMS_A_TOKEN
        change, self._stream_window = value - self._stream_window, value
        self._least = max(1, min(PIECE_BYTES, value // 4))
        for stream_id, stream in list(self._streams.items()):
            stream.window += change
            if stream.window > f.WINDOW_MAX:
                raise self._failed(f.FLOW_CONTROL_ERROR, "an impossible window")
            self._pump(stream_id, stream)

    def _window_update(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise self._failed(f.FRAME_SIZE_ERROR, "an update of a window that cannot be read")
        size = f.number_in(payload) & f.WINDOW_MAX
        if not size:
            raise self._failed(f.PROTOCOL_ERROR, "an update of a window by nothing")
        before = self.waiting_bytes
        if not stream_id:
            self._window += size
            if self._window > f.WINDOW_MAX:
                raise self._failed(f.FLOW_CONTROL_ERROR, "an impossible window")
            while self._held_up and self._window >= self._least:
                first = next(iter(self._held_up))
                self._pump(first, self._held_up.pop(first))
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.window += size
            if stream.window > f.WINDOW_MAX:
                raise self._failed(f.FLOW_CONTROL_ERROR, "an impossible window")
            self._pump(stream_id, stream)
        if self.waiting_bytes == before:
            self._idle()
        elif SENDABLE not in self._events[-1:]:
            self._events.append(SENDABLE)

    def _reset(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise self._failed(f.FRAME_SIZE_ERROR, "a reset that cannot be read")
        if stream_id > self._last_stream or not stream_id:
            raise self._failed(f.PROTOCOL_ERROR, "a reset of a stream that was never opened")
        stream = self._streams.get(stream_id)
        self._idle(1.0 if stream is None else RESET_COST)
        if stream is not None:
            self._allowed.work += RESET_WORK
            self._drop(stream_id, stream)
            self._events.append(Reset(stream_id))

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) != 8:
            raise self._failed(f.FRAME_SIZE_ERROR, "a ping that cannot be read")
        self._idle()
        if not flags & f.ACK:
            self.outgoing += f.frame(f.PING, f.ACK, 0, payload)

    # -- sending ------------------------------------------------------------------------------------------------------

    def consumed(self, stream_id: int, size: int) -> None:
        """Bytes of a request need no room any more: the client may send as many again."""
        self._unread -= size
        self._consumed += size
        if self._consumed >= WINDOW_BYTES // 4:
            self.outgoing += f.window_update(0, self._consumed)
            self._consumed = 0
        stream = self._streams.get(stream_id)
        if stream is not None and size:
            stream.received -= size
            stream.freed += size
            if not stream.ended_there and stream.freed >= WINDOW_BYTES // 4:
                self.outgoing += f.window_update(stream_id, stream.freed)
                stream.freed = 0

    def refuse(self, stream_id: int) -> None:
        """Take no such request now: nothing of it was carried out, and clients try it again."""
        self._idle()
        self.outgoing += f.rst_stream(stream_id, f.REFUSED_STREAM)
        if stream_id in self._streams:
            self._drop(stream_id, self._streams[stream_id])

    def is_open(self, stream_id: int) -> bool:
        """Can an answer still be sent?"""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.ended_here

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """Begin an answer."""
        if self.is_open(stream_id):
            self.outgoing += f.frame(f.HEADERS, f.END_HEADERS, stream_id, block)

    def send_data(self, stream_id: int, data: bytes | bytearray) -> None:
        """Send bytes of an answer, now or when the windows allow it."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_here:
            return
        stream.queue.append(memoryview(data))
        stream.waiting += len(data)
        self.waiting_bytes += len(data)
        self._pump(stream_id, stream)

    def send_end(self, stream_id: int, block: bytes) -> None:
        """End an answer with these trailers, after all that waits."""
        stream = self._streams.get(stream_id)
        if stream is None or stream.ended_here:
            return
        stream.trailers, stream.ended_here = block, True
        self._pump(stream_id, stream)

    def waiting_of(self, stream_id: int) -> int:
        """Bytes of one answer that wait."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.waiting

    def go_away(self, why: str) -> None:
        """Say that no more is answered here."""
        self.outgoing += f.goaway(self._last_stream, f.NO_ERROR, why)

    def forget_all(self) -> None:
        """The other side is gone: nothing waits for it any more, whoever still holds this object."""
        for kept in (self._streams, self._held_up, self.outgoing, self._received):
            kept.clear()
        self.waiting_bytes = 0

    def _pump(self, stream_id: int, stream: _Stream) -> None:
        """Send what may be sent of one stream."""
        queue = stream.queue
        while queue:
            piece = queue[0]
            size = min(len(piece), stream.window, self._window, self._frame_bytes)
            if (
                size < len(piece) and size < self._least
            ):  # the window opens again: clients wait for a half of it at most
                if stream.window >= self._least:
                    self._held_up[stream_id] = stream
                return
            self.outgoing += f.frame_header(f.DATA, 0, stream_id, size)
            self.outgoing += piece[:size]
            stream.window -= size
            self._window -= size
            stream.waiting -= size
            self.waiting_bytes -= size
            self._allowed.earn()
            if size == len(piece):
                queue.popleft()
            else:
                queue[0] = piece[size:]
        if stream.trailers is not None:
            self.outgoing += f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, stream_id, stream.trailers)
            stream.trailers = None
            if not stream.ended_there:  # an answer that needs no more of the request
                self.outgoing += f.rst_stream(stream_id, f.NO_ERROR)
                self._drop(stream_id, stream)
            else:
                self._forget(stream_id, stream)

    def _forget(self, stream_id: int, stream: _Stream) -> None:
        if stream.ended_here and stream.ended_there and not stream.queue and stream.trailers is None:
            self._drop(stream_id, stream)

    def _drop(self, stream_id: int, stream: _Stream) -> None:
        self.waiting_bytes -= stream.waiting
        stream.waiting = 0
        stream.queue.clear()
        self._held_up.pop(stream_id, None)
        stream.ended_here, stream.trailers = True, None
        self._streams.pop(stream_id, None)
