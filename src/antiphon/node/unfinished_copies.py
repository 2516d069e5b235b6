"""A shard that was split off another one, and went on from a replica that lacks the end of the copy.

The metadata has the shard as a part of its table, and its log does not say that it holds what it is to hold. Until it does,
no client is served (`PartitionState.is_joining`). What is missing of the copy is taken from the parent's rows, where the
parent is led on the same node and still has them: they are removed last (`Splits`). Then the log gets the entry that ends a
copy.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from antiphon import system
from antiphon.errors import AntiphonError, NotReadyError
from antiphon.model.cluster import SplitReport, SplitStep
from antiphon.model.metadata import HASH_MAX, key_hash
from antiphon.model.shard_part import ShardPart
from antiphon.node.split_copy import PAGE_BYTES, PAGE_ROWS, append_entry, committed, stage
from antiphon.records.builder import build_batch
from antiphon.records.changes import stored_row
from antiphon.records.split_entries import Inherit
from antiphon.table.copying import CopiedRow, left_behind, records_of

if TYPE_CHECKING:
    from antiphon.node.context import NodeContext
    from antiphon.partition.partition import Partition
    from antiphon.partition.table_shard import TableShard
    from antiphon.table.evaluator import TableEvaluator

WAIT_S: Final = 10.0  # for a parent on this node that is not led yet, or has transactions prepared
PAUSE_S: Final = 0.1
REPORTS_MAX: Final = 50
TIMEOUT_MS: Final = 30_000  # of sessions of which the rows are here, and nothing else is known


class UnfinishedCopy:
    """One leadership's work on one such shard; `run` returns when there is nothing left to do here."""

    def __init__(
        self,
        node: "NodeContext",
        host: "Partition",
        part_of: Callable[[int], ShardPart | None],
        report: Callable[[SplitReport], None],
    ) -> None:
        self._node, self._host, self._part_of, self._report = node, host, part_of, report
        self._term = host.state.term
        self._began_s = node.now_s()
        self._log = structlog.get_logger().bind(shard=host.shard_id, part="split")

    async def run(self) -> None:
        """Go on until the log says what the shard holds, and the metadata where its own changes begin."""
        while (part := self._part()) is not None:
            try:
                start = await self._finish(part)
            except AntiphonError as error:
                self._log.info("copy_not_finished", error=error.message)
                await asyncio.sleep(PAUSE_S)
            else:
                await self._report_start(start)
                return

    def _part(self) -> ShardPart | None:
        """What the shard is to hold, as long as this leadership goes on."""
        state = self._host.state
        if not state.is_serving or state.term != self._term or state.closed:
            return None
        return self._part_of(self._host.shard_id)

    async def _finish(self, part: ShardPart) -> int:
        """Returns where the shard's own changes begin."""
        state = self._host.state.require_table().state
        parent = self._parent(part)
        sessions, jobs, next_version_id = dict[int, int](), b"", state.next_version_id
        rows, owners = await self._copy(parent, part)
        if parent is not None and parent.table is not None:
            theirs = parent.table.state
            sessions, next_version_id = theirs.sessions(), max(next_version_id, theirs.next_version_id)
            jobs = parent.log.producers.jobs(theirs.applied_offset, theirs.jobs)
        for owner in owners:
            sessions.setdefault(owner, TIMEOUT_MS)
        parent_id = -1 if parent is None else parent.shard_id
        entry = Inherit(
            part.first, part.last_ever, parent_id, -1, next_version_id, jobs, tuple(sessions.items())
        )
        start = await append_entry(self._host, entry)
        self._host.sessions.look()
        self._log.warning("copy_finished", parent=parent_id, rows=rows, own_start=start)
        return start

    def _parent(self, part: ShardPart) -> "Partition | None":
        """The shard that this one was split off, if it is led here and has not let go of the rows.

        Raises NotReadyError while that may become so.
        """
        found = self._node.view.shard(self._host.shard_id)
        shards = () if found is None else found[0].shards
        begins = [one for one in shards if one.hashes and part.first_ever <= one.hashes[0] < part.first]
        parent = self._node.hosts.get(max(begins, key=lambda one: one.hashes[0]).shard_id) if begins else None
        if parent is None or parent.table is None or parent.state.closed or parent.state.failed is not None:
            return None
        state = parent.table.state
        if state.owned.last < part.first and not state.owned.purging:
            return None
        locked = any(part.first <= key_hash(key) <= part.last_ever for key in state.transactions.locked)
        is_led = parent.state.is_serving and parent.table.evaluator is not None
        if is_led and not locked and not parent.table.is_incomplete:
            return parent
        if self._node.now_s() < self._began_s + WAIT_S:
            raise NotReadyError(f"shard {parent.shard_id} is not ready to be copied; retry")
        return None

    # -- copying --------------------------------------------------------------------------------------------------

    async def _copy(self, parent: "Partition | None", part: ShardPart) -> tuple[int, set[int]]:
        """Take over what is missing, a page at a time; returns how many rows are here then, and which sessions own some."""
        count, owners, start = 0, set[int](), b""
        table = None if parent is None else parent.table
        while True:
            if self._part() is None:
                raise NotReadyError(f"shard {self._host.shard_id} is led elsewhere now")
            if table is not None and parent is not None:
                if parent.state.closed or not parent.state.is_serving:
                    raise NotReadyError(f"the replica of shard {parent.shard_id} is not what it was")
                following = await self._copy_page(table, part, start)
                rows, _ = self._rows(start, following, many=1 << 40)  # of the two pages, no more
            else:
                rows, following = self._rows(start, None)
                await asyncio.sleep(0)
            count += len(rows)
            owners.update(owner for row in rows if (owner := stored_row(row.version)[1]) is not None)
            if following is None:
                return count, owners
            start = following

    async def _copy_page(self, table: "TableShard", part: ShardPart, start: bytes) -> bytes | None:
        """Make the rows from key `start` what the parent has; returns the key to go on with."""
        stored, following = table.state.stored_rows(
            start, None, (part.first, part.last_ever), examined_max=PAGE_ROWS, size_bytes_max=PAGE_BYTES
        )
        now_ms = system.wall_ms()
        own, own_following = self._rows(start, following)
        if own_following is not None:  # many rows that the parent has no more: both pages end where ours does
            stored, following = [row for row in stored if row[0] < own_following], own_following
        theirs = [CopiedRow(*row, now_ms) for row in stored]
        missing = left_behind(theirs, own, table.version_at_lead, now_ms)
        if missing:
            await committed(self._host, stage(self._host, partial(self._batch, missing)))
        return following

    def _rows(
        self, start: bytes, end: bytes | None, many: int | None = None
    ) -> tuple[list[CopiedRow], bytes | None]:
        """What is here: a page (`many`: so many rows or bytes), and the key to go on with."""
        found, following = self._host.state.require_table().state.stored_rows(
            start, end, (0, HASH_MAX), examined_max=many or PAGE_ROWS, size_bytes_max=many or PAGE_BYTES
        )
        return [CopiedRow(*row) for row in found], following

    def _batch(
        self, rows: list[CopiedRow], evaluator: "TableEvaluator"
    ) -> tuple[bytearray, int, Callable[[], None]]:
        base, records = self._host.log.log_end, records_of(rows)
        batch = build_batch(records, base_offset=base, leader_epoch=self._host.state.term)
        return batch, len(records), partial(evaluator.imported, records, base)

    # -- reports --------------------------------------------------------------------------------------------------

    async def _report_start(self, start: int) -> None:
        """Who follows the shard is told by the metadata where its own changes begin."""
        for _ in range(REPORTS_MAX):
            part = self._part()
            if part is None or part.own_start == start:
                return
            self._report(SplitReport(self._host.shard_id, self._term, SplitStep.COPIED, -1, start))
            await asyncio.sleep(PAUSE_S)
