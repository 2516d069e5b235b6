"""The recipes for programs that block: each call is run on the client's own event loop. What they guarantee: the `Async...`
classes say it.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from antiphon.client.session import TIMEOUT_S, AnySession
from antiphon.client.transaction import Transaction
from antiphon.recipes.counter import AsyncCounter
from antiphon.recipes.election import AsyncLeaderElection, Leader
from antiphon.recipes.lock import AsyncLock
from antiphon.recipes.queue import AsyncQueue, AsyncTaken
from antiphon.recipes.registry import AsyncServiceRegistry

if TYPE_CHECKING:
    from antiphon.client.sync import Client


class Lock:
    """A lock that one client at a time holds, by a session. See `AsyncLock`.

    with Lock(db, "locks", "nightly-report") as lock:
        store_elsewhere(report, lock.token)
    """

    def __init__(
        self,
        db: "Client",
        table: str,
        name: str,
        *,
        session: AnySession | None = None,
        session_timeout_s: float = TIMEOUT_S,
        owner: str = "",
    ) -> None:
        under = None if session is None else session.aio

        async def make() -> AsyncLock:
            return AsyncLock(
                db.aio, table, name, session=under, session_timeout_s=session_timeout_s, owner=owner
            )

        self._db = db
        self._lock = db.run(make())

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    @property
    def token(self) -> int:
        """The fencing token; -1 while it is not held."""
        return self._lock.token

    @property
    def is_held(self) -> bool:
        """Is it held, as far as this client can know without asking?"""

        async def look() -> bool:
            return self._lock.is_held

        return self._db.run(look())

    def acquire(self, *, timeout_s: float | None = None) -> int:
        """Wait until the lock is held by this object; returns its token. See `AsyncLock.acquire`."""
        return self._db.run(self._lock.acquire(timeout_s=timeout_s))

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        return self._db.run(self._lock.try_acquire())

    def guard(self, transaction: Transaction) -> None:
        """Have a transaction refused unless the lock is still held. See `AsyncLock.guard`."""
        self._lock.guard(transaction)

    def release(self) -> bool:
        """Give the lock back; was it held until now?"""
        return self._db.run(self._lock.release())


class LeaderElection:
    """Candidates of which one leads at a time. See `AsyncLeaderElection`.

    As a context it waits until this candidate leads, and resigns at the end.
    """

    def __init__(
        self,
        db: "Client",
        table: str,
        name: str,
        *,
        candidate: str,
        session: AnySession | None = None,
        session_timeout_s: float = TIMEOUT_S,
    ) -> None:
        under = None if session is None else session.aio

        async def make() -> AsyncLeaderElection:
            return AsyncLeaderElection(
                db.aio, table, name, candidate=candidate, session=under, session_timeout_s=session_timeout_s
            )

        self._db = db
        self._election = db.run(make())

    def __enter__(self) -> Self:
        self.campaign()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.resign()

    @property
    def term(self) -> int:
        """The term in which this candidate leads; -1: it does not."""
        return self._election.term

    @property
    def is_leader(self) -> bool:
        """Does this candidate lead, as far as it can know without asking?"""

        async def look() -> bool:
            return self._election.is_leader

        return self._db.run(look())

    def campaign(self, *, timeout_s: float | None = None) -> int:
        """Wait until this candidate leads; returns its term."""
        return self._db.run(self._election.campaign(timeout_s=timeout_s))

    def resign(self) -> None:
        """Lead no more, or be no candidate any more."""
        self._db.run(self._election.resign())

    def leader(self) -> Leader | None:
        """Who leads now; None: nobody."""
        return self._db.run(self._election.leader())

    def guard(self, transaction: Transaction) -> None:
        """Have a transaction refused unless this candidate still leads."""
        self._election.guard(transaction)


class Counter:
    """A number that many clients add to. See `AsyncCounter`."""

    def __init__(self, db: "Client", table: str, name: str, *, start: int = 0) -> None:
        async def make() -> AsyncCounter:
            return AsyncCounter(db.aio, table, name, start=start)

        self._db = db
        self._counter = db.run(make())

    def value(self) -> int:
        """The value now."""
        return self._db.run(self._counter.value())

    def add(self, amount: int = 1, *, timeout_s: float | None = None) -> int:
        """Add to it; returns the new value."""
        return self._db.run(self._counter.add(amount, timeout_s=timeout_s))


class Taken:
    """An item that is claimed, for programs that block. See `AsyncTaken`."""

    def __init__(self, db: "Client", taken: AsyncTaken) -> None:
        self._db = db
        self._taken = taken
        self.item, self.number, self.token = taken.item, taken.number, taken.token

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._db.run(self._taken.__aexit__(kind, error, trace))

    def done(self) -> None:
        """Remove the item."""
        self._db.run(self._taken.done())

    def give_back(self) -> None:
        """Let others take it."""
        self._db.run(self._taken.give_back())


class Queue:
    """Items that clients put and others take, each until it is done. See `AsyncQueue`."""

    def __init__(self, db: "Client", table: str, name: str) -> None:
        async def make() -> AsyncQueue:
            return AsyncQueue(db.aio, table, name)

        self._db = db
        self._queue = db.run(make())

    def put(self, item: bytes, *, timeout_s: float | None = None) -> int:
        """Put an item at the end; returns its number."""
        return self._db.run(self._queue.put(item, timeout_s=timeout_s))

    def size(self) -> int:
        """How many items are there, claimed or not."""
        return self._db.run(self._queue.size())

    def take(self, session: AnySession, *, timeout_s: float | None = None) -> Taken:
        """Wait for an item that nobody has claimed, and claim it."""
        return Taken(self._db, self._db.run(self._queue.take(session.aio, timeout_s=timeout_s)))


class ServiceRegistry:
    """Instances of services, each there as long as its session. See `AsyncServiceRegistry`."""

    def __init__(self, db: "Client", table: str) -> None:
        async def make() -> AsyncServiceRegistry:
            return AsyncServiceRegistry(db.aio, table)

        self._db = db
        self._registry = db.run(make())

    def register(self, service: str, instance: str, address: bytes, session: AnySession) -> None:
        """List an instance, or change its address."""
        self._db.run(self._registry.register(service, instance, address, session.aio))

    def deregister(self, service: str, instance: str) -> None:
        """List an instance no more."""
        self._db.run(self._registry.deregister(service, instance))

    def instances(self, service: str) -> dict[str, bytes]:
        """Addresses by instance."""
        return self._db.run(self._registry.instances(service))
