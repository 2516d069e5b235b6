"""Election of a leader among clients: who holds the lock leads, and its token is the term."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from antiphon.client.aio import AsyncClient
from antiphon.client.session import TIMEOUT_S, AsyncSession
from antiphon.client.transaction import Transaction
from antiphon.recipes.lock import AsyncLock

T = TypeVar("T")


class Leader(NamedTuple):
    """Who leads: the candidate as it names itself, and its term."""

    candidate: str
    term: int


class AsyncLeaderElection:
    """Candidates of which one leads at a time.

    election = AsyncLeaderElection(db, "elections", "scheduler", candidate="host-7")
    await election.run(work)              # `work(term)` runs while this candidate leads, and is cancelled when it does not

    Guaranteed: what `AsyncLock` guarantees. Terms rise, and no two leaders have the same one. When the leader is killed or
    cut off, another candidate leads within the time-out of the leader's session and a moment.

    Not guaranteed: that the old leader has stopped when the next one begins. It has lost its term: have it checked
    where its work has effects (`guard`, or whoever stores the highest term that it has seen).
    """

    def __init__(
        self,
        db: AsyncClient,
        table: str,
        name: str,
        *,
        candidate: str,
        session: AsyncSession | None = None,
        session_timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`name` is the key of the leader's row. See `AsyncLock` for the session."""
        self.name = name
        self.candidate = candidate
        self._table = db.table(table)
        self._lock = AsyncLock(
            db, table, name, session=session, session_timeout_s=session_timeout_s, owner=candidate
        )

    @property
    def term(self) -> int:
        """The term in which this candidate leads; -1: it does not."""
        return self._lock.token

    @property
    def is_leader(self) -> bool:
        """Does this candidate lead, as far as it can know without asking?"""
        return self._lock.is_held

    async def campaign(self, *, timeout_s: float | None = None) -> int:
        """Wait until this candidate leads; returns its term. Raises what `AsyncLock.acquire` does."""
        return await self._lock.acquire(timeout_s=timeout_s)

    async def resign(self) -> None:
        """Lead no more, or be no candidate any more."""
        await self._lock.release()

    async def leader(self) -> Leader | None:
        """Who leads now, by a linearizable read; None: nobody."""
        row = await self._table.find(self.name)
        if row is None or row.value is None:
            return None
        return Leader(row.value.decode().rpartition(" ")[0], row.version.id)

    def guard(self, transaction: Transaction) -> None:
        """Have a transaction refused unless this candidate still leads. See `AsyncLock.guard`."""
        self._lock.guard(transaction)

    async def run(self, work: Callable[[int], Awaitable[T]]) -> T:
        """Campaign, and run `work(term)` while this candidate leads; returns what that returns, after resigning.

        When leadership is lost, `work` is cancelled, and this candidate campaigns again.
        """
        try:
            while True:
                term = await self.campaign()
                running = asyncio.ensure_future(work(term))
                session = self._lock.session
                if session is not None:
                    session.when_lost(lambda _error, mine=running: mine.cancel())  # type: ignore[misc]
                try:
                    return await running
                except asyncio.CancelledError:
                    own = asyncio.current_task()
                    if self.is_leader or (own is not None and own.cancelling()):
                        running.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await running
                        raise
        finally:
            await self.resign()
