"""Mutants of a replica's shell: what it does with its protocol's actions, and what it tells clients when."""

from typing import Final

from antiphon.node.partition_opener import PartitionOpener
from antiphon.partition.clients import PartitionClients
from antiphon.partition.common_actions import CommonActions
from antiphon.partition.driver import ReplicaDriver
from antiphon.partition.single_writer_actions import SingleWriterActions
from antiphon.partition.table_reads import TableReads
from antiphon.partition.table_writes import TableWrites
from antiphon.replication.follower import FollowerSide
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, LONG_CUTS, MOVES, RESETS, TROUBLE

_ACTIONS: Final = (
    ClusterMutant(
        "node-all-staged-is-durable",
        "when a group is durable, the replica is told that all it has staged by then is",
        Edit(ReplicaDriver, "_report_written", "writer.written_id)", "state.replica.log.write_id)"),
        options=CALM,
        quick=True,
    ),
    ClusterMutant(
        "node-acknowledges-unpromised-term",
        "a follower acknowledges entries of a term that its disk has not got yet",
        Edit(FollowerSide, "acknowledge", "not log.is_term_durable or ", ""),
        profile="raft",
        options=LONG_CUTS,
        quick=True,
    ),
    ClusterMutant(
        "node-answers-inside-the-step",
        "clients are answered while the replica's actions are carried out, and append in between",
        (
            Edit(
                CommonActions,
                "_commit",
                "self._steps.news.append((self._clients.committed, (high_watermark,)))",
                "self._clients.committed(high_watermark)",
            ),
            Edit(
                ReplicaDriver,
                "stage",
                "        if steps.is_acting:\n            unreachable(BUSY)\n",
                "",
            ),
        ),
        profile="tarantool",
        options={**MOVES, "bulk_writers": 3, "store_flush_every": 500, "fault_ms": 3_000},
        quick=True,
    ),
)

_ANSWERS: Final = (
    ClusterMutant(
        "node-answers-before-applying",
        "clients are told that their writes are committed before the table has them",
        (
            Edit(
                CommonActions,
                "_commit",
                "    table.evaluator.committed(high_watermark)\n",
                "    self._steps.later(table.evaluator.committed, high_watermark)\n",
            ),
            Edit(
                CommonActions,
                "_commit",
                "    self._steps.news.append((self._clients.committed, (high_watermark,)))\n",
                "    self._steps.news.appendleft((self._clients.committed, (high_watermark,)))\n",
            ),
        ),
        options=CALM,
        quick=True,
    ),
    ClusterMutant(
        "node-keeps-clients-when-deposed",
        "clients of a leader that is deposed wait on, and are answered by what the next leader commits",
        Edit(
            SingleWriterActions, "_role_changed", "self._steps.later(self._common.send_clients_away)", "pass"
        ),
        profile="raft",
        options={**TROUBLE, "appenders": 4, "transactions": True},
    ),
    ClusterMutant(
        "table-keeps-judged",
        "a deposed leader goes on applying what it has judged itself",
        Edit(SingleWriterActions, "_role_changed", "state.table.stop_leading()", "pass"),
        options=CUTS,
        first_seed=4,
    ),
    ClusterMutant(
        "node-answers-repeats-at-once",
        "a repeated append is answered as soon as the first one is found in the log, committed or not",
        Edit(
            PartitionClients,
            "_append",
            "self.when_committed(duplicate.next_offset, timeout_s, lambda: done(result), done)",
            "done(result)",
        ),
        options=RESETS,
        quick=True,
    ),
    ClusterMutant(
        "table-refuses-at-once",
        "a refused condition is answered at once, without asking whether this node still leads",
        Edit(
            TableWrites,
            "_without_effect",
            "clients.when_confirmed(evaluation.wait_for, timeout_s, lambda: done(written), done)",
            "done(written)",
        ),
        options={
            **LONG_CUTS,
            "power_weight": 3,
            "conditional_ppm": 800_000,
            "putters": 6,
            "appenders": 0,
            "transactions": True,
        },
    ),
)

_SPLITS: Final = (
    ClusterMutant(
        "node-writes-what-it-gave-away",
        "a shard that was split takes writes to keys that are the other one's now",
        Edit(TableWrites, "_write", "if not owned.is_whole and not", "if False and not"),
        options={**MOVES, "putters": 4},
    ),
    ClusterMutant(
        "node-reads-what-it-gave-away",
        "a shard that was split answers gets of keys that are the other one's now",
        Edit(TableReads, "get", "elsewhere = is_part and not", "elsewhere = False and not"),
        options={**MOVES, "putters": 4},
    ),
)

_STARTS: Final = (
    ClusterMutant(
        "node-log-end-is-committed",
        "what is found in the log at a start is taken for committed",
        Edit(
            PartitionOpener,
            "recover",
            "high_watermark = log.hard_state.high_watermark",
            "high_watermark = log.log_end",
        ),
        options=TROUBLE,
    ),
)

HOST_MUTANTS: Final = (*_ACTIONS, *_ANSWERS, *_SPLITS, *_STARTS)
