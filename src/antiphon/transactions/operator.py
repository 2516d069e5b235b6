"""What operators ask of the coordinator of transactions, over the native protocol: what there is, and to abort."""

from typing import Any

from antiphon.errors import InternalError, InvalidTxnStateError
from antiphon.model.requests import Done
from antiphon.model.transactions import (
    AbortTransaction,
    ListTransactions,
    TransactionsReply,
    TransactionState,
)
from antiphon.transactions.coordinator import TransactionCoordinator


async def answer_operator(coordinator: TransactionCoordinator, asked: Any) -> TransactionsReply | Done:
    """The answer to one of the two. Raises NotLeaderError, InvalidTxnStateError, and what the table's calls raise."""
    if isinstance(asked, ListTransactions):
        return await _listed(coordinator, asked)
    if not isinstance(asked, AbortTransaction):
        raise InternalError(f"this node does not answer a {type(asked).__name__} here")
    refused = await coordinator.abort(asked.transactional_id)
    if refused is not None:
        raise InvalidTxnStateError(
            f"transactional id {asked.transactional_id!r} has no open transaction to abort",
            transactional_id=asked.transactional_id,
        )
    return Done()


async def _listed(coordinator: TransactionCoordinator, asked: ListTransactions) -> TransactionsReply:
    rows = [(name, row) for name, row in await coordinator.listed() if name > asked.after]
    told = tuple(
        TransactionState(
            name,
            str(row.state),
            row.producer_id,
            row.epoch,
            row.number,
            row.timeout_ms,
            row.began_ms,
            row.shards,
            row.groups,
        )
        for name, row in rows[: asked.limit]
    )
    return TransactionsReply(told, more=len(rows) > asked.limit)
