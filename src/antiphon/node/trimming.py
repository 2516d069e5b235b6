"""Trimming on request: a client, or a leader for a client of Kafka, lets one replica's log begin later.

The rules are those of retention: nothing goes that is not settled, and of a table nothing that its store does not hold on
disk, nor what a transaction has prepared there; terms, members and what is known of producers stay. Unlike retention, which
takes whole segments, a log may begin at any batch: never inside one, so that a follower can be sent entries from there.
The files go with whole segments.

What is asked for may be quite new, so a leader keeps what connected followers do not have yet: otherwise one that is a
batch behind would need a snapshot, of a table the whole store. A follower that is away holds nothing up.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import structlog

from antiphon.coordination.cluster_records import DELETION_FORMAT
from antiphon.errors import (
    AntiphonError,
    DamagedLogError,
    InvalidRequestError,
    NotReadyError,
    OffsetOutOfRangeError,
    StaleTermError,
    StorageFailedError,
    TimedOutError,
)
from antiphon.gateway.answers import awaited
from antiphon.model.cluster import DeleteBefore
from antiphon.model.metadata import CLUSTER_SHARD_ID
from antiphon.model.requests import Trimmed, TrimShard
from antiphon.partition.partition import Partition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.node.local_replicas import LocalReplicas
    from antiphon.node.peers import PeerLink
    from antiphon.partition.table_shard import TableShard

FOLLOWERS_WAIT_S: Final = 1.0  # for those that are connected to have what is to go
RETRY_S: Final = 0.05  # between tries of a follower that does not know yet what is committed
END: Final = -1


async def trim_replica(replicas: "LocalReplicas", shard_id: int, before: int) -> int:
    """Trim this node's replica to the batch that holds `before`, or to what is settled; returns where it begins now.

    Raises InvalidRequestError for shards that are never trimmed so, and NotLeaderError where no replica is here.
    """
    host = replicas.host(shard_id)
    _check(host, before)
    host.state.check_alive()
    replicated = await _replicated(host, min(before, host.mode.settled))
    host.state.check_alive()
    limit = _limit(host, replicated)
    if host.table is not None:
        if host.table.state.durable_offset < limit:
            await _flush(host, host.table)
        limit = min(_limit(host, replicated), host.table.state.durable_offset)
        limit = host.log.producers.transactions.last_stable(limit)  # what is prepared stays
    if limit > host.log.log_start:
        limit = _batch_start(host, limit)
    return await _trim(host, limit)


def _limit(host: Partition, replicated: int) -> int:
    """As far as the log may go now."""
    return min(replicated, host.mode.settled, host.log.durable_end)


async def _flush(host: Partition, table: "TableShard") -> None:
    """Bring the store to disk; in a thread, so that other shards are served meanwhile.

    Raises NotLeaderError where the replica has ended since. Where a snapshot took the store's place, there is less to trim.
    """
    state = table.state
    try:
        await asyncio.get_running_loop().run_in_executor(None, state.flush)
    except StorageFailedError as error:
        host.state.check_alive()
        if table.state is state:
            raise host.driver.stopped_by(error) from error
    host.state.check_alive()


def _batch_start(host: Partition, offset: int) -> int:
    try:
        return host.log.reader.batch_start(offset)
    except (DamagedLogError, OSError) as error:
        raise host.driver.stopped_by(error) from error


async def _replicated(host: Partition, wanted: int) -> int:
    """As far as the followers that are connected to this leader have it, which is waited for a moment; else `wanted`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + FOLLOWERS_WAIT_S
    while True:
        followers = host.replica.followers()
        replicated = min([wanted, *(one.ack_offset for one in followers if one.connected)])
        if replicated == wanted or loop.time() >= deadline_s:
            return replicated
        await asyncio.sleep(RETRY_S / 5)


def _check(host: Partition, before: int) -> None:
    if host.shard_id == CLUSTER_SHARD_ID:
        raise InvalidRequestError("the cluster's own log is not trimmed on request")
    host.upkeep.check_trimmable()
    if before < 0:
        raise InvalidRequestError(f"a log begins at an offset, not at {before}")


async def _trim(host: Partition, log_start: int) -> int:
    """Done when the disk has it, also where the log begins there by an earlier request: what went must not come back.

    Returns where the log begins on the disk then, whatever is asked for meanwhile.
    """
    future, done = awaited()
    host.upkeep.trim(log_start, done)
    begins = host.log.log_start
    await future
    return begins


def _is_in_log(host: Partition, before: int) -> bool:
    """Is the deletion recorded in the log, for good? Begins to record it where it is not."""
    if host.state.deleted_before < before:
        with contextlib.suppress(NotReadyError):  # another entry of that kind is to be committed first
            host.upkeep.record_deletion(before)
    return host.state.deleted_before >= before


async def _until(is_so: "Callable[[], bool]", host: Partition, deadline_s: float) -> None:
    """Wait for it on the leader. Raises TimedOutError, and NotLeaderError where it leads no more."""
    loop = asyncio.get_running_loop()
    while not is_so():
        if loop.time() >= deadline_s:
            raise TimedOutError(
                f"a deletion in shard {host.shard_id} was not recorded in time: {host.mode.waits_for()}? It may yet be",
                shard_id=host.shard_id,
            )
        await asyncio.sleep(RETRY_S / 5)
        host.state.check_serving()


class Trimming:
    """Deletes records of a shard for a client of Kafka. `link` gives the connection to a node, or UnavailableError;
    `ask_coordinator` what the coordinator answers, in so many seconds.

    That records before an offset are deleted is recorded first (docs/decisions/0038-records-are-deleted-to-the-offset.md).
    Then the logs of the leader and of its followers are trimmed, to the batch that holds the offset.
    """

    def __init__(
        self,
        replicas: "LocalReplicas",
        link: "Callable[[int], PeerLink]",
        ask_coordinator: "Callable[[Any, float], Awaitable[Any]]",
    ) -> None:
        self._replicas = replicas
        self._link = link
        self._ask_coordinator = ask_coordinator

    async def everywhere(self, shard_id: int, before: int, timeout_s: float) -> int:
        """On the leader: delete what is before an offset; returns where the shard begins now.

        `before` is an offset, or END for all that is committed. A follower that is away is trimmed by retention, or by a
        later request. While a node of the cluster is of a version that knows no deletions inside of batches, the shard
        begins at the batch that holds the offset. Raises NotLeaderError, OffsetOutOfRangeError beyond what is committed.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        host = self._replicas.host(shard_id)
        state = host.state
        state.check_serving()
        _check(host, max(0, before))
        wanted = state.high_watermark if before == END else before
        if wanted > state.high_watermark:
            raise OffsetOutOfRangeError(
                f"records before {wanted} were to go, committed are those before {state.high_watermark}",
                asked=wanted,
                start=state.log_start,
                end=state.high_watermark,
            )
        is_exact = host.table is None and self._replicas.view.all_read(DELETION_FORMAT)
        if is_exact and wanted > state.deleted_before:
            await self._record(host, wanted, deadline_s)
        kept_from = await trim_replica(self._replicas, shard_id, wanted)
        _, shard = self._replicas.shard(shard_id)
        others = [member for member in shard.everybody if member != self._replicas.node_id]
        shown_from = wanted if is_exact else kept_from
        await asyncio.gather(
            *(
                self._follower(other, TrimShard(shard_id, kept_from), shown_from, deadline_s)
                for other in others
            )
        )
        # Where the log itself begins may be ahead of its disk by now: another deletion is under way.
        return max(kept_from, shown_from, min(state.deleted_before, state.log.log_end))

    async def _record(self, host: Partition, before: int, deadline_s: float) -> None:
        """Every later leader is to know that records before this offset are deleted, before anybody is told.

        It waits until no election can lose what is before it: a leader whose log ended there would write it anew.
        """
        state = host.state
        await _until(lambda: host.mode.settled >= before, host, deadline_s)
        if host.mode.elects_itself:
            await _until(lambda: _is_in_log(host, before), host, deadline_s)
            return
        left_s = deadline_s - asyncio.get_running_loop().time()
        request = DeleteBefore(host.shard_id, state.term, before)
        try:
            await self._ask_coordinator(request, max(left_s, RETRY_S))
        except StaleTermError as error:
            raise state.not_leader() from error
        state.note_deletion(before, request.term, has_candidate=True)

    async def _follower(self, other: int, request: TrimShard, shown_from: int, deadline_s: float) -> None:
        """Ask until it has done so: what is committed, or recorded, reaches a follower a little later than the leader."""
        loop = asyncio.get_running_loop()
        while (left_s := deadline_s - loop.time()) > 0:
            try:
                reply = await self._link(other).ask(request, left_s)
            except AntiphonError as error:
                structlog.get_logger().warning(
                    "follower_not_trimmed", shard=request.shard_id, node=other, reason=error.message
                )
                return
            if not isinstance(reply, Trimmed) or reply.log_start >= shown_from:
                return
            await asyncio.sleep(RETRY_S)
