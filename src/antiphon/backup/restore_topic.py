"""Restores a single topic or table into a cluster that runs, through the client, into a new topic or table.

A topic's batches are appended as they are, but for producer, sequence and the mark of a transaction: what aborted
transactions wrote is left out, and what was not decided at the cut. A batch keeps its offset as long as nothing before it
in its shard is left out: control batches, such as the first entry of a leader, take offsets, too. Batches that compaction
made smaller, or whose times the node set, are built anew. A table's rows are put anew with their attributes, and get new
versions; rows of sessions are left out.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Final, NamedTuple

import msgspec

from antiphon.backup.manifest import Backup, ShardBackup, TopicBackup
from antiphon.backup.place import Place
from antiphon.backup.restored_rows import (
    SavedRow,
    commit_prepared,
    committed_producers,
    opened_state,
    rows_of,
)
from antiphon.backup.verify import Verified, log_of, verify_backup
from antiphon.backup.workspace import Workspace
from antiphon.client.aio import AsyncClient
from antiphon.errors import AntiphonError, BackupError, TopicExistsError
from antiphon.model.attributes import PutAttributed
from antiphon.model.internal import PREFIX
from antiphon.model.metadata import KeyRanges, Kind, ShardMeta
from antiphon.model.requests import TableWrite
from antiphon.records.batch import BatchHeader, as_plain
from antiphon.records.builder import build_batch, end_marker_of
from antiphon.records.changes import TABLE_PRODUCER_BIT
from antiphon.records.decode import decode_records
from antiphon.table.state import TableState

AT_ONCE: Final = 4  # shards
AHEAD: Final = 8  # batches that are read while others are sent
WRITE_BYTES: Final = 64 * 1024  # of rows with attributes in one write, about
SEQUENCE_MAX: Final = (1 << 31) - 1

Tell = Callable[[str], None]


class ShardRestored(NamedTuple):
    """What became of a shard. `kept_offsets`: every record has the offset that it had. `left_out`: records, or rows."""

    shard: int
    records: int
    left_out: int
    kept_offsets: bool


class TopicRestored(NamedTuple):
    """What was restored, under which name."""

    name: str
    kind: Kind
    shards: list[ShardRestored]


async def restore_topic(
    client: AsyncClient,
    source: Place,
    backup: Backup,
    name: str,
    to: str = "",
    tell: Tell | None = None,
    *,
    workspace: Workspace | None = None,
) -> TopicRestored:
    """Restore one topic or table, as `to` where that is given; stores are made anew in `workspace`.

    Raises BackupError before anything is changed, where its part of the backup is not whole, TopicExistsError where there is
    such a topic.
    """
    say, target = tell or (lambda _text: None), to or name
    saved = backup.topic(name)
    if saved.internal or name.startswith(PREFIX) or target.startswith(PREFIX):
        raise BackupError(
            f"{name} belongs to the cluster: it comes back with the whole, `antiphon backup restore PLACE --dir DIR`"
        )
    say("reading the backup")
    await asyncio.to_thread(_check, source, backup, saved)
    kind = Kind(saved.kind)
    committed = await asyncio.to_thread(committed_producers, source, backup, workspace)
    await _create(client, saved, target, kind)
    shards = await _known(client, target)
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(shard: ShardBackup, to: ShardMeta) -> ShardRestored:
        async with gate:
            if kind is Kind.TABLE:
                rows = _RowSender(client, target, KeyRanges(shards))
                return await _restore_rows(
                    rows, shard, partial(opened_state, source, shard, workspace), committed
                )
            return await _Sender(client, source, shard, to.shard_id, committed).run()

    say(f"restoring {len(saved.shards)} shards")
    done = await asyncio.gather(
        *(one(*pair) for pair in zip(saved.shards, shards, strict=kind is Kind.TOPIC))
    )
    return TopicRestored(target, kind, sorted(done))


def _check(source: Place, backup: Backup, saved: TopicBackup) -> None:
    only = msgspec.structs.replace(backup, topics=(saved,), without=())
    found: Verified = verify_backup(source, only, of_cluster=False)
    if found.problems:
        raise BackupError(
            f"{saved.name} is damaged in backup {backup.name}, nothing was changed: {found.problems[0].what}"
        )


async def _create(client: AsyncClient, saved: TopicBackup, target: str, kind: Kind) -> None:
    meta = await client.whole.refresh()
    replicas = min(saved.replicas, sum(not node.draining for node in meta.nodes))
    create = client.create_table if kind is Kind.TABLE else client.create_topic
    try:
        await create(
            target, shards=len(saved.shards), replicas=replicas, profile=saved.profile, config=saved.config
        )
    except TopicExistsError as error:
        raise TopicExistsError(
            f"there is a topic or table {target!r} already: restore under another name with --as, or delete that one first",
            name=target,
        ) from error


async def _known(client: AsyncClient, name: str) -> list[ShardMeta]:
    for _ in range(100):
        found = next((topic for topic in (await client.whole.refresh()).topics if topic.name == name), None)
        if found is not None:
            return sorted(found.shards, key=lambda shard: shard.index)
        await asyncio.sleep(0.05)
    raise BackupError(f"{name} was created, and no node knows it yet")


class _Fates:
    """Which batches of a shard's transactions are left out: by producer, the ranges of offsets that came to nothing."""

    def __init__(self, batches: Iterator[tuple[BatchHeader, bytes]], decided: set[int]) -> None:
        self._open: dict[int, int] = {}  # producer -> first offset
        self._lost: dict[int, list[tuple[int, int]]] = {}
        end = 0
        for header, batch in batches:
            end = header.next_offset
            if not header.is_transactional:
                continue
            if not header.is_control:
                self._open.setdefault(header.producer_id, header.base_offset)
                continue
            said, first = end_marker_of(batch), self._open.pop(header.producer_id, None)
            if said is not None and not said[0] and first is not None:
                self._lost.setdefault(header.producer_id, []).append((first, header.base_offset))
        for producer_id, first in self._open.items():
            if producer_id not in decided:
                self._lost.setdefault(producer_id, []).append((first, end))

    def is_lost(self, header: BatchHeader) -> bool:
        """Did the transaction that a batch is part of come to nothing?"""
        if not header.is_transactional:
            return False
        ranges = self._lost.get(header.producer_id)
        while ranges and ranges[0][1] <= header.base_offset:
            ranges.pop(0)  # batches are asked about in their order
        return bool(ranges) and ranges is not None and ranges[0][0] <= header.base_offset


class _Sender:
    """Sends the batches of one shard of a topic."""

    def __init__(
        self,
        client: AsyncClient,
        source: Place,
        saved: ShardBackup,
        shard_id: int,
        committed: set[tuple[int, int]],
    ) -> None:
        self._client = client
        self._source = source
        self._saved = saved
        self._shard_id = shard_id
        self._decided = {producer for producer, shard in committed if shard == saved.shard_id}
        self._producer_id = -1
        self._sequence = 0
        self._records = self._left_out = 0
        self._kept = True

    async def run(self) -> ShardRestored:
        """Send all of them, one after the other, as one idempotent producer: repeats are recognised."""
        fates = await asyncio.to_thread(_Fates, log_of(self._source, self._saved), self._decided)
        self._producer_id = await self._client.new_producer_id()
        batches = log_of(self._source, self._saved)
        while some := await asyncio.to_thread(_take, batches, AHEAD):
            for header, batch in some:
                if header.next_offset > max(self._saved.start, self._saved.deleted_before):
                    await self._send(header, batch, is_lost=fates.is_lost(header))
        return ShardRestored(self._saved.index, self._records, self._left_out, self._kept)

    async def _send(self, header: BatchHeader, batch: bytes, *, is_lost: bool) -> None:
        if is_lost or header.is_control or not header.record_count:
            self._left_out += header.record_count if is_lost else 0
            return
        offsets = header.last_offset_delta + 1
        deleted_before = self._saved.deleted_before
        is_whole = header.record_count == offsets and header.base_offset >= deleted_before
        if is_whole and not header.is_log_append_time:
            owned = as_plain(batch, self._producer_id, self._sequence)
        else:
            records = [one for one in decode_records(batch) if one.offset >= deleted_before]
            if not records:
                return
            offsets = len(records)
            owned = build_batch(
                [(one.key, one.value, one.headers, one.timestamp_ms) for one in records],
                producer_id=self._producer_id,
                producer_epoch=0,
                base_sequence=self._sequence,
            )
        done = await self._client.append_raw(self._shard_id, owned)
        self._kept = self._kept and done.base_offset == header.base_offset and offsets == header.record_count
        self._kept = self._kept and header.record_count == header.last_offset_delta + 1
        self._records += offsets
        self._sequence = (self._sequence + offsets) & SEQUENCE_MAX


def _take(batches: Iterator[tuple[BatchHeader, bytes]], count: int) -> list[tuple[BatchHeader, bytes]]:
    return [one for _, one in zip(range(count), batches, strict=False)]


class _RowSender:
    """Puts rows of one shard of a backup into a table; `ranges` are those of the table."""

    def __init__(self, client: AsyncClient, target: str, ranges: KeyRanges) -> None:
        self._client = client
        self.target = target
        self._table = client.table(target)
        self._ranges = ranges
        self._producer_id = -1
        self._sequences: defaultdict[int, int] = defaultdict(int)

    async def put(self, rows: list[SavedRow]) -> None:
        """Put all of them: those without attributes as any client does, the others where their attributes place them."""
        plain = (self._table.put(row.key, row.value) for row in rows if row.attributes is None)
        await asyncio.gather(*plain)
        of_shard: defaultdict[int, list[PutAttributed]] = defaultdict(list)
        for row in rows:
            if row.attributes is not None:
                place = row.attributes.place
                shard = self._ranges.shard_of(row.key) if place < 0 else self._ranges.shard_of_hash(place)
                of_shard[shard.shard_id].append(PutAttributed(row.key, row.value, row.attributes))
        for shard_id, ops in of_shard.items():
            for some in _in_pieces(ops):
                await self._write(shard_id, some)

    async def _write(self, shard_id: int, ops: tuple[PutAttributed, ...]) -> None:
        if self._producer_id < 0:
            self._producer_id = await self._client.new_producer_id() | TABLE_PRODUCER_BIT
        sequence = self._sequences[shard_id]
        self._sequences[shard_id] += 1
        await self._client.write_raw(TableWrite(shard_id, ops, self._producer_id, 0, sequence))


def _in_pieces(ops: list[PutAttributed]) -> Iterator[tuple[PutAttributed, ...]]:
    some: list[PutAttributed] = []
    size_bytes = 0
    for op in ops:
        if some and size_bytes + len(op.value) > WRITE_BYTES:
            yield tuple(some)
            some, size_bytes = [], 0
        some.append(op)
        size_bytes += len(op.key) + len(op.value)
    yield tuple(some)


async def _restore_rows(
    sender: _RowSender,
    saved: ShardBackup,
    opened: Callable[[], AbstractContextManager[TableState]],
    committed: set[tuple[int, int]],
) -> ShardRestored:
    """Put the rows of a table's shard, with those of transactions that were decided and had no marker yet."""
    count = left_out = 0
    opening = opened()
    state = await asyncio.to_thread(opening.__enter__)
    try:
        await asyncio.to_thread(
            commit_prepared, state, [one for one, shard in committed if shard == saved.shard_id]
        )
        pages = rows_of(state)
        while page := await asyncio.to_thread(next, pages, None):
            mine = [row for row in page if not row.is_of_session]
            left_out += len(page) - len(mine)
            count += len(mine)
            await sender.put(mine)
    except AntiphonError as error:
        raise BackupError(
            f"{sender.target} is not whole: {count} rows of shard {saved.index} were begun ({error.message}); delete it and "
            "restore again"
        ) from error
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)
    return ShardRestored(saved.index, count, left_out, False)
