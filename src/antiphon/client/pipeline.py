"""Writes to one shard: collected into requests, a few in flight, repeated in order, never applied twice.

Writes that are made in one turn of the event loop, or while enough requests are in flight, leave as one request. A
request carries a producer id and a sequence, so a node that already has it says so and does not apply it again. When a
try fails in a way that a retry can fix (no leader, lost connection), the pipeline waits until every request in flight
has its answer or has lost its connection. Then it finds the leader and sends the unanswered requests again, in their
order.

A caller waits for an `Item`, whose future gets the result or the error. A caller's time may end while its request is in
flight: the outcome is then unknown (`TimedOutError` says so), and the request is not sent again.
"""

import asyncio
import itertools
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from antiphon import tracing
from antiphon.client.cluster import Cluster
from antiphon.client.connection import Connection
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.log import logger
from antiphon.client.routing.outcomes import end_of_write, of_write
from antiphon.client.routing.routes import mends
from antiphon.client.sweeper import Sweeper
from antiphon.client.tasks import end_tasks
from antiphon.errors import AntiphonError, TimedOutError
from antiphon.wire.frames import Buffer

if TYPE_CHECKING:
    from antiphon.client.routing.tries import Tries

QUEUE_ITEMS_MAX: Final = 100_000
QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024


_numbers = itertools.count()


class Item:
    """One caller's write. `size_bytes` is about what it adds to a request; `deadline` is loop time.

    `alone`: it shares its request with nobody. `number` rises in the order in which callers made them. `request`: what an
    append travels in, until its caller has the result.
    """

    __slots__ = ("alone", "deadline", "future", "number", "request", "size_bytes", "trace", "what")

    def __init__(self, what: Any, size_bytes: int, deadline: float, future: "asyncio.Future[Any]") -> None:
        self.what = what
        self.size_bytes = size_bytes
        self.deadline = deadline
        self.future = future
        self.alone = False
        self.trace: str | None = None
        self.request: Request | None = None
        self.number = next(_numbers)


class Request:
    """Items that travel together. `sequence` is the producer's; `failure` is how the last try ended, None in flight.

    `after` is the sequence of the request before it that somebody waited for when it was sent, -1 without one. `answer`:
    what the shard said to it for good. `producer_id`: whose sequence it is.
    """

    __slots__ = (
        "after",
        "answer",
        "attempts",
        "count",
        "failure",
        "in_flight",
        "items",
        "number",
        "producer_id",
        "sequence",
    )

    def __init__(self, items: list[Item], sequence: int, count: int) -> None:
        self.items = items
        self.sequence = sequence
        self.count = count  # sequences that it takes
        self.after = -1
        self.number = 0  # of the sequences that were given out, counted by request
        self.attempts = 0
        self.in_flight = False
        self.failure: AntiphonError | None = None
        self.answer: Any = None
        self.producer_id = -1

    @property
    def wanted(self) -> bool:
        """Does anybody still wait for it?"""
        return any(not item.future.done() for item in self.items)

    @property
    def deadline(self) -> float:
        """When the last of its callers stops waiting."""
        return max(item.deadline for item in self.items)

    def fail(self, error: AntiphonError) -> None:
        """Every item fails with `error`."""
        fail_items(self.items, error)


class ShardPipeline(ABC):
    """Base of the pipelines of topics and tables, which say how items become requests and replies become results."""

    in_flight_max = 5
    """Requests from the oldest without an answer to the newest: a shard remembers five batches of each Kafka producer."""

    def __init__(self, cluster: Cluster, shard_id: int) -> None:
        self._cluster = cluster
        self._shard_id = shard_id
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Item] = deque()
        self._queue_bytes = 0
        self._sent: deque[Request] = deque()  # in order of sequence; not answered for good
        self._in_flight = 0
        self._flush_planned = False
        self._recovery: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._tries: Tries | None = None  # kept while they fail, so that pauses grow
        self._sweeper = Sweeper(self._loop, self._sweep)
        self._closed = False
        self._room: asyncio.Future[None] | None = None  # of the first who waits for it
        self._entrance = asyncio.Lock()
        self._entering = 0
        self.producer_id = -1
        self._next_sequence = 0
        self._numbered = 0

    # -- for subclasses -----------------------------------------------------------------------------------------

    @abstractmethod
    def _take(self) -> Request | None:
        """Make a request of the first items of the queue, or None if they cannot leave yet."""

    @abstractmethod
    def _encode(self, request: Request) -> tuple[Any, Sequence[Buffer]]:
        """Body and payload of a request."""

    @abstractmethod
    def _resolve(self, request: Request, reply: Any) -> None:
        """Give the items their results."""

    @abstractmethod
    def _refused(self, request: Request, error: AntiphonError) -> bool:
        """A final refusal arrived. True: another try is planned, keep the request."""

    def _abandoned(self) -> None:  # noqa: B027 - tables have nothing to do here
        """A request that may have been carried out is abandoned: nobody waits for it any more."""

    def _settled(self, request: Request) -> None:  # noqa: B027 - topics have nothing to do here
        """The shard is done with the request: it was answered, refused for good, or abandoned."""

    def _before_resend(self) -> bool:
        """Nothing is in flight; put `self._sent` in shape. True: a fresh producer id is needed."""
        return False

    def _restart(self, producer_id: int) -> None:
        """A (new) producer id was given out: number what is to be sent from 0."""
        self.producer_id = producer_id
        self._next_sequence = 0
        for request in self._sent:
            request.sequence = self._next_sequence
            request.attempts = 0
            self._next_sequence += request.count
            self._give_number(request)

    def _give_number(self, request: Request) -> None:
        request.number = self._numbered
        self._numbered += 1

    # -- callers ------------------------------------------------------------------------------------------------

    def add(self, item: Item) -> None:
        """Queue a write. Raises ClientClosedError once the client is closed."""
        if self._closed:
            raise ClientClosedError("this client is closed: connect() makes a new one")
        if tracing.tracer is not None:
            trace_call(item, type(item.what).__name__.lower(), self._shard_id)
        self._queue.append(item)
        self._queue_bytes += item.size_bytes
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)
        if item.deadline < self._sweeper.at_s:
            self._sweeper.plan(item.deadline)

    @property
    def full(self) -> bool:
        """Is as much queued as may be?"""
        return len(self._queue) >= QUEUE_ITEMS_MAX or self._queue_bytes >= QUEUE_BYTES_MAX

    async def enter(self, item: Item) -> None:
        """`add`, as soon as there is room, in the order of the calls; raises TimedOutError at the item's deadline."""
        if not self.full and not self._entering:
            self.add(item)
            return
        self._entering += 1
        try:
            async with asyncio.timeout_at(item.deadline), self._entrance:
                while self.full:
                    self._room = self._loop.create_future()
                    await self._room
                self.add(item)
        except TimeoutError:
            raise TimedOutError(
                "no room in the queue of writes in time; nothing was sent: await earlier writes first"
            ) from None
        finally:
            self._entering -= 1

    @property
    def idle(self) -> bool:
        """Nothing is queued or on its way."""
        return not self._queue and not self._sent

    async def close(self) -> None:
        """Fail what is not answered."""
        self._closed = True
        await end_tasks(self._recovery)
        self._fail_all(ClientClosedError("the client was closed before an answer came"))
        self._sweeper.plan(math.inf)

    # -- sending ------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._flush_planned = False
        if self._recovery is not None or not self._queue:
            return
        if self.producer_id < 0:
            self._recover()
            return
        while self._queue and not self._window_full():
            connection = self._cluster.ready_connection(self._shard_id)
            if connection is None:
                self._recover()
                return
            if connection.congested:
                connection.when_uncongested(self._flush_soon)
                return
            request = self._take()
            if request is None:
                return
            self._give_number(request)
            before = next((sent for sent in reversed(self._sent) if sent.wanted), None)
            self._sent.append(request)
            self._send(connection, request, before)

    def _window_full(self) -> bool:
        """Would the shard have forgotten the oldest request without an answer when it has carried out the next one?"""
        return bool(self._sent) and self._numbered - self._sent[0].number >= self.in_flight_max

    def _flush_soon(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _send(self, connection: Connection, request: Request, before: Request | None) -> None:
        request.after = -1 if before is None else before.sequence
        request.attempts += 1
        request.producer_id = self.producer_id
        request.failure = None
        try:
            body, payload = self._encode(request)
            trace = None if tracing.tracer is None else trace_among(request.items)
            connection.send(body, lambda reply, _: self._answered(request, reply), payload, trace)
        except AntiphonError as error:
            self._loop.call_soon(self._answered, request, error)
        request.in_flight = True
        self._in_flight += 1

    def _popped(self, size_bytes: int) -> None:
        """Bookkeeping of `_take`: so much left the queue."""
        self._queue_bytes -= size_bytes
        if self._room is not None and not self._room.done() and not self.full:
            self._room.set_result(None)

    # -- answers ------------------------------------------------------------------------------------------------

    def _answered(self, request: Request, reply: Any) -> None:
        request.in_flight = False
        self._in_flight -= 1
        if not isinstance(reply, AntiphonError):
            self._tries = None
            request.answer = reply
            self._forget(request)
            self._resolve(request, reply)
        elif mends(reply) or self._refused(request, reply):
            request.failure = reply
            self._recover()
        else:
            if request.wanted:  # else it is told something else
                request.answer = reply
            self._forget(request)
            request.fail(reply)
        if self._drained is not None:
            if not self._in_flight and not self._drained.done():
                self._drained.set_result(None)
        elif self._sent and not self._in_flight and self._recovery is None:
            self._recover()  # some were held back
        elif self._queue:
            self._flush()

    def _forget(self, request: Request) -> None:
        if self._sent and self._sent[0] is request:
            self._sent.popleft()
        elif request in self._sent:
            self._sent.remove(request)
        self._settled(request)

    # -- trying again -------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        if self._recovery is None:
            self._drained = self._loop.create_future()
            if not self._in_flight:
                self._drained.set_result(None)
            self._recovery = self._loop.create_task(self._run_recovery(self._drained))

    async def _run_recovery(self, drained: "asyncio.Future[None]") -> None:
        """Wait for what is in flight, then send what is left again, until a whole round starts."""
        try:
            await drained
            while (deadline := self._last_deadline()) is not None:
                tries = self._tries = self._tries or self._cluster.tries_until(deadline)
                tries.deadline_s = deadline
                error = await self._try_round(deadline)
                if error is None:
                    break
                await self._cluster.failed(self._shard_id, error, tries)
        except AntiphonError as error:
            self._fail_all(error)
        finally:
            self._recovery = None
            self._drained = None
            self._flush_soon()

    async def _try_round(self, deadline: float) -> AntiphonError | None:
        """Send everything that is left over one connection; returns what stands in the way."""
        reason: AntiphonError | None = None
        for request in self._sent:
            if request.failure is not None and mends(request.failure):
                reason = reason or request.failure  # those behind it were refused because of it
                request.failure = None
        if reason is not None:
            logger.debug("shard %d: %d requests are sent again", self._shard_id, len(self._sent))
            return reason
        try:
            fresh = self._before_resend()
            if fresh or self.producer_id < 0:
                self._restart(await self._cluster.producer_id(fresh=fresh))
            connection = self._cluster.ready_connection(self._shard_id)
            if connection is None:
                address = self._cluster.leader_address(self._shard_id)
                async with asyncio.timeout_at(deadline):
                    connection = await self._cluster.connection(address)
        except AntiphonError as error:
            return error
        except TimeoutError:
            return TimedOutError(
                "no connection to the shard's leader in time; `antiphon shard list` says who leads"
            )
        self._resend(connection)
        return None

    def _resend(self, connection: Connection) -> None:
        """Send all that has no answer, in order."""
        before: Request | None = None
        for request in list(self._sent):
            self._send(connection, request, before)
            before = request if request.wanted else before

    def _drop_unwanted(self) -> None:
        for request in [request for request in self._sent if not request.wanted]:
            self._sent.remove(request)
            if request.attempts:
                self._abandoned()
            self._settled(request)
        if self._queue and all(item.future.done() for item in self._queue):
            self._queue_bytes = 0
            self._queue.clear()
            self._popped(0)

    def _last_deadline(self) -> float | None:
        """When the last caller stops waiting; None when nobody waits."""
        self._drop_unwanted()
        deadlines = [request.deadline for request in self._sent]
        deadlines += [item.deadline for item in self._queue]
        return max(deadlines, default=None)

    # -- the callers' time --------------------------------------------------------------------------------------

    def _sweep(self, now: float) -> float:
        """Fail the items whose time is over; returns the next deadline."""
        following = math.inf
        for sent, items in [(True, request.items) for request in self._sent] + [(False, self._queue)]:
            for item in items:
                if item.future.done():
                    continue
                if item.deadline <= now:
                    give_up(item, sent=sent)
                else:
                    following = min(following, item.deadline)
        return following

    def _fail_all(self, error: AntiphonError) -> None:
        sent, self._sent = self._sent, deque()
        for request in sent:
            request.fail(of_write(error, sent=request.attempts > 0))
            if request.attempts:
                self._abandoned()
            self._settled(request)
        fail_items(self._queue, of_write(error, sent=False))
        self._queue.clear()
        self._queue_bytes = 0
        self._popped(0)


def fail_items(items: Iterable[Item], error: Exception) -> None:
    """Those that have no answer yet get `error`."""
    for item in items:
        if not item.future.done():
            item.future.set_exception(error)


def trace_call(item: Item, name: str, shard_id: int) -> None:
    """Begin a span of a caller's request, which ends with its answer. It is begun once, whatever way the request takes."""
    tracer = tracing.tracer
    if tracer is None or item.trace is not None:
        return
    span = tracer.call(name, shard=shard_id)
    if span is not None:
        item.trace = span.traceparent
        item.future.add_done_callback(lambda done: span.end(_problem(done)))


def _problem(done: "asyncio.Future[Any]") -> str:
    if done.cancelled():
        return "cancelled"
    error = done.exception()
    return "" if error is None else str(error)


def trace_among(items: Sequence[Item]) -> str | None:
    """The trace of a request: that of the first of its items that has one."""
    return next((item.trace for item in items if item.trace is not None), None)


def give_up(item: Item, *, sent: bool) -> None:
    """Its caller's time is over; `sent`: it may have been carried out."""
    fail_items((item,), end_of_write(sent=sent))
