"""Traces by OpenTelemetry, where a program or a node has set it up: which spans are begun, and how a trace travels.

Off, `tracer` is None, and whoever would begin a span tests for that and nothing else. Whether a trace is recorded is decided
where it begins: what does not record sends nothing on, and nobody after it begins a span. A trace travels as W3C's
`traceparent`.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

NAME: Final = "antiphon"
TRACEPARENT: Final = "traceparent"
SAMPLED: Final = 0x01
FLUSH_MS: Final = 2_000
_PARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_ENVIRONMENT: Final = (
    "OTEL_TRACES_EXPORTER",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
)


class Span:
    """One span that is recorded. `traceparent` is for what it calls."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: Any) -> None:
        self._span = span
        found = span.get_span_context()
        self.traceparent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    def end(self, error: str = "") -> None:
        """It is over; with an error, if it failed."""
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error[:500]))
        self._span.end()


class Tracer:
    """Begins spans with a provider of OpenTelemetry."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry import trace

        self._api = trace
        self._provider = provider
        self._tracer = provider.get_tracer(NAME)

    def call(self, name: str, **about: Any) -> Span | None:
        """A span of a client's call, a child of what the program does now; None: it is not recorded."""
        span = self._tracer.start_span(
            f"{NAME} {name}", kind=self._api.SpanKind.CLIENT, attributes=_attributes(about)
        )
        return Span(span) if span.is_recording() else None

    def within(self, name: str, parent: str, *, serves: bool = False, **about: Any) -> Span | None:
        """A span under one that was told of; None: that is not recorded, or makes no sense."""
        context = self._context(parent)
        if context is None:
            return None
        kind = self._api.SpanKind.SERVER if serves else self._api.SpanKind.INTERNAL
        span = self._tracer.start_span(f"{NAME} {name}", context, kind, _attributes(about))
        return Span(span) if span.is_recording() else None

    def _context(self, parent: str) -> Any:
        parts = _PARENT.fullmatch(parent)
        if parts is None or not int(parts[3], 16) & SAMPLED:
            return None
        api = self._api
        found = api.SpanContext(int(parts[1], 16), int(parts[2], 16), True, api.TraceFlags(SAMPLED))
        return api.set_span_in_context(api.NonRecordingSpan(found)) if found.is_valid else None

    def parent(self) -> str | None:
        """What the program does now, if that is recorded."""
        span = self._api.get_current_span()
        return Span(span).traceparent if span.is_recording() else None

    def flush(self) -> None:
        """Have what is recorded sent, within two seconds."""
        self._provider.force_flush(FLUSH_MS)

    @contextmanager
    def around(self, name: str, parent: str | None = None, **about: Any) -> Iterator[None]:
        """A span of a client's call, which is what the program does until the end of the block."""
        context = None if parent is None else self._context(parent)
        if parent is not None and context is None:
            yield
            return
        kind = self._api.SpanKind.CLIENT
        with self._tracer.start_as_current_span(
            f"{NAME} {name}", context=context, kind=kind, attributes=_attributes(about)
        ):
            yield


def _attributes(about: dict[str, Any]) -> dict[str, Any]:
    return {f"{NAME}.{name}": value for name, value in about.items() if value is not None}


tracer: Tracer | None = None
"""None: nothing is traced."""
current: str | None = None
"""What the node's event loop works on at this moment, set and taken back within one call; empty: what is not recorded."""
outgoing: str | None = None
"""The trace of the entries that are being sent to a follower, in the same way."""


def install(provider: Any) -> None:
    """Trace with this provider from now on; None: no more."""
    global tracer  # noqa: PLW0603 - one for the process, so that being off costs one test
    tracer = None if provider is None else Tracer(provider)


def adopt() -> None:
    """Trace if the program has set OpenTelemetry up. It is not loaded for that."""
    if tracer is not None or "opentelemetry.sdk.trace" not in sys.modules:
        return
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        install(provider)


def is_wanted() -> bool:
    """Does the environment ask for traces, by OpenTelemetry's own variables?"""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return any(os.environ.get(name, "").strip() for name in _ENVIRONMENT)


def from_environment(service: str) -> str:
    """Trace as the environment says; returns a sentence about it, empty where it says nothing.

    `service` is the name where OTEL_SERVICE_NAME gives none. Raises ImportError with what to install.
    """
    if tracer is not None or not is_wanted():
        return ""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ImportError(
            f"the environment asks for traces (OTEL_...) and {error.name} is not installed: pip install 'antiphon[otel]'"
        ) from None
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    install(provider)
    return "spans go to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names"
