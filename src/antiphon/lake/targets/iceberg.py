"""Iceberg tables by way of `pyiceberg` and any catalog that it knows.

Marks are properties of the table, set in the same commit as the data, so they outlive the expiry of snapshots. `pyiceberg`
would repeat a refused commit on top of whatever came between; that must not happen here, since what came between may be this
very commit: its own repetitions are switched off, and the marks are looked at before each try.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.expressions import In
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.update import AssertRefSnapshotId
from pyiceberg.utils.config import Config

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets.changes import newer_than
from antiphon.lake.targets.compaction import rewrite
from antiphon.lake.targets.folder import LOCAL, Folder, file_options, usable
from antiphon.lake.targets.iceberg_layout import data_files, lay_out, layout_of_table, spread_of, values_of
from antiphon.lake.targets.layout import Layout
from antiphon.lake.targets.s3_options import ICEBERG, s3_options
from antiphon.lake.targets.spread import Spread, Value
from antiphon.lake.targets.staged import DataFile, FilesWriter, fitted, lake_schema
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
from antiphon.lake.targets.widening import widened

PREFIX: Final = "antiphon."
OWN_CATALOG: Final = "antiphon"
PAUSE_S: Final = 0.01
NOT_MADE_FOR_SURE: Final = (CommitFailedException, CommitStateUnknownException)


def open_iceberg(options: Mapping[str, Any]) -> "IcebergTarget":
    """A table of a catalog; without one, of a SQLite catalog in the warehouse at `path`."""
    path, table, storage = str(options.get("path", "")), str(options.get("table", "")), file_options(options)
    namespace, _, name = table.rpartition(".")
    if not namespace or not name:
        raise InvalidRequestError(f"a target of kind iceberg needs table = NAMESPACE.NAME, not {table!r}")
    given = options.get("catalog") or {}
    properties = (
        {"name": given} if isinstance(given, str) else {str(key): str(value) for key, value in given.items()}
    )
    called = properties.pop("name", None)
    place = path or properties.get("warehouse", "")
    warehouse = _warehouse(place, storage) if path or "://" in place else None
    if warehouse is not None:
        properties = {**s3_options(warehouse, ICEBERG), "warehouse": warehouse.url, **properties}
    if called is not None:
        properties = _configured(called) | properties
        _check_place(called, properties)
    elif not any(key in properties for key in _WHERE):
        local = warehouse.local_path if warehouse is not None else None
        if local is None:
            raise InvalidRequestError(
                "a target of kind iceberg needs a catalog, such as catalog = {type = 'rest', uri = '...'}, the name of one "
                "in pyiceberg's configuration, or a path of this machine for the warehouse"
            )
        local.mkdir(parents=True, exist_ok=True)
        properties |= {"type": "sql", "uri": f"sqlite:///{local}/catalog.db"}
    return IcebergTarget(load_catalog(called or OWN_CATALOG, **properties), table, storage)


_WHERE: Final = ("type", "uri", "py-catalog-impl")


def _configured(name: str) -> dict[str, str]:
    """What pyiceberg's configuration (`.pyiceberg.yaml`, the environment) says of a catalog now."""
    found = Config().get_catalog_config(name) or {}
    return {key: str(value) for key, value in found.items()}


def _check_place(name: str, properties: Mapping[str, str]) -> None:
    if not any(key in properties for key in _WHERE):
        known = ", ".join(Config().get_known_catalogs()) or "none"
        raise InvalidRequestError(
            f"pyiceberg's configuration has no catalog {name!r}; it has {known}: describe it in .pyiceberg.yaml, or in "
            f"PYICEBERG_CATALOG__{name.upper()}__URI and the like"
        )


def _warehouse(place: str, storage: dict[str, Any]) -> Folder:
    folder = Folder.at(place, storage)
    if folder.local_path is None and (cut := {"?", "#"} & set(place)):
        raise InvalidRequestError(
            f"{place} cannot be a warehouse of Iceberg: pyiceberg reads a URL up to {min(cut)!r} only"
        )
    return folder


class IcebergTarget(Target):
    """A table of an Iceberg catalog."""

    kind = "iceberg"
    identity_of_times = True

    def __init__(self, catalog: Catalog, table: str, storage: dict[str, Any]) -> None:
        self._catalog = catalog
        self._name = table
        self._storage = storage
        self._layout = Layout()
        self._columns: list[str] = []
        found = self._open()
        # Until there is a table, nothing is kept beside it; the catalog decides where it will be.
        self.folder = (
            Folder(catalog.properties.get("warehouse", table), storage) if found is None else self._at(found)
        )

    def close(self) -> None:
        """Let the catalog go."""
        self._catalog.close()

    @property
    def data(self) -> Folder:
        """Beside the files that pyiceberg writes."""
        return self.folder.child("data")

    def schema(self) -> pa.Schema | None:
        """Columns."""
        table = self._open()
        if table is None:
            return None
        self.folder = self._at(table)  # somebody else may have made it since
        return self._looked_at(table)

    def _looked_at(self, table: Table) -> pa.Schema:
        schema = _schema(table)
        self._layout, self._columns = layout_of_table(table), schema.names
        return schema

    def layout(self) -> Layout:
        """Its present spec, sort order and properties."""
        return self._layout

    def spread(self) -> Spread:
        """Files have all columns; raises InvalidRequestError for partitions that are not known here."""
        return spread_of(self._layout, self._columns, self._name)

    def create(self, schema: pa.Schema) -> None:
        """Make the table, and its namespace."""
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        try:
            with usable(self.folder.url):
                table = self._made(schema)
        except TableAlreadyExistsError:
            table = self._required()
        except ValidationError as error:
            raise InvalidRequestError(f"{self._name} cannot be made: {error}") from error
        self.folder = self._at(table)

    def _made(self, schema: pa.Schema) -> Table:
        properties = dict(self.asked.properties or {})
        if not self.asked.partition_by and not self.asked.sort_by:
            return self._catalog.create_table(self._name, schema=schema, properties=properties)
        transaction = self._catalog.create_table_transaction(self._name, schema=schema, properties=properties)
        lay_out(transaction, self.asked)
        try:
            return transaction.commit_transaction()
        except NOT_MADE_FOR_SURE:
            found = self._open()
            if found is None:
                raise
            return found  # somebody else came first, or the answer was lost

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns, in a commit of its own."""
        self._evolve(
            lambda known: pa.schema([*known, *(one for one in fields if one.name not in known.names)])
        )

    def widen_columns(self, fields: Sequence[pa.Field]) -> None:
        """Promote columns, in a commit of its own."""
        self._evolve(lambda known: widened(known, fields))

    def _evolve(self, change: Callable[[pa.Schema], pa.Schema]) -> None:
        for _ in range(COMMIT_TRIES):
            table = self._required()
            known = _schema(table)
            wanted = change(known)
            if wanted.equals(known):
                return
            try:
                with table.update_schema() as update:
                    update.union_by_name(wanted)
            except NOT_MADE_FOR_SURE:
                continue
            return
        raise self._crowded()

    def mark(self, name: str) -> int | None:
        """The property of that name."""
        table = self._open()
        return None if table is None else _mark(table, name)

    def append(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """One commit that adds the files as they are and sets the properties."""
        return self._commit(marks, lambda transaction, table: self._add(transaction, table, files, marks))

    def replace(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """One commit that removes what is there and adds the files."""

        def change(transaction: Transaction, table: Table) -> None:
            old = [task.file for task in table.scan().plan_files()]
            if old or files:
                self._swap(transaction, table, old, files)

        return self._commit(marks, change)

    def merge(self, changes: pa.Table, marks: Marks) -> bool:
        """One commit that deletes the rows that newer changes touch and appends their new state."""

        def change(transaction: Transaction, table: Table) -> None:
            if not changes.num_rows:
                return
            self._looked_at(table)
            touched = In(KEY, changes.column(KEY).to_pylist())
            known = table.scan(row_filter=touched, selected_fields=(KEY, VERSION)).to_arrow()
            fresh = newer_than(changes, known)
            gone = _keys_in_both(fresh, known)
            puts = fresh.filter(pc.invert(fresh.column(DELETED)))
            if self.spread() != Spread():
                self._merge_apart(transaction, table, gone, puts)
                return
            if gone:
                transaction.delete(In(KEY, gone))
            if puts.num_rows:
                transaction.append(fitted(puts, _schema(table)), snapshot_properties=_summary(marks))

        return self._commit(marks, change)

    def _merge_apart(
        self, transaction: Transaction, table: Table, gone: Sequence[bytes], puts: pa.Table
    ) -> None:
        """The merge of a table with partitions or an order: files that hold such keys are written anew without them, and
        rows go to the partition that they belong to now. One snapshot.
        """
        schema = _schema(table)
        tasks = list(table.scan(row_filter=In(KEY, gone)).plan_files()) if gone else []
        self._refuse_delete_files(tasks)
        keys = pa.array(gone, schema.field(KEY).type)
        old = []
        with FilesWriter(self.data, schema, self.spread()) as parts:
            for task in tasks:
                folder, name = self._place(task.file.file_path)
                with folder.open_read(name) as stream:
                    rows = fitted(pq.read_table(stream, partitioning=None), schema)
                hit = pc.fill_null(pc.is_in(rows.column(KEY), keys), False)
                if pc.any(hit).as_py():
                    old.append(task.file)
                    parts.write(rows.filter(pc.invert(hit)))
            parts.write(fitted(puts, schema))
        if old or parts.files:
            self._swap(transaction, table, old, parts.files)

    def _refuse_delete_files(self, tasks: Sequence[Any]) -> None:
        if any(task.delete_files for task in tasks):
            raise InvalidRequestError(
                f"{self._name} has delete files that another engine wrote, which cannot be read as plain Parquet"
            )

    def files(self) -> list[str]:
        """As the current snapshot names them."""
        table = self._required()
        tasks = list(table.scan().plan_files())
        self._refuse_delete_files(tasks)
        return [task.file.file_path for task in tasks]

    def compact(self, target_bytes: int) -> Compacted:
        """Read small files together and write them as larger ones, in one commit that replaces them."""
        counts = [0, 0]

        def change(transaction: Transaction, table: Table) -> None:
            counts[:] = [0, 0]
            schema = self._looked_at(table)
            spread = self.spread()
            old: list[Any] = []
            made: list[DataFile] = []
            for partition, files in _small_files(table, spread, target_bytes):
                old += files
                made += [
                    replace(one, partition=partition)
                    for one in rewrite(
                        [self._place(file.file_path) for file in files],
                        self.data,
                        schema,
                        target_bytes,
                        spread,
                    )
                ]
            if old:
                self._swap(transaction, table, old, made)
                counts[:] = [len(old), len(made)]

        self._commit({}, change)
        return Compacted(*counts)

    def _place(self, url: str) -> tuple[Folder, str]:
        where, _, name = url.rpartition("/")
        return Folder(where, self._storage), name

    def expire(self, older_than_ms: int) -> Expired:
        """Forget snapshots from before, then remove data files that no snapshot names and that are older than that."""
        table = self._required()
        table.maintenance.expire_snapshots().older_than(
            datetime.fromtimestamp(older_than_ms / 1000, tz=UTC)
        ).commit()
        table = self._required()
        named = {entry["file_path"].rpartition("/")[2] for entry in table.inspect.all_files().to_pylist()}
        removed = 0
        for info in self.data.files():
            bare = info.name.rpartition("/")[2]
            if bare.endswith(".parquet") and bare not in named and info.modified_ms < older_than_ms:
                self.data.delete(info.name)
                removed += 1
        return Expired(removed)

    def _commit(self, marks: Marks, change: Callable[[Transaction, Table], None]) -> bool:
        unknown = False  # the answer to a try was lost; where it was carried out, its marks say so
        for _ in range(COMMIT_TRIES):
            table = self._required()
            stored = {name: _mark(table, name) for name in marks}
            if not is_due(marks, stored, self._name):
                return unknown
            _forbid_retries(table)
            base = table.metadata.current_snapshot_id
            transaction = Transaction(table)
            try:
                if table.name_mapping() is None:  # files that tasks write have names and no field ids
                    names = table.schema().name_mapping.model_dump_json()
                    transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: names})
                # Marks alone, too, must not go on top of a snapshot that was not looked at.
                transaction._stage((), (AssertRefSnapshotId(ref="main", snapshot_id=base),))  # noqa: SLF001
                change(transaction, table)
                if marks:
                    transaction.set_properties({PREFIX + name: str(step.new) for name, step in marks.items()})
                transaction.commit_transaction()
            except NOT_MADE_FOR_SURE as error:
                if isinstance(error, CommitStateUnknownException):
                    if not marks:  # nothing in the table would tell
                        raise
                    unknown = True
                time.sleep(PAUSE_S)
                continue
            return True
        raise self._crowded()

    def _add(self, transaction: Transaction, table: Table, files: Sequence[DataFile], marks: Marks) -> None:
        if not files:
            return
        self._looked_at(table)
        self.check_partitions(files)
        if self.spread().terms:
            with transaction.update_snapshot(snapshot_properties=_summary(marks)).fast_append() as update:
                for one in data_files(table, self.data, files):
                    update.append_data_file(one)
            return
        transaction.add_files(
            [self.data.url_of(file.name) for file in files],
            snapshot_properties=_summary(marks),
            check_duplicate_files=False,
        )

    def _swap(
        self, transaction: Transaction, table: Table, old: Sequence[Any], files: Sequence[DataFile]
    ) -> None:
        self._looked_at(table)
        self.check_partitions(files)
        with transaction.update_snapshot().overwrite() as update:
            for file in old:
                update.delete_data_file(file)
            for file in self._made_of(table, files):
                update.append_data_file(file)

    def _made_of(self, table: Table, files: Sequence[DataFile]) -> Iterable[Any]:
        if self.spread().terms:
            return data_files(table, self.data, files)
        urls = [self.data.url_of(file.name) for file in files]
        found: Iterable[Any] = parquet_files_to_data_files(
            io=table.io, table_metadata=table.metadata, file_paths=iter(urls)
        )
        return found

    def _open(self) -> Table | None:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            return None

    def _required(self) -> Table:
        table = self._open()
        if table is None:
            raise InvalidRequestError(f"there is no Iceberg table {self._name} in the catalog")
        return table

    def _at(self, table: Table) -> Folder:
        location = table.location().rstrip("/")
        if location.startswith("file:") and not location.startswith(LOCAL):
            location = LOCAL + location.removeprefix("file:")
        return Folder(location, self._storage)

    def _crowded(self) -> TargetConflictError:
        return TargetConflictError(
            f"{self._name}: other writers came first {COMMIT_TRIES} times; try again when fewer jobs write to it"
        )


def _schema(table: Table) -> pa.Schema:
    found = table.schema().as_arrow()
    return lake_schema(pa.schema([pa.field(field.name, field.type) for field in found]))


def _mark(table: Table, name: str) -> int | None:
    found = table.properties.get(PREFIX + name)
    return None if found is None else int(found)


def _summary(marks: Marks) -> dict[str, str]:
    return {"antiphon.marks": json.dumps({name: step.new for name, step in marks.items()})}


def _forbid_retries(table: Table) -> None:
    """For this object only: the table's properties stay as they are."""
    properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})


def _keys_in_both(fresh: pa.Table, known: pa.Table) -> list[bytes]:
    keys: list[bytes] = known.column(KEY).filter(
        pc.is_in(known.column(KEY), fresh.column(KEY).combine_chunks())
    ).to_pylist()  # fmt: skip
    return keys


def _small_files(table: Table, spread: Spread, target_bytes: int) -> list[tuple[dict[str, Value], list[Any]]]:
    """Groups of two small files and more of one partition; files from before the partitions changed stay as they are."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    spec = table.spec()
    for task in table.scan().plan_files():
        file = task.file
        if file.file_size_in_bytes >= target_bytes * 3 // 4 or task.delete_files:
            continue
        if not spread.terms:
            groups.setdefault((), []).append(file)
        elif file.spec_id == spec.spec_id:
            groups.setdefault(values_of(spec, file), []).append(file)
    names = [str(term) for term in spread.terms]
    return [(dict(zip(names, key, strict=True)), files) for key, files in groups.items() if len(files) > 1]
