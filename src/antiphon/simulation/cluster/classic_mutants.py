"""Mutants of groups of Kafka's classic protocol: what is kept of them, and what a successor knows."""

from typing import Any, Final

from antiphon.kafka.groups.classic_group import ClassicGroup
from antiphon.kafka.groups.classic_groups import ClassicGroups
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, only

_WORK: Final[dict[str, Any]] = only(kafka_producers=1, kafka_members=4)
_MOVES: Final[dict[str, Any]] = {
    **CALM,
    **_WORK,
    "fault_ms": 5_000,
    "fault_every_ms": 800,
    "internal_elect_weight": 1,
}

CLASSIC_MUTANTS: Final = (
    ClusterMutant(
        "classic-in-memory-only",
        "what a rebalance of a classic group comes to is not written",
        Edit(
            ClassicGroups,
            "_write",
            "hosted.version = await self._rows.write(hosted.shard_id, group_id, hosted.version, row)",
            "pass",
        ),
        options=_MOVES,
        quick=True,
    ),
    ClusterMutant(
        "classic-answers-before-the-row",
        "members of a classic group are given their parts before the row that says so is committed",
        Edit(
            ClassicGroups,
            "_store",
            "work = self._write(hosted, row)",
            "hosted.group.stored(_now_ms())\n        _deliver(hosted.group)\n        work = self._write(hosted, row)",
        ),
        options={**CUTS, **_WORK},
    ),
    ClusterMutant(
        "classic-successor-knows-nobody",
        "a node that comes to coordinate a classic group takes nobody for its member",
        Edit(ClassicGroups, "_take_rows", "in groups.items()", "in ()"),
        options=_MOVES,
        quick=True,
        first_seed=2,
    ),
    ClusterMutant(
        "classic-place-is-not-kept",
        "a static member that takes its own place again is answered, and no row says so",
        Edit(
            ClassicGroup,
            "_replace_static",
            "self.writes.hold(old, token, joined)",
            "self._answer_join(token, joined)",
        ),
        options={**_MOVES, "kafka_members": 0, "static_members": 4},
    ),
)
