"""Frames of Kafka's protocol: a request's header, and the start and end of a response.

A frame is an int32 length of the rest, then the header, then the body. A request's header ends with tagged fields where its
API's version is flexible, but keeps the old form of the client id; a response's header has tagged fields where the version
is flexible, except that of ApiVersions, which a client must be able to read before it knows any version.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

from antiphon.errors import ProtocolViolationError
from antiphon.kafka.api import API_VERSIONS, Api
from antiphon.kafka.primitives import Reader

LENGTH_BYTES: Final = 4
TLS_START: Final = 0x1603  # how a TLS handshake begins
FRAME_BYTES_MAX: Final = 100 * 1024 * 1024  # as Kafka's socket.request.max.bytes
HEADER_BYTES_MIN: Final = 8
TAGS_MAX: Final = 100  # fields of a header that nobody knows yet

_LENGTH: Final = struct.Struct(">i")
_HEADER: Final = struct.Struct(">hhi")
_START: Final = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    """What starts a request. `supported` is False where the version is not served; the body is then not to be read."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    supported: bool


def frame_size(buffer: memoryview, at: int) -> int:
    """Bytes of the frame at `at` without its length prefix; raises ProtocolViolationError for what cannot be."""
    (size,) = _LENGTH.unpack_from(buffer, at)
    if not HEADER_BYTES_MIN <= size <= FRAME_BYTES_MAX:
        if size >> 16 == TLS_START:
            raise ProtocolViolationError(
                "the client speaks TLS (security.protocol SSL or SASL_SSL), and this port does not"
            )
        raise ProtocolViolationError(
            f"a frame of {size} bytes; {HEADER_BYTES_MIN} to {FRAME_BYTES_MAX} are accepted"
        )
    return int(size)


def read_header(body: memoryview, apis: Mapping[int, Api]) -> tuple[RequestHeader, Reader]:
    """The header of a request to one of `apis`, by key, and a reader at its body.

    Raises:
        ProtocolViolationError: no such API, or a version out of range (except of ApiVersions, see `supported`).
    """
    if len(body) < HEADER_BYTES_MIN:
        raise ProtocolViolationError(f"a request of {len(body)} bytes has no header")
    api_key, version, correlation_id = _HEADER.unpack_from(body)
    api = apis.get(api_key)
    if api is None:
        raise ProtocolViolationError(f"API key {api_key} is not served")
    reader = Reader(body, HEADER_BYTES_MIN)
    supported = api.min_version <= version <= api.max_version
    if not supported:
        if api_key != API_VERSIONS:
            raise ProtocolViolationError(
                f"{api.name} version {version} is not served, only {api.min_version} to {api.max_version}"
            )
        return RequestHeader(api, version, correlation_id, "", supported=False), reader
    client_id = reader.nullable_string() or ""
    if api.is_flexible(version):
        reader.skip_tags(TAGS_MAX)
    return RequestHeader(api, version, correlation_id, client_id, supported=True), reader


def start_response(header: RequestHeader) -> bytearray:
    """A frame whose length is still to be set, up to the end of its header."""
    out = bytearray(_START.pack(0, header.correlation_id))
    if header.api.key != API_VERSIONS and header.api.is_flexible(header.version):
        out.append(0)
    return out


def finish_response(out: bytearray, more_bytes: int = 0) -> None:
    """Set the frame's length; `more_bytes` are those that follow in other buffers."""
    _LENGTH.pack_into(out, 0, len(out) - LENGTH_BYTES + more_bytes)
