"""Delta tables by way of `deltalake`: no jar, and one atomic file of the Delta log per commit.

Marks are Delta's app transactions, which log clean-up and checkpoints keep. The log refuses a commit whose app transaction
another one moved since the table was opened, so what was checked on opening still holds when the commit is through.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, CommitProperties

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets.folder import LOCAL, Folder, file_options, usable
from antiphon.lake.targets.s3_options import DELTA, s3_options
from antiphon.lake.targets.staged import DataFile, lake_schema
from antiphon.lake.targets.target import (
    COMMIT_TRIES,
    DELETED,
    KEY,
    VERSION,
    Compacted,
    Expired,
    Marks,
    Target,
    is_due,
)
from antiphon.lake.targets.widening import only_adds, widened

HOUR_MS: Final = 3_600_000
# Parts of `deltalake` decode a URL once, others twice: its log and the files that tasks write would be in two places.
NOT_IN_URLS: Final = frozenset("%#?")


def open_delta(options: Mapping[str, Any]) -> "DeltaTarget":
    """The table in a folder; `storage` has options of `deltalake` under the key `delta`, which come before fsspec's."""
    own = dict((options.get("storage") or {}).get("delta", {}))
    folder = Folder.at(str(options["path"]), file_options(options))
    if folder.local_path is None and (odd := NOT_IN_URLS & set(folder.url)):
        raise InvalidRequestError(
            f"{folder.url} cannot be the place of a Delta table: its libraries disagree about {min(odd)!r} in a URL"
        )
    known = s3_options(folder, DELTA)
    given = {str(name).upper() for name in own}
    storage = {name: value for name, value in known.items() if name not in given}
    return DeltaTarget(folder, storage | {str(name): str(value) for name, value in own.items()})


class DeltaTarget(Target):
    """A Delta table. `storage_options` are those of `deltalake` (fsspec's own are the folder's)."""

    kind = "delta"

    def __init__(self, folder: Folder, storage_options: dict[str, str]) -> None:
        self.folder = folder
        self._storage = storage_options or None
        local = folder.local_path  # which is a path to `deltalake` and to fsspec alike
        self._uri = folder.url if local is None else str(local)

    @property
    def data(self) -> Folder:
        """The table's own folder; only what the log names belongs to the table."""
        return self.folder

    def schema(self) -> pa.Schema | None:
        """Columns."""
        table = self._open()
        return None if table is None else _schema(table)

    def create(self, schema: pa.Schema) -> None:
        """Make the table."""
        local = self.folder.local_path
        if local is not None:
            local.mkdir(parents=True, exist_ok=True)
        with usable(self.folder.url):
            DeltaTable.create(self._uri, schema=schema, mode="ignore", storage_options=self._storage)

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, in a commit of its own."""
        from deltalake import Schema

        problem: Exception | None = None
        for _ in range(COMMIT_TRIES):
            table = self._required()
            known = set(_schema(table).names)
            fresh = [field for field in fields if field.name not in known]
            if not fresh:
                return
            try:
                table.alter.add_columns(list(Schema.from_arrow(pa.schema(fresh)).fields))
            except CommitFailedError as error:
                problem = error
                continue
            return
        raise self._crowded(problem)

    def widen_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add fields to structs, in a commit of its own that appends no rows; wider types are refused."""
        problem: Exception | None = None
        for _ in range(COMMIT_TRIES):
            table = self._required()
            known = _schema(table)
            wider = widened(known, fields)
            changed = [one for one in wider if not known.field(one.name).type.equals(one.type)]
            if not changed:
                return
            if rigid := [one for one in changed if not only_adds(known.field(one.name).type, one.type)]:
                super().widen_columns(rigid)
            try:
                write_deltalake(table, pa.schema(changed).empty_table(), mode="append", schema_mode="merge")
            except CommitFailedError as error:
                problem = error
                continue
            return
        raise self._crowded(problem)

    def mark(self, name: str) -> int | None:
        """The app transaction's version."""
        table = self._open()
        return None if table is None else _mark(table, name)

    def append(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """One commit with the files and the marks."""
        return self._write(files, marks, "append")

    def replace(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """One commit that removes what is there and adds the files."""
        return self._write(files, marks, "overwrite")

    def _write(self, files: Sequence[DataFile], marks: Marks, mode: str) -> bool:
        actions = [_add(file) for file in files]
        problem: Exception | None = None
        for _ in range(COMMIT_TRIES):
            table = self._required()
            if not self._is_due(table, marks):
                return False
            try:
                table.create_write_transaction(
                    actions, mode=mode, schema=table.schema(), commit_properties=_properties(marks)
                )
            except CommitFailedError as error:
                problem = error
                continue  # somebody committed meanwhile: look again whether that was this very commit
            return True
        raise self._crowded(problem)

    def merge(self, changes: pa.Table, marks: Marks) -> bool:
        """One merge. Where it would change nothing, Delta writes no commit for it; then the marks get one."""
        problem: Exception | None = None
        for _ in range(COMMIT_TRIES):
            table = self._required()
            if not self._is_due(table, marks):
                return False
            if changes.num_rows:
                try:
                    self._merge(table, changes, marks)
                except CommitFailedError as error:
                    problem = error
                    continue
            if not marks or all(_mark(self._required(), name) == step.new for name, step in marks.items()):
                return True
            return self._write([], marks, "append")
        raise self._crowded(problem)

    @staticmethod
    def _merge(table: DeltaTable, changes: pa.Table, marks: Marks) -> None:
        columns = {f"`{name}`": f"s.`{name}`" for name in changes.column_names if name != DELETED}
        (
            table.merge(
                changes,
                f"t.`{KEY}` = s.`{KEY}`",
                source_alias="s",
                target_alias="t",
                commit_properties=_properties(marks),
            )
            .when_matched_delete(f"s.`{DELETED}` and s.`{VERSION}` >= t.`{VERSION}`")
            .when_matched_update(columns, f"not s.`{DELETED}` and s.`{VERSION}` > t.`{VERSION}`")
            .when_not_matched_insert(columns, f"not s.`{DELETED}`")
            .execute()
        )

    def files(self) -> list[str]:
        """As the log names them now."""
        return [_url(uri) for uri in self._required().file_uris()]

    def compact(self, target_bytes: int) -> Compacted:
        """`deltalake`'s own; a merge that touches the same files makes it start over."""
        problem: Exception | None = None
        for _ in range(COMMIT_TRIES):
            try:
                found = self._required().optimize.compact(target_size=target_bytes)
            except CommitFailedError as error:
                problem = error
                continue
            return Compacted(found["numFilesRemoved"], found["numFilesAdded"])
        raise self._crowded(problem)

    def expire(self, older_than_ms: int) -> Expired:
        """Vacuum of files that the log does not name (any more), then a checkpoint, and old log files."""
        table = self._required()
        age_hours = max(0, -(-(time.time_ns() // 1_000_000 - older_than_ms) // HOUR_MS))
        removed = table.vacuum(
            retention_hours=age_hours, dry_run=False, enforce_retention_duration=False, full=True
        )
        table = self._required()
        table.create_checkpoint()
        table.cleanup_metadata()
        return Expired(len(removed))

    def _open(self) -> DeltaTable | None:
        with usable(self.folder.url):
            if not DeltaTable.is_deltatable(self._uri, self._storage):
                return None
            return DeltaTable(self._uri, storage_options=self._storage)

    def _required(self) -> DeltaTable:
        table = self._open()
        if table is None:
            raise InvalidRequestError(f"there is no Delta table at {self.folder.url}")
        return table

    def _is_due(self, table: DeltaTable, marks: Marks) -> bool:
        return is_due(marks, {name: _mark(table, name) for name in marks}, self.folder.url)

    def _crowded(self, problem: Exception | None) -> TargetConflictError:
        return TargetConflictError(
            f"{self.folder.url}: other writers came first {COMMIT_TRIES} times; try again when fewer jobs write to it "
            f"({problem})"
        )


def _schema(table: DeltaTable) -> pa.Schema:
    return lake_schema(pa.schema(table.schema().to_arrow()))


def _mark(table: DeltaTable, name: str) -> int | None:
    found = table.transaction_version(name)
    return None if found is None else int(found)


def _properties(marks: Marks) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction(name, step.new) for name, step in marks.items()])


def _add(file: DataFile) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": file.lowest,
        "maxValues": file.highest,
        "nullCount": file.nulls,
    }
    return AddAction(
        file.name, file.size_bytes, {}, time.time_ns() // 1_000_000, data_change=True, stats=json.dumps(stats)
    )


def _url(uri: str) -> str:
    """As fsspec takes it: `deltalake` encodes, paths of this machine too."""
    return unquote(uri) if "://" in uri else LOCAL + unquote(uri)
