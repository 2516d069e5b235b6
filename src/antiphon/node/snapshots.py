"""Bringing a follower up whose log cannot be joined: the leader sends a snapshot of committed state (S0.37).

For a table that is a checkpoint of its store, sent file by file in chunks, one chunk at a time: the answer to a chunk
is the flow control. For a plain topic the state below the log's start is gone by retention, so the snapshot only says
where to go on. In both cases it brings what the leader remembers of the producers from before, so that a retry of what
is not in the follower's log is recognised there too. The follower installs it when it is whole; a half one is thrown
away when the next one begins.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from crc32c import crc32c

from antiphon.errors import AntiphonError, CorruptBatchError, InvalidRequestError, UnknownShardError
from antiphon.log.producer_state import ProducerState
from antiphon.node.peer_wire import SnapshotChunk
from antiphon.node.shard_host import ShardHost
from antiphon.records.entry_id import EntryId
from antiphon.replication.actions import ResetLog
from antiphon.replication.messages import SnapshotOffer
from antiphon.table.state import install_state, open_state
from antiphon.wire.requests import Done

if TYPE_CHECKING:
    from antiphon.node.node import Node

CHUNK_BYTES = 1024 * 1024
CHUNK_TIMEOUT_S = 30.0
PRODUCERS_FILE = "producers.antiphon"  # beside the store's files


class Snapshots:
    """Snapshots that this node sends and receives."""

    def __init__(self, node: "Node", directory: Path) -> None:
        self._node = node
        self._directory = directory
        self._sending: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._receiving: dict[int, SnapshotChunk] = {}
        self._log = structlog.get_logger()
        shutil.rmtree(directory, ignore_errors=True)

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, host: ShardHost, to: int) -> None:
        """Begin to send a snapshot to a follower; tells the replica how it ended."""
        key = (host.shard_id, to)
        if key not in self._sending:
            self._sending[key] = self._node.spawn(self._send(host, to))

    async def _send(self, host: ShardHost, to: int) -> None:
        try:
            at = await self._stream(host, to)
        except (AntiphonError, OSError) as error:
            self._log.warning("snapshot_failed", shard=host.shard_id, to=to, error=str(error))
            await asyncio.sleep(self._node.config.timings.reconnect_max / 1000)
            del self._sending[host.shard_id, to]
            host.call(host.replica.snapshot_failed, to)
        else:
            self._log.info("snapshot_sent", shard=host.shard_id, to=to, at=at)
            del self._sending[host.shard_id, to]
            host.call(host.replica.snapshot_sent, to, at)

    async def _stream(self, host: ShardHost, to: int) -> EntryId:
        term = host.term
        copy = self._directory / f"send-{host.shard_id}-{to}"
        shutil.rmtree(copy, ignore_errors=True)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            if host.table is None:
                at = host.replica.terms.start
                copy.mkdir()
            else:
                offset = await asyncio.to_thread(host.table.state.checkpoint, str(copy))
                at = EntryId(host.replica.terms.term_before(offset), offset)
            (copy / PRODUCERS_FILE).write_bytes(host.log.producers.encode(before=at.offset))
            first = True
            for name, position, data in _chunks(copy):
                chunk = SnapshotChunk(host.shard_id, term, at, name, position, crc32c(data), first=first)
                await self._chunk(to, chunk, data)
                first = False
            await self._chunk(to, SnapshotChunk(host.shard_id, term, at, "", 0, 0, last=True), b"")
        finally:
            await asyncio.to_thread(shutil.rmtree, copy, True)
        return at

    async def _chunk(self, to: int, chunk: SnapshotChunk, data: bytes) -> None:
        await self._node.link(to).ask(chunk, CHUNK_TIMEOUT_S, [data] if data else None)

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, sender: int, chunk: SnapshotChunk, data: bytes, done: Callable[[Any], None]) -> None:
        """Take a chunk; the last one installs the snapshot. `done` gets Done or an error."""
        try:
            self._receive(sender, chunk, data)
        except AntiphonError as error:
            self._receiving.pop(chunk.shard, None)
            done(error)
        except OSError as error:
            self._receiving.pop(chunk.shard, None)
            done(InvalidRequestError(f"the snapshot cannot be stored: {error}"))
        else:
            done(Done())

    def _receive(self, sender: int, chunk: SnapshotChunk, data: bytes) -> None:
        host = self._node.hosts.get(chunk.shard)
        if host is None:
            raise UnknownShardError(f"node {self._node.node_id} has no replica of shard {chunk.shard}")
        host.check_alive()
        target = self._directory / f"receive-{chunk.shard}"
        if chunk.first:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            host.receive(sender, SnapshotOffer(chunk.shard, chunk.term, sender, chunk.at))
        else:
            begun = self._receiving.get(chunk.shard)
            if begun is None or (begun.term, begun.at) != (chunk.term, chunk.at):
                raise InvalidRequestError(f"no snapshot of shard {chunk.shard} at {chunk.at} was begun here")
        if host.term != chunk.term:
            raise InvalidRequestError(
                f"the snapshot is of term {chunk.term}, shard {chunk.shard} is in {host.term}"
            )
        self._receiving[chunk.shard] = chunk
        if chunk.file:
            _write_chunk(target, chunk, data)
        if chunk.last:
            del self._receiving[chunk.shard]
            install_snapshot(host, chunk.at, target)


def install_snapshot(host: ShardHost, at: EntryId, copy: Path) -> None:
    """Put a whole snapshot in the place of the replica's log and store, if the replica takes it.

    Raises CorruptBatchError or InvalidRequestError when it does not say what is known of the producers.
    """
    producers_file = copy / PRODUCERS_FILE
    if not producers_file.exists():
        raise InvalidRequestError(f"the snapshot of shard {host.shard_id} says nothing of its producers")
    producers = ProducerState.decode(producers_file.read_bytes())
    producers_file.unlink()

    def event() -> Any:
        host.snapshot_producers = producers
        actions = host.replica.snapshot_installed(at)
        table = host.table
        if table is not None and any(type(action) is ResetLog for action in actions):
            table.state.close()
            install_state(str(copy), table.path)
            table.state = open_state(table.path)
        return actions

    host.call(event)
    shutil.rmtree(copy, ignore_errors=True)


def _chunks(copy: Path) -> Iterator[tuple[str, int, bytes]]:
    for path in sorted(copy.iterdir()):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            position = 0
            while True:
                data = file.read(CHUNK_BYTES)
                if data or position == 0:
                    yield path.name, position, data
                if len(data) < CHUNK_BYTES:
                    break
                position += len(data)


def _write_chunk(target: Path, chunk: SnapshotChunk, data: bytes) -> None:
    if Path(chunk.file).name != chunk.file or chunk.file in {".", ".."}:
        raise InvalidRequestError(f"a snapshot's file is a plain name, not {chunk.file!r}")
    if crc32c(data) != chunk.crc:
        raise CorruptBatchError(f"a chunk of {chunk.file} was damaged on its way")
    path = target / chunk.file
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(0, 2)
        if file.tell() != chunk.position:
            raise InvalidRequestError(
                f"{chunk.file}: {file.tell()} bytes are here, the chunk begins at {chunk.position}"
            )
        file.write(data)
