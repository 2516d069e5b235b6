"""Scans and reads of many keys, while others change the table: what they return was there between question and answer.

A scan has every row that was acknowledged before it began and not changed since, and none that was overwritten by then. All
rows of one shard's page are of one moment (which is judged where a table was never split and a scan fits in a page: else
nobody outside knows which page a row came with).
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.client.table_scan import SCAN_ROWS
from antiphon.simulation.cluster.drawing import Drawn, sometimes
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.table import KEYS, TableWorkload
from antiphon.simulation.cluster.workloads.table_history import Positions, Seen, TableHistory, positions
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload
from antiphon.simulation.violation import ViolationError, require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

SCANNERS: Final = 2
ROWS_MAX: Final = 100_000  # of all answers of a run: they are kept, and bulk writers may go at full speed


class Read(NamedTuple):
    """What a reader asked for, and was told. Where `is_range`: everything from the first of `keys` to the last."""

    what: str
    keys: tuple[bytes, ...]
    rows: dict[bytes, Seen]
    began: Positions
    ended: Positions
    is_range: bool

    @property
    def together(self) -> bool:
        """Are the rows of one shard of one moment?"""
        return self.is_range and len(self.rows) < SCAN_ROWS

    def asked_for(self, history: TableHistory) -> list[bytes]:
        """All keys that the answer says something of."""
        if not self.is_range:
            return list(self.keys)
        return sorted(key for key in {*history.by_key, *self.rows} if self.keys[0] <= key <= self.keys[-1])


@workload("scans", 1, Drawn(sometimes(0.4), "loads", 2), reads="table", switch=True)
class ScanWorkload(Workload):
    """`scan`, `list`, `get_many`.

    Checked: by the committed logs, each row (or its absence) was true at some moment between request and answer; a shard's
    rows of one page are from one moment.

    `writers` change the table; their keys are read.
    """

    def __init__(self, cluster: "SimulatedCluster", writers: TableWorkload) -> None:
        super().__init__(cluster, "scans")
        self._writers = writers
        self._keys = tuple(sorted(key.encode() for key in KEYS))
        self.reads: list[Read] = []
        self._rows = 0
        self.outcomes = {"scanned": 0, "not-scanned": 0}

    def begin(self) -> None:
        """See `Workload`."""
        self.spawn_all(SCANNERS, self._work)

    async def _work_with(self, db: "AsyncClient", process: "Process", _number: int) -> None:
        table, draw = db.table(self._writers.name), process.random
        while not self.stopped and self._rows < ROWS_MAX:
            first, last = sorted(draw.choices(range(len(self._keys) + 1), k=2))
            keys = self._keys if draw.random() < 0.3 else self._keys[first:last]
            how = draw.choice((self._scan, self._scan, self._list, self._get_many))
            began = positions(self.cluster)
            with self.tells("scan-failed", count="not-scanned"):
                if keys:
                    await how(table, keys, began)
            await self.think(process)

    def _note(
        self, what: str, keys: tuple[bytes, ...], rows: dict[bytes, Seen], began: Positions, *, is_range: bool
    ) -> None:
        self.outcomes["scanned"] += 1
        self._rows += len(rows)
        self.cluster.tell(what, keys[0], keys[-1], len(rows), [rows.get(key) for key in self._keys])
        self.reads.append(Read(what, keys, rows, began, positions(self.cluster), is_range))

    async def _scan(self, table: Any, keys: tuple[bytes, ...], began: Positions) -> None:
        found = [row async for row in table.scan(keys[0], keys[-1] + b"\x00", timeout_s=PATIENCE_S)]
        self._check_order("scan", [row.key for row in found])
        rows: dict[bytes, Seen] = {row.key: (row.version.id, bytes(row.value)) for row in found}
        self._note("scan", keys, rows, began, is_range=True)

    async def _list(self, table: Any, keys: tuple[bytes, ...], began: Positions) -> None:
        found = await table.list(keys[0], keys[-1] + b"\x00", timeout_s=PATIENCE_S)
        self._check_order("list", found)
        self._note("list", keys, dict.fromkeys(found, (-1, None)), began, is_range=True)

    async def _get_many(self, table: Any, keys: tuple[bytes, ...], began: Positions) -> None:
        found = await table.get_many(keys, timeout_s=PATIENCE_S)
        rows: dict[bytes, Seen] = {
            key: (row.version.id, bytes(row.value))
            for key, row in zip(keys, found, strict=True)
            if row is not None
        }
        self._note("get-many", keys, rows, began, is_range=False)

    def _check_order(self, what: str, keys: list[bytes]) -> None:
        require(
            keys == sorted(set(keys)),
            "scan-order",
            f"a {what} of {self._writers.name!r} returned {keys}",
            self._writers.shard_ids[0],
        )

    def check(self) -> None:
        """See `Workload`."""
        history = TableHistory(self.cluster, self._writers.shard_ids)
        for read in self.reads:
            check_read(history, read)


def check_read(history: TableHistory, read: Read) -> None:
    """Raise ViolationError unless a read returned what was there."""
    keys = read.asked_for(history)
    for key in keys:
        allowed, row = history.allowed(key, read.began, read.ended), read.rows.get(key)
        if not any(fits(row, state) for state in allowed):
            raise ViolationError(
                "linearizable-scan",
                f"a {read.what} of {read.keys} found {key!r} to be {row}; between its beginning and its answer "
                f"it was {allowed}",
                min(history.starts),
            )
    if read.together and not history.is_split:
        for shard_id in sorted(history.starts):
            mine = [
                key for key in keys if key in history.by_key and history.by_key[key][0].shard_id == shard_id
            ]
            _check_one_moment(history, shard_id, mine, read)


def _check_one_moment(history: TableHistory, shard_id: int, keys: list[bytes], read: Read) -> None:
    """The shard was once as the read says."""
    for state in history.states(shard_id, read.began, read.ended):
        if all(fits(read.rows.get(key), state.get(key)) for key in keys):
            return
    raise ViolationError(
        "scan-of-one-moment",
        f"a {read.what} of {read.keys} found {dict(list(read.rows.items())[:20])}; at no moment between its beginning and "
        "its answer was that so",
        shard_id,
    )


def fits(row: Seen, state: Seen) -> bool:
    """Is what a reader saw of a key this state of it?"""
    if row is None or state is None:
        return row is state
    return row == state or row[1] is None
