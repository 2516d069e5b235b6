"""Reads from one table shard: keys that many callers ask for in one `TableGet`."""

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from antiphon import tracing
from antiphon.client.cluster import Cluster
from antiphon.client.connection_errors import ClientClosedError
from antiphon.client.pipeline import Item, fail_items, trace_among, trace_call
from antiphon.client.sweeper import Sweeper
from antiphon.client.tasks import begin_task, end_tasks
from antiphon.errors import (
    AntiphonError,
    FrameTooLargeError,
    ProtocolViolationError,
    TimedOutError,
    WrongShardError,
)
from antiphon.model.requests import TableGet, TableRows

KEYS_PER_REQUEST: Final = 64


class TableReader:
    """Gathers the keys that are asked for in one turn of the event loop; futures get a Row or None."""

    def __init__(
        self, cluster: Cluster, shard_id: int, consistency: str, moved: Callable[[list[Item], int], None]
    ) -> None:
        """`moved(items, shard_id)` takes keys that this shard does not hold any more."""
        self._cluster = cluster
        self._moved = moved
        self._shard_id = shard_id
        self._consistency = consistency
        self._loop = asyncio.get_running_loop()
        self._asked: list[Item] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: dict[int, list[Item]] = {}  # sent and not answered
        self._next_id = 0
        self._sweeper = Sweeper(self._loop, self._sweep)

    def add(self, item: Item) -> None:
        """Ask for a key, which is `item.what`."""
        if not self._asked:
            self._loop.call_soon(self._flush)
        if tracing.tracer is not None:
            trace_call(item, "get", self._shard_id)
        self._asked.append(item)

    async def close(self) -> None:
        """Stop asking; what is open fails."""
        self._sweeper.plan(math.inf)
        await end_tasks(*self._tasks)

    def _flush(self) -> None:
        asked, self._asked = self._asked, []
        for at in range(0, len(asked), KEYS_PER_REQUEST):
            self._send(asked[at : at + KEYS_PER_REQUEST])

    def _send(self, items: list[Item]) -> None:
        """The quick way: the connection is there and the leader answers. Everything else takes the long way."""
        connection = self._cluster.ready_connection(self._shard_id)
        if connection is None:
            begin_task(self._ask(items), self._tasks)
            return
        request_id = self._next_id
        self._next_id += 1

        def answered(reply: Any, _payload: memoryview) -> None:
            self._open.pop(request_id, None)
            if isinstance(reply, AntiphonError):
                begin_task(self._ask(items), self._tasks)
            else:
                _resolve(items, reply)

        try:
            trace = None if tracing.tracer is None else trace_among(items)
            connection.send(self._request(items), answered, (), trace)
        except AntiphonError:
            begin_task(self._ask(items), self._tasks)
            return
        self._open[request_id] = items
        deadline = min([item.deadline for item in items])
        if deadline < self._sweeper.at_s:
            self._sweeper.plan(deadline)

    def _sweep(self, now: float) -> float:
        """Fail the reads whose time is over; returns the next deadline."""
        waiting = [item for items in self._open.values() for item in items if not item.future.done()]
        fail_items(
            [item for item in waiting if item.deadline <= now],
            TimedOutError("the shard's leader did not answer the read in time: read again"),
        )
        return min((item.deadline for item in waiting if item.deadline > now), default=math.inf)

    def _request(self, items: list[Item]) -> TableGet:
        return TableGet(self._shard_id, tuple([item.what for item in items]), self._consistency)

    async def _ask(self, items: list[Item]) -> None:
        items = [item for item in items if not item.future.done()]
        if not items:
            return
        left_s = max(item.deadline for item in items) - self._loop.time()
        try:
            reply, _ = await self._cluster.call_shard(
                self._shard_id, self._request(items), timeout_s=left_s, trace=trace_among(items) or ""
            )
        except FrameTooLargeError as error:
            if len(items) == 1:
                fail_items(items, error)
            else:
                for item in items:
                    begin_task(self._ask([item]), self._tasks)
        except WrongShardError:
            self._moved(items, self._shard_id)
        except AntiphonError as error:
            fail_items(items, error)
        except asyncio.CancelledError:
            fail_items(items, ClientClosedError("the client was closed before an answer came"))
            raise
        else:
            _resolve(items, reply)


def _resolve(items: list[Item], reply: Any) -> None:
    if type(reply) is not TableRows or len(reply.rows) != len(items):
        fail_items(items, ProtocolViolationError("the answer to a table read does not fit what was asked"))
        return
    for item, row in zip(items, reply.rows, strict=True):
        if not item.future.done():
            item.future.set_result(row)
