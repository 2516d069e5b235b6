"""Deletes of ranges of a table's keys: every key of the range was gone in its shard, at once, and no other key went.

Nothing else removes keys of this table, so each removal in the committed logs is explained by a delete that was asked for.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.simulation.cluster.drawing import Drawn, sometimes
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.scans import Read, check_read
from antiphon.simulation.cluster.workloads.table_history import (
    Positions,
    Seen,
    TableHistory,
    Written,
    positions,
)
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload, make_table
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

CLIENTS: Final = 2
KEYS: Final = tuple(b"k%02d" % number for number in range(16))
LAST: Final = b"k99"  # behind all keys


class RangeDelete(NamedTuple):
    """What a client asked for; `ended`: None where nobody knows whether it was carried out, or still will be."""

    start: bytes
    end: bytes
    began: Positions
    ended: Positions | None

    def holds(self, key: bytes) -> bool:
        """Is this key to go?"""
        return self.start <= key and (not self.end or key < self.end)


@workload("range_deletes", 5, Drawn(sometimes(0.2), "more loads", 0), switch=True)
class RangeWorkload(Workload):
    """Puts, `delete_range` and scans of a table of their own.

    Checked: each key of an acknowledged range was absent at some moment in that time, those of a shard at the same moment;
    no other key was removed.
    """

    def __init__(self, cluster: "SimulatedCluster", name: str = "ranges") -> None:
        super().__init__(cluster, name)
        self.shard_ids: list[int] = []
        self.deletes: list[RangeDelete] = []
        self.reads: list[Read] = []
        self.acknowledged: dict[bytes, tuple[bytes, int]] = {}  # value -> key, version
        self.outcomes = {"ranges-deleted": 0, "ranges-unknown": 0, "ranges-read": 0}

    async def set_up(self, db: "AsyncClient") -> None:
        """See `Workload`."""
        self.shard_ids = [shard.shard_id for shard in await make_table(self.cluster, db, self.name)]

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(CLIENTS, self._work)

    async def _work_with(self, db: "AsyncClient", process: "Process", number: int) -> None:
        table, draw, serial = db.table(self.name), process.random, 0
        while not self.stopped:
            kind = draw.random()
            serial += 1
            with self.tells("range-failed"):
                if kind < 0.7:
                    await self._put(table, draw.choice(KEYS), b"%d-%d" % (number, serial))
                elif kind < 0.85:
                    start, end = sorted(draw.sample((*KEYS, LAST), 2))
                    await self._delete(table, start, draw.choice((end, end, end, b"")))
                else:
                    await self._scan(table)
            await self.think(process)

    async def _put(self, table: Any, key: bytes, value: bytes) -> None:
        version = await table.put(key, value, timeout_s=PATIENCE_S)
        self.acknowledged[value] = (key, version.id)
        self.cluster.tell("range-put", key, value, version.id)

    async def _delete(self, table: Any, start: bytes, end: bytes) -> None:
        asked, place = RangeDelete(start, end, positions(self.cluster), None), len(self.deletes)
        self.deletes.append(asked)  # before it is carried out: this client may be killed meanwhile
        self.outcomes["ranges-unknown"] += 1
        self.cluster.tell("range-delete", start, end)
        await table.delete_range(start, end, timeout_s=PATIENCE_S)
        self.deletes[place] = asked._replace(ended=positions(self.cluster))
        self.outcomes["ranges-unknown"] -= 1
        self.outcomes["ranges-deleted"] += 1
        self.cluster.tell("range-deleted", start, end)

    async def _scan(self, table: Any) -> None:
        began = positions(self.cluster)
        found = [row async for row in table.scan(KEYS[0], LAST, timeout_s=PATIENCE_S)]
        rows: dict[bytes, Seen] = {row.key: (row.version.id, bytes(row.value)) for row in found}
        self.outcomes["ranges-read"] += 1
        self.cluster.tell("range-read", len(rows))
        self.reads.append(Read("scan", (*KEYS, LAST), rows, began, positions(self.cluster), True))

    # -- the judge ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """See `Workload`."""
        history = TableHistory(self.cluster, self.shard_ids)
        for one in self.deletes:
            if one.ended is not None:
                self._check_gone(history, one, one.ended)
        for shard_id, written in history.by_shard.items():
            self._check_removals(shard_id, written)
        for value, (key, version) in self.acknowledged.items():
            found = [change.version for change in history.by_key.get(key, []) if change.value == value]
            require(
                found == [version],
                "acknowledged-kept",
                f"a put of {value!r} at {key!r} was acknowledged as version {version}; committed are {found}",
                self.shard_ids[0],
            )
        for read in self.reads:
            check_read(history, read)

    def _check_gone(self, history: TableHistory, one: RangeDelete, ended: Positions) -> None:
        """Between question and answer each key of the range was once not there; those of a shard all at once."""
        keys = [key for key in history.by_key if one.holds(key)]
        for key in keys:
            states = history.allowed(key, one.began, ended)
            require(
                None in states,
                "range-gone",
                f"keys from {one.start!r} to {one.end!r} were removed, and {key!r} was never gone: it was {states}",
                self.shard_ids[0],
            )
        for shard_id in () if history.is_split else self.shard_ids:
            mine = [key for key in keys if history.by_key[key][0].shard_id == shard_id]
            require(
                any(
                    all(state.get(key) is None for key in mine)
                    for state in history.states(shard_id, one.began, ended)
                ),
                "range-gone-at-once",
                f"keys from {one.start!r} to {one.end!r} were removed, and {mine} were never gone at one moment",
                shard_id,
            )

    def _check_removals(self, shard_id: int, written: list[Written]) -> None:
        """What was removed somebody asked to be, by then and not after he was told that it was done."""
        for change in written:
            if change.value is None:
                require(
                    any(self._explains(one, change) for one in self.deletes),
                    "only-the-range",
                    f"{change.key!r} was removed at {change.offset}, and nobody had asked for that",
                    shard_id,
                )

    @staticmethod
    def _explains(one: RangeDelete, change: Written) -> bool:
        return (
            one.holds(change.key)
            and change.end > one.began.get(change.shard_id, 0)
            and (one.ended is None or change.end <= one.ended.get(change.shard_id, 0))
        )
