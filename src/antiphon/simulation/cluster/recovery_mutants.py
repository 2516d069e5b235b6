"""Mutants of the recovery of a shard that lost most of its replicas."""

from typing import Any, Final

from antiphon.coordination.shard_recovery import ShardRecoveries
from antiphon.node import old_history
from antiphon.node.unfinished_copies import UnfinishedCopy
from antiphon.partition import table_files
from antiphon.replication import raft
from antiphon.replication.lone_voter import LoneVoter
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM
from antiphon.table.folding import Folding

_RECOVERIES: Final[dict[str, Any]] = {
    **CALM,
    "nodes": 5,
    "replicas": 5,
    "fault_ms": 15_000,
    "fault_every_ms": 800,
    "fault_lasts_ms": 1_500,
    "most_replicas_gone_weight": 4,
    "kill_weight": 1,
    "cut_weight": 1,
    "operations_per_s": 100,
    "recovered_writers": 2,
}
"""A shard loses two of three replicas, and goes on from the third one."""

_TWO_LEFT: Final[dict[str, Any]] = {
    **_RECOVERIES,
    "nodes": 7,
    "replicas": 7,
    "fault_ms": 10_000,
    "operations_per_s": 60,
    "kill_weight": 0,
    "cut_weight": 0,
}
"""A shard loses three of five replicas, and goes on from either of the two that are left."""

_ROWS: Final[dict[str, Any]] = {**_RECOVERIES, "recovered_writers": 0, "recovered_putters": 2}
"""The shard is a table's, and has sessions."""

_ROWS_LEFT: Final[dict[str, Any]] = {
    **_TWO_LEFT,
    "recovered_writers": 0,
    "recovered_putters": 2,
    "removal_weight": 8,
    "fault_every_ms": 700,
}
"""The same with five replicas. The power fails while what the lost history has left is removed."""

_NEEDLESS: Final[dict[str, Any]] = {**_RECOVERIES, "needless_recovery_weight": 4, "nodes": 5}
"""The same, and an operator asks for it where it is not needed."""

_SPLIT_LOSSES: Final[dict[str, Any]] = {
    **_ROWS,
    "most_replicas_gone_weight": 1,
    "split_loss_weight": 6,
}
"""The table is split while the replica is away that is left afterwards."""

RECOVERY_MUTANTS: Final = (
    ClusterMutant(
        "recovered-term-not-raised",
        "a shard that goes on from one replica does so in the next term, which lost replicas may be in",
        Edit(
            ShardRecoveries, "_go_on_from", "mark = next_mark((meta.term, request.term))", "mark = meta.term"
        ),
        options=_TWO_LEFT,
    ),
    ClusterMutant(
        "old-replica-stays",
        "a replica of before a shard's recovery goes on with the log that it had",
        Edit(
            old_history,
            "is_of_the_past",
            "return known is not None and node != known.node and term < known.term",
            "return False",
        ),
        options=_TWO_LEFT,
        quick=True,
    ),
    ClusterMutant(
        "recovers-with-a-majority",
        "a shard goes on from one replica whenever an operator asks, also where enough others are alive",
        Edit(ShardRecoveries, "_check", "self._check_lost(record, options, node)", "pass"),
        options=_NEEDLESS,
        quick=True,
    ),
    ClusterMutant(
        "old-voter-follows",
        "a replica that votes takes what comes from a history that it is no part of",
        Edit(
            raft,
            "is_of_later_history",
            "return log_end > 0 and message.term // HISTORY_TERMS > term // HISTORY_TERMS",
            "return False",
        ),
        profile="raft",
        options=_RECOVERIES,
    ),
    ClusterMutant(
        "lone-voter-keeps-members",
        "a replica that is to go on alone stands for election among those that are lost",
        Edit(
            LoneVoter,
            "on_go_on_alone",
            "alone = Members((state.node_id,), deleted_before=min(state.members.deleted_before, end))",
            "alone = state.members",
        ),
        profile="raft",
        options=_RECOVERIES,
    ),
    ClusterMutant(
        "removed-store-is-used",
        "a replica that is made anew goes on with the store that a removed one has left",
        Edit(table_files, "_of_this_log", "not (applied and _is_new(log))", "True"),
        options=_ROWS_LEFT,
        first_seed=2,
        quick=True,
    ),
    ClusterMutant(
        "versions-of-the-last-change",
        "a replica that follows takes the version of the last change for the newest, also where that one removed an old row",
        Edit(
            Folding,
            "_apply_found",
            "max(self.next_version_id, newest_id(effects) + 1)",
            "newest_id(effects) + 1",
        ),
        options=_ROWS,
        quick=True,
    ),
    ClusterMutant(
        "recovered-parent-keeps-moved-keys",
        "a shard that goes on from a replica which has not heard of a split holds again what it had given away",
        (Edit(old_history, "recovered_part", "return part_of(topic, shard)", "return None"),),
        options=_SPLIT_LOSSES,
        quick=True,
    ),
    ClusterMutant(
        "recovered-child-forgets-sessions",
        "a shard whose copy was not complete goes on without the sessions that its rows belong to",
        (Edit(UnfinishedCopy, "_finish", "tuple(sessions.items())", "()"),),
        profile="raft",
        options=_SPLIT_LOSSES,
    ),
)
