"""Traces of a simulated world: its spans, kept in memory, with ids that follow from the seed, and what has to hold of them.

- `span-parent`: a span is begun under one that there is, and that it belongs to: a node's span of a request under the call
  of a client, and of a call that makes such requests; a leader's span of an entry under the request that it is appended for,
  in the same moment, before that is answered; a follower's under the leader's of the same shard; what a replica does with an
  entry under its own span of it. What a client does not record nobody records.
- `span-of-request`: a call that was answered, while its client had no other, was a node's span, too.
- `span-ends`: a span ends once. In the end all have ended, but for those of processes that were killed.

It takes no package of OpenTelemetry.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from antiphon import tracing
from antiphon.simulation.runtime.loop import current_process
from antiphon.simulation.violation import ViolationError

if TYPE_CHECKING:
    from antiphon.simulation.cluster.world import World
    from antiphon.simulation.runtime.loop import HostedProcess

UNSAMPLED: Final = 0.2  # of the calls
CALL, REQUEST, INNER = "call", "request", "inner"
REQUESTS: Final = {
    "append": {"AppendBatch"},
    "put": {"TableWrite"},
    "delete": {"TableWrite"},
    "together": {"TableWrite"},
    "get": {"TableGet"},
    "scan": {"TableScan", "GetMetadata", "Authenticate"},
}
"""What a call asks nodes for: a page of a scan also on its way to the leader. Of other calls it is not judged."""
UNDER_ENTRIES: Final = ("sync", "commit", "apply")

_now: ContextVar["MemorySpan | None"] = ContextVar("span_of_a_simulated_client", default=None)


class MemorySpan(tracing.Span):
    """One span. `alone`: its client had no other call meanwhile; `served`: a node has begun a span of it."""

    __slots__ = ("_book", "about", "alone", "ended", "kind", "name", "parent", "process", "served", "step")

    def __init__(
        self, book: "MemoryTracer", name: str, kind: str, parent: "MemorySpan | None", about: dict[str, Any]
    ) -> None:
        self._book, self.name, self.kind, self.parent, self.about = book, name, kind, parent, about
        self.process: HostedProcess | None = current_process.get()
        self.step = book.step
        self.ended = self.served = False
        self.alone = True
        trace = book.new_trace() if parent is None else parent.traceparent[3:35]
        self.traceparent = f"00-{trace}-{book.new_id()}-01"

    def end(self, error: str = "") -> None:
        """See `Span`."""
        self._book.ended(self, error)

    def words(self) -> str:
        """For whoever reads of it."""
        return f"{self.name} {self.about} of {'nobody' if self.process is None else self.process.name}"


class MemoryTracer(tracing.Tracer):
    """See the module's text; in the place of one that has a provider of OpenTelemetry."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._draw = world.stream("spans")
        self._spans: dict[str, MemorySpan] = {}  # by `traceparent`
        self._calls: dict[HostedProcess | None, set[MemorySpan]] = {}  # that are open
        self.broken: ViolationError | None = None  # the first; what is judged is in the middle of a step

    @property
    def step(self) -> int:
        """The moment, as the loop counts them."""
        return self._world.loop.steps

    def new_trace(self) -> str:
        """The id of a trace."""
        return f"{self._draw.getrandbits(128) | 1:032x}"

    def new_id(self) -> str:
        """The id of a span."""
        return f"{self._draw.getrandbits(64) | 1:016x}"

    # -- see `Tracer` ---------------------------------------------------------------------------------------------

    def call(self, name: str, **about: Any) -> tracing.Span | None:
        """See `Tracer`."""
        return None if self._draw.random() < UNSAMPLED else self._called(name, about)

    def within(self, name: str, parent: str, *, serves: bool = False, **about: Any) -> tracing.Span | None:
        """See `Tracer`."""
        found = self._spans.get(parent)
        if found is None:
            self._break("span-parent", f"{name} {about} is begun under {parent!r}, which nobody has begun")
            return None
        span = self._begin(name, REQUEST if serves else INNER, found, about)
        problem = _problem_of_request(span, found) if serves else _problem_within(span, found)
        if problem:
            self._break("span-parent", f"{span.words()} is begun under {found.words()}: {problem}")
        found.served = found.served or serves
        return span

    def parent(self) -> str | None:
        """See `Tracer`."""
        now = _now.get()
        return None if now is None else now.traceparent

    def flush(self) -> None:
        """See `Tracer`."""

    @contextmanager
    def around(self, name: str, parent: str | None = None, **about: Any) -> Iterator[None]:
        """See `Tracer`."""
        span = None if parent is not None or self._draw.random() < UNSAMPLED else self._called(name, about)
        before = _now.set(span)
        problem = "failed"
        try:
            yield
            problem = ""
        finally:
            _now.reset(before)
            if span is not None:
                span.end(problem)

    # -- judges ---------------------------------------------------------------------------------------------------

    def _begin(self, name: str, kind: str, parent: MemorySpan | None, about: dict[str, Any]) -> MemorySpan:
        span = MemorySpan(self, name, kind, parent, about)
        self._spans[span.traceparent] = span
        return span

    def _called(self, name: str, about: dict[str, Any]) -> MemorySpan:
        span = self._begin(name, CALL, None, about)
        others = self._calls.setdefault(span.process, set())
        if others:
            span.alone = False
            for other in others:
                other.alone = False
        others.add(span)
        return span

    def ended(self, span: MemorySpan, error: str) -> None:
        """A span is over."""
        if span.ended:
            self._break("span-ends", f"{span.words()} ends a second time")
        span.ended = True
        if span.kind == CALL:
            self._calls[span.process].discard(span)
            if span.alone and not error and not span.served and span.name in REQUESTS:
                self._break("span-of-request", f"{span.words()} was answered, and no node has a span of it")

    def _break(self, name: str, message: str) -> None:
        if self.broken is None:
            self.broken = ViolationError(name, message)

    def check(self) -> int:
        """All that was begun is over; returns how many spans that were. Raises ViolationError."""
        left = [one for one in self._spans.values() if not one.ended and _is_alive(one.process)]
        if left:
            self._break("span-ends", f"{len(left)} spans do not end: {[one.words() for one in left[:3]]}")
        if self.broken is not None:
            raise self.broken
        return len(self._spans)


@contextmanager
def traced(tracer: MemoryTracer | None) -> Iterator[None]:
    """Trace with it, in this process. None: as it is."""
    before = tracing.tracer
    if tracer is not None:
        tracing.tracer = tracer
    try:
        yield
    finally:
        tracing.tracer, tracing.current, tracing.outgoing = before, None, None


def _is_alive(process: "HostedProcess | None") -> bool:
    return process is None or getattr(process, "alive", True)


def _problem_of_request(span: MemorySpan, parent: MemorySpan) -> str:
    if parent.kind != CALL:
        return "that is no call of a client"
    if span.name not in REQUESTS.get(parent.name, {span.name}):
        return "such a call asks for something else"
    return ""


def _problem_within(span: MemorySpan, parent: MemorySpan) -> str:
    same_node = span.about.get("node") == parent.about.get("node")
    same_shard = span.about.get("shard") == parent.about.get("shard")
    if span.name in UNDER_ENTRIES:
        is_fine = (
            parent.name == "append" and parent.kind == INNER and same_node and same_shard and not parent.ended
        )
        return "" if is_fine else "that is not the replica's own span of an entry that is not committed yet"
    if span.about.get("role") == "follower":
        is_fine = parent.about.get("role") == "leader" and same_shard and not same_node
        return "" if is_fine else "that is not a leader's span of an entry of this shard"
    is_now = parent.kind == REQUEST and same_node and parent.step == span.step and not parent.ended
    return "" if is_now else "that is not the request for which this is appended"
