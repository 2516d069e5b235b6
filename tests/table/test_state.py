"""The table store: applying, reading, restarts, checkpoints."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rocksdict import Options, Rdict

from antiphon.errors import CorruptBatchError, InvalidRequestError, NewerFormatError, StorageFailedError
from antiphon.invariants import InvariantError
from antiphon.model.metadata import key_hash
from antiphon.model.rows import Row, Version
from antiphon.records.builder import build_batch, build_term_start
from antiphon.records.changes import VERSION, Effect, effects_of
from antiphon.records.split_entries import Freeze, Release
from antiphon.table import state as states
from antiphon.table.meta import META_KEY
from antiphon.table.neighbours import CEILING, EQUAL, FLOOR, HIGHER, LOWER
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState
from antiphon.table.store import Batch, Store


def open_state(path: str) -> TableState:
    return states.open_state(path, RocksEngine())


def effect(key: bytes, value: bytes | None, version_id: int = 0) -> Effect:
    return key, value, VERSION.pack(version_id, 1, 10, 20)


def batch_of(base_offset: int, *effects: Effect) -> bytes:
    records = [(key, value, [("v", version)], 20) for key, value, version in effects]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=1))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[TableState]:
    with open_state(str(tmp_path / "table")) as opened:
        yield opened


def test_empty_store(state: TableState) -> None:
    assert (state.applied_offset, state.next_version_id, state.durable_offset) == (0, 0, 0)
    assert state.get(b"a") is None
    assert state.scan(b"", b"", 10) == ([], False)
    assert state.find(b"a", FLOOR) is None


def test_s0_33_applies_effects_and_offset_together(state: TableState) -> None:
    state.apply([batch_of(0, effect(b"a", b"1", 0), effect(b"b", b"2", 1), effect(b"a", None, 0))])
    assert state.applied_offset == 3
    assert state.next_version_id == 2
    assert state.get(b"a") is None
    assert state.get(b"b") == Row(b"b", b"2", Version(1, 1, 10, 20))
    without: Row[bytes | None] = Row(b"b", None, Version(1, 1, 10, 20))
    assert state.get(b"b", include_value=False) == without


class Crash(BaseException):
    """The process ends here."""


class CrashingStore:
    """A store that ends the process after so many writes, all of which had reached the disk by then."""

    def __init__(self, store: Store, writes: int) -> None:
        self._store = store
        self._left = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, batch: Batch) -> None:
        self._store.write(batch)
        self._left -= 1
        if not self._left:
            self._store.flush()
            raise Crash


@pytest.mark.parametrize("writes", range(1, 7))
def test_s0_33_a_crash_after_any_write_leaves_whole_entries(tmp_path: Path, writes: int) -> None:
    """Entry n sets a and b to n, and c in turn; whatever was written last, the rows are those of the applied offset."""
    path, left = str(tmp_path / "t"), str(tmp_path / "left by the crash")

    def entry(number: int) -> bytes:
        value = b"%d" % number
        c = value if number % 2 else None
        at = 3 * number
        return batch_of(at, effect(b"a", value, at), effect(b"b", value, at + 1), effect(b"c", c, at + 2))

    def check(state: TableState) -> int:
        last, rest = divmod(state.applied_offset, 3)
        assert not rest, "no entry is applied in part"
        values = [row and row.value for row in state.get_many([b"a", b"b", b"c"])]
        wanted = b"%d" % (last - 1) if last else None
        assert values == [wanted, wanted, wanted if last % 2 == 0 else None]
        return last

    def apply_all(state: TableState) -> None:
        for number in range(10):
            state.apply([entry(number)])

    state = open_state(path)
    state._store = cast("Store", CrashingStore(state._store, writes))
    with pytest.raises(Crash):
        apply_all(state)
    shutil.copytree(path, left)
    state.close()
    with open_state(left) as found:
        applied = check(found)
        assert applied > 0
        apply_all(found)  # the log is applied again, from before what is there
        assert check(found) == 10


def test_control_batches_move_the_offset_only(state: TableState) -> None:
    state.apply([build_term_start(1, 0, 5), batch_of(1, effect(b"k", b"v"))])
    assert state.applied_offset == 2
    assert [row.key for row in state.scan(b"", b"", 10)[0]] == [b"k"]


def test_repeats_are_passed_over_and_gaps_are_refused(state: TableState) -> None:
    first, second = batch_of(0, effect(b"a", b"1")), batch_of(1, effect(b"a", b"2", 1))
    state.apply([first + second])
    state.apply([first])  # would bring the old value back
    row = state.get(b"a")
    assert row is not None
    assert row.value == b"2"
    with pytest.raises(InvariantError, match="without gaps"):
        state.apply([batch_of(5, effect(b"a", b"3"))])
    with pytest.raises(InvariantError, match="never goes back"):
        state.apply_effects([], 1, 0)


def test_damaged_batches_change_nothing(state: TableState) -> None:
    good, bad = batch_of(0, effect(b"a", b"1")), bytearray(batch_of(1, effect(b"b", b"2")))
    bad[-1] ^= 1
    with pytest.raises(CorruptBatchError):
        state.apply([good, bad])
    assert state.applied_offset == 0
    assert state.get(b"a") is None


def test_records_without_a_version_are_no_effects(state: TableState) -> None:
    plain = build_batch(
        [(b"k", b"v", [], 1), (None, None, [("v", b"short")], 1), (b"n", b"", [("v", None)], 1)]
    )
    assert effects_of(plain) == []
    state.apply([plain])
    assert state.applied_offset == 3
    assert state.scan(b"", b"", 10) == ([], False)


def test_any_bytes_are_a_key(state: TableState) -> None:
    keys = [b"", b"\x00", b"\x01", b"\x02", b"\xff" * 10, META_KEY + b"x"]
    state.apply([batch_of(0, *(effect(key, b"v" + key) for key in keys))])
    rows, more = state.scan(b"", b"", 100)
    assert not more
    assert [row.key for row in rows] == sorted(keys)
    assert [row and row.value for row in state.get_many(keys)] == [b"v" + key for key in keys]


@pytest.mark.parametrize(
    ("comparison", "key", "found"),
    [
        (EQUAL, b"b", b"b"), (EQUAL, b"c", None),
        (FLOOR, b"b", b"b"), (FLOOR, b"c", b"b"), (FLOOR, b"a", None),
        (CEILING, b"b", b"b"), (CEILING, b"c", b"d"), (CEILING, b"e", None),
        (LOWER, b"d", b"b"), (LOWER, b"b", None), (LOWER, b"z", b"d"),
        (HIGHER, b"b", b"d"), (HIGHER, b"d", None), (HIGHER, b"", b"b"),
    ],
)  # fmt: skip
def test_comparisons(state: TableState, comparison: int, key: bytes, found: bytes | None) -> None:
    state.apply([batch_of(0, effect(b"b", b"1"), effect(b"d", b"2"))])
    row = state.find(key, comparison)
    assert (row.key if row else None) == found


def test_unknown_comparison_is_refused(state: TableState) -> None:
    with pytest.raises(InvalidRequestError, match="comparison 5"):
        state.find(b"a", 5)


def test_scan_is_cut_by_rows_and_by_bytes(state: TableState) -> None:
    state.apply([batch_of(0, *(effect(b"%03d" % i, b"x" * 100) for i in range(50)))])
    rows, more = state.scan(b"010", b"020", 5)
    assert [row.key for row in rows] == [b"010", b"011", b"012", b"013", b"014"]
    assert more
    rows, more = state.scan(b"010", b"020", 10)
    assert (len(rows), more) == (10, False)
    rows, more = state.scan(b"", b"", 100, size_bytes_max=1000)
    assert 5 < len(rows) < 15
    assert more
    rows, more = state.scan(b"", b"", 100, include_value=False)
    assert (len(rows), more) == (50, False)
    assert all(row.value is None for row in rows)
    with pytest.raises(InvalidRequestError, match="at least one row"):
        state.scan(b"", b"", 0)


def test_clean_close_keeps_everything(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    with open_state(path) as state:
        state.apply([batch_of(0, effect(b"a", b"1", 7))])
    with open_state(path) as state:
        assert (state.applied_offset, state.next_version_id, state.durable_offset) == (1, 8, 1)
        assert state.get(b"a") == Row(b"a", b"1", Version(7, 1, 10, 20))


def test_after_a_kill_the_store_stands_at_an_earlier_offset(tmp_path: Path) -> None:
    """What was not flushed is lost as a whole and comes back from the log."""
    path = str(tmp_path / "t")
    first, second = (
        batch_of(0, effect(b"a", b"1", 0)),
        batch_of(1, effect(b"a", b"2", 1), effect(b"b", b"3", 2)),
    )
    script = (
        "import os, sys\n"
        "from antiphon.table.state import open_state\n"
        "from antiphon.table.rocks_store import RocksEngine\n"
        "state = open_state(sys.argv[1], RocksEngine())\n"
        "state.apply([bytes.fromhex(sys.argv[2])])\n"
        "state.flush()\n"
        "state.apply([bytes.fromhex(sys.argv[3])])\n"
        "print(state.durable_offset, state.applied_offset, flush=True)\n"
        "os._exit(0)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, path, first.hex(), second.hex()],
        capture_output=True,
        check=True,
        timeout=30,
    )
    assert killed.stdout.split() == [b"1", b"3"]
    with open_state(path) as state:
        assert state.applied_offset == 1
        assert state.get(b"b") is None
        state.apply([first + second])
        assert state.applied_offset == 3
        assert state.get(b"a") == Row(b"a", b"2", Version(1, 1, 10, 20))


def test_checkpoint_is_a_store_of_its_own(tmp_path: Path) -> None:
    path, copy = str(tmp_path / "t"), str(tmp_path / "copy")
    with open_state(path) as state:
        state.apply([batch_of(0, effect(b"a", b"1"))])
        assert state.checkpoint(copy) == 1
        state.apply([batch_of(1, effect(b"a", b"2", 1))])
        with pytest.raises(StorageFailedError, match="checkpoint"):
            state.checkpoint(copy)  # is there already
    with open_state(copy) as old:
        assert old.applied_offset == 1
        row = old.get(b"a")
        assert row is not None
        assert row.value == b"1"


def test_open_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for meta, error in (
        (struct.pack(">iqq", 4, 0, 0), NewerFormatError),
        (b"\x00\x00\x00\x01", StorageFailedError),
        (struct.pack(">iqq", 0, 0, 0), StorageFailedError),
    ):
        db = Rdict(path, Options(raw_mode=True))
        db[META_KEY] = meta
        db.close()
        with pytest.raises(error, match="format"):
            open_state(path)
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StorageFailedError, match="cannot be opened"):
        open_state(str(tmp_path / "file"))
    with open_state(str(tmp_path / "locked")), pytest.raises(StorageFailedError, match="cannot be opened"):
        open_state(str(tmp_path / "locked"))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=4)), min_size=1, max_size=30))
def test_store_equals_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[bytes, bytes | None]]
) -> None:
    model: dict[bytes, bytes] = {}
    with open_state(str(tmp_path_factory.mktemp("s") / "t")) as state:
        for at, (key, value) in enumerate(changes):
            state.apply([batch_of(at, effect(key, value, at))])
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        assert [(row.key, row.value) for row in state.scan(b"", b"", 1000)[0]] == sorted(model.items())
        assert state.applied_offset == len(changes)


@pytest.mark.parametrize("between", [0, 1, 3, 9])
def test_a_split_in_the_middle_of_a_purge_leaves_no_key_behind(state: TableState, between: int) -> None:
    """Keys that the second split took away may lie before the place that the purge after the first one had reached."""
    keys = [b"k%03d" % number for number in range(200)]
    state.apply_effects([effect(key, b"v", number) for number, key in enumerate(keys)], 200, 200)

    def release(first: int, at: int) -> None:
        state.apply_effects([], at + 2, 200, [(Freeze(first, 9), at), (Release(at, first, 9, 0), at + 1)])

    release(1 << 31, 200)
    for _ in range(between):
        assert state.purge(20)
    release(1 << 30, 202)
    calls = 0
    while state.purge(20):
        calls += 1
        assert calls < 20
    assert not state.owned.purging
    rows, _ = state.scan(b"", b"", 1000)
    assert [row.key for row in rows] == [key for key in keys if key_hash(key) < 1 << 30]
