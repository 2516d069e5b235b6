"""One client's connection: frames in, responses out in the order of their requests.

All connections of a listener read into one buffer, from which small frames are cut out. A frame that does not fit gets a
buffer of its own, which the socket fills. It grows as bytes arrive, so that a length that is only announced costs nothing,
and the bytes of a large Produce request are copied nowhere on their way in.

A client may send many requests before it reads an answer. They are worked on side by side, but each answer waits for those
before it, as Kafka's clients expect. What a connection holds (requests that arrive or are under way, answers that are not
read) is counted in its account (`gateway.budget`). Without room there, or while the client does not read its answers, the
connection stops reading.
"""

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon import system
from antiphon.errors import ProtocolViolationError
from antiphon.gateway.budget import Account, Patience
from antiphon.gateway.quotas import FREE, Mute, Place
from antiphon.gateway.turns import UNIT_S
from antiphon.kafka.api import Software
from antiphon.kafka.framing import LENGTH_BYTES, frame_size
from antiphon.kafka.inbox import RECEIVE_BYTES, Inbox
from antiphon.kafka.refused_sequences import RefusedSequences
from antiphon.records.batch import Buffer
from antiphon.security.authenticator import Authenticator
from antiphon.security.session import OPEN, Session, session_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from antiphon.gateway.request_times import Histogram
    from antiphon.security.authorizer import Rights

RECEIVE_FULL_BYTES: Final = 4 * 1024  # at a time, without room in the account
LARGE_BYTES: Final = RECEIVE_BYTES // 4  # a frame that is larger, and not here whole, gets its own buffer
REQUESTS_MAX: Final = 128
REQUEST_COSTS_BYTES: Final = 2048  # what a request keeps beside its bytes, about
PIECE_S: Final = 0.001  # beyond its client's share, when it is a connection's turn and others wait for theirs
REQUEST_S: Final = 1e-4  # counted for a request beside what it took to begin it: its task, its answer
MEASURED_BYTES: Final = 2048  # that came at once: of less it is not measured how long it took
STRANGER_BYTES: Final = 64 * 1024  # of a frame, until who is connected has logged in, where that is asked for
LOOK_EVERY: Final = 8  # requests, between two looks at the clock
_ZEROS: Final = memoryview(bytes(1024 * 1024))


class Answer:
    """The place of one response in the order of a connection's responses.

    Attributes:
        request_bytes: of the request.
        size_bytes: what is counted for it.
        throttle_ms: how long the client is told to wait, because of its quotas.
        times: where it is noted how long the request took; None: not known yet.
    """

    __slots__ = (
        "buffers", "connection", "ready", "request_bytes", "since_s", "size_bytes", "throttle_ms", "times"
    )  # fmt: skip

    def __init__(self, connection: "Connection", request_bytes: int) -> None:
        self.connection = connection
        self.request_bytes = request_bytes
        self.size_bytes = size_bytes = request_bytes + REQUEST_COSTS_BYTES
        self.throttle_ms = 0
        self.times: Histogram | None = None
        self.since_s = system.monotonic_s()
        self.ready = False
        self.buffers: Sequence[Buffer] = ()
        connection.account.add(size_bytes)

    def reserve(self, more_bytes: int) -> None:
        """Count what is about to be read for this answer; until it is sent."""
        self.size_bytes += more_bytes
        self.connection.account.add(more_bytes)

    def throttle(self, wait_s: float) -> None:
        """Tell the client to wait so long, and start no more of its requests meanwhile (KIP-219)."""
        self.throttle_ms = max(self.throttle_ms, math.ceil(wait_s * 1000))
        self.connection.mute(wait_s)

    def send(self, *buffers: Buffer) -> None:
        """The response is these buffers; none at all for a request that has no response."""
        self.ready = True
        if self.times is not None:
            self.times.observe(system.monotonic_s() - self.since_s)
        self.buffers = buffers
        self.reserve(sum(map(len, buffers)) - self.size_bytes)
        self.connection.answered()

    async def next_turn(self) -> None:
        """Let others go on: return when it is this connection's turn among those whose requests take long."""
        connection = self.connection
        await connection.account.budget.turns.next(connection, connection.client)

    @property
    def room_bytes(self) -> int:
        """How many bytes may be read for this answer now; 0 or less: none.

        The answer that all others of its connection wait for goes by what is free, whatever those others hold.
        """
        account = self.connection.account
        if account.room_bytes <= 0 and self.connection.sends_next(self):
            return account.free_bytes // 2
        return account.room_bytes

    def may_begin(self, expected_bytes: int | None) -> bool:
        """Is there room for an answer of so many bytes (None: not known) now, or is it the one that needs none?"""
        account, own = self.connection.account, self.size_bytes
        if expected_bytes is None:
            has_room = account.fits(1, own) and account.free_bytes > 0
        else:
            has_room = account.fits(expected_bytes, own)
        return has_room or (self.connection.sends_next(self) and account.is_large)


class Dispatcher(Protocol):
    """What a connection hands its requests to."""

    def dispatch(self, frame: memoryview, answer: Answer) -> None:
        """Start working on a request (a frame without its length); `answer.send` is called once, now or later. May raise
        ProtocolViolationError.
        """

    def connected(self, connection: "Connection") -> bool:
        """A client connected; False refuses it."""

    def disconnected(self, connection: "Connection") -> None:
        """The connection is gone; answers to it go nowhere."""


class Connection(asyncio.BufferedProtocol):
    """Protocol of one accepted socket. `client_host` is for logs and group descriptions, `refused_sequences` for Produce."""

    def __init__(self, dispatcher: Dispatcher, account: Account, inbox: Inbox) -> None:
        self._dispatcher = dispatcher
        self._transport: asyncio.Transport | None = None
        self.account = account
        self._inbox = inbox
        self._rest: Buffer = b""  # received, and not cut into frames yet
        self._large = bytearray()  # as much of a frame without its length as there is room for; empty: none
        self._large_size = 0
        self._large_filled = 0
        self._answers: deque[Answer] = deque()
        self._held_by: Answer | None = None
        self._want_room: list[asyncio.Future[None]] = []
        self._reading = True
        self._writable = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.client_host = ""
        self.client_port = 0
        self.software = Software()
        self.session = OPEN
        self._client: tuple[Rights | None, object] = None, None  # who shares its turns, by its rights
        self._waits_for_turn = False
        self.quotas = FREE
        self._mute: Mute | None = None
        self._place: Place | None = None  # among the connections of the client's user
        self.requests = 0  # that came since the beginning
        self.refused_sequences = RefusedSequences()
        self.first = asyncio.Lock()  # the one request that waits for its turn, and for room
        self.received_bytes = 0
        self._sent_bytes = 0
        self._sending = Patience()
        self._receiving = Patience()

    # -- what the transport calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self._transport = transport  # type: ignore[assignment]  # TCP gives a Transport
        peer = transport.get_extra_info("peername")
        self.client_host, self.client_port = (str(peer[0]), int(peer[1])) if peer else ("", 0)
        if not self._dispatcher.connected(self):
            transport.abort()  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's signature)
        """The client went away: stop working for it. Appends that were begun go on; only their answer is dropped."""
        self._transport = None
        self._answers.clear()
        self._rest, self._large = b"", bytearray()
        self.account.close()
        for task in self._tasks:
            task.cancel()
        if self._mute is not None:
            self._mute.end()
        if self._place is not None:
            self._place.leave()
        self._dispatcher.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's signature)
        """Where the next bytes go."""
        if self._large:
            if self._large_filled == len(self._large):
                self._grow()
            return memoryview(self._large)[self._large_filled :]
        view, kept = self._inbox.view, len(self._rest)
        view[:kept] = self._rest
        return view[kept : kept + (RECEIVE_BYTES if self.account.has_room else RECEIVE_FULL_BYTES)]

    def buffer_updated(self, nbytes: int) -> None:
        """`nbytes` arrived."""
        self.received_bytes += nbytes
        if self._large:
            self._large_filled += nbytes
            if self._large_filled < self._large_size:
                self._set_reading(self._may_read())
                return
            self._work()
            return
        kept, self._rest = len(self._rest), b""
        self.account.add(-kept)
        self._work(self._inbox.view[: kept + nbytes])

    def eof_received(self) -> bool:
        """The client will send no more; the transport closes."""
        return False

    def pause_writing(self) -> None:
        """The client does not read its answers."""
        self._writable = False

    def resume_writing(self) -> None:
        """It does again."""
        self._writable = True
        self._count_outgoing()
        self._work()

    # -- requests -------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """No answer can be sent any more."""
        return self._transport is None or self._transport.is_closing()

    @property
    def client(self) -> object:
        """Who shares its turns with other connections."""
        rights = self.session.rights
        if rights is not self._client[0]:
            self._client = rights, self.session.client(self.client_host)
        return self._client[1]

    @property
    def is_idle(self) -> bool:
        """No request is under way, and every answer is read."""
        return not self._answers and not self.account.outgoing_bytes

    def is_slow(self, now_s: float) -> bool:
        """Has the client not sent the rest of a request, or not read its answers, for too long? Called about each second."""
        self._count_outgoing()
        if self._want_room:
            self._work()
        waiting = self.account.outgoing_bytes
        if not waiting:
            self._sending.rest()
        elif self._sending.is_over(now_s, self._sent_bytes - waiting):
            return True
        if not self._reading or not (self._large or self._rest):
            self._receiving.rest()
            return False
        return self._receiving.is_over(now_s, self.received_bytes)

    def sends_next(self, answer: Answer) -> bool:
        """Is this the next answer to be sent, and have those before it been read?"""
        self._count_outgoing()
        return not self.account.outgoing_bytes and bool(self._answers) and self._answers[0] is answer

    async def wait_for_room(self, timeout_s: float) -> None:
        """Return when there may be more room in the account, or after `timeout_s`."""
        woken = asyncio.get_running_loop().create_future()
        self._want_room.append(woken)
        self.account.wait(self._work)
        await asyncio.wait([woken], timeout=timeout_s)

    def mute(self, wait_s: float) -> None:
        """Start no more requests for so long. One that has begun to arrive in a buffer of its own still is."""
        if self.is_closed:
            return
        if self._mute is None:
            self._mute = self.quotas.mute(self._work)
        self._mute.begin(wait_s)

    def session_with(self, authenticator: Authenticator | None) -> Session:
        """Who the client is, before it has said so."""
        return session_of(authenticator, self._transport, "kafka")

    def has_place(self) -> bool:
        """Count it as its user's, where it is known by now whose it is; False: it has to go, as that user has too many."""
        if self.is_closed or not self.session.is_open:
            return True
        if self._place is None:
            self._place = self.quotas.place()
        return self._place.take(self.session.rights, self.client_host) is None

    def hold(self, answer: Answer) -> None:
        """Start no more requests before the one of this answer has begun, which takes several turns: `go_on`."""
        self._held_by = answer

    def go_on(self, answer: Answer) -> None:
        """It has begun. Harmless where it held nothing up."""
        if self._held_by is answer:
            self._held_by = None
            asyncio.get_running_loop().call_soon(self._work)

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
            self._inbox.log_closed(self.client_host, reason, **facts)
        self.abort()

    def start_task(self, work: Any, name: str) -> None:
        """Run a coroutine for this connection; it is cancelled when the connection is lost."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        turns = self.account.budget.turns
        before_s = turns.had_s.get(self.client, 0.0)
        self._work(left_s=PIECE_S if turns.waiting else turns.share_s)
        turns.did(int((turns.had_s.get(self.client, 0.0) - before_s) / UNIT_S) + 1)

    def _wait_for_turn(self) -> None:
        """Go on when it is this connection's turn among its client's, and its client's among others."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self.account.budget.turns.add(self, self._take_turn, self.client)

    def _work(self, arrived: Buffer = b"", left_s: float | None = None) -> None:
        """Cut frames and dispatch them, as far as bounds and shares (`left_s`) allow; read on, or stop reading."""
        if self.is_closed:
            return
        turns, client, before = self.account.budget.turns, self.client, self.requests
        is_small = len(arrived) + len(self._rest) < MEASURED_BYTES and not self._large
        began_s = 0.0 if is_small else system.monotonic_s()
        if left_s is None:
            left_s = 0.0 if self._waits_for_turn else turns.share_s - turns.had_s.get(client, 0.0)
        if self._want_room:
            for woken in self._want_room:
                if not woken.done():
                    woken.set_result(None)
            self._want_room.clear()
        try:
            if left_s > 0 and self._large and self._large_filled == self._large_size and self._may_start():
                frame, self._large = memoryview(self._large), bytearray()
                self.account.half = False
                self.account.add(-len(frame))
                self._handle(frame)
            if self._rest and not self._large:
                arrived, self._rest = self._rest, b""
                self.account.add(-len(arrived))
            if arrived:
                self._cut(memoryview(arrived), began_s, left_s)
            elif left_s <= 0 and self._large and self._large_filled == self._large_size:
                self._wait_for_turn()
        except ProtocolViolationError as error:
            self.fail(error.message)
            return
        if self.requests > before:
            took_s = 0.0 if is_small else system.monotonic_s() - began_s
            turns.took(client, took_s + (self.requests - before) * REQUEST_S)
        self._set_reading(self._may_read())

    def _cut(self, data: memoryview, began_s: float, left_s: float) -> None:
        """Dispatch the frames in `data`, until so long after `began_s` (0: not measured); keep what is left."""
        at, end, count = 0, len(data), 0
        while end - at >= LENGTH_BYTES and self._has_room():
            if left_s <= 0:
                self._wait_for_turn()
                break
            size = frame_size(data, at)
            if size > STRANGER_BYTES and not self.session.is_open:
                raise ProtocolViolationError(f"a frame of {size} bytes before a login")
            first = at + LENGTH_BYTES
            if end - first < size:
                if LENGTH_BYTES + size > LARGE_BYTES:
                    self._begin_large(size, data[first:end])
                    return
                break
            at = first + size
            self._handle(memoryview(bytes(data[first:at])))
            count += 1
            if count % LOOK_EVERY == 0:
                left_s -= LOOK_EVERY * REQUEST_S
                if began_s and system.monotonic_s() - began_s > left_s:
                    left_s = 0.0  # others first
        if at < end:
            self._rest = bytes(data[at:end])
            self.account.add(end - at)

    def _begin_large(self, size: int, arrived: memoryview) -> None:
        """The rest of this frame is read into a buffer of its own."""
        self._large = bytearray(arrived) or bytearray(1)
        self._large_size = size
        self._large_filled = len(arrived)
        self.account.half = True
        self.account.add(len(self._large))

    def _grow(self) -> None:
        """Make room for twice as much of the large frame as there is, up to 1 MiB more, which takes the loop a moment."""
        missing = self._large_size - self._large_filled
        more = min(missing, max(RECEIVE_BYTES, self._large_filled), len(_ZEROS))
        self.account.add(more)
        try:
            self._large += _ZEROS[:more]
        except BufferError:  # somebody still looks at it
            grown = bytearray(len(self._large) + more)
            grown[: self._large_filled] = self._large[: self._large_filled]
            self._large = grown

    def _may_start(self) -> bool:
        """May a request that is here be started? One that holds no others up needs no room."""
        if self._held_by is not None or self.is_closed:
            return False
        return self._writable and len(self._answers) < REQUESTS_MAX

    def _has_room(self) -> bool:
        """May it, and may more be read?"""
        if self._mute is not None and self._mute.is_on:
            return False
        return self._may_start() and (self._account_has_room() or self.is_idle)

    def _account_has_room(self) -> bool:
        has_room = self.account.has_room
        if not has_room:
            self._count_outgoing()
            has_room = self.account.has_room
        if not has_room:
            self.account.wait(self._work)
        return has_room

    def _may_read(self) -> bool:
        """May more be read? The rest of a large frame goes on being read while other requests are under way."""
        if self._large:
            whole = self._large_filled == self._large_size
            return not whole and not self.is_closed and (self._account_has_room() or self.account.finishes)
        return not self._waits_for_turn and len(self._rest) < LARGE_BYTES and self._has_room()

    def _set_reading(self, reading: bool) -> None:
        if self._transport is None or reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _handle(self, frame: memoryview) -> None:
        answer = Answer(self, len(frame))
        self._answers.append(answer)
        self.requests += 1
        self._dispatcher.dispatch(frame, answer)

    def _count_outgoing(self) -> None:
        if self._transport is not None:
            self.account.outgoing(self._transport.get_write_buffer_size())

    # -- responses ------------------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Some answer is ready: write those that no earlier one holds up."""
        if self.is_closed:
            self._answers.clear()
            return
        buffers: list[Buffer] = []
        answers, done_bytes = self._answers, 0
        while answers and answers[0].ready:
            done = answers.popleft()
            done_bytes += done.size_bytes
            buffers.extend(done.buffers)
        if buffers and self._transport is not None:
            self._sent_bytes += done_bytes
            self._transport.writelines(buffers)
            self._count_outgoing()
        self.account.add(-done_bytes)
        if not self._reading:
            asyncio.get_running_loop().call_soon(self._work)
