"""Mutants of groups of Kafka's consumer protocol: who has a partition, who may commit, what a successor knows."""

from typing import Any, Final

from antiphon.coordination import consumer_reconciliation
from antiphon.coordination.consumer_group import ConsumerGroup
from antiphon.kafka.groups.consumer_groups import ConsumerGroups
from antiphon.kafka.groups.consumer_rows import ConsumerRows
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, RESETS, only

_WORK: Final[dict[str, Any]] = only(consumer_members=3)

CONSUMER_MUTANTS: Final = (
    ClusterMutant(
        "consumers-given-what-others-have",
        "a member is given a partition that another one has not given up yet",
        (
            Edit(
                consumer_reconciliation,
                "reconciled",
                "target - kept if is_free(place)",
                "target - kept",
            ),
            Edit(ConsumerGroup, "_put", "invariant(holder == member.member_id", "invariant(True"),
            Edit(ConsumerGroup, "_put", "del self._holders[place]", "self._holders.pop(place, None)"),
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "consumers-do-not-give-up-first",
        "a partition counts as given up as soon as the member is told to",
        Edit(
            consumer_reconciliation,
            "reconciled",
            "if revoking and (owned is None or owned & revoking):",
            "if False:",
        ),
        options={**RESETS, **_WORK},
        first_seed=3,
    ),
    ClusterMutant(
        "consumers-commit-in-any-epoch",
        "a member commits offsets under an epoch that it had before",
        Edit(ConsumerGroup, "check_offsets", "epoch == member.epoch", "epoch <= member.epoch"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "consumers-in-memory-only",
        "what a heartbeat changes is not stored",
        Edit(ConsumerGroups, "_store", "if changes:", "if False:"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "consumers-forgotten-by-successor",
        "a node that takes over does not read the members of groups",
        Edit(ConsumerGroups, "_take_rows", "groups.items()", "()"),
        options={**CUTS, **_WORK},
        first_seed=3,
    ),
    ClusterMutant(
        "consumers-told-the-nodes-interval",
        "members are told how often to come by the nodes' settings, whatever is set of their group",
        Edit(ConsumerGroups, "heartbeat", "interval_ms=hosted.group.bounds.", "interval_ms=self.bounds."),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "consumers-settings-unknown-to-successor",
        "a node that takes over does not read what is set of groups",
        Edit(ConsumerRows, "load", "if group in found:", "if False:"),
        options={**CUTS, **_WORK},
    ),
    ClusterMutant(
        "consumers-step-on-unseen-epochs",
        "a member whose answers are lost goes from epoch to epoch, and is refused with the one that it knows",
        Edit(ConsumerGroup, "_advance", "if not repeats:", "if True:"),
        options={
            **RESETS,
            **only(consumer_members=6),
            "fault_ms": 8_000,
            "fault_every_ms": 30,
            "reset_weight": 10,
        },
    ),
    ClusterMutant(
        "consumers-silent-for-ever",
        "members that are silent keep their partitions",
        Edit(ConsumerGroup, "tick", "self._remove(sorted(late))", "late.clear()"),
        options={**CALM, **_WORK},
    ),
)
