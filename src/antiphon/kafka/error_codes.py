"""Kafka's error codes, and the one table from our errors to them."""

from typing import Final

from antiphon import errors

NONE: Final = 0
UNKNOWN_SERVER_ERROR: Final = -1
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
LEADER_NOT_AVAILABLE: Final = 5
NOT_LEADER_OR_FOLLOWER: Final = 6
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
NOT_COORDINATOR: Final = 16
INVALID_TOPIC_EXCEPTION: Final = 17
NOT_ENOUGH_REPLICAS: Final = 19
INVALID_REQUIRED_ACKS: Final = 21
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICATION_FACTOR: Final = 38
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
INVALID_REQUEST: Final = 42
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_TXN_STATE: Final = 48
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
CONCURRENT_TRANSACTIONS: Final = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
OPERATION_NOT_ATTEMPTED: Final = 55
KAFKA_STORAGE_ERROR: Final = 56
SASL_AUTHENTICATION_FAILED: Final = 58
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
FENCED_LEADER_EPOCH: Final = 74
UNKNOWN_LEADER_EPOCH: Final = 75
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
OFFSET_NOT_AVAILABLE: Final = 78
MEMBER_ID_REQUIRED: Final = 79
PREFERRED_LEADER_NOT_AVAILABLE: Final = 80
GROUP_MAX_SIZE_REACHED: Final = 81
FENCED_INSTANCE_ID: Final = 82
ELIGIBLE_LEADERS_NOT_AVAILABLE: Final = 83
ELECTION_NOT_NEEDED: Final = 84
NO_REASSIGNMENT_IN_PROGRESS: Final = 85
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
INVALID_RECORD: Final = 87
UNSTABLE_OFFSET_COMMIT: Final = 88
THROTTLING_QUOTA_EXCEEDED: Final = 89
PRODUCER_FENCED: Final = 90
RESOURCE_NOT_FOUND: Final = 91
DUPLICATE_RESOURCE: Final = 92
UNACCEPTABLE_CREDENTIAL: Final = 93
INVALID_UPDATE_VERSION: Final = 95
UNKNOWN_TOPIC_ID: Final = 100
TRANSACTIONAL_ID_NOT_FOUND: Final = 105
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106
FENCED_MEMBER_EPOCH: Final = 110
UNRELEASED_INSTANCE_ID: Final = 111
UNSUPPORTED_ASSIGNOR: Final = 112
STALE_MEMBER_EPOCH: Final = 113
UNKNOWN_SUBSCRIPTION_ID: Final = 117
TELEMETRY_TOO_LARGE: Final = 118
TRANSACTION_ABORTABLE: Final = 120
INVALID_RECORD_STATE: Final = 121
SHARE_SESSION_NOT_FOUND: Final = 122
INVALID_SHARE_SESSION_EPOCH: Final = 123
INVALID_REGULAR_EXPRESSION: Final = 128
SHARE_SESSION_LIMIT_REACHED: Final = 133

# What a client does with a code matters more than its name: these choices make clients retry what can be retried
# (6, 7, 5, 56 and 19 are retriable everywhere) and give up on what cannot (87, 42).
CODE_OF: Final[dict[type[errors.AntiphonError], int]] = {
    errors.InvalidRequestError: INVALID_REQUEST,
    errors.UnknownTopicError: UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownShardError: UNKNOWN_TOPIC_OR_PARTITION,
    errors.TopicExistsError: TOPIC_ALREADY_EXISTS,
    errors.WrongKindError: POLICY_VIOLATION,
    errors.LimitReachedError: POLICY_VIOLATION,
    errors.NotLeaderError: NOT_LEADER_OR_FOLLOWER,
    errors.NotReadyError: LEADER_NOT_AVAILABLE,
    errors.KeyLockedError: LEADER_NOT_AVAILABLE,
    errors.StaleTermError: NOT_LEADER_OR_FOLLOWER,
    errors.UnavailableError: NOT_ENOUGH_REPLICAS,
    errors.TimedOutError: REQUEST_TIMED_OUT,
    errors.OverloadedError: REQUEST_TIMED_OUT,
    errors.OffsetMismatchError: INVALID_RECORD,
    errors.OffsetOutOfRangeError: OFFSET_OUT_OF_RANGE,
    errors.CorruptBatchError: CORRUPT_MESSAGE,
    errors.InvalidRecordError: INVALID_RECORD,
    errors.InvalidTimestampError: INVALID_TIMESTAMP,
    errors.UnsupportedCompressionError: UNSUPPORTED_COMPRESSION_TYPE,
    errors.DecompressedTooLargeError: MESSAGE_TOO_LARGE,
    errors.BatchTooLargeError: MESSAGE_TOO_LARGE,
    errors.OutOfOrderSequenceError: OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.ProducerFencedError: INVALID_PRODUCER_EPOCH,
    errors.InvalidTxnStateError: INVALID_TXN_STATE,
    errors.ReplayConflictError: INVALID_RECORD,
    errors.DiskFullError: KAFKA_STORAGE_ERROR,
    errors.StorageFailedError: KAFKA_STORAGE_ERROR,
    errors.DamagedLogError: KAFKA_STORAGE_ERROR,
    errors.DamagedStoreError: KAFKA_STORAGE_ERROR,
    errors.ArchiveError: KAFKA_STORAGE_ERROR,
    errors.UnreachableError: NOT_ENOUGH_REPLICAS,
    errors.UnauthenticatedError: SASL_AUTHENTICATION_FAILED,
    errors.AccessDeniedError: CLUSTER_AUTHORIZATION_FAILED,
}


def code_of(error: BaseException) -> int:
    """Kafka's code for an error; UNKNOWN_SERVER_ERROR for what should not reach a client."""
    return CODE_OF.get(type(error), UNKNOWN_SERVER_ERROR) if isinstance(error, errors.AntiphonError) else -1


def coordinator_code_of(error: BaseException) -> int:
    """The same for requests to a group's coordinator, whose clients know other retriable codes."""
    if isinstance(error, errors.NotLeaderError | errors.StaleTermError | errors.UnknownShardError):
        return NOT_COORDINATOR
    if isinstance(error, errors.NotReadyError):
        return COORDINATOR_LOAD_IN_PROGRESS
    if isinstance(error, errors.AntiphonError) and (
        error.retriable or isinstance(error, errors.UnknownTopicError)
    ):
        return COORDINATOR_NOT_AVAILABLE
    return code_of(error)
