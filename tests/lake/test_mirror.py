"""A mirror without Spark: its tasks run in this process. Whatever dies at whatever step, rows and dead letters are once."""

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from antiphon.errors import BadRecordError, DataLossError, InvalidRequestError, TargetConflictError
from antiphon.lake import mirror as mirror_module
from antiphon.lake.mirror import Epoch, Mirror, Recipe, Source
from antiphon.lake.plans import Plan, Plans
from antiphon.lake.records import RowShape
from antiphon.lake.targets.folder import Folder
from antiphon.lake.targets.kinds import KINDS
from antiphon.lake.targets.staged import DataFile
from antiphon.lake.targets.target import MarkStep, Target, open_target
from antiphon.lake.upkeep import expire
from antiphon.lake.values.decoding import ValueSpec

TOPIC = Source("127.0.0.1:1", "flights", "ab" * 16, is_table=False)
TABLE = Source("127.0.0.1:1", "aircraft", "cd" * 16, is_table=True)
COLUMNS = pa.schema([("n", pa.int64())])
JSON = ValueSpec("json", COLUMNS, new_fields="rest")
AT = pa.scalar(1_700_000_000_000_000, pa.int64()).cast(pa.timestamp("us", "Etc/UTC")).as_py()
Record = tuple[int, int, bytes | None, bytes | None]  # shard, offset, key, value


class Frame:
    """A DataFrame of some batches whose tasks run when they are collected."""

    def __init__(self, *tasks: pa.RecordBatch) -> None:
        self.tasks = tasks

    def mapInArrow(self, task: Any, schema: str) -> "Frame":  # noqa: N802 - Spark's name
        assert schema == "report string"
        return Frame(*(out for batch in self.tasks for out in task(iter([batch]))))

    def collect(self) -> list[dict[str, Any]]:
        return [row for batch in self.tasks for row in batch.to_pylist()]


def topic_rows(records: Sequence[Record]) -> pa.RecordBatch:
    shards, offsets, keys, values = zip(*records, strict=True)
    return pa.record_batch(
        [
            pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(shards, pa.int32()),
            pa.array(offsets, pa.int64()), pa.array([AT] * len(shards), pa.timestamp("us", "Etc/UTC")),
        ],
        names=["key", "value", "partition", "offset", "timestamp"],
    )  # fmt: skip


def change_rows(changes: Sequence[tuple[int, int, bytes, bytes | None, int]]) -> pa.RecordBatch:
    batch = topic_rows([change[:4] for change in changes])
    versions = pa.array([change[4] for change in changes], pa.int64())
    return pa.record_batch(
        [batch.column("key"), batch.column("value"), versions, batch.column("timestamp"), batch.column("partition"),
         batch.column("offset")],
        names=["key", "value", "version", "modified", "partition", "offset"],
    )  # fmt: skip


class Letters:
    """A dead-letter topic: takes each plan's records once, as the sink does."""

    def __init__(self) -> None:
        self.plans: dict[str, list[dict[str, Any]]] = {}

    def send(self, spark: Any, servers: str, topic: str, folder: Folder, plan: Plan) -> None:
        where = folder.local_path
        assert where is not None
        rows = [row for file in plan.bad_files for row in pq.read_table(where / file.name).to_pylist()]
        assert self.plans.setdefault(plan.id, rows) == rows

    @property
    def all(self) -> list[tuple[bytes, int]]:
        return sorted((row["value"], row["_offset"]) for rows in self.plans.values() for row in rows)


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    found = Letters()
    monkeypatch.setattr(mirror_module, "send_dead_letters", found.send)
    return found


Opener = Callable[..., Mirror]


@pytest.fixture(params=KINDS)
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same mirror anew, as after a crash."""
    made: list[Any] = []

    def again(
        source: Source = TOPIC, spec: ValueSpec = JSON, dead: str | None = "dead", **shape: Any
    ) -> Mirror:
        options = {"kind": request.param, "path": str(tmp_path / "lake")}
        if KINDS[request.param].has_tables:
            options["table"] = "db.t"
        target = open_target(options)
        made.append(target)
        recipe = Recipe(RowShape(source.is_table, **shape), spec, dead)
        found = Mirror(None, source, target, recipe, [0, 1])
        found.recover()
        return found

    yield again
    for target in made:
        target.close()


def target_of(mirror: Mirror) -> Target:
    found: Target = mirror._target
    return found


def rows(mirror: Mirror) -> list[dict[str, Any]]:
    target = target_of(mirror)
    return [
        row
        for url in target.files()
        for row in pq.read_table(url.removeprefix("file://"), partitioning=None).to_pylist()
    ]


def places(mirror: Mirror) -> Counter[tuple[int, int]]:
    return Counter((row["_partition"], row["_offset"]) for row in rows(mirror))


def records(shard: int, start: int, end: int, bad: Sequence[int] = ()) -> pa.RecordBatch:
    return topic_rows(
        [(shard, n, b"k%d" % n, b"poison" if n in bad else b'{"n": %d}' % n) for n in range(start, end)]
    )


def test_each_row_once_over_overlapping_epochs(opener: Opener, letters: Letters) -> None:
    one = opener()
    one.apply(Frame(records(0, 0, 3), records(1, 0, 2)), Epoch({}, {0: 3, 1: 2}))
    one.apply(Frame(records(0, 3, 5)), Epoch({0: 3, 1: 2}, {0: 5, 1: 2}))
    assert one.positions == {0: 5, 1: 2}
    # An old copy of the checkpoint: epochs are cut elsewhere, and most of the rows are there.
    again = opener()
    assert again.positions == {0: 5, 1: 2}
    again.apply(Frame(records(0, 2, 5)), Epoch({0: 2}, {0: 5}))
    again.apply(Frame(records(0, 4, 8), records(1, 0, 2)), Epoch({0: 4}, {0: 8, 1: 2}))
    assert places(again) == Counter([(0, n) for n in range(8)] + [(1, 0), (1, 1)])
    found = min(rows(again), key=lambda row: (row["_partition"], row["_offset"]))
    assert found == {
        "_key": b"k0", "n": 0, "_rest": None, "_partition": 0, "_offset": 0,
        "_timestamp": AT.astimezone(found["_timestamp"].tzinfo),
    }  # fmt: skip
    assert not letters.plans
    again.apply(Frame(), Epoch({0: 8}, {0: 11}))
    assert opener().positions == {0: 11, 1: 2}, "offsets without records count too"


STEPS = ["staged", "planned", "committed", "dead letters", "plan removed"]


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_each_step(
    opener: Opener, letters: Letters, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = opener()
    frame = Frame(records(0, 0, 5, bad=[2]), records(1, 0, 5, bad=[0, 4]))
    epoch = Epoch({}, {0: 5, 1: 5})

    def dies(real: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
        def dying(*args: Any, **kwargs: Any) -> Any:
            if not before:
                real(*args, **kwargs)
            raise KeyboardInterrupt(step)

        return dying

    if step == "staged":
        monkeypatch.setattr(Plans, "write", dies(Plans.write, before=True))
    elif step == "planned":
        monkeypatch.setattr(Plans, "write", dies(Plans.write, before=False))
    elif step == "committed":
        kind = type(target_of(first))
        monkeypatch.setattr(kind, "append", dies(kind.append, before=False))
    elif step == "dead letters":
        monkeypatch.setattr(mirror_module, "send_dead_letters", dies(letters.send, before=False))
    else:
        monkeypatch.setattr(Plans, "remove", dies(Plans.remove, before=False))
    with pytest.raises(KeyboardInterrupt):
        first.apply(frame, epoch)
    monkeypatch.undo()
    monkeypatch.setattr(mirror_module, "send_dead_letters", letters.send)
    again = opener()
    again.apply(frame, epoch)
    again.apply(frame, epoch)
    expected = Counter((shard, n) for shard in (0, 1) for n in range(5))
    for place in [(0, 2), (1, 0), (1, 4)]:
        del expected[place]
    assert places(again) == expected
    assert letters.all == [(b"poison", 0), (b"poison", 2), (b"poison", 4)]
    assert not target_of(again).meta.files("bad") or step == "staged"
    assert not target_of(again).meta.files("plans")


def test_a_bad_record_without_dead_letters(opener: Opener, letters: Letters) -> None:
    one = opener(dead=None)
    one.apply(Frame(records(0, 0, 2)), Epoch({}, {0: 2}))
    files = target_of(one).data.files()
    with pytest.raises(
        BadRecordError,
        match=r"topic flights shard 0 offset 4 cannot be decoded as json: not JSON: .* Nothing of this epoch was written",
    ) as caught:
        one.apply(Frame(records(1, 0, 9), records(0, 2, 9, bad=[4, 6])), Epoch({0: 2}, {0: 9, 1: 9}))
    assert caught.value.details["offset"] == 4
    assert places(one) == Counter([(0, 0), (0, 1)])
    assert target_of(one).data.files() == files, "no file is left"
    assert opener().positions == {0: 2}


def test_dead_letters_say_where_they_come_from(opener: Opener, letters: Letters) -> None:
    opener().apply(Frame(topic_rows([(1, 7, b"key", b"[]"), (1, 8, None, None)])), Epoch({}, {1: 9}))
    ((letter,),) = letters.plans.values()
    told = {pair["key"]: pair["value"] for pair in letter["headers"]}
    assert (letter["key"], letter["value"]) == (b"key", b"[]")
    assert (told["antiphon.source"], told["antiphon.shard"], told["antiphon.offset"]) == (
        b"flights",
        b"1",
        b"7",
    )
    assert told["antiphon.reason"] == b"a JSON list where an object is needed"


def test_a_checkpoint_that_is_ahead_is_refused(opener: Opener, letters: Letters) -> None:
    one = opener()
    with pytest.raises(
        DataLossError, match="has flights shard 0 up to offset 0, but the checkpoint goes on at 5"
    ):
        one.apply(Frame(records(0, 5, 6)), Epoch({0: 5}, {0: 6}))
    one.apply(Frame(records(0, 0, 6)), Epoch({}, {0: 6}))
    with pytest.raises(DataLossError, match="up to offset 6, but the checkpoint goes on at 7"):
        opener().apply(Frame(records(0, 7, 9)), Epoch({0: 7}, {0: 9}))


def test_of_two_mirrors_one_goes_on(opener: Opener, letters: Letters) -> None:
    one, other = opener(), opener()
    one.apply(Frame(records(0, 0, 3)), Epoch({}, {0: 3}))
    with pytest.raises(TargetConflictError):
        other.apply(Frame(records(0, 0, 5)), Epoch({}, {0: 5}))
    one.apply(Frame(records(0, 3, 6)), Epoch({0: 3}, {0: 6}))
    assert places(one) == Counter((0, n) for n in range(6))


def test_new_fields_become_columns_and_lose_nothing(opener: Opener, letters: Letters) -> None:
    spec = ValueSpec("json", COLUMNS, new_fields="add")
    one = opener(spec=spec)
    one.apply(Frame(records(0, 0, 1)), Epoch({}, {0: 1}))
    assert [row.get("_rest") for row in rows(one)] == [None]
    values = [b'{"n": 1, "a": 1}', b'{"n": 2, "a": 2.5, "b": {"c": "x"}}', b'{"n": 3, "m": 1}']
    more = [b'{"n": 4, "m": "one"}']
    first = topic_rows([(0, 1 + n, None, value) for n, value in enumerate(values)])
    one.apply(Frame(first, topic_rows([(0, 4, None, more[0])])), Epoch({0: 1}, {0: 5}))
    found = sorted(rows(one), key=lambda row: row["_offset"])
    assert [row.get("a") for row in found] == [None, 1.0, 2.5, None, None]
    assert [row.get("b") for row in found] == [None, None, {"c": "x"}, None, None]
    assert [row.get("_rest") for row in found] == [None, None, None, '{"m":1}', '{"m":"one"}']
    assert not letters.plans
    nested = topic_rows([(0, 5, None, b'{"n": 5, "b": {"c": "y", "d": [1]}}')])
    opener(spec=spec).apply(Frame(nested), Epoch({0: 5}, {0: 6}))
    last = max(rows(opener(spec=spec)), key=lambda row: row["_offset"])
    assert (last["b"], json.loads(last["_rest"])) == ({"c": "y"}, {"b": {"d": [1]}})


def test_a_column_of_another_type_is_refused(opener: Opener, letters: Letters) -> None:
    opener().apply(Frame(records(0, 0, 1)), Epoch({}, {0: 1}))
    other = opener(spec=ValueSpec("json", pa.schema([("n", pa.string())])))
    with pytest.raises(
        InvalidRequestError, match=r"column n of .* has type int64, what is to be written has string"
    ):
        other.apply(Frame(records(0, 1, 2)), Epoch({0: 1}, {0: 2}))
    clash = opener(spec=ValueSpec("json", pa.schema([("_offset", pa.int64())])))
    with pytest.raises(InvalidRequestError, match="a field of the values is called _offset"):
        clash.apply(Frame(records(0, 1, 2)), Epoch({0: 1}, {0: 2}))


def test_keys_as_text(opener: Opener, letters: Letters) -> None:
    one = opener(spec=ValueSpec("raw"), key_format="text")
    one.apply(
        Frame(topic_rows([(0, 0, "ä".encode(), b"\xff"), (0, 1, b"\xff", b"2"), (0, 2, None, None)])),
        Epoch({}, {0: 3}),
    )
    assert [(row["_key"], row["value"]) for row in rows(one)] == [("ä", b"\xff"), (None, None)]
    ((letter,),) = letters.plans.values()
    assert letter["headers"][0]["value"] == b"the key is not UTF-8 text"


@pytest.mark.parametrize(
    "wrong",
    [
        {"marks": []},
        {"bad": "1"},
        {"files": [{"name": "x"}]},
        {"bad_files": [{"name": "../../other.parquet", "rows": 1, "size_bytes": 1}]},
    ],
)
def test_a_plan_that_says_what_cannot_be_is_refused(opener: Opener, wrong: dict[str, Any]) -> None:
    """Nothing of it is committed, and no file that it names is removed."""
    target = target_of(opener())
    plans = Plans(target, "t")
    body = {"id": "a", "files": [], "bad_files": [], "marks": {"t": [None, 1]}, "bad": 0, "merge": False}
    target.meta.create(plans.name, json.dumps(body).encode())
    assert plans.open() == Plan((), (), {"t": MarkStep(None, 1)}, 0, False, "a")
    target.meta.delete(plans.name)
    for data in (json.dumps(body | wrong).encode(), b"\xff", b"[" * 100_000, b"{}"):
        target.meta.create(plans.name, data)
        with pytest.raises(InvalidRequestError, match="is damaged"):
            plans.open()
        target.meta.delete(plans.name)


def test_expiry_leaves_plans_alone(opener: Opener, letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(*_: Any) -> None:
        raise KeyboardInterrupt

    one = opener()
    one.apply(Frame(records(0, 0, 1)), Epoch({}, {0: 1}))
    monkeypatch.setattr(type(target_of(one)), "append", dying)
    with pytest.raises(KeyboardInterrupt):
        one.apply(Frame(records(0, 1, 5, bad=[2])), Epoch({0: 1}, {0: 5}))
    monkeypatch.undo()
    monkeypatch.setattr(mirror_module, "send_dead_letters", letters.send)
    with pytest.raises(TargetConflictError, match="a mirror was stopped within an epoch"):
        expire(target_of(one), "0 seconds", force=True)
    with pytest.raises(InvalidRequestError, match="less than an hour"):
        expire(target_of(one), "5 minutes")
    target_of(one).expire(0)
    again = opener()
    assert places(again) == Counter((0, n) for n in range(5) if n != 2)
    assert letters.all == [(b"poison", 2)]


# -- tables ---------------------------------------------------------------------------------------------------------


def state(mirror: Mirror) -> dict[bytes, int]:
    return {row["_key"]: row["n"] for row in rows(mirror)}


@pytest.fixture
def table(opener: Opener, request: pytest.FixtureRequest) -> Opener:
    """A mirror of a table, in the kinds that hold one."""
    if KINDS[request.node.callspec.params["opener"]].refusal is not None:
        pytest.skip("rows of this kind cannot be changed")
    return lambda **options: opener(source=TABLE, **options)


CHANGES = [
    (0, 1, b"a", b'{"n": 1}', 1), (0, 2, b"b", b'{"n": 2}', 2), (0, 3, b"a", b'{"n": 3}', 3), (0, 4, b"b", None, 2),
    (1, 1, b"c", b'{"n": 4}', 1), (1, 2, b"c", b"poison", 2), (1, 3, b"d", b'{"n": 5}', 3),
]  # fmt: skip


@pytest.mark.parametrize("step", ["planned", "merged", "dead letters", None])
def test_the_state_of_a_table(
    table: Opener, letters: Letters, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    one = table()
    one.apply(Frame(change_rows(CHANGES[:2] + CHANGES[4:5])), Epoch({}, {0: 3, 1: 2}))
    assert state(one) == {b"a": 1, b"b": 2, b"c": 4}
    frame, epoch = (
        Frame(change_rows(CHANGES[:3]), change_rows(CHANGES[3:])),
        Epoch({0: 3, 1: 2}, {0: 5, 1: 4}),
    )
    kind = type(target_of(one))
    real: dict[str, Any] = {"merge": kind.merge}

    def dying(*args: Any, **kwargs: Any) -> Any:
        if step == "merged":
            real["merge"](*args, **kwargs)
        if step == "dead letters":
            letters.send(*args)
        raise KeyboardInterrupt

    if step == "dead letters":
        monkeypatch.setattr(mirror_module, "send_dead_letters", dying)
    elif step is not None:
        monkeypatch.setattr(kind, "merge", dying)
    if step is None:
        one.apply(frame, epoch)
    else:
        with pytest.raises(KeyboardInterrupt):
            one.apply(frame, epoch)
    monkeypatch.undo()
    monkeypatch.setattr(mirror_module, "send_dead_letters", letters.send)
    again = table()
    again.apply(frame, epoch)
    assert state(again) == {b"a": 3, b"d": 5}, "b was deleted, and c has no value that can be read"
    assert letters.all == [(b"poison", 2)]
    assert not target_of(again).meta.files("changes")
    again.apply(Frame(change_rows([(1, 4, b"c", b'{"n": 6}', 4)])), Epoch({0: 5, 1: 4}, {1: 5}))
    assert state(table()) == {b"a": 3, b"c": 6, b"d": 5}


def test_a_snapshot_and_the_changes_since_before_it(table: Opener, letters: Letters) -> None:
    one = table()
    snapshot = [(0, 0, b"a", b'{"n": 3}', 3), (1, 0, b"d", b'{"n": 5}', 3), (1, 0, b"x", b"poison", 9)]
    one.load(Frame(change_rows(snapshot)), {0: 2, 1: 1})
    assert state(table()) == {b"a": 3, b"d": 5}
    again = table()
    assert again.positions == {0: 2, 1: 1}
    again.apply(Frame(change_rows(CHANGES[1:4]), change_rows(CHANGES[4:])), Epoch({}, {0: 5, 1: 4}))
    assert state(again) == {b"a": 3, b"d": 5}
    assert [value for value, _ in letters.all] == [b"poison", b"poison"]


def test_files_of_rows_survive_as_json() -> None:
    file = DataFile("a", 1, 2, {"x": 0}, {"x": -5}, {"x": 7})
    assert DataFile.from_json(json.loads(json.dumps(file.to_json()))) == file


# -- a crash before every single thing that is done --------------------------------------------------------------------


class Dying:
    """Dies before the n-th thing that is done to files, tables and the dead-letter topic, and at each one after it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, letters: Letters, alive: int) -> None:
        self.left = alive
        for name in ("create", "move", "delete", "open_write"):
            monkeypatch.setattr(Folder, name, self.mortal(getattr(Folder, name)))
        monkeypatch.setattr(mirror_module, "send_dead_letters", self.mortal(letters.send))
        for module, name in (("deltalake", "DeltaTable"), ("pyiceberg.table", "Transaction")):
            kind = getattr(importlib.import_module(module), name)
            for method in ("create_write_transaction", "commit_transaction"):
                if hasattr(kind, method):
                    monkeypatch.setattr(kind, method, self.mortal(getattr(kind, method)))

    @property
    def dead(self) -> bool:
        return self.left <= 0

    def mortal(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def does(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        return does


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_crash_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    frames = [
        (Frame(records(0, 0, 4, bad=[1]), records(1, 0, 2)), Epoch({}, {0: 4, 1: 2})),
        (Frame(records(0, 4, 7, bad=[5]), records(1, 2, 4, bad=[2, 3])), Epoch({0: 4, 1: 2}, {0: 7, 1: 4})),
    ]
    expected = Counter([(0, n) for n in (0, 2, 3, 4, 6)] + [(1, 0), (1, 1)])
    for alive in range(200):
        letters = Letters()

        def opened(folder: Path = tmp_path / str(alive)) -> Mirror:
            recipe = Recipe(RowShape(is_table=False), JSON, "dead")
            found = Mirror(None, TOPIC, open_target(f"{kind}:{folder}"), recipe, [0, 1])
            found.recover()
            return found

        with monkeypatch.context() as patch:
            dying = Dying(patch, letters, alive)
            try:
                mirror = opened()
                for frame, epoch in frames:
                    mirror.apply(frame, epoch)
            except KeyboardInterrupt:
                assert dying.dead
        with monkeypatch.context() as patch:
            patch.setattr(mirror_module, "send_dead_letters", letters.send)
            again = opened()
            for frame, epoch in frames:
                again.apply(frame, epoch)
        assert places(again) == expected, f"died before thing {alive}"
        assert letters.all == [(b"poison", n) for n in (1, 2, 3, 5)], f"died before thing {alive}"
        if not dying.dead:
            break
    assert 15 < alive < 199, "every thing had its turn"
