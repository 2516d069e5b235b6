"""`db.transaction()`: transactions of a client whose transactional ids it makes itself.

A client has as many producers of its own as it has transactions at the same time, and uses them again, so it leaves few ids
behind; coordinators forget those after an hour (`OWN_ID_EXPIRES_MS`). An id is asked for only where a transaction needs its
coordinator. One that changes rows of one shard of a table, and nothing else, is one request, as `table.transaction()` is.
Nobody else knows the ids, so a fence says that the coordinator gave up the transaction, or that it has forgotten the id: the
producer begins anew with the next one.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from antiphon import system
from antiphon.client.cluster import Cluster
from antiphon.client.coordinated import Coordinators
from antiphon.client.one_write import OneWrite
from antiphon.client.producer import AsyncProducer, AsyncTransaction
from antiphon.client.producer_identity import Identity
from antiphon.client.table import AsyncTable
from antiphon.client.topic import AsyncTopic
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    InvalidTxnStateError,
    LimitReachedError,
)
from antiphon.model.transactions import OWN_IDS

AT_ONCE_MAX: Final = 64  # transactions of one client at the same time


class OwnProducer(AsyncProducer):
    """A producer whose id only its client knows."""

    def in_doubt(self, left_open: Identity | None = None) -> None:
        """The next one asks for the id as somebody else would, which aborts what is open."""
        del left_open
        self._identity = None

    async def joining_refused(self, error: AntiphonError) -> Identity:
        """The coordinator has forgotten the id, or has raised its epoch by itself: begin anew. Nothing is sent yet."""
        del error
        self._identity = None
        return await self.identity()

    def set_times(self, timeout_s: float, transaction_timeout_s: float) -> None:
        """For the next transaction."""
        self.timeout_s = timeout_s
        if transaction_timeout_s != self.transaction_timeout_s:
            self.transaction_timeout_s = transaction_timeout_s
            self.in_doubt()  # the coordinator hears of it with the new epoch


class OwnProducers:
    """A client's producers of its own: those that are free, and how many are lent."""

    def __init__(
        self,
        cluster: Cluster,
        coordinators: Coordinators,
        topic: Callable[[str], AsyncTopic],
        table: Callable[[str], AsyncTable],
    ) -> None:
        self._places = cluster, coordinators, topic, table
        self._free: list[OwnProducer] = []
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._ids = ""
        self._made = 0

    async def lend(self, timeout_s: float, transaction_timeout_s: float) -> OwnProducer:
        """One that nobody uses. Raises LimitReachedError when there is none in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._room.acquire()
        except TimeoutError:
            raise LimitReachedError(
                f"this client has {AT_ONCE_MAX} transactions open, and none ended within {timeout_s:g} s: end them sooner, "
                "or connect once more",
                limit=AT_ONCE_MAX,
            ) from None
        if not self._free:
            self._ids = self._ids or f"{OWN_IDS}{system.new_uuid().hex}-"
            self._made += 1
            return OwnProducer(*self._places, f"{self._ids}{self._made}", timeout_s, transaction_timeout_s)
        producer = self._free.pop()
        producer.set_times(timeout_s, transaction_timeout_s)
        return producer

    def give_back(self, producer: OwnProducer, *, again: bool) -> None:
        """It is free; `again` unless its last transaction may still be asked for."""
        self._room.release()
        if again:
            self._free.append(producer)


class AsyncOwnTransaction(AsyncTransaction):
    """What `async with db.transaction() as t` gives: see `AsyncTransaction`, whose calls it has."""

    _write: OneWrite | None = None  # whose outcome is not known

    async def commit(self) -> None:
        """Commit; returns when that is decided for good. See `AsyncTransaction.commit`.

        What changes rows of one shard only is a single request. If its outcome is not known (TimedOutError with
        `earlier_try` in its details) it cannot be asked for, and another call raises the same.
        """
        if self._write is not None and self._write.unknown is not None:
            raise self._write.unknown
        write = None if self._broken or self._parts or self._may_be_known else self._as_one_write()
        if self._state != "open" or write is None or not await write.is_possible():
            await super().commit()
            return
        self._state, self._write = "committing", write
        try:
            self._versions = dict(enumerate(await write.send(self._limit_s)))
        except InvalidRequestError:
            if await write.is_possible():
                self._state = "aborted"
                raise
            self._state = "open"  # the shard was split: nothing was carried out, and it takes several now
            await super().commit()
        except BaseException:
            self._state = "aborted" if write.unknown is None else self._state
            raise
        else:
            self._state = "committed"

    @property
    def is_done_with_its_id(self) -> bool:
        """May another transaction have the id? Not while the coordinator can still be asked what it decided."""
        return not self._may_be_known or not self.is_open


class AsyncTransactionBlock:
    """`async with db.transaction() as t:` commits at its end, or aborts where that is an error."""

    def __init__(self, producers: OwnProducers, timeout_s: float, transaction_timeout_s: float) -> None:
        self._producers = producers
        self._times = timeout_s, transaction_timeout_s
        self._entered = False
        self._lent: tuple[OwnProducer, AsyncOwnTransaction] | None = None

    async def __aenter__(self) -> AsyncOwnTransaction:
        if self._entered:
            raise InvalidTxnStateError(
                "this transaction was begun already: db.transaction() makes another one"
            )
        self._entered = True
        producer = await self._producers.lend(*self._times)
        transaction = AsyncOwnTransaction(producer)
        self._lent = producer, transaction
        return transaction

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lent is None:
            return
        (producer, transaction), self._lent = self._lent, None
        try:
            await transaction.__aexit__(kind, error, trace)
        finally:
            self._producers.give_back(producer, again=transaction.is_done_with_its_id)
