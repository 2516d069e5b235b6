"""The recorded live set of a shard whose commits depend on it: who writes it, and when (S3.6, S3.24-S3.29).

A leader's voting set in effect is the union of the recorded set and the set that it has proposed. So it is never
smaller than any set that may be recorded by now, and nothing is committed without a member that an election could still
rely on. Three rules here keep that true:

* a proposal is accepted only if it was made on top of the recorded set (`LiveSet.version` is `ShardMeta.live_version`):
  compare-and-set. Each accepted proposal raises the version and reaches the leader as metadata;
* the coordinator by itself only removes members: dead ones, damaged ones, and those that are back on another disk;
* in an election the new set is recorded with the candidate, before anyone is told to lead: those of the old live
  members that promised the term.

All functions are pure.
"""

from collections.abc import Callable, Collection, Mapping

import msgspec

from antiphon.coordination.cluster_records import ShardRecord
from antiphon.coordination.election import Election
from antiphon.coordination.fences import Fence, in_order
from antiphon.model.cluster import LiveSet
from antiphon.model.metadata import ShardMeta
from antiphon.records.entry_id import EntryId
from antiphon.replication.messages import NodeId

NOT_PROPOSED = -1  # `LiveSet.version` of a report that asks for nothing


def accept(meta: ShardMeta, report: LiveSet, sender: NodeId, is_alive: Callable[[NodeId], bool]) -> ShardMeta:
    """The shard with the leader's proposal, without known dead members; the same object if there is no proposal.

    The recorded set may be smaller than the proposed one: the leader counts all that it proposed until it sees the
    record. Learners that have caught up are named in the report and were not proposed. They may have become voters by
    now; the leader has not heard of that and does not count them yet.

    Suppose that nothing is left of a proposal: it names only former members, which may have come back as learners. It
    is answered with a new number for the same set. Otherwise its leader would wait for the answer for ever, and for the
    members that it named.
    """
    if report.version != meta.live_version:
        return meta
    proposed = {sender, *(node for node in report.live if node not in report.learners)}
    return _numbered(meta, in_order(meta, (n for n in proposed if n == sender or is_alive(n))))


def vouched_for(meta: ShardMeta, report: LiveSet) -> frozenset[NodeId]:
    """The members that have everything committed, according to the leader.

    A proposal that a later record has overtaken says nothing of the members that it names: one may have left since, and
    be back with nothing. Learners are named for what they hold. A recorded member needs no report.
    """
    if report.version in (NOT_PROPOSED, meta.live_version):
        return frozenset(report.live)
    return frozenset(node for node in report.live if node in report.learners or node in meta.live)


def without(meta: ShardMeta, gone: Collection[NodeId]) -> ShardMeta:
    """The shard without these live members; the same object if none of them is one."""
    kept = tuple(node for node in meta.live if node not in gone)
    return meta if kept == meta.live else _numbered(meta, kept)


def of_new_term(
    election: Election, record: ShardRecord, votes: Mapping[NodeId, EntryId], candidate: NodeId
) -> ShardMeta:
    """The fence and the live set to record with the candidate of an election.

    The old set stays evidence as long as needed: members of the new set were in it, or the candidate has what they
    have. The first term under the live rule starts from all members that promised, and also requires majorities until
    it is ready.
    """
    meta = record.meta
    if not election.by_live:
        return meta if meta.fence == Fence.MAJORITY else without(meta, election.damaged())
    if election.unclean:
        return msgspec.structs.replace(_numbered(meta, (candidate,)), fence=Fence.LIVE)
    if meta.fence == Fence.MAJORITY:
        return msgspec.structs.replace(_numbered(meta, in_order(meta, votes)), fence=Fence.BOTH)
    return _numbered(meta, in_order(meta, (candidate, *(node for node in votes if node in meta.live))))


def _numbered(meta: ShardMeta, live: tuple[NodeId, ...]) -> ShardMeta:
    return msgspec.structs.replace(meta, live=live, live_version=meta.live_version + 1)
