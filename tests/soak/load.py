"""The soak's steady clients: native appends, puts, gets, scans, a watch, bulk writes; at a fixed, modest rate.

Each writer has one request under way at a time, so its numbers stand in the log in the order in which it made them.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from antiphon import aio
from antiphon.errors import AntiphonError, OverloadedError
from antiphon.model.metadata import KeyRanges
from antiphon.model.requests import Put, TableWrite
from antiphon.records.changes import TABLE_PRODUCER_BIT
from tests.soak.figures import Latencies
from tests.soak.ledger import Follower, Ledger, parse, value_of

LOG: Final = "soak-log"
TRIMMED: Final = "soak-trimmed"  # retention works on it all the time
KAFKA: Final = "soak-kafka"
TABLE: Final = "soak-table"
BULK: Final = "soak-bulk"
OXIA: Final = "soak-oxia"  # of the clients of Oxia's protocol
SHARDS: Final = 3
KEYS: Final = 300
APPENDERS: Final = 3
PUTTERS: Final = 3
GETTERS: Final = 3
PERIOD_S: Final = 0.1  # of each of them
SCAN_PERIOD_S: Final = 0.5
SCAN_KEYS: Final = 50
BULK_PERIOD_S: Final = 0.5
BULK_KEYS: Final = 2_000
BULK_ROWS: Final = 50
BULK_BYTES: Final = 1024
TRIMMED_BYTES: Final = 1024
TIMEOUT_S: Final = 30.0

Work = Callable[[int], Awaitable[None]]


class Pace:
    """Calls something at a fixed rate until it is told to stop; what takes longer than its period leaves some out."""

    def __init__(self, ledger: Ledger, latencies: Latencies) -> None:
        self.ledger = ledger
        self.latencies = latencies
        self.stopping = asyncio.Event()

    async def every(self, period_s: float, kind: str, work: Work) -> None:
        """Call `work(number)` every so often. The time that it takes is a latency of this kind; errors are counted."""
        began_s = time.monotonic() + random.random() * period_s
        number = 0
        while not self.stopping.is_set():
            wait_s = began_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            began_s = max(began_s + period_s, time.monotonic())
            await self.timed(kind, work, number)
            number += 1

    async def timed(self, kind: str, work: Work, number: int) -> None:
        """Call it once."""
        from_s = time.monotonic()
        self.ledger.operations[kind] += 1
        try:
            await work(number)
        except Exception as error:  # noqa: BLE001 - whatever a client raises is counted and told
            self.ledger.failed(kind, error)
        else:
            self.latencies.note(kind, time.monotonic() - from_s)


def row_key(number: int) -> bytes:
    """A key of the table."""
    return b"k%05d" % number


class NativeLoad:
    """Clients that stay connected for the whole run."""

    def __init__(self, servers: str, pace: Pace) -> None:
        self._servers = servers
        self._pace = pace
        self._ledger = pace.ledger
        self.follower = Follower(pace.ledger)
        self._bulk: dict[int, tuple[int, int]] = {}  # shard id -> producer id, last sequence

    async def create(self) -> None:
        """Make the topics and tables."""
        small = {"segment.bytes": str(512 * 1024)}
        async with aio.connect(self._servers) as db:
            await db.create_topic(LOG, shards=SHARDS)
            await db.create_topic(KAFKA, shards=SHARDS)
            await db.create_topic(TRIMMED, shards=1, config={"retention.bytes": str(2 << 20), **small})
            await db.create_table(TABLE, shards=2)
            await db.create_table(OXIA, shards=2)
            await db.create_table(
                BULK, shards=2, config={"retention.bytes": str(16 << 20), "segment.bytes": str(4 << 20)}
            )

    async def run(self) -> None:
        """Load until the pace is told to stop."""
        every = self._pace.every
        async with aio.connect(self._servers, client_id="soak") as db, asyncio.TaskGroup() as tasks:
            for number in range(APPENDERS):
                work = self._appender(db, f"native-{number}", LOG, number % SHARDS)
                tasks.create_task(every(PERIOD_S, "native append", work))
            trimmed = self._appender(db, "trimmed-0", TRIMMED, 0, TRIMMED_BYTES)
            tasks.create_task(every(PERIOD_S, "native append", trimmed))
            for number in range(PUTTERS):
                tasks.create_task(every(PERIOD_S, "put", self._putter(db, number)))
            for number in range(GETTERS):
                tasks.create_task(every(PERIOD_S, "get", self._getter(db, random.Random(number))))
            tasks.create_task(every(SCAN_PERIOD_S, "scan", self._scanner(db, random.Random("scan"))))
            tasks.create_task(every(BULK_PERIOD_S, "bulk write", self._bulk_writer(db)))
            watching = asyncio.create_task(self._watch(db))
            await self._pace.stopping.wait()
            await self._let_the_watch_end(watching)

    def _appender(self, db: Any, writer: str, topic: str, shard: int, size: int = 100) -> Work:
        async def append(number: int) -> None:
            at = await db.topic(topic).append(
                value_of(writer, number, size), shard=shard, timeout_s=TIMEOUT_S
            )
            self._ledger.acknowledged(topic, shard, writer, number, at.offset)

        return append

    def _putter(self, db: Any, which: int) -> Work:
        """One putter for each key: the numbers of a key rise."""

        async def put(number: int) -> None:
            key = row_key((number * PUTTERS + which) % KEYS)
            await self._put(db.table(TABLE), key, f"put-{which}")

        return put

    async def _put(self, table: Any, key: bytes, writer: str) -> None:
        told = self._ledger.rows[key]
        told.sent += 1
        number = told.sent
        try:
            await table.put(key, value_of(writer, number), timeout_s=TIMEOUT_S)
        except AntiphonError:
            told.unknown.add(number)
            raise
        told.acknowledged = number

    def _getter(self, db: Any, rng: random.Random) -> Work:
        async def get(_: int) -> None:
            key = row_key(rng.randrange(KEYS))
            floor = self._ledger.rows[key].acknowledged
            row = await db.table(TABLE).find(key, timeout_s=TIMEOUT_S)
            self._is_fresh("get", key, None if row is None else row.value, floor)

        return get

    def _scanner(self, db: Any, rng: random.Random) -> Work:
        async def scan(_: int) -> None:
            first = rng.randrange(KEYS - SCAN_KEYS)
            floors = {
                row_key(n): self._ledger.rows[row_key(n)].acknowledged
                for n in range(first, first + SCAN_KEYS)
            }
            rows = db.table(TABLE).scan(row_key(first), row_key(first + SCAN_KEYS), timeout_s=TIMEOUT_S)
            found = {row.key: row.value async for row in rows}
            for key, floor in floors.items():
                self._is_fresh("scan", key, found.get(key), floor)

        return scan

    def _is_fresh(self, what: str, key: bytes, value: bytes | None, floor: int) -> None:
        """Reads are linearizable: what was acknowledged before a read began is in it, and nothing that nobody sent."""
        number = -1 if value is None else parse(value)[1]
        if not floor <= number <= self._ledger.rows[key].sent:
            self._ledger.problem(f"a {what} found {number} of {key!r}, {floor} was acknowledged before")

    def _bulk_writer(self, db: Any) -> Work:
        async def write(number: int) -> None:
            meta = next(topic for topic in (await db.metadata()).topics if topic.name == BULK)
            ranges = KeyRanges(meta.shards)
            keys = [b"b%05d" % ((number * BULK_ROWS + n) % BULK_KEYS) for n in range(BULK_ROWS)]
            for shard in meta.shards:
                mine = [key for key in keys if ranges.shard_of(key).shard_id == shard.shard_id]
                await self._write_bulk(db, shard.shard_id, mine)

        return write

    async def _write_bulk(self, db: Any, shard_id: int, keys: list[bytes]) -> None:
        rows = {key: self._ledger.rows[key] for key in keys}
        for told in rows.values():
            told.sent += 1
        ops = tuple(Put(key, value_of("bulk", told.sent, BULK_BYTES)) for key, told in rows.items())
        if shard_id not in self._bulk:
            self._bulk[shard_id] = (await db.new_producer_id() | TABLE_PRODUCER_BIT, 0)
        producer, sequence = self._bulk[shard_id]
        self._bulk[shard_id] = (producer, sequence + 1)
        request = TableWrite(shard_id, ops, producer, 0, sequence, bulk=True)
        while True:
            try:
                await db.write_raw(request, timeout_s=TIMEOUT_S)
            except OverloadedError:
                await asyncio.sleep(0.5)
                continue
            except AntiphonError:
                for told in rows.values():
                    told.unknown.add(told.sent)
                raise
            break
        for told in rows.values():
            told.acknowledged = told.sent

    async def _watch(self, db: Any) -> None:
        async with db.table(TABLE).watch(start=-2) as changes:
            async for change in changes:
                self.follower.take(change.key, parse(change.value)[1])

    async def _let_the_watch_end(self, watching: "asyncio.Task[None]") -> None:
        """Once nobody puts any more, all changes come soon."""
        await asyncio.sleep(1.0)  # what is under way ends
        deadline_s = time.monotonic() + TIMEOUT_S
        while not watching.done() and not self.follower.complete():
            if time.monotonic() > deadline_s:
                self._ledger.problem(f"the watch did not get all changes within {TIMEOUT_S:.0f} s")
                break
            await asyncio.sleep(0.1)
        watching.cancel()
        ended = (await asyncio.gather(watching, return_exceptions=True))[0]
        if isinstance(ended, Exception):
            self._ledger.failed("watch", ended)
