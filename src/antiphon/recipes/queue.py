"""A queue of work: rows in the order in which they were put, each claimed by one session at a time until it is done."""

from types import TracebackType
from typing import Final, Self

from antiphon.client.aio import AsyncClient
from antiphon.client.session import AsyncSession
from antiphon.client.table import ABSENT
from antiphon.errors import InvalidRequestError, KeyNotFoundError, SessionNotFoundError, VersionMismatchError
from antiphon.recipes.waiting import Looks

DIGITS: Final = 19


class AsyncTaken:
    """An item that is claimed. As a context: done at the end of the block, given back if that raises.

    Attributes:
        item: what was put.
        number: its place in the queue, which rises.
        token: the fencing token of the claim: a version id, higher than that of any claim before it.
    """

    def __init__(self, queue: "AsyncQueue", number: int, item: bytes, token: int) -> None:
        self.item = item
        self.number = number
        self.token = token
        self._queue = queue

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.done()
        else:
            await self.give_back()

    async def done(self) -> None:
        """Remove the item. Raises SessionNotFoundError if the claim was lost: somebody else may have it, or have done it."""
        await self._queue.finish(self.number, self.token)

    async def give_back(self) -> None:
        """Let others take it."""
        await self._queue.unclaim(self.number, self.token)


class AsyncQueue:
    """Items that clients put and others take, each until it is done.

    async with db.session() as session:
        async with await AsyncQueue(db, "work", "mails").take(session) as mail:
            await send(mail.item)

    Guaranteed: an item that was put is there until one taker has said that it is done; while a taker's claim is in the table
    nobody else gets the item; what a taker that is killed or cut off had claimed is taken by others after its session's
    time-out; items are offered in the order in which they were put; only who holds the claim can say that it is done.

    Not guaranteed: that an item is worked on once. A taker that lost its claim may still be at it: have its token checked
    where the work has effects. With several takers items may be finished in another order. The table must have one
    shard, as an item and its claim are changed together.
    """

    def __init__(self, db: AsyncClient, table: str, name: str) -> None:
        """`name` is what the keys of the queue begin with."""
        self.name = name
        self._table = db.table(table)

    def _key(self, kind: str, number: int) -> str:
        return f"{self.name}/{kind}/{number:0{DIGITS}}"

    async def _check(self) -> None:
        await self._table
        if self._table.shards != 1:
            raise InvalidRequestError(
                f"a queue needs a table with one shard, {self._table.name!r} has {self._table.shards}"
            )

    async def put(self, item: bytes, *, timeout_s: float | None = None) -> int:
        """Put an item at the end; returns its number. Raises TimedOutError: it may have been put then."""
        await self._check()
        looks = Looks(timeout_s)
        last = f"{self.name}/last"
        while True:
            row = await self._table.find(last)
            number = 1 if row is None or row.value is None else int(row.value) + 1
            transaction = self._table.transaction()
            expected = ABSENT if row is None else row.version.id
            transaction.put(last, b"%d" % number, expected_version=expected)
            transaction.put(self._key("item", number), item)
            try:
                await transaction.commit()
            except VersionMismatchError:
                await looks.pause(f"others put into queue {self.name!r}, and this one did not get to it")
            else:
                return number

    async def size(self) -> int:
        """How many items are there, claimed or not."""
        return len(await self._table.list(f"{self.name}/item/", f"{self.name}/item0"))

    async def take(self, session: AsyncSession, *, timeout_s: float | None = None) -> AsyncTaken:
        """Wait for an item that nobody has claimed, and claim it. Raises TimedOutError, SessionNotFoundError."""
        await self._check()
        looks = Looks(timeout_s)
        while True:
            found = await self.try_take(session)
            if found is not None:
                return found
            await looks.pause(f"queue {self.name!r} had nothing to take")

    async def try_take(self, session: AsyncSession) -> AsyncTaken | None:
        """The first item that nobody has claimed, claimed; None: there is none."""
        await self._check()
        claims = {
            key[-DIGITS:] for key in await self._table.list(f"{self.name}/claim/", f"{self.name}/claim0")
        }
        async for row in self._table.scan(f"{self.name}/item/", f"{self.name}/item0"):
            if row.key[-DIGITS:] in claims:
                continue
            number = int(row.key[-DIGITS:])
            transaction = self._table.transaction()
            transaction.check(row.key, row.version.id)
            transaction.put(
                self._key("claim", number), b"%d" % session.id, expected_version=ABSENT, session=session
            )
            try:
                versions = await transaction.commit()
            except VersionMismatchError:
                continue
            token = versions[1]
            return None if token is None else AsyncTaken(self, number, row.value or b"", token.id)
        return None

    async def finish(self, number: int, token: int) -> None:
        """See `AsyncTaken.done`."""
        transaction = self._table.transaction()
        transaction.delete(self._key("claim", number), expected_version=token)
        transaction.delete(self._key("item", number))
        try:
            await transaction.commit()
        except (VersionMismatchError, KeyNotFoundError):
            raise SessionNotFoundError(
                f"the claim of item {number} of queue {self.name!r} was lost before it was done"
            ) from None

    async def unclaim(self, number: int, token: int) -> None:
        """See `AsyncTaken.give_back`."""
        try:
            await self._table.delete(self._key("claim", number), expected_version=token)
        except (VersionMismatchError, KeyNotFoundError):
            return  # it is not this taker's any more
