"""Targets without Spark: whatever dies, each commit is made once; and rows come out as they went in."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.exceptions import CommitFailedError
from typer.testing import CliRunner

from antiphon.cli.main import app
from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.targets import delta
from antiphon.lake.targets import target as targets
from antiphon.lake.targets.changes import last_changes, newer_than
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.kinds import KINDS, options_of
from antiphon.lake.targets.staged import DataFile, PartWriter, lake_schema
from antiphon.lake.targets.target import COMMIT_TRIES, Compacted, MarkStep, Target, open_target

SCHEMA = pa.schema([("_key", pa.binary()), ("_version", pa.int64()), ("name", pa.string())])
Opener = Callable[[], Target]


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same table anew, as another process would."""
    options: dict[str, Any] = {"kind": request.param, "path": str(tmp_path / "the lake")}
    if KINDS[request.param].has_tables:
        options["table"] = "db.flights"
    made: list[Target] = []

    def again() -> Target:
        target = open_target(options)
        made.append(target)
        return target

    yield again
    for target in made:
        target.close()


def stage(target: Target, rows: dict[str, Any], schema: pa.Schema = SCHEMA) -> list[DataFile]:
    with PartWriter(target.data, schema) as part:
        part.write(pa.table(rows, schema=schema))
    assert part.file is not None
    return [part.file]


def numbered(first: int, count: int) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "_key": [b"k%d" % n for n in numbers],
        "_version": list(numbers),
        "name": [str(n) for n in numbers],
    }


def rows(target: Target) -> list[dict[str, Any]]:
    schema = target.schema()
    assert schema is not None
    tables = [pq.read_table(url.removeprefix("file://"), partitioning=None) for url in target.files()]
    wide = [table.cast(pa.schema([schema.field(n) for n in table.column_names])) for table in tables]
    together = pa.concat_tables(wide, promote_options="default") if wide else schema.empty_table()
    return sorted(together.to_pylist(), key=lambda row: bytes(row["_key"]))


def keys(target: Target) -> list[bytes]:
    return [row["_key"] for row in rows(target)]


def test_a_commit_that_is_repeated_does_nothing(opener: Opener) -> None:
    target = opener()
    assert target.schema() is None
    assert target.mark("q/0") is None
    target.create(SCHEMA)
    assert target.schema() == SCHEMA
    step = {"q/0": MarkStep(None, 10), "q/1": MarkStep(None, 5)}
    assert target.append(stage(target, numbered(0, 3)), step)
    again = opener()
    assert not again.append(stage(again, numbered(0, 3)), step)
    assert (again.mark("q/0"), again.mark("q/1"), again.mark("q/2")) == (10, 5, None)
    assert again.append(stage(again, numbered(3, 2)), {"q/0": MarkStep(10, 11)})
    assert keys(opener()) == [b"k%d" % n for n in range(5)]


def test_of_two_writers_one_wins(opener: Opener) -> None:
    one, other = opener(), opener()
    one.create(SCHEMA)
    assert other.schema() == SCHEMA
    files = stage(other, numbered(50, 2))
    assert one.append(stage(one, numbered(0, 2)), {"q/0": MarkStep(None, 10)})
    with pytest.raises(TargetConflictError, match="another writer has moved q/0 to 10"):
        other.append(files, {"q/0": MarkStep(None, 20)})
    assert other.append(files, {"other/0": MarkStep(None, 20)}), "writers of other sources do not mind"
    assert keys(one) == [b"k0", b"k1", b"k50", b"k51"]


@pytest.mark.parametrize("change", ["append", "merge", "marks"])
@pytest.mark.parametrize("same", [True, False], ids=["the same commit", "another commit"])
def test_a_writer_that_comes_between_check_and_commit(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, change: str, same: bool
) -> None:
    target, other = opener(), opener()
    if change == "merge" and KINDS[target.kind].refusal is not None:
        pytest.skip("rows of this kind cannot be changed")
    target.create(SCHEMA)
    module = sys.modules[type(target).__module__]
    step = {"q/0": MarkStep(None, 10)}
    theirs = step if same else {"q/0": MarkStep(None, 11 if change == "marks" else 9)}
    overtaking: list[bool] = []

    def is_due(marks: Any, stored: Any, where: str) -> bool:
        due = targets.is_due(marks, stored, where)
        if not overtaking:
            overtaking.append(True)
            assert write(other, theirs)
        return due

    def write(one: Target, marks: Any) -> bool:
        if change == "merge":
            return one.merge(changes((b"k0", 1, "x")), marks)
        return one.append(stage(one, numbered(0, 1)) if change == "append" or one is other else [], marks)

    monkeypatch.setattr(module, "is_due", is_due)
    if same or change == "marks":
        assert not write(target, step)
    else:
        with pytest.raises(TargetConflictError, match="another writer has moved q/0 to 9"):
            write(target, step)
    assert keys(opener()) == [b"k0"]


@pytest.mark.parametrize("failures", [COMMIT_TRIES - 1, COMMIT_TRIES])
def test_a_delta_commit_is_tried_again_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    target = open_target({"kind": "delta", "path": str(tmp_path / "lake")})
    target.create(SCHEMA)
    left = iter(range(failures))

    def crowded(table: Any, target_bytes: int) -> dict[str, int]:
        if next(left, None) is not None:
            raise CommitFailedError("somebody else")
        return {"numFilesRemoved": 2, "numFilesAdded": 1}

    monkeypatch.setattr(delta, "_compacted", crowded)
    if failures < COMMIT_TRIES:
        assert target.compact(1_000) == Compacted(2, 1)
    else:
        with pytest.raises(TargetConflictError, match=f"came first {COMMIT_TRIES} times.*somebody else"):
            target.compact(1_000)
    assert next(left, None) is None, "each failure was met"
    target.close()


def test_marks_move_without_files_and_guard_each_other(opener: Opener) -> None:
    target = opener()
    target.create(SCHEMA)
    assert target.append([], {"q/0": MarkStep(None, 3)})
    assert not opener().append([], {"q/0": MarkStep(None, 3)})
    with pytest.raises(TargetConflictError):
        target.append([], {"q/0": MarkStep(2, 4)})
    assert target.mark("q/0") == 3
    assert rows(target) == []


def test_columns_are_added_once(opener: Opener) -> None:
    target = opener()
    assert target.prepare(SCHEMA) == SCHEMA
    target.append(stage(target, numbered(0, 1)), {"q/0": MarkStep(None, 1)})
    wider = pa.schema([*SCHEMA, pa.field("more", pa.struct([("x", pa.float64())]))])
    assert target.prepare(wider).names == ["_key", "_version", "name", "more"]
    assert opener().prepare(wider).names == ["_key", "_version", "name", "more"]
    row = {**numbered(1, 1), "more": [{"x": 1.5}]}
    target.append(stage(target, row, wider), {"q/0": MarkStep(1, 2)})
    assert [found["more"] for found in rows(opener())] == [None, {"x": 1.5}]
    with pytest.raises(
        InvalidRequestError, match=r"column name of .* has type string, what is to be written has int64"
    ):
        target.prepare(pa.schema([("name", pa.int64())]))


def test_replace_takes_the_place_of_everything(opener: Opener) -> None:
    target = opener()
    target.create(SCHEMA)
    target.append(stage(target, numbered(0, 3)), {})
    assert target.replace(stage(target, numbered(7, 1)), {"epoch/q": MarkStep(None, 1)})
    assert not target.replace(stage(target, numbered(8, 1)), {"epoch/q": MarkStep(None, 1)})
    assert keys(opener()) == [b"k7"]


def changes(*found: tuple[bytes, int, str | None]) -> pa.Table:
    columns = list(zip(*found, strict=True)) or [(), (), ()]
    return pa.table(
        {
            "_key": columns[0],
            "_version": columns[1],
            "name": columns[2],
            "_deleted": [n is None for n in columns[2]],
        },
        schema=SCHEMA.append(pa.field("_deleted", pa.bool_())),
    )


def test_merge_is_safe_in_any_order(opener: Opener) -> None:
    target = opener()
    target.create(SCHEMA)
    if KINDS[target.kind].refusal is not None:
        with pytest.raises(InvalidRequestError, match="cannot be changed in place"):
            target.merge(changes((b"a", 1, "x")), {})
        return
    assert target.merge(
        changes((b"a", 1, "a1"), (b"b", 2, "b2"), (b"c", 3, "c3")), {"q/0": MarkStep(None, 1)}
    )
    assert not opener().merge(changes((b"a", 1, "again")), {"q/0": MarkStep(None, 1)})
    step = {"q/0": MarkStep(1, 2)}
    late = changes((b"a", 0, "older"), (b"b", 2, None), (b"c", 1, None), (b"d", 9, None), (b"e", 5, "e5"))
    assert target.merge(late, step)
    expected = [(b"a", "a1"), (b"c", "c3"), (b"e", "e5")]
    assert [(row["_key"], row["name"]) for row in rows(opener())] == expected
    assert target.merge(changes((b"a", 1, "the same")), {"q/0": MarkStep(2, 3)}), (
        "changes nothing, but moves the mark"
    )
    assert target.merge(changes(), {"q/0": MarkStep(3, 4)})
    assert opener().mark("q/0") == 4
    assert [(row["_key"], row["name"]) for row in rows(opener())] == expected
    with pytest.raises(TargetConflictError):
        target.merge(changes((b"z", 1, "z")), {"q/0": MarkStep(3, 5)})


def test_compaction_and_expiry_keep_rows_and_marks(opener: Opener) -> None:
    target = opener()
    target.create(SCHEMA)
    for n in range(6):
        target.append(stage(target, numbered(n, 1)), {"q/0": MarkStep(n or None, n + 1)})
    stage(target, numbered(90, 1))  # nobody commits it
    before = rows(target)
    assert target.compact(1 << 20) == (6, 1)
    assert len(target.files()) == 1
    assert target.compact(1 << 20) == (0, 0)
    assert rows(opener()) == before
    assert target.expire(0).files == 0, "nothing is that old"
    time.sleep(0.01)
    assert target.expire(time.time_ns() // 1_000_000 + 60_000).files == 7
    fresh = opener()
    assert rows(fresh) == before
    assert fresh.mark("q/0") == 6
    assert fresh.append(stage(fresh, numbered(6, 1)), {"q/0": MarkStep(6, 7)})
    assert len(rows(opener())) == 7


# -- Parquet's own log ----------------------------------------------------------------------------------------------


def plain_reader(folder: Path) -> list[bytes]:
    return sorted(
        key for file in folder.glob("*.parquet") for key in pq.read_table(file).column("_key").to_pylist()
    )


def parquet(folder: Path) -> Target:
    return open_target(f"parquet:{folder}")


@pytest.mark.parametrize("at", ["before the commit", "after the commit", "in the middle of the moves"])
def test_a_crash_of_a_parquet_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    target = parquet(tmp_path)
    target.create(SCHEMA)
    files = stage(target, numbered(0, 2)) + stage(target, numbered(2, 2))
    step = {"q/0": MarkStep(None, 4)}
    real_create, real_move = Folder.create, Folder.move
    moved: list[str] = []

    def create(self: Folder, name: str, data: bytes) -> bool:
        if at == "before the commit":
            raise OSError("killed")
        return real_create(self, name, data)

    def move(self: Folder, name: str, to: str) -> None:
        if at == "after the commit" or moved:
            raise OSError("killed")
        moved.append(name)
        real_move(self, name, to)

    monkeypatch.setattr(Folder, "create", create)
    monkeypatch.setattr(Folder, "move", move)
    with pytest.raises(OSError, match="killed"):
        target.append(files, step)
    monkeypatch.undo()
    assert len(plain_reader(tmp_path)) == (2 if moved else 0)
    committed = at != "before the commit"
    again = parquet(tmp_path)
    assert again.append(files, step) is not committed
    assert plain_reader(tmp_path) == [b"k0", b"k1", b"k2", b"k3"]
    assert keys(again) == plain_reader(tmp_path)


def test_a_long_parquet_log_is_read_from_its_last_state(tmp_path: Path) -> None:
    old, target = parquet(tmp_path), parquet(tmp_path)
    target.create(SCHEMA)
    assert old.schema() == SCHEMA
    for n in range(25):
        target.append(stage(target, numbered(n, 1)), {"q/0": MarkStep(n or None, n + 1)})
    log = tmp_path / "_antiphon" / "log"
    assert sum(name.name.endswith(".state.json") for name in log.iterdir()) == 1
    target.expire(0)
    assert len(list(log.iterdir())) == 2, "the last commit and the state after it"
    assert old.mark("q/0") == 25, "one who knows an early state goes on from the whole one"
    assert parquet(tmp_path).mark("q/0") == 25
    next(log.glob("*26.json")).write_text("{")
    (log / f"{27:020d}.json").write_text("{")
    with pytest.raises(InvalidRequestError, match="a commit file is damaged"):
        parquet(tmp_path).schema()


def test_parquet_on_another_file_system() -> None:
    target = open_target({"kind": "parquet", "path": "memory://lake/flights"})
    target.create(SCHEMA)
    step = {"q/0": MarkStep(None, 2)}
    assert target.append(stage(target, numbered(0, 2)), step)
    again = open_target({"kind": "parquet", "path": "memory://lake/flights"})
    assert not again.append(stage(again, numbered(0, 2)), step)
    assert again.append(stage(again, numbered(2, 2)), {"q/0": MarkStep(2, 4)})
    assert again.compact(1 << 20) == (2, 1)
    assert again.expire(time.time_ns() // 1_000_000 + 1000).files == 3
    (url,) = again.files()
    where, _, name = url.rpartition("/")
    with Folder(where).open_read(name) as file:
        assert pq.read_table(file).num_rows == 4
    assert [Folder(where).create("x/once", data) for data in (b"1", b"2")] == [True, False]
    assert Folder(where).read("x/once") == b"1"


def test_a_folder_of_foreign_files_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "theirs.parquet")
    with pytest.raises(InvalidRequestError, match="that no job of Antiphon wrote"):
        parquet(tmp_path).create(SCHEMA)


# -- the rest -------------------------------------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    ("/lake/x", "is no target; give KIND:PATH"),
    ({"kind": "hudi", "path": "/x"}, "one of delta, iceberg, .*not 'hudi'"),
    ({"kind": "delta", "pth": "/x"}, "no option 'pth'; did you mean path?"),
    ({"kind": "delta"}, "needs a path"),
    ({"kind": "delta", "path": "/x", "table": "a.b"}, "option table is for targets of kind iceberg"),
    ({"kind": "iceberg", "path": "/x", "table": "b"}, "needs table = NAMESPACE.NAME, not 'b'"),
    ({"kind": "iceberg", "table": "a.b"}, "needs a catalog"),
    ({"kind": "parquet", "path": "nowhere://x"}, "cannot be used"),
]


def test_a_kind_is_what_its_row_says(opener: Opener, tmp_path: Path) -> None:
    target = opener()
    row = KINDS[target.kind]
    where = f"{tmp_path}/the lake#db.flights" if row.has_tables else target.folder.url
    assert target.name == f"{row.name} {where}"
    place = f"{tmp_path}#db.flights" if row.has_tables else str(tmp_path)
    assert options_of(f"{row.name}:{place}")[0] is row
    help_text = " ".join(CliRunner().invoke(app, ["replay", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert re.search(rf"--to-{row.name} <str> {re.escape(row.called)}", help_text)


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_wrong_targets(options: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        open_target(options)


def test_changes_are_reduced_to_the_last_of_each_key() -> None:
    found = last_changes(
        changes((b"a", 1, "x"), (b"b", 4, "y"), (b"a", 3, "z"), (b"b", 4, None), (b"c", 2, None))
    )
    assert {row["_key"]: row["name"] for row in found.to_pylist()} == {b"a": "z", b"b": None, b"c": None}
    assert last_changes(changes()).num_rows == 0
    known = pa.table({"_key": [b"a", b"b"], "_version": [3, 5]}, schema=pa.schema(list(SCHEMA)[:2]))
    assert newer_than(found, known).num_rows == 0
    assert newer_than(found, known.slice(1)).to_pylist()[0]["_key"] == b"a"


def test_types_that_lakes_do_not_have_become_ones_that_they_have() -> None:
    schema = pa.schema(
        [
            ("a", pa.uint64()), ("b", pa.timestamp("ns")), ("c", pa.list_(pa.uint8())), ("d", pa.large_string()),
            ("e", pa.dictionary(pa.int8(), pa.string())), ("f", pa.map_(pa.string(), pa.float16())), ("g", pa.date64()),
        ]
    )  # fmt: skip
    assert [field.type for field in lake_schema(schema)] == [
        pa.decimal128(20, 0), pa.timestamp("us", "UTC"), pa.list_(pa.int32()), pa.string(), pa.string(),
        pa.map_(pa.string(), pa.float32()), pa.date32(),
    ]  # fmt: skip
    with pytest.raises(InvalidRequestError, match="column x: a struct without fields"):
        lake_schema(pa.schema([("x", pa.struct([]))]))
