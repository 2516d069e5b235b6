"""Mutants between a node's log and its disk."""

from typing import Final

from antiphon.log import layout, recovery
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.hard_state import HardState
from antiphon.log.shard_log import ShardLog
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, LONG_CUTS

_Recovery = vars(recovery)["_Recovery"]

_PROMISES: Final = (
    ClusterMutant(
        "node-promises-unsynced",
        "term and vote are written without a sync",
        Edit(
            HardState,
            "_promise",
            "replace_file(self._disk, path, data)",
            "replace_file(self._disk, path, data, durable=False)",
        ),
        profile="raft",
        options=CALM,
        quick=True,
    ),
    ClusterMutant(
        "node-writes-no-vote",
        "the term is written, and the vote is kept in memory only",
        Edit(
            HardState,
            "stage",
            "_PROMISE.pack(term, -1 if voted_for is None else voted_for)",
            "_PROMISE.pack(term, -1)",
        ),
        profile="raft",
        options=CALM,
        quick=True,
    ),
)

_WRITES: Final = (
    ClusterMutant(
        "node-acknowledges-before-sync",
        "the WAL worker reports a group as done when it is written, and syncs it with the next flush",
        Edit(
            GroupCommitter,
            "_round",
            'if queue.flush == "always"]',
            'if queue.flush == "never"]',
        ),
        options=CALM,
        quick=True,
    ),
    ClusterMutant(
        "node-segment-without-name",
        "a new segment's name is not synced in its directory",
        Edit(layout, "create_segment", "    disk.fsync_dir(directory)\n", ""),
        options=CALM,
        quick=True,
    ),
    ClusterMutant(
        "node-closes-segments-short",
        "a segment that is closed is cut to whole blocks, and not to its last batch",
        Edit(layout, "close_segment", "truncate(size_bytes)", "truncate(size_bytes // 4096 * 4096)"),
        options={**CALM, "topic_config": "segment.bytes=16384"},
    ),
    ClusterMutant(
        "node-index-before-data",
        "index entries are written before the data that they describe is synced",
        Edit(
            GroupCommitter,
            "_round",
            "    self._fdatasync(due, done)\n",
            "    for _, run in runs:\n        self._write_index(run)\n    self._fdatasync(due, done)\n",
        ),
        options={**CRASHES, "fault_every_ms": 60, "power_weight": 10, "slow_weight": 8},
    ),
    ClusterMutant(
        "node-cut-keeps-producers",
        "what a log's cut takes away stays known as its producers' last batches",
        Edit(ShardLog, "truncate", "if not self.producers.truncate(to_offset):", "if False:"),
        profile="raft",
        options=LONG_CUTS,
        quick=True,
    ),
)

_STARTS: Final = (
    ClusterMutant(
        "node-recovery-forgets-producers",
        "recovery reads the log's batches and does not learn their producers' sequences",
        Edit(_Recovery, "_take", "self.producers.learn(header, batch)", "None"),
        options={**CRASHES, "kill_weight": 6, "reset_weight": 4},
        quick=True,
        first_seed=3,
    ),
)

DISK_MUTANTS: Final = (*_PROMISES, *_WRITES, *_STARTS)
