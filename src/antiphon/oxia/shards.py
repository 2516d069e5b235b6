"""Requests to shards of tables, whoever leads them: carried out here or asked of the leader, and held while there is none.

Oxia's Python client repeats nothing, so a fail-over has to pass unseen: a request waits here for the next leader, for a
bounded time. Reads may be repeated. Writes carry a producer and a sequence, by which a shard knows one that it has carried
out already (`writes.py`).
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

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
from antiphon.model.attributes import IndexFind, IndexScan
from antiphon.model.metadata import ABSENT_NODE, ShardMeta, TopicMeta
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
    from antiphon.security.authorizer import Rights

HOLD_S: Final = 20.0  # that a request waits for a leader
TRY_S: Final = 10.0  # that one try may take
ROUND_S: Final = 1.0  # beyond what a fetch may wait at the leader
PAUSES_S: Final = (0.01, 0.02, 0.05, 0.1, 0.2)  # between tries


class ShardRequests:
    """See the module's text; for all calls of a listener."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._loop = asyncio.get_running_loop()

    def shard(self, shard_id: int) -> tuple[TopicMeta, ShardMeta]:
        """A shard of a table. Raises UnknownShardError, NotReadyError."""
        return self._gateway.shard(shard_id)

    async def ask(self, body: Any, rights: "Rights", deadline_s: float | None = None) -> Any:
        """The leader's answer to a request that may be repeated. Raises AntiphonError."""
        reply, _ = await self.ask_bulk(body, rights, deadline_s)
        return reply

    async def ask_bulk(
        self, body: Any, rights: "Rights", deadline_s: float | None = None
    ) -> tuple[Any, memoryview]:
        """The same, with the bytes that come with it."""
        until_s = self._loop.time() + HOLD_S
        if deadline_s is not None:
            until_s = min(until_s, deadline_s)
        check(self._gateway, rights, body)
        told_leader: int | None = None
        tries = 0
        while True:
            try:
                _, shard = self._gateway.shard(body.shard_id)
                leader = shard.leader if told_leader is None else told_leader
                return await self._once(leader, body, min(TRY_S, max(0.01, until_s - self._loop.time())))
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

    async def _once(self, leader: int, body: Any, timeout_s: float) -> tuple[Any, memoryview]:
        gateway = self._gateway
        if leader == gateway.node_id:
            return await self._here(body, timeout_s)
        if leader == ABSENT_NODE:
            raise NotReadyError(f"shard {body.shard_id} has no leader now")
        if isinstance(body, Fetch):
            timeout_s = body.wait_ms / 1000 + timeout_s
        return await gateway.questions.ask_bulk(leader, body, timeout_s)

    async def _here(self, body: Any, timeout_s: float) -> tuple[Any, memoryview]:
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
        elif isinstance(body, TableGet | TableScan | IndexFind | IndexScan):
            gateway.submit_table_read(body, done)
        else:
            gateway.check_may_write(body.shard_id, internal=False)
            gateway.submit_session(body, done)
        try:
            async with asyncio.timeout(timeout_s):
                return await future, memoryview(b"")
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


def reply_as(kind: type, reply: Any) -> Any:
    """A reply that is what it has to be."""
    if not isinstance(reply, kind):
        raise UnavailableError(f"a node answered with a {type(reply).__name__}")
    return reply
