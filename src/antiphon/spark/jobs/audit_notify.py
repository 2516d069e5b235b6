"""Tells the nodes what an audit has found in their replicas, so that `antiphon status` shows it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from antiphon.errors import AntiphonError
from antiphon.model.findings import AUDIT_TEXT_MAX, AUDITED_MAX, AuditNote, NoteAudit
from antiphon.spark.jobs.audit_link import NodeLink
from antiphon.spark.jobs.audit_model import DIFFERS, INCOMPLETE, NOBODY, NOTE, NOWHERE, AuditPlan, Finding

if TYPE_CHECKING:
    from antiphon.client.access import Access

TIMEOUT_MS: Final = 3_000  # a node that does not answer was told of by the audit itself


def report_to_nodes(plan: AuditPlan, found: Iterable[Finding], access: "Access | None") -> list[Finding]:
    """Tell every node what it holds otherwise, and which shards were read whole. Returns notes of what could not be told.

    A shard of which something could not be read keeps what an earlier audit has found.
    """
    grave: dict[int, list[Finding]] = {}
    unread: set[int] = set()
    for one in found:
        if one.verdict == DIFFERS:
            grave.setdefault(one.shard_id, []).append(one)
        elif one.verdict == INCOMPLETE:
            unread.add(one.shard_id)
    read = [shard.shard_id for shard in plan.shards if shard.shard_id not in unread]
    notes: list[Finding] = []
    for node, address in sorted(plan.nodes.items()):
        own = _of_node(plan, node, grave)
        told = [one.shard_id for one in own]
        try:
            with NodeLink(node, address, TIMEOUT_MS, access) as link:
                for at in range(0, max(1, len(read)), AUDITED_MAX):
                    shards = tuple(read[at : at + AUDITED_MAX])
                    link.ask(NoteAudit(shards, tuple(one for one in own if one.shard_id in {*shards})))
                late = [shard_id for shard_id in told if shard_id in unread]
                for at in range(0, len(late), AUDITED_MAX):
                    part = {*late[at : at + AUDITED_MAX]}
                    link.ask(NoteAudit((), tuple(one for one in own if one.shard_id in part)))
        except AntiphonError as error:
            what = f"`antiphon status` does not show this audit for node {node}: {error.message}"
            notes.append(Finding(NOTE, "not_told", NOWHERE, node, NOWHERE, what))
    return notes


def _of_node(plan: AuditPlan, node: int, grave: dict[int, list[Finding]]) -> list[AuditNote]:
    """One note for each shard: the first of what is about this node's replica, or about no single one's."""
    notes = []
    for shard in plan.shards:
        found = grave.get(shard.shard_id, [])
        own = [one for one in found if one.node in {node, NOBODY}] if node in shard.members else []
        if own:
            first = own[0]
            at = "" if first.offset == NOWHERE else f" at offset {first.offset}"
            more = f" (and {len(own) - 1} more)" if len(own) > 1 else ""
            text = f"{shard.topic}/{shard.index}{at}: {first.kind}: {first.what}{more}"
            notes.append(AuditNote(shard.shard_id, text[:AUDIT_TEXT_MAX]))
    return notes
