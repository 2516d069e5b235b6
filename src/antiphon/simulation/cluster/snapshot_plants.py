"""Bugs to plant in snapshots: how they are made, sent, and put in the place of a replica's log and store."""

from typing import Final

from antiphon.node import received_snapshots, shards, trimming
from antiphon.node.received_snapshots import ReceivedSnapshots
from antiphon.node.snapshots import Snapshots
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import SNAPSHOTS
from antiphon.simulation.memory_store import MemoryStore

_SENT: Final = (
    ClusterPlant(
        "node-snapshot-without-producers",
        "a snapshot says nothing of the producers of what it stands for",
        (
            Edit(
                Snapshots,
                "_copy_for",
                "host.log.producers.encode(before=at.offset)",
                "type(host.log.producers)().encode()",
            ),
        ),
        options={**SNAPSHOTS, "operations_per_s": 60, "appenders": 8, "putters": 4},
    ),
    ClusterPlant(
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
        options={**SNAPSHOTS, "cut_weight": 2, "thread_lag_us": 300_000},
        rare=True,
    ),
)

_INSTALLED: Final = (
    ClusterPlant(
        "node-half-installed-snapshot",
        "a start finds the store of a snapshot beside the log of before, and takes what the store has for settled in it",
        (
            Edit(
                shards,
                "recover_install",
                "layout.wipe(disk, log_path, found.at, found.producers, found.members)",
                "pass",
            ),
            Edit(
                shards,
                "watermark_at_start",
                "max(noted, applied) if applied <= log_end or unclean else noted",
                "max(noted, applied)",
            ),
        ),
        options={**SNAPSHOTS, "install_weight": 8, "putters": 6, "appenders": 0},
        rare=True,
    ),
)

_STORES: Final = (
    ClusterPlant(
        "node-scan-passes-over-damage",
        "a scan that meets a damaged block of the store ends there, as if there were no more rows",
        (
            Edit(MemoryStore, "items", "if damaged:", "if False:"),
            Edit(MemoryStore, "items", "    self.check(start, None)\n", ""),
        ),
        options={
            **SNAPSHOTS,
            "fault_ms": 40_000,
            "fault_every_ms": 400,
            "fault_lasts_ms": 100,
            "kill_weight": 3,
            "trim_weight": 0,
            "store_flip_weight": 3,
            "store_block_bytes": 1,
            "store_flush_every": 12,
            "operations_per_s": 12,
            "scans": True,
            "putters": 1,
            "appenders": 0,
        },
    ),
)

_TRIMMED: Final = (
    ClusterPlant(
        "node-trims-uncommitted",
        "a log is trimmed as far as is asked for, committed or not",
        (
            Edit(trimming, "trim_replica", "min(before, host.settled)", "before"),
            Edit(trimming, "trim_replica", "min(fed, host.settled, ", "min(fed, "),
        ),
        options=SNAPSHOTS,
    ),
)

SNAPSHOT_PLANTS: Final = (*_SENT, *_INSTALLED, *_STORES, *_TRIMMED)
