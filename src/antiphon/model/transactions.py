"""Transactions over the native protocol: their steps, and what operators ask of coordinators."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from antiphon.model.body import Body

SHARDS_MAX: Final = 5_000  # of one JoinTransaction
OFFSETS_MAX: Final = 5_000  # of one request about a group
TEXT_MAX: Final = 4_096  # of what is kept with an offset
OWN_IDS: Final = "antiphon-client-"
"""How transactional ids begin that a client has made itself: nobody asks for one again once its client is gone."""

Name = Annotated[str, Meta(min_length=1, max_length=1_024)]
"""A transactional id, or a group."""


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


class FindCoordinator(Body, frozen=True, array_like=True, tag=True):
    """Ask any node for the shard whose leader coordinates a transactional id, or a group."""

    name: Name
    is_group: bool = False


class CoordinatedBy(Body, frozen=True, array_like=True, tag=True):
    """The shard whose leader is the coordinator."""

    shard_id: int


class InitProducer(Body, frozen=True, array_like=True, tag=True):
    """Get the producer of a transactional id; whoever had it is fenced, and what that left open is aborted.

    Asked of the id's coordinator, as are the next two. `producer_id`, `producer_epoch`: what the client has already.
    """

    transactional_id: Name
    timeout_ms: int
    producer_id: int = -1
    producer_epoch: int = -1


class InitializedProducer(Body, frozen=True, array_like=True, tag=True):
    """What the batches of the producer carry. In an epoch, its sequences start at 0 in every shard."""

    producer_id: int
    producer_epoch: int


class OfTransaction(Body, frozen=True, array_like=True, tag=True):
    """Base of what a producer asks in its transaction."""

    transactional_id: Name
    producer_id: int
    producer_epoch: int


class JoinTransaction(OfTransaction, frozen=True, array_like=True, tag=True):
    """The producer's transaction is to reach these shards and groups; the first such request begins it."""

    shards: Annotated[tuple[int, ...], Meta(max_length=SHARDS_MAX)] = ()
    groups: Annotated[tuple[Name, ...], Meta(max_length=SHARDS_MAX)] = ()


class FinishTransaction(OfTransaction, frozen=True, array_like=True, tag=True):
    """Commit, or abort. Answered by `Done` when that is decided for good; a repeat is answered alike."""

    commit: bool


class OffsetOf(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The next offset that a group reads in a shard of a topic, and what its reader wants to remember."""

    topic: str
    shard: int
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    metadata: Annotated[str, Meta(max_length=TEXT_MAX)] = ""


class SendOffsets(OfTransaction, frozen=True, array_like=True, tag=True):
    """Offsets that become a group's with the transaction, which the group has joined. Asked of the group's coordinator."""

    group: Name
    offsets: Annotated[tuple[OffsetOf, ...], Meta(max_length=OFFSETS_MAX)]


class GetOffsets(Body, frozen=True, array_like=True, tag=True):
    """Offsets of a group, for (topic, shard). `not_ready` while a transaction that is under way may change one of them."""

    group: Name
    positions: Annotated[tuple[tuple[str, int], ...], Meta(max_length=OFFSETS_MAX)]


class OffsetsReply(Body, frozen=True, array_like=True, tag=True):
    """In the order asked for; -1 where the group has none."""

    offsets: tuple[int, ...]


TransactionRequest = (
    ListTransactions
    | AbortTransaction
    | FindCoordinator
    | InitProducer
    | JoinTransaction
    | FinishTransaction
    | SendOffsets
    | GetOffsets
)
TransactionReply = TransactionsReply | CoordinatedBy | InitializedProducer | OffsetsReply
