"""Mutants of committed offsets that expire: who keeps them, from when they count, which row is removed."""

from typing import Any, Final

from antiphon.coordination import offset_expiry as rules
from antiphon.coordination.offset_expiry import EvenClock
from antiphon.kafka.groups.offset_expiry import OffsetExpiry
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only
from antiphon.transactions.group_offsets import GroupOffsets

_WORK: Final[dict[str, Any]] = only(operations_per_s=100, fault_ms=10_000, expiring_groups=3)

EXPIRY_MUTANTS: Final = (
    ClusterMutant(
        "offsets-expire-while-read",
        "committed offsets expire by the time of their commit, also of topics that members read",
        Edit(rules, "is_expired", "if offset.is_of_topic and offset.topic in readers.topics:", "if False:"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "offsets-expire-when-last-member-leaves",
        "the retention of a group that has become empty counts from the commits alone",
        Edit(rules, "is_expired", "max(offset.commit_ms, readers.empty_ms or 0)", "offset.commit_ms"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "offsets-expire-at-takeover",
        "a coordinator that has taken over counts for how long groups are empty from before it could know",
        (
            Edit(
                OffsetExpiry,
                "_empty_ms",
                "led.clock.began_ms if emptied_ms is None else max(led.clock.began_ms, emptied_ms)",
                "emptied_ms or 0",
            ),
            Edit(EvenClock, "read", "TRUST_MS if retention_ms < 0 else min(retention_ms, TRUST_MS)", "0"),
        ),
        options={**CALM, **_WORK, "fault_every_ms": 800, "internal_elect_weight": 1},
    ),
    ClusterMutant(
        "offsets-removed-though-committed-again",
        "an expired offset is removed although it has been committed again meanwhile",
        Edit(GroupOffsets, "remove", "Delete(row.key, expected_version=row.version)", "Delete(row.key)"),
        options={**CALM, **_WORK},
        first_seed=9481109,
        rare=True,
    ),
    ClusterMutant(
        "offsets-of-nobody-stay",
        "a look at committed offsets leaves out groups that have no members",
        Edit(OffsetExpiry, "_look_at_group", "if readers.topics is None:", "if not readers.topics:"),
        options={**CALM, **_WORK},
    ),
)
