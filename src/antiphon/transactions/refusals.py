"""What the coordinator of transactions refuses, as errors of the native protocol."""

from typing import Final

from antiphon.coordination.transactions import Refused
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    InvalidTxnStateError,
    LimitReachedError,
    NotReadyError,
    ProducerFencedError,
)

_ERRORS: Final[dict[Refused, type[AntiphonError]]] = {
    Refused.CONCURRENT: NotReadyError,
    Refused.FENCED: ProducerFencedError,
    Refused.UNKNOWN_PRODUCER: InvalidTxnStateError,
    Refused.STATE: InvalidTxnStateError,
    Refused.TIMEOUT: InvalidRequestError,
    Refused.NOT_PART: InvalidTxnStateError,
    Refused.TOO_MANY: LimitReachedError,
}


def error_of(refused: Refused, name: str) -> AntiphonError:
    """The error to raise, of transactional id `name`."""
    return _ERRORS[refused](f"transactional id {name!r}: {refused.value}", transactional_id=name)
