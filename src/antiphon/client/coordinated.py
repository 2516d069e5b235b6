"""What a client asks of the coordinators of Kafka's transactions."""

from collections.abc import Awaitable, Callable
from typing import Any

from antiphon.errors import ProtocolViolationError
from antiphon.model.transactions import ListTransactions, TransactionsReply, TransactionState

Transactions = tuple[TransactionState, ...]


async def all_transactions(
    ask: Callable[[ListTransactions], Awaitable[Any]],
) -> Transactions:
    """All that a node coordinates, page by page."""
    found: list[TransactionState] = []
    while True:
        reply = await ask(ListTransactions(found[-1].transactional_id if found else ""))
        if not isinstance(reply, TransactionsReply):
            raise ProtocolViolationError(f"asked for transactions, got {type(reply).__name__}")
        found.extend(reply.rows)
        if not reply.more or not reply.rows:
            return tuple(found)
