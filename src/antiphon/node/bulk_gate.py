"""Bulk writes: requests whose senders can wait, carried out at the rate at which everybody else hardly notices.

A job that loads a large data set takes all that it is given, and from a log that is all there is: each of its requests is
fair by itself, and together they make the queues at which every other client waits. So such a job marks its requests
(`bulk` of `TableWrite` and `LoadRows`), and the leader's node decides when they are carried out. They wait in a line of
their own, are let through at a rate in bytes a second, and the rate follows what the node sees:

- While bulk requests are committed within `timings.bulk_commit`, the rate rises by a tenth every `PERIOD_S`, as long as
  somebody waits for more. They go the way that every write goes (this loop, the disk, the followers), so the time that they
  take says what the others' take.
- When a quarter of them took longer, or one is out for longer, the rate falls by 30 %.
- It stays between `limits.bulk_floor` and `limits.bulk_ceiling`, which are the operator's, and a shard takes no more than
  its table's `bulk.bytes.per.second`.

A sender that would have to wait for more than `LINE_S_MAX` is told so at once (OverloadedError) and comes again: the line is
bounded by time, and so by bytes. Requests of one shard keep their order.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import AntiphonError, InternalError, OverloadedError, UnavailableError
from antiphon.model.loads import Load
from antiphon.model.requests import Delete, Put, TableWrite
from antiphon.model.sessions import PutEphemeral
from antiphon.records.packed_rows import LENGTHS_BYTES

if TYPE_CHECKING:
    from antiphon.node.config import NodeConfig
    from antiphon.node.local_replicas import LocalReplicas
    from antiphon.node.metrics import NodeMetrics
    from antiphon.node.topic_settings import SettingsBook

PERIOD_S: Final = 0.1  # between two looks at how long requests take
RISE: Final = 1.1
FALL: Final = 0.7
SLOW_SHARE: Final = 0.25  # of a period's requests: more of them that took too long make the rate fall
LINE_S_MAX: Final = 3.0  # clients give a request up after 10 s
START_BYTES_PER_S: Final = 4 * 1024 * 1024
BURST_S: Final = 0.02  # what was not used may be made up for, this far back
RUNNING_MAX: Final = 2  # requests of one shard that are carried out at a time
OP_BYTES: Final = 16

Done = Callable[[Any], None]
Bulk = TableWrite | Load
Write = Callable[[Bulk, Done], None]
"""Carries a write out now; raises what is known at once."""

LimitOf = Callable[[int], int | None]
"""Bytes a second that a shard may take by its table's setting; None: no limit."""


class BulkRate:
    """The rate, from what requests took. Pure; times are of one clock, in seconds."""

    def __init__(self, commit_s: float, floor: int, ceiling: int) -> None:
        """`commit_s` is what a request may take; `floor` and `ceiling` bound the rate, in bytes a second."""
        self.bytes_per_s = float(min(max(START_BYTES_PER_S, floor), ceiling))
        self._commit_s = commit_s
        self._floor, self._ceiling = floor, max(floor, ceiling)
        self._looked_s = 0.0
        self._answers = 0
        self._slow = 0
        self._was_short = False  # did somebody wait for the rate in this period?

    def answered(self, took_s: float) -> None:
        """A request was committed."""
        self._answers += 1
        self._slow += took_s > self._commit_s

    def held_back(self) -> None:
        """Somebody waits for nothing but the rate."""
        self._was_short = True

    def look(self, now_s: float, oldest_s: float | None) -> None:
        """Once a period: fall, rise or stay. `oldest_s`: since when the oldest request is out."""
        if now_s - self._looked_s < PERIOD_S:
            return
        is_stuck = oldest_s is not None and now_s - oldest_s > max(self._commit_s, PERIOD_S)
        if is_stuck or self._slow > SLOW_SHARE * self._answers:
            self.bytes_per_s = max(float(self._floor), self.bytes_per_s * FALL)
        elif self._was_short and self._answers:
            self.bytes_per_s = min(float(self._ceiling), self.bytes_per_s * RISE)
        elif not self._answers and not self._was_short:
            return  # nothing was asked for: the next request begins a period
        self._looked_s = now_s
        self._answers = self._slow = 0
        self._was_short = False


class _Waiting(NamedTuple):
    request: Bulk
    size_bytes: int
    done: Done


class _Line:
    """The requests of one shard."""

    __slots__ = ("next_s", "running", "waiting", "waiting_bytes")

    def __init__(self) -> None:
        self.waiting: deque[_Waiting] = deque()
        self.waiting_bytes = 0
        self.running = 0
        self.next_s = 0.0  # when the table's own limit lets the next one through


class BulkGate:
    """The bulk writes of one node."""

    def __init__(
        self, loop: "asyncio.AbstractEventLoop", rate: BulkRate, write: Write, limit_of: LimitOf
    ) -> None:
        self.rate = rate
        self.bytes_through = 0
        self.waiting_bytes = 0
        self._loop = loop
        self._write = write
        self._limit_of = limit_of
        self._lines: dict[int, _Line] = {}  # by shard; who was served last stands last
        self._next_s = 0.0
        self._running: dict[int, float] = {}  # ticket -> since when
        self._ticket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pumping = False

    def take(self, request: Bulk, done: Done) -> None:
        """Stand in line; raises OverloadedError where the wait would be too long."""
        shard_id, size_bytes = request.shard_id, _size_bytes(request)
        line = self._lines.get(shard_id)
        if line is None:
            line = self._lines[shard_id] = _Line()
        now, limit = self._loop.time(), self._limit_of(shard_id)
        wait_s = max(0.0, self._next_s - now) + self.waiting_bytes / self.rate.bytes_per_s
        if limit is not None:
            own_s = max(0.0, line.next_s - now) + line.waiting_bytes / limit if limit else LINE_S_MAX + 1
            wait_s = max(wait_s, own_s)
        if wait_s > LINE_S_MAX:
            self._tidy(shard_id, now)
            raise OverloadedError(
                f"bulk writes to shard {shard_id} would wait for {wait_s:.1f} s: this node takes "
                f"{self.rate.bytes_per_s / 1e6:.1f} MB/s of them now"
                + ("" if limit is None else f", and the table's bulk.bytes.per.second is {limit}")
                + "; nothing was written, send it again later",
                shard_id=shard_id,
            )
        line.waiting.append(_Waiting(request, size_bytes, done))
        line.waiting_bytes += size_bytes
        self.waiting_bytes += size_bytes
        self._pump()

    def close(self) -> None:
        """The node stops: let nothing more through, and tell who waits."""
        if self._timer is not None:
            self._timer.cancel()
        lines, self._lines, self.waiting_bytes = self._lines, {}, 0
        self._pumping = True
        for line in lines.values():
            for one in line.waiting:
                one.done(UnavailableError("this node stops; nothing was written, ask again"))

    def _pump(self) -> None:
        """Let through who may go now; come back when the next one may."""
        if self._pumping:
            return
        self._pumping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            again_s = self._let_through()
        finally:
            self._pumping = False
        if again_s is not None:
            self._timer = self._loop.call_at(again_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._pump()

    def _let_through(self) -> float | None:
        """Returns when to come back; None: when one of those underway is answered, or another one comes."""
        while self.waiting_bytes:
            now = self._loop.time()
            self.rate.look(now, min(self._running.values(), default=None))
            ready, again_s = self._ready(now)
            if ready is None:
                return again_s
            if self._next_s > now:
                self.rate.held_back()
                return self._next_s
            self._run(ready, now)
        return None

    def _ready(self, now: float) -> tuple[int | None, float | None]:
        """A shard with a request that may go as far as the shard is concerned, and when one may where there is none."""
        again_s: float | None = None
        for shard_id, line in self._lines.items():
            if not line.waiting or line.running >= RUNNING_MAX:
                continue
            if line.next_s <= now:
                return shard_id, None
            again_s = line.next_s if again_s is None else min(again_s, line.next_s)
        return None, again_s

    def _run(self, shard_id: int, now: float) -> None:
        line = self._lines.pop(shard_id)
        self._lines[shard_id] = line
        one = line.waiting.popleft()
        line.waiting_bytes -= one.size_bytes
        self.waiting_bytes -= one.size_bytes
        line.running += 1
        self._next_s = max(self._next_s, now - BURST_S) + one.size_bytes / self.rate.bytes_per_s
        limit = self._limit_of(shard_id)
        if limit:
            line.next_s = max(line.next_s, now - BURST_S) + one.size_bytes / limit
        self._ticket += 1
        ticket = self._ticket
        self._running[ticket] = now

        def answered(result: Any) -> None:
            since = self._running.pop(ticket)
            line.running -= 1
            if not isinstance(result, AntiphonError):
                self.bytes_through += one.size_bytes
                self.rate.answered(self._loop.time() - since)
            self._tidy(shard_id, self._loop.time())
            one.done(result)
            self._pump()

        try:
            self._write(one.request, answered)
        except AntiphonError as error:
            answered(error)
        except Exception as error:  # noqa: BLE001 - answered as a bug of this node; the others in the line go on
            answered(InternalError(f"{type(error).__name__}: {error}"))

    def _tidy(self, shard_id: int, now: float) -> None:
        """Forget a shard of which nothing waits and nothing is remembered."""
        line = self._lines.get(shard_id)
        if line is not None and not line.waiting and not line.running and line.next_s <= now:
            del self._lines[shard_id]


def _size_bytes(request: Bulk) -> int:
    """Keys and values, and what each operation costs besides."""
    if isinstance(request, Load):
        return OP_BYTES + (OP_BYTES - LENGTHS_BYTES) * request.request.rows + len(request.rows)
    size = OP_BYTES
    for op in request.ops:
        size += OP_BYTES
        if isinstance(op, Put | PutEphemeral):
            size += len(op.key) + len(op.value)
        elif isinstance(op, Delete):
            size += len(op.key)
    return size


def gate_of(
    config: "NodeConfig", replicas: "LocalReplicas", settings: "SettingsBook", metrics: "NodeMetrics"
) -> BulkGate:
    """The gate of a node."""

    def write(request: Bulk, done: Done) -> None:
        host = replicas.host(request.shard_id)
        if isinstance(request, Load):
            host.table_loads.load(request, done)
        else:
            host.table_writes.write(request, done)

    def limit_of(shard_id: int) -> int | None:
        found = replicas.view.shard(shard_id)
        return None if found is None else settings.of(found[0]).bulk_bytes_per_s

    limits = config.limits
    rate = BulkRate(config.timings.bulk_commit / 1000, limits.bulk_floor, limits.bulk_ceiling)
    gate = BulkGate(asyncio.get_running_loop(), rate, write, limit_of)
    gauges = metrics.gauges
    gauges["antiphon_bulk_bytes_per_second"] = (
        "Bulk writes that are let through",
        lambda: rate.bytes_per_s,
    )
    gauges["antiphon_bulk_waiting_bytes"] = ("Bulk writes in line", lambda: gate.waiting_bytes)
    return gate
