"""Mutants of compaction, where clients write few keys over and over while nodes crash."""

from typing import Any, Final

from antiphon.log import compacted_files
from antiphon.log.cleaner import Cleaner
from antiphon.log.compacted_files import Compacting
from antiphon.log.compaction import CompactionPass, _Output
from antiphon.log.transactions import TransactionState
from antiphon.node import compaction
from antiphon.partition import follower_reads
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, CUTS, only

_BUSY: Final[dict[str, Any]] = only(operations_per_s=300, compacted_writers=3, putters=1)
_CALM: Final[dict[str, Any]] = {**CALM, **_BUSY}
_CRASHES: Final[dict[str, Any]] = {**CRASHES, **_BUSY}
_CUTS: Final[dict[str, Any]] = {**CUTS, **_BUSY}

COMPACTION_MUTANTS: Final = (
    ClusterMutant(
        "compacts-open-transactions",
        "records are compacted up to the high watermark, also where a newer one is part of an open transaction",
        Edit(compaction, "extent_now", "min(host.mode.settled, host.state.stable_end)", "host.mode.settled"),
        options=_CALM,
        quick=True,
    ),
    ClusterMutant(
        "compacts-what-is-not-committed",
        "records are compacted up to the end of the log, committed or not",
        Edit(compaction, "extent_now", "min(host.mode.settled, host.state.stable_end)", "log.log_end"),
        options=_CUTS,
    ),
    ClusterMutant(
        "node-counts-what-ended-in-a-snapshot",
        "a transaction whose marker is in the log that a snapshot is of counts as ended, committed or not",
        Edit(TransactionState, "of", "state._restored.extend(", "list("),
        options={
            **_CALM,
            "commit": "at_least(3)",
            "fault_ms": 8_000,
            "fault_every_ms": 200,
            "fault_lasts_ms": 1_500,
            "kill_weight": 3,
            "power_weight": 1,
            "pause_weight": 3,
            "one_way_weight": 2,
        },
        first_seed=6,
    ),
    ClusterMutant(
        "compacts-the-newest",
        "the newest record of a key goes as well",
        Edit(Cleaner, "_cleaned", "offset_of(key) <= record.offset", "offset_of(key) < record.offset"),
        options=_CALM,
    ),
    ClusterMutant(
        "compacts-forgets-aborted",
        "a compacted segment forgets the aborted transactions that began in what a trim has left before it",
        Edit(Compacting, "replace", "one.aborted.began_before(clean_from)", "one.aborted.began_before(0)"),
        options={
            **_CALM,
            "fault_ms": 5_000,
            "fault_every_ms": 200,
            "trim_weight": 6,
            "delete_retention_ms": 300,
        },
        first_seed=4,
    ),
    ClusterMutant(
        "compacts-by-aborted-records",
        "a record goes because of a newer one that was aborted",
        Edit(
            CompactionPass,
            "_map",
            "if header.attributes & TRANSACTIONAL_BIT and is_aborted(header, aborted):",
            "if False:",
        ),
        options=_CALM,
        first_seed=3,
    ),
    ClusterMutant(
        "compaction-drops-tombstones-at-once",
        "a tombstone goes with the first pass after the one that removed what it deletes",
        Edit(CompactionPass, "__init__", "clean.since_end if is_old else 0", "clean.since_end"),
        options=_CALM,
        quick=True,
    ),
    ClusterMutant(
        "compaction-forgets-producers",
        "nothing is left of a producer's last batch when its records go",
        Edit(
            Cleaner,
            "_cleaned",
            "return emptied(header) if at in self._needed.headers else None",
            "return None",
        ),
        options=_CALM,
        quick=True,
    ),
    ClusterMutant(
        "compaction-removes-markers",
        "markers of transactions go with the records around them",
        Edit(Cleaner, "_kept", "return None if committed_of(batch) is not None else batch", "return None"),
        options=_CALM,
    ),
    ClusterMutant(
        "compaction-swaps-without-a-word",
        "new segments take the place of old ones without a file that says so",
        Edit(
            compacted_files,
            "swap_segments",
            "replace_file(disk, path, seal(SWAP_MAGIC, VERSION, msgspec.msgpack.encode(swap)))",
            "pass",
        ),
        options={**_CRASHES, "swap_weight": 8},
        quick=True,
        first_seed=19,
    ),
    ClusterMutant(
        "compaction-swaps-what-is-not-synced",
        "a new segment takes the place of old ones before it is synced",
        Edit(_Output, "finish", "file.fdatasync()", "pass"),
        options=_CALM,
    ),
    ClusterMutant(
        "compaction-feeds-whole-fillers",
        "a follower that has some of what is one batch here is sent all of it",
        Edit(
            follower_reads,
            "read_entries",
            "if header.base_offset < from_offset and is_filler(header):",
            "if False:",
        ),
        options={**_CUTS, "kill_weight": 3},
        first_seed=4,
    ),
)
