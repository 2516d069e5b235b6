"""Bugs to plant in the ways to replicate: live sets, changes of members, asynchronous commit, conditional appends."""

from typing import Any, Final

from antiphon.simulation import mode_mutations as wrong
from antiphon.simulation.plant import Plant

# A coordinator elects, members are cut off, crash and come back, and live sets shrink and grow.
_LIVE: dict[str, Any] = {
    "warm_up": True,
    "safety_ms": 8_000,
    "clients": 4,
    "fault_every_ms": 80,
    "crash_weight": 6,
    "partition_weight": 6,
    "one_way_weight": 3,
    "pause_weight": 3,
    "operator_weight": 1,
    "loss_ppm": 10_000,
    "delay_us_mean": 500,
    "sync_us_mean": 100,
    "min_live": 1,
    "unclean": False,
}

# Operators change members all the time.
_MOVING: dict[str, Any] = {
    **_LIVE,
    "nodes": 5,
    "shards": 2,
    "fault_every_ms": 50,
    "operator_weight": 16,
    "disk_failure_weight": 0,
}

_VOTING: dict[str, Any] = {
    **_MOVING,
    "replicas": 3,
    "clients": 2,
    "pre_vote": False,
    "election_spread_ticks": 2,
    "safety_ms": 6_000,
    "fault_every_ms": 50,
    "operator_weight": 16,
    "crash_weight": 2,
    "bit_flip_weight": 0,
    "damage_ppm": 0,
    "wipe_ppm": 0,
    "disk_full_weight": 0,
}

# Commits take their time, so that much goes on between a command and its end.
_SLOW: dict[str, Any] = {
    "loss_ppm": 200_000,
    "delay_us_mean": 10_000,
    "sync_us_mean": 5_000,
    "in_order": False,
    "operator_weight": 40,
    "fault_every_ms": 25,
}

# Disks come back empty.
_WIPING: dict[str, Any] = {"crash_weight": 12, "wipe_ppm": 400_000, "damage_ppm": 0, "bit_flip_weight": 0}

# Leaders are cut off together with what they have acknowledged alone.
_ASYNCHRONOUS: dict[str, Any] = {
    **_LIVE,
    "commit": "local",
    "operator_weight": 0,
    "safety_ms": 4_000,
    "wipe_ppm": 0,
    "damage_ppm": 0,
    "bit_flip_weight": 0,
}

MODE_PLANTS: Final = (
    Plant(
        "shrink-not-recorded",
        "a leader stops waiting for a lagging live member before the smaller live set is recorded (S3.28)",
        wrong.SHRINK_NOT_RECORDED,
        profile="fluvio",
        options=_LIVE,
        rare=True,
    ),
    Plant(
        "coordinator-grows-live",
        "the coordinator takes a member that is back into the live set by itself",
        wrong.COORDINATOR_GROWS,
        profile="fluvio",
        options=_LIVE,
    ),
    Plant(
        "stale-live-proposal",
        "a live set is recorded whatever record the proposal was made on top of",
        wrong.STALE_PROPOSAL,
        profile="fluvio",
        options=_LIVE,
    ),
    Plant(
        "live-at-once",
        "a follower is proposed as live before it holds all that was committed",
        wrong.LIVE_AT_ONCE,
        profile="fluvio",
        options=_LIVE,
    ),
    Plant(
        "unclean-anyway",
        "a member that is not live is elected though the topic does not allow it (S3.18)",
        wrong.UNCLEAN_ANYWAY,
        profile="fluvio",
        options={
            **_LIVE,
            "nodes": 5,
            "safety_ms": 15_000,
            "fault_lasts_ms": 6_000,
            "fault_every_ms": 600,
            "partition_weight": 0,
            "one_way_weight": 0,
        },
        rare=True,
    ),
    Plant(
        "few-are-enough",
        "commits go on with fewer live members than min.live",
        wrong.FEW_ARE_ENOUGH,
        profile="fluvio",
        options={**_LIVE, "min_live": 3},
    ),
    Plant(
        "joint-new-majority-only",
        "while members change, only a majority of the new voters is counted",
        wrong.JOINT_NEW_ONLY,
        options=_VOTING,
        rare=True,
    ),
    Plant(
        "one-step-change",
        "the voters are replaced in one step",
        wrong.ONE_STEP,
        options={**_VOTING, "partition_weight": 16, "operator_weight": 16},
        rare=True,
    ),
    Plant(
        "two-changes-at-once",
        "a change of members is begun while another is not committed",
        wrong.TWO_AT_ONCE,
        options={**_VOTING, **_SLOW},
        rare=True,
    ),
    Plant(
        "learners-count",
        "a learner's acknowledgement counts as a voter's",
        wrong.LEARNERS_COUNT,
        options=_VOTING,
    ),
    Plant(
        "hasty-transfer",
        "a leader hands over before its successor has the whole log, and voters take its word for it",
        wrong.HASTY_TRANSFER,
        options={**_VOTING, **_SLOW},
        rare=True,
    ),
    Plant(
        "forgotten-voter-acknowledges",
        "a voter whose disk came back empty votes and acknowledges at once",
        on_restart=wrong.remember_nothing,
        options={**_VOTING, **_WIPING, "operator_weight": 0},
    ),
    Plant(
        "torn-entry-kept",
        "recovery takes a torn entry at the end of the log for a whole one",
        on_restart=wrong.keep_the_torn,
        options={"safety_ms": 4_000, "crash_weight": 12, "fault_every_ms": 40, "sync_us_mean": 5_000},
    ),
    Plant(
        "flipped-bit-kept",
        "recovery does not look at the checksums of entries",
        on_restart=wrong.overlook_the_flip,
        options={"safety_ms": 4_000, "crash_weight": 12, "bit_flip_weight": 6, "fault_every_ms": 60},
    ),
    Plant(
        "settled-at-once",
        "a leader says that a change of members is settled before the new voters hold what was committed",
        wrong.SETTLED_AT_ONCE,
        profile="oxia",
        options=_MOVING,
        rare=True,
    ),
    Plant(
        "no-joint-record",
        "the coordinator records new voters without those before them",
        wrong.NO_JOINT_RECORD,
        profile="oxia",
        options=_MOVING,
        rare=True,
    ),
    Plant(
        "untrusted-votes",
        "the promise of a member on a new disk counts as if it remembered",
        wrong.UNTRUSTED_VOTES,
        profile="oxia",
        options={**_LIVE, **_WIPING},
        rare=True,
    ),
    Plant(
        "open-before-registered",
        "a node on a new disk opens its replicas before the coordinator has heard of the disk",
        wrong.OPEN_BEFORE_REGISTERED,
        profile="oxia",
        options={**_LIVE, **_WIPING, "crash_all_weight": 6, "nodes": 3, "loss_ppm": 0},
        rare=True,
    ),
    Plant(
        "majority-will-do",
        "at_least(k) is acknowledged by a majority, also where k is more",
        wrong.MAJORITY_WILL_DO,
        profile="oxia",
        options={**_LIVE, "commit": "at_least(3)"},
    ),
    Plant(
        "marker-of-everything",
        "a commit marker tells of the log's end rather than of what is committed",
        wrong.MARKER_OF_EVERYTHING,
        profile="oxia",
        options={**_LIVE, "commit_marker": True},
    ),
    Plant(
        "acknowledged-is-settled",
        "with commit=local, what the leader alone has goes to the followers as settled",
        wrong.ACKNOWLEDGED_IS_SETTLED,
        profile="tarantool",
        options=_ASYNCHRONOUS,
    ),
    Plant(
        "silent-loss",
        "a deposed leader cuts off what it has acknowledged and says nothing of it (S4.28)",
        wrong.SILENT_LOSS,
        profile="tarantool",
        options=_ASYNCHRONOUS,
    ),
    Plant(
        "condition-on-watermark",
        "a conditional append is held against the high watermark, not against the log's end",
        wrong.CONDITION_ON_WATERMARK,
        profile="kip27",
    ),
    Plant(
        "retry-appends-again",
        "a request that is sent again is appended again",
        wrong.RETRY_APPENDS_AGAIN,
        profile="oxia",
    ),
)
