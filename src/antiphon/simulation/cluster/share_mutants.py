"""Mutants of share groups: who has a record, what is stored before it is confirmed, whose state counts."""

from typing import Any, Final

from antiphon.coordination.share_group import ShareGroup
from antiphon.coordination.share_partition import SharePartition
from antiphon.kafka.groups.share_partitions import SharePartitions
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CUTS, RESETS, TROUBLE, only
from antiphon.transactions import share_states, told_groups
from antiphon.transactions.told_groups import GroupTeller

_WORK: Final[dict[str, Any]] = only(share_members=3)

SHARE_MUTANTS: Final = (
    ClusterMutant(
        "shares-confirmed-before-stored",
        "a member is told that its acknowledgement is stored while it is being stored",
        Edit(
            SharePartitions,
            "settle",
            "await answer",
            "answer.add_done_callback(lambda done: done.exception())",
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "shares-step-on-unseen-epochs",
        "a member whose answers are lost goes from epoch to epoch, and is refused with the one that it knows",
        Edit(
            ShareGroup,
            "heartbeat",
            "shown = member.epoch if asked.epoch == t.JOIN_EPOCH else asked.epoch",
            "shown = member.epoch",
        ),
        options={
            **RESETS,
            **only(share_members=6),
            "fault_ms": 8_000,
            "fault_every_ms": 30,
            "reset_weight": 10,
        },
    ),
    ClusterMutant(
        "shares-locked-for-ever",
        "locks do not end by themselves",
        Edit(SharePartition, "acquire", "lock_ms=now_ms + ", "lock_ms=10**9 * now_ms + "),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "shares-given-twice",
        "what a member works on is given to another one, too",
        (
            Edit(
                SharePartition,
                "_take",
                "span.state is RecordState.AVAILABLE",
                "span.state in {RecordState.AVAILABLE, RecordState.ACQUIRED}",
            ),
            Edit(
                SharePartition,
                "next_offset",
                "span.state is RecordState.AVAILABLE",
                "span.state in {RecordState.AVAILABLE, RecordState.ACQUIRED}",
            ),
        ),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "shares-given-without-end",
        "a record is given again however often it was given",
        Edit(SharePartition, "_freed", "spent = ", "spent = False and "),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "shares-deliveries-not-stored",
        "how often records were given is forgotten when the leader changes",
        Edit(
            SharePartition,
            "stored",
            "(span.end - span.first, int(span.state), span.deliveries)",
            "(span.end - span.first, int(span.state), 0)",
        ),
        options={**TROUBLE, **_WORK},
    ),
    ClusterMutant(
        "shares-of-former-leaders",
        "what a leader stores is taken whoever stored something since",
        Edit(share_states, "_put_of", ", expected_version=one.expected_version", ""),
        options={**CUTS, **_WORK},
        first_seed=29,
    ),
    ClusterMutant(
        "shares-told-without-what-is-done",
        "an operator is told that a share group has everything from the start offset on before it",
        Edit(told_groups, "reached", "state.done()", "0"),
        options={**CALM, **_WORK},
    ),
    ClusterMutant(
        "shares-told-in-part",
        "an operator is not told of the first partition that a share group reads",
        Edit(GroupTeller, "_one", "positions[asked.start : ", "positions[asked.start + 1 : "),
        options={**CALM, **_WORK},
    ),
)
