"""Which shard answers for which keys at a cut of a table whose shards were split: exactly one for each."""

from random import Random

import pyarrow as pa
import pytest

from antiphon.model.metadata import ShardMeta, key_hash, shard_range
from antiphon.spark.read.table_cut import answering, parents
from antiphon.spark.read.table_fold import Fold, joined, without_keys


class Table:
    """Splits at random; remembers who came from whom."""

    def __init__(self, random: Random, shards: int) -> None:
        self.random = random
        self.ranges = [shard_range(index, shards) for index in range(shards)]
        self.above: dict[int, int] = {}
        self.starts = [0] * shards

    def split(self) -> None:
        parent = self.random.randrange(len(self.ranges))
        first, last = self.ranges[parent]
        at = self.random.randint(first + 1, last)
        self.ranges[parent] = (first, at - 1)
        self.above[len(self.ranges)] = parent
        self.ranges.append((at, last))
        self.starts.append(self.random.randint(1, 50))

    def metas(self) -> list[ShardMeta]:
        hashes = self.ranges if self.above else [()] * len(self.ranges)
        return [
            ShardMeta(100 + index, index, (0,), hashes=hashes[index], own_start=self.starts[index])
            for index in range(len(self.ranges))
        ]


@pytest.mark.parametrize("seed", range(30))
def test_every_key_is_one_shards(seed: int) -> None:
    random = Random(seed)
    table = Table(random, random.randint(1, 4))
    for _ in range(random.randint(0, 8)):
        table.split()
    metas = table.metas()
    random.shuffle(metas)
    assert parents(metas) == table.above
    until = {index: random.randint(0, 60) for index in range(len(metas))}
    found = answering(metas, until)
    for hash32 in [*(random.randrange(1 << 32) for _ in range(200)), *(r[0] for r in table.ranges)]:
        now = next(index for index, (first, last) in enumerate(table.ranges) if first <= hash32 <= last)
        while until[now] < table.starts[now]:
            now = table.above[now]
        holders = [
            index for index, ranges in found.items() if any(first <= hash32 <= last for first, last in ranges)
        ]
        assert holders == [now]


def test_a_shard_that_is_not_named_is_the_others_that_it_came_from() -> None:
    table = Table(Random(1), 2)
    table.split()
    parent = table.above[2]
    found = answering(table.metas(), {0: 10, 1: 10})
    assert sorted(found) == [0, 1]
    assert found[parent] == (table.ranges[parent], table.ranges[2])
    other = 1 - parent
    assert list(answering(table.metas(), {other: 10})) == [other]


def _changes(rows: list[tuple[str, str | None]]) -> pa.RecordBatch:
    keys, values = zip(*rows, strict=True)
    return pa.record_batch(
        [pa.array([k.encode() for k in keys], pa.binary()), pa.array(values, pa.binary())], ["key", "value"]
    )


@pytest.mark.parametrize("drop_deleted", [True, False])
def test_a_fold_keeps_the_last_change(monkeypatch: pytest.MonkeyPatch, drop_deleted: bool) -> None:
    monkeypatch.setattr("antiphon.spark.read.table_fold.BYTES_MIN", 400)
    random, expected = Random(3), dict[str, str | None]()
    fold = Fold(drop_deleted=drop_deleted)
    for number in range(60):
        rows = [
            (f"k{random.randrange(40)}", None if random.random() < 0.3 else f"{number}-{place}")
            for place in range(random.randrange(1, 12))
        ]
        fold.add(_changes(rows))
        expected.update(rows)
    parts = list(joined(fold.result(), 15))
    found = {row["key"].decode(): row["value"] for part in parts for row in part.to_pylist()}
    wanted = {key: value.encode() if value else None for key, value in expected.items()}
    assert found == {key: value for key, value in wanted.items() if value is not None or not drop_deleted}
    assert sum(part.num_rows for part in parts) == len(found)


def test_rows_of_keys_that_changed_are_left_out() -> None:
    rows = _changes([("a", "1"), ("b", "2")])
    assert without_keys(rows, []) is rows
    assert without_keys(rows, [_changes([("b", None)]), _changes([("c", "1")])]).to_pylist() == [
        {"key": b"a", "value": b"1"}
    ]


def test_hashes_are_those_that_place_keys() -> None:
    from antiphon.spark.read.table_fold import within

    rows = _changes([(f"k{n}", "v") for n in range(100)])
    half = 1 << 31
    low, high = within(rows, [(0, half - 1)]), within(rows, [(half, (1 << 32) - 1)])
    assert low.num_rows + high.num_rows == 100
    assert all(key_hash(row["key"]) < half for row in low.to_pylist())
