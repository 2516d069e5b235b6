"""The leader of a shard that is being split off copies its keys, from the replica of the parent that this node has.

A child has its replicas where its parent has them, so the copying reads nothing over the network: the store and the log of
the parent's replica here, leader or follower, hold committed state, and more of it all the time. What is copied goes through
the child's own log, as puts and removals with the versions that they have in the parent, so its replicas and consumers need
to know nothing of splits, and its log tells the whole story of its keys.

1. *Scan*: page by page in key order, each page of one moment. What the child has already (of an earlier leader's copying) is
   compared, so a page costs writes only where it differs. The pages are of different moments; that is mended by
2. *follow*: the parent's log from where it was when the scan began, by the hashes that are the child's (`table.copying` has
   the rules). So after the freeze each key is what it was in the parent at the freeze. Of transactions it takes what their
   commit makes rows of; the freeze waits until none is prepared.
3. *Inherit*: with everything up to the freeze in the log, an entry ends the copy. Version ids go on above the parent's.

Nothing of this is remembered outside the child's log: a new leader scans again, which finds most of it done.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from antiphon import system
from antiphon.errors import AntiphonError, NotReadyError, StorageFailedError, UnavailableError
from antiphon.model.cluster import SplitReport, SplitStep
from antiphon.model.metadata import HASH_MAX, ShardMeta, Split, SplitPhase, key_hash
from antiphon.model.shard_part import ShardPart
from antiphon.partition.table_shard import TableShard
from antiphon.partition.table_writes import judge_appended
from antiphon.records.batch import BatchHeader, Buffer, iter_batches
from antiphon.records.builder import build_batch
from antiphon.records.changes import VERSION, VERSION_HEADER, version_for_store
from antiphon.records.decode import decode_records
from antiphon.records.split_entries import Freeze, Inherit, Release, SplitEntry, Thaw, build_split_entry
from antiphon.table.copying import CopiedRow, differences, newer, records_of
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.meta import PLAIN_FORMAT
from antiphon.table.places import place_of
from antiphon.table.prepared import Prepare, PreparedTransactions
from antiphon.table.prepared_rows import change_in

if TYPE_CHECKING:
    from antiphon.node.context import NodeContext
    from antiphon.partition.partition import Partition
    from antiphon.records.decode import Record

PAGE_ROWS: Final = 500  # looked at without letting others have a turn: about 2 ms
PAGE_BYTES: Final = 256 * 1024
PAGES_AHEAD: Final = 4  # that are written and not committed
CLOSE_OFFSETS: Final = 1_000  # so little left is copied while the range is frozen
IDLE_S: Final = 0.002
SLOW_S: Final = 0.1
WRITE_TIMEOUT_S: Final = 10.0
STUCK_S: Final = 10.0

Report = Callable[[SplitReport], None]
Built = tuple[bytearray, int, Callable[[], None]]
Build = Callable[[TableEvaluator], Built]
"""Stamps a batch for the log's end; returns it with its number of records, and what tells the evaluator of it."""


class SplitCopy:
    """One leadership's work on one split; `run` returns when there is nothing left to do here."""

    def __init__(self, node: "NodeContext", host: "Partition", report: Report) -> None:
        self._node = node
        self._host = host
        self._term = host.state.term
        self._report = report
        self._log = structlog.get_logger().bind(shard=host.shard_id, part="split")
        self._position = -1  # in the parent's log, up to which it is followed; -1: scan first
        self._prepared = PreparedTransactions()  # as of the position
        self._source: object = None  # the parent's store that was scanned: another one is scanned anew
        self._inherited = (
            -1,
            -1,
        )  # offset of the freeze that the copy ends with, start of the child's own log
        self._copied = 0
        self._stuck_since_s: float | None = None

    async def run(self) -> None:
        """Copy until the split is over or this node does not lead the child any more."""
        while (meta := self._meta()) is not None:
            pause_s = IDLE_S
            try:
                await self._step(meta)
            except NotReadyError as error:  # the parent's replica cannot be read here, or is gone
                pause_s = SLOW_S
                self._stuck(error)
            except AntiphonError as error:
                self._log.info("split_copy_held_up", error=error.message)
                self._position = -1
                pause_s = SLOW_S
            else:
                self._stuck_since_s = None
            await asyncio.sleep(pause_s)

    def _meta(self) -> ShardMeta | None:
        """The child's metadata, while this leadership and the split go on."""
        host = self._host
        change = self._node.view.joining.get(host.shard_id)
        if change is None or not host.state.is_serving or host.state.term != self._term or host.state.closed:
            return None
        return change.shard

    async def _step(self, meta: ShardMeta) -> None:
        split = meta.split
        if split is None or split.phase is SplitPhase.RELEASE:
            return
        parent, table = self._parent(split)
        state = table.state
        if state.owned.last < meta.hashes[0]:
            return  # released already; the metadata is about to say so
        if self._position < parent.log.log_start or self._source is not state:
            await self._scan(meta, parent, table)
            return
        end = min(state.applied_offset, parent.log.log_end)
        if self._position < end:
            await self._follow(meta, parent, end)
        left = state.applied_offset - self._position
        if split.phase is SplitPhase.COPY:
            if left <= CLOSE_OFFSETS:
                self._report_step(SplitStep.CLOSE)
        elif state.owned.child == meta.shard_id and self._position > state.owned.frozen_at:
            await self._finish(meta, split, parent, table)

    def _parent(self, split: Split) -> "tuple[Partition, TableShard]":
        parent = self._node.hosts.get(split.parent)
        if parent is None or parent.state.failed is not None or parent.state.closed or parent.table is None:
            raise NotReadyError(f"node {self._node.node_id} has no working replica of shard {split.parent}")
        return parent, parent.table

    # -- copying --------------------------------------------------------------------------------------------------

    async def _scan(self, meta: ShardMeta, parent: "Partition", table: TableShard) -> None:
        state = table.state
        began_at, began_s = state.applied_offset, system.monotonic_s()
        prepared = state.transactions.copy()
        low, high = meta.hashes
        waiting: deque[asyncio.Future[Any]] = deque()
        start: bytes | None = b""
        while start is not None:
            if parent.state.closed or table.state is not state or state.owned.last < low:
                raise NotReadyError(f"the replica of shard {parent.shard_id} was replaced")
            with _reading(parent):
                stored, following = state.stored_rows(
                    start, None, (low, high), examined_max=PAGE_ROWS, size_bytes_max=PAGE_BYTES
                )
            with _reading(self._host):
                own, _ = self._table().state.stored_rows(
                    start, following, (0, HASH_MAX), examined_max=1 << 40, size_bytes_max=1 << 40
                )
            rows = differences(
                [CopiedRow(*row, VERSION.unpack_from(row[1])[3]) for row in stored],
                [CopiedRow(*row) for row in own],
                system.wall_ms(),
            )
            if rows:
                waiting.append(self._stage(rows))
            while len(waiting) > PAGES_AHEAD or (waiting and following is None):
                await committed(self._host, waiting.popleft())
            await asyncio.sleep(0)
            start = following
            if self._meta() is None:
                return
        self._position, self._source, self._prepared = began_at, state, prepared
        self._log.info(
            "split_scanned",
            parent=parent.shard_id,
            copied=self._copied,
            took_s=system.monotonic_s() - began_s,
        )

    async def _follow(self, meta: ShardMeta, parent: "Partition", end: int) -> None:
        """Take over what the parent's log says from the position on, a piece of it."""
        batches = await parent.reads.read_in_thread(self._position, PAGE_BYTES, end, at_least_one=True)
        has_places = parent.state.require_table().state.format > PLAIN_FORMAT
        changes: list[CopiedRow] = []
        position = self._position
        for piece in batches:
            for header, batch in iter_batches(piece):
                position = header.next_offset
                found = self._ended(header, batch) if header.is_transactional else _changes(header, batch)
                changes += _within(found, meta.hashes, places=has_places)
        keys = list(dict.fromkeys(change.key for change in changes))
        with _reading(self._host):
            versions = self._table().state.versions(keys)
        known = {key: None if v is None else v[0] for key, v in zip(keys, versions, strict=True)}
        rows = newer(changes, known)
        if rows:
            await committed(self._host, self._stage(rows))
        self._position = position

    def _ended(self, header: BatchHeader, batch: Buffer) -> list[CopiedRow]:
        """What a transaction's commit makes rows of; what is prepared only is not copied."""
        change = change_in(header, batch)
        if isinstance(change, Prepare):
            self._prepared.prepare(change)
            return []
        effects = [] if change is None else self._prepared.end(change.producer_id)
        if change is None or not change.commit:
            return []
        return [CopiedRow(key, version, value, header.max_timestamp) for key, value, version in effects]

    async def _finish(self, meta: ShardMeta, split: Split, parent: "Partition", table: TableShard) -> None:
        """Everything up to the freeze is here: end the copy, once for each freeze, and say so."""
        state = table.state
        frozen_at = state.owned.frozen_at
        if self._inherited[0] != frozen_at:
            jobs = parent.log.producers.jobs(frozen_at, state.jobs)
            low, high = meta.hashes
            with _reading(parent):  # no session begins or ends while the range is frozen
                sessions = tuple(state.sessions().items())
            entry = Inherit(low, high, split.parent, frozen_at, state.next_version_id, jobs, sessions)
            start = await append_entry(self._host, entry)
            self._host.sessions.look()
            self._inherited = (frozen_at, start)
            self._log.info("split_copied", parent=split.parent, frozen_at=frozen_at, copied=self._copied)
        self._report_step(SplitStep.COPIED, *self._inherited)

    # -- writing --------------------------------------------------------------------------------------------------

    def _table(self) -> TableShard:
        return self._host.state.require_table()

    def _stage(self, rows: list[CopiedRow]) -> "asyncio.Future[Any]":
        """Append to the child's log; see `committed`."""
        host = self._host

        def build(evaluator: TableEvaluator) -> tuple[bytearray, int, Callable[[], None]]:
            base, records = host.log.log_end, records_of(rows)
            batch = build_batch(records, base_offset=base, leader_epoch=host.state.term)
            return batch, len(records), partial(evaluator.imported, records, base)

        self._copied += len(rows)
        return stage(host, build)

    # -- reports --------------------------------------------------------------------------------------------------

    def _report_step(self, step: SplitStep, frozen_at: int = -1, start: int = -1, reason: str = "") -> None:
        self._report(SplitReport(self._host.shard_id, self._term, step, frozen_at, start, reason))

    def _stuck(self, error: AntiphonError) -> None:
        now = self._node.now_s()
        self._stuck_since_s = now if self._stuck_since_s is None else self._stuck_since_s
        if now - self._stuck_since_s > STUCK_S:
            self._report_step(SplitStep.STUCK, reason=error.message)


def _changes(header: BatchHeader, batch: Buffer) -> Iterator[CopiedRow]:
    for record in () if header.is_control else decode_records(batch):
        version = dict(record.headers).get(VERSION_HEADER)
        if version is not None:
            yield _copied(record.key or b"", version, record)


def _within(found: Iterable[CopiedRow], hashes: tuple[int, ...], *, places: bool) -> Iterator[CopiedRow]:
    """The changes that are about these hashes. Where rows have `places`, a key may have had another one before: then any
    change of it that is not about these hashes removes it here.
    """
    low, high = hashes
    for change in found:
        if not places:
            if low <= key_hash(change.key) <= high:
                yield change
        elif change.value is None or low <= place_of(change.key, change.version) <= high:
            yield change
        else:
            yield change._replace(value=None)


def _copied(key: bytes, version: bytes, record: "Record") -> CopiedRow:
    """A change of the parent's log. The end of a session is not copied as such: the child removes its rows one by one."""
    if record.value is not None:
        version = version_for_store(version, record.headers)
    return CopiedRow(key, version, record.value, record.timestamp_ms)


@contextlib.contextmanager
def _reading(host: "Partition") -> Iterator[None]:
    """A store that fails ends the replica that it belongs to, not only this try."""
    try:
        yield
    except StorageFailedError as error:
        raise host.driver.stopped_by(error) from error


async def append_entry(host: "Partition", entry: SplitEntry) -> int:
    """Append an entry of a split to a table's log that is led here; returns the offset after it, when it is committed."""
    base = -1

    def build(evaluator: TableEvaluator) -> tuple[bytearray, int, Callable[[], None]]:
        nonlocal base
        if isinstance(entry, Freeze) and evaluator.transactions.by_producer:
            raise NotReadyError(
                f"{len(evaluator.transactions.by_producer)} transactions are prepared in shard {host.shard_id}: its "
                "keys move when they have ended"
            )
        base = host.log.log_end
        batch = build_split_entry(entry, host.state.term, base, system.wall_ms())
        return batch, 1, partial(evaluator.appended_entry, entry, base)

    await committed(host, stage(host, build))
    return base + 1


async def append_releases(host: "Partition", part: ShardPart) -> int:
    """Have a table's log that is led here let go of all keys beyond its part once more; returns the offset after that.

    All that this takes is appended at once: nothing comes in between.
    """
    owned, first = host.state.require_table().state.owned, part.last + 1
    child, start = part.following
    frozen: list[int] = [owned.frozen_at] if owned.frozen_from == first else []

    def build(make: Callable[[int], SplitEntry], evaluator: TableEvaluator) -> Built:
        base = host.log.log_end
        entry = make(base)
        batch = build_split_entry(entry, host.state.term, base, system.wall_ms())
        return batch, 1, partial(evaluator.appended_entry, entry, base)

    def freeze(base: int) -> SplitEntry:
        frozen.append(base)
        return Freeze(first, child)

    steps: list[Callable[[int], SplitEntry]] = []
    if owned.is_frozen and not frozen:  # for a split of before that came to nothing
        steps.append(lambda _: Thaw(owned.frozen_at))
    steps += [] if frozen else [freeze]
    steps.append(lambda _: Release(frozen[0], first, child, start))
    for staged in [stage(host, partial(build, step)) for step in steps]:
        await committed(host, staged)
    return host.log.log_end


def stage(host: "Partition", build: Build) -> "asyncio.Future[Any]":
    """Append what `build` makes for the log's end, in its turn. The future ends with the commit; see `committed`."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: Any) -> None:
        if not future.done():
            future.set_result(result)

    def append() -> None:
        host.state.check_writable()
        evaluator = host.state.require_table().evaluator
        if evaluator is None:
            raise NotReadyError(f"shard {host.shard_id} has just been elected")
        batch, records, appended = build(evaluator)
        host.clients.stage(batch, records, host.log.log_end + records, None, WRITE_TIMEOUT_S, done)
        judge_appended(host.driver, appended)

    host.clients.in_turn(append, WRITE_TIMEOUT_S, done)
    return future


async def committed(host: "Partition", staged: "asyncio.Future[Any]") -> None:
    """Wait for the commit of what was staged. Raises what took its place."""
    result = await staged
    if isinstance(result, AntiphonError):
        raise result
    if host.state.closed:
        raise UnavailableError(f"shard {host.shard_id} was closed")
