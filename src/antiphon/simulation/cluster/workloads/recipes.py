"""Clients of the recipes: they hold a lock, lead, count, put and take, fall silent and stand still, while leaders change.

- `one-holder`: no two acquisitions of a lock have one token, and nobody gets it while another one's session is kept. Who
  takes its session for lost by its own clock does not hold it any more.
- `fenced-write`: a write that was guarded by a lock stands in the log while the lock's row has its token; tokens rise.
- `counted-once`: no two additions return the same number, and the counter ends where they bring it.
- `queue`: each item that was put is done, by one taker, and none is done that was not put.
- What the logs say of sessions is judged as for other clients with sessions (`session_history`).
"""

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError, InvalidRequestError, SessionNotFoundError, VersionMismatchError
from antiphon.recipes import AsyncCounter, AsyncLeaderElection, AsyncLock, AsyncQueue
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.kept_session import KeptSession
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.session_history import SessionHistory, ShardSessions
from antiphon.simulation.cluster.workloads.sessioned import LOOK_S, TIMEOUTS_S, SessionedWorkload
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.client.session import AsyncSession
    from antiphon.records.decode import Record
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

LOCKS: Final = ("lock", "chair")
ITEM: Final = b"jobs/item/"


class Holder(KeptSession):
    """Who was told that it holds a lock, until it begins to give it back. `token`: as soon as it holds it."""

    def __init__(self, name: str, session: "AsyncSession", process: "Process") -> None:
        super().__init__(session, process)
        self.name = name
        self.token = -1
        session.when_lost(self.lost)


class ShardRecipes(ShardSessions):
    """A shard's log, with what stands under a lock in it, and what was done of the queue."""

    def __init__(self, shard_id: int, *, is_child: bool) -> None:
        super().__init__(shard_id, is_child=is_child)
        self.last_tokens: dict[bytes, int] = {}
        self.done: list[bytes] = []
        self._items: dict[bytes, bytes] = {}

    def seen(self, records: "list[Record]") -> None:
        """See ShardSessions."""
        for record in records:
            key = record.key or b""
            if key.startswith(ITEM) and record.value is not None:
                self._items[key] = record.value
            if self.copies:
                continue
            if key.startswith(ITEM) and record.value is None:
                self.done.append(self._items[key])
            if not key.startswith(b"under ") or record.value is None:
                continue
            lock, token = key.removeprefix(b"under "), int(record.value.split(b" ")[0])
            row = self.rows.get(lock)
            require(
                row is not None and row.version_id == token and token >= self.last_tokens.get(lock, -1),
                "fenced-write",
                f"{record.value!r} was written under {lock!r}, whose row then had version "
                f"{None if row is None else row.version_id}; the last token was {self.last_tokens.get(lock)}",
                self.shard_id,
            )
            self.last_tokens[lock] = token


class RecipesHistory(SessionHistory):
    """The logs of the table of the recipes."""

    def fold(self, shard_id: int, *, is_child: bool) -> ShardSessions:
        """See SessionHistory."""
        return ShardRecipes(shard_id, is_child=is_child)


@workload("recipe_clients", 26, Drawn(one_of(0, 0, 0, 0, 3, 5), "sessions", 1))
class RecipeWorkload(SessionedWorkload):
    """Locks, elections, counters and queues (`antiphon.recipes`), whose clients fall silent and stand still.

    Checked: no two holders have one token, and nobody gets a lock while its holder's session is kept and the holder has
    not taken it for lost by its own clock; a guarded write stands in the log while the lock has its token; each addition
    counts once; each item is done once.
    """

    shards = 1
    history = RecipesHistory

    def __init__(self, cluster: "SimulatedCluster", name: str = "recipes") -> None:
        super().__init__(cluster, name)
        self.outcomes = {"locks": 0, "guarded-writes": 0, "fenced-off": 0, "counts": 0, "items-done": 0}
        self._holders: dict[str, dict[int, Holder]] = {name: {} for name in LOCKS}
        self._counts: dict[int, str] = {}
        self._unsure = 0  # additions whose outcome is not known
        self._items: dict[bytes, str] = {}  # put, done or unknown, by text

    async def live(self, db: "AsyncClient", process: "Process", name: str) -> None:
        """See `SessionedWorkload`."""
        draw = process.random
        kind = draw.random()
        try:
            if kind < 0.5:
                await self._hold(db, process, name, draw.choice(LOCKS))
            elif kind < 0.7:
                await self._count(db, name)
            else:
                await self._queue(db, process, name)
        except InvalidRequestError:
            await asyncio.sleep(LOOK_S)  # the table was split, and keys are in two shards now
        except AntiphonError as error:
            self.cluster.tell("recipe-failed", name, error.code)
        await self.think(process)

    # -- locks ----------------------------------------------------------------------------------------------------

    async def _hold(self, db: "AsyncClient", process: "Process", name: str, lock_name: str) -> None:
        draw = process.random
        timeout_s = draw.choice(TIMEOUTS_S)
        session = db.session(timeout_s=timeout_s)
        mine = Holder(name, session, process)
        lock: AsyncLock | AsyncLeaderElection
        if lock_name == "lock":
            lock = AsyncLock(db, self.name, lock_name, session=session)
            token = await lock.acquire(timeout_s=2.0)
        else:
            lock = AsyncLeaderElection(db, self.name, lock_name, candidate=name, session=session)
            token = await lock.campaign(timeout_s=2.0)
        mine.token = token
        self._got(lock_name, mine)
        for serial in range(draw.randint(1, 6)):
            await self._write_guarded(db, lock, lock_name, f"{token} {name} {serial}".encode())
            await self.think(process)
        if draw.random() < 0.6:
            mine.is_over = True
            await (lock.release() if isinstance(lock, AsyncLock) else lock.resign())
            await session.close()

    def _got(self, lock_name: str, mine: Holder) -> None:
        holders = self._holders[lock_name]
        self.outcomes["locks"] += 1
        self.cluster.tell("lock", lock_name, mine.name, mine.token)
        self.require(
            mine.token not in holders,
            "one-holder",
            f"{mine.name} and another one hold {lock_name!r} with {mine.token}",
        )
        for other in holders.values():
            until_s = other.kept_until_s(self.fastest)
            self.require(
                self.now >= until_s or other.token > mine.token,
                "one-holder",
                f"{mine.name} holds {lock_name!r} at {self.now}, and {other.name} does until {until_s}",
            )
        holders[mine.token] = mine

    async def _write_guarded(
        self, db: "AsyncClient", lock: AsyncLock | AsyncLeaderElection, lock_name: str, value: bytes
    ) -> None:
        transaction = db.table(self.name).transaction()
        lock.guard(transaction)
        transaction.put(f"under {lock_name}", value)
        try:
            await transaction.commit()
        except VersionMismatchError:
            self.outcomes["fenced-off"] += 1
            raise SessionNotFoundError("the lock is somebody else's") from None
        self.outcomes["guarded-writes"] += 1

    # -- counters and queues --------------------------------------------------------------------------------------

    async def _count(self, db: "AsyncClient", name: str) -> None:
        counter = AsyncCounter(db, self.name, "count")
        self._unsure += 1
        number = await counter.add(timeout_s=PATIENCE_S)
        self._unsure -= 1
        self.require(
            number not in self._counts,
            "counted-once",
            f"{name} and {self._counts.get(number)} both counted {number}",
        )
        self._counts[number] = name
        self.outcomes["counts"] += 1

    async def _queue(self, db: "AsyncClient", process: "Process", name: str) -> None:
        queue = AsyncQueue(db, self.name, "jobs")
        self._items[name.encode()] = "unknown"
        await queue.put(name.encode(), timeout_s=PATIENCE_S)
        self._items[name.encode()] = "put"
        session = db.session(timeout_s=process.random.choice(TIMEOUTS_S))
        taken = await queue.take(session, timeout_s=PATIENCE_S)
        await self.think(process)
        fate = process.random.random()
        if fate < 0.6:
            await taken.done()
            self.require(self._items.get(taken.item) != "done", "queue", f"{taken.item!r} was done twice")
            self._items[taken.item] = "done"
            self.outcomes["items-done"] += 1
        elif fate < 0.8:
            await taken.give_back()
        if fate < 0.9:
            await session.close()

    def check(self) -> None:
        """See `Workload`."""
        history = self.read_all()
        rows = {key: row for shard in history.shards.values() for key, row in shard.rows.items()}
        done = [
            key for shard in history.shards.values() if isinstance(shard, ShardRecipes) for key in shard.done
        ]
        self.require(len(done) == len(set(done)), "queue", f"items were done twice: {sorted(done)}")
        left = {row.value for key, row in rows.items() if key.startswith(ITEM)}
        for text, outcome in self._items.items():
            self.require(
                outcome != "put" or text in left or text in done, "queue", f"{text!r} was put, and is gone"
            )
            self.require(outcome != "done" or text not in left, "queue", f"{text!r} was done, and is there")
        counted = int(rows[b"count"].value) if b"count" in rows else 0
        self.require(
            len(self._counts) <= counted <= len(self._counts) + self._unsure,
            "counted-once",
            f"the counter ends at {counted}, after {len(self._counts)} additions and {self._unsure} that may be",
        )
