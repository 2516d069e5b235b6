"""The errors that callers meet: each says what was asked, what was found and what to do.

One class per cause, one table (`ERRORS`) from the code that travels on the wire to the class. The listeners keep their own
tables from these classes to Kafka error codes, gRPC statuses, HTTP statuses and exit codes.
"""

from typing import Any, ClassVar, Final, Self

import msgspec

UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises for bytes that are something else: also for a text that is not UTF-8, and for nesting without end."""


class AntiphonError(Exception):
    """Base of everything Antiphon raises on purpose.

    Attributes:
        code: short stable name; travels on the wire.
        retriable: the same request may succeed later without a change by the caller, and asking again does no harm: false
            where the outcome of a write is unknown.
        details: the facts (plain ints, strings, bools, None) that the message was made of; travel on the wire.
    """

    code: ClassVar[str] = "error"
    retriable: bool = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, Any] = details
        if self.outcome_unknown:
            self.retriable = False

    def __str__(self) -> str:
        return self.message  # KeyError would quote it

    @property
    def outcome_unknown(self) -> bool:
        """May the write have been carried out all the same? False for reads, and for what was certainly not sent."""
        return bool(self.details.get("sent") or self.details.get("earlier_try"))

    def with_unknown_outcome(self) -> Self:
        """The same, of a write of which an earlier try may have been carried out."""
        self.details["earlier_try"] = True
        self.retriable = False
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (from_wire, (self.code, self.message, self.details))


class InvalidRequestError(AntiphonError):
    """The request can never succeed as it stands: a name, number or combination that is not allowed."""

    code = "invalid_request"


class UnknownTopicError(AntiphonError, LookupError):
    """No topic or table of that name."""

    code = "unknown_topic"


class UnknownShardError(AntiphonError, LookupError):
    """The topic exists, the shard number does not."""

    code = "unknown_shard"


class WrongShardError(AntiphonError):
    """The shard does not hold these keys (any more), and nothing of the request was carried out: ask the shard that does.

    Unlike `NotReadyError` this is final for the shard that was asked: it will never carry out this request.
    """

    code = "wrong_shard"


class TopicExistsError(AntiphonError):
    """A topic or table of that name is there already."""

    code = "topic_exists"


class LimitReachedError(AntiphonError):
    """There would be more topics, partitions or replicas than the operator allows. `details`: limit (the setting)."""

    code = "limit_reached"


class WrongKindError(AntiphonError):
    """A table was asked for and the name is a plain topic's, or the other way round."""

    code = "wrong_kind"


class NotLeaderError(AntiphonError):
    """This node does not lead the shard (now). `details["leader"]` is a node id, or None while there is none."""

    code = "not_leader"
    retriable = True


class NotReadyError(AntiphonError):
    """The node leads or coordinates but cannot serve yet (its term's first entry is not committed)."""

    code = "not_ready"
    retriable = True


class KeyLockedError(NotReadyError):
    """The key belongs to a transaction that is about to end: nothing was carried out, ask again.

    A transaction that meets it at its commit writes nothing: it lost against another one, and is to be begun again.
    """

    code = "key_locked"
    retriable = True


class StaleTermError(AntiphonError):
    """The request carries an older term than this replica has promised. `details`: asked, current."""

    code = "stale_term"


class UnavailableError(AntiphonError):
    """No majority, no coordinator or no connection right now."""

    code = "unavailable"
    retriable = True


class TimedOutError(AntiphonError, TimeoutError):
    """No answer in time. `outcome_unknown` says of a write whether it may have been carried out all the same; if so, it is
    not `retriable`. An append can be tried again without being written twice: `topic.retry(error)`.
    """

    code = "timed_out"
    retriable = True
    attempt: Any = None
    """The append that `topic.retry` tries again."""
    unsettled: Any = None
    """The part of it that this error is about."""


class OverloadedError(AntiphonError):
    """A bounded queue is full; slow down and retry."""

    code = "overloaded"
    retriable = True


class OffsetMismatchError(AntiphonError):
    """A conditional append expected another end of the log (KIP-27). `details`: expected, actual."""

    code = "offset_mismatch"

    @property
    def expected(self) -> int:
        """The offset that the caller expected to write at."""
        return int(self.details["expected"])

    @property
    def actual(self) -> int:
        """The shard's next offset, committed, at the time of the refusal."""
        return int(self.details["actual"])


class OffsetOutOfRangeError(AntiphonError):
    """A read outside [log start, end]. `details`: asked, start, end (exclusive); of a table's watch also shard."""

    code = "offset_out_of_range"


class DataLossError(AntiphonError):
    """Records that a read was to give are gone: trimmed by retention, or their topic was deleted and created again."""

    code = "data_loss"


class CorruptBatchError(AntiphonError):
    """Bytes that are not a whole, valid RecordBatch v2."""

    code = "corrupt_batch"


class InvalidRecordError(CorruptBatchError):
    """A batch that came whole, and whose records no reader could read, or the topic does not take.

    `details`: record (place in the batch), reason, and records (places, with blanks between them) where more than one are
    known to be wrong for this reason.
    """

    code = "invalid_record"

    @property
    def places(self) -> list[int]:
        """Places in the batch of the records that are wrong; empty where it is none that is."""
        told = self.details.get("records", self.details.get("record", ""))
        return [int(place) for place in str(told).split()]


class InvalidTimestampError(CorruptBatchError):
    """A batch whose timestamps are not of the type that producers set."""

    code = "invalid_timestamp"


class UnsupportedCompressionError(CorruptBatchError):
    """A batch compressed in a way that is not known. `details`: codec."""

    code = "unsupported_compression"


class DecompressedTooLargeError(CorruptBatchError):
    """A batch whose records unpack to more than a topic's `max.decompressed.bytes`. `details`: limit_bytes."""

    code = "decompressed_too_large"


class BatchTooLargeError(AntiphonError):
    """A batch above the topic's `max.message.bytes`. `details`: size_bytes, limit_bytes."""

    code = "batch_too_large"


class FrameTooLargeError(AntiphonError):
    """A frame above what a connection accepts; the connection is closed. `details`: size_bytes, limit_bytes."""

    code = "frame_too_large"


class ProtocolViolationError(AntiphonError):
    """The peer sent bytes that the protocol does not allow; the connection is closed."""

    code = "protocol_violation"


class OutOfOrderSequenceError(AntiphonError):
    """A producer skipped or repeated a sequence number out of order. `details`: expected, actual."""

    code = "out_of_order_sequence"


class ProducerFencedError(AntiphonError):
    """A newer epoch of the same producer is known. `details`: epoch, current."""

    code = "producer_fenced"


class InvalidTxnStateError(AntiphonError):
    """What was asked does not fit the state of the producer's transaction."""

    code = "invalid_txn_state"


class ReplayConflictError(AntiphonError):
    """A replayed batch has the position of an earlier one but other content."""

    code = "replay_conflict"


class AlreadyAppliedError(AntiphonError):
    """A repeated table write was applied once already; its answer is no longer in the log. `details`: offset, log_start."""

    code = "already_applied"


class VersionMismatchError(AntiphonError):
    """A conditional put or delete expected another version. `details`: expected, actual (-1: absent)."""

    code = "version_mismatch"

    @property
    def expected(self) -> int:
        """The version id that the caller expected; -1: that the key is absent."""
        return int(self.details["expected"])

    @property
    def actual(self) -> int:
        """The version id of the key at the time of the refusal; -1: it is absent."""
        return int(self.details["actual"])


class KeyNotFoundError(AntiphonError, KeyError):
    """The key is not in the table."""

    code = "key_not_found"


class SessionNotFoundError(AntiphonError, LookupError):
    """The session expired, was closed or never was."""

    code = "session_not_found"


class NotHeldError(AntiphonError):
    """The shard is not held for a backup any more: the lease is over, or another node leads. The cut is taken again."""

    code = "not_held"


class BackupError(AntiphonError):
    """A backup that is not there, not whole, or not what was asked for. Nothing was changed."""

    code = "backup"


class DiskFullError(AntiphonError):
    """The disk of a node has no room: writes are refused, reads go on, writes resume when there is room."""

    code = "disk_full"
    retriable = True


class StorageFailedError(AntiphonError):
    """A write or fsync failed; the replica stopped rather than trust its disk."""

    code = "storage_failed"


class DamagedStoreError(StorageFailedError):
    """A table's store is damaged on the disk: the replica stopped. `details`: path, first_key, last_key (hex, or None)."""

    code = "damaged_store"


class ResourceExhaustedError(StorageFailedError):
    """A replica found no room on the disk, or no file descriptor, where it could not wait. It is opened again later."""

    code = "resource_exhausted"


class DamagedLogError(AntiphonError):
    """A log has damage in its middle: it must not vote or serve, and is refetched from the others."""

    code = "damaged_log"


class ForeignDirectoryError(AntiphonError):
    """The data directory belongs to another cluster or node."""

    code = "foreign_directory"


class DirectoryInUseError(AntiphonError):
    """Another process has the data directory open."""

    code = "directory_in_use"


class UnauthenticatedError(AntiphonError):
    """Who asks has not proved who they are, or could not. It says nothing of what was wrong with the proof."""

    code = "unauthenticated"


class UnprovenNodeError(AntiphonError):
    """Somebody says that it is a node of the cluster, and does not prove it."""

    code = "unproven_node"


class AccessDeniedError(AntiphonError):
    """No access control list allows the principal this. `details`: principal, operation, resource, name."""

    code = "access_denied"


class NewerFormatError(AntiphonError):
    """The data on disk was written by a newer version than this one."""

    code = "newer_format"


class PortInUseError(AntiphonError):
    """A port that was asked for is taken."""

    code = "port_in_use"


class UnreachableError(AntiphonError, ConnectionError):
    """No connection to any of the given addresses."""

    code = "unreachable"
    retriable = True


class BadRecordError(AntiphonError):
    """A record or row whose value is not what its schema or codec says. `details`: topic, reason; shard and offset where
    they are known; of a codec also key and type.
    """

    code = "bad_record"


class TargetConflictError(AntiphonError):
    """A lake table was written by someone else meanwhile. `details`: name, expected, actual."""

    code = "target_conflict"


class ArchiveError(AntiphonError):
    """A file of the archive is missing, damaged or not the one that the catalog describes; its name is in the message."""

    code = "archive"


class VerificationError(AntiphonError):
    """What a job wrote was read back and is not what it had read. `details`: expected_rows, found_rows."""

    code = "verification_failed"


class InternalError(AntiphonError):
    """A bug on the node; its log has the traceback."""

    code = "internal"


def _all_errors() -> dict[str, type[AntiphonError]]:
    found: dict[str, type[AntiphonError]] = {}
    todo = [AntiphonError]
    while todo:
        cls = todo.pop()
        found[cls.code] = cls
        todo += cls.__subclasses__()
    return found


ERRORS: dict[str, type[AntiphonError]] = _all_errors()


def from_wire(code: str, message: str, details: dict[str, Any]) -> AntiphonError:
    """Rebuild an error that a node sent; an unknown code (a newer node's) becomes a plain `AntiphonError`."""
    return ERRORS.get(code, AntiphonError)(message, **details)
