"""What operators ask of the coordinator of Kafka's transactions, over the native protocol."""

from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.model.body import Body


class ListTransactions(Body, frozen=True, array_like=True, tag=True):
    """Ask one node for the transactional ids of Kafka's clients that it coordinates: at most `limit`, from `after` on."""

    after: str = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class TransactionState(msgspec.Struct, frozen=True, array_like=True):
    """A transactional id. `state` is Kafka's word; `number` is that of its last transaction; `began_ms` -1: none is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    number: int
    timeout_ms: int
    began_ms: int
    shards: tuple[int, ...]
    groups: tuple[str, ...]


class TransactionsReply(Body, frozen=True, array_like=True, tag=True):
    """By transactional id; `more`: ask again, after the last one."""

    rows: tuple[TransactionState, ...]
    more: bool = False


class AbortTransaction(Body, frozen=True, array_like=True, tag=True):
    """Have the asked node, which coordinates the id, abort its open transaction and fence its producer.

    Refused with `not_leader` by another node, with `invalid_txn_state` where no transaction is open.
    """

    transactional_id: str


TransactionRequest = ListTransactions | AbortTransaction
