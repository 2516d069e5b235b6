"""Tables that are laid out: a schema, rows that are hard to lay out, and the formats' own libraries as readers."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.staged import DataFile, FilesWriter
from antiphon.lake.targets.target import Target

SCHEMA = pa.schema(
    [
        ("_key", pa.binary()), ("_version", pa.int64()), ("name", pa.string()), ("day", pa.date32()), ("ok", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")), ("n", pa.int32()),
    ]
)  # fmt: skip
CHANGES = SCHEMA.append(pa.field("_deleted", pa.bool_()))
PARTITIONED = ["name", "day", "ok"]
TRANSFORMS = ["day(at)", "bucket(4, _key)", "truncate(2, name)", "truncate(10, n)"]
Opener = Callable[..., Target]


def options(kind: str, folder: Path, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind, "path": str(folder / "the lake")}
    return found | ({"table": "db.t"} if KINDS[kind].has_tables else {}) | more


def row(key: bytes, version: int, name: str | None, day: date | None = None, **more: Any) -> dict[str, Any]:
    at = datetime(2024, 3, 1, 23, 59, tzinfo=UTC) + timedelta(days=version)
    plain = {"_key": key, "_version": version, "name": name, "day": day, "ok": None, "at": at, "n": version}
    return plain | more


OLD = date(1969, 12, 31)
ROWS = [
    row(b"a", 1, "x y/ä%=#?", date(2024, 1, 2), ok=True),
    row(b"b", 1, "x y/ä%=#?", date(2024, 1, 2), ok=True, n=-1),
    row(b"c", 2, None, None, at=None, n=None),
    row(b"d", 3, "plain", OLD, ok=False, at=datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), n=-15),
    row(b"e", 4, "plain", OLD, ok=True, at=datetime(1970, 1, 1, tzinfo=UTC), n=15),
]


def stage(target: Target, rows: list[dict[str, Any]]) -> list[DataFile]:
    schema = target.schema()
    assert schema is not None
    with FilesWriter(target.data, schema, target.spread()) as parts:
        parts.write(pa.Table.from_pylist(rows, schema=schema))
    return parts.files


def iceberg_table(target: Target) -> Table:
    path = target.folder.local_path
    assert path is not None
    root = path.parents[1]  # ROOT/db/t
    catalog = load_catalog(
        "antiphon", type="sql", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}"
    )
    found = catalog.load_table("db.t")
    catalog.close()
    return found


def read_by_others(target: Target) -> list[dict[str, Any]]:
    """The rows as the format's own library has them."""
    path = str(target.folder.local_path)
    if target.kind == "delta":
        found = DeltaTable(path).to_pyarrow_table()
    elif target.kind == "iceberg":
        found = iceberg_table(target).scan().to_arrow()
    else:
        kinds = pa.schema([SCHEMA.field(name) for name in PARTITIONED])
        parts = ds.partitioning(kinds, flavor="hive")
        files = [str(file) for file in Path(path).rglob("*.parquet") if "_antiphon" not in file.parts]
        found = ds.dataset(
            files, schema=SCHEMA, partitioning=parts, partition_base_dir=path, format="parquet"
        ).to_table()
    return sorted(found.select(SCHEMA.names).to_pylist(), key=lambda one: bytes(one["_key"]))


def changes(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{"_deleted": False} | one for one in rows], schema=CHANGES)


def gone(key: bytes, version: int) -> dict[str, Any]:
    return dict.fromkeys(SCHEMA.names) | {"_key": key, "_version": version, "_deleted": True}


def everything(folder: Path) -> set[str]:
    return {str(file) for file in folder.rglob("*") if "-journal" not in file.name}
