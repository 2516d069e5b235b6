"""Mutants of the ways to replicate: live sets, members that change, disks that are replaced, commit rules."""

from typing import Any, Final

from antiphon.coordination import elections
from antiphon.coordination.election import Election
from antiphon.node import raft_shards
from antiphon.node.shards import Shards
from antiphon.replication import membership
from antiphon.replication.commit_marker import CommitMarker
from antiphon.replication.election import Campaign
from antiphon.replication.leader_commit import CommitTracker
from antiphon.replication.live_set import LiveSet
from antiphon.replication.local_log import LocalLog
from antiphon.replication.quorum_ack_tracker import QuorumAckTracker
from antiphon.replication.term_state import TermState
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, MOVES, TROUBLE, only

_LIVE: Final[dict[str, Any]] = {
    **TROUBLE,
    "slow_weight": 8,
    "appenders": 3,
    "putters": 0,
    "topic_config": "live.lag.ms=200",
}
"""Replicas trail, are taken out of the live set, and come back."""

_LONG: Final[dict[str, Any]] = {
    **CALM,
    "replicas": 2,
    "fault_ms": 60_000,
    "fault_every_ms": 5_000,
    "fault_lasts_ms": 16_000,
    "kill_weight": 1,
    "operations_per_s": 60,
    "putters": 0,
    "topic_config": "live.lag.ms=200",
}
"""One live replica goes after the other, and the first comes back before the last."""

_MOVING: Final[dict[str, Any]] = {
    **MOVES,
    "nodes": 5,
    "fault_ms": 6_000,
    "commands": "move",
    "fault_every_ms": 250,
    "appenders": 3,
    "putters": 0,
}
"""Replicas of the topic and of an idle table move."""

_SLOW: Final[dict[str, Any]] = {
    **_MOVING,
    "fault_every_ms": 80,
    "fault_lasts_ms": 1_000,
    "delay_us": (2_000, 30_000),
    "operator_weight": 4,
    "slow_weight": 2,
    "cut_weight": 1,
    "commands": "move move replicas drain",
}
"""The same where commits take their time, so that much goes on between a command and its end."""

_SETTLING: Final[dict[str, Any]] = {
    **_MOVING,
    "fault_ms": 8_000,
    "fault_every_ms": 60,
    "fault_lasts_ms": 2_000,
    "operator_weight": 2,
    "slow_weight": 3,
}
"""The same where most replicas trail."""

_NEW_DISKS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 10_000,
    "fault_every_ms": 250,
    "fault_lasts_ms": 600,
    "new_disk_weight": 3,
    "kill_weight": 1,
    "slow_weight": 2,
    "operations_per_s": 100,
}
"""Machines come back with empty disks."""

_NEW_DISKS_BEYOND_CUTS: Final[dict[str, Any]] = {
    **CALM,
    **only(
        operations_per_s=80,
        nodes=5,
        topic_shards=8,
        fault_ms=20_000,
        fault_every_ms=500,
        fault_lasts_ms=5_000,
        delay_us=(1_000, 5_000),
        new_disk_weight=2,
        cut_weight=2,
        kill_weight=2,
        appenders=6,
        putters=1,
    ),
}
"""One replica is cut off, one gets a new disk, and the only one with everything dies, while a majority of nodes is there."""

_LOSSES: Final[dict[str, Any]] = {
    **CUTS,
    **only(commit="local", fault_every_ms=1_500, fault_lasts_ms=6_000, appenders=3),
}
"""Leaders are cut off together with what they have acknowledged alone."""

_SETS: Final = (
    ClusterMutant(
        "shrink-not-recorded",
        "a leader stops waiting for a lagging live member before the smaller live set is recorded (S3.28)",
        Edit(
            LiveSet,
            "counting",
            "sorted(self._standing)",
            "sorted(node for node, one in self._standing.items() if one is not Standing.LEAVING)",
        ),
        "fluvio",
        _LIVE,
    ),
    ClusterMutant(
        "live-at-once",
        "a follower is proposed as live before it holds all that was committed",
        Edit(LiveSet, "heard", "if held >= committed:", "if True:"),
        "fluvio",
        _LIVE,
        first_seed=10,
    ),
    ClusterMutant(
        "unclean-anyway",
        "a member that is not live is elected though the topic does not allow it (S3.18)",
        Edit(
            elections,
            "may_be_unclean",
            "options.unclean and meta.fence != Fence.MAJORITY and any(is_alive(node) for node in able)",
            "True",
        ),
        "fluvio",
        _LONG,
        rare=True,
    ),
    ClusterMutant(
        "few-are-enough",
        "commits go on with fewer live members than min.live",
        Edit(LiveSet, "is_enough", "len(self.recorded) >= self.config.min_live", "True"),
        "fluvio",
        {**_LIVE, "topic_config": "min.live=3"},
        quick=True,
        first_seed=2,
    ),
)

_MEMBERS: Final = (
    ClusterMutant(
        "joint-new-majority-only",
        "while members change, only a majority of the new voters is counted",
        (
            Edit(QuorumAckTracker, "go_by_sets", "in members.sets", "in (members.voters,)"),
            Edit(Campaign, "__init__", "self._members = members", "self._members = Members(members.voters)"),
        ),
        "raft",
        _SLOW,
        first_seed=2,
    ),
    ClusterMutant(
        "one-step-change",
        "the voters are replaced in one step",
        Edit(
            membership, "next_members", "Members(tuple(voters), current.voters,", "Members(tuple(voters), (),"
        ),
        "raft",
        _MOVING,
        quick=True,
    ),
    ClusterMutant(
        "two-changes-at-once",
        "a change of members is begun while another is not committed",
        Edit(membership, "next_members", "if current.is_joint or not settled:", "if False:"),
        "raft",
        {
            **_SLOW,
            "fault_every_ms": 50,
            "operator_weight": 6,
            "delay_us": (5_000, 40_000),
            "operations_per_s": 60,
        },
        rare=True,
    ),
    ClusterMutant(
        "learners-count",
        "a learner's acknowledgement counts as a voter's",
        Edit(
            QuorumAckTracker,
            "go_by_sets",
            "in members.sets",
            "in ((*members.voters, *members.learners), *members.sets[1:])",
        ),
        "raft",
        _SLOW,
        first_seed=4,
    ),
    ClusterMutant(
        "settled-at-once",
        "a leader says that a change of members is settled before the new voters hold what was committed",
        Edit(CommitTracker, "newly_settled", "return is_settled", "self.unsettled = None\n    return True"),
        "oxia",
        _SETTLING,
        rare=True,
    ),
)

_DISKS: Final = (
    ClusterMutant(
        "forgotten-voter-acknowledges",
        "a voter whose disk came back empty votes and acknowledges at once",
        Edit(raft_shards, "_judge_fresh", "if directory.may_replace:", "if False:"),
        "raft",
        _NEW_DISKS,
    ),
    ClusterMutant(
        "untrusted-votes",
        "the promise of a member on a new disk counts as if it remembered",
        Edit(Election, "votes", "and (self.unclean or node not in record.untrusted)", ""),
        "oxia",
        _NEW_DISKS_BEYOND_CUTS,
        rare=True,
    ),
    ClusterMutant(
        "open-before-registered",
        "a node on a new disk opens its replicas before the coordinator has heard of the disk",
        Edit(Shards, "_may_open", "self._node.agent.registered.is_set()", "True"),
        "oxia",
        {**_NEW_DISKS, "power_all_weight": 2},
    ),
    ClusterMutant(
        "empty-shard-shows-no-term",
        "the leader of an empty log writes no entry for a voter on a new disk, which waits for one",
        Edit(TermState, "on_ack", "self.show_term(out)", "pass"),
        "raft",
        _NEW_DISKS,
    ),
)

_RULES: Final = (
    ClusterMutant(
        "marker-of-everything",
        "a commit marker tells of the log's end rather than of what is committed",
        Edit(
            CommitMarker,
            "after",
            "self._make(term, log_end, high_watermark)",
            "self._make(term, log_end, log_end)",
        ),
        "tarantool",
        CALM,
        quick=True,
    ),
    ClusterMutant(
        "silent-loss",
        "a deposed leader cuts off what it has acknowledged and says nothing of it (S4.28)",
        Edit(LocalLog, "lose_tail", "out.append(LostTail(from_offset, self.acknowledged))", "pass"),
        "tarantool",
        _LOSSES,
    ),
)

MODE_MUTANTS: Final = (*_SETS, *_MEMBERS, *_DISKS, *_RULES)
