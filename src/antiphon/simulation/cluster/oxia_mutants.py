"""Mutants of the listener for Oxia's clients, and of what tables do for them: attributes, indexes, sequences."""

from typing import Any, Final

from antiphon.node import split_copy
from antiphon.oxia import tails
from antiphon.oxia.calls import OxiaCalls
from antiphon.oxia.reads import Reads
from antiphon.oxia.tails import Tail
from antiphon.oxia.writes import Writes
from antiphon.partition.table_reads import TableReads
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, CUTS, MOVES, RESETS, only
from antiphon.table import attributed, indexes, key_order
from antiphon.table.attributed import Sequences
from antiphon.table.key_order import KeyOrder
from antiphon.table.range_removals import RangeRemovals
from antiphon.table.stored_state import StoredState

_WORK: Final[dict[str, Any]] = only(oxia_clients=3)
_SPLITS: Final[dict[str, Any]] = {**MOVES, **_WORK, "commands": "split", "table_shards": 2}
_RANGES: Final[dict[str, Any]] = {**_WORK, "oxia_clients": 0, "oxia_scanners": 3}

OXIA_MUTANTS: Final = (
    ClusterMutant(
        "oxia-writes-carried-out-twice",
        "a write whose answer was lost is sent again, and no shard can know that",
        Edit(Writes, "_in_lane", "lane.producer_id,", "-1,"),
        options={**RESETS, **_WORK, "fault_ms": 6_000},
    ),
    ClusterMutant(
        "oxia-removes-moved-rows",
        "a shard removes rows that a split has taken away, as long as they are in its store, and says so",
        Edit(
            attributed.AttributedPuts,
            "has_strays",
            "self.owned.purging and (stored.purging or stored.last != self.owned.last)",
            "stored is None",
        ),
        options={**MOVES, **_WORK, "conditional_ppm": 300_000},
        first_seed=8,
    ),
    ClusterMutant(
        "oxia-removes-where-it-was-asked",
        "a removal is answered by the shard that the client names, though a split has taken the key",
        Edit(OxiaCalls, "_written", "found_nothing(results[at])", "False"),
        options=_SPLITS,
        first_seed=5,
    ),
    ClusterMutant(
        "oxia-goes-on-by-other-metadata",
        "a key is removed in the shard that had it by older metadata, by the range that this one has by newer",
        Edit(OxiaCalls, "_written", "place.at(other)", 'place_in(self._gateway, other.shard_id, b"")'),
        options={**_SPLITS, "operations_per_s": 0},
        first_seed=2,
    ),
    ClusterMutant(
        "oxia-notifications-begin-late",
        "a client that goes on behind an offset misses what comes next",
        Edit(OxiaCalls, "notifications", "max(after, -1) + 1", "max(after, -1) + 2"),
        options={**CALM, **_WORK, "fault_ms": 5_000},
        first_seed=2,
    ),
    ClusterMutant(
        "oxia-notifications-lose-repeats",
        "of several changes of a key in one piece of the log only the last is told",
        Edit(tails, "batches_of", "change.key in entries or", ""),
        options={**CUTS, **_WORK},
    ),
    ClusterMutant(
        "oxia-tails-lose-a-change",
        "the first change of each piece of a log is not told to those who follow its tail",
        Edit(Tail, "_take", "pieces.append(piece)", "pieces.append(piece); piece.changes[:1] = []"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "oxia-sequences-by-what-is-committed",
        "the next number of a sequence follows from what is committed, whatever is appended",
        (
            Edit(Sequences, "next", "known = self._known.get(prefix)", "known = None"),
            Edit(
                attributed.AttributedPuts,
                "_next_key",
                "if self._view([Check(key, _ABSENT)], to.changed)[key] is None:",
                "if True:",
            ),
        ),
        options={**CALM, **_WORK, "operations_per_s": 0, "delay_us": (5_000, 20_000)},
        first_seed=5,
    ),
    ClusterMutant(
        "oxia-indexes-keep-what-was",
        "the entries of a row that is put again stay where they were",
        Edit(indexes, "add_changes", "batch.delete(entry_key(name, secondary, key))", "pass"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "oxia-splits-go-by-keys",
        "a split takes rows by the hashes of their keys, also those that stand elsewhere by their place",
        Edit(split_copy, "_within", "if not places:", "if True:"),
        options={**_SPLITS, "operations_per_s": 600, "oxia_clients": 6, "fault_ms": 12_000},
    ),
    ClusterMutant(
        "oxia-identity-is-lost",
        "a follower applies a row without its attributes",
        Edit(attributed, "put_attributed", "to.attributed = True", "pass"),
        options={**CRASHES, **_WORK},
    ),
    ClusterMutant(
        "oxia-order-keeps-what-was",
        "the entry of a key in the hierarchical order stays when its row is removed",
        Edit(key_order, "add_entries", "batch.delete(entry_of(key))", "pass"),
        options={**CALM, **_RANGES},
        quick=True,
    ),
    ClusterMutant(
        "oxia-order-is-complete-at-once",
        "a store says that all rows have entries in the hierarchical order when only some have got them",
        (
            Edit(KeyOrder, "make", "if following is None:", "if True:"),
            Edit(KeyOrder, "make", "following is None, following or USER", "True, USER"),
        ),
        options={**CALM, **_RANGES},
    ),
    ClusterMutant(
        "oxia-pages-go-on-elsewhere",
        "a page in the hierarchical order begins where the last key with a zero byte would stand",
        Edit(
            TableReads,
            "_scan_ordered",
            "bounds_of(request.start, request.end, request.after)",
            "bounds_of(request.after + bytes(1) if request.after else request.start, request.end)",
        ),
        options={**CALM, **_RANGES, "oxia_page_rows": 1},
        quick=True,
    ),
    ClusterMutant(
        "oxia-order-keeps-what-a-split-took",
        "the entries of rows that a split has taken away stay when the rows are removed",
        Edit(StoredState, "purge", "if self.ordered:", "if False:"),
        options={**_SPLITS, **_RANGES, "table_shards": 2},
    ),
    ClusterMutant(
        "oxia-ranges-miss-uncommitted",
        "a removal of a range by depth looks for what is not committed by its bytes",
        Edit(RangeRemovals, "_known", "order.sort_key", "None"),
        options={**CALM, **_RANGES, "oxia_scanners": 6, "operations_per_s": 0, "fault_ms": 1_000},
        first_seed=2,
    ),
    ClusterMutant(
        "oxia-scans-end-with-their-page",
        "a list or a scan of several pages ends with the first of them",
        (Edit(Reads, "_ordered_page", "found.more", "False"), Edit(Reads, "_page", "rows.more", "False")),
        options={**CALM, **_RANGES, "oxia_page_rows": 1},
    ),
)
