"""Makes a replica's files from a backup: its log, by the code that nodes write logs with, and the store of a table."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from antiphon import system
from antiphon.backup.manifest import ShardBackup
from antiphon.backup.place import Place
from antiphon.backup.verify import log_of
from antiphon.errors import BackupError
from antiphon.log.config import LogConfig
from antiphon.log.directory import NodeDirectory
from antiphon.log.disk import Disk, copy_tree, make_directory
from antiphon.log.group_commit import GroupCommitter
from antiphon.log.inventory import Held
from antiphon.log.operations import LogOp
from antiphon.log.producer_state import ProducerState
from antiphon.log.shard_log import ShardLog
from antiphon.node.received_snapshots import PRODUCERS_FILE
from antiphon.partition.table_files import store_path
from antiphon.records.batch import Buffer
from antiphon.records.builder import build_members
from antiphon.records.entry_id import EntryId
from antiphon.records.members import Members

GROUP_BYTES: Final = 8 * 1024 * 1024  # that are written and synced at once
TABLES: Final = "tables"
SHARDS: Final = "shards"


class ShardFiles:
    """See the module's text. All of it blocks."""

    def __init__(self, source: Place, disk: Disk) -> None:
        self._source = source
        self._disk = disk

    def make(
        self, node: NodeDirectory, folder: Path, saved: ShardBackup, term: int, members: Members
    ) -> EntryId:
        """A replica in a node's directory, which has promised `term`; returns the end of its log.

        Where the log has named members, which are of the old cluster, one more entry names `members`.
        """
        self.make_store(folder, saved)
        held = node.held(saved.shard_id)
        log = self.open_log(node.shard_path(saved.shard_id), saved, held)
        if log.members.base is not None or log.members.items():
            known = log.members.current  # where replicas vote, it also says what was deleted
            deleted_before = 0 if known is None else known.deleted_before
            members = msgspec.structs.replace(members, deleted_before=deleted_before)
            batch = build_members(members, term, log.log_end, system.wall_ms())
            self._run(log.stage_append([batch]))
        return self._close(log, term, held)

    def make_store(self, folder: Path, saved: ShardBackup) -> None:
        """The store of a table, where the backup has one: the files of the state but for the producers."""
        state = saved.state
        if state is None or all(file.name == PRODUCERS_FILE for file in state.files):
            return
        tables = str(folder / TABLES)
        target = store_path(tables, saved.shard_id)
        make_directory(self._disk, tables)
        make_directory(self._disk, target)
        for file in state.files:
            if file.name == PRODUCERS_FILE:
                continue
            handle, at = self._disk.open(os.path.join(target, file.name), create=True), 0
            for piece in self._source.pieces(file.path, file.size_bytes, file.checksum):
                handle.pwritev([piece], at)
                at += len(piece)

    def open_log(self, path: str, saved: ShardBackup, held: Held | None = None) -> ShardLog:
        """A new log in directory `path` with everything up to the cut, trimmed to where it started then."""
        log = ShardLog.open(self._disk, path, LogConfig(), held=held)
        state = saved.state
        if state is not None:
            self._run(log.reset(EntryId(state.term, state.offset), self._producers(saved)))
        waiting: list[Buffer] = []
        size, at = 0, log.log_end
        for header, batch in log_of(self._source, saved):
            if header.base_offset != at:
                raise BackupError(f"shard {saved.shard_id} has a gap before {header.base_offset}")
            waiting.append(batch)
            size, at = size + len(batch), header.next_offset
            if size >= GROUP_BYTES:
                self._run(log.stage_append(waiting))
                waiting, size = [], 0
        if waiting:
            self._run(log.stage_append(waiting))
        if log.log_end != saved.end:
            raise BackupError(f"the log of shard {saved.shard_id} ends at {log.log_end}, not at {saved.end}")
        if saved.start > log.log_start:
            trimmed = log.trim(saved.start)
            if trimmed is not None:
                self._run(trimmed)
        return log

    def write_log(self, node: NodeDirectory, shard_id: int, batches: Iterable[Buffer], term: int) -> EntryId:
        """A new log with these batches, in a node's directory, which has promised `term`."""
        held = node.held(shard_id)
        log = ShardLog.open(self._disk, node.shard_path(shard_id), LogConfig(), held=held)
        for batch in batches:
            self._run(log.stage_append([batch]))
        return self._close(log, term, held)

    def copy(self, source: Path, target: Path, saved: ShardBackup) -> None:
        """The same replica in another node's directory."""
        for part in (SHARDS, TABLES):
            made = source / part / str(saved.shard_id)
            if self._disk.exists(str(made)):
                copy_tree(self._disk, str(made), str(target / part / str(saved.shard_id)))

    def _producers(self, saved: ShardBackup) -> ProducerState:
        state = saved.state
        file = next((one for one in state.files if one.name == PRODUCERS_FILE), None) if state else None
        if file is None:
            raise BackupError(f"the state of shard {saved.shard_id} has no {PRODUCERS_FILE}")
        data = b"".join(self._source.pieces(file.path, file.size_bytes, file.checksum))
        return ProducerState.decode(data)

    def _close(self, log: ShardLog, term: int, held: Held) -> EntryId:
        self._run(log.hard_state.stage(term, None))
        self._run(log.hard_state.stage_high_watermark(log.log_end))
        self._run(log.checkpoint())
        held.set(term, log.end, durable=False)  # written when the directory is closed
        return log.end

    def _run(self, op: LogOp) -> None:
        """Carry out an operation of a log, as the thread that writes would."""
        if not op.steps:
            return
        committer = GroupCommitter(self._disk)
        committer.add(op)
        done = committer.commit()
        if not done:
            raise BackupError("the disk is full: make room, empty the directory and restore again")
        for finished, error in done:
            if error is not None:
                raise error
            if finished.settle is not None:
                finished.settle(None)
