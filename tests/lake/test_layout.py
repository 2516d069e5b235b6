"""Options that say how a table is laid out: what each kind does with them, and what is refused."""

import json
import os
from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from antiphon.errors import InvalidRequestError
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.kinds import KINDS, options_of
from antiphon.lake.targets.layout import Layout, Order, Term, layout_of
from antiphon.lake.targets.spread import Spread, transformed
from antiphon.lake.targets.staged import OPEN_MAX, FilesWriter
from antiphon.lake.targets.target import MarkStep, Target, open_target
from tests.lake.laid_out import (
    PARTITIONED,
    ROWS,
    SCHEMA,
    changes,
    everything,
    iceberg_table,
    options,
    read_by_others,
    row,
    stage,
)

# -- Iceberg's transforms ---------------------------------------------------------------------------------------------


OF_THE_FORMAT = [
    "year(at)",
    "month(at)",
    "day(at)",
    "hour(at)",
    "bucket(7,at)",
    "year(day)",
    "month(day)",
    "day(day)",
    "bucket(7,day)",
    "bucket(3,n)",
    "bucket(5,_version)",
    "truncate(7,n)",
    "truncate(10,_version)",
    "bucket(3,name)",
    "truncate(2,name)",
    "bucket(9,_key)",
    "truncate(1,_key)",
    "name",
    "day",
    "ok",
    "at",
    "n",
]


@pytest.mark.parametrize("text", OF_THE_FORMAT)
def test_transforms_are_those_of_the_format(text: str) -> None:
    from pyiceberg.types import (
        BinaryType,
        BooleanType,
        DateType,
        IntegerType,
        LongType,
        StringType,
        TimestamptzType,
    )

    from antiphon.lake.targets.iceberg_layout import _transform

    kinds = {"at": TimestamptzType(), "day": DateType(), "n": IntegerType(), "_version": LongType(), "name": StringType(),
             "_key": BinaryType(), "ok": BooleanType()}  # fmt: skip
    term = (
        layout_of({"partition_by": [text]}, list(KINDS["iceberg"].transforms), "iceberg").partition_by or ()
    )[0]
    theirs = _transform(term).transform(kinds[term.column])
    rows = [
        *ROWS,
        row(b"", -7, "", date(1, 1, 1), at=datetime(1, 1, 1, tzinfo=UTC)),
        row(b"\xff\x00", 1, "äöü", date(9999, 12, 31)),
    ]
    rows[-1] |= {"_version": 2**40, "n": 2**31 - 1, "at": datetime(2038, 1, 19, 3, 14, 8, 1, tzinfo=UTC)}
    column = pa.Table.from_pylist(rows, schema=SCHEMA).column(term.column).combine_chunks()
    inner = (
        column.cast(pa.int32())
        if term.column == "day"
        else column.cast(pa.int64())
        if term.column == "at"
        else column
    )
    assert transformed(term, column).to_pylist() == [
        None if one is None else theirs(one) for one in inner.to_pylist()
    ]


def test_a_filter_of_iceberg_reads_only_the_files_of_its_partitions(tmp_path: Path) -> None:
    target = open_target(options("iceberg", tmp_path, partition_by=["day(at)", "bucket(8, name)"]))
    target.prepare(SCHEMA)
    target.append(stage(target, [row(b"%d" % n, n, f"n{n}") for n in range(40)]), {})
    table = iceberg_table(target)
    chosen = list(table.scan(row_filter="at >= '2024-04-09T00:00:00+00:00' and name = 'n39'").plan_files())
    assert (len(chosen), len(target.files())) == (1, 40)
    assert table.scan(row_filter="name = 'n39'").to_arrow().num_rows == 1
    assert len(list(table.scan(row_filter="name = 'n39'").plan_files())) < 40
    target.close()


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_rows_of_a_file_are_in_order(tmp_path: Path, kind: str) -> None:
    asked = {"sort_by": ["ok desc", "name nulls last", "n"]}
    target = open_target(options(kind, tmp_path, **asked))
    target.prepare(SCHEMA)
    for number in range(2):
        target.append(stage(target, ROWS[::-1]), {"q": MarkStep(number or None, number + 1)})
    order = [(True, "plain"), (True, "x y/ä%=#?"), (True, "x y/ä%=#?"), (False, "plain"), (None, None)]

    def found(url: str) -> list[tuple[bool | None, str | None]]:
        rows = pq.read_table(url.removeprefix("file://"), partitioning=None).to_pylist()
        return [(one["ok"], one["name"]) for one in rows]

    assert [found(url) for url in target.files()] == [order, order]
    again = open_target(options(kind, tmp_path))
    assert again.compact(1 << 20) == (2, 1)
    assert [found(url) for url in again.files()] == [[one for one in order for _ in range(2)]]
    if kind == "iceberg":
        assert again.merge(changes(row(b"a", 9, "aa", ok=True)), {})
        left = [one for one in order for _ in range(2)]
        left.remove((True, "x y/ä%=#?"))
        left.remove((True, "x y/ä%=#?"))
        assert [found(url) for url in again.files()] == [[(True, "aa"), *left]]
        assert [str(one) for one in iceberg_table(target).sort_order().fields] == [
            "5 DESC NULLS LAST",
            "3 ASC NULLS LAST",
            "7 ASC NULLS FIRST",
        ]
    with pytest.raises(
        InvalidRequestError,
        match=r"sort_by is \[ok desc nulls last, name asc nulls last, n asc nulls first\], asked for is \[n desc",
    ):
        open_target(options(kind, tmp_path, sort_by="n desc")).prepare(SCHEMA)
    open_target(options(kind, tmp_path, **asked)).prepare(SCHEMA)


def test_delta_is_compacted_in_z_order(tmp_path: Path) -> None:
    target = open_target(options("delta", tmp_path, z_order_by=["n", "name"], partition_by="ok"))
    target.prepare(SCHEMA)
    for number in range(3):
        rows = [row(b"%d" % n, n, "x", ok=True) for n in range(number, 9, 3)]
        target.append(stage(target, rows), {})
    target.append(stage(target, [row(b"other", 7, "y", ok=None)]), {})
    before = read_by_others(target)
    alone = set(target.files())
    again = open_target(options("delta", tmp_path))
    assert again.compact(1 << 20) == (3, 1)
    assert read_by_others(again) == before
    assert len(alone & set(again.files())) == 1, "a partition with one file stays as it is"
    (made,) = set(again.files()) - alone
    assert pq.read_table(made.removeprefix("file://"), partitioning=None).column("n").to_pylist() == list(
        range(9)
    )
    assert again.compact(1 << 20) == (0, 0)
    with pytest.raises(InvalidRequestError, match=r"z_order_by is \[n, name\], asked for is \[n\]"):
        open_target(options("delta", tmp_path, z_order_by=["n"])).check()
    with pytest.raises(InvalidRequestError, match="z_order_by: ok is in partition_by"):
        open_target(options("delta", tmp_path / "x", z_order_by=["ok"], partition_by="ok")).check()


# -- properties -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "properties"),
    [
        ("delta", {"delta.logRetentionDuration": "interval 60 days", "delta.appendOnly": True}),
        ("iceberg", {"commit.manifest.min-count-to-merge": 7, "owner": "us", "format-version": 2}),
    ],
)
def test_properties_are_those_of_the_new_table(tmp_path: Path, kind: str, properties: dict[str, Any]) -> None:
    target = open_target(options(kind, tmp_path, properties=properties))
    target.prepare(SCHEMA)
    for _ in range(2):
        target = open_target(options(kind, tmp_path, properties=properties))
        target.prepare(SCHEMA)
    target.append(stage(target, ROWS), {"q": MarkStep(None, 1)})
    there = (
        DeltaTable(str(target.folder.local_path)).metadata().configuration
        if kind == "delta"
        else iceberg_table(target).properties
    )
    for name, value in properties.items():
        assert name == "format-version" or there[name] == str(value).lower()
    name = next(iter(properties))
    before = everything(tmp_path)
    with pytest.raises(
        InvalidRequestError, match=f"property {name} is '.*', asked for is 'else'; property nope is not set"
    ):
        open_target(options(kind, tmp_path, properties={name: "else", "nope": "1"})).prepare(SCHEMA)
    assert everything(tmp_path) == before


def test_properties_that_cannot_be(tmp_path: Path) -> None:
    for kind, wrong, words in (
        ("delta", {"delta.nope": "1"}, "deltalake does not take these properties: .*delta.nope"),
        (
            "delta",
            {"delta.columnMapping.mode": "name"},
            "cannot be name: files that are written here have the names",
        ),
        ("delta", {"delta.enableDeletionVectors": "true"}, "cannot be true: rows that were removed"),
        ("iceberg", {"format-version": "9"}, "cannot be made: Unknown format version"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            open_target(options(kind, tmp_path, properties=wrong)).prepare(SCHEMA)
    assert not (tmp_path / "the lake" / "_delta_log").exists()


# -- Parquet's folders ------------------------------------------------------------------------------------------------


def parquet(folder: Path, **more: Any) -> Target:
    return open_target({"kind": "parquet", "path": str(folder)} | more)


def test_a_parquet_folder_says_in_its_log_how_it_is_laid_out(tmp_path: Path) -> None:
    plain, laid = (
        parquet(tmp_path / "plain"),
        parquet(tmp_path / "laid", partition_by=PARTITIONED, sort_by=["n"]),
    )
    for one in (plain, laid):
        one.prepare(SCHEMA)
        one.append(stage(one, ROWS), {})
    made = [sorted((tmp_path / name / "_antiphon" / "log").iterdir()) for name in ("plain", "laid")]
    (old, *_), (new, second) = [[json.loads(file.read_text()) for file in files] for files in made]
    assert (old["format"], "layout" in old) == (1, False), "as before, for versions that know no partitions"
    assert new["layout"] == {"partition_by": PARTITIONED, "sort_by": [["n", False, True]]}
    assert (new["format"], second["format"]) == (2, 2)
    assert "name=plain/day=1969-12-31/ok=true" in str(sorted(second["add"]))
    assert (tmp_path / "laid" / "name=x y%2Fä%25%3D%23%3F" / "day=2024-01-02" / "ok=true").is_dir()
    parts = parquet(tmp_path / "laid").parts()
    assert len(parts) == 4
    for url, values in parts:
        assert list(values) == PARTITIONED
        assert pq.read_schema(url.removeprefix("file://")).names == ["_key", "_version", "at", "n"], (
            "as Hive's"
        )
    for number in range(20):
        laid.append([], {"q": MarkStep(number or None, number + 1)})
    laid.expire(0)
    again = parquet(tmp_path / "laid")
    assert again.schema() == SCHEMA
    assert again.layout() == laid.layout()
    assert read_by_others(again) == ROWS


def test_values_that_no_folder_can_be_called_after_are_refused_before_the_commit(tmp_path: Path) -> None:
    target = parquet(tmp_path, partition_by="name")
    target.prepare(SCHEMA)
    with pytest.raises(
        InvalidRequestError, match=r"a partition's folder cannot be called name=äää.*more than 255 bytes"
    ):
        target.append(stage(target, [row(b"a", 1, "ä" * 130)]), {"q": MarkStep(None, 1)})
    assert target.mark("q") is None
    target.append(stage(target, [row(b"b", 1, "")]), {"q": MarkStep(None, 1)})
    assert (tmp_path / "name=__HIVE_DEFAULT_PARTITION__").is_dir(), (
        "an empty text is null, as in Hive and Delta"
    )
    assert [values for _, values in target.parts()] == [{"name": None}]


@pytest.mark.parametrize("at", ["after the commit", "in the middle of the moves"])
def test_a_crash_while_files_are_moved_to_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    target = parquet(tmp_path, partition_by=PARTITIONED)
    target.prepare(SCHEMA)
    moved: list[str] = []
    files = stage(target, ROWS)
    real = Folder.move

    def move(self: Folder, name: str, to: str) -> None:
        if at == "after the commit" or moved:
            raise OSError("killed")
        moved.append(name)
        real(self, name, to)

    monkeypatch.setattr(Folder, "move", move)
    with pytest.raises(OSError, match="killed"):
        target.append(files, {"q": MarkStep(None, 1)})
    monkeypatch.undo()
    again = parquet(tmp_path)
    assert not again.append(files, {"q": MarkStep(None, 1)})
    assert read_by_others(again) == ROWS


# -- what cannot be said ----------------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"kind": "parquet", "properties": {"a": "b"}}, "properties is for targets of kind delta or iceberg, not parquet"),
    ({"kind": "delta", "sort_by": ["a"]}, "option sort_by is for targets of kind iceberg or parquet, not delta"),
    ({"kind": "iceberg", "table": "a.b", "z_order_by": ["a"]}, "z_order_by is for targets of kind delta, not iceberg"),
    ({"kind": "delta", "partition_by": ["day(at)"]}, r"takes columns only, not day\(at\): give the rows a column .* as day"),
    ({"kind": "iceberg", "table": "a.b", "partition_by": ["week(at)"]}, "knows year, .* not 'week'"),
    ({"kind": "iceberg", "table": "a.b", "partition_by": ["bucket(at)"]}, r"bucket is written bucket\(NUMBER, COLUMN\)"),
    ({"kind": "iceberg", "table": "a.b", "partition_by": ["day(3, at)"]}, r"day is written day\(COLUMN\)"),
    ({"kind": "iceberg", "table": "a.b", "partition_by": ["bucket(0, at)"]}, "is from 1 to"),
    ({"kind": "iceberg", "table": "a.b", "partition_by": ["bucket(4, a", "b)"]}, "partition_by takes columns, not"),
    ({"kind": "delta", "partition_by": ["a", "a"]}, "partition_by names a twice"),
    ({"kind": "delta", "partition_by": 7}, "partition_by is a list of columns"),
    ({"kind": "delta", "partition_by": ["a", ""]}, "partition_by is a list of columns"),
    ({"kind": "parquet", "sort_by": ["a asc", "a desc"]}, "sort_by names a twice"),
    ({"kind": "delta", "properties": {"antiphon.x": "b"}}, "names that begin with antiphon. are Antiphon's own"),
    ({"kind": "delta", "properties": {"x": ["b"]}}, "property x has to be a text"),
    ({"kind": "delta", "partition": ["a"]}, "no option 'partition'; did you mean partition_by?"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_wrong_layouts(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        options_of({"path": str(tmp_path)} | wrong)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("kind", "asked", "words"),
    [
        ("delta", {"partition_by": "nope"}, "partition_by: there is no column nope; there is _key, "),
        (
            "delta",
            {"partition_by": "_key"},
            "_key cannot be of a column of type binary; a text, a whole number, a date",
        ),
        ("parquet", {"partition_by": "at"}, "at cannot be of a column of type timestamp"),
        ("iceberg", {"partition_by": "hour(day)"}, r"hour\(day\) cannot be of a column of type date32"),
        ("iceberg", {"partition_by": "bucket(2, ok)"}, r"bucket\(2, ok\) cannot be of a column of type bool"),
        ("parquet", {"sort_by": "nope desc"}, "sort_by: there is no column nope"),
        ("delta", {"z_order_by": ["parts"]}, "z_order_by: column parts has parts, of type list"),
    ],
)
def test_layouts_that_do_not_go_with_the_columns(
    tmp_path: Path, kind: str, asked: dict[str, Any], words: str
) -> None:
    schema = SCHEMA.append(pa.field("parts", pa.list_(pa.int32())))
    for attempt in ("check", "prepare"):
        with pytest.raises(InvalidRequestError, match=words):
            getattr(open_target(options(kind, tmp_path, **asked)), attempt)(schema)
    assert not (tmp_path / "the lake" / "_delta_log").exists()


def test_partitions_of_another_writer_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    DeltaTable.create(str(tmp_path / "the lake"), schema=SCHEMA, partition_by=["at"])
    before = everything(tmp_path)
    with pytest.raises(InvalidRequestError, match="partition_by: at cannot be of a column of type timestamp"):
        open_target(options("delta", tmp_path)).prepare(SCHEMA)
    assert everything(tmp_path) == before


def test_what_the_options_say() -> None:
    found = layout_of(
        {"partition_by": "day(at), bucket( 16 , `a b` ), plain", "sort_by": ["x DESC", "`a desc` nulls last"]},
        list(KINDS["iceberg"].transforms), "iceberg",
    )  # fmt: skip
    assert found == Layout(
        (Term("at", "day"), Term("a b", "bucket", 16), Term("plain")),
        (Order("x", descending=True, nulls_first=False), Order("a desc", nulls_first=False)),
    )


# -- writing ----------------------------------------------------------------------------------------------------------


def test_few_files_are_open_however_many_partitions_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder.at(str(tmp_path))
    schema = pa.schema([("n", pa.int64()), ("p", pa.int32())])
    most = 0
    with FilesWriter(folder, schema, Spread((Term("p"),), in_files=False)) as parts:
        for start in range(3):
            count = OPEN_MAX * 2
            parts.write(
                pa.table({"n": range(start * count, (start + 1) * count), "p": range(count)}, schema=schema)
            )
            most = max(most, len(parts._open))
    assert most == OPEN_MAX
    rows = Counter(
        (file.partition["p"], n)
        for file in parts.files
        for n in pq.read_table(tmp_path / file.name).column("n").to_pylist()
    )
    assert rows == Counter((n % (OPEN_MAX * 2), n) for n in range(OPEN_MAX * 6))
    left = set(tmp_path.iterdir())
    parts = FilesWriter(folder, schema, Spread((Term("p"),)))
    parts.write(pa.table({"n": range(200), "p": range(200)}, schema=schema))
    assert set(tmp_path.iterdir()) > left
    parts.__exit__(KeyboardInterrupt, None, None)
    assert set(tmp_path.iterdir()) == left


def test_rows_that_wait_for_many_partitions_become_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.lake.targets.staged.WAITING_BYTES_MAX", 4000)
    schema = pa.schema([("n", pa.int64()), ("p", pa.int32())])
    with FilesWriter(Folder.at(str(tmp_path)), schema, Spread((Term("p"),))) as parts:
        for _ in range(50):
            parts.write(pa.table({"n": range(20), "p": [n % 4 for n in range(20)]}, schema=schema))
            assert sum(writer.waiting_bytes for _, writer in parts._open.values()) < 4300
    groups = [pq.ParquetFile(tmp_path / file.name).num_row_groups for file in parts.files]
    assert (len(groups), sum(file.rows for file in parts.files)) == (4, 1000)
    assert min(groups) > 1
