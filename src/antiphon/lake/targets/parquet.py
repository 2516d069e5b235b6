"""A folder of Parquet files with a commit log of its own, so that appends are exactly once on any file system.

    part-*.parquet               what is committed: any reader of the folder sees just that; in a table with partitions in
                                 folders COLUMN=VALUE, and the files lack those columns, as Hive's do
    _antiphon/staged/part-*      what tasks have written and nobody has committed, or what is about to be moved
    _antiphon/removed/part-*     what compaction has replaced, until it expires
    _antiphon/log/N.json         commit N: files added and removed, marks, columns; made exclusively, so N is won by one
    _antiphon/log/N.state.json   all of it up to N, every so often

The commit is the log file. Then the files are renamed from `staged` to where readers find them; whoever opens the table next
completes that after a crash. A reader that lists the folder in between may see an epoch in part, never a row twice and never
one that is not committed. (While compaction moves files, it may see a row in the old file, the new one or, for a moment, in
both; `files()` never does.)

A table with partitions or a sort order has commits of format 2, which say so: earlier versions would write to it as to one
without.

Spark's own streaming file sink was not enough: its log is read by Spark only, it knows neither marks nor compaction, and a
lost checkpoint means all rows again.
"""

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets.compaction import rewrite
from antiphon.lake.targets.folder import Folder, file_options
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.layout import Layout, Order, Term
from antiphon.lake.targets.spread import Spread, folder_of, values_of_folder
from antiphon.lake.targets.staged import DataFile
from antiphon.lake.targets.target import COMMIT_TRIES, Compacted, Expired, Marks, Target, is_due
from antiphon.lake.targets.widening import widened

LOG: Final = "_antiphon/log"
STAGED: Final = "_antiphon/staged"
REMOVED: Final = "_antiphon/removed"
STATE_EVERY: Final = 20  # commits
FORMAT: Final = 1
FORMAT_WITH_LAYOUT: Final = 2
NAME_BYTES_MAX: Final = 255  # of a folder, on the file systems that there are


@dataclass(frozen=True)
class State:
    """The table after `version` commits. `files`: name -> size; `removed`: name -> when (ms since 1970).

    `layout`: `partition_by`, columns, and `sort_by`, a list of column, does it fall, do nulls come first; None: neither.
    """

    version: int = 0
    schema: str | None = None
    files: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    layout: dict[str, Any] | None = None

    def after(self, commit: dict[str, Any]) -> "State":
        """With one more commit."""
        gone: list[str] = commit["remove"]
        files = {name: size for name, size in self.files.items() if name not in set(gone)}
        forgotten = set(commit["forget"])
        removed = {name: at for name, at in self.removed.items() if name not in forgotten}
        return State(
            commit["version"],
            commit["schema"] or self.schema,
            files | commit["add"],
            removed | dict.fromkeys(gone, commit["time_ms"]),
            self.marks | commit["marks"],
            commit.get("layout") or self.layout,
        )

    @property
    def format(self) -> int:
        """Of its commits."""
        return FORMAT if self.layout is None else FORMAT_WITH_LAYOUT


def open_parquet(options: Mapping[str, Any]) -> "ParquetTarget":
    """The files of a folder."""
    return ParquetTarget(Folder.at(str(options["path"]), file_options(options)))


class ParquetTarget(Target):
    """Append-only Parquet files. Rows are never changed in place: `merge` refuses."""

    kind = "parquet"

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._state = State()
        self._settled = -1  # version whose files are known to be where they belong

    @property
    def data(self) -> Folder:
        """Out of readers' sight."""
        return self.folder.child(STAGED)

    def schema(self) -> pa.Schema | None:
        """Columns, as of the last commit that changed them."""
        self._now()
        return self._schema()

    def _schema(self) -> pa.Schema | None:
        text = self._state.schema
        return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

    def layout(self) -> Layout:
        """As the commit says that made the table."""
        found = self._state.layout or {"partition_by": [], "sort_by": []}
        return Layout(
            tuple(Term(name) for name in found["partition_by"]),
            tuple(Order(*one) for one in found["sort_by"]),
        )

    def spread(self) -> Spread:
        """Partitions are folders; their columns are in no file."""
        found = self.layout()
        return Spread(found.partition_by or (), found.sort_by or (), in_files=False)

    def create(self, schema: pa.Schema) -> None:
        """Make the table; refused where the folder has Parquet files that are not this table's."""
        if self._now().schema is not None:
            return
        if any(info.name.endswith(".parquet") for info in self.folder.files()):
            raise InvalidRequestError(
                f"{self.folder.url} has Parquet files that no job of Antiphon wrote: choose another folder"
            )
        terms, orders = self.asked.partition_by or (), self.asked.sort_by or ()
        made: dict[str, Any] = {"schema": _packed(schema)}
        if terms or orders:
            sort_by = [[one.column, one.descending, one.nulls_first] for one in orders]
            made["layout"] = {"partition_by": [term.column for term in terms], "sort_by": sort_by}
        self._commit({}, lambda state: {} if state.schema is not None else made)

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns; readers of older files see nulls."""

        def change(_: State) -> dict[str, Any]:
            known = self.schema() or pa.schema([])
            fresh = [one for one in fields if one.name not in known.names]
            return {"schema": _packed(pa.schema([*known, *fresh]))} if fresh else {}

        self._commit({}, change)

    def widen_columns(self, fields: Sequence[pa.Field]) -> None:
        """Only the log says so; files stay as they are until compaction writes them anew."""

        def change(_: State) -> dict[str, Any]:
            known = self.schema() or pa.schema([])
            wider = widened(known, fields)
            return {} if wider.equals(known) else {"schema": _packed(wider)}

        self._commit({}, change)

    def mark(self, name: str) -> int | None:
        """As the log has it."""
        return self._now().marks.get(name)

    def append(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """One commit, then the files are moved to where readers look."""
        return self._commit(marks, lambda _: {"add": self._named(files)})

    def replace(self, files: Sequence[DataFile], marks: Marks) -> bool:
        """One commit with all other files removed."""
        return self._commit(marks, lambda state: {"add": self._named(files), "remove": sorted(state.files)})

    def _named(self, files: Sequence[DataFile]) -> dict[str, int]:
        """Files by where readers will find them, with their sizes."""
        self.check_partitions(files)
        schema = self._schema() or pa.schema([])
        named = {}
        for file in files:
            folder = folder_of(file.partition, schema)
            for part in folder.split("/"):
                if len(part.encode()) > NAME_BYTES_MAX:
                    raise InvalidRequestError(
                        f"{self.folder.url}: a partition's folder cannot be called {part[:40]}...: that has more than "
                        f"{NAME_BYTES_MAX} bytes. Choose another column for partition_by, and another folder"
                    )
            named[f"{folder}/{file.name}" if folder else file.name] = file.size_bytes
        return named

    def merge(self, changes: pa.Table, marks: Marks) -> bool:  # noqa: ARG002 - refused whatever it is
        """Refused: a row that changes would mean rewriting every file that might have its key."""
        KINDS[self.kind].refuse_changes()
        return False

    def files(self) -> list[str]:
        """URLs of the committed files."""
        return [self.folder.url_of(name) for name in sorted(self._now().files)]

    def parts(self) -> list[tuple[str, dict[str, str | None]]]:
        """URLs of the committed files, and what their folders say."""
        state = self._now()
        apart = bool(self.spread().terms)
        return [
            (self.folder.url_of(name), values_of_folder(name.rpartition("/")[0]) if apart else {})
            for name in sorted(state.files)
        ]

    def compact(self, target_bytes: int) -> Compacted:
        """Join files below three quarters of the target, partition by partition; appends never touch them."""
        state = self._now()
        schema = self.schema()
        groups: dict[str, list[str]] = {}
        for name, size in sorted(state.files.items()):
            if size < target_bytes * 3 // 4:
                groups.setdefault(name.rpartition("/")[0], []).append(name)
        chosen = {folder: names for folder, names in groups.items() if len(names) > 1}
        if not chosen or schema is None:
            return Compacted(0, 0)
        spread = self.spread()
        add: dict[str, int] = {}
        for folder, names in chosen.items():
            made = rewrite(
                [(self.folder, name) for name in names],
                self.data,
                spread.stored(schema),
                target_bytes,
                spread,
            )
            add |= {f"{folder}/{file.name}" if folder else file.name: file.size_bytes for file in made}
        small = [name for names in chosen.values() for name in names]

        def change(now: State) -> dict[str, Any]:
            if not set(small) <= set(now.files):
                raise TargetConflictError(
                    f"{self.folder.url}: another compaction came first; nothing is lost, and nothing is left to do"
                )
            return {"add": add, "remove": small}

        try:
            self._commit({}, change)
        except TargetConflictError:
            for name in add:
                self.data.delete(_bare(name))
            raise
        return Compacted(len(small), len(add))

    def expire(self, older_than_ms: int) -> Expired:
        """Remove replaced files and files that nobody committed, both from before; and log files before the last state."""
        state = self._now()
        due = [name for name, at in state.removed.items() if at < older_than_ms]
        for name in due:
            self.folder.delete(f"{REMOVED}/{name}")
        committed = {_bare(name) for name in state.files}
        left = [
            info.name
            for info in self.folder.files(STAGED)
            if info.modified_ms < older_than_ms and _bare(info.name) not in committed
        ]
        for name in left:
            self.folder.delete(name)
        if due:
            self._commit({}, lambda now: {"forget": sorted(set(due) & set(now.removed))})
        self._save_state()
        for info in self.folder.files(LOG):
            if _number(info.name) < self._state.version:
                self.folder.delete(info.name)
        return Expired(len(due) + len(left))

    # -- the log --------------------------------------------------------------------------------------------------

    def _commit(self, marks: Marks, change: Callable[[State], dict[str, Any]]) -> bool:
        for _ in range(COMMIT_TRIES):
            state = self._now()
            if not is_due(marks, state.marks, self.folder.url):
                return False
            changed = change(state)
            if not changed and not marks:
                return False
            format_of = FORMAT_WITH_LAYOUT if "layout" in changed else state.format
            commit = {
                "format": format_of, "version": state.version + 1, "time_ms": time.time_ns() // 1_000_000, "schema": None,
                "add": {}, "remove": [], "forget": [], "marks": {name: step.new for name, step in marks.items()},
            } | changed  # fmt: skip
            if self.folder.create(_log_name(state.version + 1), json.dumps(commit).encode()):
                self._state = state.after(commit)
                self._settle()
                if self._state.version % STATE_EVERY == 0:
                    self._save_state()
                return True
        raise TargetConflictError(
            f"{self.folder.url}: other writers came first {COMMIT_TRIES} times; try again when fewer jobs write to it"
        )

    def _now(self) -> State:
        """The state as of the last commit, with all files where they belong."""
        while (data := self.folder.read(_log_name(self._state.version + 1))) is not None:
            self._state = self._state.after(_checked(data, self.folder.url))
        newest = max((_number(info.name) for info in self.folder.files(LOG)), default=0)
        if newest > self._state.version:  # what lies between has expired: go on from the last whole state
            self._load_state()
            return self._now()
        self._settle()
        return self._state

    def _load_state(self) -> None:
        names = [info.name for info in self.folder.files(LOG) if info.name.endswith(".state.json")]
        data = self.folder.read(max(names, key=_number)) if names else None
        if data is None:
            raise InvalidRequestError(f"{self.folder.url}/{LOG} has a gap: files of it were removed by hand")
        found = _checked(data, self.folder.url)
        if found["version"] <= self._state.version:
            raise InvalidRequestError(
                f"{self.folder.url}/{LOG} has a gap after commit {self._state.version}: files of it were removed by hand"
            )
        self._state = State(
            found["version"],
            found["schema"],
            found["files"],
            found["removed"],
            found["marks"],
            found.get("layout"),
        )

    def _save_state(self) -> None:
        state = self._state
        body = {"format": state.format, **{name: getattr(state, name) for name in State.__dataclass_fields__}}
        if state.layout is None:
            del body["layout"]
        self.folder.create(f"{LOG}/{state.version:020d}.state.json", json.dumps(body).encode())

    def _settle(self) -> None:
        """Move committed files to where readers look, and replaced ones away."""
        state = self._state
        if self._settled == state.version:
            return
        places = {_bare(name): name for name in state.files}
        for info in self.folder.files(STAGED):
            if _bare(info.name) in places:
                self.folder.move(info.name, places[_bare(info.name)])
        for where in sorted({name.rpartition("/")[0] for name in state.removed}):
            for info in self.folder.files(where):
                if info.name in state.removed:
                    self.folder.move(info.name, f"{REMOVED}/{info.name}")
        self._settled = state.version


def _log_name(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


def _number(name: str) -> int:
    digits = name.rpartition("/")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _packed(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _checked(data: bytes, where: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(data)
        known = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"{where}/{LOG}: a commit file is damaged ({error})") from error
    if known not in {FORMAT, FORMAT_WITH_LAYOUT}:
        raise InvalidRequestError(
            f"{where}/{LOG} has format {known}, this version reads {FORMAT} and {FORMAT_WITH_LAYOUT}: "
            "use a newer version of Antiphon"
        )
    return found
