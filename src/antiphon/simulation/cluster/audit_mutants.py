"""Mutants of what nodes keep of audits."""

from typing import Final

from antiphon.node.audit_notes import AuditNotes
from antiphon.simulation.cluster.mutant import ClusterMutant, Edit
from antiphon.simulation.cluster.mutant_worlds import CALM, CRASHES

_WORK: Final = {"appenders": 0, "putters": 0, "operations_per_s": 100, "auditors": 1}

AUDIT_MUTANTS: Final = (
    ClusterMutant(
        "audit-note-not-synced",
        "what an audit has told a node is acknowledged before it is on the disk",
        Edit(
            AuditNotes, "_write", "msgspec.json.encode(notes))", "msgspec.json.encode(notes), durable=False)"
        ),
        options={**CRASHES, **_WORK},
    ),
    ClusterMutant(
        "audit-note-stays",
        "what an audit has found stays a finding when another one finds nothing",
        Edit(AuditNotes, "take", "self._findings.take_back(shard_id, KIND)", "pass"),
        options={**CALM, **_WORK},
        quick=True,
    ),
)
