"""Kafka's codes for what the coordinator of transactions refuses."""

from typing import Final

from antiphon.coordination.transactions import Refused
from antiphon.kafka import error_codes as code

_CODES: Final = {
    Refused.CONCURRENT: code.CONCURRENT_TRANSACTIONS,
    Refused.FENCED: code.PRODUCER_FENCED,
    Refused.UNKNOWN_PRODUCER: code.INVALID_PRODUCER_ID_MAPPING,
    Refused.STATE: code.INVALID_TXN_STATE,
    Refused.TIMEOUT: code.INVALID_TRANSACTION_TIMEOUT,
    Refused.NOT_PART: code.INVALID_TXN_STATE,
    Refused.TOO_MANY: code.POLICY_VIOLATION,
}


def code_of_refusal(
    refused: Refused | None, *, knows_fenced: bool = True, knows_abortable: bool = False
) -> int:
    """Kafka's code, as far as the version of the request knows it."""
    if refused is None:
        return code.NONE
    if refused is Refused.FENCED and not knows_fenced:
        return code.INVALID_PRODUCER_EPOCH
    if refused is Refused.NOT_PART and knows_abortable:
        return code.TRANSACTION_ABORTABLE
    return _CODES[refused]


def produce_code_of(refused: Refused) -> int:
    """The same for Produce and TxnOffsetCommit: what can be tried again is told as what clients try again."""
    if refused is Refused.CONCURRENT:
        return code.NOT_ENOUGH_REPLICAS
    return code_of_refusal(refused, knows_fenced=False)
