"""Traces of Spark's writes: an epoch is planned on the driver, its tasks and its commit are spans under that.

They run in processes of their own, which trace as their environment says (OTEL_...). A trace travels with the sink. Spans
are sent before a task ends: its process may be gone afterwards.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from antiphon import tracing

SERVICE = "antiphon-spark"


def _begin() -> None:
    """Trace as the program or the environment says. A job without what that takes runs all the same."""
    tracing.adopt()
    with suppress(ImportError):
        tracing.from_environment(SERVICE)


def planned(target: str) -> str:
    """An epoch is planned: what its tasks and its commit go under; empty where nothing is traced."""
    _begin()
    span = None if tracing.tracer is None else tracing.tracer.call("spark epoch", target=target)
    if span is None:
        return ""
    span.end()
    return span.traceparent


@contextmanager
def under(name: str, trace: str, **about: Any) -> Iterator[None]:
    """A part of an epoch that was planned."""
    if not trace:
        yield
        return
    _begin()
    if tracing.tracer is None:
        yield
        return
    try:
        with tracing.tracer.around(name, trace, **about):
            yield
    finally:
        tracing.tracer.flush()
