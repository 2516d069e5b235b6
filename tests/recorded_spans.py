"""Spans of this process, kept in memory as OpenTelemetry exports them."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from antiphon import tracing


@contextmanager
def recorded_spans() -> Iterator[InMemorySpanExporter]:
    """What is traced from here on; nothing is afterwards."""
    found = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    tracing.install(provider)
    try:
        yield found
    finally:
        tracing.install(None)
