"""Reads of the row next to a key (floor, ceiling, lower, higher) in each shard of a table, while others change it.

The Python clients have no such read, so these send the request itself. What a shard answers is judged as a scan is, from the
row that was found to the key that was asked for: the row was there, and none that is nearer. Not where the table was split.
"""

from typing import TYPE_CHECKING, Final

from antiphon.client.aio import AsyncClient
from antiphon.model.requests import TableGet
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.scans import Read, check_read
from antiphon.simulation.cluster.workloads.table import KEYS, TableWorkload
from antiphon.simulation.cluster.workloads.table_history import Seen, TableHistory, positions
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload
from antiphon.simulation.violation import require
from antiphon.table.neighbours import CEILING, FLOOR, HIGHER, LOWER

if TYPE_CHECKING:
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

WORDS: Final = {FLOOR: "floor", CEILING: "ceiling", LOWER: "lower", HIGHER: "higher"}
FIRST: Final = b""
LAST: Final = b"\xff"
ANSWERS_MAX: Final = 50_000


@workload("finders", 23, Drawn(one_of(0, 0, 0, 0, 0, 1)), reads="table")
class NearestWorkload(Workload):
    """Ask for the row next to a key (floor, ceiling, lower, higher) in one shard.

    Checked: the row was there at some moment between request and answer, and none that is nearer.

    `writers` change the table.
    """

    may_be_killed = False

    def __init__(self, cluster: "SimulatedCluster", writers: TableWorkload) -> None:
        super().__init__(cluster, "nearest")
        self._writers = writers
        self._keys = sorted(key.encode() for key in KEYS)
        self.reads: list[tuple[int, Read]] = []
        self.outcomes = {"found": 0, "not-found": 0}

    async def _work_with(self, db: AsyncClient, process: "Process", _number: int) -> None:
        draw = process.random
        while not self.stopped and len(self.reads) < ANSWERS_MAX:
            shard_id = draw.choice(self._writers.shard_ids)
            with self.tells("find-failed", count="not-found"):
                await self._find(db, shard_id, draw.choice(self._keys), draw.choice(tuple(WORDS)))
            await self.think(process)

    async def _find(self, db: AsyncClient, shard_id: int, key: bytes, comparison: int) -> None:
        began = positions(self.cluster)
        request = TableGet(shard_id, (key,), comparison=comparison)
        reply, _ = await db._cluster.call_shard(shard_id, request, timeout_s=PATIENCE_S)  # noqa: SLF001 - see above
        row = reply.rows[0]
        rows: dict[bytes, Seen] = {} if row is None else {row.key: (row.version.id, bytes(row.value))}
        self.outcomes["found"] += 1
        self.cluster.tell(WORDS[comparison], key, rows)
        between = _between(key, comparison, None if row is None else row.key)
        require(
            between[0] <= between[1],
            "linearizable-scan",
            f"the row that is {WORDS[comparison]} of {key!r} is said to be {rows}",
            shard_id,
        )
        read = Read(WORDS[comparison], between, rows, began, positions(self.cluster), is_range=True)
        self.reads.append((shard_id, read))

    def check(self) -> None:
        """See `Workload`."""
        if TableHistory(self.cluster, self._writers.shard_ids).is_split:
            return
        histories = {one: TableHistory(self.cluster, [one]) for one in self._writers.shard_ids}
        for shard_id, read in self.reads:
            check_read(histories[shard_id], read)


def _between(key: bytes, comparison: int, found: bytes | None) -> tuple[bytes, bytes]:
    """The first and the last of the keys that an answer says something of."""
    if comparison == FLOOR:
        return found or FIRST, key
    if comparison == CEILING:
        return key, found or LAST
    if comparison == LOWER:
        return found or FIRST, key[:-1] + bytes([key[-1] - 1]) + b"\xff"
    return key + b"\x00", found or LAST
