"""Mutants of groups that go over from one of Kafka's protocols to the other: what is written, and who has what then."""

from typing import Any, Final

from antiphon.kafka.groups import mixed
from antiphon.kafka.groups.migration import Migration
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_WORK: Final[dict[str, Any]] = only(mixed_members=4)

MIGRATION_MUTANTS: Final = (
    ClusterMutant(
        "migrated-and-both-kept",
        "a group that becomes one of the consumer protocol keeps its row of the classic one",
        Edit(
            Migration,
            "_adoption",
            "Adoption(group.generation, members, (gone,))",
            "Adoption(group.generation, members, ())",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "migrated-without-what-members-have",
        "a group that becomes one of the consumer protocol takes over its members, and not what they have",
        Edit(mixed, "_adopted", "        assigned=assigned,", "        assigned=frozenset(),"),
        options={**CALM, **_WORK},
    ),
)
