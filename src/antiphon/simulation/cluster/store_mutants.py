"""Mutants between a table and RocksDB, which keeps its rows; their worlds have RocksDB itself."""

from typing import Any, Final

from antiphon.partition.table_reads import TableReads
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CRASHES, SNAPSHOTS, only
from antiphon.table.rocks_store import RocksCursor, RocksStore
from antiphon.table.stored_state import StoredState

_ROTTEN: Final[dict[str, Any]] = {
    **SNAPSHOTS,
    **only(
        operations_per_s=60,
        rocks=True,
        fault_ms=6_000,
        fault_every_ms=400,
        fault_lasts_ms=100,
        kill_weight=1,
        trim_weight=0,
        row_flip_weight=3,
        store_flush_every=12,
        scans=True,
        finders=2,
        row_bytes=5_000,
        putters=1,
    ),
}
"""Bits flip in RocksDB's files, and clients read all that is in them. Each row has a block, so that opening reads few."""


_DAMAGE: Final = (
    ClusterMutant(
        "store-iteration-ends-at-damage",
        "an iteration over RocksDB's rows that ends at a damaged block is taken for one that came to the end",
        Edit(
            RocksStore,
            "_check_end",
            "    cursor.status()\n        if cursor.valid():\n"
            '            raise StorageFailedError(f"rows from {after!r} on could not be read at first")\n',
            "    pass\n",
        ),
        options=_ROTTEN,
        quick=True,
    ),
    ClusterMutant(
        "store-cursor-ends-at-damage",
        "a cursor of RocksDB that stops at a damaged block is taken for one that came to the end of the rows",
        Edit(RocksCursor, "valid", "self._cursor.status()", "pass"),
        options=_ROTTEN,
        first_seed=7,
    ),
    ClusterMutant(
        "node-answers-past-damage",
        "a get that meets a damaged block of the store is answered as if there was no row, and the replica goes on",
        Edit(
            TableReads,
            "get",
            "            rows = store.get_many(request.keys, include_value=request.include_value)\n",
            "            try:\n"
            "                rows = store.get_many(request.keys, include_value=request.include_value)\n"
            "            except StorageFailedError:\n"
            "                rows = [None] * len(request.keys)\n",
        ),
        options=_ROTTEN,
        first_seed=10,
    ),
)

STORE_MUTANTS: Final = (
    *_DAMAGE,
    ClusterMutant(
        "store-offset-before-rows",
        "the applied offset is written in a batch of its own, before the rows",
        Edit(
            StoredState,
            "apply_effects",
            "put(META_KEY, META.pack(self.format, end, next_version_id))\n",
            "first = self._store.batch()\n"
            "    first.put(META_KEY, META.pack(self.format, end, next_version_id))\n"
            "    self._store.write(first)\n",
        ),
        options={**CRASHES, "rocks": True, "store_flush_every": 5},
    ),
    ClusterMutant(
        "store-flush-does-nothing",
        "a flush returns at once, and what is in RocksDB's write buffers counts as durable",
        Edit(RocksStore, "flush", "self._db.flush(True)", "pass"),
        options={**CRASHES, "rocks": True, "trim_weight": 4},
    ),
)
