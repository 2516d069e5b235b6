"""Which kinds of batches a shard takes of clients."""

from typing import TYPE_CHECKING

from antiphon.errors import InvalidRequestError, WrongKindError
from antiphon.log.producer_state import TABLE_ID_MIN
from antiphon.records.batch import CONTROL_BIT, BatchHeader

if TYPE_CHECKING:
    from antiphon.partition.mode import ReplicationMode
    from antiphon.partition.state import PartitionState


def check_kind(header: BatchHeader, state: "PartitionState", mode: "ReplicationMode") -> None:
    """Raise InvalidRequestError, WrongKindError for a control batch, and for a part of a transaction where none is taken."""
    if header.attributes & CONTROL_BIT:
        raise InvalidRequestError("clients append no control batches")
    if not 0 <= header.producer_id < TABLE_ID_MIN:
        raise InvalidRequestError(
            f"a part of a transaction has a producer id that was given to a client, not {header.producer_id}"
        )
    reason = mode.no_transactions()
    if reason:
        raise WrongKindError(f"shard {state.shard_id} takes no transactions: {reason}")
