"""Snapshots on their way in: kept in parts until they are whole, checked, and put in the place of a replica's state.

A part is a directory `receive-<shard>` with the files so far and a manifest of what they are to become. It outlives a cut
and a restart; it is thrown away when another snapshot begins for the shard, when it turns out damaged, or after
`PARTS_KEPT_S`.
"""

import asyncio
import functools
import os
from typing import Any

import msgspec
import structlog
from crc32c import crc32c

from antiphon import system
from antiphon.errors import (
    UNDECODABLE,
    CorruptBatchError,
    InvalidRequestError,
    UnknownShardError,
)
from antiphon.gateway.answers import awaited
from antiphon.log.disk import Disk, discard_tree, read_whole, write_whole
from antiphon.log.operations import LogOp
from antiphon.log.producer_state import ProducerState
from antiphon.node.peer_wire import SnapshotBegin, SnapshotChunk, SnapshotEnd
from antiphon.partition.partition import Partition
from antiphon.partition.snapshots import InstallingSnapshot
from antiphon.partition.table_files import (
    Installation,
    begin_install,
    drop_install,
    end_install,
    prepare_install,
)
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import ResetLog
from antiphon.replication.members import Members
from antiphon.replication.messages import SnapshotOffer

PRODUCERS_FILE = "producers.antiphon"  # beside the store's files
MANIFEST_FILE = "manifest.antiphon"
PARTS_KEPT_S = 24 * 3600.0
FILES_MAX = 100_000
READ_BYTES = 1024 * 1024
_PREFIX = "receive-"

_encode = msgspec.msgpack.Encoder().encode
_manifest = msgspec.msgpack.Decoder(SnapshotBegin)


class ReceivedSnapshots:
    """The parts on one node, by shard."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._parts: dict[int, SnapshotBegin] = {}
        self._installing: set[int] = set()
        self._log = structlog.get_logger()
        for name in disk.listdir(directory) if disk.is_dir(directory) else ():
            if name.startswith(_PREFIX):
                self._find(os.path.join(directory, name))

    def _find(self, path: str) -> None:
        """A part that a former process left; what cannot be used is removed."""
        try:
            file = os.path.join(path, MANIFEST_FILE)
            manifest = _manifest.decode(read_whole(self._disk, file) or b"")
            if system.wall_s() - self._disk.modified_s(file) < PARTS_KEPT_S:
                self._parts[manifest.shard] = manifest
                return
        except (OSError, *UNDECODABLE) as error:
            self._log.warning("snapshot_part_dropped", path=path, error=str(error))
        discard_tree(self._disk, path)

    def _path(self, shard: int) -> str:
        return os.path.join(self._directory, f"{_PREFIX}{shard}")

    def begin(self, host: Partition | None, sender: int, request: SnapshotBegin) -> tuple[int, ...]:
        """Bytes that are there of each file, all 0 for another snapshot than the last; raises what is wrong with it."""
        if host is None:
            raise UnknownShardError(f"this node has no replica of shard {request.shard}")
        host.state.check_alive()
        if request.shard in self._installing:
            raise InvalidRequestError(f"a snapshot of shard {request.shard} is being put in place")
        _check_names(request)
        host.receive(sender, SnapshotOffer(request.shard, request.term, sender, request.at, request.members))
        _check_term(host, request.shard, request.term)
        path = self._path(request.shard)
        begun = self._parts.get(request.shard)
        if begun is None or (begun.snapshot_id, begun.files) != (request.snapshot_id, request.files):
            self._disk.remove_tree(path)
            self._disk.makedirs(path)
            write_whole(self._disk, os.path.join(path, MANIFEST_FILE), _encode(request))
        self._parts[request.shard] = request
        return tuple(
            _have(self._disk, os.path.join(path, file.name), file.size_bytes) for file in request.files
        )

    def take(self, chunk: SnapshotChunk, data: memoryview) -> None:
        """Write a chunk that follows what is there of its file; anything else is refused."""
        begun = self._parts.get(chunk.shard)
        if begun is None or begun.snapshot_id != chunk.snapshot_id or chunk.shard in self._installing:
            raise InvalidRequestError(
                f"no snapshot {chunk.snapshot_id} of shard {chunk.shard} is under way here"
            )
        if not 0 <= chunk.file < len(begun.files):
            raise InvalidRequestError(
                f"the snapshot has {len(begun.files)} files, none has number {chunk.file}"
            )
        file = begun.files[chunk.file]
        if crc32c(data) != chunk.crc:
            raise CorruptBatchError(f"a chunk of {file.name} was damaged on its way")
        target = self._disk.open(os.path.join(self._path(chunk.shard), file.name), create=True)
        have = target.size()
        if have != chunk.position or chunk.position + len(data) > file.size_bytes:
            raise InvalidRequestError(
                f"{file.name}: {have} of {file.size_bytes} bytes are here, the chunk has {len(data)} "
                f"from {chunk.position} on"
            )
        target.pwritev([data], have)

    async def install(self, host: Partition | None, request: SnapshotEnd) -> None:
        """Check the whole of it, bring it to disk and give it to the replica. One that is damaged is thrown away."""
        begun = self._parts.get(request.shard)
        if host is None or begun is None or begun.snapshot_id != request.snapshot_id:
            raise InvalidRequestError(
                f"no snapshot {request.snapshot_id} of shard {request.shard} is under way here"
            )
        if request.shard in self._installing:
            raise InvalidRequestError(f"the snapshot of shard {request.shard} is being put in place already")
        path = self._path(request.shard)
        self._installing.add(request.shard)
        try:
            await asyncio.to_thread(_check_files, self._disk, path, begun)
            host.state.check_alive()
            _check_term(host, request.shard, request.term)
            await _promises_kept(host)
            host.state.check_alive()
            _check_term(host, request.shard, request.term)
            install_snapshot(host, begun.at, path, begun.members)
            self._parts.pop(request.shard, None)
        except CorruptBatchError:
            self._parts.pop(request.shard, None)
            discard_tree(self._disk, path)
            raise
        finally:
            self._installing.discard(request.shard)


def install_snapshot(host: Partition, at: EntryId, copy: str, members: Members | None = None) -> None:
    """Put a whole snapshot in the place of the replica's log and store, if the replica takes it.

    Raises CorruptBatchError or InvalidRequestError when it does not say what is known of the producers, and OSError where
    there is no room to write down what is to be done; nothing has changed then.
    """
    disk, table = host.log.disk, host.table
    said = read_whole(disk, os.path.join(copy, PRODUCERS_FILE))
    if said is None:
        raise InvalidRequestError(f"the snapshot of shard {host.shard_id} says nothing of its producers")
    producers = ProducerState.decode(said)
    then = None
    if table is not None:
        prepare_install(disk, table.path, Installation(at, said, members))
        then = functools.partial(end_install, disk, table.path)

    def event() -> Any:
        actions = host.snapshots.installed(at, members)
        if any(type(action) is ResetLog for action in actions):
            host.snapshots.installing = InstallingSnapshot(producers, then)
            if table is not None:
                table.state.close()
                for name in (PRODUCERS_FILE, MANIFEST_FILE):
                    disk.remove(os.path.join(copy, name))
                begin_install(disk, copy, table.path)
                table.state = table.opened()
        return actions

    host.driver.call(event)
    host.snapshots.installing = None
    if table is not None:
        drop_install(disk, table.path)
    discard_tree(disk, copy)


async def _promises_kept(host: Partition) -> None:
    """Wait until the term that the replica is in is durable: a log must not come back with entries of a later one."""
    future, done = awaited()
    host.driver.submit(LogOp(host.log.queue, []), done)
    await future


def _check_names(request: SnapshotBegin) -> None:
    names = [file.name for file in request.files]
    if len(names) > FILES_MAX or len(set(names)) != len(names):
        raise InvalidRequestError(f"a snapshot of {len(names)} files, {len(set(names))} names")
    for file in request.files:
        if os.path.basename(file.name) != file.name or file.name in {"", ".", "..", MANIFEST_FILE}:
            raise InvalidRequestError(f"a snapshot's file is a plain name, not {file.name!r}")
        if file.size_bytes < 0:
            raise InvalidRequestError(f"{file.name} cannot have {file.size_bytes} bytes")


def _check_term(host: Partition, shard: int, term: int) -> None:
    if host.state.term != term:
        raise InvalidRequestError(f"the snapshot is of term {term}, shard {shard} is in {host.state.term}")


def _have(disk: Disk, path: str, size_bytes: int) -> int:
    try:
        found = disk.open(path).size()
    except FileNotFoundError:
        return 0
    if found > size_bytes:
        disk.remove(path)
        return 0
    return found


def crc_of_file(disk: Disk, path: str) -> tuple[int, int]:
    """Size and CRC-32C of a whole file."""
    file = disk.open(path)
    crc, size = 0, 0
    while data := file.pread(READ_BYTES, size):
        crc, size = crc32c(data, crc), size + len(data)
    return size, crc


def _check_files(disk: Disk, path: str, begun: SnapshotBegin) -> None:
    """Sizes and checksums of the whole; then everything is synced, so that the log may be given up for it."""
    for file in begun.files:
        where = os.path.join(path, file.name)
        disk.open(where, create=True).fdatasync()  # an empty file never came as a chunk
        size, crc = crc_of_file(disk, where)
        if (size, crc) != (file.size_bytes, file.crc):
            raise CorruptBatchError(
                f"{file.name} of the snapshot has {size} bytes with CRC {crc:08x}, "
                f"sent were {file.size_bytes} with {file.crc:08x}"
            )
    disk.fsync_dir(path)
