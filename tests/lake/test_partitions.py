"""Tables with partitions: read by the formats' own libraries, and exactly once, whatever dies."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from antiphon.errors import InvalidRequestError, TargetConflictError
from antiphon.lake.mirror import Epoch, Mirror, Recipe
from antiphon.lake.plans import Plan, Plans
from antiphon.lake.records import RowShape
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.target import MarkStep, Target, open_target
from antiphon.lake.upkeep import compact
from antiphon.lake.values.decoding import ValueSpec
from tests.lake.laid_out import (
    OLD,
    PARTITIONED,
    ROWS,
    SCHEMA,
    TRANSFORMS,
    Opener,
    changes,
    everything,
    gone,
    iceberg_table,
    options,
    read_by_others,
    row,
    stage,
)
from tests.lake.test_mirror import (
    TABLE,
    TOPIC,
    Dying,
    Frame,
    Letters,
    change_rows,
    records,
)

LAID_OUT = [*((kind, PARTITIONED) for kind in KINDS), ("iceberg", TRANSFORMS)]


@pytest.fixture(params=LAID_OUT, ids=[f"{kind}-{items[0]}" for kind, items in LAID_OUT])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same table anew, as another process would."""
    made: list[Target] = []
    kind, items = request.param

    def again(**more: Any) -> Target:
        made.append(open_target(options(kind, tmp_path, **({"partition_by": items} | more))))
        return made[-1]

    yield again
    for target in made:
        target.close()


def test_rows_lie_in_their_partitions_and_others_read_them(opener: Opener) -> None:
    target = opener()
    assert target.prepare(SCHEMA) == SCHEMA
    files = stage(target, ROWS)
    assert len(files) == len({json.dumps(file.partition) for file in files}) >= 4
    assert target.append(files, {"q/0": MarkStep(None, 5)})
    assert read_by_others(opener()) == ROWS
    again = opener()
    again.prepare(SCHEMA)
    assert not again.append(stage(again, ROWS), {"q/0": MarkStep(None, 5)}), "a repetition"
    assert again.append(stage(again, [row(b"z", 9, "plain", OLD)]), {"q/0": MarkStep(5, 6)})
    assert [one["_key"] for one in read_by_others(again)] == [b"a", b"b", b"c", b"d", b"e", b"z"]
    assert again.replace(stage(again, ROWS[:2]), {"r": MarkStep(None, 1)})
    assert read_by_others(again) == ROWS[:2]


def test_of_two_that_make_a_table_one_does(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, third = opener(), opener(), opener(partition_by=["n"])
    assert (one.schema(), other.schema(), third.schema()) == (None, None, None)
    one.create(SCHEMA)
    other.create(SCHEMA)
    assert other.prepare(SCHEMA) == SCHEMA
    monkeypatch.setattr(type(third), "schema", _late(type(third).schema))
    with pytest.raises(InvalidRequestError, match=r"asked for is \[n\]"):
        third.prepare(SCHEMA)


def _late(real: Callable[[Target], Any]) -> Callable[[Target], Any]:
    """What finds no table the first time it is asked."""
    asked: list[int] = []

    def found(self: Target) -> Any:
        asked.append(1)
        return None if len(asked) == 1 else real(self)

    return found


def test_who_asks_for_nothing_goes_on_with_the_partitions_that_there_are(opener: Opener) -> None:
    opener().prepare(SCHEMA)
    target = opener(partition_by=None)
    target.prepare(SCHEMA)
    target.append(stage(target, ROWS), {})
    assert len(target.files()) >= 4
    assert read_by_others(target) == ROWS


def test_compaction_joins_files_of_one_partition(opener: Opener) -> None:
    target = opener()
    target.prepare(SCHEMA)
    for number in range(3):
        rows = [one | {"_key": one["_key"] + b"%d" % number} for one in ROWS]
        target.append(stage(target, rows), {"q/0": MarkStep(number or None, number + 1)})
    before, files = read_by_others(target), len(target.files())
    removed, added = opener().compact(1 << 20)
    assert len(opener().files()) == files - removed + added
    assert 4 <= len(opener().files()) < files
    assert added >= 2
    assert read_by_others(opener()) == before
    assert opener().compact(1 << 20) == (0, 0)
    target = opener()
    assert target.mark("q/0") == 3
    time.sleep(0.01)
    assert target.expire(time.time_ns() // 1_000_000 + 60_000).files >= removed
    assert read_by_others(opener()) == before
    again = opener()
    again.prepare(SCHEMA)
    assert again.append(stage(again, ROWS), {"q/0": MarkStep(3, 4)})
    assert len(read_by_others(again)) == 20


def test_a_row_moves_to_another_partition(opener: Opener) -> None:
    target = opener()
    target.prepare(SCHEMA)
    if KINDS[target.kind].refusal is not None:
        pytest.skip("rows of this kind cannot be changed")
    assert target.merge(changes(*ROWS), {"q/0": MarkStep(None, 1)})
    assert read_by_others(opener()) == ROWS
    moved = [
        row(b"a", 2, "elsewhere", date(2024, 1, 3), ok=False),
        row(b"c", 3, "was null", date(2020, 1, 1), ok=True),
        row(b"e", 5, None, None, at=None, n=None),
        row(b"f", 1, "new", OLD),
    ]
    step = {"q/0": MarkStep(1, 2)}
    again = opener()
    assert again.merge(changes(*moved, gone(b"d", 3), row(b"b", 0, "late")), step)
    assert not opener().merge(changes(*moved), step)
    expected = [moved[0], ROWS[1], *moved[1:]]
    assert read_by_others(opener()) == expected
    assert opener().merge(changes(gone(b"a", 1), gone(b"nobody", 9)), {"q/0": MarkStep(2, 3)})
    assert read_by_others(opener()) == expected, "late, and of no row"
    opener().compact(1 << 20)
    assert opener().merge(
        changes(gone(b"a", 2), *(gone(one["_key"], 9) for one in ROWS[1:])), {"q/0": MarkStep(3, 4)}
    )
    assert read_by_others(opener()) == [moved[-1]]


@pytest.mark.parametrize("change", ["append", "merge", "compact"])
def test_another_writer_comes_between(opener: Opener, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    target, other = opener(), opener()
    if change == "merge" and KINDS[target.kind].refusal is not None:
        pytest.skip("rows of this kind cannot be changed")
    for one in (target, other):
        one.prepare(SCHEMA)
    for number in range(2):
        target.append(stage(target, ROWS[2:]), {"q/0": MarkStep(number or None, number + 1)})
    step = {"q/0": MarkStep(2, 3)}
    calls: list[int] = []
    real = Target.check_partitions

    def check(self: Target, files: Any) -> None:
        real(self, files)
        if not calls:
            calls.append(1)
            assert other.append(stage(other, ROWS[:1]), step)

    monkeypatch.setattr(Target, "check_partitions", check)
    if change == "compact" and target.kind != "delta":
        assert target.compact(1 << 20).removed >= 6
    elif change == "append":
        assert not target.append(stage(target, ROWS[:1]), step), "that was this very commit"
    elif change == "merge" and target.kind == "iceberg":
        assert not target.merge(changes(ROWS[0]), step)
    monkeypatch.undo()
    if calls:
        assert Counter(one["_key"] for one in read_by_others(opener())) == {
            b"a": 1,
            b"c": 2,
            b"d": 2,
            b"e": 2,
        }


def test_columns_are_added_and_structs_widened(opener: Opener) -> None:
    target = opener()
    target.prepare(SCHEMA)
    target.append(stage(target, ROWS), {})
    more = pa.schema([*SCHEMA, ("s", pa.struct([("x", pa.int32())]))])
    target.prepare(more)
    wider = pa.schema([*SCHEMA, ("s", pa.struct([("x", pa.int32()), ("y", pa.string())]))])
    assert opener().prepare(wider).field("s").type == wider.field("s").type
    again = opener()
    again.prepare(wider)
    again.append(stage(again, [row(b"z", 9, "plain", OLD, s={"x": 1, "y": "z"})]), {})
    again.compact(1 << 20)
    assert read_by_others(again) == [*ROWS, row(b"z", 9, "plain", OLD)]


def test_a_table_with_another_layout_is_refused_and_left_alone(opener: Opener, tmp_path: Path) -> None:
    opener().prepare(SCHEMA)
    for asked, said in ((["n"], "[n]"), ([], "nothing")):
        before = everything(tmp_path)
        target = opener(partition_by=asked)
        for refused in (lambda one=target: one.prepare(SCHEMA), lambda one=target: compact(one)):
            with pytest.raises(InvalidRequestError) as caught:
                refused()
            words = caught.value.message
            assert "is there already, and otherwise than asked for: partition_by is [" in words
            assert f"asked for is {said}" in words
            assert "Leave the option out" in words
        assert everything(tmp_path) == before
    opener(partition_by=", ".join(map(str, opener().asked.partition_by or ()))).prepare(SCHEMA)


def test_a_mirror_is_refused_before_it_carries_anything_out(tmp_path: Path) -> None:
    from antiphon.lake import query
    from antiphon.lake.values.options import ValueOptions

    def recipe(schema: str | None = "n bigint", **asked: Any) -> Recipe:
        target = open_target(options("delta", tmp_path, **asked))
        said = ValueOptions("json", schema), query.TriggerOptions(), None
        return query.recipe(None, TOPIC, target, RowShape(is_table=False), *said)

    with pytest.raises(
        InvalidRequestError,
        match="partition_by: there is no column nope; there is _key, n, _rest, _partition",
    ):
        recipe(partition_by=["nope"])
    assert everything(tmp_path) == set()
    recipe(partition_by=["_partition"])
    target = open_target(options("delta", tmp_path))
    target.prepare(SCHEMA)
    plans = Plans(target, f"{TOPIC.name}/{TOPIC.id}")
    plans.write(Plan(tuple(stage(target, ROWS)), (), {TOPIC.mark(0): MarkStep(None, 5)}, 0, False, "a"))
    before = everything(tmp_path)
    for schema in ("n bigint", None):
        with pytest.raises(
            InvalidRequestError, match=r"partition_by is nothing, asked for is \[_partition\]"
        ):
            recipe(schema, partition_by=["_partition"])
    assert everything(tmp_path) == before
    recipe()


# -- mirrors --------------------------------------------------------------------------------------------------------

JSON = ValueSpec("json", pa.schema([("n", pa.int64()), ("p", pa.string())]), new_fields="rest")


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_crash_anywhere_of_a_mirror_with_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, stride: int
) -> None:
    frames = [
        (Frame(records(0, 0, 4, bad=[1]), records(1, 0, 2)), Epoch({}, {0: 4, 1: 2})),
        (Frame(records(0, 4, 7, bad=[5]), records(1, 2, 4, bad=[2, 3])), Epoch({0: 4, 1: 2}, {0: 7, 1: 4})),
    ]
    expected = Counter([(0, n) for n in (0, 2, 3, 4, 6)] + [(1, 0), (1, 1)])
    for alive in range(0, 203, stride):
        letters = Letters()
        opened: list[Target] = []

        def mirror(folder: Path = tmp_path / str(alive), opened: list[Target] = opened) -> Mirror:
            opened.append(open_target(options(kind, folder, partition_by=["_partition", "n"])))
            found = Mirror(None, TOPIC, opened[-1], Recipe(RowShape(is_table=False), JSON, "dead"), [0, 1])
            found.recover()
            return found

        with monkeypatch.context() as patch:
            dying = Dying(patch, letters, alive)
            try:
                one = mirror()
                for frame, epoch in frames:
                    one.apply(frame, epoch)
            except KeyboardInterrupt:
                assert dying.dead
        with monkeypatch.context() as patch:
            patch.setattr("antiphon.lake.mirror.send_dead_letters", letters.send)
            again = mirror()
            for frame, epoch in frames:
                again.apply(frame, epoch)
        found = Counter(
            (int(values.get("_partition") or row.get("_partition") or 0), row["_offset"])
            for url, values in opened[-1].parts()
            for row in pq.read_table(url.removeprefix("file://"), partitioning=None).to_pylist()
        )
        assert found == expected, f"died before thing {alive}"
        assert letters.all == [(b"poison", n) for n in (1, 2, 3, 5)], f"died before thing {alive}"
        for target in opened:
            target.close()
        if not dying.dead:
            break
    assert 15 < alive < 202, "every thing had its turn"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KINDS[kind].refusal is None])
def test_a_mirror_of_a_table_that_dies_in_its_merge_moves_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    opened: list[Target] = []

    def mirror() -> Mirror:
        opened.append(open_target(options(kind, tmp_path, partition_by=["p"])))
        found = Mirror(None, TABLE, opened[-1], Recipe(RowShape(is_table=True), JSON), [0, 1])
        found.recover()
        return found

    first = change_rows([(0, n, b"k%d" % n, b'{"n": %d, "p": "one"}' % n, 1) for n in range(4)])
    mirror().apply(Frame(first), Epoch({}, {0: 4}))
    second = Frame(
        change_rows(
            [(0, 4, b"k1", b'{"n": 7, "p": "two"}', 2), (0, 5, b"k2", None, 1), (0, 6, b"k3", b'{"n": 3}', 2)]
        )
    )
    merge = type(opened[-1]).merge
    for late in (False, True):

        def dies(self: Target, *args: Any, late: bool = late) -> bool:
            if late:
                merge(self, *args)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(type(opened[-1]), "merge", dies)
            with pytest.raises(KeyboardInterrupt):
                mirror().apply(second, Epoch({0: 4}, {0: 7}))
    mirror().apply(second, Epoch({0: 4}, {0: 7}))
    target = opened[-1]
    whole = (
        DeltaTable(str(target.folder.local_path)).to_pyarrow_table()
        if kind == "delta"
        else iceberg_table(target).scan().to_arrow()
    )
    assert sorted((one["_key"], one["n"], one["p"]) for one in whole.to_pylist() if one["p"]) == [
        (b"k0", 0, "one"),
        (b"k1", 7, "two"),
    ]
    assert [(one["_key"], one["n"]) for one in whole.to_pylist() if one["p"] is None] == [(b"k3", 3)]
    for one in opened:
        one.close()


def test_files_of_a_plan_from_before_the_partitions_changed_are_refused(tmp_path: Path) -> None:
    target = open_target(options("iceberg", tmp_path, partition_by=["day(at)"]))
    target.prepare(SCHEMA)
    files = stage(target, ROWS)
    with iceberg_table(target).update_spec() as spec:
        spec.add_identity("name")
    with pytest.raises(
        TargetConflictError, match="its partitions have changed since these files were written"
    ):
        target.append(files, {"q/0": MarkStep(None, 1)})
    again = open_target(options("iceberg", tmp_path))
    again.prepare(SCHEMA)
    assert again.append(stage(again, ROWS), {"q/0": MarkStep(None, 1)})
    assert read_by_others(again) == ROWS
    for one in (target, again):
        one.close()
