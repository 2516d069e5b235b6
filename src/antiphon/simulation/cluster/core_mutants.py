"""Mutants of the core of whole nodes: who leads, what is promised, what is committed, what a start finds."""

from typing import Any, Final

from antiphon.coordination import fences, topics
from antiphon.coordination.election import Election
from antiphon.coordination.elections import Elections
from antiphon.log.hard_state import HardState
from antiphon.log.segment import SegmentScan
from antiphon.log.shard_log import ShardLog
from antiphon.partition.clients import PartitionClients
from antiphon.replication import appointment, quorum_ack_tracker
from antiphon.replication.actions import Action
from antiphon.replication.appointment import Appointment
from antiphon.replication.follower import FollowerSide
from antiphon.replication.leader_reads import LeaderReads
from antiphon.replication.messages import Append
from antiphon.replication.repair import LogRepair
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES, RESETS, TROUBLE, only

_ALONE: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 15_000,
    "fault_every_ms": 2_500,
    "fault_lasts_ms": 6_000,
    "delay_us": (1_000, 5_000),
    "cut_weight": 1,
}
"""Leaders are cut off for seconds. Clients who write to them wait, so those count who only read, or are refused."""

_ALONE_AND_BUSY: Final[dict[str, Any]] = {**_ALONE, "operations_per_s": 48}

_DEATHS_BEYOND_CUTS: Final[dict[str, Any]] = {
    **_ALONE,
    **only(fault_every_ms=700, fault_lasts_ms=3_000, kill_weight=1, appenders=6),
}
"""Who leads beyond a cut dies, and somebody leads next who has fewer entries than who is cut off."""

_HALVES: Final[dict[str, Any]] = {
    **_ALONE,
    "nodes": 5,
    "topic_shards": 5,
    "fault_every_ms": 1_000,
    "fault_lasts_ms": 3_000,
    "operations_per_s": 100,
}
"""Two of five nodes are cut off: of some shards they have a majority, of the cluster they have none."""

_SLOW_LEADERS: Final[dict[str, Any]] = {
    **CALM,
    "topic_shards": 6,
    "fault_ms": 10_000,
    "fault_every_ms": 300,
    "fault_lasts_ms": 2_000,
    "kill_weight": 2,
    "pause_weight": 2,
    "one_way_weight": 2,
    "slow_calls_weight": 3,
    "operations_per_s": 30,
}
"""Who is asked to lead takes so long that somebody else is asked."""

_LOSSES_BEYOND_CUTS: Final[dict[str, Any]] = {
    **_ALONE,
    "fault_ms": 20_000,
    "fault_every_ms": 900,
    "fault_lasts_ms": 4_000,
    "lost_files_weight": 1,
    "kill_weight": 1,
    "operations_per_s": 40,
}
"""One node is cut off, one loses its files, and then the only one with everything dies."""

_BIG_LOSSES: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 8_000,
    "fault_every_ms": 1_500,
    "lost_files_weight": 1,
    "record_bytes": 65_000,
    "operations_per_s": 60,
    "putters": 1,
}
"""What was lost comes back in several pieces."""

_KILLS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 6_000,
    "fault_every_ms": 200,
    "fault_lasts_ms": 200,
    "kill_weight": 1,
}
_ELECTIONS: Final[dict[str, Any]] = {
    **_KILLS,
    **only(
        operations_per_s=20,
        nodes=5,
        replicas=5,
        topic_shards=6,
        fault_every_ms=40,
        fault_lasts_ms=20,
        delay_us=(20_000, 120_000),
        appenders=1,
        putters=1,
    ),
}
"""Elections take long, several ask for votes at a time, and voters are killed and back at once."""

_ROT: Final[dict[str, Any]] = {**_KILLS, "fault_every_ms": 400, "bit_flip_weight": 4}
_LATE: Final[dict[str, Any]] = {**RESETS, "fault_every_ms": 100, "reset_weight": 0, "late_weight": 6}


def _take_anywhere(self: FollowerSide, message: Append, out: list[Action]) -> None:
    """`FollowerSide.on_append`; an Append whose preceding entry is not in the log is taken as if it were."""
    log = self._log
    terms = log.terms
    if not terms.holds(message.prev) and message.entries and message.prev.offset <= terms.log_end:
        if message.prev.offset < terms.log_end:
            out.append(log.truncate(message.prev.offset))
        out.append(log.append(message.entries))
        self.verified = max(self.verified, terms.log_end)
        self._ack_due, self._untold = True, self.config.ack_every
        self.leader = message.leader
        return
    _ON_APPEND(self, message, out)


_ON_APPEND: Final = FollowerSide.on_append

_FOLLOWING: Final = (
    ClusterMutant(
        "h4-older-term-by-counting",
        "a leader commits entries of older terms because a majority has them (H4)",
        Edit(quorum_ack_tracker, "commit_point", "reached > term_start and ", ""),
        profile="raft",
        options=TROUBLE,
        first_seed=5,
    ),
    ClusterMutant(
        "no-prev-check",
        "a follower takes entries wherever the leader says that they go",
        ((FollowerSide, "on_append", _take_anywhere),),
        profile="raft",
        options=_DEATHS_BEYOND_CUTS,
        rare=True,
    ),
    ClusterMutant(
        "cut-on-every-append",
        "a follower cuts its log behind the preceding entry before it takes new ones, also those of a late message",
        Edit(
            FollowerSide,
            "on_append",
            "end = prev.offset\n",
            "end = prev.offset\n"
            "    at = max(end, log.settled)\n"
            "    if entries and held and at < log.terms.log_end:\n"
            "        out.append(log.truncate(at))\n"
            "        self.verified = min(self.verified, at)\n",
        ),
        profile="raft",
        options=_LATE,
        quick=True,
    ),
    ClusterMutant(
        "repaired-too-early",
        "a damaged log counts as whole again once it has any entry committed in the current term",
        Edit(LogRepair, "repaired", "term > self.floor", "True"),
        profile="raft",
        options=_BIG_LOSSES,
        quick=True,
        first_seed=3,
    ),
)

_LEADING: Final = (
    ClusterMutant(
        "minority-fence",
        "the coordinator appoints a leader when a single replica has promised the term",
        (
            Edit(fences, "majority", "len(ensemble) // 2 + 1", "1"),
            Edit(appointment, "majority", "members // 2 + 1", "1"),
        ),
        options=_HALVES,
        rare=True,
    ),
    ClusterMutant(
        "damaged-votes",
        "a promise counts although the log behind it has lost entries",
        Edit(Election, "votes", "and not self.replies[node].damaged", ""),
        options=_LOSSES_BEYOND_CUTS,
        rare=True,
    ),
    ClusterMutant(
        "same-term-again",
        "the coordinator repeats an election in the term of one that did not come to an end",
        (
            Edit(
                Elections,
                "begin",
                "    if is_self_led(options):\n",
                "    term = max(record.meta.term, above, 1) + (record.meta.status == ShardStatus.ONLINE)\n"
                "    self._open[shard_id] = Election(shard_id, term, wanted=wanted)\n"
                "    self._shards.set(record, term=term, status=ShardStatus.ELECTION, leader=ABSENT_NODE)\n"
                "    return\n"
                "    if is_self_led(options):\n",
            ),
            Edit(
                Appointment,
                "_may_lead",
                "        and state.term != state.restored_term\n"
                "        and state.log.is_term_durable\n"
                "        and state.repair.is_sound\n"
                "        and self._is_fenced_off(message)\n",
                "        and state.log.is_term_durable\n",
            ),
        ),
        options=_SLOW_LEADERS,
        rare=True,
        first_seed=7,
    ),
)

_STARTS: Final = (
    ClusterMutant(
        "forgotten-vote",
        "a restarted replica does not know whom it voted for",
        Edit(HardState, "load", "vote = None if voted_for < 0 else voted_for", "vote = None"),
        profile="raft",
        options=_ELECTIONS,
        rare=True,
    ),
    ClusterMutant(
        "forgotten-term",
        "a restarted replica takes the term of its last entry for its own",
        Edit(
            ShardLog,
            "open",
            "    if is_empty:\n",
            "    state.term, state.voted_for = log.end.term, None\n    if is_empty:\n",
        ),
        profile="raft",
        options=_KILLS,
        quick=True,
    ),
    ClusterMutant(
        "torn-entry-kept",
        "recovery takes a torn entry at the end of the log for a whole one",
        Edit(
            SegmentScan,
            "_take",
            "check_batch(header, batch)",
            "if self._indexed_beyond():\n            check_batch(header, batch)",
        ),
        options={**CRASHES, "bulk_writers": 3, "appenders": 4, "record_bytes": 1_500},
        rare=True,
    ),
    ClusterMutant(
        "flipped-bit-kept",
        "recovery does not look at the checksums of entries",
        Edit(SegmentScan, "_take", "check_batch(header, batch)", "pass"),
        options=_ROT,
        first_seed=2,
    ),
)

_CLIENTS: Final = (
    ClusterMutant(
        "read-without-confirming",
        "a leader serves reads without asking whether it still leads",
        Edit(LeaderReads, "request", "if self._confirms_alone():", "if True:"),
        options={**_ALONE_AND_BUSY, "appenders": 0, "putters": 12},
        rare=True,
    ),
    ClusterMutant(
        "refuse-without-confirming",
        "a leader refuses a conditional append without asking whether it still leads",
        Edit(
            PartitionClients,
            "_mismatch",
            "self.when_confirmed(actual, timeout_s",
            "self.when_committed(actual, timeout_s",
        ),
        options={**_ALONE_AND_BUSY, "appenders": 12, "putters": 0, "conditional_ppm": 1_000_000},
        rare=True,
    ),
    ClusterMutant(
        "condition-on-watermark",
        "a conditional append is held against the high watermark, not against the log's end",
        Edit(
            PartitionClients,
            "_append",
            "expected_offset != base:",
            "expected_offset != state.high_watermark:",
        ),
        profile="kip27",
        options={**CALM, "appenders": 4, "conditional_ppm": 800_000},
    ),
    ClusterMutant(
        "retry-appends-again",
        "a request that is sent again is appended again",
        Edit(
            PartitionClients,
            "_append",
            "duplicate = producers.check(header, full=state.services.producers_full)",
            "duplicate = None",
        ),
        options=RESETS,
    ),
)

_TOPICS: Final = (
    ClusterMutant(
        "first-start-waits-for-all-nodes",
        "an internal topic that a job makes when it starts for the first time is refused while a node is down",
        Edit(topics, "check_create", "may_be_away=request.internal", "may_be_away=False"),
        options={
            **CALM,
            "fault_ms": 12_000,
            "fault_every_ms": 500,
            "fault_lasts_ms": 3_000,
            "kill_weight": 1,
            "operator_weight": 2,
            "commands": "create",
            "operations_per_s": 20,
        },
        quick=True,
    ),
)

CORE_MUTANTS: Final = (*_FOLLOWING, *_LEADING, *_STARTS, *_CLIENTS, *_TOPICS)
