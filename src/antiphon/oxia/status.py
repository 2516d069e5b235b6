"""What a call ends with: gRPC's codes, Oxia's reasons, and how the errors of a node become them.

Oxia's clients go by `google.rpc.ErrorInfo` (Go since 0.17, Java) or by the code. What may pass is UNAVAILABLE with a reason
that they repeat a request for.
"""

import base64
from typing import Final

from antiphon.errors import AntiphonError
from antiphon.gateway.protobuf import encode
from antiphon.oxia.frames import literal
from antiphon.oxia.messages import AnyMessage, ErrorInfo, RpcStatus

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = range(6)
ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED, OUT_OF_RANGE = range(
    6, 12
)
UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = range(12, 17)
"""gRPC's codes."""

DOMAIN: Final = "oxia.io"
TEXT_BYTES_MAX: Final = 1_024  # of a message, as it goes over the wire
_TYPE: Final = "type.googleapis.com/google.rpc.ErrorInfo"
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - {0x25}

HEADERS_OK: Final = b"\x88" + literal(b"content-type", b"application/grpc")
"""How each answer begins: `:status: 200` is entry 8 of HPACK's static table."""
TRAILERS_OK: Final = literal(b"grpc-status", b"0")


class CallFailedError(Exception):
    """A call ends with this code, and this reason for Oxia's clients."""

    def __init__(self, code: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason


_CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid_request": (INVALID_ARGUMENT, ""),
    "unknown_topic": (NOT_FOUND, "NAMESPACE_NOT_FOUND"),
    "unknown_shard": (NOT_FOUND, "SHARD_NOT_FOUND"),
    "wrong_shard": (NOT_FOUND, "SHARD_NOT_FOUND"),  # clients look where the key is, and go there
    "wrong_kind": (FAILED_PRECONDITION, ""),
    "limit_reached": (RESOURCE_EXHAUSTED, ""),
    "not_leader": (UNAVAILABLE, "NODE_IS_NOT_LEADER"),
    "not_ready": (UNAVAILABLE, "NOT_INITIALIZED"),
    "key_locked": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "unavailable": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "timed_out": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "overloaded": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "disk_full": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "storage_failed": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "damaged_store": (UNAVAILABLE, "RESOURCE_UNAVAILABLE"),
    "batch_too_large": (INVALID_ARGUMENT, ""),
    "frame_too_large": (RESOURCE_EXHAUSTED, ""),
    "session_not_found": (NOT_FOUND, "SESSION_NOT_FOUND"),
    "offset_out_of_range": (OUT_OF_RANGE, ""),
    "unauthenticated": (UNAUTHENTICATED, ""),
    "access_denied": (PERMISSION_DENIED, ""),
}


def failure_of(error: AntiphonError) -> CallFailedError:
    """How a call ends that a node answered with an error."""
    code, reason = _CODES.get(error.code, (UNKNOWN, ""))
    return CallFailedError(code, error.message, reason)


def trailers_of(failure: CallFailedError) -> bytes:
    """The block of trailers that says it."""
    out = literal(b"grpc-status", str(failure.code).encode())
    out += literal(b"grpc-message", _percent(failure.message))
    if failure.reason:
        info = ErrorInfo(reason=failure.reason, domain=DOMAIN)
        packed = AnyMessage(type_url=_TYPE, value=bytes(encode(info)))
        status = RpcStatus(code=failure.code, message=failure.message[:TEXT_BYTES_MAX], details=[packed])
        out += literal(b"grpc-status-details-bin", _base64(bytes(encode(status))))
    return out


def _percent(text: str) -> bytes:
    """A message as gRPC writes it: what is not plain ASCII as %XX."""
    out = bytearray()
    for byte in text.encode("utf-8", "replace"):
        out += bytes((byte,)) if byte in _PLAIN else b"%%%02X" % byte
        if len(out) >= TEXT_BYTES_MAX:
            break
    return bytes(out)


def _base64(data: bytes) -> bytes:
    """Without padding, as gRPC's binary metadata are."""
    return base64.b64encode(data).rstrip(b"=")
