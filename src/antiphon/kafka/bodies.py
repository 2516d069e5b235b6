"""Bodies of requests read, and whole frames of responses made, by the API's messages."""

import struct
from typing import Final

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.framing import RequestHeader, finish_response, start_response
from antiphon.kafka.primitives import Reader
from antiphon.kafka.schema import Message, codec, encode

THROTTLED_METADATA: Final = (
    3  # version of Metadata; the other answer that comes encoded always begins with the time
)
_I32: Final = struct.Struct(">i")


def decoded(header: RequestHeader, reader: Reader) -> Message:
    """Read a request's body. Bytes after it are ignored, as Kafka does: librdkafka 2.16 sends three too many in a
    Metadata request for all topics.
    """
    kind = header.api.request
    if kind is None:
        raise ProtocolViolationError(f"{header.api.name} has no plain request")
    message: Message = codec(kind, header.version, header.api.is_flexible(header.version)).read(reader)
    return message


def encoded(header: RequestHeader, body: Message | bytes, throttle_ms: int = 0) -> bytearray:
    """The whole frame of a response."""
    out = start_response(header)
    if isinstance(body, Message):
        if throttle_ms and hasattr(body, "throttle_time_ms"):
            body.throttle_time_ms = throttle_ms
        encode(body, header.version, flexible=header.api.is_flexible(header.version), out=out)
    else:
        at = len(out)
        out += body
        if throttle_ms and (header.api.name != "Metadata" or header.version >= THROTTLED_METADATA):
            _I32.pack_into(out, at, throttle_ms)
    finish_response(out)
    return out
