"""Blocks of producer ids, which nodes ask for and hand out."""

from typing import Final

from antiphon.coordination.cluster_records import PRODUCER_COUNTER
from antiphon.coordination.ledger import Ledger
from antiphon.errors import InvalidRequestError, UnavailableError
from antiphon.model.cluster import ProducerIdBlock

PER_BLOCK_MAX: Final = 100_000
IDS_MAX: Final = 1 << 61  # ids above are other kinds of producers'


def reserve(ledger: Ledger, token: int, count: int) -> None:
    """Answer with a block of so many, once it is recorded that they are taken."""
    if not 1 <= count <= PER_BLOCK_MAX:
        raise InvalidRequestError(f"a block has 1 to {PER_BLOCK_MAX:,} producer ids, not {count:,}")
    if ledger.model.counters.get(PRODUCER_COUNTER, 1) + count > IDS_MAX:
        raise UnavailableError("all producer ids are used up")
    first = ledger.take(PRODUCER_COUNTER, count)
    ledger.answer_when_committed(token, ProducerIdBlock(first, count))
