"""Lake tables as targets: what a job may do with one, whatever its kind.

Tasks write Parquet files which nobody finds; the driver then commits them in one step of the table's own log, together with
*marks*: named numbers that say how far a writer has come. A mark says from what to what it moves. A commit whose marks are
there already is a repeat and does nothing; one whose marks start from elsewhere is refused: someone else wrote meanwhile. So
a writer that is killed anywhere just does its last step again.

Which kinds there are is in `kinds`; where each keeps its marks is told in its module.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.kinds import KINDS, NAMED, options_of
from antiphon.lake.targets.layout import LAYOUT_OPTIONS, Layout, differences, layout_of
from antiphon.lake.targets.spread import Spread, check_columns, same_terms
from antiphon.lake.targets.staged import DataFile, lake_schema, read_frame, stage_frame
from antiphon.lake.targets.widening import only_adds, widest

if TYPE_CHECKING:
    import pyarrow as pa

COMMIT_TRIES: Final = 20

KEY: Final = "_key"
VERSION: Final = "_version"
DELETED: Final = "_deleted"


class MarkStep(NamedTuple):
    """A mark moves from `expected` (None: it is not there) to `new`."""

    expected: int | None
    new: int


Marks = Mapping[str, MarkStep]


class Compacted(NamedTuple):
    """What compaction did: small files that were replaced, and by how many."""

    removed: int
    added: int


class Expired(NamedTuple):
    """What expiry removed: data files that no reader of the table as it is now needs."""

    files: int


class Target(ABC):
    """A lake table that may not be there yet. Not thread-safe; several writers of one table are."""

    kind: str
    folder: Folder
    """Where the table is."""
    called: str | None = None
    """Name of the table, for kinds whose folder is known only once the table was made."""
    asked: Layout = Layout()
    """What the options say of partitions, order and properties."""
    identity_of_times: bool = False
    """Can a timestamp be the value of a partition?"""

    @property
    def name(self) -> str:
        """Kind and place of the table, the same before and after it is made."""
        return f"{self.kind} {self.called or self.folder.url}"

    @property
    @abstractmethod
    def data(self) -> Folder:
        """Where tasks write files."""

    @property
    def meta(self) -> Folder:
        """Where jobs keep what they need beside the table; readers of the table pass it over."""
        return self.folder.child("_antiphon")

    @abstractmethod
    def schema(self) -> "pa.Schema | None":
        """Columns of the table; None while there is no table."""

    def layout(self) -> Layout:
        """Partitions, order and properties of the table, as `schema` found it last."""
        return Layout()

    def spread(self) -> Spread:
        """How rows become files, for the table as `schema` found it last."""
        return Spread()

    @abstractmethod
    def create(self, schema: "pa.Schema") -> None:
        """Make the table as it was `asked` for, unless it is there."""

    @abstractmethod
    def add_columns(self, fields: "Sequence[pa.Field]") -> None:
        """Add nullable columns; those that are there already are passed over."""

    def widen_columns(self, fields: "Sequence[pa.Field]") -> None:
        """Give columns that are there these wider types, or structs with more fields; what they have is passed over.

        Raises InvalidRequestError where this kind of table cannot.
        """
        names = ", ".join(field.name for field in fields)
        raise InvalidRequestError(
            f"{self.folder.url}: column {names} cannot be widened in a table of kind {self.kind}"
        )

    @abstractmethod
    def mark(self, name: str) -> int | None:
        """How far a writer has come."""

    @abstractmethod
    def append(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """Commit files that tasks wrote to `data`, with marks. False: it had been done. Raises TargetConflictError."""

    @abstractmethod
    def replace(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """As `append`, in place of all that is in the table."""

    @abstractmethod
    def merge(self, changes: "pa.Table", marks: Marks) -> bool:
        """Apply changes: a row a key, with columns KEY, VERSION, DELETED and the table's own.

        A put takes the place of a row with a lower version; a deletion removes a row whose version is not higher. So
        changes that come again, or late, do no harm.
        """

    @abstractmethod
    def files(self) -> list[str]:
        """URLs of the files that the table consists of now."""

    def parts(self) -> list[tuple[str, dict[str, str | None]]]:
        """`files`, each with the columns that it lacks because they are those of its partition, and their values as text."""
        return [(url, {}) for url in self.files()]

    @abstractmethod
    def compact(self, target_bytes: int) -> Compacted:
        """Replace small files by ones of about `target_bytes`; harmless beside writers."""

    @abstractmethod
    def expire(self, older_than_ms: int) -> Expired:
        """Remove what only readers of versions from before a time (ms since 1970) need, and files that nobody committed."""

    def close(self) -> None:  # noqa: B027 - most kinds hold nothing
        """Let go of what is held open; catalogs are."""

    # -- for whole DataFrames -----------------------------------------------------------------------------------

    def write_epoch(self, frame: Any, query_id: str, epoch: int, *, overwrite: bool = False) -> bool:
        """Write a DataFrame as a whole, once for each (query_id, epoch); epochs of a query only rise.

        The table is made, and gets columns that it lacks. False: it had been written before. With `overwrite` the rows
        take the place of all others.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        name = f"epoch/{query_id}"
        stored = self.mark(name)
        if stored is not None and stored >= epoch:
            return False
        schema = self.prepare(lake_schema(to_arrow_schema(frame.schema, timezone="UTC")))
        files = stage_frame(frame, self.data, schema, self.spread())
        marks = {name: MarkStep(stored, epoch)}
        return self.replace(files, marks) if overwrite else self.append(files, marks)

    def prepare(self, schema: "pa.Schema") -> "pa.Schema":
        """Make the table, or give it the columns that it lacks; the schema that files have to have.

        A column that is narrower than what is to be written gets the wider type, where this kind of table can; what is
        narrower than its column is written as it is. Raises InvalidRequestError where a column is there with another type.
        """
        found = self.schema()
        if found is None:
            check_columns(self.asked, schema, identity_of_times=self.identity_of_times)
            self.create(schema)
            found = self.schema() or schema
        self._check_layout()
        there = Layout(partition_by=self.layout().partition_by)  # maybe another writer's, of other types
        check_columns(there, found, identity_of_times=self.identity_of_times)
        missing, wider = [], []
        for field in schema:
            at = found.get_field_index(field.name)
            if at < 0:
                missing.append(field)
                continue
            kind = self._common_type(found.field(at), field)
            if not kind.equals(found.field(at).type):
                wider.append(field.with_type(kind))
        if wider:
            self.widen_columns(wider)
        if missing:
            self.add_columns(missing)
        return (self.schema() or schema) if wider or missing else found

    def check(self, schema: "pa.Schema | None" = None) -> "pa.Schema | None":
        """The table's columns, as `schema`. Raises InvalidRequestError where another layout was asked for than it has.

        Where there is no table yet: where the layout does not go with these columns, if they are known.
        """
        found = self.schema()
        if found is not None:
            self._check_layout()
        elif schema is not None:
            check_columns(self.asked, schema, identity_of_times=self.identity_of_times)
        return found

    def _check_layout(self) -> None:
        if self.asked == Layout() or not (wrong := differences(self.asked, self.layout())):
            return
        raise InvalidRequestError(
            f"{self.name} is there already, and otherwise than asked for: {'; '.join(wrong)}. Nothing was written. Leave "
            "the option out, to go on with the table as it is, or write to a new table"
        )

    def check_partitions(self, files: Sequence[DataFile]) -> None:
        """Raises TargetConflictError where files were written for other partitions than the table has by now."""
        spread = self.spread()
        if not same_terms([file.partition for file in files], spread.terms):
            raise TargetConflictError(
                f"{self.name}: its partitions have changed since these files were written; nothing of them is in the table: "
                "start the job again"
            )

    def _common_type(self, there: "pa.Field", field: "pa.Field") -> "pa.DataType":
        """What a column has to have, so that a field can be written to it; raises InvalidRequestError."""
        kind = widest(there.type, field.type)
        row = KINDS[self.kind]
        if kind is not None and (row.widens or only_adds(there.type, kind)):
            return kind
        why = "" if kind is None else f" ({row.rigid})"
        raise InvalidRequestError(
            f"column {field.name} of {self.folder.url} has type {there.type}, what is to be written has {field.type}: "
            f"write to another table, or cast{why}"
        )

    def read(self, spark: Any) -> Any:
        """The table's rows as a DataFrame, as of now; needs no jar."""
        schema = self.schema()
        if schema is None:
            raise InvalidRequestError(f"there is no {self.kind} table at {self.folder.url}")
        parts = self.parts()
        values = [found for _, found in parts]
        return read_frame(spark, [url for url, _ in parts], schema, self.folder.options, values)


def is_due(marks: Marks, stored: Mapping[str, int | None], where: str) -> bool:
    """Is a commit with these marks still to be made? Raises TargetConflictError where it can no longer be."""
    if not marks:
        return True
    known = {name: stored.get(name) for name in marks}
    if all((now := known[name]) is not None and now >= step.new for name, step in marks.items()):
        return False
    for name, step in marks.items():
        if known[name] != step.expected:
            raise TargetConflictError(
                f"{where}: another writer has moved {name} to {known[name]}, this one comes from {step.expected}: run one "
                "job per source and table; if there is only one, start it again and it goes on from there",
                name=name,
                expected=step.expected,
                actual=known[name],
            )
    return True


def open_target(target: "str | Mapping[str, Any] | Target") -> Target:
    """A target from `KIND:PLACE` (such as `delta:/lake/flights`), or from a mapping.

    Keys of a mapping: `kind` (a name of `kinds.KINDS`), `path` (a folder or URL; of Iceberg the warehouse), `storage`
    (options of fsspec for the path, and of `deltalake` under the key `delta`), `table` (of Iceberg, `namespace.name`),
    `partition_by`, `sort_by`, `z_order_by`, `properties` (how the table is laid out; each kind takes some of them),
    `catalog` (of Iceberg: the name of a catalog in pyiceberg's configuration, or properties as for
    `pyiceberg.catalog.load_catalog`, with `name` beside those that the configuration has; default: SQLite in the warehouse).

    Raises InvalidRequestError naming what is wrong.
    """
    if isinstance(target, Target):
        return target
    kind, options = options_of(target)
    module, _, function = kind.opens.partition(":")
    opens: Callable[[Mapping[str, Any]], Target] = getattr(import_module(module), function)
    opened = opens({name: value for name, value in options.items() if name not in LAYOUT_OPTIONS})
    opened.asked = layout_of(options, kind.transforms, kind.name)
    if kind.has_tables:
        opened.called = f"{_place_of(options)}#{options.get('table', '')}"
    return opened


def _place_of(options: Mapping[str, Any]) -> str:
    """A warehouse's path or its catalog's name, as in `KIND:PLACE`."""
    catalog = options.get("catalog") or {}
    name = catalog if isinstance(catalog, str) else catalog.get("name")
    return str(options.get("path") or (NAMED + name if name else ""))


@contextmanager
def opened(target: "str | Mapping[str, Any] | Target") -> Iterator[Target]:
    """`open_target`, closed at the end unless it was open before."""
    lake = open_target(target)
    try:
        yield lake
    finally:
        if lake is not target:
            lake.close()
