"""What a refusal of a group of the consumer protocol is in Kafka's codes."""

from typing import Final

from antiphon.coordination.consumer_terms import Refused
from antiphon.kafka import error_codes as code

_CODES: Final[dict[Refused, int]] = {
    Refused.UNKNOWN_GROUP: code.GROUP_ID_NOT_FOUND,
    Refused.UNKNOWN_MEMBER: code.UNKNOWN_MEMBER_ID,
    Refused.FENCED_EPOCH: code.FENCED_MEMBER_EPOCH,
    Refused.STALE_EPOCH: code.STALE_MEMBER_EPOCH,
    Refused.UNRELEASED_INSTANCE: code.UNRELEASED_INSTANCE_ID,
    Refused.FENCED_INSTANCE: code.FENCED_INSTANCE_ID,
    Refused.FULL: code.GROUP_MAX_SIZE_REACHED,
    Refused.OLD_GENERATION: code.ILLEGAL_GENERATION,
    Refused.OTHER_PROTOCOLS: code.INCONSISTENT_GROUP_PROTOCOL,
    Refused.REJOIN: code.REBALANCE_IN_PROGRESS,
}


def code_of_refused(refused: Refused | None) -> int:
    """The error code; NONE where nothing was refused."""
    return code.NONE if refused is None else _CODES[refused]
