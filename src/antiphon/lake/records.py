"""What a mirror's tasks do: records in, one Parquet file of decoded rows and one of bad records out, and word to the driver.

Rows of a topic have `_key`, the value's columns, `_partition`, `_offset`, `_timestamp` and maybe `_headers`. Rows of a table
have `_key`, the value's columns, `_version`, `_modified`, and while they are on their way `_deleted`: a row a key, its last
change. A change whose value cannot be decoded takes its row away: the lake has no value for that key that is true.
"""

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.changes import last_rows
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.spread import Spread
from antiphon.lake.targets.staged import DataFile, FilesWriter, PartWriter, fitted, lake_schema, reports
from antiphon.lake.targets.target import DELETED, KEY, VERSION
from antiphon.lake.values.decoding import REST, ValueSpec, decode
from antiphon.lake.values.projection import Projection, Projector, projected_columns
from antiphon.lake.values.spec import decoder
from antiphon.spark.worker import spare_imports

PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
HEADERS: Final = "_headers"
MODIFIED: Final = "_modified"
KEY_FORMATS: Final = ("raw", "text")
RESERVED: Final = (KEY, PARTITION, OFFSET, TIMESTAMP, HEADERS, MODIFIED, VERSION, DELETED, REST)

_TIME: Final = pa.timestamp("us", "UTC")
_PAIRS: Final = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
BAD_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("headers", _PAIRS), ("timestamp", _TIME),
        (PARTITION, pa.int32()), (OFFSET, pa.int64()),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class RowShape:
    """What rows look like beside the value's columns."""

    is_table: bool
    key_format: str = "raw"
    headers: bool = False

    def schema(self, values: pa.Schema) -> pa.Schema:
        """The lake table's columns; raises InvalidRequestError where a field of the value has a name that is taken."""
        for name in values.names:
            if name in RESERVED and name != REST:
                raise InvalidRequestError(
                    f"a field of the values is called {name}, which a mirror needs for itself"
                )
        key = pa.field(KEY, pa.string() if self.key_format == "text" else pa.binary())
        if self.is_table:
            own = [pa.field(VERSION, pa.int64()), pa.field(MODIFIED, _TIME)]
        else:
            own = [pa.field(PARTITION, pa.int32()), pa.field(OFFSET, pa.int64()), pa.field(TIMESTAMP, _TIME)]
            own += [pa.field(HEADERS, _PAIRS)] if self.headers else []
        return pa.schema([key, *values, *own])

    def columns(self, decoded: pa.Schema, projection: Projection | None) -> pa.Schema:
        """The lake table's columns, of values that are decoded to these.

        Raises InvalidRequestError as `schema`, and where the projection is no SQL, or says more than it may.
        """
        rows = self.schema(decoded)
        if projection is None:
            return rows
        return self.schema(projected_columns(projection, lake_schema(rows), tuple(self.own(rows))))

    @staticmethod
    def own(schema: pa.Schema) -> list[str]:
        """The columns of rows that are not the value's."""
        return [name for name in schema.names if name in RESERVED and name != REST]

    @staticmethod
    def values(schema: pa.Schema) -> pa.Schema:
        """The value's columns of a lake table."""
        return pa.schema([one for one in schema if one.name not in RESERVED or one.name == REST])

    @property
    def source_columns(self) -> str:
        """What is read from the cluster."""
        if self.is_table:
            return "key,value,version,modified,partition,offset"
        return "key,value,partition,offset,timestamp" + (",headers" if self.headers else "")


class BadRecord(NamedTuple):
    """One that cannot be decoded."""

    shard: int
    offset: int
    reason: str


@dataclass(frozen=True)
class TaskReport:
    """What a task wrote and found."""

    files: tuple[DataFile, ...] = ()
    bad_file: DataFile | None = None
    bad: int = 0
    first_bad: BadRecord | None = None
    found: dict[str, pa.DataType] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """As what JSON can hold."""
        found = pa.schema(list(self.found.items())).serialize().to_pybytes()
        return {
            "files": [file.to_json() for file in self.files],
            "bad_file": self.bad_file and self.bad_file.to_json(),
            "bad": self.bad,
            "first_bad": self.first_bad,
            "found": base64.b64encode(found).decode() if self.found else None,
            "mixed": sorted(self.mixed),
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> "TaskReport":
        """The reverse of `to_json`."""
        packed = told["found"]
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(packed))) if packed else pa.schema([])
        return cls(
            tuple(DataFile.from_json(one) for one in told["files"]),
            DataFile.from_json(told["bad_file"]) if told["bad_file"] else None,
            told["bad"],
            BadRecord(*told["first_bad"]) if told["first_bad"] else None,
            {one.name: one.type for one in schema},
            frozenset(told["mixed"]),
        )


class Landing(NamedTuple):
    """Where a task's rows and bad records go: folders, the columns of the rows, and how these become files.

    `decoded`: the columns that values are decoded to, where a projection makes others of them.
    """

    rows: Folder
    bad: Folder
    schema: pa.Schema
    spread: Spread
    decoded: pa.Schema | None = None


class MirrorTask:
    """Decodes and writes one task's records. Sent to the tasks; the schema where rows land are the lake table's columns.

    Records before `positions` (by shard) are in the lake already and passed over. With `stop_at_bad` nothing is kept once a
    record is bad. `merge`: what is written are changes of a table, with `_deleted`, in one file; otherwise rows as they are
    to be.
    """

    def __init__(
        self,
        shape: RowShape,
        spec: ValueSpec,
        landing: Landing,
        source: str,
        positions: dict[int, int],
        *,
        stop_at_bad: bool,
        merge: bool = False,
    ) -> None:
        self.shape = shape
        self.spec = spec
        self.schema_bytes = landing.schema.serialize().to_pybytes()
        decoded = landing.schema if landing.decoded is None else landing.decoded
        self.decoded_bytes = decoded.serialize().to_pybytes()
        self.source = source
        self.folders = landing.rows, landing.bad
        self.spread = Spread() if merge else landing.spread
        self.positions = positions
        self.stop_at_bad = stop_at_bad
        self.merge = merge

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For `mapInArrow`."""
        report = self.run(batches)
        if report != TaskReport():
            yield reports([report.to_json()])

    def run(self, batches: Iterator[pa.RecordBatch]) -> TaskReport:
        """Read everything, write the files, tell of them."""
        lake = pa.ipc.read_schema(pa.py_buffer(self.schema_bytes))
        if self.merge:
            lake = lake.append(pa.field(DELETED, pa.bool_()))
        decoded = pa.ipc.read_schema(pa.py_buffer(self.decoded_bytes))
        rows = _Rows(self, lake, decoded)
        first: BadRecord | None = None
        count = 0
        with (
            FilesWriter(self.folders[0], lake, self.spread) as parts,
            PartWriter(self.folders[1], BAD_SCHEMA) as dead,
            rows,
        ):
            for batch in self._gathered(batches):
                good, bad = rows.decoded(batch)
                if bad:
                    count += len(bad)
                    found = [_place(batch, index, why) for index, why in bad]
                    first = min(found if first is None else [first, *found])
                    if self.stop_at_bad:
                        parts.discard()
                        break
                    dead.write(self._dead(batch, bad))
                parts.write(good)
        spare_imports()
        decoder = rows.decoder
        return TaskReport(
            tuple(parts.files), dead.file, count, first, dict(decoder.found), frozenset(decoder.mixed)
        )

    def _gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Batches without what is in the lake already; of a table, the last change of each key within the batch."""
        for batch in batches:
            fresh = _from_positions(pa.Table.from_batches([batch]), self.positions)
            if fresh.num_rows:
                yield last_rows(fresh) if self.merge else fresh

    def _dead(self, batch: pa.Table, bad: Sequence[tuple[int, str]]) -> pa.Table:
        rows = batch.take(pa.array([index for index, _ in bad]))
        own = rows.column("headers").to_pylist() if "headers" in rows.column_names else [None] * len(bad)
        times = rows.column("modified" if self.shape.is_table else "timestamp").to_pylist()
        shards, offsets = rows.column("partition").to_pylist(), rows.column("offset").to_pylist()
        headers = [
            [
                {"key": "antiphon.reason", "value": why.encode()},
                {"key": "antiphon.source", "value": self.source.encode()},
                {"key": "antiphon.shard", "value": str(shard).encode()},
                {"key": "antiphon.offset", "value": None if offset is None else str(offset).encode()},
                {"key": "antiphon.timestamp", "value": at.isoformat().encode() if at is not None else None},
                *(pairs or []),
            ]
            for (_, why), shard, offset, at, pairs in zip(bad, shards, offsets, times, own, strict=True)
        ]
        now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(_TIME)
        columns = [
            rows.column("key"), rows.column("value"), pa.array(headers, _PAIRS), pa.array([now.as_py()] * len(bad), _TIME),
            rows.column("partition"), rows.column("offset"),
        ]  # fmt: skip
        return pa.Table.from_arrays(columns, schema=BAD_SCHEMA)


class _Rows:
    """Turns batches into rows of the lake table."""

    def __init__(self, task: MirrorTask, lake: pa.Schema, decoded: pa.Schema) -> None:
        self._shape = task.shape
        self._lake = lake
        self._merge = task.merge
        self._bad_max = 1 if task.stop_at_bad else None
        self.decoder = decoder(task.spec, RowShape.values(decoded))
        self._decoded = lake_schema(task.shape.schema(RowShape.values(decoded)))
        self._projection = task.spec.projection
        self._projector: Projector | None = None  # for the first rows

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._projector is not None:
            self._projector.__exit__()
            self._projector = None

    def decoded(self, batch: pa.Table) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Rows, and which records are bad."""
        count = batch.num_rows
        key, bad = self._keys(batch.column("key").combine_chunks())
        value = _flat(batch.column("value"))
        fine = np.ones(count, dtype=bool)
        fine[[index for index, _ in bad]] = False
        alive = np.flatnonzero(np.asarray(value.is_valid()) & fine)
        found = decode(self.decoder, value.take(pa.array(alive)), self._bad_max)
        bad += [(int(alive[index]), why) for index, why in found.bad]
        place = np.full(count, -1, dtype=np.int64)
        place[alive[found.good]] = np.arange(len(found.good))
        fine[[index for index, _ in bad]] = False
        # A bad change of a table still says that what was there before is gone; a key that is no text names no row.
        chosen = np.flatnonzero(fine | np.asarray(key.is_valid()) if self._merge else fine)
        rows = pa.array(place[chosen], mask=place[chosen] < 0)
        columns = {name: found.columns.column(name).take(rows) for name in found.columns.column_names}
        kept = batch.take(pa.array(chosen))
        columns |= {KEY: key.take(pa.array(chosen))} | self._own(kept, place[chosen] < 0)
        rows, more = self._projected(pa.table(columns))
        bad += [(int(chosen[index]), why) for index, why in more]
        return fitted(rows, self._lake), sorted(bad)

    def _projected(self, rows: pa.Table) -> tuple[pa.Table, list[tuple[int, str]]]:
        """Rows with the columns that the projection makes of them, and which could not be evaluated.

        A change of a table is evaluated if it is a put. One that the condition does not let through, or that cannot be
        evaluated, says that what was there before is gone, as a bad record does.
        """
        if self._projection is None:
            return rows, []
        if self._projector is None:
            self._projector = Projector(self._projection, self._decoded, RowShape.own(self._decoded))
        alive = np.arange(rows.num_rows)
        if self._merge:
            alive = np.flatnonzero(~rows.column(DELETED).to_numpy())
        found = self._projector.run(fitted(rows.take(pa.array(alive)), self._decoded), self._bad_max)
        place = np.full(rows.num_rows, -1, dtype=np.int64)
        place[alive[found.kept]] = np.arange(len(found.kept))
        chosen = np.arange(rows.num_rows) if self._merge else np.flatnonzero(place >= 0)
        where = pa.array(place[chosen], mask=place[chosen] < 0)
        columns = {name: found.columns.column(name).take(where) for name in found.columns.column_names}
        own = rows.take(pa.array(chosen))
        columns |= {name: own.column(name) for name in self._shape.own(own.schema)}
        if self._merge:
            columns[DELETED] = pa.array(place[chosen] < 0, pa.bool_())
        return pa.table(columns), [(int(alive[index]), why) for index, why in found.bad]

    def _keys(self, key: Any) -> tuple[pa.Array, list[tuple[int, str]]]:
        key = _flat(key)
        if self._shape.key_format == "raw":
            return key, []
        try:
            return key.cast(pa.string()), []
        except pa.ArrowInvalid:
            texts, bad = [], []
            for index, one in enumerate(key.to_pylist()):
                try:
                    texts.append(None if one is None else one.decode())
                except UnicodeDecodeError:
                    texts.append(None)
                    bad.append((index, "the key is not UTF-8 text"))
            return pa.array(texts, pa.string()), bad

    def _own(self, kept: pa.Table, gone: Any) -> dict[str, Any]:
        if self._shape.is_table:
            own = {VERSION: kept.column("version"), MODIFIED: kept.column("modified")}
            return own | ({DELETED: pa.array(gone, pa.bool_())} if self._merge else {})
        own = {
            PARTITION: kept.column("partition"),
            OFFSET: kept.column("offset"),
            TIMESTAMP: kept.column("timestamp"),
        }
        return own | ({HEADERS: kept.column("headers")} if self._shape.headers else {})


def _flat(column: Any) -> Any:
    flat = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(flat, pa.ChunkedArray):
        flat = pa.concat_arrays(flat.chunks) if flat.num_chunks else pa.array([], flat.type)
    return flat if pa.types.is_binary(flat.type) else flat.cast(pa.binary())


def _from_positions(batch: pa.Table, positions: Mapping[int, int]) -> pa.Table:
    if not positions:
        return batch
    shards = batch.column("partition").to_numpy()
    known, which = np.unique(shards, return_inverse=True)
    starts = np.array([positions.get(int(shard), 0) for shard in known])
    fresh = batch.column("offset").to_numpy() >= starts[which]
    return batch if fresh.all() else batch.filter(pa.array(fresh))


def _place(batch: pa.Table, index: int, why: str) -> BadRecord:
    offset = batch.column("offset")[index].as_py()
    return BadRecord(batch.column("partition")[index].as_py(), -1 if offset is None else offset, why)
