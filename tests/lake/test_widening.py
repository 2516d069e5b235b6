"""Columns that get a wider type: which kinds of tables can, what becomes of rows that are there, and what is refused."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from antiphon.errors import InvalidRequestError
from antiphon.lake.mirror import Epoch, Mirror, Recipe
from antiphon.lake.records import RowShape
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.target import MarkStep, Target, open_target
from antiphon.lake.targets.widening import widest
from antiphon.lake.values.decoding import ValueSpec
from tests.lake.test_mirror import TABLE, TOPIC, Frame, change_rows, topic_rows
from tests.lake.test_targets import rows, stage

INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
NARROW = pa.schema(
    [
        ("_key", pa.binary()),
        ("n", INT),
        ("x", FLOAT),
        ("d", pa.decimal128(5, 2)),
        ("s", pa.struct([("i", INT)])),
    ]
)
WIDE = pa.schema(
    [
        ("_key", pa.binary()),
        ("n", LONG),
        ("x", DOUBLE),
        ("d", pa.decimal128(12, 2)),
        ("s", pa.struct([("i", LONG)])),
    ]
)
BIG = 2**40
WIDENING = [name for name, kind in KINDS.items() if kind.widens]
Opener = Callable[[], Target]


def opener_of(kind: str, tmp_path: Path, made: list[Target]) -> Opener:
    options: dict[str, Any] = {"kind": kind, "path": str(tmp_path / "lake")}
    if KINDS[kind].has_tables:
        options["table"] = "db.t"

    def again() -> Target:
        made.append(open_target(options))
        return made[-1]

    return again


@pytest.fixture(params=WIDENING)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    made: list[Target] = []
    yield opener_of(request.param, tmp_path, made)
    for target in made:
        target.close()


def narrow(key: bytes, n: int) -> dict[str, Any]:
    return {"_key": [key], "n": [n], "x": [0.5], "d": [Decimal("1.25")], "s": [{"i": n}]}


def wide(key: bytes) -> dict[str, Any]:
    return {"_key": [key], "n": [BIG], "x": [1e300], "d": [Decimal("1234567890.25")], "s": [{"i": BIG}]}


@pytest.mark.parametrize(
    ("found", "wanted", "both"),
    [
        (INT, LONG, LONG), (LONG, INT, LONG), (FLOAT, DOUBLE, DOUBLE), (DOUBLE, FLOAT, DOUBLE), (INT, INT, INT),
        (pa.decimal128(5, 2), pa.decimal128(9, 2), pa.decimal128(9, 2)), (pa.decimal128(5, 2), pa.decimal128(9, 3), None),
        (pa.decimal128(9, 2), pa.decimal128(5, 2), pa.decimal128(9, 2)), (INT, DOUBLE, None), (LONG, DOUBLE, None),
        (INT, pa.string(), None), (pa.string(), pa.binary(), None), (pa.date32(), pa.timestamp("us", "UTC"), None),
        (pa.list_(INT), pa.list_(LONG), pa.list_(LONG)), (pa.list_(INT), LONG, None),
        (pa.map_(pa.string(), FLOAT), pa.map_(pa.string(), DOUBLE), pa.map_(pa.string(), DOUBLE)),
        (pa.map_(INT, FLOAT), pa.map_(LONG, FLOAT), None),
        # Each field for itself: one may be wider here, and the other there.
        (pa.struct([("a", INT), ("b", DOUBLE)]), pa.struct([("a", LONG), ("b", FLOAT)]),
         pa.struct([("a", LONG), ("b", DOUBLE)])),
        (pa.struct([("a", INT)]), pa.struct([("b", INT)]), None),
        (pa.struct([("a", INT), ("c", INT)]), pa.struct([("b", LONG), ("a", LONG)]),
         pa.struct([("a", LONG), ("c", INT), ("b", LONG)])),
        (pa.list_(pa.struct([("a", INT)])), pa.list_(pa.struct([("a", INT), ("b", FLOAT)])),
         pa.list_(pa.struct([("a", INT), ("b", FLOAT)]))),
        (pa.struct([("a", INT)]), pa.struct([("a", pa.string())]), None),
    ],
)  # fmt: skip
def test_the_type_that_holds_both(found: pa.DataType, wanted: pa.DataType, both: pa.DataType | None) -> None:
    assert widest(found, wanted) == both


def test_a_column_gets_the_wider_type_and_its_rows_stay(opener: Opener) -> None:
    target = opener()
    assert target.prepare(NARROW) == NARROW
    target.append(stage(target, narrow(b"a", 7), NARROW), {"q/0": MarkStep(None, 1)})
    assert target.prepare(WIDE) == WIDE
    assert opener().schema() == WIDE
    target.append(stage(target, wide(b"b"), WIDE), {"q/0": MarkStep(1, 2)})
    found = rows(opener())
    assert [(row["n"], row["s"]["i"], row["x"]) for row in found] == [(7, 7, 0.5), (BIG, BIG, 1e300)]
    assert [row["d"] for row in found] == [Decimal("1.25"), Decimal("1234567890.25")]


def test_who_writes_narrower_rows_writes_into_the_wider_column(opener: Opener) -> None:
    target, late = opener(), opener()
    target.prepare(NARROW)
    staged = stage(late, narrow(b"a", 7), NARROW)
    target.prepare(WIDE)
    assert opener().prepare(NARROW) == WIDE, "a job of before goes on, and nothing becomes narrower"
    assert late.append(staged, {"q/0": MarkStep(None, 1)}), "files that were written before can be committed"
    assert [row["n"] for row in rows(opener())] == [7]


def test_of_two_who_widen_both_have_what_they_need(opener: Opener) -> None:
    target, other = opener(), opener()
    target.prepare(NARROW)
    other.schema()
    target.widen_columns([pa.field("n", LONG)])
    other.widen_columns([pa.field("n", LONG), pa.field("x", DOUBLE)])
    assert [opener().prepare(NARROW).field(name).type for name in ("n", "x")] == [LONG, DOUBLE]


def test_small_files_of_both_types_become_one(opener: Opener) -> None:
    target = opener()
    target.prepare(NARROW)
    target.append(stage(target, narrow(b"a", 7), NARROW), {})
    target.prepare(WIDE)
    target.append(stage(target, wide(b"b"), WIDE), {})
    assert target.compact(1 << 20) == (2, 1)
    assert [row["n"] for row in rows(opener())] == [7, BIG]


def test_columns_are_widened_and_added_at_once(opener: Opener) -> None:
    target = opener()
    target.prepare(pa.schema([("n", INT)]))
    assert target.prepare(pa.schema([("n", LONG), ("more", pa.string())])).names == ["n", "more"]
    assert opener().prepare(pa.schema([("n", LONG)])).field("n").type == LONG


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_table_cannot_hold_is_refused_and_nothing_changes(kind: str, tmp_path: Path) -> None:
    made: list[Target] = []
    target = opener_of(kind, tmp_path, made)()
    target.prepare(NARROW)
    with pytest.raises(
        InvalidRequestError, match=r"column n of .* has type int32, .* has string: write to another table"
    ):
        target.prepare(pa.schema([("more", LONG), ("n", pa.string())]))
    if not KINDS[kind].widens:
        with pytest.raises(
            InvalidRequestError, match=r"has type int32, .* has int64: .*deltalake cannot widen columns"
        ):
            target.prepare(WIDE)
        with pytest.raises(InvalidRequestError, match="column n cannot be widened in a table of kind delta"):
            target.widen_columns([pa.field("n", LONG)])
    assert target.schema() == NARROW
    for one in made:
        one.close()


def test_a_declared_column_of_a_mirror_is_widened(opener: Opener) -> None:
    def run(kind: pa.DataType, start: int, value: bytes) -> None:
        spec = ValueSpec("json", pa.schema([("n", kind)]), new_fields="drop")
        mirror = Mirror(None, TOPIC, opener(), Recipe(RowShape(is_table=False), spec), [0])
        mirror.recover()
        mirror.apply(Frame(topic_rows([(0, start, b"k", value)])), Epoch({}, {0: start + 1}))

    run(INT, 0, b'{"n": 1}')
    run(LONG, 1, b'{"n": %d}' % BIG)
    run(INT, 2, b'{"n": %d}' % (BIG + 1))  # the table's type counts
    assert sorted(row["n"] for row in rows(opener())) == [1, BIG, BIG + 1]


@pytest.mark.parametrize("kind", [name for name in WIDENING if KINDS[name].refusal is None])
def test_changes_are_merged_into_a_wider_column(kind: str, tmp_path: Path) -> None:
    made: list[Target] = []
    again = opener_of(kind, tmp_path, made)

    def run(column: pa.DataType, start: int, *changes: tuple[int, int, bytes, bytes | None, int]) -> None:
        spec = ValueSpec("json", pa.schema([("n", column)]), new_fields="drop")
        mirror = Mirror(None, TABLE, again(), Recipe(RowShape(is_table=True), spec), [0])
        mirror.recover()
        mirror.apply(Frame(change_rows(changes)), Epoch({}, {0: start + len(changes)}))

    run(INT, 0, (0, 0, b"a", b'{"n": 1}', 1), (0, 1, b"b", b'{"n": 2}', 2))
    run(LONG, 2, (0, 2, b"b", b'{"n": %d}' % BIG, 3), (0, 3, b"c", b'{"n": 3}', 4))
    run(INT, 4, (0, 4, b"c", None, 4))
    assert [(row["_key"], row["n"]) for row in rows(again())] == [(b"a", 1), (b"b", BIG)]
    for one in made:
        one.close()


def nested(*names: str) -> pa.Schema:
    one = pa.struct([(name, INT) for name in names])
    return pa.schema([("_key", pa.binary()), ("s", pa.struct([("in", one)])), ("l", pa.list_(one))])


def nested_row(key: bytes, fields: dict[str, int]) -> dict[str, Any]:
    return {"_key": [key], "s": [{"in": fields}], "l": [[fields]]}


@pytest.mark.parametrize("kind", KINDS)
def test_structs_get_more_fields_in_every_kind_of_table(kind: str, tmp_path: Path) -> None:
    made: list[Target] = []
    again = opener_of(kind, tmp_path, made)
    old, new = nested("a"), nested("a", "b")
    target, late = again(), again()
    target.prepare(old)
    staged = stage(late, nested_row(b"1", {"a": 1}), old)
    assert target.prepare(new) == new
    assert again().prepare(nested("b", "a")) == new, "no matter in which order, and whether they are there"
    assert again().prepare(old) == new, "who writes fewer fields goes on"
    assert late.append(staged, {"q/0": MarkStep(None, 1)}), "files of before can be committed"
    target.append(stage(target, nested_row(b"2", {"a": 2, "b": 3}), new), {"q/0": MarkStep(1, 2)})
    first, second = ({"a": 1, "b": None}, {"a": 2, "b": 3})
    for joined in (False, True):
        assert len(again().files()) == (1 if joined else 2)
        assert [(row["s"]["in"], row["l"]) for row in rows(again())] == [(first, [first]), (second, [second])]
        again().compact(1 << 20)
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", KINDS)
def test_structs_in_maps_get_more_fields_where_files_of_both_can_be_joined(kind: str, tmp_path: Path) -> None:
    made: list[Target] = []
    again = opener_of(kind, tmp_path, made)
    columns = [
        pa.schema([("_key", pa.binary()), ("m", pa.map_(pa.string(), pa.struct([(n, INT) for n in names])))])
        for names in ("a", "ab")
    ]
    target = again()
    target.prepare(columns[0])
    target.append(stage(target, {"_key": [b"1"], "m": [[("k", {"a": 1})]]}, columns[0]), {})
    if not KINDS[kind].widens:
        with pytest.raises(InvalidRequestError, match=r"column m .*deltalake cannot widen columns"):
            target.prepare(columns[1])
        with pytest.raises(InvalidRequestError, match="column m cannot be widened in a table of kind delta"):
            target.widen_columns([columns[1].field("m")])
    else:
        assert target.prepare(columns[1]) == columns[1]
        target.append(stage(target, {"_key": [b"2"], "m": [[("k", {"a": 2, "b": 3})]]}, columns[1]), {})
        assert target.compact(1 << 20) == (2, 1)
        assert [row["m"] for row in rows(again())] == [
            [("k", {"a": 1, "b": None})],
            [("k", {"a": 2, "b": 3})],
        ]
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", [name for name in KINDS if KINDS[name].refusal is None])
def test_changes_are_merged_into_structs_with_more_fields(kind: str, tmp_path: Path) -> None:
    made: list[Target] = []
    again = opener_of(kind, tmp_path, made)

    def run(names: str, start: int, *changes: tuple[int, int, bytes, bytes | None, int]) -> None:
        column = pa.struct([(name, INT) for name in names])
        spec = ValueSpec("json", pa.schema([("s", column)]), new_fields="drop")
        mirror = Mirror(None, TABLE, again(), Recipe(RowShape(is_table=True), spec), [0])
        mirror.recover()
        mirror.apply(Frame(change_rows(changes)), Epoch({}, {0: start + len(changes)}))

    run("a", 0, (0, 0, b"x", b'{"s": {"a": 1}}', 1), (0, 1, b"y", b'{"s": {"a": 2}}', 2))
    run("ab", 2, (0, 2, b"y", b'{"s": {"a": 3, "b": 4}}', 3))
    run("a", 3, (0, 3, b"z", b'{"s": {"a": 5}}', 4))
    assert [(row["_key"], row["s"]) for row in rows(again())] == [
        (b"x", {"a": 1, "b": None}), (b"y", {"a": 3, "b": 4}), (b"z", {"a": 5, "b": None})
    ]  # fmt: skip
    for one in made:
        one.close()
