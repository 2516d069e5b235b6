"""Bugs to plant in the core of whole nodes: who leads, what is promised, what is committed, what a start finds."""

from typing import Any, Final

from antiphon.log.segment import SegmentScan
from antiphon.log.shard_log import ShardLog
from antiphon.node.shard_clients import ShardClients
from antiphon.simulation import mutations
from antiphon.simulation.cluster.plant import ClusterPlant, Edit
from antiphon.simulation.cluster.plant_worlds import CALM, CRASHES, RESETS, TROUBLE

_KILLS: Final[dict[str, Any]] = {
    **CALM,
    "fault_ms": 6_000,
    "fault_every_ms": 200,
    "fault_lasts_ms": 200,
    "kill_weight": 1,
}
_ROT: Final[dict[str, Any]] = {**_KILLS, "fault_every_ms": 400, "bit_flip_weight": 4}
_LATE: Final[dict[str, Any]] = {**RESETS, "fault_every_ms": 100, "reset_weight": 0, "late_weight": 6}

_PROTOCOL: Final = (
    ClusterPlant(
        "node-h4-older-term-by-counting",
        "a leader commits entries of older terms because a majority has them (H4)",
        mutations.OLDER_TERM_BY_COUNTING,
        profile="raft",
        options=TROUBLE,
    ),
    ClusterPlant(
        "node-cut-on-every-append",
        "a follower cuts its log behind the preceding entry before it takes new ones, also those of a late message",
        mutations.CUT_ON_EVERY_APPEND,
        profile="raft",
        options=_LATE,
    ),
)

_STARTS: Final = (
    ClusterPlant(
        "node-forgotten-term",
        "a restarted replica takes the term of its last entry for its own",
        (
            Edit(
                ShardLog,
                "open",
                "    if is_empty:\n",
                "    state.term, state.voted_for = log.end.term, None\n    if is_empty:\n",
            ),
        ),
        profile="raft",
        options=_KILLS,
    ),
    ClusterPlant(
        "node-torn-entry-kept",
        "recovery takes a torn entry at the end of the log for a whole one",
        (
            Edit(
                SegmentScan,
                "_take",
                "check_batch(header, batch)",
                "if self._indexed_beyond():\n            check_batch(header, batch)",
            ),
        ),
        options={**CRASHES, "bulk_writers": 3, "appenders": 4},
        rare=True,
    ),
    ClusterPlant(
        "node-flipped-bit-kept",
        "recovery does not look at the checksums of entries",
        (Edit(SegmentScan, "_take", "check_batch(header, batch)", "pass"),),
        options=_ROT,
    ),
)

_CLIENTS: Final = (
    ClusterPlant(
        "node-condition-on-watermark",
        "a conditional append is held against the high watermark, not against the log's end",
        (
            Edit(
                ShardClients,
                "_append",
                "expected_offset != base:",
                "expected_offset != host.high_watermark:",
            ),
        ),
        profile="kip27",
        options={**CALM, "appenders": 4, "conditional_ppm": 800_000},
    ),
    ClusterPlant(
        "node-retry-appends-again",
        "a request that is sent again is appended again",
        (Edit(ShardClients, "_append", "duplicate = host.log.producers.check(header)", "duplicate = None"),),
        options=RESETS,
    ),
)

CORE_PLANTS: Final = (*_PROTOCOL, *_STARTS, *_CLIENTS)
