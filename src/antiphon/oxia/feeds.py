"""What happens to the keys of a shard, told as it is committed: notifications, and the highest key of a sequence.

Both follow the shard's log, of which each record is an effect on one key. An offset that a client is told is that of a
record, so it may go on behind any of them, at any node, also after a fail-over. What the log has no more cannot be told:
a client that asks for it is refused, and never passed over it in silence.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.errors import AntiphonError, OffsetOutOfRangeError
from antiphon.model.requests import Fetch, Fetched, ListOffset, OffsetReply, TableGet, TableRows
from antiphon.oxia.messages import Notification, NotificationBatch, NotificationEntry, NotificationType
from antiphon.oxia.reads import is_text
from antiphon.oxia.shards import ShardRequests, reply_as
from antiphon.records.aborted import without_aborted
from antiphon.records.batch import iter_batches
from antiphon.records.changes import Change, decode_changes
from antiphon.records.sequences import last_before, numbers_in

if TYPE_CHECKING:
    from antiphon.security.authorizer import Rights

FETCH_BYTES: Final = 256 * 1024
WAIT_MS: Final = 5_000  # for something to happen; then it is asked again
AGAIN_S: Final = 0.2  # after what may pass
KEYS_MAX: Final = 1_000  # of one message
LOWER: Final = 3
END: Final = -1  # of ListOffset


class Piece(NamedTuple):
    """What a piece of a log says; `end`: where the next one begins."""

    changes: list[Change]
    end: int


class Feeds:
    """See the module's text; for all calls of a listener."""

    def __init__(self, shards: ShardRequests) -> None:
        self._shards = shards

    async def end_of(self, shard_id: int, rights: "Rights") -> int:
        """The offset behind all that is committed."""
        told: OffsetReply = reply_as(OffsetReply, await self._shards.ask(ListOffset(shard_id, END), rights))
        return told.high_watermark

    async def pieces(self, shard_id: int, start: int, rights: "Rights") -> AsyncIterator[Piece]:
        """What happened from an offset on, and what happens. Raises OffsetOutOfRangeError where the log begins later."""
        position = start
        while True:
            body = Fetch(shard_id, position, FETCH_BYTES, WAIT_MS)
            try:
                reply, bulk = await self._shards.ask_bulk(body, rights)
            except OffsetOutOfRangeError:
                raise
            except AntiphonError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(AGAIN_S)  # nobody leads for long: whoever follows waits
                continue
            told: Fetched = reply_as(Fetched, reply)
            if told.log_start > position:
                raise OffsetOutOfRangeError(
                    f"the log of shard {shard_id} begins at {told.log_start} by now, so what happened from {position} on "
                    "cannot be told: read the keys, and begin without an offset",
                    log_start=told.log_start,
                )
            end = position
            for header, _ in iter_batches(bulk):
                end = header.next_offset
            batches = without_aborted(bulk, told.aborted) if told.aborted else bulk
            changes = [one for one in decode_changes([batches], position) if is_text(one.key)]
            position = max(position, end)
            yield Piece(changes, position)

    async def last_of(self, shard_id: int, prefix: bytes, rights: "Rights") -> bytes | None:
        """The highest key of a sequence that there is."""
        at = last_before(prefix)
        while True:
            body = TableGet(shard_id, (at,), comparison=LOWER, include_value=False)
            reply: TableRows = reply_as(TableRows, await self._shards.ask(body, rights))
            row = reply.rows[0]
            if row is None or not row.key.startswith(prefix + b"-"):
                return None
            if numbers_in(row.key, prefix) is not None:
                return row.key
            at = row.key


def batches_of(shard_id: int, piece: Piece) -> list[NotificationBatch]:
    """The notifications of a piece: in each batch a key is at most once, and its offset is that of its last record."""
    made: list[NotificationBatch] = []
    entries: dict[bytes, NotificationEntry] = {}
    last: Change | None = None
    for change in piece.changes:
        if last is not None and (change.key in entries or len(entries) >= KEYS_MAX):
            made.append(_batch(shard_id, last.offset, last.timestamp_ms, entries))
            entries = {}
        entries[change.key] = _entry(change)
        last = change
    if last is not None:
        made.append(_batch(shard_id, last.offset, last.timestamp_ms, entries))
    return made


def empty_batch(shard_id: int, offset: int, now_ms: int) -> NotificationBatch:
    """A batch that says how far the client has heard everything."""
    return NotificationBatch(shard=shard_id, offset=offset, timestamp=now_ms)


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


def newest_of(piece: Piece, prefix: bytes) -> bytes | None:
    """The highest key of a sequence among what was put."""
    found = [
        one.key
        for one in piece.changes
        if one.value is not None and one.key.startswith(prefix) and numbers_in(one.key, prefix) is not None
    ]
    return max(found, default=None)
