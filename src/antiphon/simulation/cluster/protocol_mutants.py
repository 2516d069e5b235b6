"""Mutants of the pure protocol, in whole nodes. What replaces which function is in `simulation/*mutations.py`."""

from typing import Final

from antiphon.simulation import election_mutations, mode_mutations, mutations
from antiphon.simulation.cluster.mutant import ClusterMutant
from antiphon.simulation.cluster.mutant_worlds import CRASHES, MOVES, TROUBLE

PROTOCOL_MUTANTS: Final = (
    ClusterMutant(
        "h1-wrong-median",
        "takes sorted[n // 2] as the committed offset: for four replicas that is held by two of them (H1)",
        mutations.WRONG_MEDIAN,
        profile="raft",
        options={**TROUBLE, "nodes": 4, "replicas": 4},
        quick=True,
    ),
    ClusterMutant(
        "h2-over-counted-ack",
        "a follower acknowledges the end of its log rather than what it has verified (H2)",
        mutations.OVER_COUNTED_ACK,
        profile="raft",
        options=CRASHES,
    ),
    ClusterMutant(
        "h3-no-check-when-empty",
        "a follower whose log is empty takes entries without checking what is before them (H3)",
        mutations.NO_CHECK_WHEN_EMPTY,
        profile="raft",
        options=MOVES,
    ),
    ClusterMutant(
        "h5-unclipped-commit",
        "a follower takes over the leader's high watermark as it is (H5)",
        mutations.UNCLIPPED_COMMIT,
        profile="raft",
        options=CRASHES,
        quick=True,
        first_seed=4,
    ),
    ClusterMutant(
        "ack-before-sync",
        "an append counts as durable when it is handed to the disk",
        mutations.ACK_BEFORE_SYNC,
        profile="raft",
        options=TROUBLE,
    ),
    ClusterMutant(
        "vote-before-sync",
        "a vote is sent while it is on its way to the disk",
        mutations.VOTE_BEFORE_SYNC,
        profile="raft",
        options=TROUBLE,
    ),
    ClusterMutant(
        "ready-at-once",
        "a new leader serves clients before its first entry is committed",
        mutations.READY_AT_ONCE,
        profile="raft",
        options=TROUBLE,
        quick=True,
    ),
    ClusterMutant(
        "vote-for-anyone",
        "votes are given without comparing logs",
        mutations.VOTE_FOR_ANYONE,
        profile="raft",
        options=TROUBLE,
        first_seed=2,
    ),
    ClusterMutant(
        "lost-heartbeat-watermark",
        "a follower ignores the high watermark of an Append without entries",
        mutations.LOST_WATERMARK,
        profile="raft",
        options=TROUBLE,
    ),
    ClusterMutant(
        "any-head",
        "the coordinator appoints whoever leads least, whatever its log",
        election_mutations.ANY_HEAD,
        profile="oxia",
        options=TROUBLE,
    ),
    ClusterMutant(
        "forgotten-member",
        "nobody fences a member that was away during its shard's election",
        election_mutations.FORGOTTEN_MEMBER,
        profile="oxia",
        options=TROUBLE,
        first_seed=2,
    ),
    ClusterMutant(
        "coordinator-grows-live",
        "the coordinator takes a member that is back into the live set by itself",
        mode_mutations.COORDINATOR_GROWS,
        profile="fluvio",
        options=TROUBLE,
    ),
    ClusterMutant(
        "stale-live-proposal",
        "a live set is recorded whatever record the proposal was made on top of",
        mode_mutations.STALE_PROPOSAL,
        profile="fluvio",
        options=TROUBLE,
        first_seed=6,
    ),
    ClusterMutant(
        "no-joint-record",
        "the coordinator records new voters without those before them",
        mode_mutations.NO_JOINT_RECORD,
        profile="oxia",
        options=MOVES,
    ),
    ClusterMutant(
        "majority-will-do",
        "at_least(k) is acknowledged by a majority, also where k is more",
        mode_mutations.MAJORITY_WILL_DO,
        profile="oxia",
        options={**TROUBLE, "commit": "at_least(3)"},
        quick=True,
    ),
    ClusterMutant(
        "acknowledged-is-settled",
        "with commit=local, what the leader alone has goes to the followers as settled",
        mode_mutations.ACKNOWLEDGED_IS_SETTLED,
        profile="tarantool",
        options={**TROUBLE, "commit": "local"},
    ),
)

_HAND_OVER: Final = """
# A leader hands over to a replica whose log ends before its own: first it sends what is missing there. The others vote for
# the successor at once, though they have just heard from the leader, and it has everything that was committed.
replicas a b c
elect a
append a aria
deliver from a to b
deliver from b to a
drop to c
expect a commit 2
transfer c
deliver
expect c role follower          # it lacks an entry, as the next heartbeat shows
tick a 2
deliver
tick a 2
deliver
expect c role leader
expect c ready yes
expect c disk 1:start 1:aria 2:start
settle
expect all disk like c
"""

SCRIPT_MUTANTS: Final = (
    ClusterMutant(
        "hasty-transfer",
        "a leader hands over before its successor has the whole log, and voters take its word for it",
        mode_mutations.HASTY_TRANSFER,
        profile="raft",
        script=_HAND_OVER,
    ),
)
"""For scripts alone: bytes of a connection arrive in order, so a successor that votes has what was sent before."""
