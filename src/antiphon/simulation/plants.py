"""Bugs to plant: a simulator that never finds anything proves nothing.

Each plant is one known mistake in replicating a log. It changes the pure classes inside the simulated world only, by
replacing a function or method while the run lasts. Each has to be caught within a bounded number of seeds.
"""

from typing import Any

from antiphon.simulation import election_mutations, mutations
from antiphon.simulation.mode_plants import MODE_PLANTS
from antiphon.simulation.plant import Plant, planted
from antiphon.simulation.table_plants import TABLE_PLANTS

__all__ = ["PLANTS", "Plant", "planted"]

# Worlds in which elections are frequent and contested.
_CONTESTED: dict[str, Any] = {
    "nodes": 5,
    "replicas": 5,
    "pre_vote": False,
    "election_spread_ticks": 2,
    "safety_ms": 4_000,
    "fault_every_ms": 40,
    "crash_weight": 8,
    "crash_all_weight": 2,
    "partition_weight": 2,
    "loss_ppm": 50_000,
}

# Worlds in which leaders are cut off while clients write, so that logs diverge.
_DIVERGING: dict[str, Any] = {
    "clients": 6,
    "safety_ms": 6_000,
    "clock_skew_ppm": 300_000,
    "delay_us_mean": 500,
    "sync_us_mean": 100,
    "fault_every_ms": 120,
    "pause_weight": 2,
    "partition_weight": 6,
    "one_way_weight": 3,
    "crash_weight": 2,
    "crash_all_weight": 0,
    "loss_ppm": 10_000,
}

# The same where a coordinator appoints: it takes longer to notice who is gone.
_APPOINTED: dict[str, Any] = {**_DIVERGING, "warm_up": True, "safety_ms": 8_000, "crash_weight": 6}

_ALL = (
    Plant(
        "h1-wrong-median",
        "takes sorted[n // 2] as the committed offset: for four replicas that is held by two of them (H1)",
        mutations.WRONG_MEDIAN,
        options={"nodes": 4, "replicas": 4},
    ),
    Plant(
        "h2-over-counted-ack",
        "a follower acknowledges the end of its log rather than what it has verified (H2)",
        mutations.OVER_COUNTED_ACK,
        options=_DIVERGING,
    ),
    Plant(
        "h3-no-check-when-empty",
        "a follower whose log is empty takes entries without checking what is before them (H3)",
        mutations.NO_CHECK_WHEN_EMPTY,
        options=_CONTESTED,
    ),
    Plant(
        "h4-older-term-by-counting",
        "a leader commits entries of older terms because a majority has them (H4)",
        mutations.OLDER_TERM_BY_COUNTING,
        options=_DIVERGING,
    ),
    Plant(
        "h5-unclipped-commit",
        "a follower takes over the leader's high watermark as it is (H5)",
        mutations.UNCLIPPED_COMMIT,
        options=_DIVERGING,
    ),
    Plant(
        "ack-before-sync",
        "an append counts as durable when it is handed to the disk",
        mutations.ACK_BEFORE_SYNC,
    ),
    Plant(
        "no-prev-check",
        "a follower takes entries wherever the leader says that they go",
        mutations.NO_PREV_CHECK,
        options=_DIVERGING,
    ),
    Plant(
        "forgotten-vote",
        "a restarted replica does not know whom it voted for",
        on_restart=mutations.forget_vote,
        options=_CONTESTED,
    ),
    Plant(
        "forgotten-term",
        "a restarted replica takes the term of its last entry for its own",
        on_restart=mutations.forget_term,
        options=_CONTESTED,
    ),
    Plant(
        "vote-before-sync",
        "a vote is sent while it is on its way to the disk",
        mutations.VOTE_BEFORE_SYNC,
    ),
    Plant(
        "cut-on-every-append",
        "a follower cuts its log behind the preceding entry before it takes new ones, also those of a late message",
        mutations.CUT_ON_EVERY_APPEND,
    ),
    Plant(
        "read-without-confirming",
        "a leader serves reads without asking whether it still leads",
        mutations.READ_WITHOUT_CONFIRMING,
        options=_DIVERGING,
    ),
    Plant(
        "ready-at-once",
        "a new leader serves clients before its first entry is committed",
        mutations.READY_AT_ONCE,
        options={
            **_DIVERGING,
            "pause_weight": 0,
            "one_way_weight": 0,
            "partition_weight": 0,
            "crash_weight": 4,
            "sync_us_mean": 15_000,
            "fault_every_ms": 250,
        },
    ),
    Plant(
        "vote-for-anyone",
        "votes are given without comparing logs",
        mutations.VOTE_FOR_ANYONE,
        options=_CONTESTED,
    ),
    Plant(
        "lost-heartbeat-watermark",
        "a follower ignores the high watermark of an Append without entries",
        mutations.LOST_WATERMARK,
    ),
    Plant(
        "repaired-too-early",
        "a damaged log counts as whole again once it has any entry committed in the current term",
        election_mutations.REPAIRED_TOO_EARLY,
        options={**_DIVERGING, "crash_weight": 12, "damage_ppm": 600_000},
        rare=True,
    ),
    Plant(
        "refuse-without-confirming",
        "a leader refuses a conditional append without asking whether it still leads",
        election_mutations.REFUSE_WITHOUT_CONFIRMING,
        profile="oxia",
        options={**_APPOINTED, "clients": 3, "conditional_ppm": 900_000},
        rare=True,
    ),
    Plant(
        "minority-fence",
        "the coordinator appoints a leader when a single replica has promised the term",
        election_mutations.MINORITY_FENCE,
        profile="oxia",
        options=_APPOINTED,
        rare=True,
    ),
    Plant(
        "any-head",
        "the coordinator appoints whoever leads least, whatever its log",
        election_mutations.ANY_HEAD,
        profile="oxia",
        options=_APPOINTED,
    ),
    Plant(
        "damaged-votes",
        "a promise counts although the log behind it has lost entries",
        election_mutations.DAMAGED_VOTES,
        profile="oxia",
        options={**_APPOINTED, "damage_ppm": 600_000},
        rare=True,
    ),
    Plant(
        "same-term-again",
        "the coordinator repeats an election in the term of one that did not come to an end",
        election_mutations.SAME_TERM_AGAIN,
        profile="oxia",
        options={**_APPOINTED, "crash_weight": 12, "delay_us_mean": 10_000},
    ),
    Plant(
        "forgotten-member",
        "nobody fences a member that was away during its shard's election",
        election_mutations.FORGOTTEN_MEMBER,
        profile="oxia",
        options=_APPOINTED,
    ),
)

PLANTS: dict[str, Plant] = {plant.name: plant for plant in (*_ALL, *MODE_PLANTS, *TABLE_PLANTS)}
