"""Snapshots on their way in: kept in parts until they are whole, checked, and put in the place of a replica's state.

A part is a directory `receive-<shard>` with the files so far and a manifest of what they are to become. It outlives a cut
and a restart; it is thrown away when another snapshot begins for the shard, when it turns out damaged, or after
`PARTS_KEPT_S`.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import structlog
from crc32c import crc32c

from antiphon import system
from antiphon.errors import CorruptBatchError, InvalidRequestError, UnknownShardError
from antiphon.log.producer_state import ProducerState
from antiphon.node.peer_wire import SnapshotBegin, SnapshotChunk, SnapshotEnd
from antiphon.node.shard_host import ShardHost
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import ResetLog
from antiphon.replication.members import Members
from antiphon.replication.messages import SnapshotOffer
from antiphon.table.state import install_state, open_state

PRODUCERS_FILE = "producers.antiphon"  # beside the store's files
MANIFEST_FILE = "manifest.antiphon"
PARTS_KEPT_S = 24 * 3600.0
FILES_MAX = 100_000
READ_BYTES = 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode
_manifest = msgspec.msgpack.Decoder(SnapshotBegin)


class ReceivedSnapshots:
    """The parts on one node, by shard."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._parts: dict[int, SnapshotBegin] = {}
        self._installing: set[int] = set()
        self._log = structlog.get_logger()
        for path in directory.glob("receive-*"):
            self._find(path)

    def _find(self, path: Path) -> None:
        """A part that a former process left; what cannot be used is removed."""
        try:
            manifest = _manifest.decode((path / MANIFEST_FILE).read_bytes())
            if system.wall_s() - (path / MANIFEST_FILE).stat().st_mtime < PARTS_KEPT_S:
                self._parts[manifest.shard] = manifest
                return
        except (OSError, msgspec.MsgspecError) as error:
            self._log.warning("snapshot_part_dropped", path=path.name, error=str(error))
        shutil.rmtree(path, ignore_errors=True)

    def _path(self, shard: int) -> Path:
        return self._directory / f"receive-{shard}"

    def begin(self, host: ShardHost | None, sender: int, request: SnapshotBegin) -> tuple[int, ...]:
        """Bytes that are there of each file, all 0 for another snapshot than the last; raises what is wrong with it."""
        if host is None:
            raise UnknownShardError(f"this node has no replica of shard {request.shard}")
        host.check_alive()
        if request.shard in self._installing:
            raise InvalidRequestError(f"a snapshot of shard {request.shard} is being put in place")
        _check_names(request)
        host.receive(sender, SnapshotOffer(request.shard, request.term, sender, request.at, request.members))
        _check_term(host, request.shard, request.term)
        path = self._path(request.shard)
        begun = self._parts.get(request.shard)
        if begun is None or (begun.snapshot_id, begun.files) != (request.snapshot_id, request.files):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
            (path / MANIFEST_FILE).write_bytes(_encode(request))
        self._parts[request.shard] = request
        return tuple(_have(path / file.name, file.size_bytes) for file in request.files)

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
        path = self._path(chunk.shard) / file.name
        with path.open("r+b" if path.exists() else "wb") as target:
            target.seek(0, os.SEEK_END)
            if target.tell() != chunk.position or chunk.position + len(data) > file.size_bytes:
                raise InvalidRequestError(
                    f"{file.name}: {target.tell()} of {file.size_bytes} bytes are here, the chunk has {len(data)} "
                    f"from {chunk.position} on"
                )
            target.write(data)

    async def install(self, host: ShardHost | None, request: SnapshotEnd) -> None:
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
            await asyncio.to_thread(_check_files, path, begun)
            host.check_alive()
            _check_term(host, request.shard, request.term)
            del self._parts[request.shard]
            install_snapshot(host, begun.at, path, begun.members)
        except CorruptBatchError:
            self._parts.pop(request.shard, None)
            shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            self._installing.discard(request.shard)


def install_snapshot(host: ShardHost, at: EntryId, copy: Path, members: Members | None = None) -> None:
    """Put a whole snapshot in the place of the replica's log and store, if the replica takes it.

    Raises CorruptBatchError or InvalidRequestError when it does not say what is known of the producers.
    """
    producers_file = copy / PRODUCERS_FILE
    if not producers_file.exists():
        raise InvalidRequestError(f"the snapshot of shard {host.shard_id} says nothing of its producers")
    producers = ProducerState.decode(producers_file.read_bytes())
    producers_file.unlink()
    (copy / MANIFEST_FILE).unlink(missing_ok=True)

    def event() -> Any:
        host.snapshot_producers = producers
        actions = host.snapshot_installed(at, members)
        table = host.table
        if table is not None and any(type(action) is ResetLog for action in actions):
            table.state.close()
            install_state(str(copy), table.path)
            table.state = open_state(table.path)
        return actions

    host.call(event)
    shutil.rmtree(copy, ignore_errors=True)


def _check_names(request: SnapshotBegin) -> None:
    names = [file.name for file in request.files]
    if len(names) > FILES_MAX or len(set(names)) != len(names):
        raise InvalidRequestError(f"a snapshot of {len(names)} files, {len(set(names))} names")
    for file in request.files:
        if Path(file.name).name != file.name or file.name in {"", ".", "..", MANIFEST_FILE}:
            raise InvalidRequestError(f"a snapshot's file is a plain name, not {file.name!r}")
        if file.size_bytes < 0:
            raise InvalidRequestError(f"{file.name} cannot have {file.size_bytes} bytes")


def _check_term(host: ShardHost, shard: int, term: int) -> None:
    if host.term != term:
        raise InvalidRequestError(f"the snapshot is of term {term}, shard {shard} is in {host.term}")


def _have(path: Path, size_bytes: int) -> int:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return 0
    if found > size_bytes:
        path.unlink()
        return 0
    return found


def _check_files(path: Path, begun: SnapshotBegin) -> None:
    """Sizes and checksums of the whole; then everything is synced, so that the log may be given up for it."""
    for file in begun.files:
        crc, size = 0, 0
        with (path / file.name).open("ab+") as source:  # an empty file never came as a chunk
            source.seek(0)
            while data := source.read(READ_BYTES):
                crc, size = crc32c(data, crc), size + len(data)
            os.fsync(source.fileno())
        if (size, crc) != (file.size_bytes, file.crc):
            raise CorruptBatchError(
                f"{file.name} of the snapshot has {size} bytes with CRC {crc:08x}, "
                f"sent were {file.size_bytes} with {file.crc:08x}"
            )
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
