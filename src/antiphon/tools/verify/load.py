"""The native load of `antiphon verify`: appenders, table clients, a follower of the topic and a watcher of the table.

Every value is written once, so a value names its write. The pace is moderate on purpose: what finds mistakes is what goes on
at the same time, not how much of it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

from antiphon.client.tasks import end_tasks
from antiphon.errors import AntiphonError, OffsetMismatchError, VersionMismatchError
from antiphon.tools.verify.history import Append, History, Outcome, Seen, TableCall, now_ns, outcome_of

TOPIC: Final = "verify-log"
KAFKA_TOPIC: Final = "verify-kafka"
TABLE: Final = "verify-table"
SHARDS: Final = 3
TABLE_SHARDS: Final = 2
KEYS: Final = 5  # at a time; a few keys are what makes operations meet
KEYS_CHANGE_S: Final = 10.0
APPENDERS: Final = 3
CONDITIONAL_APPENDERS: Final = 2
TABLE_CLIENTS: Final = 5
IDLE_S: Final = 1.0
PAUSE_S_MAX: Final = 0.03
BATCH_MAX: Final = 5
TIMEOUTS_S: Final = (0.7, 3.0, 10.0)  # short ones leave unknown outcomes behind


class NativeLoad:
    """Runs on one event loop until `stop()`; everything lands in the history."""

    def __init__(self, servers: str, history: History, rng: random.Random, profile: str = "oxia") -> None:
        self._servers = servers
        self._profile = profile
        self._history = history
        self._rng = rng
        self._stopping = asyncio.Event()
        self._began_ns = now_ns()

    async def create(self) -> None:
        """Make the topics and the table."""
        from antiphon import aio

        async with aio.connect(self._servers) as db:
            await db.create_topic(TOPIC, shards=SHARDS, profile=self._profile)
            await db.create_topic(KAFKA_TOPIC, shards=SHARDS, profile=self._profile)
            await db.create_table(TABLE, shards=TABLE_SHARDS, profile=self._profile)

    async def run(self) -> None:
        """Load until told to stop, then let what is open end. Clients are several, so that they share nothing."""
        writers: list[tuple[str, Callable[[Any, str, random.Random], Awaitable[None]]]] = []
        writers += [(f"a{i}", self._append) for i in range(APPENDERS)]
        writers += [(f"c{i}", self._append_conditionally) for i in range(CONDITIONAL_APPENDERS)]
        writers += [(f"t{i}", self._use_table) for i in range(TABLE_CLIENTS)]
        readers = [
            asyncio.create_task(self._guarded(f"follower of shard {shard}", self._follow, shard))
            for shard in range(SHARDS)
        ]
        readers.append(asyncio.create_task(self._guarded("watcher", self._watch)))
        await asyncio.gather(*(self._client(name, work) for name, work in writers))
        self._readers = readers

    def stop(self) -> None:
        """Start nothing new. Call it on the loop."""
        self._stopping.set()

    async def finish_readers(self) -> None:
        """Let the readers get what is left, until nothing has come for a while."""
        seen, before = 0, -1
        while seen != before:
            await asyncio.sleep(IDLE_S)
            before, seen = seen, len(self._history.followed) + len(self._history.watched)
        await end_tasks(*self._readers)

    async def _client(self, name: str, work: Callable[[Any, str, random.Random], Awaitable[None]]) -> None:
        from antiphon import aio

        rng = random.Random(f"{self._rng.random()} {name}")
        async with aio.connect(self._servers, client_id=f"verify-{name}") as db:
            while not self._stopping.is_set():
                try:
                    await work(db, name, rng)
                except Exception as error:  # noqa: BLE001 - whatever a client raises is a finding
                    self._history.surprise(f"client {name}", error)
                await asyncio.sleep(rng.random() * PAUSE_S_MAX)

    async def _guarded(self, what: str, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        from antiphon import aio

        try:
            async with aio.connect(self._servers, client_id="verify-reader") as db:
                await work(db, *args)
        except Exception as error:  # noqa: BLE001 - whatever a client raises is a finding
            self._history.surprise(what, error)

    # -- the topic ----------------------------------------------------------------------------------------------

    async def _append(self, db: Any, name: str, rng: random.Random) -> None:
        await self._append_to(db, name, rng, rng.randrange(SHARDS), None, rng.randint(1, BATCH_MAX))

    async def _append_conditionally(self, db: Any, name: str, rng: random.Random) -> None:
        """Where the log is said to end, and again from what a refusal says: sometimes it succeeds."""
        shard = rng.randrange(SHARDS)
        try:
            expected = (await db.topic(TOPIC).offsets(shard))[1]
        except AntiphonError as error:
            self._unless_explained(f"offsets for {name}", error)
            return
        for _ in range(3):
            actual = await self._append_to(db, name, rng, shard, expected, rng.randint(1, 2))
            if actual is None:
                return
            expected = actual

    async def _append_to(
        self, db: Any, name: str, rng: random.Random, shard: int, expected: int | None, count: int
    ) -> int | None:
        """Append a batch of unique values; returns what to expect next, or None when that is not known."""
        history = self._history.appends
        invoked = now_ns()
        batch = [
            Append(
                name,
                shard,
                f"{name}-{len(history) + i}".encode(),
                invoked,
                expected_offset=None if expected is None else expected + i,
            )
            for i in range(count)
        ]
        history += batch
        following: int | None = None
        try:
            positions = await db.topic(TOPIC).append_batch(
                [append.value for append in batch],
                shard=shard,
                expected_offset=expected,
                timeout_s=rng.choice(TIMEOUTS_S),
            )
        except AntiphonError as error:
            outcome = outcome_of(error)
            if isinstance(error, OffsetMismatchError):
                following = error.actual
                batch[0].actual_offset = following
            for append in batch:
                append.outcome = outcome or Outcome.UNKNOWN
            self._unless_explained(f"append by {name}", error)
        else:
            for append, position in zip(batch, positions, strict=True):
                append.outcome, append.offset, append.term = Outcome.OK, position.offset, position.term
            following = positions[-1].offset + 1
        if batch[0].outcome is not Outcome.UNKNOWN:
            returned = now_ns()
            for append in batch:
                append.returned_ns = returned
        return following

    async def _follow(self, db: Any, shard: int) -> None:
        topic = await db.topic(TOPIC)
        async for record in topic.read(shard, 0, isolation="committed", follow=True):
            self._history.followed.append(Seen(f"follower {shard}", shard, record.offset, record.value))

    # -- the table ----------------------------------------------------------------------------------------------

    async def _use_table(self, db: Any, name: str, rng: random.Random) -> None:
        era = int((now_ns() - self._began_ns) / 1e9 / KEYS_CHANGE_S)
        key = f"k{era}-{rng.randrange(KEYS)}".encode()
        kind = rng.choices(("put", "put-if", "delete", "delete-if", "get"), (3, 3, 1, 1, 4))[0]
        expected: int | None = None
        if kind.endswith("-if"):
            expected = await self._call_table(db, name, rng, "get", key)
            if expected is None:
                return
            if expected == -1 and kind == "delete-if":
                kind = "put-if"
        await self._call_table(db, name, rng, kind.removesuffix("-if"), key, expected)

    async def _call_table(
        self, db: Any, name: str, rng: random.Random, what: str, key: bytes, expected: int | None = None
    ) -> int | None:
        """One operation; returns the version that it found or made, -1 for none, None where that is not known."""
        value = f"{name}-{len(self._history.table)}".encode() if what == "put" else None
        call = TableCall(int(name[1:]), what, key, value, expected, now_ns())
        self._history.table.append(call)
        table, timeout_s = db.table(TABLE), rng.choice(TIMEOUTS_S)
        try:
            if what == "put":
                call.version = (
                    await table.put(key, value, expected_version=expected, timeout_s=timeout_s)
                ).id
            elif what == "delete":
                await table.delete(key, expected_version=expected, timeout_s=timeout_s)
            else:
                row = await table.find(key, timeout_s=timeout_s)
                call.value, call.version = (None, -1) if row is None else (row.value, row.version.id)
            call.outcome = Outcome.OK
        except AntiphonError as error:
            call.outcome = outcome_of(error) or Outcome.UNKNOWN
            if isinstance(error, VersionMismatchError):
                call.version = int(error.details["actual"])
            elif call.outcome is Outcome.REFUSED and what == "delete" and error.code == "key_not_found":
                call.version = -1
            self._unless_explained(f"{what} by {name}", error)
        if call.outcome is not Outcome.UNKNOWN:
            call.returned_ns = now_ns()
        return call.version

    async def _watch(self, db: Any) -> None:
        async with (await db.table(TABLE)).watch(start=-2) as changes:
            async for change in changes:
                self._history.watched.append(
                    Seen("watcher", change.shard, change.offset, change.value, change.key)
                )

    def _unless_explained(self, where: str, error: AntiphonError) -> None:
        if outcome_of(error) is None:
            self._history.surprise(where, error)
