"""The demo's load: events through the Kafka listener with Confluent's client, aircraft states through our own.

Both run in threads of the demo's process and note when each write was acknowledged, which is what the figures are made of.
"""

import asyncio
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from antiphon.errors import AntiphonError, TimedOutError
from antiphon.tools.demo.data import Flight

PUTS_IN_FLIGHT: Final = 2_000
QUEUE_EVENTS: Final = 20_000
DELIVERY_TIMEOUT_MS: Final = 120_000
PACE_S: Final = 0.02  # how often a paced load looks at the clock

# Look for the new leader at once and often: what a client needs to notice a fail-over when it is over.
PRODUCER_CONFIG: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 20,
    "queue.buffering.max.messages": QUEUE_EVENTS,
    "message.timeout.ms": DELIVERY_TIMEOUT_MS,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 100,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "log_level": 2,
}


class Load(threading.Thread):
    """Base: a thread that counts acknowledgements and keeps the first error."""

    def __init__(self, name: str, flights: Sequence[Flight], rate: int | None) -> None:
        super().__init__(name=name, daemon=True)
        self.flights = flights
        self.rate = rate
        self.times_ns = array("q")  # when each write was acknowledged, time of day
        self.shards = array("b")  # and of which shard; only events know
        self.error: Exception | None = None
        self.stopping = threading.Event()

    @property
    def done(self) -> int:
        """Acknowledged writes."""
        return len(self.times_ns)

    def run(self) -> None:
        """Thread body."""
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for this one
            self.error = error

    def work(self) -> None:
        """Write everything and return when all of it is acknowledged."""
        raise AntiphonError(f"{type(self).__name__} has no work")

    def check(self) -> None:
        """Raise what went wrong in the thread."""
        if self.error is not None:
            raise AntiphonError(f"{self.name}: {self.error}") from self.error

    def due(self, started: float) -> int:
        """How many writes the pace allows by now."""
        if self.rate is None:
            return len(self.flights)
        return min(len(self.flights), int((time.monotonic() - started) * self.rate) + 1)


class EventLoad(Load):
    """Appends the flights to a topic through the Kafka listener."""

    def __init__(self, bootstrap: str, topic: str, flights: Sequence[Flight], rate: int | None) -> None:
        super().__init__("events", flights, rate)
        self._servers = bootstrap
        self._topic = topic
        self._failed: str | None = None

    def _acknowledged(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed = str(error)
            return
        self.times_ns.append(time.time_ns())
        self.shards.append(message.partition())

    def work(self) -> None:
        """Produce in order, then wait for the rest of the acknowledgements."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._servers, **PRODUCER_CONFIG})
        started = time.monotonic()
        sent = 0
        while sent < len(self.flights) and self._failed is None and not self.stopping.is_set():
            upto = min(self.due(started), sent + 500)
            while sent < upto:
                flight = self.flights[sent]
                try:
                    producer.produce(self._topic, flight.event, flight.key, on_delivery=self._acknowledged)
                except BufferError:
                    break
                sent += 1
            producer.poll(0 if sent < self.due(started) and len(producer) < QUEUE_EVENTS else PACE_S)
        left = producer.flush(DELIVERY_TIMEOUT_MS / 1000)
        if self._failed is not None:
            raise AntiphonError(f"an event was not appended: {self._failed}")
        if left and not self.stopping.is_set():
            raise TimedOutError(f"{left} events had no acknowledgement in time")


class StateLoad(Load):
    """Puts each flight's aircraft in a table, many at a time, those of one aircraft one after the other."""

    def __init__(self, servers: str, table: str, flights: Sequence[Flight], rate: int | None) -> None:
        super().__init__("states", flights, rate)
        self._servers = servers
        self._table = table

    def work(self) -> None:
        """Run the client's event loop in this thread."""
        asyncio.run(self._put_all())

    async def _put_all(self) -> None:
        from antiphon import aio

        async with aio.connect(self._servers) as db:
            puts = _OrderedPuts(await db.table(self._table), self.times_ns)
            started = time.monotonic()
            sent = 0
            while sent < len(self.flights) and not self.stopping.is_set():
                upto = self.due(started)
                while sent < upto and puts.outstanding < PUTS_IN_FLIGHT:
                    puts.put(self.flights[sent].key, self.flights[sent].state)
                    sent += 1
                await (puts.wait_below(PUTS_IN_FLIGHT) if sent < upto else asyncio.sleep(PACE_S))
            await puts.wait_below(1)


class _OrderedPuts:
    """Concurrent puts, of which those of one key start when the one before is acknowledged."""

    def __init__(self, table: Any, times_ns: "array[int]") -> None:
        self._put: Callable[..., asyncio.Future[Any]] = table.put
        self._times_ns = times_ns
        self._queues: dict[bytes, deque[bytes]] = {}  # keys with a put in flight, and what waits behind it
        self._error: BaseException | None = None
        self._moved = asyncio.Event()
        self.outstanding = 0

    def put(self, key: bytes, value: bytes) -> None:
        """Start a put, or queue it behind the one of the same key."""
        self.outstanding += 1
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque()
            self._start(key, value)
        else:
            queue.append(value)

    def _start(self, key: bytes, value: bytes) -> None:
        self._put(key, value, timeout_s=DELIVERY_TIMEOUT_MS / 1000).add_done_callback(
            lambda future: self._done(key, future)
        )

    def _done(self, key: bytes, future: "asyncio.Future[Any]") -> None:
        self.outstanding -= 1
        error = None if future.cancelled() else future.exception()
        if error is not None or future.cancelled():
            self._error = self._error or error or AntiphonError("a put was cancelled")
        else:
            self._times_ns.append(time.time_ns())
        self._moved.set()
        queue = self._queues[key]
        if queue:
            self._start(key, queue.popleft())
        else:
            del self._queues[key]

    async def wait_below(self, outstanding: int) -> None:
        """Wait until fewer puts are outstanding; raises the first error."""
        while self.outstanding >= outstanding:
            self._moved.clear()
            await self._moved.wait()
            if self._error is not None:
                raise AntiphonError(f"a put failed: {self._error}") from self._error
