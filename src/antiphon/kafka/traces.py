"""Traces over Kafka's protocol: a producer that traces says so in a header of its records, and a node goes by the first one.

Nothing is put into records here, and compressed batches are not unpacked for it.
"""

from itertools import islice
from typing import Final

from antiphon import tracing
from antiphon.errors import AntiphonError
from antiphon.gateway.answers import Done
from antiphon.gateway.interface import Gateway
from antiphon.records.batch import HEADER_BYTES, Buffer, read_header
from antiphon.records.headers import headers_of
from antiphon.records.varint import take_varint

NAME: Final = tracing.TRACEPARENT.encode()
HEADERS_MAX: Final = 20  # that are looked at
TEXT_BYTES: Final = 55


def trace_in(records: Buffer) -> str | None:
    """The `traceparent` among the headers of the first record of a batch, if that is not compressed."""
    try:
        if read_header(records).codec:
            return None
        view = memoryview(records)
        length, at = take_varint(view, HEADER_BYTES)
        for name, value in islice(headers_of(view[at : at + length]), HEADERS_MAX):
            if len(name) == len(NAME) and bytes(name) == NAME and len(value) == TEXT_BYTES:
                return bytes(value).decode("ascii")
    except (IndexError, UnicodeDecodeError, AntiphonError):
        return None
    return None


def submit_traced(
    gateway: Gateway,
    shard_id: int,
    records: Buffer,
    expected_offset: int | None,
    timeout_s: float,
    done: Done,
) -> None:
    """`Gateway.submit_append` under the trace that the records say, if they say one."""
    tracer, trace = tracing.tracer, trace_in(records)
    span = None
    if tracer is not None and trace is not None:
        span = tracer.within("Produce", trace, serves=True, node=gateway.node_id, shard=shard_id)
    if span is None:
        gateway.submit_append(shard_id, records, expected_offset, timeout_s, done)
        return

    def ended(result: object) -> None:
        span.end("failed" if isinstance(result, Exception) else "")
        done(result)

    tracing.current = span.traceparent
    try:
        gateway.submit_append(shard_id, records, expected_offset, timeout_s, ended)
    except Exception:
        span.end("failed")
        raise
    finally:
        tracing.current = None
