"""Sending a snapshot of committed state to a follower whose log cannot be joined (S0.37).

For a table that is a checkpoint of its store; for a plain topic the state below the log's start is gone by retention, so the
snapshot only says where to go on. Both bring what the leader remembers of the producers from before, so that a retry of what
is not in the follower's log is recognised there too, and, where replicas vote, who the members are. What is appended but not
committed comes after it, as the log's next entries.

A transfer that is cut goes on where it was: the sender keeps its copy for `KEEP_S`, the receiver keeps what has arrived
(over a restart as well), and `SnapshotBegin` finds out what is missing. Each chunk is checked when it arrives, each file
when it is whole, so a byte that was lost in a power cut is noticed before anything is put in place.
"""

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import structlog
from crc32c import crc32c

from antiphon import system
from antiphon.errors import AntiphonError, CorruptBatchError, DamagedStoreError, UnavailableError
from antiphon.log.disk import PASSING, Disk, discard_tree, make_directory, write_whole
from antiphon.model.requests import Done
from antiphon.node.peer_wire import (
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotFile,
    SnapshotProgress,
    SnapshotRequest,
)
from antiphon.node.received_snapshots import PRODUCERS_FILE, ReceivedSnapshots, crc_of_file
from antiphon.records.entry_id import EntryId

if TYPE_CHECKING:
    from antiphon.node.context import NodeContext
    from antiphon.partition.services import SnapshotSource
    from antiphon.table.store import StoreEngine

CHUNK_BYTES = 1024 * 1024
CHUNKS_IN_FLIGHT = 4
CHUNK_TIMEOUT_S = 30.0
CHECKPOINT_TRIES = 3  # a log may be trimmed beyond a copy of its table while that is made
CHECK_REST_S = 0.05  # at most, after each piece of a copy that is read to check it
_PREFIX = "send-"
KEEP_S = 300.0  # a copy that was not delivered is kept for so long after the last try


@dataclass(slots=True)
class Copy:
    """A checkpoint on this node's disk, made for one follower."""

    path: str
    snapshot_id: str
    at: EntryId
    files: tuple[SnapshotFile, ...]
    used_s: float

    def chunks(self, disk: Disk, have: tuple[int, ...]) -> Iterator[tuple[int, int, bytes]]:
        """(file, position, bytes) of all that is not there yet."""
        for number, (file, start) in enumerate(zip(self.files, have, strict=True)):
            source = disk.open(os.path.join(self.path, file.name))
            for position in range(start, file.size_bytes, CHUNK_BYTES):
                yield number, position, source.pread(CHUNK_BYTES, position)


class Snapshots:
    """Snapshots that this node sends and receives."""

    def __init__(self, node: "NodeContext", directory: str) -> None:
        self._node = node
        self._disk = node.disk
        self._directory = directory
        self._sending: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._copies: dict[tuple[int, int], Copy] = {}
        self._numbers = count()  # of copies: a directory that is still being removed is nobody's next one
        self._received = ReceivedSnapshots(node.disk, directory)
        self._log = structlog.get_logger()
        self.sent_bytes = 0
        self.resumed_bytes = 0  # did not have to be sent again
        for name in node.disk.listdir(directory) if node.disk.is_dir(directory) else ():
            if name.startswith(_PREFIX):
                discard_tree(node.disk, os.path.join(directory, name))

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, source: "SnapshotSource", to: int) -> None:
        """Begin to send a snapshot to a follower, or go on with one; tells the replica how it ended."""
        key = (source.shard_id, to)
        if key not in self._sending:
            self._sending[key] = self._node.spawn(self._send(source, to, source.term))

    async def _send(self, source: "SnapshotSource", to: int, term: int) -> None:
        try:
            at = await self._stream(source, to, term)
        except Exception as error:  # noqa: BLE001 - whatever it is, the replica must hear of it, or it would wait for ever
            bug = None if isinstance(error, (AntiphonError, OSError)) else error
            self._log.warning("snapshot_failed", shard=source.shard_id, to=to, error=str(error), exc_info=bug)
            if _is_of_the_copy(error):
                self._drop_copy(source.shard_id, to)
            await asyncio.sleep(self._node.config.timings.reconnect_max / 1000)
            del self._sending[source.shard_id, to]
            source.failed(to)
        else:
            self._log.info("snapshot_sent", shard=source.shard_id, to=to, at=at)
            del self._sending[source.shard_id, to]
            self._drop_copy(source.shard_id, to)
            source.sent(to, at)

    async def _stream(self, source: "SnapshotSource", to: int, term: int) -> EntryId:
        """Send it as the leader of `term`: of a later one, which may have begun meanwhile, another node may be."""
        copy = await self._copy_for(source, to)
        if source.term != term:
            raise UnavailableError(
                f"shard {source.shard_id} is in term {source.term}; its snapshot was for {term}"
            )
        link = self._node.link(to)
        members = source.members_at(copy.at.offset)
        begin = SnapshotBegin(source.shard_id, term, copy.at, copy.snapshot_id, copy.files, members)
        progress = await link.ask(begin, CHUNK_TIMEOUT_S)
        if not isinstance(progress, SnapshotProgress) or len(progress.have) != len(copy.files):
            raise UnavailableError(f"node {to} did not say what it has of the snapshot")
        if any(progress.have):
            self.resumed_bytes += sum(progress.have)
            self._log.info("snapshot_resumed", shard=source.shard_id, to=to, have_bytes=sum(progress.have))
        await self._send_chunks(source, to, copy, progress.have)
        await link.ask(SnapshotEnd(source.shard_id, term, copy.snapshot_id), CHUNK_TIMEOUT_S)
        return copy.at

    async def _send_chunks(
        self, source: "SnapshotSource", to: int, copy: Copy, have: tuple[int, ...]
    ) -> None:
        """A few chunks are underway at any time; the first that fails ends it."""
        link = self._node.link(to)
        underway: list[asyncio.Task[Any]] = []
        try:
            for number, position, data in copy.chunks(self._disk, have):
                chunk = SnapshotChunk(source.shard_id, copy.snapshot_id, number, position, crc32c(data))
                underway.append(self._node.spawn(link.ask(chunk, CHUNK_TIMEOUT_S, [data])))
                self.sent_bytes += len(data)
                copy.used_s = self._node.now_s()
                if len(underway) == CHUNKS_IN_FLIGHT:
                    await underway.pop(0)
            while underway:
                await underway.pop(0)
        finally:
            for task in underway:
                task.cancel()
            await asyncio.gather(*underway, return_exceptions=True)

    async def _copy_for(self, source: "SnapshotSource", to: int) -> Copy:
        """The copy that was being sent, where it still joins the log, or a new one."""
        self._drop_old()
        key = (source.shard_id, to)
        kept = self._copies.get(key)
        if kept is not None:
            if kept.at.offset >= source.terms.log_start and source.terms.holds(kept.at):
                kept.used_s = self._node.now_s()
                return kept
            self._drop_copy(*key)
        copy = self._copies[key] = await self.copy_of(source, str(to))
        return copy

    async def copy_of(self, source: "SnapshotSource", whose: str) -> Copy:
        """A copy of the state for somebody; it is the caller's to `discard`. Raises UnavailableError, StorageFailedError."""
        make_directory(self._disk, self._directory)
        name = f"{_PREFIX}{source.shard_id}-{whose}-{next(self._numbers)}"
        return await self._made_copy(source, os.path.join(self._directory, name))

    def discard(self, copy: Copy) -> None:
        """Remove a copy that nobody reads any more."""
        self._drop(copy.path)

    async def _made_copy(self, source: "SnapshotSource", path: str) -> Copy:
        disk = self._disk
        try:
            at = await self._take_state(source, path)
            write_whole(
                disk, os.path.join(path, PRODUCERS_FILE), source.log.producers.encode(before=at.offset)
            )
            files = await asyncio.to_thread(_describe, disk, path)
        except Exception:
            self._drop(path)
            raise
        return Copy(path, system.new_uuid().hex, at, files, self._node.now_s())

    async def _take_state(self, source: "SnapshotSource", path: str) -> EntryId:
        """Copy the state into the new directory `path`; returns of which prefix of the log it is."""
        for _ in range(CHECKPOINT_TRIES):
            self._disk.remove_tree(path)
            if source.table is None:
                self._disk.makedirs(path)
                return source.terms.start
            try:
                offset = await asyncio.to_thread(source.table.state.checkpoint, path)
                await self._check_copy(source.table.stores, path)
            except DamagedStoreError as error:
                raise source.stopped_by(error) from error
            terms = source.terms
            if offset > terms.log_end:
                raise UnavailableError(
                    f"the log of shard {source.shard_id} was cut while its table was copied"
                )
            if offset >= terms.log_start:
                return EntryId(terms.term_before(offset), offset)
        raise UnavailableError(
            f"the log of shard {source.shard_id} is trimmed faster than its table is copied"
        )

    async def _check_copy(self, stores: "StoreEngine", path: str) -> None:
        """Read all of it before any of it is sent. Raises DamagedStoreError.

        A copy has its store's blocks as they are on the disk. If one had decayed there unseen, the follower's store would
        have it too, and two replicas together may be more than their shard can do without.
        """
        steps = stores.check(path)
        while True:
            began_s = system.monotonic_s()
            if await asyncio.to_thread(next, steps, None) is None:
                return
            # Others want to go on meanwhile
            await asyncio.sleep(min(CHECK_REST_S, system.monotonic_s() - began_s))

    def _drop_old(self) -> None:
        now_s = self._node.now_s()
        for key, copy in list(self._copies.items()):
            if key not in self._sending and now_s - copy.used_s > KEEP_S:
                self._drop_copy(*key)

    def _drop_copy(self, shard_id: int, to: int) -> None:
        copy = self._copies.pop((shard_id, to), None)
        if copy is not None:
            self._drop(copy.path)

    def _drop(self, path: str) -> None:
        self._node.loop.run_in_executor(None, discard_tree, self._disk, path)

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(
        self, sender: int, request: SnapshotRequest, data: memoryview, done: Callable[[Any], None]
    ) -> None:
        """A leader's request; `done` gets its answer or an error. The last one installs the snapshot."""
        if isinstance(request, SnapshotEnd):
            self._node.spawn(self._install(request, done))
            return
        try:
            if isinstance(request, SnapshotBegin):
                self._check(request)
                host = self._node.hosts.get(request.shard)
                done(SnapshotProgress(self._received.begin(host, sender, request)))
            else:
                self._received.take(request, data)
                done(Done())
        except AntiphonError as error:
            done(error)
        except OSError as error:
            done(UnavailableError(f"the snapshot cannot be stored: {error}"))

    def _check(self, request: SnapshotBegin) -> None:
        room = self._disk.free_bytes(str(self._node.config.dir))
        size = sum(file.size_bytes for file in request.files)
        if size > room:
            raise UnavailableError(
                f"a snapshot of {size} bytes does not fit on the disk of node {self._node.node_id}, which has {room} free"
            )

    async def _install(self, request: SnapshotEnd, done: Callable[[Any], None]) -> None:
        try:
            await self._received.install(self._node.hosts.get(request.shard), request)
        except AntiphonError as error:
            done(error)
        except OSError as error:
            done(UnavailableError(f"the snapshot cannot be put in place: {error}"))
        else:
            done(Done())


def _is_of_the_copy(error: Exception) -> bool:
    """Can the copy not be read, or is it not what it was? Then it would fail again: the next try makes another one."""
    if isinstance(error, OSError) and not isinstance(error, AntiphonError):
        return error.errno not in PASSING
    return isinstance(error, CorruptBatchError)  # says the receiver, which has thrown all of it away


def _describe(disk: Disk, path: str) -> tuple[SnapshotFile, ...]:
    names = [name for name in disk.listdir(path) if not disk.is_dir(os.path.join(path, name))]
    return tuple(SnapshotFile(name, *crc_of_file(disk, os.path.join(path, name))) for name in names)
