"""The shards' part of transactions, as the coordinator of transactions and the listeners ask for it."""

from collections.abc import Iterator
from typing import Protocol

from antiphon.gateway.answers import Admit, Done
from antiphon.model.cluster import EndTransaction
from antiphon.model.table_transactions import CheckReads, PrepareWrite, ReadKeys
from antiphon.records.known_producer import KnownProducer


class ShardTransactions(Protocol):
    """Transactions in shards, whichever node leads them."""

    def has_open(self, shard_id: int, producer_id: int, epoch: int) -> bool:
        """Has this producer a transaction of this epoch under way in the shard, as this node's replica knows?

        Where not, its coordinator is to be asked before a part of it is appended. False where there is no replica.
        """

    def check_taken(self, shard_id: int, *, tables: bool = False) -> None:
        """Raise WrongKindError, with the reason, for a shard that takes no parts of transactions; UnknownShardError.

        `tables`: is it one whose parts are prepared, too? Batches of clients are parts in topics only.
        """

    def prepare(self, request: PrepareWrite, number: int | None, done: Done) -> None:
        """Prepare a transaction's changes of a table's shard that this node leads; `done` gets TableWritten or an error.

        `number`: of the transaction, where its coordinator was asked. Errors that are known at once are raised.
        """

    def read(self, request: ReadKeys | CheckReads, done: Done, admit: Admit) -> None:
        """Read of a table's shard for a transaction; errors that are known at once are raised. `admit` says when."""

    def producers(self, shard_id: int) -> Iterator[KnownProducer]:
        """What a shard that this node leads knows of each producer: some 50,000 at most, and each job.

        Whoever asks may let others run between two of them. Raises UnknownShardError, NotLeaderError, NotReadyError.
        """

    async def end(self, request: EndTransaction) -> int:
        """Append the marker that ends a producer's transaction in a shard; returns its offset once it is committed.

        On any node: where another one leads the shard, that is asked, once. If the producer's last marker has this number
        or a higher one, nothing is appended, and the offset is that marker's. Raises UnknownShardError for a shard that
        went with its topic, WrongKindError for one that takes no transactions, and NotLeaderError, NotReadyError,
        UnavailableError, OverloadedError, DiskFullError, TimedOutError where it is to be asked for again.
        """
