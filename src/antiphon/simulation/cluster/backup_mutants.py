"""Mutants of the cut of a backup: of holds, of their confirmation, and of what takes the cut."""

from typing import Any, Final

from antiphon.backup import create, cut, restore_cluster, restore_topic
from antiphon.backup import prune as pruning
from antiphon.backup.shard_copy import ShardCopy
from antiphon.backup.shard_files import ShardFiles
from antiphon.node.local_backups import LocalBackups
from antiphon.partition.hold import ShardHold
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, LONG_CUTS, only

_WORK: Final[dict[str, Any]] = only(operations_per_s=400, fault_ms=8_000, cutters=2)
_IS_WHOLE: Final = "is_whole = is_whole and self._end == end == state.log.log_end"

_MADE: Final[dict[str, Any]] = {**CALM, "fault_ms": 3_000, "backup_makers": 2, "appenders": 0, "putters": 0}
_RESTORED: Final = {**_MADE, "fault_ms": 5_000}
_LATER: Final = """from antiphon.model.backup import NOBODY, HoldShard
            asked = HoldShard(shard_id, NOBODY, 0)
            if shard_id:
                await asyncio.sleep(shard_id / 100)
                cut.ends[shard_id] = (await self._client.whole.ask_shard(shard_id, asked))[0]
            found[shard_id] = await"""
WHOLE: Final[dict[str, Any]] = {**CALM, "fault_ms": 4_000, "whole_restores": 1, "appenders": 0, "putters": 0}
_WHOLE_TRIMMED: Final = {**WHOLE, "fault_every_ms": 100, "trim_weight": 1}
# A checkpoint takes many batches, and the next one follows soon.
_MANY_CHECKPOINTS: Final = {
    "checkpoint_records": 1,
    "checkpoint_batch": 1,
    "metadata_segment_bytes": 4096,
    "operator_weight": 8,
    "backup_makers": 4,
}

BACKUP_MUTANTS: Final = (
    ClusterMutant(
        "prune-takes-shared-files",
        "a prune removes all files of an old backup, also those that newer ones need",
        Edit(pruning, "prune", "if file not in needed and place.remove(file):", "if place.remove(file):"),
        options=_MADE,
        quick=True,
    ),
    ClusterMutant(
        "prune-removes-manifests-only",
        "a prune leaves the files of the backups that it removes",
        Edit(
            pruning, "prune", "for file, size in mine.items():", "for file, size in dict[str, int]().items():"
        ),
        options=_MADE,
        quick=True,
    ),
    ClusterMutant(
        "backup-ends-before-its-cut",
        "what was committed between the first copying and the cut is not copied",
        Edit(
            ShardCopy,
            "up_to",
            "log_start = await self._copy(held.log_start, held.end)",
            "log_start = held.log_start",
        ),
        options=_MADE,
        quick=True,
    ),
    ClusterMutant(
        "backup-of-half-a-checkpoint",
        "the metadata are copied from a checkpoint on that ends behind the cut",
        Edit(ShardCopy, "up_to", "log_start > held.log_start", "log_start < 0"),
        options={**_MADE, **_MANY_CHECKPOINTS},
        quick=True,
        first_seed=37,
    ),
    ClusterMutant(
        "restore-repeats-its-sequence",
        "each batch of a restored topic has the sequence of the first one, and is taken for a repeat of it",
        Edit(
            restore_topic._Sender,  # noqa: SLF001
            "_send",
            "self._sequence = (self._sequence + offsets) & SEQUENCE_MAX",
            "self._sequence += 0",
        ),
        options=_RESTORED,
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "restore-reads-one-piece",
        "of a shard that is restored the first batches are sent",
        Edit(restore_topic._Sender, "run", "while some := await", "if some := await"),  # noqa: SLF001
        options=_RESTORED,
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "restore-leaves-out-a-row",
        "the first row of each page of a table's store is not restored",
        Edit(restore_topic, "_restore_rows", "for row in page if", "for row in page[1:] if"),
        options=_RESTORED,
        quick=True,
    ),
    ClusterMutant(
        "backup-goes-past-its-cut",
        "logs are copied one after the other, each up to where it ends then, and the manifest says so",
        Edit(
            create._Run,  # noqa: SLF001
            "copy_rest",
            "found[shard_id] = await",
            _LATER,
        ),
        options=WHOLE,
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "restored-producers-forgotten",
        "a restored log that was trimmed knows nothing of producers before its start",
        Edit(ShardFiles, "open_log", "self._producers(saved)", "ProducerState()"),
        options=_WHOLE_TRIMMED,
    ),
    ClusterMutant(
        "restored-store-not-filled",
        "the store of a restored table has what is in its log, and not what was trimmed from it",
        Edit(ShardFiles, "make", "self.make_store(folder, saved)", "pass"),
        options=_WHOLE_TRIMMED,
        quick=True,
    ),
    ClusterMutant(
        "restored-not-durable",
        "a restore ends before everything is on the disk",
        Edit(restore_cluster, "restore_cluster", "disk.sync_all()", "pass"),
        options=WHOLE,
    ),
    ClusterMutant(
        "restored-ids-used-again",
        "a restored cluster counts shards, topics and producers from the beginning",
        Edit(restore_cluster, "_found_cluster", "state.counters.items()", "dict[str, int]().items()"),
        options=WHOLE,
    ),
    ClusterMutant(
        "hold-lets-writes-in",
        "a shard that is held for a cut takes writes, and confirms that it did not",
        (
            Edit(ShardHold, "begin", "self._clients.queue.holds += 1", "self._clients.queue.holds += 0"),
            Edit(ShardHold, "release", "self._clients.let_go()", "pass"),
            Edit(ShardHold, "confirm", _IS_WHOLE, "is_whole = is_whole and self._end == end"),
        ),
        options={**CALM, **_WORK},
        quick=True,
        first_seed=11,
    ),
    ClusterMutant(
        "hold-without-lease",
        "a hold does not end by itself",
        Edit(LocalBackups, "hold", "if lease_s > 0:", "if lease_s < 0:"),
        options={**CALM, **_WORK},
        quick=True,
        first_seed=12,
    ),
    ClusterMutant(
        "cut-of-topics-only",
        "a cut leaves out the tables of the cluster itself, as if what they say were not needed",
        Edit(
            cut,
            "take_cut",
            "shards = [shard.shard_id for topic in topics for shard in topic.shards]",
            "shards = [shard.shard_id for topic in topics if not topic.internal for shard in topic.shards]",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "cut-not-confirmed",
        "the ends that shards tell are taken for a cut, whether or not they were held at one moment",
        Edit(
            cut,
            "take_cut",
            "held_ms = await one.confirm(cluster)",
            "held_ms = 0.0\n            await one.release(shards)",
        ),
        options={**LONG_CUTS, **_WORK},
        first_seed=5,
    ),
    ClusterMutant(
        "hold-confirmed-by-deposed",
        "a leader confirms a hold without having asked whether it still leads",
        Edit(
            ShardHold,
            "confirm",
            "self._clients.when_confirmed(end, CONFIRM_S, lambda: done(HoldConfirmed(held_us)), done)",
            "done(HoldConfirmed(held_us))",
        ),
        options={**LONG_CUTS, **_WORK},
        rare=True,
        first_seed=12,
    ),
)
