"""Consumer groups, transactional ids, and what Spark's jobs and queries have left in the cluster."""

from typing import Final

import msgspec

from antiphon import system
from antiphon.errors import AntiphonError
from antiphon.http.api.answers import (
    Continued,
    GroupDetail,
    GroupInfo,
    JobInfo,
    Page,
    PositionInfo,
    QueryInfo,
    TransactionInfo,
)
from antiphon.http.api.asked import Filtered, ListTransactionsOf, OneGroup
from antiphon.http.api.call import Call, cut, page
from antiphon.http.pages import own_rows
from antiphon.http.pages.health import name_of
from antiphon.model.access import Operation, Resource
from antiphon.model.epochs import EpochHead
from antiphon.model.internal import EPOCHS_TABLE
from antiphon.model.transactions import ListTransactions, TransactionsReply, TransactionState

HEADS: Final = b"head/"
SHARDS_TOLD: Final = 100  # of one transaction


async def list_groups(call: Call, asked: Filtered) -> Page[GroupInfo]:
    """Consumer groups that have committed offsets, and that you may describe."""
    found, more = await own_rows.committed_by_group(call.gateway, call.asker)
    everything = call.rights.sees(Operation.DESCRIBE, Resource.CLUSTER)
    wanted = asked.q.lower()
    seen = [
        (name, *what)
        for name, what in found.items()
        if wanted in name.lower()
        and (everything or call.rights.sees(Operation.DESCRIBE, Resource.GROUP, name))
    ]
    return page(
        seen,
        asked.start,
        asked.limit,
        lambda one: GroupInfo(group=one[0], offsets=one[1], topics=one[2]),
        is_partial=more,
    )


async def get_group(call: Call, asked: OneGroup) -> GroupDetail:
    """One group: what it has committed in each shard, and its lag. A group that has committed nothing has no positions."""
    if not call.rights.sees(Operation.DESCRIBE, Resource.CLUSTER):
        call.rights.require(Operation.DESCRIBE, Resource.GROUP, asked.group)
    places = await own_rows.places_of_group(call.gateway, call.asker, asked.group)
    some = await own_rows.positions(call.gateway, call.asker, cut(places, asked.start, asked.limit))
    end = asked.start + len(some)
    positions = Page(
        items=[PositionInfo(**one._asdict(), lag=one.lag) for one in some],
        start=asked.start,
        total=len(places),
        next=end if some and end < len(places) else None,
    )
    return GroupDetail(
        group=asked.group, lag=sum(one.lag or 0 for one in positions.items), positions=positions
    )


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
    meta = call.gateway.metadata
    return TransactionInfo(
        transactional_id=one.transactional_id,
        state=one.state,
        producer_id=str(one.producer_id),
        producer_epoch=one.producer_epoch,
        timeout_ms=one.timeout_ms,
        began_ms=one.began_ms if one.began_ms >= 0 else None,
        shards=[name_of(meta, shard) for shard in one.shards[:SHARDS_TOLD]],
        groups=list(one.groups[:SHARDS_TOLD]),
    )


async def list_jobs(call: Call, asked: Filtered) -> Page[JobInfo]:
    """Named Spark jobs that remember in the cluster how far they are."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    found, more = await own_rows.jobs_told(call.gateway, call.asker)
    wanted = asked.q.lower()
    seen = [(name, one) for name, one in found.items() if wanted in name.lower()]
    return page(
        seen,
        asked.start,
        asked.limit,
        lambda one: JobInfo(
            job=one[0],
            is_ended=bool(one[1]["end"]),
            parts=one[1]["parts"],
            changed_ms=one[1]["changed_ms"],
            plan=one[1]["plan"],
            end=one[1]["end"],
        ),
        is_partial=more,
    )


_HEAD: Final = msgspec.msgpack.Decoder(EpochHead)


async def list_queries(call: Call, asked: Filtered) -> Page[QueryInfo]:
    """Spark queries that write exactly once: their newest epochs, and how long those have waited to be applied."""
    call.rights.require(Operation.DESCRIBE, Resource.CLUSTER)
    rows, more = await own_rows.scan_own(call.gateway, call.asker, EPOCHS_TABLE, HEADS, values=True)
    wanted = asked.q.lower()
    found = []
    for row in rows:
        try:
            one = _HEAD.decode(row.value or b"")
        except (msgspec.DecodeError, UnicodeDecodeError):
            more = True
            continue
        if wanted in f"{one.query} {one.target}".lower():
            found.append(one)
    now_ms = system.wall_ms()
    return page(found, asked.start, asked.limit, lambda one: _query(one, now_ms), is_partial=more)


def _query(one: EpochHead, now_ms: int) -> QueryInfo:
    return QueryInfo(
        query=one.query,
        target=one.target,
        epoch=one.number,
        rows=one.rows,
        decided_ms=one.decided_ms,
        applied_ms=one.applied_ms or None,
        lag_ms=0 if one.applied_ms else max(0, now_ms - one.decided_ms),
    )
