"""Sessions of the asynchronous client: rows that are put under one are removed when its client falls silent, or closes it.

A session has one id, drawn by the client, in every shard of every table in which rows are put under it. It is opened in
a shard before the first of them, and kept there by a heartbeat from then on. The leader of each shard says for itself when
the session has expired there; it counts from when a heartbeat came in. The client counts from when it sent the last
heartbeat that was answered, which is earlier. So as long as the client does not take the session for lost, no leader has
ended it, apart from clocks whose speeds differ.

A session is lost as a whole: when one shard has ended it, or has not been heard of for the time-out, the client ends it in
the others.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, Self

from antiphon import system
from antiphon.client.closing import AsyncCloses
from antiphon.client.cluster import Cluster
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.log import logger
from antiphon.errors import (
    AntiphonError,
    InvalidRequestError,
    SessionNotFoundError,
    UnknownShardError,
    WrongShardError,
)
from antiphon.model.metadata import KeyRanges
from antiphon.model.rows import Version
from antiphon.model.sessions import CloseSession, KeepSession, OpenSession, PutEphemeral

TIMEOUT_S: Final = 10.0
HEARTBEATS: Final = 5  # heartbeats in a time-out, at least
CLOSE_TIMEOUT_S: Final = 10.0
SILENT: Final = "has not answered for"  # says who takes a session for lost by the client's own clock

OnLost = Callable[[SessionNotFoundError], None]


class TablePlaces:
    """What sessions need of a table: which shard holds which keys, as far as is known, and the way of a put."""

    def __init__(
        self,
        ranges: Callable[[], KeyRanges],
        resolved: Callable[[], Awaitable[Any]],
        write: Callable[[bytes, PutEphemeral, float | None], "asyncio.Future[Any]"],
    ) -> None:
        """`resolved` returns when the table's shards are known; `write` sends one operation on its way."""
        self._ranges = ranges
        self.resolved = resolved
        self.write = write

    def place_of(self, key: bytes) -> tuple[int, tuple[int, int]]:
        """The shard of a key and the hashes that it holds."""
        ranges = self._ranges()
        shard = ranges.shard_of(key)
        return shard.shard_id, ranges.range_of(shard)

    def places_in(self, hashes: tuple[int, int]) -> list[tuple[int, tuple[int, int]]]:
        """The shards that hold these hashes, each with all that it holds."""
        ranges = self._ranges()
        return [(one.shard_id, ranges.range_of(one)) for one in ranges.within(*hashes)]

    def bounds_of(self, hashes: tuple[int, int]) -> tuple[int, ...]:
        """These hashes as they are said to a shard: only where the table was ever split."""
        return hashes if self._ranges().is_split else ()


class AnySession(Protocol):
    """A session of either client."""

    id: int

    @property
    def aio(self) -> "AsyncSession":
        """The asynchronous one, or the one underneath."""


class Place:
    """A shard in which a session is open. `kept_s`: when the last request was sent that showed that it is (loop time)."""

    __slots__ = ("hashes", "heartbeats", "kept_s", "shard_id", "table")

    def __init__(self, table: TablePlaces, shard_id: int, hashes: tuple[int, int], kept_s: float) -> None:
        self.table = table
        self.shard_id = shard_id
        self.hashes = hashes
        self.kept_s = kept_s
        self.heartbeats: asyncio.Task[None] | None = None


class AsyncSession(AsyncCloses):
    """A session; `client.session()` makes one. Use it as `async with db.session() as session`, or close it.

    Attributes:
        id: its id, the same in all shards.
        timeout_s: silence of this client after which rows put under it are removed.
    """

    def __init__(self, cluster: Cluster, timeout_s: float, on_lost: OnLost | None = None) -> None:
        """`on_lost` is called once, on the event loop, if the session is lost before it is closed."""
        if not timeout_s > 0:
            raise InvalidRequestError(f"a session's time-out is above 0 s, not {timeout_s}")
        self.id = system.rng().getrandbits(62) + 1
        self.timeout_s = timeout_s
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._places: dict[int, Place] = {}
        self._opening = asyncio.Lock()
        self._lost: SessionNotFoundError | None = None
        self._closed = False
        self._told: list[OnLost] = [] if on_lost is None else [on_lost]
        self._ends: dict[asyncio.Task[None], None] = {}

    @property
    def aio(self) -> Self:
        """See AnySession."""
        return self

    @property
    def is_lost(self) -> bool:
        """Has it ended without being closed, or may it have? Rows put under it are gone, or may be, or soon will be.

        False says: by this client's clock, no shard ends the session before now.
        """
        if self._lost is None and not self._closed:
            overdue = [place for place in self._places.values() if self._left_s(place) <= 0]
            if overdue:
                self._lose(self._silent(overdue[0]))
        return self._lost is not None

    @property
    def is_closed(self) -> bool:
        """Was it closed?"""
        return self._closed

    @property
    def kept_s(self) -> float | None:
        """When the request was sent that showed last that it is open in every shard (loop time); None: in no shard yet.

        It ends `timeout_s` after that at the earliest, unless it is closed.
        """
        return min((place.kept_s for place in self._places.values()), default=None)

    def when_lost(self, callback: OnLost) -> None:
        """Call `callback` once, on the event loop, if the session is lost; soon, if it is lost already."""
        if self.is_lost and self._lost is not None:
            self._loop.call_soon(callback, self._lost)
        else:
            self._told.append(callback)

    def check(self) -> None:
        """Raise SessionNotFoundError if it is lost or closed."""
        if self.is_lost and self._lost is not None:
            raise SessionNotFoundError(self._lost.message, session_id=self.id)
        if self._closed:
            raise SessionNotFoundError(f"session {self.id} is closed", session_id=self.id)

    def refused(self, error: SessionNotFoundError) -> None:
        """A shard said so, to a put."""
        self._lose(error.message)

    # -- shards --------------------------------------------------------------------------------------------------

    def covers(self, shard_id: int, hashes: tuple[int, int]) -> bool:
        """Is it open for these hashes in the shard?"""
        place = self._places.get(shard_id)
        return place is not None and place.hashes[0] <= hashes[0] and hashes[1] <= place.hashes[1]

    async def open_for(self, table: TablePlaces, key: bytes, deadline: float) -> None:
        """Open it in the shard of a key, unless it is open there. Raises what the shard refuses, SessionNotFoundError."""

        async def attempt() -> None:
            self.check()
            shard_id, hashes = table.place_of(key)
            if not self.covers(shard_id, hashes) and not self._split_of(table, shard_id, hashes):
                await self._open(table, shard_id, hashes, deadline)

        tries = self._cluster.tries_until(deadline)
        async with self._opening:
            await self._cluster.across_splits(attempt, tries)

    async def _open(
        self, table: TablePlaces, shard_id: int, hashes: tuple[int, int], deadline: float
    ) -> None:
        sent_s = self._loop.time()
        left_s = max(0.001, deadline - sent_s)
        request = OpenSession(
            shard_id, self.id, round(self.timeout_s * 1000), table.bounds_of(hashes), int(left_s * 1000) + 1
        )
        await self._cluster.call_shard(shard_id, request, timeout_s=left_s)
        self._add(Place(table, shard_id, hashes, sent_s))

    def _split_of(self, table: TablePlaces, shard_id: int, hashes: tuple[int, int]) -> bool:
        """Was the shard split off one in which the session is open? It took the session over then."""
        for place in list(self._places.values()):
            if place.table is table and place.hashes[0] <= hashes[0] and hashes[1] <= place.hashes[1]:
                self._was_split(place)
                return self.covers(shard_id, hashes)
        return False

    def _was_split(self, place: Place) -> bool:
        """Go by what is known of the table now: keep the session in each shard that has hashes of the place."""
        parts = place.table.places_in(place.hashes)
        if parts == [(place.shard_id, place.hashes)]:
            return False
        for shard_id, hashes in parts:
            if shard_id == place.shard_id:
                place.hashes = hashes
            else:
                self._add(Place(place.table, shard_id, hashes, place.kept_s))
        return True

    def _add(self, place: Place) -> None:
        self._places[place.shard_id] = place
        place.heartbeats = self._loop.create_task(self._keep(place))

    # -- heartbeats ----------------------------------------------------------------------------------------------

    def _left_s(self, place: Place) -> float:
        return place.kept_s + self.timeout_s - self._loop.time()

    async def _keep(self, place: Place) -> None:
        """Keep the session in a shard until it is closed or lost."""
        every_s = self.timeout_s / HEARTBEATS
        while not self._closed and self._lost is None:
            await asyncio.sleep(max(0.0, place.kept_s + every_s - self._loop.time()))
            left_s = self._left_s(place)
            if left_s <= 0:
                self._lose(self._silent(place))
                return
            try:
                await self._heartbeat(place, min(left_s, every_s))
            except UnknownShardError:
                self._places.pop(place.shard_id, None)  # its table was deleted
                return
            except SessionNotFoundError as error:
                self._lose(error.message)
                return
            except ClientClosedError:
                return
            except AntiphonError:
                await asyncio.sleep(every_s / HEARTBEATS)

    async def _heartbeat(self, place: Place, timeout_s: float) -> None:
        sent_s = self._loop.time()
        bounds = place.table.bounds_of(place.hashes)
        request = KeepSession(place.shard_id, self.id, bounds, int(timeout_s * 1000) + 1)
        try:
            await self._cluster.call_shard(place.shard_id, request, timeout_s=timeout_s)
        except WrongShardError as error:
            if not self._was_split(place):
                await self._cluster.learn(error, self._cluster.tries_until(sent_s + timeout_s))
                self._was_split(place)
            return
        if self._lost is None:  # else the answer was read too late
            place.kept_s = max(place.kept_s, sent_s)

    def _silent(self, place: Place) -> str:
        return f"shard {place.shard_id} {SILENT} {self.timeout_s} s"

    def _lose(self, why: str) -> None:
        """It is over, at least in one shard: end it in the others, as well as that goes."""
        if self._lost is not None or self._closed:
            return
        self._lost = SessionNotFoundError(f"session {self.id} is lost: {why}", session_id=self.id)
        logger.warning("session %d is lost: %s", self.id, why)
        for told in self._told:
            self._loop.call_soon(told, self._lost)
        self._told.clear()
        if not self._cluster.closed:
            task = self._loop.create_task(self._end(CLOSE_TIMEOUT_S))
            self._ends[task] = None
            task.add_done_callback(self._ends.pop)

    # -- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End it: its rows are removed when this returns. Where a shard cannot be reached, they go with the time-out.

        A second close does nothing. Closing a session that is lost removes what is left of its rows.
        """
        if self._closed:
            return
        self._closed = True
        self._told.clear()
        await self._end(min(self.timeout_s, CLOSE_TIMEOUT_S))
        if self._ends:
            await asyncio.gather(*self._ends, return_exceptions=True)

    def abandon(self) -> None:
        """The client is closed: no more heartbeats. The session expires."""
        self._closed = True
        tasks = [place.heartbeats for place in self._places.values() if place.heartbeats is not None]
        for task in (*tasks, *self._ends):
            task.cancel()

    async def _end(self, timeout_s: float) -> None:
        places = list(self._places.values())
        for place in places:
            if place.heartbeats is not None and place.heartbeats is not asyncio.current_task():
                place.heartbeats.cancel()
        await asyncio.gather(*(self._end_in(place, timeout_s) for place in places))

    async def _end_in(self, place: Place, timeout_s: float) -> None:
        deadline = self._loop.time() + timeout_s

        async def attempt() -> None:
            known = set(self._places)
            self._was_split(place)
            fresh = [one for shard_id, one in self._places.items() if shard_id not in known]
            left_s = max(0.001, deadline - self._loop.time())
            await asyncio.gather(*(self._end_in(one, left_s) for one in fresh))
            bounds = place.table.bounds_of(place.hashes)
            request = CloseSession(place.shard_id, self.id, bounds, int(timeout_s * 1000))
            await self._cluster.call_shard(place.shard_id, request, timeout_s=left_s)

        with contextlib.suppress(AntiphonError):  # it is not there, or expires
            await self._cluster.across_splits(attempt, self._cluster.tries_until(deadline))


def put_under(
    session: AsyncSession, table: TablePlaces, op: PutEphemeral, timeout_s: float, ready: bool
) -> "asyncio.Future[Version]":
    """Put a row under a session, which is opened in the row's shard first where it is not open there.

    `ready`: the table's metadata is known.
    """
    session.check()
    loop = asyncio.get_running_loop()
    if ready and session.covers(*table.place_of(op.key)):
        future: asyncio.Future[Any] = table.write(op.key, op, timeout_s)
    else:
        future = loop.create_task(_open_and_put(session, table, op, loop.time() + timeout_s))

    def look(done: "asyncio.Future[Any]") -> None:
        if not done.cancelled() and isinstance(error := done.exception(), SessionNotFoundError):
            session.refused(error)

    future.add_done_callback(look)
    return future


async def _open_and_put(
    session: AsyncSession, table: TablePlaces, op: PutEphemeral, deadline: float
) -> Version:
    await table.resolved()
    await session.open_for(table, op.key, deadline)
    left_s = deadline - asyncio.get_running_loop().time()
    version: Version = await table.write(op.key, op, max(0.001, left_s))
    return version


class OpenedSessions:
    """The sessions of one client."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._open: list[AsyncSession] = []

    def add(self, timeout_s: float, on_lost: OnLost | None) -> AsyncSession:
        """A new one."""
        session = AsyncSession(self._cluster, timeout_s, on_lost)
        self._open = [one for one in self._open if not one.is_closed]
        self._open.append(session)
        return session

    def abandon(self) -> None:
        """The client is closed: they expire."""
        for session in self._open:
            session.abandon()
