"""What happens to the keys of a shard, told as it is committed: notifications, and the highest key of a sequence.

Both follow the shard's log, of which each record is an effect on one key. An offset that a client is told is that of a
record, so it may go on behind any of them, at any node, also after a fail-over. What the log has no more cannot be told:
a client that asks for it is refused, and never passed over it in silence.

Who has heard everything follows the shard's tail (`tails.py`), which is read once for all; each piece takes its turn among
what all clients want of the node. Who is behind reads by himself, when there is room for it.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, InvalidRequestError, OffsetOutOfRangeError
from antiphon.model.requests import Fetch, Fetched, ListOffset, OffsetReply, TableGet, TableRows
from antiphon.oxia.messages import NotificationBatch
from antiphon.oxia.shards import ROW_BYTES, ShardRequests, reply_as
from antiphon.oxia.tails import AGAIN_S, Piece, Tail, Tails
from antiphon.records.aborted import without_aborted
from antiphon.records.batch import iter_batches
from antiphon.records.changes import decode_changes
from antiphon.records.key_order import is_text
from antiphon.records.sequences import last_before, numbers_in
from antiphon.security.authorizer import EVERYTHING

if TYPE_CHECKING:
    from antiphon.oxia.call import Call
    from antiphon.security.authorizer import Rights

FETCH_BYTES: Final = 256 * 1024
READ_BYTES: Final = 2 * ROW_BYTES  # that such a piece takes before it is known how large it is
WAIT_MS: Final = 5_000  # for something to happen; then it is asked again
PASSED_MAX: Final = 1_000  # keys that look like a sequence's and are none
LOWER: Final = 3
END: Final = -1  # of ListOffset


class Feeds:
    """See the module's text; for all calls of a listener."""

    def __init__(self, shards: ShardRequests) -> None:
        self.shards = shards
        self.tails = Tails()

    async def end_of(self, shard_id: int, rights: "Rights") -> int:
        """The offset behind all that is committed."""
        return reply_as(OffsetReply, await self.shards.ask(ListOffset(shard_id, END), rights)).high_watermark

    async def piece(self, shard_id: int, rights: "Rights", wait_ms: int, start: int) -> Piece:
        """What happened from an offset on. Raises OffsetOutOfRangeError where the log begins later."""
        reply, bulk = await self.shards.ask_bulk(Fetch(shard_id, start, FETCH_BYTES, wait_ms), rights)
        told: Fetched = reply_as(Fetched, reply)
        if told.log_start > start:
            raise OffsetOutOfRangeError(
                f"the log of shard {shard_id} begins at {told.log_start} by now, so notifications from {start} on are gone: "
                "read the keys, and begin without an offset",
                log_start=told.log_start,
            )
        end = start
        for header, _ in iter_batches(bulk):
            end = max(end, header.next_offset)
        batches = without_aborted(bulk, told.aborted) if told.aborted else bulk
        changes = [one for one in decode_changes([batches], start) if is_text(one.key)]
        return Piece(start, end, changes, len(bulk))

    async def last_of(self, shard_id: int, prefix: bytes, rights: "Rights") -> bytes | None:
        """The highest key of a sequence that there is."""
        at = last_before(prefix)
        for _ in range(PASSED_MAX):
            body = TableGet(shard_id, (at,), comparison=LOWER, include_value=False)
            reply: TableRows = reply_as(TableRows, await self.shards.ask(body, rights))
            row = reply.rows[0]
            if row is None or not row.key.startswith(prefix + b"-"):
                return None
            if numbers_in(row.key, prefix) is not None:
                return row.key
            at = row.key
        raise InvalidRequestError(
            f"more than {PASSED_MAX} keys look like those of the sequence {prefix[:100]!r} and are none: remove them"
        )


class Follower:
    """What happened to a shard's keys from an offset on, and what happens, for one call: `next()` again and again, then
    `close()`.
    """

    def __init__(self, feeds: Feeds, shard_id: int, start: int, rights: "Rights", call: "Call") -> None:
        self._feeds = feeds
        self._shard_id = shard_id
        self._position = start
        self._rights = rights
        self._call = call
        self._tail: Tail | None = None

    async def next(self) -> Piece:
        """The next piece. It is counted until the next call. Raises AntiphonError."""
        self._call.keep(0)
        while True:
            found = await (self._from_log() if self._tail is None else self._from_tail(self._tail))
            if found is not None:
                self._position = found.end
                return found

    async def _from_log(self) -> Piece | None:
        """What there is already; None: that was all."""
        feeds, call, shard_id = self._feeds, self._call, self._shard_id
        await call.reserve(READ_BYTES)
        try:
            found = await feeds.piece(shard_id, self._rights, 0, self._position)
        except AntiphonError as error:
            call.keep(0)
            if not error.retriable or isinstance(error, OffsetOutOfRangeError):
                raise
            await asyncio.sleep(AGAIN_S)  # nobody leads for long: whoever follows waits
            return None
        call.keep(found.size_bytes)
        if found.end > self._position:
            return found
        call.keep(0)
        read = partial(feeds.piece, shard_id, EVERYTHING, WAIT_MS)
        self._tail = feeds.tails.follow(shard_id, self._position, read)
        return None

    async def _from_tail(self, tail: Tail) -> Piece | None:
        if tail.end <= self._position and not tail.failed:
            await tail.news(self._call.connection.read_room)
        else:
            await self._call.turn()
        self._feeds.shards.check(Fetch(self._shard_id, self._position), self._rights)
        found = None if tail.failed else tail.piece_at(self._position) if tail.end > self._position else None
        if found is None and (tail.failed or tail.end > self._position):
            self.close()  # it was too slow for the tail
        elif found is not None and not self._call.may_read(found.size_bytes):
            self.close()  # and so it is where there is no room
            found = None
        if found is not None:
            await self._call.reserve(found.size_bytes)
        return found

    def close(self) -> None:
        """Follow no more."""
        if self._tail is not None:
            self._feeds.tails.leave(self._shard_id, self._tail)
            self._tail = None


def empty_batch(shard_id: int, offset: int, now_ms: int) -> NotificationBatch:
    """A batch that says how far the client has heard everything."""
    return NotificationBatch(shard=shard_id, offset=offset, timestamp=now_ms)


def newest_of(piece: Piece, prefix: bytes) -> bytes | None:
    """The highest key of a sequence among what was put."""
    found = [
        one.key
        for one in piece.changes
        if one.value is not None and one.key.startswith(prefix) and numbers_in(one.key, prefix) is not None
    ]
    return max(found, default=None)
