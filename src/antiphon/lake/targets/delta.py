"""Delta tables by way of `deltalake`: no jar, and one atomic file of the Delta log per commit.

Marks are Delta's app transactions, which log clean-up and checkpoints keep. The log refuses a commit whose app transaction
another one moved since the table was opened, so what was checked on opening still holds when the commit is through.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets.folder import LOCAL, Folder, file_options, usable
from antiphon.lake.targets.layout import Layout, Term
from antiphon.lake.targets.s3_options import DELTA, s3_options
from antiphon.lake.targets.spread import Spread, text_of
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

T = TypeVar("T")

HOUR_MS: Final = 3_600_000
# Parts of `deltalake` decode a URL once, others twice: its log and the files that tasks write would be in two places.
NOT_IN_URLS: Final = frozenset("%#?")
Z_ORDER: Final = "antiphon.zOrderBy"  # in the table's configuration: the columns as a JSON list
# Properties that would make readers find other rows than were written, and values that do no harm.
_HARMFUL: Final = {
    "delta.columnMapping.mode": ("none", "files that are written here have the names of columns"),
    "delta.enableDeletionVectors": ("false", "rows that were removed by a vector would come back in `read`"),
}


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
        self._layout = Layout()

    @property
    def data(self) -> Folder:
        """The table's own folder; only what the log names belongs to the table."""
        return self.folder

    def schema(self) -> pa.Schema | None:
        """Columns."""
        table = self._open()
        if table is None:
            return None
        self._layout = _layout(table)
        return _schema(table)

    def layout(self) -> Layout:
        """Partitions and configuration; the columns of compaction's z-order are in it."""
        return self._layout

    def spread(self) -> Spread:
        """The log has the values of partitions, and files lack those columns."""
        return Spread(self._layout.partition_by or (), in_files=False)

    def create(self, schema: pa.Schema) -> None:
        """Make the table."""
        configuration = self._configuration()
        local = self.folder.local_path
        if local is not None:
            local.mkdir(parents=True, exist_ok=True)
        with usable(self.folder.url):
            DeltaTable.create(
                self._uri,
                schema=schema,
                mode="ignore",
                partition_by=[term.column for term in self.asked.partition_by or ()] or None,
                configuration=configuration or None,
                storage_options=self._storage,
                raise_if_key_not_exists=not configuration,
            )

    def check(self, schema: pa.Schema | None = None) -> pa.Schema | None:
        """As for all; and can `deltalake` take the properties?"""
        self._configuration()
        apart = {term.column for term in self.asked.partition_by or ()}
        if both := [name for name in self.asked.z_order_by or () if name in apart]:
            raise InvalidRequestError(
                f"z_order_by: {both[0]} is in partition_by; rows of a file have one value of it"
            )
        return super().check(schema)

    def _configuration(self) -> dict[str, str | None]:
        """What is asked for, checked by `deltalake` itself, on another table. Raises InvalidRequestError."""
        asked: dict[str, str | None] = dict(self.asked.properties or {})
        for name, (harmless, why) in _HARMFUL.items():
            if (asked.get(name) or harmless).lower() != harmless:
                raise InvalidRequestError(f"property {name} cannot be {asked[name]}: {why}")
        own = {name: value for name, value in asked.items() if name.startswith("delta.")}
        if own:
            try:
                with TemporaryDirectory(prefix="antiphon-properties-") as folder:
                    DeltaTable.create(folder, schema=pa.schema([("a", pa.int32())]), configuration=own)
            except DeltaError as error:
                raise InvalidRequestError(f"deltalake does not take these properties: {error}") from error
        if self.asked.z_order_by:
            asked[Z_ORDER] = json.dumps(self.asked.z_order_by)
        return asked

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, in a commit of its own."""
        from deltalake import Schema

        def add(table: DeltaTable) -> None:
            known = set(_schema(table).names)
            if fresh := [field for field in fields if field.name not in known]:
                table.alter.add_columns(list(Schema.from_arrow(pa.schema(fresh)).fields))

        self._retried(add)

    def widen_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add fields to structs, in a commit of its own that appends no rows; wider types are refused."""
        refuse = super().widen_columns

        def widen(table: DeltaTable) -> None:
            known = _schema(table)
            wider = widened(known, fields)
            changed = [one for one in wider if not known.field(one.name).type.equals(one.type)]
            if rigid := [one for one in changed if not only_adds(known.field(one.name).type, one.type)]:
                refuse(rigid)
            if changed:
                write_deltalake(table, pa.schema(changed).empty_table(), mode="append", schema_mode="merge")

        self._retried(widen)

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
        def write(table: DeltaTable) -> bool:
            if not self._is_due(table, marks):  # somebody's commit meanwhile may have been this very one
                return False
            self._layout = _layout(table)
            self.check_partitions(files)
            schema = _schema(table)
            actions = [_add(file, schema) for file in files]
            table.create_write_transaction(
                actions, mode=mode, schema=table.schema(), commit_properties=_properties(marks)
            )
            return True

        return self._retried(write)

    def merge(self, changes: pa.Table, marks: Marks) -> bool:
        """One merge. Where it would change nothing, Delta writes no commit for it; then the marks get one."""

        def merge(table: DeltaTable) -> bool:
            if not self._is_due(table, marks):
                return False
            if changes.num_rows:
                self._merge(table, changes, marks)
            if not marks or all(_mark(self._required(), name) == step.new for name, step in marks.items()):
                return True
            return self._write([], marks, "append")

        return self._retried(merge)

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
        return [url for url, _ in self.parts()]

    def parts(self) -> list[tuple[str, dict[str, str | None]]]:
        """As the log names them now, with their partitions."""
        table = self._required()
        names = table.metadata().partition_columns
        if not names:
            return [(_url(uri), {}) for uri in table.file_uris()]
        schema = _schema(table)
        found = pa.table(table.get_add_actions())
        return [
            (
                self.folder.url_of(unquote(path)),
                {name: _text(values[name], schema.field(name).type) for name in names},
            )
            for path, values in zip(
                found.column("path").to_pylist(), found.column("partition").to_pylist(), strict=True
            )
        ]

    def compact(self, target_bytes: int) -> Compacted:
        """`deltalake`'s own; a merge that touches the same files makes it start over.

        With a z-order, partitions that have two small files and more are written anew as a whole, since the order is one of
        all their rows.
        """
        found = self._retried(lambda table: _compacted(table, target_bytes))
        return Compacted(found["numFilesRemoved"], found["numFilesAdded"])

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

    def _retried(self, change: Callable[[DeltaTable], T]) -> T:
        """What `change` gives for the table as it is now; once more from there when another writer's commit came first."""
        problem: Exception | None = None
        for _ in range(COMMIT_TRIES):
            try:
                return change(self._required())
            except CommitFailedError as error:
                problem = error
        raise TargetConflictError(
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


def _layout(table: DeltaTable) -> Layout:
    meta = table.metadata()
    configuration = {str(name): str(value) for name, value in meta.configuration.items()}
    z_order = json.loads(configuration.pop(Z_ORDER, "[]"))
    return Layout(tuple(Term(name) for name in meta.partition_columns), (), tuple(z_order), configuration)


def _compacted(table: DeltaTable, target_bytes: int) -> dict[str, int]:
    columns = _layout(table).z_order_by
    if not columns:
        found: dict[str, int] = table.optimize.compact(target_size=target_bytes)
        return found
    done = {"numFilesRemoved": 0, "numFilesAdded": 0}
    for filters in _with_small_files(table, target_bytes):
        one = table.optimize.z_order(columns, partition_filters=filters or None, target_size=target_bytes)
        for name in done:
            done[name] += one[name]
    return done


def _with_small_files(table: DeltaTable, target_bytes: int) -> list[list[tuple[str, str, str]]]:
    """Partitions with two small files and more, as `deltalake` wants them named; without partitions all of it or none."""
    names = table.metadata().partition_columns
    schema = _schema(table)
    found = pa.table(table.get_add_actions())
    values = found.column("partition").to_pylist() if names else [{}] * found.num_rows
    small: Counter[tuple[str, ...]] = Counter()
    for size, one in zip(found.column("size_bytes").to_pylist(), values, strict=True):
        if size < target_bytes * 3 // 4:
            small[tuple(_text(one[name], schema.field(name).type) or "" for name in names)] += 1
    return [
        [(name, "=", text) for name, text in zip(names, key, strict=True)]
        for key, count in small.items()
        if count > 1
    ]


def _text(value: Any, kind: pa.DataType) -> str | None:
    """A partition's value as `deltalake` gives it (dates as such), as text."""
    return str(value) if isinstance(value, date) else text_of(value, kind)


def _add(file: DataFile, schema: pa.Schema) -> AddAction:
    stats = {
        "numRecords": file.rows,
        "minValues": file.lowest,
        "maxValues": file.highest,
        "nullCount": file.nulls,
    }
    values = {name: text_of(value, schema.field(name).type) for name, value in file.partition.items()}
    return AddAction(
        file.name,
        file.size_bytes,
        values,
        time.time_ns() // 1_000_000,
        data_change=True,
        stats=json.dumps(stats),
    )


def _url(uri: str) -> str:
    """As fsspec takes it: `deltalake` encodes, paths of this machine too."""
    return unquote(uri) if "://" in uri else LOCAL + unquote(uri)
