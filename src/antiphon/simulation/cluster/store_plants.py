"""Bugs to plant between a table and RocksDB, which keeps its rows; their worlds have RocksDB itself."""

from typing import Final

from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CRASHES
from antiphon.table.rocks_store import RocksStore
from antiphon.table.state import TableState

STORE_PLANTS: Final = (
    ClusterPlant(
        "store-offset-before-rows",
        "the applied offset is written in a batch of its own, before the rows",
        (
            Edit(
                TableState,
                "apply_effects",
                "put(META_KEY, META.pack(FORMAT, end, next_version_id))\n",
                "first = self._store.batch()\n"
                "    first.put(META_KEY, META.pack(FORMAT, end, next_version_id))\n"
                "    self._store.write(first)\n",
            ),
        ),
        options={**CRASHES, "rocks": True, "store_flush_every": 5},
    ),
    ClusterPlant(
        "store-flush-does-nothing",
        "a flush returns at once, and what is in RocksDB's write buffers counts as durable",
        (Edit(RocksStore, "flush", "self._db.flush(True)", "pass"),),
        options={**CRASHES, "rocks": True, "trim_weight": 4},
    ),
)
