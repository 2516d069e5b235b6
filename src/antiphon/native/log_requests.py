"""Requests to the shards' logs: append, fetch, offsets by time, trim."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon.coordination.transactions import Producer
from antiphon.errors import AntiphonError, InvalidRequestError, NotLeaderError
from antiphon.model.requests import (
    AppendBatch,
    Fetch,
    Fetched,
    ListOffset,
    OffsetReply,
    Trimmed,
    TrimShard,
)
from antiphon.model.results import FetchResult
from antiphon.native.exchange import Exchange
from antiphon.native.transaction_parts import once_joined
from antiphon.records.batch import HEADER_BYTES, TRANSACTIONAL_BIT, read_header

if TYPE_CHECKING:
    from antiphon.transactions.asking import Numbered

FETCH_BYTES_MAX: Final = 16 * 1024 * 1024
BATCH_BYTES: Final = (
    1024 * 1024
)  # counted at least for what is read: the first batch comes however large it is
WAIT_MS_MAX: Final = 60_000
TIMEOUT_MS_MAX: Final = 3_600_000
ATTRIBUTES_AT: Final = 22  # the byte of a batch that has the transactional bit


def append(exchange: Exchange, request_id: int, body: AppendBatch, payload: memoryview) -> None:
    """Append one batch; answered when it is committed."""
    gateway = exchange.gateway
    gateway.check_may_write(body.shard_id, internal=body.internal)
    is_part = len(payload) > ATTRIBUTES_AT and bool(payload[ATTRIBUTES_AT] & TRANSACTIONAL_BIT)
    if is_part != bool(body.transactional_id):
        raise InvalidRequestError(
            "a batch with the transactional bit needs the transactional id, and only such a batch has one"
        )
    asking = _asking(exchange, body, payload) if is_part else None
    done = exchange.begin(request_id)
    timeout_s = max(1, min(body.timeout_ms, TIMEOUT_MS_MAX)) / 1000
    if asking is not None:
        request = request_id, body, payload
        submit = partial(gateway.submit_append, body.shard_id, payload, body.expected_offset, timeout_s, done)
        exchange.spawn(once_joined(exchange, request, asking, done, submit))
        return
    try:
        gateway.submit_append(body.shard_id, payload, body.expected_offset, timeout_s, done)
    except BaseException:
        exchange.end()
        raise


def _asking(exchange: Exchange, body: AppendBatch, payload: memoryview) -> "asyncio.Task[Numbered] | None":
    """What a part of a transaction has to wait for; the client is not believed about whose it is."""
    if exchange.asker is None:
        raise InvalidRequestError("this node takes no parts of transactions")
    if len(payload) < HEADER_BYTES:
        raise InvalidRequestError("a batch is shorter than its header")
    header = read_header(payload)
    producer = Producer(header.producer_id, header.producer_epoch)
    return exchange.asker.before_append(body.transactional_id, producer, body.shard_id)


# -- reading ------------------------------------------------------------------------------------------------------


def fetch(exchange: Exchange, request_id: int, body: Fetch, _payload: memoryview) -> None:
    """Read batches; where there are none yet, wait for some as long as the client wants."""
    gateway = exchange.gateway
    if gateway.is_cold(body.shard_id, body.offset, body.isolation):
        exchange.begin(request_id)
        exchange.when_room(partial(_begin_cold_if_allowed, exchange, request_id, body, has_room=False))
    elif not _try_fetch(exchange, request_id, body, last=body.wait_ms <= 0):
        _follow(exchange, request_id, body)


def _try_fetch(exchange: Exchange, request_id: int, body: Fetch, *, last: bool) -> bool:
    """Answer a fetch if there is data, or if it is the `last` try. One without room is read again when there is."""
    found = exchange.gateway.fetch_now(
        body.shard_id, body.offset, _fetch_bytes(exchange, body), body.isolation
    )
    if not found.batches and not last:
        return False
    if exchange.has_room_for(found.size_bytes):
        _reply(exchange, request_id, found)
    else:
        _when_room(exchange, request_id, body, found.size_bytes)
    return True


def _when_room(exchange: Exchange, request_id: int, body: Fetch, size_bytes: int = 0) -> None:
    """Answer a fetch when there is room, for `size_bytes` if that is known."""
    exchange.begin(request_id)

    def read() -> None:
        exchange.end()
        try:
            exchange.check(body)  # what the client may do can have changed meanwhile
            _try_fetch(exchange, request_id, body, last=True)
        except AntiphonError as error:
            exchange.fail(request_id, error)

    exchange.when_room(read, (lambda: size_bytes) if size_bytes else None)


def _reply(exchange: Exchange, request_id: int, found: FetchResult) -> None:
    reply = Fetched(
        found.high_watermark, found.log_start, found.log_end, found.term, found.stable_end, found.aborted
    )
    exchange.reply(request_id, reply, found.batches)
    exchange.counted()


def _begin_cold(exchange: Exchange, request_id: int, body: Fetch, *, has_room: bool = False) -> None:
    """Without room for the first batch, however large it is, read what there is room for: most batches are small."""
    size_bytes = _fetch_bytes(exchange, body)
    has_room = has_room or exchange.fits(max(size_bytes, BATCH_BYTES))
    exchange.spawn(_fetch_cold(exchange, request_id, body, size_bytes, has_room=has_room))
    exchange.reserve(max(size_bytes, BATCH_BYTES) if has_room else size_bytes)


def _begin_cold_if_allowed(
    exchange: Exchange, request_id: int, body: Fetch, *, has_room: bool = True
) -> None:
    """It may have waited for room, and what the client may do can have changed meanwhile."""
    try:
        exchange.check(body)
    except AntiphonError as error:
        exchange.end()
        exchange.fail(request_id, error)
    else:
        _begin_cold(exchange, request_id, body, has_room=has_room)


async def _fetch_cold(
    exchange: Exchange, request_id: int, body: Fetch, size_bytes: int, *, has_room: bool
) -> None:
    """A fetch from the disk: answered when it was read, and empty where there is nothing to be read yet."""
    reserved = max(size_bytes, BATCH_BYTES) if has_room else size_bytes
    try:
        found = await exchange.gateway.fetch(
            body.shard_id, body.offset, size_bytes, body.isolation, at_least_one=has_room
        )
        if found.batches or has_room:
            _reply(exchange, request_id, found)
        else:
            exchange.begin(request_id)
            again = partial(_begin_cold_if_allowed, exchange, request_id, body)
            exchange.reserve(-reserved)
            reserved = 0
            exchange.when_room(again, lambda: BATCH_BYTES)
    except AntiphonError as error:
        exchange.reserve(-reserved)
        reserved = 0
        is_passed_on = isinstance(error, NotLeaderError) and exchange.forward(
            request_id, body, memoryview(b""), error
        )
        if not is_passed_on:
            exchange.fail(request_id, error)
    finally:
        exchange.reserve(-reserved)  # the answer counts by now
        exchange.end()


def _follow(exchange: Exchange, request_id: int, body: Fetch) -> None:
    """Answer when there is data, or when the time is over."""
    gateway = exchange.gateway
    key = gateway.next_follow_key()
    exchange.begin(request_id)
    finished = False

    def finish() -> None:
        nonlocal finished
        if finished:
            return
        finished = True
        timer.cancel()
        exchange.following.pop(key, None)
        gateway.unfollow(body.shard_id, key)
        exchange.end()
        _when_room(exchange, request_id, body)

    timer = asyncio.get_running_loop().call_later(min(body.wait_ms, WAIT_MS_MAX) / 1000, finish)
    if gateway.follow(key, body.shard_id, body.offset, body.isolation, finish):
        exchange.following[key] = body.shard_id
    else:
        finish()


def list_offset(exchange: Exchange, request_id: int, body: ListOffset, _payload: memoryview) -> None:
    """Answer with an offset by timestamp."""
    exchange.reply(request_id, OffsetReply(*exchange.gateway.list_offset(body.shard_id, body.timestamp_ms)))


def trim_shard(exchange: Exchange, request_id: int, body: TrimShard, _payload: memoryview) -> None:
    """Let the log of this node's replica begin later."""
    gateway = exchange.gateway
    gateway.check_may_write(body.shard_id, internal=body.internal)

    async def run() -> Trimmed:
        return Trimmed(await gateway.trim_replica(body.shard_id, body.before))

    exchange.later(request_id, run())


def _fetch_bytes(exchange: Exchange, body: Fetch) -> int:
    return max(1, min(body.max_bytes, FETCH_BYTES_MAX, exchange.room_bytes))


LOG_HANDLERS: Final[dict[type, Callable[[Exchange, int, Any, memoryview], None]]] = {
    AppendBatch: append,
    Fetch: fetch,
    ListOffset: list_offset,
    TrimShard: trim_shard,
}
