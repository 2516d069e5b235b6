"""Mutants of conditional appends over Kafka's protocol."""

from typing import Any, Final

from antiphon.kafka.handlers import produce
from antiphon.node.record_intake import RecordIntake
from antiphon.partition.clients import PartitionClients
from antiphon.records import expected
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, only

_WORK: Final[dict[str, Any]] = {**CALM, **only(operations_per_s=300, kafka_conditions=4)}

CONDITION_MUTANTS: Final = (
    ClusterMutant(
        "condition-of-a-base-offset-forgotten",
        "a batch is written at the end, whatever its base offset asks for",
        Edit(
            produce,
            "_check_batch",
            "_expected_offset(header.base_offset, request.acks, producer)",
            "None, producer",
        ),
        options=_WORK,
        quick=True,
    ),
    ClusterMutant(
        "condition-of-a-later-record-counts-for-the-first",
        "the offset that a record of a batch expects is taken for the one where the batch begins",
        Edit(expected, "expected_offset_of", "expected = offset - place", "expected, place = offset, 0"),
        options=_WORK,
    ),
    ClusterMutant(
        "condition-packed-is-not-seen",
        "headers of records that are compressed are not looked at",
        Edit(expected, "expected_offset_of", "if not header.codec and", "if"),
        options=_WORK,
    ),
    ClusterMutant(
        "condition-waits-for-no-look",
        "a batch whose conditions take long to see is appended before they are seen",
        Edit(RecordIntake, "append", "is_judged = is_judged and not asks", "pass"),
        options=_WORK,
    ),
    ClusterMutant(
        "condition-judged-before-a-retry-is-known",
        "a batch that comes again is held against the end of the log, where it stands itself by now",
        Edit(
            PartitionClients,
            "_append",
            "if duplicate is not None:",
            "if duplicate is not None and expected_offset is None:",
        ),
        options=_WORK | {"fault_ms": 5_000, "fault_every_ms": 400, "cut_weight": 1, "kill_weight": 1},
    ),
)
