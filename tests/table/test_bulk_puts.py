"""Rows of a load that are judged together come to what their puts come to, in the log and in the store."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from antiphon.invariants import InvariantError
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import Delete, Put
from antiphon.records.attributes import Attributes
from antiphon.records.batch import stamp
from antiphon.records.packed_effects import EffectKernels
from antiphon.records.packed_rows import PackedRow, packed
from antiphon.table import bulk_puts
from antiphon.table.bulk_puts import LOOKED_UP, Loading
from antiphon.table.evaluation import KEY_BYTES_MAX
from antiphon.table.key_order import MARK_KEY
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState, open_state
from antiphon.table.store import Store
from antiphon.table.stored_versions import Versions, versions_between, versions_of
from tests.records.test_packed_effects import loaded_kernels
from tests.table.leading import Leader
from tests.table.test_folding import in_order, stored, without_entries

KERNELS = loaded_kernels()
NOBODY = (-1, -1, -1)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with open_state(str(tmp_path / "loads"), RocksEngine()) as state:
        yield Leader(state)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Leader]:
    with open_state(str(tmp_path / "puts"), RocksEngine()) as state:
        yield Leader(state)


def judged(leader: Leader, rows: list[PackedRow], kernels: EffectKernels = KERNELS) -> Loading | None:
    return leader.evaluator.loads.judged(packed(rows), len(rows), 100, NOBODY, kernels)


def load(leader: Leader, rows: list[PackedRow]) -> None:
    loading = judged(leader, rows)
    assert loading is not None
    stamp(loading.batch, leader.end, 1)
    base = leader.add(bytes(loading.batch), len(rows))
    leader.evaluator.loads.appended(loading, base)


def rows_of(state: TableState) -> dict[bytes, bytes]:
    """All but what the order of keys keeps: how much of it there is goes by when somebody read."""
    return {key: value for key, value in without_entries(state).items() if key != MARK_KEY}


def drawn(random: Random, count: int) -> list[PackedRow]:
    """Keys that come again and again, sorted as loads are."""
    return [(b"%03d" % key, random.randbytes(9)) for key in sorted(random.sample(range(200), count))]


@pytest.mark.parametrize("seed", range(4))
def test_loads_and_puts_in_any_order_are_as_puts_alone(leader: Leader, other: Leader, seed: int) -> None:
    random = Random(seed)
    for _ in range(60):
        rows = drawn(random, random.choice((1, 5, 60)))
        puts = [Put(key, value or b"") for key, value in rows]
        other.write(*puts)
        if random.random() < 0.7:
            load(leader, rows)
        else:
            leader.write(*puts)
        if random.random() < 0.2:
            gone = Delete(b"%03d" % random.randrange(200))
            assert leader.write(gone).results == other.write(gone).results
        if random.random() < 0.4:
            leader.commit()
            other.commit()
    for one in (leader, other):
        one.commit()
    assert leader.log == other.log
    assert stored(leader.state) == stored(other.state)
    assert leader.state.next_version_id == other.state.next_version_id


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("deep", [0, 10, 200], ids=["flat", "few-with-slashes", "many"])
def test_in_an_order_of_keys_loads_are_as_puts_alone(tmp_path: Path, seed: int, deep: int) -> None:
    random = Random(seed)
    keys = [b"%03d" % key for key in range(200)] + [b"%03d/%d" % (key % 50, key) for key in range(deep)]
    with (
        open_state(str(tmp_path / "loads"), RocksEngine(), ordered=True) as loads,
        open_state(str(tmp_path / "puts"), RocksEngine(), ordered=True) as puts,
        open_state(str(tmp_path / "follower"), RocksEngine(), ordered=True) as follower,
    ):
        leader, other = Leader(loads), Leader(puts)
        follower.kernels = KERNELS
        for _ in range(40):
            rows: list[PackedRow] = [
                (key, random.randbytes(9)) for key in sorted(random.sample(keys, random.choice((1, 5, 60))))
            ]
            other.write(*(Put(key, value or b"") for key, value in rows))
            load(leader, rows)
            if random.random() < 0.3:
                gone = Delete(random.choice(keys))
                assert leader.write(gone).results == other.write(gone).results
            if random.random() < 0.4:
                leader.commit()
                other.commit()
            if random.random() < 0.1:
                assert in_order(loads) == in_order(puts)
        leader.commit()
        other.commit()
        follower.apply(leader.log)
        assert leader.log == other.log
        for state in (loads, follower):
            assert rows_of(state) == rows_of(puts)
            assert in_order(state) == in_order(puts)


def test_what_is_not_committed_counts_and_is_not_shown(leader: Leader) -> None:
    load(leader, [(b"a", b"1"), (b"b", b"2")])
    assert leader.state.get(b"a") is None
    load(leader, [(b"a", b"3")])
    found = leader.write(Put(b"a", b"4"))
    version = found.results[0].version
    assert version is not None
    assert (version.id, version.modifications) == (3, 2)
    leader.commit()
    row = leader.state.get(b"a")
    assert row is not None
    assert (row.value, row.version) == (b"4", version)


def test_a_walk_between_the_keys_finds_what_look_ups_find(leader: Leader) -> None:
    rows: list[PackedRow] = [(b"%04d" % key, b"v") for key in range(0, 400, 2)]
    load(leader, rows)
    leader.commit()
    keys = [b"\x01%04d" % key for key in range(400)]
    for first, end in ((0, 400), (100, 120), (399, 400), (101, 102), (0, 1)):
        part = keys[first:end]
        walked = versions_between(leader.state.store, part, 1_000)
        assert walked == versions_of(leader.state.store, part)
        assert any(walked or ()) is (end - first > 1 or first % 2 == 0)
    assert versions_between(leader.state.store, keys, 199) is None
    assert versions_between(leader.state.store, keys, 200) is not None


def test_rows_among_many_others_are_looked_up_for_a_while(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks: list[int] = []

    def noted(store: Store, keys: list[bytes], examined_max: int) -> Versions | None:
        walks.append(examined_max)
        return versions_between(store, keys, examined_max)

    monkeypatch.setattr(bulk_puts, "versions_between", noted)
    load(leader, [(b"%04d" % key, b"v") for key in range(0, 400, 2)])
    leader.commit()
    walks.clear()
    for number in range(LOOKED_UP + 2):
        load(leader, [(b"%04d" % key, b"w%d" % number) for key in range(0, 400, 20)])
        leader.commit()
    assert walks == [20 // 8] * 2


@pytest.mark.parametrize(
    "rows",
    [
        [(b"a", b"1"), (b"a", b"2")],
        [(b"a", None)],
        [(b"k" * (KEY_BYTES_MAX + 1), b"v")],
    ],
    ids=["twice", "removal", "long"],
)
def test_what_needs_a_look_at_each_row_is_left(leader: Leader, rows: list[PackedRow]) -> None:
    assert judged(leader, rows) is None
    load(leader, [(b"a", b"1")])


def test_with_indexes_each_row_is_looked_at(leader: Leader) -> None:
    leader.write(PutAttributed(b"a", b"v", Attributes(identity="me", indexes=(("i", b"s"),))))
    assert judged(leader, [(b"a", b"1")]) is None, (
        "it is not committed, and an index leads to it all the same"
    )
    leader.commit()
    assert judged(leader, [(b"a", b"1")]) is None


def test_a_load_that_was_judged_before_something_else_was_appended_is_a_bug(leader: Leader) -> None:
    loading = judged(leader, [(b"a", b"1")])
    assert loading is not None
    leader.write(Put(b"b", b"1"))
    with pytest.raises(InvariantError, match="judged against an older state"):
        leader.evaluator.loads.appended(loading, leader.end)
