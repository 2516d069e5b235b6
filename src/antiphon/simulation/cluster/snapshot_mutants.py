"""Mutants of snapshots: how they are made, sent, and put in the place of a replica's log and store."""

from typing import Any, Final

from antiphon.node import partition_opener, received_snapshots, trimming
from antiphon.node.partition_opener import PartitionOpener
from antiphon.node.received_snapshots import ReceivedSnapshots
from antiphon.node.snapshots import Snapshots
from antiphon.simulation.cluster.deletion_mutants import DELETES
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CRASHES, SNAPSHOTS, only
from antiphon.simulation.memory_store import MemoryStore

_COPIED_SLOWLY: Final[dict[str, Any]] = {
    **SNAPSHOTS,
    "table_shards": 6,
    "appenders": 0,
    "putters": 4,
    "fault_every_ms": 40,
    "fault_lasts_ms": 500,
    "thread_lag_us": 1_000_000,
}
"""Followers and leaders come and go, and logs are trimmed, while tables are copied for snapshots."""

_SENT: Final = (
    ClusterMutant(
        "node-snapshot-without-producers",
        "a snapshot says nothing of the producers of what it stands for",
        Edit(
            Snapshots,
            "_made_copy",
            "source.log.producers.encode(before=at.offset)",
            "type(source.log.producers)().encode()",
        ),
        options={**SNAPSHOTS, "operations_per_s": 60, "appenders": 8, "putters": 4},
    ),
    ClusterMutant(
        "node-resumes-another-snapshot",
        "a snapshot goes on with files that came with another one, and only their sizes are checked",
        (
            Edit(
                ReceivedSnapshots,
                "begin",
                "if begun is None or (begun.snapshot_id, begun.files) != (request.snapshot_id, request.files):",
                "if begun is None:",
            ),
            Edit(
                received_snapshots,
                "_check_files",
                "if (size, crc) != (file.size_bytes, file.crc):",
                "if size != file.size_bytes:",
            ),
        ),
        options={
            **SNAPSHOTS,
            "cut_weight": 2,
            "kill_weight": 4,
            "fault_lasts_ms": 500,
            "thread_lag_us": 300_000,
            "table_shards": 4,
            "appenders": 0,
            "operations_per_s": 60,
        },
        rare=True,
    ),
    ClusterMutant(
        "node-snapshot-send-never-ends",
        "a send of a snapshot whose log is trimmed while the table is copied ends with an error that nobody handles",
        (
            Edit(
                Snapshots, "_send", "except Exception as error:", "except (AntiphonError, OSError) as error:"
            ),
            Edit(Snapshots, "_take_state", "if offset >= terms.log_start:", "if True:"),
        ),
        options=_COPIED_SLOWLY,
        first_seed=6,
    ),
    ClusterMutant(
        "node-offers-snapshot-in-a-later-term",
        "a snapshot that was begun in one term is offered in the one that its sender is in when its table is copied",
        (
            Edit(Snapshots, "_stream", "if source.term != term:", "if False:"),
            Edit(
                Snapshots,
                "_stream",
                "SnapshotBegin(source.shard_id, term,",
                "SnapshotBegin(source.shard_id, source.term,",
            ),
        ),
        options={**_COPIED_SLOWLY, "operator_weight": 6, "commands": "elect"},
    ),
)

_INSTALLED: Final = (
    ClusterMutant(
        "node-half-installed-snapshot",
        "a start finds the store of a snapshot beside the log of before, and takes what the store has for settled in it",
        (
            Edit(
                partition_opener,
                "recover_install",
                "layout.wipe(disk, log_path, found.at, found.producers, found.members)",
                "pass",
            ),
            Edit(
                partition_opener,
                "watermark_at_start",
                "max(noted, applied) if applied <= log_end or unclean else noted",
                "max(noted, applied)",
            ),
        ),
        options={**SNAPSHOTS, "install_weight": 8, "putters": 6, "appenders": 0},
        rare=True,
    ),
)

_SLOW_AND_FLUSHED: Final[dict[str, Any]] = {
    **CRASHES,
    **only(
        operations_per_s=300,
        slow_calls_weight=3,
        power_weight=6,
        power_all_weight=0,
        store_flush_every=1,
        putters=8,
    ),
}
"""Others make a leader's entries committed before its own slow disk has them; its store has them, and the power fails."""

_OPENED: Final = (
    ClusterMutant(
        "node-opens-from-its-store",
        "a replica whose log ends before what its store has applied goes on with an empty log from there",
        Edit(
            PartitionOpener,
            "recover",
            "        applied, unclean = table.state.applied_offset, settings.replica.unclean\n",
            "        applied, unclean = table.state.applied_offset, settings.replica.unclean\n"
            "        if applied > log.log_end:\n"
            "            from antiphon.log import layout\n"
            "            table.let_go(None)\n"
            "            path, at = self._directory.shard_path(shard_id), log.end._replace(offset=applied)\n"
            "            layout.wipe(self._disk, path, at, log.producers.encode(), None)\n"
            "            log = self._open_log(shard_id, config, promises=True)\n"
            "            table = TableShard(store, log, stores)\n",
        ),
        options=_SLOW_AND_FLUSHED,
        quick=True,
        first_seed=45,
    ),
)

_STORES: Final = (
    ClusterMutant(
        "node-scan-passes-over-damage",
        "a scan that meets a damaged block of the store ends there, as if there were no more rows",
        (
            Edit(MemoryStore, "items", "if damaged:", "if False:"),
            Edit(MemoryStore, "items", "    self.check(start, None)\n", ""),
        ),
        options={
            **SNAPSHOTS,
            **only(
                operations_per_s=12,
                fault_ms=40_000,
                fault_every_ms=400,
                fault_lasts_ms=100,
                kill_weight=3,
                trim_weight=0,
                store_flip_weight=3,
                store_block_bytes=1,
                store_flush_every=12,
                scans=True,
                putters=1,
            ),
        },
        first_seed=2,
    ),
)

_TRIMMED: Final = (
    ClusterMutant(
        "node-trims-uncommitted",
        "a log is trimmed as far as is asked for, committed or not",
        (
            Edit(trimming, "trim_replica", "min(before, host.mode.settled)", "before"),
            Edit(trimming, "_limit", "min(replicated, host.mode.settled, ", "min(replicated, "),
        ),
        options=SNAPSHOTS,
        quick=True,
    ),
    ClusterMutant(
        "node-answers-trims-at-once",
        "where a log begins is answered before the disk has it",
        Edit(trimming, "_trim", "await future", "None"),
        options=DELETES,
        quick=True,
        first_seed=14,
    ),
    ClusterMutant(
        "node-trims-all-that-is-settled",
        "a log is trimmed as far as it is committed, whatever was asked for",
        Edit(trimming, "_replicated", "replicated = min([wanted, ", "replicated = min([host.mode.settled, "),
        options=DELETES,
        quick=True,
    ),
)

SNAPSHOT_MUTANTS: Final = (*_SENT, *_INSTALLED, *_OPENED, *_STORES, *_TRIMMED)
