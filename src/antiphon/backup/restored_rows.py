"""The rows of a table's shard as of the cut: its store is made anew in a directory of its own, and read."""

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from antiphon.backup.manifest import Backup, ShardBackup
from antiphon.backup.place import Place
from antiphon.backup.shard_files import TABLES, ShardFiles
from antiphon.backup.workspace import Workspace, real_workspace
from antiphon.coordination.transactions import Row, State
from antiphon.errors import UNDECODABLE
from antiphon.log.disk import make_directory
from antiphon.model.internal import TRANSACTIONS_TABLE
from antiphon.partition.table_files import store_path
from antiphon.partition.table_shard import TableShard
from antiphon.records.attributes import Attributes, unpack
from antiphon.records.changes import stored_row
from antiphon.table.prepared import End
from antiphon.table.state import TableState

PAGE_ROWS: Final = 1_000
PAGE_BYTES: Final = 4 * 1024 * 1024


class SavedRow(NamedTuple):
    """A row as of the cut. `attributes` of None: it has none."""

    key: bytes
    value: bytes
    is_of_session: bool
    attributes: Attributes | None


@contextlib.contextmanager
def opened_state(
    source: Place, saved: ShardBackup, workspace: Workspace | None = None
) -> Generator[TableState, None, None]:
    """The store of a table's shard, with the log applied up to the cut. Blocks. Raises BackupError, StorageFailedError."""
    disk, engine, directory = workspace or real_workspace()
    with directory() as folder:
        tables = os.path.join(folder, TABLES)
        make_directory(disk, tables)
        files = ShardFiles(source, disk)
        files.make_store(Path(folder), saved)
        log = files.open_log(os.path.join(folder, "log"), saved)
        table = TableShard(store_path(tables, saved.shard_id), log, engine)
        try:
            table.catch_up(saved.end)
            yield table.state
        finally:
            table.let_go(None)


def commit_prepared(state: TableState, producers: Iterable[int]) -> None:
    """Make rows of what these producers have prepared, as the markers would that were on their way. Blocks."""
    for producer_id in producers:
        if producer_id in state.transactions.by_producer:
            state.apply_transaction(
                End(producer_id, commit=True), state.applied_offset, state.next_version_id
            )


def rows_of(state: TableState) -> Iterator[list[SavedRow]]:
    """All rows of a shard, in pages."""
    start: bytes | None = b""
    while start is not None:
        rows, start = state.stored_rows(
            start,
            None,
            (state.owned.first, state.owned.last),
            examined_max=PAGE_ROWS,
            size_bytes_max=PAGE_BYTES,
        )
        if rows:
            yield [_saved(*row) for row in rows]


def _saved(key: bytes, version: bytes, value: bytes) -> SavedRow:
    _, session_id, packed, _ = stored_row(version)
    return SavedRow(key, value, session_id is not None, None if packed is None else unpack(packed))


def committed_producers(
    source: Place, backup: Backup, workspace: Workspace | None = None
) -> set[tuple[int, int]]:
    """(producer id, shard) of the transactions that were decided to be committed, and had no marker there at the cut."""
    found: set[tuple[int, int]] = set()
    for topic in backup.topics:
        for saved in topic.shards if topic.name == TRANSACTIONS_TABLE else ():
            with opened_state(source, saved, workspace) as state:
                for page in rows_of(state):
                    found |= {
                        (row.producer_id, shard_id)
                        for row in map(_row, page)
                        if row is not None and row.state is State.PREPARE_COMMIT
                        for shard_id in row.shards
                    }
    return found


def _row(stored: SavedRow) -> Row | None:
    """What a row of `__transactions` says; None for one that cannot be read, which the cluster passes over too."""
    try:
        return msgspec.msgpack.decode(stored.value, type=Row)
    except UNDECODABLE:
        return None
