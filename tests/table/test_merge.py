"""Tables that every replica writes: rules, the fold, and the judge of operations."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import Delete, DeleteRange, OpStatus, Put, TableOp
from antiphon.model.rows import Row
from antiphon.records.attributes import Attributes
from antiphon.records.builder import build_batch
from antiphon.records.changes import VERSION, VERSION_HEADER
from antiphon.table.merge import (
    Cell,
    ConflictRule,
    check_rule,
    first_writer_wins,
    last_writer_wins,
    pack_id,
    register_rule,
    rule_named,
    unpack_id,
)
from antiphon.table.merge_evaluator import MergingEvaluator
from antiphon.table.merge_state import MergedState
from antiphon.table.rocks_store import RocksEngine

Change = tuple[bytes, Cell]
KEYS = [b"a", b"b", b"c"]


def cell(value: bytes | None, ms: int, origin: int, lsn: int, index: int = 0) -> Cell:
    return Cell(value, (pack_id(lsn, origin, index), 0, ms, ms))


def batch_of(changes: Sequence[Change], base: int) -> bytearray:
    records = [
        (key, one.value, [(VERSION_HEADER, VERSION.pack(*one.version))], one.version[3])
        for key, one in changes
    ]
    return build_batch(records, base_offset=base)


def fold(path: Path, batches: Sequence[Sequence[Change]], rule: str = "last-writer-wins") -> MergedState:
    state = MergedState.open(str(path), rule_named(rule), RocksEngine())
    for changes in batches:
        state.apply([batch_of(changes, state.applied_offset)])
    return state


def rows(state: MergedState) -> list[Row]:
    return state.scan(b"", b"", 1000)[0]


def samples(seed: int = 1, count: int = 14) -> list[Cell]:
    random = Random(seed)
    found = []
    for number in range(count):
        value = None if number % 4 == 0 else bytes([random.randrange(3)])
        found.append(cell(value, random.randrange(3), random.randrange(1, 4), number // 3 + 1))
    return list({one.version[0]: one for one in found}.values())


def test_version_ids_say_who_wrote_what() -> None:
    assert unpack_id(pack_id(7, 31, 99_999)) == (31, 7, 99_999)
    assert pack_id(1 << 40, 31, (1 << 17) - 1) < 1 << 63
    with pytest.raises(InvalidRequestError):
        pack_id(0, 1, 0)
    with pytest.raises(InvalidRequestError):
        pack_id(1, 32, 0)


@pytest.mark.parametrize("name", ["last-writer-wins", "first-writer-wins"])
def test_the_rules_that_come_along_keep_the_laws(name: str) -> None:
    check_rule(rule_named(name), samples())


def test_the_checker_finds_rules_that_do_not() -> None:
    def latest_to_arrive(_one: Cell, other: Cell) -> Cell:
        return other

    def ignores_ties(one: Cell, other: Cell) -> Cell:
        return one if one.version[3] >= other.version[3] else other

    def glue(one: Cell, other: Cell) -> Cell:
        low, high = sorted((one, other), key=lambda found: found.stamp)
        return Cell((low.value or b"") + (high.value or b""), high.version)

    with pytest.raises(InvalidRequestError, match="not commutative"):
        check_rule(latest_to_arrive, samples())
    with pytest.raises(InvalidRequestError, match="not commutative"):
        check_rule(ignores_ties, samples())
    with pytest.raises(InvalidRequestError, match="not idempotent"):
        check_rule(glue, samples())


def test_c11_rules_of_ones_own_are_registered_by_name(tmp_path: Path) -> None:
    def largest(one: Cell, other: Cell) -> Cell:
        def rank(found: Cell) -> tuple[bytes, object]:
            return found.value or b"", found.stamp

        return max(one, other, key=rank)

    check_rule(largest, samples())
    register_rule("test-largest", largest)
    register_rule("test-largest", largest)
    with pytest.raises(InvalidRequestError, match="another conflict rule"):
        register_rule("test-largest", last_writer_wins)
    with pytest.raises(InvalidRequestError, match="no conflict rule 'absent'"):
        rule_named("absent")
    changes = [[(b"a", cell(b"2", 1, 1, 1))], [(b"a", cell(b"9", 2, 2, 1))], [(b"a", cell(b"5", 3, 1, 2))]]
    with fold(tmp_path / "t", changes, "test-largest") as state:
        assert [row.value for row in rows(state)] == [b"9"]


def test_c11_rules_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Found:
        def load(self) -> ConflictRule:
            return ConflictRule(first_writer_wins)

    def installed(*, group: str, name: str) -> list[Found]:
        return [Found()] if (group, name) == ("antiphon.conflict_rules", "test-installed") else []

    monkeypatch.setattr("antiphon.table.merge.entry_points", installed)
    assert rule_named("test-installed").merge is first_writer_wins


def test_c11_first_writer_wins(tmp_path: Path) -> None:
    changes = [
        [(b"a", cell(b"late", 5, 1, 1))],
        [(b"a", cell(b"early", 4, 2, 1))],
        [(b"a", cell(None, 9, 1, 2))],
    ]
    with fold(tmp_path / "t", changes, "first-writer-wins") as state:
        assert [row.value for row in rows(state)] == [b"early"]
    assert first_writer_wins(changes[0][0][1], changes[1][0][1]).value == b"early"


changes_st = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.one_of(st.none(), st.binary(max_size=2)),
        st.integers(0, 3),  # timestamps collide on purpose
        st.integers(1, 3),
    ),
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(
    changes_st, st.randoms(use_true_random=False), st.sampled_from(["last-writer-wins", "first-writer-wins"])
)
def test_c11_any_order_of_the_changes_gives_the_same_table(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[bytes, bytes | None, int, int]],
    random: Random,
    rule: str,
) -> None:
    lsns = dict.fromkeys((1, 2, 3), 0)
    changes: list[Change] = []
    for key, value, ms, origin in drawn:
        lsns[origin] += 1
        changes.append((key, cell(value, ms, origin, lsns[origin])))
    path = tmp_path_factory.mktemp("merge")
    shuffled = list(changes)
    random.shuffle(shuffled)
    with fold(path / "1", [[one] for one in changes], rule) as state:
        expected, gone = rows(state), state.cells(KEYS)
    groups = [shuffled[at : at + 4] for at in range(0, len(shuffled), 4)]
    with fold(path / "2", groups, rule) as state:
        assert rows(state) == expected
        assert state.cells(KEYS) == gone


def test_c11_a_removal_wins_over_an_older_put_that_comes_later(tmp_path: Path) -> None:
    with fold(tmp_path / "t", [[(b"a", cell(None, 5, 1, 1))], [(b"a", cell(b"old", 4, 2, 1))]]) as state:
        assert rows(state) == []
        assert state.tombstones() == 1
        state.apply([batch_of([(b"a", cell(b"new", 6, 2, 2))], state.applied_offset)])
        assert [row.value for row in rows(state)] == [b"new"]
        assert state.tombstones() == 0


def test_tombstones_go_when_every_member_has_them(tmp_path: Path) -> None:
    gone = [[(bytes([key]), cell(None, 5, 1, key + 1))] for key in range(5)]
    with fold(tmp_path / "t", gone) as state:
        assert state.forget_tombstones((0, 3), b"", 2) == b"\x02"
        assert state.tombstones() == 3
        assert state.forget_tombstones((0, 3), b"\x02", 100) is None
        assert state.tombstones() == 2
        assert state.forget_tombstones((), b"", 100) is None
        assert state.tombstones() == 2
    with MergedState.open(str(tmp_path / "t"), ConflictRule(first_writer_wins), RocksEngine()) as state:
        state.forget_tombstones((0, 9), b"", 100)
        assert state.tombstones() == 2


def test_repeats_of_what_is_merged_already_do_no_harm(tmp_path: Path) -> None:
    first, second = batch_of([(b"a", cell(b"1", 1, 1, 1))], 0), batch_of([(b"a", cell(b"2", 2, 1, 2))], 1)
    state = MergedState.open(str(tmp_path / "t"), rule_named("last-writer-wins"), RocksEngine())
    with state:
        state.apply([first])
        state.apply([first, second])
        assert (state.applied_offset, state.clock_ms) == (2, 2)
    with MergedState.open(str(tmp_path / "t"), rule_named("last-writer-wins"), RocksEngine()) as state:
        assert (state.applied_offset, state.clock_ms, state.foreign_ms) == (2, 2, 2)
        assert [row.value for row in rows(state)] == [b"2"]


class Writer:
    """One replica of a table: judges, appends, commits."""

    def __init__(self, path: Path, origin: int) -> None:
        self.state = MergedState.open(str(path), rule_named("last-writer-wins"), RocksEngine())
        self.state.own_origin = origin
        self.judge = MergingEvaluator(self.state)
        self.origin, self.lsn, self.end = origin, 0, 0
        self.log: list[bytearray] = []

    def write(self, *ops: TableOp, now_ms: int, commit: bool = True) -> list[int]:
        at_ms = self.judge.begin(now_ms, self.lsn + 1, self.origin)
        evaluation = self.judge.evaluate(ops, at_ms)
        if evaluation.records:
            self.lsn += 1
            batch = build_batch(evaluation.records, base_offset=self.end)
            self.judge.appended(evaluation, self.end)
            self.log.append(batch)
            self.end += len(evaluation.records)
            if commit:
                self.commit()
        return [result.status for result in evaluation.results]

    def receive(self, batch: bytearray, records: int) -> None:
        copy = bytearray(batch)
        copy[:8] = self.end.to_bytes(8, "big")
        self.log.append(copy)
        self.end += records
        self.commit()

    def commit(self) -> None:
        self.state.apply(self.log)
        self.judge.committed(self.end)

    def values(self) -> dict[bytes, bytes | None]:
        return {row.key: row.value for row in rows(self.state)}


def test_conditions_are_judged_by_what_this_replica_has(tmp_path: Path) -> None:
    one, two = Writer(tmp_path / "1", 1), Writer(tmp_path / "2", 2)
    assert one.write(Put(b"k", b"1", -1), now_ms=10) == [OpStatus.OK]
    assert two.write(Put(b"k", b"2", -1), now_ms=11) == [OpStatus.OK]  # it does not know of the other one
    one.receive(two.log[0], 1)
    two.receive(one.log[0], 1)
    assert one.values() == two.values() == {b"k": b"2"}
    assert rows(one.state) == rows(two.state)  # version ids too
    assert one.write(Put(b"k", b"3", -1), now_ms=12) == [OpStatus.UNEXPECTED_VERSION]
    found = rows(one.state)[0].version.id
    assert one.write(Put(b"k", b"3", found), now_ms=12) == [OpStatus.OK]
    assert (one.state.conflicts, two.state.conflicts) == (0, 1)


def test_who_changes_what_it_has_seen_wins_however_slow_its_clock(tmp_path: Path) -> None:
    one, two = Writer(tmp_path / "1", 1), Writer(tmp_path / "2", 2)
    two.write(Put(b"k", b"2"), now_ms=1_000_000)
    one.receive(two.log[0], 1)
    one.write(Put(b"k", b"1"), now_ms=5)
    assert one.values() == {b"k": b"1"}
    two.receive(one.log[1], 1)
    assert two.values() == {b"k": b"1"}
    two.write(Delete(b"k"), now_ms=7)
    assert two.values() == {}
    one.receive(two.log[2], 1)
    assert one.values() == {}
    assert one.write(Put(b"k", b"again"), now_ms=8) == [OpStatus.OK]
    assert one.values() == {b"k": b"again"}


def test_own_writes_stay_in_order_over_a_restart_with_a_clock_that_went_back(tmp_path: Path) -> None:
    one = Writer(tmp_path / "1", 1)
    one.write(Put(b"k", b"1"), now_ms=1000)
    one.state.close()
    again = Writer(tmp_path / "1", 1)
    again.end, again.lsn = 1, 1
    again.write(Put(b"k", b"2"), now_ms=10)
    assert again.values() == {b"k": b"2"}


def test_what_is_appended_and_not_committed_is_seen_by_the_next_request(tmp_path: Path) -> None:
    one = Writer(tmp_path / "1", 1)
    one.write(Put(b"k", b"1"), now_ms=1, commit=False)
    assert one.write(Put(b"k", b"2", -1), now_ms=1, commit=False) == [OpStatus.UNEXPECTED_VERSION]
    assert one.write(Put(b"l", b"2"), DeleteRange(b"k", b"l"), now_ms=1, commit=False) == [0, 0]
    assert one.write(Delete(b"k"), now_ms=1, commit=False) == [OpStatus.KEY_NOT_FOUND]
    one.commit()
    assert one.values() == {b"l": b"2"}
    assert one.judge.overlay_keys == 0


def test_rows_have_no_attributes_here(tmp_path: Path) -> None:
    replica = Writer(tmp_path / "a", 1)
    with pytest.raises(InvalidRequestError, match="writers=multi"):
        replica.write(PutAttributed(b"k", b"v", Attributes("me")), now_ms=1)
    assert replica.log == []
