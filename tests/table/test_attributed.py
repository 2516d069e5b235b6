"""Rows with attributes in a table's store and judged by its leader: placed, indexed, with keys of sequences."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError, NewerFormatError
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import Delete, DeleteRange, OpStatus, Put, TableOp
from antiphon.records.attributes import INDEXES_MAX, Attributes, unpack
from antiphon.records.changes import (
    VERSION,
    attributed_version,
    decode_changes,
    owned_version,
    stored_row,
    stored_version,
)
from antiphon.records.sequences import key_of, numbers_in
from antiphon.table import meta
from antiphon.table.copying import CopiedRow, records_of
from antiphon.table.evaluation import finished
from antiphon.table.evaluator import ABSENT, TableEvaluator
from antiphon.table.index_reads import find_by_index, scan_index
from antiphon.table.indexes import entry_key, parsed, prefix_of
from antiphon.table.meta import ATTRIBUTES_FORMAT, PLAIN_FORMAT
from antiphon.table.outcomes import results_from_batch
from antiphon.table.places import place_of
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState, open_state
from tests.table.leading import LeaderAndFollower

ALL = (b"", b"")


AT_ONCE, IN_PIECES, WITH_COMMITS = 0, 1, 2


class Leader(LeaderAndFollower):
    """What a commit comes to is the same on both, and what the indexes lead to."""

    def write_as(self, how: int, *ops: TableOp) -> None:
        """Write at once, or one operation and one effect at a time, while what was written before may be committed."""
        if how == AT_ONCE:
            self.write(*ops)
            return
        evaluation = self._stepped(self.evaluator.evaluating(ops, 100, 1), how)
        if evaluation.records:
            self._stepped(self.evaluator.preparing(evaluation, 1), how)
            self.take(evaluation)

    def _stepped(self, steps: Generator[Any, None, Any], how: int) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            if how == WITH_COMMITS and self.state.applied_offset < self.end:
                pending = self.evaluator._pending[0]
                self.evaluator.committed(pending.end)

    def commit(self) -> None:
        self.evaluator.committed(self.end)
        self.follower.apply(self.log)
        for state in (self.state, self.follower):
            assert contents(state) == contents(self.state)
            assert entries(state) == named(state)


def contents(state: TableState) -> dict[bytes, bytes]:
    return {key: value for key, value in state.store.items(b"\x01") if key != b"\x00"}


def entries(state: TableState) -> set[tuple[str, bytes, bytes]]:
    """What the indexes lead to."""
    return {
        (name, secondary, row.key)
        for name in ("i", "j")
        for secondary, row in scan_index(state, name, ALL, None, 1000)[0]
    }


def named(state: TableState) -> set[tuple[str, bytes, bytes]]:
    """What the rows say of it."""
    rows, _ = state.scan(b"", b"", 1000)
    return {
        (name, secondary, row.key)
        for row in rows
        if row.attributes is not None
        for name, secondary in unpack(row.attributes).indexes
    }


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path)
    yield made
    made.close()


def put(key: bytes, *indexes: tuple[str, bytes], **said: Any) -> PutAttributed:
    return PutAttributed(key, b"v", Attributes(indexes=indexes, **said))


def numbered(*deltas: int, key: bytes = b"s", **said: Any) -> PutAttributed:
    return PutAttributed(key, b"v", Attributes(None, b"p"), sequence=deltas, **said)


@given(st.integers(0, 1 << 40), st.none() | st.integers(1, 1 << 62), st.none() | st.binary(max_size=300))
def test_versions_are_stored_with_what_belongs_to_them(
    version_id: int, session_id: int | None, attributes: bytes | None
) -> None:
    version = (version_id, 3, 0, 17)
    packed = VERSION.pack(*version)
    if session_id is not None:
        packed = owned_version(packed, session_id)
    if attributes is not None:
        packed = attributed_version(packed, attributes)
    assert stored_row(packed + b"value") == (version, session_id, attributes, len(packed))
    assert stored_version(packed + b"value") == (version, session_id, len(packed))


def test_attributes_are_replaced_by_each_put_and_told_to_all(leader: Leader) -> None:
    leader.write(put(b"k", identity="me", partition_key=b"p", place=7))
    leader.write(put(b"j", identity="you"))
    leader.commit()
    row = leader.follower.get(b"k")
    assert row is not None
    assert row.value == b"v"
    assert unpack(row.attributes or b"") == Attributes("me", b"p", 7)
    assert place_of(b"k", leader.follower.store.get(b"\x01k") or b"") == 7
    (first, _) = decode_changes(leader.log)
    assert unpack(first.attributes or b"").identity == "me"
    leader.write(Put(b"k", b"plain"))
    leader.commit()
    row = leader.follower.get(b"k")
    assert row is not None
    assert row.attributes is None
    assert row.version.modifications == 1


def test_conditions_hold_as_for_other_puts(leader: Leader) -> None:
    statuses = [
        leader.write(one).results[0].status
        for one in (
            PutAttributed(b"k", b"", Attributes(), ABSENT),
            PutAttributed(b"k", b"", Attributes(), ABSENT),
            PutAttributed(b"k", b"", Attributes(), 0),
            PutAttributed(b"k", b"", Attributes(), session_id=9),
        )
    ]
    assert statuses == [0, OpStatus.UNEXPECTED_VERSION, 0, OpStatus.SESSION_NOT_FOUND]


def test_numbers_follow_from_what_is_appended_and_not_committed(leader: Leader) -> None:
    assert leader.write(numbered(1)).results[0].key == key_of(b"s", (1,))
    assert [one.key for one in leader.write(numbered(2), numbered(3)).results] == [
        key_of(b"s", (3,)),
        key_of(b"s", (6,)),
    ]
    leader.commit()
    assert leader.write(numbered(1, 5)).results[0].key == key_of(b"s", (7, 5))
    leader.commit()
    successor = TableEvaluator(leader.follower)
    assert successor.evaluate([numbered(1, 1)], 1).results[0].key == key_of(b"s", (8, 6))
    told = results_from_batch(leader.log[0]).results[0]
    assert told.key == key_of(b"s", (1,))


def test_numbers_pass_over_keys_that_others_have_put(leader: Leader) -> None:
    leader.write(
        Put(key_of(b"s", (1,)), b"in the way"), Put(b"s-5", b""), Put(b"s-00x", b""), Put(b"sx", b"")
    )
    assert leader.write(numbered(1)).results[0].key == key_of(b"s", (2,))
    leader.commit()
    assert leader.write(numbered(1)).results[0].key == key_of(b"s", (3,))


@pytest.mark.parametrize(
    ("op", "why"),
    [
        (PutAttributed(b"s", b"", Attributes(), sequence=(1,)), "partition key"),
        (numbered(0), "above 0"),
        (numbered(1, expected_version=3), "no version can be expected"),
        (numbered((1 << 64) - 1, key=b"t"), None),
        (put(b"k", *[("i", b"%d" % n) for n in range(INDEXES_MAX + 1)]), "at most"),
        (put(b"k", identity="x" * 100_000), "at most"),
    ],
)
def test_what_is_refused_changes_nothing(leader: Leader, op: PutAttributed, why: str | None) -> None:
    if why is None:
        leader.write(op)
        op, why = numbered(1, key=b"t"), "at its end"
    before = leader.end
    with pytest.raises(InvalidRequestError, match=why):
        leader.write(op)
    assert leader.end == before


def test_numbers_of_keys() -> None:
    assert numbers_in(b"s-" + b"0" * 19 + b"7", b"s") == (7,)
    for key in (
        b"s",
        b"s-7",
        b"s-" + b"x" * 20,
        b"s-" + b"1" * 20 + b"-",
        b"t-" + b"1" * 20,
        b"s" + b"x" * 21 + b"-" + b"1" * 20,
    ):
        assert numbers_in(key, b"s") is None


TEXTS = st.sampled_from([b"", b"a", b"b", b"a\x00", b"a\x00\xff", b"\x00", b"ab", b"\xff"])


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_entries_are_in_the_order_of_what_they_say(one: bytes, key: bytes, other: bytes, more: bytes) -> None:
    first, second = entry_key("i", one, key), entry_key("i", other, more)
    assert (first < second) == ((one, key) < (other, more))
    assert parsed(first, prefix_of("i")) == (one, key)


OPS = st.one_of(
    st.tuples(st.sampled_from(b"abc"), st.sampled_from([(), (("i", b"1"),), (("i", b"2"), ("j", b"1"))])),
    st.sampled_from(["delete", "range", "plain", "commit"]),
)


KEYS = st.sampled_from([b"a", b"b", b"c"])
HOW = st.sampled_from([AT_ONCE, IN_PIECES, WITH_COMMITS])


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.tuples(OPS, KEYS, HOW), max_size=25))
def test_indexes_are_what_the_rows_say(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    """Whatever is pending, and whether the store's part of a write is made at its commit or before it is appended."""
    leader = Leader(tmp_path_factory.mktemp("indexes"))
    for step, key, how in steps:
        match step:
            case "delete":
                leader.write_as(how, Delete(key))
            case "range":
                leader.write_as(how, Put(b"d", b""), DeleteRange(key, b"c"))
            case "plain":
                leader.write_as(how, Put(key, b"x"))
            case "commit":
                leader.commit()
            case _:
                leader.write_as(how, put(key, *step[1]), put(b"z", *step[1]), put(key, *step[1]))
    leader.commit()
    leader.state.close()
    leader.follower.close()


def test_what_an_unfinished_write_would_be_leaves_the_store_as_it_is(leader: Leader) -> None:
    leader.write(Put(b"k", b"plain"))
    leader.commit()
    evaluation = leader.evaluator.evaluate([put(b"k", ("i", b"1"))], 100)
    finished(leader.evaluator.preparing(evaluation, 1))
    assert (leader.state.format, leader.state.has_indexes) == (PLAIN_FORMAT, False)
    leader.take(evaluation)
    leader.commit()
    assert (leader.state.format, leader.state.has_indexes) == (ATTRIBUTES_FORMAT, True)
    assert leader.state.store.get(entry_key("i", b"1", b"k")) == b""


def test_entries_are_found_from_both_sides(leader: Leader) -> None:
    leader.write(put(b"k", ("i", b"b"), ("i", b"d")), put(b"l", ("i", b"b")), put(b"m", ("j", b"c")))
    leader.commit()
    found = [
        None if (one := find_by_index(leader.state, "i", at, how)) is None else (one[0], one[1].key)
        for at in (b"a", b"b", b"c", b"e")
        for how in range(5)
    ]
    b, d = (b"b", b"k"), (b"d", b"k")
    assert found == [
        None, None, b, None, b,
        b, b, b, None, d,
        None, (b"b", b"l"), d, (b"b", b"l"), d,
        None, d, None, d, None,
    ]  # fmt: skip
    pages, more = scan_index(leader.state, "i", (b"b", b"d"), None, 1)
    assert [row.key for _, row in pages] == [b"k"]
    assert more
    pages, more = scan_index(leader.state, "i", (b"b", b"d"), (b"b", b"k"), 1)
    assert [row.key for _, row in pages] == [b"l"]
    assert not more


def test_rows_are_copied_with_what_they_say(leader: Leader, tmp_path: Path) -> None:
    leader.write(put(b"k", ("i", b"1"), identity="me", place=3))
    leader.commit()
    rows, _ = leader.state.stored_rows(b"", None, (0, 3), examined_max=10, size_bytes_max=1000)
    records = records_of([CopiedRow(*row) for row in rows])
    with open_state(str(tmp_path / "child"), RocksEngine()) as child:
        evaluator = TableEvaluator(child)
        evaluator.imported(records, 0)
        evaluator.committed(1)
        assert contents(child) == contents(leader.state)
        assert entries(child) == {("i", b"1", b"k")}


def test_a_store_says_that_older_versions_cannot_read_it(
    leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.write(Put(b"a", b""))
    leader.commit()
    assert leader.state.format == PLAIN_FORMAT
    leader.write(put(b"k"))
    leader.commit()
    assert leader.state.format == leader.follower.format == ATTRIBUTES_FORMAT
    leader.state.close()
    monkeypatch.setattr(meta, "FORMAT", PLAIN_FORMAT)
    with pytest.raises(NewerFormatError):
        open_state(str(tmp_path / "leader"), RocksEngine())
