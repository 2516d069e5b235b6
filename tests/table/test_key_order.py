"""The hierarchical order of keys in a table's store, and ranges that are removed by it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError, KeyLockedError, NewerFormatError
from antiphon.model.key_order import DeleteOrdered, OrderedFind, OrderedScan
from antiphon.model.metadata import key_hash
from antiphon.model.requests import Check, Delete, DeleteRange, OpResult, OpStatus, Put, TableOp
from antiphon.model.rows import Row, Version
from antiphon.records.changes import VERSION
from antiphon.records.key_order import is_text
from antiphon.records.split_entries import Freeze, Release
from antiphon.table import key_order, meta
from antiphon.table.key_order import ENTRY, ENTRY_END, MARK_KEY, entry_of, key_at
from antiphon.table.meta import ORDER_FORMAT, PLAIN_FORMAT
from antiphon.table.neighbours import CEILING, EQUAL, FLOOR, HIGHER, LOWER
from antiphon.table.order_reads import (
    bounds_of,
    check_found,
    check_ordered,
    find_ordered,
    list_ordered,
    scan_ordered,
    versions_ordered,
)
from antiphon.table.prepared import Prepare, PreparedTransactions
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState, open_state
from antiphon.table.store import Cursor
from tests.records.test_key_order import by_depth
from tests.table.test_evaluator import Leader, Model, Requests, carried_out

if TYPE_CHECKING:
    from antiphon.table.evaluation import RecordInput

OK = OpResult(OpStatus.OK)
KEYS = (
    b"",
    b"a",
    b"/",
    b"/a",
    b"/b",
    b"/a/",
    b"/a/x",
    b"/a/y",
    b"/a//",
    b"/b/x",
    b"/a/x/1",
    b"//",
    b"\xff",
    b"\xff/",
)


def opened(path: Path, *, ordered: bool = True) -> TableState:
    return open_state(str(path), RocksEngine(), ordered=ordered)


def entries(state: TableState) -> list[bytes]:
    return [key_at(key) for key, _ in state.store.items(ENTRY) if key < ENTRY_END]


def check_entries(state: TableState) -> None:
    """Each row whose key is text has its entry, and nothing else has; flat keys need none until there are all."""
    assert state.order is not None
    rows = [row.key for row in state.scan(b"", b"", 10_000)[0]]
    text, found = sorted(filter(is_text, rows), key=by_depth), entries(state)
    if state.order.is_complete:
        assert found == text
    else:
        assert [key for key in found if b"/" in key] == [key for key in text if b"/" in key]
        assert set(found) <= set(text)
    assert list(state.order.keys(b"", b"")) == text


def put_all(state: TableState, *keys: bytes) -> None:
    effects = [(key, b"v" + key, VERSION.pack(number, 0, 1, 1)) for number, key in enumerate(keys)]
    state.apply_effects(effects, state.applied_offset + len(keys), len(keys))


def is_complete(state: TableState) -> bool:
    return state.order is not None and state.order.is_complete


@pytest.fixture(params=["complete", "in part"])
def state(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TableState]:
    if request.param == "in part":
        monkeypatch.setattr(key_order, "MADE_AT_ONCE", 0)
    with opened(tmp_path / "t") as made:
        put_all(made, b"a", b"0", b"gone")
        put_all(made, *KEYS)
        made.apply_effects([(key, None, VERSION.pack(0, 0, 1, 1)) for key in (b"0", b"gone")], 99, 50)
        if request.param == "complete":
            while not is_complete(made):
                put_all(made, b"a")
        assert is_complete(made) == (request.param == "complete")
        check_entries(made)
        yield made


def listed(state: TableState, start: bytes, end: bytes, **asked: Any) -> list[bytes]:
    """All keys of a range, page by page; their rows are the same ones."""
    found: list[bytes] = []
    after, more = None, True
    while more:
        wanted = OrderedScan(1, start, end, after, **asked)
        bounds = bounds_of(start, end, after)
        page, more = list_ordered(state, wanted, bounds)
        rows, more_rows = scan_ordered(state, wanted, bounds)
        assert ([row.key for row in rows], more_rows) == (page, more)
        assert all(row.value == b"v" + row.key for row in rows)
        found += page
        after = page[-1] if page else after
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_ranges_in_pages(state: TableState, limit: int) -> None:
    text = sorted(filter(is_text, KEYS), key=by_depth)
    for start in (*text, b"/a/xx", b"z"):
        for end in (*text, b"/a/z", b"z/"):
            expected = [
                key
                for key in text
                if by_depth(start) <= by_depth(key) and (not end or by_depth(key) < by_depth(end))
            ]
            assert listed(state, start, end, limit=limit) == expected, (start, end)


def test_children(state: TableState) -> None:
    assert listed(state, b"/a/", b"/a//") == [b"/a/", b"/a/x", b"/a/y"]
    assert listed(state, b"/", b"//") == [b"/", b"/a", b"/b"]


@pytest.mark.parametrize("key", [*filter(is_text, KEYS), b"/a/xx", b"/0", b"z", b"z/z/z/z"])
def test_what_is_next_to_a_key(state: TableState, key: bytes) -> None:
    text = sorted(filter(is_text, KEYS), key=by_depth)
    below = [one for one in text if by_depth(one) < by_depth(key)]
    above = [one for one in text if by_depth(one) > by_depth(key)]
    there = [key] if key in text else []
    for comparison, expected in (
        (FLOOR, (below + there)[-1:]),
        (CEILING, (there + above)[:1]),
        (LOWER, below[-1:]),
        (HIGHER, above[:1]),
    ):
        (row,) = find_ordered(state, [key], comparison, (), include_value=True)
        assert ([] if row is None else [row.key]) == expected


def test_what_is_asked_wrongly(tmp_path: Path, state: TableState) -> None:
    with pytest.raises(InvalidRequestError, match="same in any order"):
        find_ordered(state, [b"k"], EQUAL, (), include_value=True)
    with pytest.raises(InvalidRequestError, match=r"0 \(equal\) to 4"):
        find_ordered(state, [b"k"], 7, (), include_value=True)
    with pytest.raises(InvalidRequestError, match="at least one row"):
        list_ordered(state, OrderedScan(1, b"", b"", limit=0), (b"", b""))
    with opened(tmp_path / "plain", ordered=False) as plain:
        with pytest.raises(InvalidRequestError, match=r"key\.sorting=natural"):
            check_ordered(plain)
        with pytest.raises(InvalidRequestError, match=r"key\.sorting=natural"):
            Leader(plain).write(DeleteOrdered(b"", b""))


def test_a_store_without_entries_gets_them(tmp_path: Path) -> None:
    """As one that an older version has followed the log with, whatever was there before."""
    with opened(tmp_path / "t", ordered=False) as plain:
        put_all(plain, *KEYS)
        batch = plain.store.batch()
        batch.put(entry_of(b"/long/gone"), b"")
        plain.store.write(batch)
        assert (plain.format, plain.ordered) == (PLAIN_FORMAT, False)
    with opened(tmp_path / "t") as made:
        assert (made.format, made.ordered) == (ORDER_FORMAT, True)
        check_entries(made)
    with opened(tmp_path / "t", ordered=False) as again:  # the store says so itself from now on
        assert again.ordered
        put_all(again, b"/new")
        check_entries(again)


def flat(number: int) -> bytes:
    return b"key-%04d" % number


def test_flat_keys_have_no_entries_until_a_key_with_a_slash_comes(tmp_path: Path) -> None:
    with opened(tmp_path / "t") as state:
        put_all(state, *map(flat, range(100)))
        state.apply_effects([(flat(3), None, VERSION.pack(0, 0, 1, 1))], 101, 100)
        assert entries(state) == []
        check_entries(state)
        put_all(state, b"a/b")
        assert len(entries(state)) == 2, "its own, and one more"
        put_all(state, flat(200))
        assert len(entries(state)) == 5
        state.apply_effects([(flat(0), None, VERSION.pack(0, 0, 1, 1))], state.applied_offset + 1, 300)
        assert flat(0) not in entries(state)
        check_entries(state)
    with opened(tmp_path / "t") as state:
        assert not is_complete(state)
        for number in range(10):
            put_all(state, flat(number))
        assert is_complete(state), "it goes on by itself"
        check_entries(state)
        put_all(state, flat(500))
        assert flat(500) in entries(state)
    with opened(tmp_path / "t") as state:
        assert is_complete(state)


def test_who_reads_in_the_order_gets_entries_with_the_next_writes(tmp_path: Path) -> None:
    with opened(tmp_path / "t") as state:
        put_all(state, *map(flat, range(10)))
        assert listed(state, flat(2), flat(4)) == [flat(2), flat(3)]
        assert entries(state) == []
        for number in range(4):
            put_all(state, flat(20))
            assert len(entries(state)) == min(2 ** (number + 1), 11)


def test_a_large_write_is_followed_too(tmp_path: Path) -> None:
    """What is prepared before it is written has all of its entries: nobody knows what is made until then."""
    with opened(tmp_path / "t") as state:
        put_all(state, *map(flat, range(40)))
        batch = state.batch()
        effects = [
            (flat(50), b"v", VERSION.pack(50, 0, 1, 1)),
            (b"x/y", b"v", VERSION.pack(51, 0, 1, 1)),
            (flat(1), None, VERSION.pack(1, 0, 1, 1)),
        ]
        state.add_effects(batch, effects)
        while not is_complete(state):
            put_all(state, flat(2))
        state.apply_prepared(batch, state.applied_offset + 3, 60)
        check_entries(state)
        assert flat(50) in entries(state)
        assert flat(1) not in entries(state)


def test_entries_that_a_large_write_has_made_go_with_their_rows(tmp_path: Path) -> None:
    with opened(tmp_path / "t") as state:
        batch = state.batch()
        state.add_effects(batch, [(flat(1), b"v", VERSION.pack(0, 0, 1, 1))])
        state.apply_prepared(batch, 1, 1)
        assert entries(state) == [flat(1)]
        state.apply_effects([(flat(1), None, VERSION.pack(0, 0, 1, 1))], 2, 1)
        assert entries(state) == []


class Counted:
    """A cursor whose moves are counted."""

    def __init__(self, cursor: Cursor) -> None:
        self.moves = 0
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        self.moves += name in {"seek", "seek_for_prev", "next", "prev"}
        return getattr(self._cursor, name)


@pytest.mark.parametrize("down", [False, True])
def test_a_thousand_rows_between_flat_keys_take_a_few_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, down: bool
) -> None:
    monkeypatch.setattr(key_order, "MADE_AT_ONCE", 0)
    with opened(tmp_path / "t") as state:
        put_all(state, b"a")
        put_all(state, *(b"a/%d" % number for number in range(1000)), b"b")
        assert not is_complete(state)
        made = [Counted(state.store.cursor())]
        monkeypatch.setattr(state.store, "cursor", lambda: made[0])
        (row,) = find_ordered(
            state, [b"b" if down else b"a"], LOWER if down else HIGHER, (), include_value=False
        )
        assert row is not None
        assert row.key == (b"a" if down else b"b")
        assert 0 < made.pop().moves < 6


def test_rows_between_flat_keys_are_passed_over_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_order, "MADE_AT_ONCE", 0)
    with opened(tmp_path / "t") as state:
        put_all(state, b"a")
        put_all(state, b"a!", b"a/", b"a/1", b"a/2/3", b"a0", b"b/1", b"c")
        assert not is_complete(state)
        assert listed(state, b"", b"a/") == [b"a", b"a!", b"a0", b"c"]
        for key, comparison, expected in (
            (b"c", LOWER, b"a0"),
            (b"a0", LOWER, b"a!"),
            (b"a/", LOWER, b"c"),
            (b"a/", FLOOR, b"a/"),
            (b"a0", HIGHER, b"c"),
            (b"c", HIGHER, b"a/"),
            (b"a", HIGHER, b"a!"),
        ):
            (row,) = find_ordered(state, [key], comparison, (), include_value=False)
            assert row is not None
            assert row.key == expected, (key, comparison)


def test_a_fresh_store_cannot_be_read_by_older_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "t").close()
    monkeypatch.setattr(meta, "FORMAT", ORDER_FORMAT - 1)
    with pytest.raises(NewerFormatError):
        opened(tmp_path / "t")


def test_tables_without_the_order_have_no_entries(tmp_path: Path) -> None:
    with opened(tmp_path / "t", ordered=False) as plain:
        put_all(plain, *KEYS)
        assert entries(plain) == []
        assert plain.store.get(MARK_KEY) is None


def test_a_checkpoint_keeps_the_order(tmp_path: Path, state: TableState) -> None:
    state.checkpoint(str(tmp_path / "copy"))
    with opened(tmp_path / "copy", ordered=False) as copy:
        assert copy.ordered
        check_entries(copy)


def test_what_a_split_took_away_is_not_seen_and_goes(state: TableState) -> None:
    half = 1 << 31
    for entry, offset in ((Freeze(half, 9), 100), (Release(100, half, 9, 0), 101)):
        state.apply_effects([], offset + 1, state.next_version_id, [(entry, offset)])
    mine = sorted((key for key in KEYS if is_text(key) and key_hash(key) < half), key=by_depth)
    assert 0 < len(mine) < len(KEYS)
    assert listed(state, b"", b"", limit=2) == mine
    assert [key for key, _ in versions_ordered(state, b"", b"", 100)[0]] == mine
    (first,) = find_ordered(state, [b""], CEILING, (), include_value=False)
    assert first is not None
    assert first.key == mine[0]
    while state.purge(3):
        pass
    check_entries(state)
    assert listed(state, b"", b"") == mine


def test_only_hashes_that_are_asked_for(state: TableState) -> None:
    half = 1 << 31
    mine = sorted((key for key in KEYS if is_text(key) and key_hash(key) >= half), key=by_depth)
    assert listed(state, b"", b"", hashes=(half, (1 << 32) - 1)) == mine


def test_locked_keys_by_their_place() -> None:
    prepared = PreparedTransactions()
    version = VERSION.pack(1, 0, 0, 0)
    prepared.prepare(Prepare(1, [(b"/a/x", b"v", version), (b"/b", b"v", version), (b"\xff", b"", version)]))
    with pytest.raises(KeyLockedError, match="/b"):
        prepared.check_ops([DeleteOrdered(b"/a", b"//")])
    with pytest.raises(KeyLockedError, match="/a/x"):
        prepared.check_ops([DeleteOrdered(b"/a/", b"/a//")])
    prepared.check_ops([DeleteOrdered(b"/b/", b"/b//"), DeleteOrdered(b"a", b"/a")])
    for key, comparison in (
        (b"/c", FLOOR),
        (b"/b", LOWER),
        (b"/a/x", FLOOR),
        (b"/", HIGHER),
        (b"/b", CEILING),
    ):
        with pytest.raises(KeyLockedError):
            check_found(prepared, OrderedFind(1, (key,), comparison), [None])
    for key, comparison in ((b"/a", FLOOR), (b"/a/y", CEILING)):
        check_found(prepared, OrderedFind(1, (key,), comparison), [None])
    found = Row(b"/a/w", b"", Version(0, 0, 0, 0))
    check_found(prepared, OrderedFind(1, (b"/c",), CEILING), [found])
    with pytest.raises(KeyLockedError):
        check_found(prepared, OrderedFind(1, (b"/a/y",), LOWER), [found])


class Ordered(Model):
    """Oxia's rules, where ranges go by depth."""

    def carry_out(self, op: TableOp, now_ms: int) -> OpResult:
        if not isinstance(op, DeleteOrdered):
            return super().carry_out(op, now_ms)
        for key in filter(is_text, list(self.rows)):
            if by_depth(op.start) <= by_depth(key) and (not op.end or by_depth(key) < by_depth(op.end)):
                del self.rows[key]
        return OK


some_key = st.sampled_from(KEYS)
some_text = st.sampled_from([key for key in KEYS if is_text(key)])
some_op = st.one_of(
    st.builds(Put, some_key, st.binary(max_size=2), st.none() | st.integers(-1, 6)),
    st.builds(Delete, some_key, st.none() | st.integers(-1, 6)),
    st.builds(DeleteOrdered, some_text, some_text),
    st.builds(DeleteRange, some_key, some_key),
    st.builds(Check, some_key, st.integers(-1, 6)),
)


@pytest.mark.parametrize("at_once", [0, 1, 8])
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)  # which is the same in all
@given(
    requests=st.lists(st.tuples(st.lists(some_op, min_size=1, max_size=5), st.integers(0, 3)), max_size=12),
    piece=st.integers(0, 3),
)
def test_equals_the_plain_rules(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    requests: Requests,
    piece: int,
) -> None:
    """Whatever is pending, in pieces or at once; on the leader and on a follower each row has its entry."""
    monkeypatch.setattr(key_order, "MADE_AT_ONCE", at_once)
    model = Ordered()
    directory = tmp_path_factory.mktemp("o")
    with opened(directory / "leader") as state, opened(directory / "follower") as follower:
        leader = Leader(state)
        for now_ms, op, result in carried_out(leader, requests, piece):
            assert result.status == model.carry_out(op, now_ms).status
        follower.apply(leader.log)
        for replica in (state, follower):
            assert {row.key: row.value for row in replica.scan(b"", b"", 1000)[0]} == {
                key: row[0] for key, row in model.rows.items()
            }
            check_entries(replica)


def test_rows_that_are_copied_from_another_shard_have_entries(state: TableState) -> None:
    leader = Leader(state)
    versions = [VERSION.pack(number, 0, 1, 1) for number in (90, 3)]
    records: list[RecordInput] = [
        (b"/copied", b"v", [("v", versions[0])], 1),
        (b"/a", None, [("v", versions[1])], 1),
    ]
    leader.evaluator.imported(records, leader.end)
    leader.evaluator.committed(leader.end + 2)
    assert b"/copied" in entries(state)
    assert b"/a" not in entries(state)
    check_entries(state)
