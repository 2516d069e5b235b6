"""A lock: an ephemeral row of a table, which one session at a time has put."""

import contextlib
from types import TracebackType
from typing import Final, Self

from antiphon import system
from antiphon.client.aio import AsyncClient
from antiphon.client.session import TIMEOUT_S, AsyncSession
from antiphon.client.table import ABSENT
from antiphon.client.transaction import Transaction
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    KeyNotFoundError,
    SessionNotFoundError,
    TimedOutError,
    VersionMismatchError,
)
from antiphon.recipes.waiting import Looks

NOT_HELD: Final = -1


class AsyncLock:
    """A lock that one client at a time holds, by a session: whoever falls silent loses it.

    async with AsyncLock(db, "locks", "nightly-report") as lock:
        await store_elsewhere(report, lock.token)          # which refuses tokens below the highest that it has seen

    Guaranteed: nobody gets the lock while the row of its holder is in the table; tokens of one lock rise, and no two holders
    have the same one; a holder that is killed or cut off loses the lock within its session's time-out and a moment; a
    fail-over takes it from nobody. A write that carries the token in a transaction of the same shard (`guard`) is
    carried out while the lock is held, or not at all.

    Not guaranteed: that a holder knows at once that it has lost the lock. It may be stopped between looking at `is_held`
    and doing what it means to do. So without the token, checked where the effect is, the lock is advisory. And there is no
    order among those who wait.

    Attributes:
        token: the fencing token: the version id of the lock's row; -1 while the lock is not held.
    """

    def __init__(
        self,
        db: AsyncClient,
        table: str,
        name: str,
        *,
        session: AsyncSession | None = None,
        session_timeout_s: float = TIMEOUT_S,
        owner: str = "",
    ) -> None:
        """`name` is the row's key. Without a `session` the lock opens one of `session_timeout_s` whenever it is acquired.

        `owner` is for people: it stands in the row.
        """
        self.name = name
        self.token = NOT_HELD
        self._db = db
        self._table = db.table(table)
        self._shared = session
        self._session: AsyncSession | None = None
        self._timeout_s = session_timeout_s
        self._is_unsure = False  # may a put without an answer have been carried out?
        self._value = f"{owner or 'lock'} {system.new_uuid().hex}".encode()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    @property
    def session(self) -> AsyncSession | None:
        """The session by which the lock is held."""
        return self._session

    @property
    def is_held(self) -> bool:
        """Is it held, as far as this client can know without asking? False is certain to be true soon, if it is not yet."""
        return self.token != NOT_HELD and self._session is not None and not self._session.is_lost

    async def acquire(self, *, timeout_s: float | None = None) -> int:
        """Wait until the lock is held by this object; returns its token.

        Raises TimedOutError when somebody else has it all the time (None: wait for ever), SessionNotFoundError when the
        given session is lost, InvalidRequestError when this object holds it already.
        """
        if self.is_held:
            raise InvalidRequestError(f"lock {self.name!r} is held by this object already")
        looks = Looks(timeout_s)
        while True:
            if await self.try_acquire():
                return self.token
            await looks.pause(f"lock {self.name!r} was not free")

    async def try_acquire(self) -> bool:
        """Take the lock if nobody has it. Raises SessionNotFoundError when the given session is lost."""
        self.token = NOT_HELD
        session = self._shared
        if session is None:
            if self._session is not None and self._session.is_lost:
                await self._session.close()
                self._session = None
            session = self._session or self._db.session(timeout_s=self._timeout_s)
        self._session = session
        try:
            version = await self._table.put(self.name, self._value, expected_version=ABSENT, session=session)
        except VersionMismatchError:
            self.token = await self._token_of_own()
        except SessionNotFoundError:
            if self._shared is not None:
                raise
        except TimedOutError:
            self._is_unsure = True
            with contextlib.suppress(AntiphonError):
                self.token = await self._token_of_own()
        else:
            self.token = version.id
        return self.is_held

    async def _token_of_own(self) -> int:
        """An earlier put may have been carried out without an answer."""
        row = await self._table.find(self.name)
        is_own = (
            row is not None
            and self._session is not None
            and row.session_id == self._session.id
            and row.value == self._value
        )
        return row.version.id if row is not None and is_own else NOT_HELD

    def guard(self, transaction: Transaction) -> None:
        """Have a transaction of the lock's table refused (VersionMismatchError) unless the lock is still held.

        The keys of the transaction must belong to the lock's shard, as all keys of a transaction do.
        """
        if self.token == NOT_HELD:
            raise InvalidRequestError(f"lock {self.name!r} is not held")
        transaction.check(self.name, self.token)

    async def release(self) -> bool:
        """Give the lock back; was it held until now? What does not hold it gives nothing back, and harms nobody.

        Without an answer the lock is free when its session has ended, which this begins.
        """
        token, self.token = self.token, NOT_HELD
        was_held = False
        with contextlib.suppress(VersionMismatchError, KeyNotFoundError, TimedOutError):
            if token == NOT_HELD and self._is_unsure:
                token = await self._token_of_own()
            self._is_unsure = False
            if token != NOT_HELD:
                await self._table.delete(self.name, expected_version=token)
                was_held = True
        if self._shared is None and self._session is not None:
            session, self._session = self._session, None
            await session.close()
        return was_held
