"""Requests to shards of tables, whoever leads them: carried out here or asked of the leader, and held while there is none.

Oxia's Python client repeats nothing, so a fail-over has to pass unseen: a request waits here for the next leader, for a
bounded time. Reads may be repeated. Writes carry a producer and a sequence, by which a shard knows one that it has carried
out already (`writes.py`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from antiphon.errors import (
    AntiphonError,
    NotLeaderError,
    NotReadyError,
    TimedOutError,
    UnavailableError,
    WrongShardError,
)
from antiphon.gateway.access import check
from antiphon.gateway.answers import awaited
from antiphon.gateway.row_sizes import KEY_BYTES, size_of
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.key_order import OrderedFind, OrderedScan
from antiphon.model.metadata import ABSENT_NODE
from antiphon.model.requests import (
    Fetch,
    Fetched,
    ListOffset,
    OffsetReply,
    TableGet,
    TableScan,
    TableWrite,
)

if TYPE_CHECKING:
    from antiphon.gateway.interface import Gateway
    from antiphon.oxia.call import Call
    from antiphon.oxia.read_room import ReadRoom
    from antiphon.security.authorizer import Rights

ReplyT = TypeVar("ReplyT")
HOLD_S: Final = 20.0  # that a request waits for a leader
TRY_S: Final = 10.0  # that one try may take
ROW_BYTES: Final = 1024 * 1024  # of a row, about: tables take no larger batches unless their settings say so
GET_BYTES_MAX: Final = 8 * 1024 * 1024  # of all rows of a get
SCAN_BYTES_MAX: Final = 2 * 1024 * 1024  # of all rows of a page
ROWS: Final = (TableGet, TableScan, IndexFind, IndexScan, OrderedFind, OrderedScan)
READS: Final = (*ROWS, Fetch)
SMALL_AT_ONCE: Final = 32  # reads of a row that one other node is asked for: it counts no answers for nodes
LARGE_AT_ONCE: Final = 8  # the same of several rows
GLANCE_KEYS: Final = 1  # of a get that is read without room, to see how large its row is
GLANCES_MAX: Final = 8  # such gets of the node at once, and one of each connection
PAUSES_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2)  # between tries


class ShardRequests:
    """See the module's text; for all calls of a listener."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()
        self._at_once: dict[tuple[int, bool], asyncio.Semaphore] = {}  # reads that another node answers
        self._glances = asyncio.Semaphore(GLANCES_MAX)

    def check(self, body: Any, rights: "Rights") -> None:
        """Raise unless a client may ask for this."""
        check(self._gateway, rights, body)

    async def ask(self, body: Any, rights: "Rights", deadline_s: float | None = None) -> Any:
        """The leader's answer to a request that may be repeated. Raises AntiphonError."""
        reply, _ = await self.ask_bulk(body, rights, deadline_s)
        return reply

    async def read(self, body: Any, rights: "Rights", call: "Call") -> Any:
        """Rows for a call's answer, when there is room for them; the call counts them until it says otherwise."""
        wanted = expected_bytes(body)
        if isinstance(body, TableGet) and len(body.keys) <= GLANCE_KEYS and not call.may_read(wanted):
            async with call.connection.read_room.glancing, self._glances:
                reply, _ = await self.ask_bulk(body, rights, call.deadline_s)
                wanted = size_of(reply)
                if call.has_room_for_little(wanted):
                    call.keep(call.read_bytes + wanted)
                    return reply
                del reply  # it is read again when there is room
        await call.reserve(wanted)
        found_bytes = 0
        try:
            reply, _ = await self.ask_bulk(body, rights, call.deadline_s, call.connection.read_room)
            found_bytes = size_of(reply)
        finally:
            call.keep(call.read_bytes - wanted + found_bytes)
        return reply

    async def ask_bulk(
        self, body: Any, rights: "Rights", deadline_s: float | None = None, room: "ReadRoom | None" = None
    ) -> tuple[Any, memoryview]:
        """The same, with the bytes that come with it."""
        until_s = self._loop.time() + HOLD_S
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
        self.check(body, rights)
        told_leader: int | None = None
        tries = 0
        while True:
            try:
                _, shard = self._gateway.shard(body.shard_id)
                leader = shard.leader if told_leader is None else told_leader
                return await self._once(
                    leader, body, min(TRY_S, max(0.01, until_s - self._loop.time())), room
                )
            except WrongShardError:
                raise
            except AntiphonError as error:
                if not error.retriable:
                    raise
                pause_s = PAUSES_S[min(tries, len(PAUSES_S) - 1)]
                if self._loop.time() + pause_s >= until_s:
                    raise
                hint = error.details.get("leader") if isinstance(error, NotLeaderError) else None
                told_leader = hint if isinstance(hint, int) and hint != ABSENT_NODE else None
            tries += 1
            await asyncio.sleep(pause_s)

    async def _once(
        self, leader: int, body: Any, timeout_s: float, room: "ReadRoom | None"
    ) -> tuple[Any, memoryview]:
        gateway = self._gateway
        if leader == gateway.node_id:
            return await self._here(body, timeout_s, room)
        if leader == ABSENT_NODE:
            raise NotReadyError(f"shard {body.shard_id} has no leader now")
        if isinstance(body, Fetch):
            timeout_s = body.wait_ms / 1000 + timeout_s
        asking = gateway.questions.ask_bulk(leader, body, timeout_s)
        is_waiting = isinstance(body, Fetch) and body.wait_ms > 0
        return await (
            self._in_order(leader, body, asking) if isinstance(body, READS) and not is_waiting else asking
        )

    async def _in_order(
        self, leader: int, body: Any, asking: Coroutine[Any, Any, tuple[Any, memoryview]]
    ) -> tuple[Any, memoryview]:
        """Ask another node for what may be large: a few at once. A call that is given up leaves its place when the answer
        has come, for it comes all the same.
        """
        is_large = expected_bytes(body) > ROW_BYTES
        at_once = self._at_once.setdefault(
            (leader, is_large), asyncio.Semaphore(LARGE_AT_ONCE if is_large else SMALL_AT_ONCE)
        )

        def over(task: "asyncio.Task[Any]") -> None:
            at_once.release()
            if not task.cancelled():
                task.exception()  # whoever waits for it hears of it

        try:
            await at_once.acquire()
        except asyncio.CancelledError:
            asking.close()
            raise
        task = self._loop.create_task(asking)
        task.add_done_callback(over)
        return await asyncio.shield(task)

    async def _here(self, body: Any, timeout_s: float, room: "ReadRoom | None") -> tuple[Any, memoryview]:
        gateway = self._gateway
        if isinstance(body, Fetch):
            return await self._fetch_here(body)
        if isinstance(body, ListOffset):
            found = gateway.list_offset(body.shard_id, body.timestamp_ms)
            told = OffsetReply(
                found.offset, found.timestamp_ms, found.term, found.log_start, found.high_watermark
            )
            return told, memoryview(b"")
        future, done = awaited()
        if isinstance(body, TableWrite):
            gateway.check_may_write(body.shard_id, internal=False)
            gateway.submit_table_write(body, done)
        elif isinstance(body, ROWS):
            if room is None:
                gateway.submit_table_read(body, done)
            else:

                def read(rows: Any) -> None:
                    room.spent(size_of(rows))
                    done(rows)

                gateway.submit_table_read(body, read, partial(_in_turn, room, future))
        else:
            gateway.check_may_write(body.shard_id, internal=False)
            gateway.submit_session(body, done)
        try:
            async with asyncio.timeout(timeout_s):
                return await future, memoryview(b"")
        except AntiphonError:  # some are TimeoutErrors, too
            raise
        except TimeoutError:
            raise TimedOutError(f"shard {body.shard_id} did not answer within {timeout_s:.1f} s") from None

    async def _fetch_here(self, body: Fetch) -> tuple[Any, memoryview]:
        gateway = self._gateway
        if body.wait_ms:
            await gateway.wait_for_data([(body.shard_id, body.offset)], body.isolation, body.wait_ms / 1000)
        found = await gateway.fetch(body.shard_id, body.offset, body.max_bytes, body.isolation)
        told = Fetched(
            found.high_watermark, found.log_start, found.log_end, found.term, found.stable_end, found.aborted
        )
        return told, memoryview(b"".join(found.batches))


def _in_turn(room: "ReadRoom", future: "asyncio.Future[Any]", read: Callable[[], None]) -> None:
    """Read when it is its turn; what goes wrong then is the answer."""

    def attempt() -> None:
        if future.done():
            return  # nobody waits for it any more
        try:
            read()
        except AntiphonError as error:
            future.set_exception(error)
        except Exception as error:  # noqa: BLE001 - answered as a bug of this node, which its log has
            structlog.get_logger().error("oxia_read_failed", exc_info=error)
            future.set_exception(UnavailableError(f"the node failed: {type(error).__name__}: {error}"))

    room.admit(attempt)


def expected_bytes(body: Any) -> int:
    """What is counted for an answer before it is known how large it is."""
    if isinstance(body, TableScan | IndexScan | OrderedScan | Fetch):
        return SCAN_BYTES_MAX
    if isinstance(body, TableGet | OrderedFind):
        return min(GET_BYTES_MAX, len(body.keys) * (ROW_BYTES if body.include_value else KEY_BYTES))
    return ROW_BYTES


def reply_as(kind: type[ReplyT], reply: Any) -> ReplyT:
    """A reply that is what it has to be."""
    if not isinstance(reply, kind):
        raise UnavailableError(f"a node answered with a {type(reply).__name__}")
    return reply
