"""The messages of Oxia's client protocol: `io.oxia.proto.v1`, and `io.streamnative.oxia.proto` with the same bytes."""

from typing import Final

from antiphon.gateway.protobuf import Field, Kind, Message

_INT, _UINT, _BOOL, _TEXT, _KEY, _BYTES = Kind.INT, Kind.UINT, Kind.BOOL, Kind.TEXT, Kind.KEY, Kind.BYTES


def _one(number: int, name: str, kind: int) -> Field:
    return Field(number, name, kind)


def _maybe(number: int, name: str, kind: int) -> Field:
    return Field(number, name, kind, optional=True)


def _message(number: int, name: str, of: type[Message], *, many: bool = False) -> Field:
    return Field(number, name, Kind.MESSAGE, of, many)


class Status:
    """Outcomes of an operation."""

    OK: Final = 0
    KEY_NOT_FOUND: Final = 1
    UNEXPECTED_VERSION_ID: Final = 2
    SESSION_DOES_NOT_EXIST: Final = 3


class NotificationType:
    """What happened to a key."""

    CREATED: Final = 0
    MODIFIED: Final = 1
    DELETED: Final = 2
    RANGE_DELETED: Final = 3


XXHASH3: Final = 1  # how keys find their shard


class Int32HashRange(Message):
    """Hashes from the first to the second, both included."""

    FIELDS = (_one(1, "first", Kind.FIXED32), _one(2, "last", Kind.FIXED32))


class ShardAssignment(Message):
    """A shard, and where it is asked."""

    FIELDS = (_one(1, "shard", _INT), _one(2, "leader", _TEXT), _message(3, "hashes", Int32HashRange))


class NamespaceShardsAssignment(Message):
    """The shards of a namespace."""

    FIELDS = (_message(1, "assignments", ShardAssignment, many=True), _one(2, "router", _INT))


class NamespaceEntry(Message):
    """One entry of the map of namespaces."""

    FIELDS = (_one(1, "key", _TEXT), _message(2, "value", NamespaceShardsAssignment))


class ShardAssignmentsRequest(Message):
    """Ask for the shards of a namespace, now and whenever they change."""

    FIELDS = (_one(1, "namespace", _TEXT),)


class ShardAssignments(Message):
    """The shards of namespaces."""

    FIELDS = (_message(1, "namespaces", NamespaceEntry, many=True),)


class SecondaryIndex(Message):
    """An entry of an index that leads to the record."""

    FIELDS = (_one(1, "index_name", _TEXT), _one(2, "secondary_key", _TEXT))


class PutRequest(Message):
    """Set a key."""

    FIELDS = (
        _one(1, "key", _KEY),
        _one(2, "value", _BYTES),
        _maybe(3, "expected_version_id", _INT),
        _maybe(4, "session_id", _INT),
        _maybe(5, "client_identity", _TEXT),
        _maybe(6, "partition_key", _KEY),
        Field(7, "sequence_key_delta", _UINT, many=True),
        _message(8, "secondary_indexes", SecondaryIndex, many=True),
        _maybe(9, "override_version_id", _INT),
        _maybe(10, "override_modifications_count", _INT),
    )


class DeleteRequest(Message):
    """Remove a key."""

    FIELDS = (_one(1, "key", _KEY), _maybe(2, "expected_version_id", _INT), _maybe(3, "partition_key", _KEY))


class DeleteRangeRequest(Message):
    """Remove all keys from the first up to the second, which is not included."""

    FIELDS = (_one(1, "start_inclusive", _KEY), _one(2, "end_exclusive", _KEY))


class WriteRequest(Message):
    """Operations on one shard: puts, then deletes, then ranges."""

    FIELDS = (
        _maybe(1, "shard", _INT),
        _message(2, "puts", PutRequest, many=True),
        _message(3, "deletes", DeleteRequest, many=True),
        _message(4, "delete_ranges", DeleteRangeRequest, many=True),
    )


class Version(Message):
    """A record's version."""

    FIELDS = (
        _one(1, "version_id", _INT),
        _one(2, "modifications_count", _INT),
        _one(3, "created_timestamp", Kind.FIXED64),
        _one(4, "modified_timestamp", Kind.FIXED64),
        _maybe(5, "session_id", _INT),
        _maybe(6, "client_identity", _TEXT),
    )


class PutResponse(Message):
    """What became of a put."""

    FIELDS = (_one(1, "status", _INT), _message(2, "version", Version), _maybe(3, "key", _KEY))


class DeleteResponse(Message):
    """What became of a delete."""

    FIELDS = (_one(1, "status", _INT),)


class DeleteRangeResponse(Message):
    """What became of a delete of a range."""

    FIELDS = (_one(1, "status", _INT),)


class WriteResponse(Message):
    """Outcomes in the order of the request."""

    FIELDS = (
        _message(1, "puts", PutResponse, many=True),
        _message(2, "deletes", DeleteResponse, many=True),
        _message(3, "delete_ranges", DeleteRangeResponse, many=True),
    )


class GetRequest(Message):
    """Read a key, or one next to it."""

    FIELDS = (
        _one(1, "key", _KEY),
        _one(2, "include_value", _BOOL),
        _one(3, "comparison_type", _INT),
        _maybe(4, "secondary_index_name", _TEXT),
    )


class ReadRequest(Message):
    """Read keys of one shard."""

    FIELDS = (_maybe(1, "shard", _INT), _message(2, "gets", GetRequest, many=True))


class GetResponse(Message):
    """A record."""

    FIELDS = (
        _one(1, "status", _INT),
        _message(2, "version", Version),
        _maybe(3, "value", _BYTES),
        _maybe(4, "key", _KEY),
        _maybe(5, "secondary_index_key", _TEXT),
    )


class ReadResponse(Message):
    """Records in the order of the request, or some of them."""

    FIELDS = (_message(1, "gets", GetResponse, many=True),)


class RangeRequest(Message):
    """List the keys of a range, or scan its records: ListRequest and RangeScanRequest."""

    FIELDS = (
        _maybe(1, "shard", _INT),
        _one(2, "start_inclusive", _KEY),
        _one(3, "end_exclusive", _KEY),
        _maybe(4, "secondary_index_name", _TEXT),
        _one(5, "include_internal_keys", _BOOL),
    )


class ListResponse(Message):
    """Keys."""

    FIELDS = (Field(1, "keys", _KEY, many=True),)


class RangeScanResponse(Message):
    """Records."""

    FIELDS = (_message(1, "records", GetResponse, many=True),)


class GetSequenceUpdatesRequest(Message):
    """Ask for the highest key of a sequence, now and whenever there is a higher one."""

    FIELDS = (_one(1, "shard", _INT), _one(2, "key", _KEY))


class GetSequenceUpdatesResponse(Message):
    """The highest key."""

    FIELDS = (_one(1, "highest_sequence_key", _KEY),)


class CreateSessionRequest(Message):
    """Open a session in a shard."""

    FIELDS = (_one(1, "shard", _INT), _one(2, "session_timeout_ms", _UINT), _one(3, "client_identity", _TEXT))


class CreateSessionResponse(Message):
    """Its id."""

    FIELDS = (_one(1, "session_id", _INT),)


class SessionRequest(Message):
    """Keep a session, or close it: SessionHeartbeat and CloseSessionRequest."""

    FIELDS = (_one(1, "shard", _INT), _one(2, "session_id", _INT))


class Empty(Message):
    """KeepAliveResponse and CloseSessionResponse."""

    FIELDS = ()


class NotificationsRequest(Message):
    """Ask for what happens to the keys of a shard, from now on or from behind an offset."""

    FIELDS = (_one(1, "shard", _INT), _maybe(2, "start_offset_exclusive", _INT))


class Notification(Message):
    """What happened to a key."""

    FIELDS = (_one(1, "type", _INT), _maybe(2, "version_id", _INT), _maybe(3, "key_range_last", _KEY))


class NotificationEntry(Message):
    """One key of a batch."""

    FIELDS = (_maybe(1, "key", _KEY), _message(2, "value", Notification))


class NotificationBatch(Message):
    """What happened up to an offset, which is included."""

    FIELDS = (
        _one(1, "shard", _INT),
        _one(2, "offset", _INT),
        _one(3, "timestamp", Kind.FIXED64),
        _message(4, "notifications", NotificationEntry, many=True),
    )


class HealthCheckRequest(Message):
    """Of `grpc.health.v1`."""

    FIELDS = (_one(1, "service", _TEXT),)


class HealthCheckResponse(Message):
    """1: serving, 2: not serving, 3: nobody knows the service."""

    FIELDS = (_one(1, "status", _INT),)


class ErrorMetadata(Message):
    """One entry of `ErrorInfo.metadata`."""

    FIELDS = (_one(1, "key", _TEXT), _one(2, "value", _TEXT))


class ErrorInfo(Message):
    """`google.rpc.ErrorInfo`: the reason that Oxia's clients go by."""

    FIELDS = (
        _one(1, "reason", _TEXT),
        _one(2, "domain", _TEXT),
        _message(3, "metadata", ErrorMetadata, many=True),
    )


class AnyMessage(Message):
    """`google.protobuf.Any`."""

    FIELDS = (_one(1, "type_url", _TEXT), _one(2, "value", _BYTES))


class RpcStatus(Message):
    """`google.rpc.Status`, as it is in `grpc-status-details-bin`."""

    FIELDS = (_one(1, "code", _INT), _one(2, "message", _TEXT), _message(3, "details", AnyMessage, many=True))
