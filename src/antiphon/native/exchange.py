"""The requests of one connection: which are open, what is answered, and when no more is read.

Requests are carried out as they come and answered as they are done, in any order: the request id tells which. A connection
is no longer read from while it has too many requests open, while its answers are not taken, or while it holds too much of
the node's memory (`gateway.budget`). So a client that goes too fast feels it as a full socket, never as lost requests.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from antiphon import system
from antiphon.errors import (
    AntiphonError,
    FrameTooLargeError,
    InternalError,
    NotLeaderError,
    OverloadedError,
    UnauthenticatedError,
)
from antiphon.gateway.access import check
from antiphon.gateway.budget import Account, Patience
from antiphon.gateway.interface import Gateway, ShardRequest
from antiphon.gateway.quotas import FREE, Mute, Payer, Place, payer_of
from antiphon.gateway.turns import COUNTED_BYTES
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.requests import Appended, Failure, Fetch, TableGet, TableScan
from antiphon.model.results import AppendResult
from antiphon.model.table_transactions import ReadKeys
from antiphon.native.charges import charge_reply
from antiphon.native.metadata_answers import MetadataAnswers
from antiphon.native.request_turns import RequestTurns
from antiphon.security.session import OPEN
from antiphon.wire.frames import Buffer, encode_message

if TYPE_CHECKING:
    import asyncio

    from antiphon.gateway.request_times import RequestTimes
    from antiphon.tracing import Span
    from antiphon.transactions.asking import TransactionAsker
    from antiphon.transport.connection import Connection

REQUEST_COSTS_BYTES: Final = 1024  # what an open request keeps, about
COUNTED_REQUESTS: Final = 64  # that are counted together
FORWARDED_BYTES: Final = 1024 * 1024  # that a fetch brings at most which is passed on, beside its first batch
WAITING_BYTES: Final = 64 * 1024  # the same, of one that waits for data
ROW_BYTES: Final = 1024 * 1024  # of a row, about: tables take no larger batches unless their settings say so
GET_BYTES: Final = 8 * 1024 * 1024  # of all rows of a get, and of a scan
SCAN_BYTES: Final = 2 * 1024 * 1024

Spawn = Callable[[Coroutine[Any, Any, Any]], "asyncio.Task[Any]"]
"""Runs a rare piece of work in a task that ends with the listener."""


class NativeLimits(NamedTuple):
    """Bounds of the listener. Over `connection_write_bytes` that wait to be sent, a connection is read no more."""

    connections: int
    requests_per_connection: int
    connection_write_bytes: int
    hello_s: float = 10.0  # a connection that has not said who it is by then is closed
    handshakes: int = 512  # of TLS at once
    address_connections: int = 1 << 30  # of one address, this machine aside
    idle_s: float = 3600.0  # and so is a client's that asks for nothing for so long


class Exchange:
    """See the module's text."""

    def __init__(self, gateway: Gateway, limits: NativeLimits, spawn: Spawn, account: Account) -> None:
        self.gateway = gateway
        self.spawn = spawn
        self.connection: Connection | None = None
        self.is_peers = False  # does another node send these requests?
        self.session = OPEN
        self.quotas = FREE
        self.place: Place | None = None  # among the connections of the client's user
        self.asker: TransactionAsker | None = None  # None: no parts of transactions are taken
        self.client_id = ""
        self.host = ""  # the address that the client comes from
        self.mute: Mute | None = None  # there is none before the client first has to wait
        self.resume: Callable[[], None] = _nothing  # called when it has waited
        self.is_guarded = False  # does anybody decide what the client may ask for?
        self.following: dict[int, int] = {}  # key of a waiting fetch -> its shard
        self.times: RequestTimes | None = None
        self.begun: dict[
            int, tuple[str, float]
        ] = {}  # open request of a client -> its name, when it was read
        self.spans: dict[int, Span] = {}  # of open requests that belong to a trace
        self._write_bytes_max = limits.connection_write_bytes
        self._requests_max = limits.requests_per_connection
        self._open_requests = 0
        self._log = structlog.get_logger()
        self._account = account
        self._turns = account.budget.turns
        self._turn_asked = False
        self._is_held = False  # for want of memory
        self._read_bytes = 0  # that are counted for answers which are being read
        self._deferred: deque[tuple[Callable[[], None], Callable[[], int] | None]] = (
            deque()
        )  # work without room
        self._waiting: set[asyncio.Task[Any]] = set()
        self.metadata_answers = MetadataAnswers(gateway)  # the listener's, where there is one
        self._sending, self._receiving = Patience(), Patience()

    @property
    def is_gone(self) -> bool:
        """See Sender."""
        return self.connection is None

    def opened(self, connection: "Connection") -> None:
        """The connection stands."""
        self.connection = connection
        share = RequestTurns(self._turns, lambda: self.session.client(self.host))
        connection.count_in(self._account, self._full, share)

    def belongs_to_a_node(self) -> None:
        """Another node's connection: it has bounds of its own, and none here."""
        self.is_peers = True
        if self.connection is not None:
            self.connection.count_no_more()
        self._account.close()

    def take_place(self) -> OverloadedError | None:
        """Count the connection as its user's, as soon as it is known whose it is; returns why it has to go, or None."""
        connection = self.connection
        if connection is None or self.is_peers or not self.session.is_open:
            return None
        if self.place is None:
            self.place = self.quotas.place()
        return self.place.take(self.session.rights, connection.peer)

    def check(self, body: Any) -> None:
        """Raise UnauthenticatedError before a login, AccessDeniedError for what the client may not ask for.

        What another node passes on was checked there.
        """
        if self.is_peers:
            return
        if not self.session.is_open:
            raise UnauthenticatedError(f"{type(body).__name__} before a login: say who you are first")
        check(self.gateway, self.session.rights, body)

    def gone(self) -> None:
        """The connection is closed: nothing is answered any more, and nothing waited for."""
        self.connection = None
        for span in self.spans.values():
            span.end("the client hung up")
        self.spans.clear()
        self._account.close()
        self._deferred.clear()
        for task in list(self._waiting):
            task.cancel()
        if self.mute is not None:
            self.mute.end()
        if self.place is not None:
            self.place.leave()
        for key, shard_id in self.following.items():
            self.gateway.unfollow(shard_id, key)
        self.following.clear()

    @property
    def payer(self) -> Payer | None:
        """On whose account the client's requests go."""
        return payer_of(self.session.rights.principal, self.client_id)

    def throttle(self, wait_s: float) -> None:
        """Begin none of the client's requests for so long (see `NativeSession`)."""
        if self.connection is None:
            return
        if self.mute is None:
            self.mute = self.quotas.mute(lambda: self.resume())  # noqa: PLW0108 - it is set later
        self.mute.begin(wait_s)

    # -- memory -------------------------------------------------------------------------------------------------

    @property
    def room_bytes(self) -> int:
        """How many bytes an answer may have now."""
        return self._account.room_bytes if not self.is_peers else 1 << 62

    def when_room(self, work: Callable[[], None], size: Callable[[], int] | None = None) -> None:
        """Begin work with a large answer: now, or when there is room for one (of `size`, if that is known) and its turn
        has come.
        """
        if self.is_peers:
            work()
            return
        has_room = not self._deferred and (
            self._account.has_room if size is None else self.has_room_for(size())
        )
        if has_room and not self._turns.is_spent:
            work()
        elif self.connection is not None:
            self._deferred.append((work, size))
            if not has_room:
                self._full()
            else:
                self._ask_turn()

    def has_room_for(self, size_bytes: int) -> bool:
        """May an answer of so many bytes be sent? One of the node may in any case, where its client has taken all others."""
        account, connection = self._account, self.connection
        if self.is_peers or connection is None or account.fits(size_bytes):
            return True
        connection.count_waiting()
        return not account.outgoing_bytes and not self._read_bytes and account.is_large

    def fits(self, size_bytes: int) -> bool:
        """Is there room for an answer of so many bytes, without any exception?"""
        return self.is_peers or self._account.fits(size_bytes)

    def answer(self, request_id: int, make: Callable[[], Any], size: Callable[[], int]) -> None:
        """Answer with what `make` returns when there is room for its `size`. The request is open until then."""
        self.begin(request_id)

        def work() -> None:
            self.end()
            self.reply(request_id, make())
            self.counted()

        self.when_room(work, size)

    def counted(self) -> None:
        """An answer was sent for which there may have been no room: count what waits of it."""
        if self.connection is not None and not self.is_peers:
            self.connection.count_waiting()
        self._account.large_no_more()

    def wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run what waits for the client, until it hangs up."""
        task = self.spawn(work)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    @property
    def waiting(self) -> int:
        """How much waits for the client."""
        return len(self._waiting)

    def _ask_turn(self) -> None:
        if not self._turn_asked:
            self._turn_asked = True
            self._turns.add(self, self._my_turn, self.session.client(self.host))

    def _my_turn(self) -> None:
        self._turn_asked = False
        if self._deferred:
            self._room_again()

    def costs(self, size_bytes: int) -> None:
        """An answer is about to be read, which takes as long as so many bytes."""
        self._turns.spend(size_bytes)

    def reserve(self, change_bytes: int) -> None:
        """Count what is about to be read for an answer, or, negative, count it no more."""
        self._read_bytes += change_bytes
        self.keep(change_bytes)

    def keep(self, change_bytes: int) -> None:
        """Count what is kept for the client, or, negative, count it no more."""
        if not self.is_peers:
            self._account.add(change_bytes)

    def _full(self) -> None:
        """The account has no room: read no more until it has, except for a request that is half here, one at a time."""
        account, connection = self._account, self.connection
        if connection is None or self.is_peers:
            return
        if account.has_room and not self._deferred:
            return
        connection.count_waiting()
        idle = not self._open_requests and not account.outgoing_bytes and not self._deferred
        if account.finishes or (idle and not account.half):
            if idle:
                self._hold_no_more()  # what it holds are requests, which nothing else would let on
            return
        self._is_held = True
        connection.hold("memory")
        account.wait(self._room_again)

    def _room_again(self) -> None:
        while self._deferred:
            size = self._deferred[0][1]
            if not (self._account.has_room if size is None else self.has_room_for(size())):
                break
            if self._turns.is_spent:
                self._ask_turn()
                return
            self._deferred.popleft()[0]()
        if self.connection is None:
            return
        if self._deferred:
            self._account.wait(self._room_again)
        else:
            self._hold_no_more()

    def _hold_no_more(self) -> None:
        if self._is_held and self.connection is not None:
            self._is_held = False
            self.connection.release("memory")

    def drained(self) -> None:
        """The client has taken answers."""
        if self.connection is None or self.is_peers:
            return
        self.connection.count_waiting()
        if self._account.has_room:
            self._room_again()
        elif self._is_held:
            self._full()

    def is_slow(self, now_s: float) -> bool:
        """Has the client not sent the rest of a request, or not read its answers, for too long? Called about each second."""
        connection = self.connection
        if connection is None or self.is_peers:
            return False
        connection.count_waiting()
        if self._deferred:
            self._room_again()
        elif self._is_held:
            self._full()
        waiting = self._account.outgoing_bytes
        if not waiting:
            self._sending.rest()
        elif self._sending.is_over(now_s, connection.sent_bytes - waiting):
            return True
        if connection.is_held or not connection.is_half_received:
            self._receiving.rest()
            return False
        return self._receiving.is_over(now_s, connection.received_bytes)

    @property
    def is_idle(self) -> bool:
        """Is nothing under way?"""
        return not self._open_requests and not self._account.outgoing_bytes

    # -- answers ------------------------------------------------------------------------------------------------

    def reply(self, request_id: int, body: Any, payload: list[Buffer] | None = None) -> None:
        """Answer a request."""
        connection = self.connection
        if connection is None:
            return
        try:
            parts = encode_message(request_id, body, payload or ())
        except FrameTooLargeError as error:
            body = _failure(error)
            parts = encode_message(request_id, body)
        if self.spans and (span := self.spans.pop(request_id, None)) is not None:
            span.end(body.code if type(body) is Failure else "")
        begun = self.begun.pop(request_id, None)
        if begun is not None and self.times is not None:
            self.times[begun[0]].observe(system.monotonic_s() - begun[1])
        is_congested = connection.send(parts)
        size_bytes = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        if size_bytes >= COUNTED_BYTES:
            self._turns.spend(size_bytes)
        if self.is_peers:
            return
        if self.quotas.all:
            charge_reply(self, body, size_bytes)
        if is_congested or size_bytes >= COUNTED_BYTES:
            connection.count_waiting()
            if connection.waiting_bytes > self._write_bytes_max:
                connection.hold("answers")
            if not self._account.has_room:
                self._full()

    def fail(self, request_id: int, error: AntiphonError) -> None:
        """Answer a request with an error."""
        self.reply(request_id, _failure(error))

    def begin(self, request_id: int) -> Callable[[Any], None]:
        """Count an open request; returns what takes its result: a reply body, an AppendResult or an error."""
        self._open_requests += 1
        if not self._open_requests % COUNTED_REQUESTS:
            self.keep(COUNTED_REQUESTS * REQUEST_COSTS_BYTES)
        if self._open_requests >= self._requests_max and self.connection is not None:
            self.connection.hold("requests")
        return partial(self._answer, request_id)

    def _answer(self, request_id: int, result: Any) -> None:
        self.end()
        if type(result) is AppendResult:
            result = Appended(result.base_offset, result.next_offset, result.term, result.duplicate)
        elif isinstance(result, AntiphonError):
            result = _failure(result)
        self.reply(request_id, result)

    def end(self) -> None:
        """One request is open no more."""
        self._open_requests -= 1
        if self._open_requests % COUNTED_REQUESTS == COUNTED_REQUESTS - 1:
            self.keep(-COUNTED_REQUESTS * REQUEST_COSTS_BYTES)
        if self._is_held and not self._open_requests:
            self._hold_no_more()
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
        """Have the shard's leader answer a client, where the topic wants that; never for another node (C12).

        What a read may bring is counted until it is here. A read without room for it is passed on when there is room.
        """
        if self.is_peers or not isinstance(body, ShardRequest):
            return False
        wanted = expected_bytes(body)
        if not wanted or (not self._deferred and self._account.fits(wanted)):
            return self._pass_on(request_id, body, payload, error)
        self.begin(request_id)

        def later() -> None:
            self.end()
            if not self._pass_on(request_id, body, payload, error):
                self.fail(request_id, error)

        self.when_room(later, lambda: wanted)
        return True

    def _pass_on(self, request_id: int, body: Any, payload: memoryview, error: NotLeaderError) -> bool:
        counted_bytes = expected_bytes(body)
        if type(body) is Fetch:
            room = max(1, min(body.max_bytes, counted_bytes, self.room_bytes))
            body = msgspec.structs.replace(body, max_bytes=room)

        def answered(reply: Any, bulk: memoryview) -> None:
            self.end()
            if isinstance(reply, AntiphonError):
                self.fail(request_id, reply)
            else:
                self.reply(request_id, reply, [bulk] if bulk else None)
            self.reserve(-counted_bytes)  # the answer counts by now

        self.begin(request_id)
        self.reserve(counted_bytes)
        if self.gateway.forward(body, payload, error, answered):
            return True
        self.end()
        self.reserve(-counted_bytes)
        return False


def expected_bytes(body: Any) -> int:
    """What is counted for the answer to a read that is passed on; 0: it is no read, its answer is small.

    A fetch that may wait long for data is counted with little, so that many can wait; its answer has about as little.
    """
    match body:
        case Fetch():
            return WAITING_BYTES if body.wait_ms > 0 else FORWARDED_BYTES
        case TableGet() | OrderedFind():
            return min(ROW_BYTES * len(body.keys), GET_BYTES) if body.include_value else FORWARDED_BYTES
        case ReadKeys():
            return min(ROW_BYTES * len(body.keys), GET_BYTES)
        case IndexFind():
            return ROW_BYTES
        case TableScan() | IndexScan():
            return SCAN_BYTES if body.include_value else FORWARDED_BYTES
        case OrderedScan():
            return SCAN_BYTES
    return 0


def _nothing() -> None:
    pass


def _failure(error: AntiphonError) -> Failure:
    """An error with its facts in the types that the wire carries."""
    details = {
        key: value if value is None or isinstance(value, str | int | bool) else str(value)
        for key, value in error.details.items()
    }
    return Failure(error.code, error.message, details)
