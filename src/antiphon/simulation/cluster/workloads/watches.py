"""Watchers of a table: every committed change from the start on, once, in the order of its shard's log, and no other.

A watcher gives up now and then, or its watch fails; then it goes on behind the last change that it was given. A watch that
saw a split begin gives each key's changes in order; one that began when a table was split follows all shards at once, and
promises an order for each of them only.

A watcher that is behind what was trimmed is told so, and goes on where the log begins now: it misses what it was told is
gone, and nothing else.
"""

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from antiphon.client.watch import Change
from antiphon.errors import OffsetOutOfRangeError
from antiphon.model.metadata import ShardMeta
from antiphon.simulation.cluster.drawing import Drawn, sometimes
from antiphon.simulation.cluster.workloads.following import FollowingWorkload
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.table import TableWorkload
from antiphon.simulation.cluster.workloads.table_history import (
    Positions,
    TableHistory,
    Written,
    latest_starts,
    positions,
)
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

WATCHERS: Final = 2
CHANGES_MAX: Final = 200  # of one watch, about, until it is begun anew
PAUSE_CHANCE: Final = 0.02
PAUSE_S: Final = 1.0
LATEST: Final = -1
EARLIEST: Final = -2


class Watcher:
    """What one watcher was given: per shard the changes in the order in which they came."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.before: Positions = {}  # when the first watch was asked for
        self.after: Positions = {}  # when it had begun
        self.first: Positions = {}  # where it began at the latest: there, or where a log began in that moment
        self.given: dict[int, list[Change]] = {}
        self.next: dict[
            int, int
        ] = {}  # by shard: behind the last change that was given, or what was passed over
        self.missed: dict[int, list[range]] = {}  # by shard: offsets that it was told are gone
        self.shards: dict[int, int] = {}  # shard ids by their place in the table
        self.watches: list[
            tuple[Positions, list[tuple[int, Change]]]
        ] = []  # of each: when it had begun, all that it gave

    def place(self, shard_id: int) -> int:
        """From where on it has to be given everything."""
        return self.next.get(shard_id, self.first.get(shard_id, 0))

    def misses(self, shard_id: int, offset: int) -> bool:
        """Was it told that this is gone?"""
        return any(offset in gone for gone in self.missed.get(shard_id, ()))


@workload("watches", 3, Drawn(sometimes(0.4), "loads", 4), reads="table", switch=True)
class WatchWorkload(FollowingWorkload):
    """`watch` from now on or from the beginning, interrupted and started again.

    Checked: every committed change since the start arrives once, in the order of its log; a key's changes are in order
    over a split that the watch saw. Some watchers are slow; one that is behind a trim continues where it is told to, and
    misses nothing else.

    `writers` change the table that is watched.
    """

    def __init__(self, cluster: "SimulatedCluster", writers: TableWorkload) -> None:
        super().__init__(cluster, "watches", writers)
        self._table = writers
        self._watchers = [Watcher(self.random.choice((LATEST, EARLIEST))) for _ in range(WATCHERS)]
        self._pauses = cluster.stream("slow watchers")
        self.outcomes = {"changes": 0, "watches": 0}

    def begin(self) -> None:
        """See `Workload`."""
        for number, watcher in enumerate(self._watchers):
            self.spawn_follower(f"{number}", partial(self._watch_or_pass_over, watcher), "watch-failed")

    async def _watch_or_pass_over(self, watcher: Watcher, db: "AsyncClient", process: "Process") -> None:
        try:
            await self._watch(db, watcher, process.random.randint(1, 2 * CHANGES_MAX))
        except OffsetOutOfRangeError as error:
            index = int(error.details["shard"])
            if index not in watcher.shards:
                await self._shards(db, watcher)
            if index in watcher.shards:  # else another node's metadata was older: it happens again
                gone = range(int(error.details["asked"]), int(error.details["start"]))
                self._pass_over(watcher, watcher.shards[index], gone)
            raise

    async def _shards(self, db: "AsyncClient", watcher: Watcher) -> tuple[ShardMeta, ...]:
        topics = (await db.metadata()).topics
        found = next(topic for topic in topics if topic.name == self._table.name)
        watcher.shards = {shard.index: shard.shard_id for shard in found.shards}
        return tuple(found.shards)

    async def _watch(self, db: "AsyncClient", watcher: Watcher, changes: int) -> None:
        table, start = await db.table(self._table.name), watcher.start
        before = positions(self.cluster)
        if watcher.after:
            shards = await self._shards(db, watcher)
            start = [self._start_in(watcher, shard.shard_id) for shard in shards]  # type: ignore[assignment]
        async with table.watch(start=start) as watch:
            self.outcomes["watches"] += 1
            self.cluster.tell("watch", start)
            watcher.watches.append((positions(self.cluster), []))
            if not watcher.after:
                watcher.before, watcher.after = before, positions(self.cluster)
                watcher.first = watcher.after if watcher.start == LATEST else latest_starts(self.cluster)
            async for change in watch:
                if change.shard not in watcher.shards:
                    await self._shards(db, watcher)
                self._given(watcher, change)
                await self._take_time()
                changes -= 1
                if not changes and not self.stopped:
                    return

    async def _take_time(self) -> None:
        """Now and then a watcher is busy with a change for a while, and the next ones wait."""
        if self.cluster.options.slow_watchers and not self.stopped and self._pauses.random() < PAUSE_CHANCE:
            await asyncio.sleep(self._pauses.uniform(0.0, PAUSE_S))

    @staticmethod
    def _start_in(watcher: Watcher, shard_id: int) -> int:
        """Behind what was given of a shard, or where the first watch began there."""
        first = watcher.after.get(shard_id, 0) if watcher.start == LATEST else 0
        return watcher.next.get(shard_id, first)

    def _pass_over(self, watcher: Watcher, shard_id: int, gone: range) -> None:
        """A watch cannot go on, as these offsets are gone: so they should be."""
        latest = self.cluster.evidence.truth(shard_id).latest_start
        self.cluster.tell("watch-passes-over", shard_id, gone.start, gone.stop)
        require(
            gone.start < gone.stop <= latest,
            "watch-goes-on",
            f"a watcher at {gone.start} is told that the log begins at {gone.stop}, and none began after {latest}",
            shard_id,
        )
        watcher.missed.setdefault(shard_id, []).append(gone)
        watcher.next[shard_id] = gone.stop

    def _given(self, watcher: Watcher, change: Change) -> None:
        """A change was given: it is committed, and behind all that were given of this shard."""
        shard_id = watcher.shards[change.shard]
        self.outcomes["changes"] += 1
        self.cluster.tell("change", shard_id, change.offset, change.key, change.value)
        require(
            change.offset < self.cluster.evidence.truth(shard_id).end,
            "watch-committed",
            f"a watcher was given {change}, committed is {self.cluster.evidence.truth(shard_id).end}",
            shard_id,
        )
        require(
            change.offset >= watcher.next.get(shard_id, 0),
            "watch-once",
            f"a watcher was given {change}, and before that one at {watcher.next.get(shard_id, 0) - 1}",
            shard_id,
        )
        watcher.next[shard_id] = change.offset + 1
        watcher.given.setdefault(shard_id, []).append(change)
        watcher.watches[-1][1].append((shard_id, change))

    # -- the judge ------------------------------------------------------------------------------------------------

    def has_everything(self) -> bool:
        """See `FollowingWorkload`."""
        history = TableHistory(self.cluster, self._table.shard_ids)
        return all(
            not written or watcher.place(shard_id) > written[-1].offset
            for watcher in self._watchers
            for shard_id, written in history.by_shard.items()
        )

    def check(self) -> None:
        """See `Workload`."""
        history = TableHistory(self.cluster, self._table.shard_ids)
        for watcher in self._watchers:
            for shard_id, written in sorted(history.by_shard.items()):
                self._check_shard(watcher, shard_id, written)
            for began, given in watcher.watches:
                self._check_keys(history, began, given)

    @staticmethod
    def _check_keys(history: TableHistory, began: Positions, given: list[tuple[int, Change]]) -> None:
        """What a key's new shard says of it comes after all that the shard before says, if the watch saw it released."""
        last: dict[bytes, int] = {}
        for shard_id, change in given:
            before = last.get(change.key, shard_id)
            last[change.key] = shard_id
            while before in history.released and before != shard_id:
                child, (before, at) = before, history.released[before]
                if at < began.get(before, 0):
                    break  # the watch began when this was split already
                require(
                    before != shard_id,
                    "watch-order-of-keys",
                    f"a watcher was given {change} after a change of the same key from shard {child}, which took it over",
                    shard_id,
                )

    def _check_shard(self, watcher: Watcher, shard_id: int, written: list[Written]) -> None:
        """What was given is what is committed, from where the watch began to where it is."""
        given = [self._facts(change) for change in watcher.given.get(shard_id, [])]
        latest = watcher.first.get(shard_id, 0)
        first = min(given[0][0], latest) if given else latest
        earliest = watcher.before.get(shard_id, 0) if watcher.start == LATEST else 0
        require(
            first >= earliest,
            "watch-from-now-on",
            f"a watcher that asked when {earliest} was committed was given {given[:1]}",
            shard_id,
        )
        wanted = [
            (one.offset, one.key, one.value, one.version)
            for one in written
            if one.offset >= first and not watcher.misses(shard_id, one.offset)
        ]
        wanted = wanted[: len(given)] if given else []
        different = next((pair for pair in zip(given, wanted, strict=False) if pair[0] != pair[1]), None)
        require(
            given == wanted,
            "watch-all-changes",
            f"a watcher was given {different and different[0]}, where the log has {different and different[1]}; "
            f"it was given {len(given)} changes",
            shard_id,
        )

    @staticmethod
    def _facts(change: Change) -> tuple[Any, ...]:
        return (change.offset, change.key, change.value, change.version.id)
