"""Work on a table of Antiphon through its asynchronous client."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import uvloop

from antiphon import aio
from antiphon.errors import AntiphonError, TopicExistsError
from tests.peers.clients.process import Due, Job, Result, result, serve
from tests.peers.clients.values import random_values

SHARDS: Final = 4
TICK_S: Final = 0.001
OVERDUE_MAX: Final = 50_000
REST_S: Final = 30.0


class TableWork:
    """Workers that each have one operation in flight, or operations at a fixed rate."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._values = random_values(job["value_bytes"])
        self._loop = uvloop.new_event_loop()
        self._random = random.Random(job["number"])
        self._loop.run_until_complete(self._connect())

    async def _connect(self) -> None:
        db = await aio.connect(self._job["servers"])
        self._table = db.table(self._job["topic"])
        try:
            await db.create_table(self._job["topic"], shards=SHARDS, replicas=3)
        except TopicExistsError:
            return
        await asyncio.gather(
            *(self._table.put(_key(at), self._values[at % 1000]) for at in range(self._job["keys"]))
        )

    def run(self, seconds: float) -> Result:
        work = self._open if self._job.get("rate") else self._closed
        return self._loop.run_until_complete(work(seconds))

    def _operation(self) -> Callable[[], Awaitable[Any]]:
        table, values, keys, below = self._table, self._values, self._job["keys"], self._random.randrange

        def put() -> Awaitable[Any]:
            return table.put(_key(below(keys)), values[below(len(values))])

        def get() -> Awaitable[Any]:
            return table.get(_key(below(keys)))

        def mixed() -> Awaitable[Any]:
            return put() if below(2) else get()

        async def scan() -> None:
            start = below(keys - self._job["scanned"])
            found = 0
            async for _ in table.scan(_key(start), _key(start + self._job["scanned"])):
                found += 1
            if found != self._job["scanned"]:
                raise AntiphonError(f"a scan found {found} rows")

        kinds: dict[str, Callable[[], Awaitable[Any]]] = {
            "put": put,
            "get": get,
            "mixed": mixed,
            "scan": scan,
        }
        return kinds[self._job["work"]]

    async def _closed(self, seconds: float) -> Result:
        operation = self._operation()
        took_s: list[float] = []
        failed = 0
        clock = time.perf_counter
        began = clock()
        end = began + seconds

        async def worker() -> None:
            nonlocal failed
            while (at := clock()) < end:
                try:
                    await operation()
                except AntiphonError:
                    failed += 1
                else:
                    took_s.append(clock() - at)

        await asyncio.gather(*(worker() for _ in range(self._job["in_flight"])))
        return result(len(took_s), clock() - began, (one * 1e6 for one in took_s), failed)

    async def _open(self, seconds: float) -> Result:
        operation = self._operation()
        took_s: list[float] = []
        refused = 0
        running: set[asyncio.Future[Any]] = set()
        clock = time.perf_counter
        began = clock()
        due = Due(self._job["rate"])

        def start(at: float) -> None:
            def done(future: "asyncio.Future[Any]") -> None:
                nonlocal refused
                running.discard(future)
                if future.cancelled() or future.exception() is not None:
                    refused += 1
                else:
                    took_s.append(clock() - at)

            future = asyncio.ensure_future(operation())
            running.add(future)
            future.add_done_callback(done)

        while clock() < began + seconds:
            for at in due.take():
                if len(running) < OVERDUE_MAX:
                    start(at)
                else:
                    refused += 1
            await asyncio.sleep(TICK_S)
        took = clock() - began
        if running:
            await asyncio.wait(running, timeout=REST_S)
        return result(len(took_s), took, (one * 1e6 for one in took_s), refused + len(running))


def _key(number: int) -> bytes:
    return b"key-%08d" % number


if __name__ == "__main__":
    serve(dict.fromkeys(("put", "get", "mixed", "scan"), TableWork))
