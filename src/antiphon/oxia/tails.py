"""What is committed in a shard from now on, read once for all who follow it on this node.

A tail runs while anybody follows it. It keeps the newest pieces, a few, so that who is a little behind needs no read of its
own. Who is further behind reads from the log by himself, as anybody who begins at an older offset (`feeds.py`).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, Protocol

import structlog

from antiphon.errors import AntiphonError
from antiphon.gateway.protobuf import encode
from antiphon.oxia.messages import Notification, NotificationBatch, NotificationEntry, NotificationType
from antiphon.records.changes import Change

KEPT_BYTES: Final = 64 * 1024  # of the newest pieces of a shard, beside the last one
AGAIN_S: Final = 0.2  # after what may pass
KEYS_MAX: Final = 1_000  # of one message
CHANGE_BYTES: Final = 512  # that a change takes in memory beside its value, about


class Piece:
    """What a piece of a log says; `end`: where the next one begins."""

    __slots__ = ("_told", "changes", "end", "size_bytes", "start")

    def __init__(self, start: int, end: int, changes: list[Change], size_bytes: int) -> None:
        self.start = start
        self.end = end
        self.changes = changes
        self.size_bytes = size_bytes + CHANGE_BYTES * len(changes)
        self._told: list[bytes] | None = None

    def notifications(self, shard_id: int) -> list[bytes]:
        """The messages that tell of it: encoded once for all who follow."""
        if self._told is None:
            self._told = [bytes(encode(batch)) for batch in batches_of(shard_id, self.changes)]
        return self._told

    def behind(self, offset: int) -> "Piece":
        """What is left of it from an offset on."""
        if offset <= self.start:
            return self
        return Piece(offset, self.end, [one for one in self.changes if one.offset >= offset], 0)


Read = Callable[[int], Coroutine[Any, Any, Piece]]
"""Reads what follows an offset, or waits a little for it."""


class Waking(Protocol):
    """A connection, as its calls' tail sees it."""

    def wake(self, waiting: Iterable["asyncio.Future[None]"]) -> None:
        """Wake them, a few in each of the connection's turns."""


class Tail:
    """See the module's text; of one shard."""

    def __init__(self, start: int, read: Read) -> None:
        self.end = start
        self.failed = False
        self.followers = 0
        self._read = read
        self._pieces: deque[Piece] = deque()
        self._kept_bytes = 0
        self._waiting: dict[Waking, dict[asyncio.Future[None], None]] = {}  # by connection
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while not self.failed:
            try:
                piece = await self._read(self.end)
            except AntiphonError as error:
                self.failed = not error.retriable  # each follower asks by himself, and hears why
                await asyncio.sleep(AGAIN_S)  # nobody leads for long: who follows waits
            except Exception as error:  # noqa: BLE001 - a bug: who follows reads by himself, and hears of it
                structlog.get_logger().error("oxia_tail_failed", exc_info=error)
                self.failed = True
            else:
                self._take(piece)
            if self.failed:
                self._wake()

    def _take(self, piece: Piece) -> None:
        if piece.end <= self.end:
            return
        pieces = self._pieces
        pieces.append(piece)
        self._kept_bytes += piece.size_bytes
        while len(pieces) > 1 and self._kept_bytes > KEPT_BYTES:
            self._kept_bytes -= pieces.popleft().size_bytes
        self.end = piece.end
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for connection, futures in waiting.items():
            connection.wake(futures)

    async def news(self, connection: "Waking") -> None:
        """Return in a turn of the connection in which there is another piece, or there will be none."""
        if self.failed:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(connection, {})[woken] = None
        try:
            await woken
        except asyncio.CancelledError:
            others = self._waiting.get(connection, {})
            others.pop(woken, None)
            if not others:
                self._waiting.pop(connection, None)
            raise

    def has(self, offset: int) -> bool:
        """Has it all that follows an offset, or will have it?"""
        return offset >= self.end or self.piece_at(offset) is not None

    def piece_at(self, offset: int) -> Piece | None:
        """What follows an offset before `end`; None: it is not kept any more."""
        if not self._pieces or offset < self._pieces[0].start:
            return None
        return next(piece for piece in self._pieces if offset < piece.end).behind(offset)

    def stop(self) -> None:
        """Nobody follows any more."""
        self._task.cancel()


class Tails:
    """The tails of all shards that are followed here."""

    def __init__(self) -> None:
        self._tails: dict[int, Tail] = {}

    def follow(self, shard_id: int, start: int, read: Read) -> Tail:
        """The tail of a shard; `leave` it again."""
        found = self._tails.get(shard_id)
        # A client may have named an offset beyond the log's end: its tail has nothing for those who are at the end.
        if found is None or found.failed or not found.has(start):
            found = self._tails[shard_id] = Tail(start, read)
        found.followers += 1
        return found

    def leave(self, shard_id: int, tail: Tail) -> None:
        """Follow it no more."""
        tail.followers -= 1
        if not tail.followers:
            tail.stop()
            if self._tails.get(shard_id) is tail:
                del self._tails[shard_id]


def batches_of(shard_id: int, changes: list[Change]) -> list[NotificationBatch]:
    """The notifications of changes: in each batch a key is at most once, and its offset is that of its last record."""
    made: list[NotificationBatch] = []
    entries: dict[bytes, NotificationEntry] = {}
    last: Change | None = None
    for change in changes:
        if last is not None and (change.key in entries or len(entries) >= KEYS_MAX):
            made.append(_batch(shard_id, last.offset, last.timestamp_ms, entries))
            entries = {}
        entries[change.key] = _entry(change)
        last = change
    if last is not None:
        made.append(_batch(shard_id, last.offset, last.timestamp_ms, entries))
    return made


def _batch(
    shard_id: int, offset: int, timestamp_ms: int, entries: dict[bytes, NotificationEntry]
) -> NotificationBatch:
    sorted_ = [entries[key] for key in sorted(entries)]
    return NotificationBatch(shard=shard_id, offset=offset, timestamp=timestamp_ms, notifications=sorted_)


def _entry(change: Change) -> NotificationEntry:
    if change.value is None:
        what = Notification(type=NotificationType.DELETED)
    else:
        kind = NotificationType.MODIFIED if change.modifications else NotificationType.CREATED
        what = Notification(type=kind, version_id=change.version_id)
    return NotificationEntry(key=change.key, value=what)
