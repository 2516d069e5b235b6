"""Reads of a table as of offsets of its logs, while others change it, leaders change, logs are trimmed and shards split.

What a reader is told is compared with what the committed logs come to up to those offsets, which never changes again. A
refusal because the past is lost needs a log that was trimmed, and names an offset above the one that was asked for.
"""

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import AntiphonError, InvalidRequestError, KeyNotFoundError, OffsetOutOfRangeError
from antiphon.simulation.cluster.drawing import Drawn, one_of
from antiphon.simulation.cluster.workloads.registry import workload
from antiphon.simulation.cluster.workloads.table import KEYS, TableWorkload
from antiphon.simulation.cluster.workloads.table_history import Seen, TableHistory, latest_starts
from antiphon.simulation.cluster.workloads.workload import PATIENCE_S, Workload
from antiphon.simulation.violation import require

if TYPE_CHECKING:
    from antiphon.client.aio import AsyncClient
    from antiphon.simulation.cluster.cluster import SimulatedCluster
    from antiphon.simulation.runtime.process import Process

ROWS_MAX: Final = 50_000  # of all answers of a run


class PastRead(NamedTuple):
    """What a reader asked for, and was told: offsets by shard id, the keys, the rows that it was given."""

    offsets: Mapping[int, int]
    keys: tuple[bytes, ...]
    rows: dict[bytes, Seen]


@workload("past_readers", 32, Drawn(one_of(0, 0, 0, 0, 1)), reads="table")
class PastWorkload(Workload):
    """Read a table as of offsets (`get(as_of=...)`, `scan(as_of=...)`).

    Checked: each row is what the committed logs come to up to these offsets, and no other is there; nothing is refused as
    lost but where a log was trimmed.

    `writers` change the table.
    """

    def __init__(self, cluster: "SimulatedCluster", writers: TableWorkload) -> None:
        super().__init__(cluster, "past")
        self._writers = writers
        self._keys = tuple(sorted(key.encode() for key in KEYS))
        self.reads: list[PastRead] = []
        self._rows = 0
        self.outcomes = {"past-read": 0, "past-lost": 0, "past-not-read": 0}

    async def _work_with(self, db: "AsyncClient", process: "Process", _number: int) -> None:
        draw = process.random
        table = db.table(self._writers.name)
        while not self.stopped and self._rows < ROWS_MAX:
            try:
                await table
                asked: dict[int, tuple[int, int]] = {}
                for index in range(table.shards):
                    start, end = await table.offsets(index)
                    near = max(start, end - draw.choice((5, 50, end)))
                    asked[index] = (draw.randint(near, end), end)
                await self._read(table, asked, draw)
            except InvalidRequestError as error:
                # Offsets of shards that keys went to in between are no moment of the table.
                self.outcomes["past-not-read"] += 1
                self.cluster.tell("past-refused", error.message)
            except AntiphonError as error:
                self.outcomes["past-not-read"] += 1
                self.cluster.tell("past-failed", error.code)
            await self.think(process)

    async def _read(self, table: Any, asked: Mapping[int, tuple[int, int]], draw: Any) -> None:
        shards = {shard.index: shard.shard_id for shard in (await table.core.described_by()).shards}
        offsets = {index: offset for index, (offset, _) in asked.items()}
        by_id = {shards[index]: offset for index, offset in offsets.items()}
        try:
            if draw.random() < 0.5:
                key = draw.choice(self._keys)
                await self._get(table, key, offsets, by_id)
                return
            first, last = sorted(draw.choices(self._keys, k=2))
            found = table.scan(first, last + b"\x00", as_of=offsets, timeout_s=PATIENCE_S)
            listed = [(row.key, (row.version.id, bytes(row.value))) async for row in found]
        except OffsetOutOfRangeError as error:
            self._lost(error, shards)
            return
        rows: dict[bytes, Seen] = dict(listed)
        require(
            [key for key, _ in listed] == sorted(rows),
            "past",
            f"a scan as of {by_id} has these keys: {[key for key, _ in listed]}",
            self._writers.shard_ids[0],
        )
        keys = tuple(key for key in self._keys if first <= key <= last)
        self._note(by_id, keys, rows)

    async def _get(
        self, table: Any, key: bytes, offsets: Mapping[int, int], by_id: Mapping[int, int]
    ) -> None:
        """Only the log of the key's shard matters: which one that is must not have changed meanwhile."""
        before = table.core.ranges().shard_of(key).shard_id
        rows: dict[bytes, Seen] = {}
        with contextlib.suppress(KeyNotFoundError):
            row = await table.get(key, as_of=offsets, timeout_s=PATIENCE_S)
            rows[key] = (row.version.id, bytes(row.value))
        if table.core.ranges().shard_of(key).shard_id == before:
            self._note({before: by_id[before]}, (key,), rows)

    def _note(self, offsets: Mapping[int, int], keys: tuple[bytes, ...], rows: dict[bytes, Seen]) -> None:
        self.outcomes["past-read"] += 1
        self._rows += len(rows)
        self.cluster.tell("past", sorted(offsets.items()), keys[0], keys[-1], sorted(rows.items()))
        self.reads.append(PastRead(offsets, keys, rows))

    def _lost(self, error: OffsetOutOfRangeError, shards: Mapping[int, int]) -> None:
        self.outcomes["past-lost"] += 1
        shard, start = int(error.details.get("shard", 0)), int(error.details["start"])
        starts = latest_starts(self.cluster)
        is_early = (
            start > int(error.details["asked"]) and "end" in error.details
        )  # before a shard's own start
        require(
            is_early or starts.get(shards.get(shard, -1), 0) > 0 or "end" in error.details,
            "past-lost",
            f"{error.message}: no log of this table was trimmed",
            self._writers.shard_ids[0],
        )

    def check(self) -> None:
        """See `Workload`."""
        history = TableHistory(self.cluster, self._writers.shard_ids)
        for read in self.reads:
            before = _ancestors(history, read.offsets) if len(read.offsets) == 1 else set()
            for key in read.keys:
                written = [
                    one
                    for one in history.by_key.get(key, ())
                    if one.offset < read.offsets.get(one.shard_id, 0) or one.shard_id in before
                ]
                expected = written[-1].row if written else None
                require(
                    read.rows.get(key) == expected,
                    "past",
                    f"as of {dict(read.offsets)} key {key!r} was {expected}, and a reader was told {read.rows.get(key)}",
                    self._writers.shard_ids[0],
                )


def _ancestors(history: TableHistory, offsets: Mapping[int, int]) -> set[int]:
    """The shards that had the keys before: all that they say of a key is before what its shard says."""
    found = set()
    for shard_id in offsets:
        at = shard_id
        while at in history.released:
            at = history.released[at][0]
            found.add(at)
    return found
