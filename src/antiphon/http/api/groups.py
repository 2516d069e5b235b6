"""Groups, transactional ids, and what Spark's jobs and queries have left in the cluster."""

from functools import partial
from typing import Final

from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.http.api.answers import (
    Continued,
    GroupDetail,
    GroupInfo,
    GroupMemberInfo,
    JobInfo,
    Page,
    PositionInfo,
    QueryInfo,
    TransactionInfo,
)
from antiphon.http.api.asked import Filtered, ListTransactionsOf, OneGroup
from antiphon.http.api.call import Call, page, told
from antiphon.http.pages import own_rows
from antiphon.http.pages.health import name_of
from antiphon.model.access import Operation, Resource
from antiphon.model.epochs import EpochHead
from antiphon.model.groups import GroupKind, GroupMember, GroupPosition
from antiphon.model.transactions import ListTransactions, TransactionsReply, TransactionState

SHARDS_TOLD: Final = 100  # of one transaction
MEMBERS_TOLD: Final = 200  # of one group


async def list_groups(call: Call, asked: Filtered) -> Page[GroupInfo]:
    """Consumer groups and share groups that have members or offsets, and that you may describe."""
    seen, more = await own_rows.groups_seen(call.gateway, call.asker, call.rights, asked.q)
    return page(seen, asked, partial(told, GroupInfo), is_partial=more)


async def get_group(call: Call, asked: OneGroup) -> GroupDetail:
    """One group: its members, where it is in each shard, and its lag. A group that there is not has none of them."""
    if not call.rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        call.rights.require(Operation.DESCRIBE, Resource.GROUP, asked.group)
    found = await own_rows.group(call.asker, asked.group, asked.start, asked.limit)
    end = asked.start + len(found.positions)
    positions = Page(
        items=[_position(one, is_share=found.kind is GroupKind.SHARE) for one in found.positions],
        start=asked.start,
        total=found.position_count,
        next=end if found.positions and end < found.position_count else None,
    )
    return told(
        GroupDetail,
        found,
        group=asked.group,
        members=[_member(one) for one in found.members[:MEMBERS_TOLD]],
        lag=sum(one.lag or 0 for one in positions.items),
        positions=positions,
    )


def _position(one: GroupPosition, *, is_share: bool) -> PositionInfo:
    return told(
        PositionInfo,
        one,
        end=one.end if one.end >= 0 else None,
        commit_ms=None if is_share else one.changed_ms,
        locked=one.locked if one.locked >= 0 else None,
    )


def _member(one: GroupMember) -> GroupMemberInfo:
    return told(GroupMemberInfo, one, instance_id=one.instance_id or None, assigned=dict(one.assigned))


async def list_transactions(call: Call, asked: ListTransactionsOf) -> Continued[TransactionInfo]:
    """Transactional ids with their transactions, as the nodes tell that coordinate them."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    answers = await call.asker.each_node(ListTransactions(after=asked.after, limit=asked.limit))
    replies = [one for one in answers.values() if isinstance(one, TransactionsReply)]
    ends = [one.rows[-1].transactional_id for one in replies if one.more and one.rows]
    found = sorted((row for one in replies for row in one.rows), key=lambda row: row.transactional_id)
    if ends:  # a node that has more says nothing of ids behind its last
        found = [row for row in found if row.transactional_id <= min(ends)]
    some = found[: asked.limit]
    more = bool(ends) or len(found) > len(some)
    wanted = asked.q.lower()
    return Continued(
        items=[_transaction(call, one) for one in some if wanted in one.transactional_id.lower()],
        after=some[-1].transactional_id if some and more else None,
        is_partial=any(isinstance(one, AntiphonError) for one in answers.values()),
    )


def _transaction(call: Call, one: TransactionState) -> TransactionInfo:
    return told(
        TransactionInfo,
        one,
        producer_id=str(one.producer_id),
        began_ms=one.began_ms if one.began_ms >= 0 else None,
        shards=[name_of(call.gateway, shard) for shard in one.shards[:SHARDS_TOLD]],
        groups=one.groups[:SHARDS_TOLD],
    )


async def list_jobs(call: Call, asked: Filtered) -> Page[JobInfo]:
    """Named Spark jobs that remember in the cluster how far they are."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    found, more = await own_rows.jobs_told(call.gateway, call.asker)
    wanted = asked.q.lower()
    seen = [(name, one) for name, one in found.items() if wanted in name.lower()]
    return page(
        seen,
        asked,
        lambda one: JobInfo(job=one[0], is_ended=bool(one[1]["end"]), **one[1]),
        is_partial=more,
    )


async def list_queries(call: Call, asked: Filtered) -> Page[QueryInfo]:
    """Spark queries that write exactly once: their newest epochs, and how long those have waited to be applied."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    found, more = await own_rows.queries_told(call.gateway, call.asker, asked.q)
    now_ms = system.wall_ms()
    return page(found, asked, lambda one: _query(one, now_ms), is_partial=more)


def _query(one: EpochHead, now_ms: int) -> QueryInfo:
    return told(
        QueryInfo,
        one,
        epoch=one.number,
        applied_ms=one.applied_ms or None,
        lag_ms=own_rows.waits_ms(one, now_ms),
    )
