"""What stops a replica, as an error that says so."""

from antiphon.errors import AntiphonError, InternalError, ResourceExhaustedError, StorageFailedError
from antiphon.log.disk import BROKEN_DISK, PASSING


def as_failure(error: Exception, what: str) -> AntiphonError:
    """Why a replica stopped or could not be opened, for status pages and for who may open it again."""
    if isinstance(error, AntiphonError):
        return error
    if isinstance(error, OSError) and error.errno in PASSING:
        return ResourceExhaustedError(f"{what}: {error}")
    if isinstance(error, OSError) and error.errno in BROKEN_DISK:
        return StorageFailedError(f"{what}: {error}")
    return InternalError(f"{what}: {error}")
