"""What stops a replica, as an error that says so; and what goes wrong with one request, which stops nothing."""

import structlog

from antiphon.errors import AntiphonError, InternalError, ResourceExhaustedError, StorageFailedError
from antiphon.log.disk import BROKEN_DISK, PASSING, not_permitted


def as_failure(error: Exception, what: str) -> AntiphonError:
    """Why a replica stopped or could not be opened, for status pages and for who may open it again."""
    if isinstance(error, AntiphonError):
        return error
    if isinstance(error, OSError) and error.errno in PASSING:
        return ResourceExhaustedError(f"{what}: {error}")
    if isinstance(error, PermissionError):
        return StorageFailedError(f"{what}: {not_permitted(error)}")
    if isinstance(error, OSError) and error.errno in BROKEN_DISK:
        return StorageFailedError(f"{what}: {error}")
    return InternalError(f"{what}: {error}")


def report_request(shard_id: int, error: Exception) -> None:
    """Log what went wrong with one client's request."""
    structlog.get_logger().error("request_failed", shard=shard_id, error=str(error), exc_info=error)
