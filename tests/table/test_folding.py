"""A log is folded in steps of any size to what it comes to at once, and nothing of a batch is there before all of it."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from antiphon.errors import CorruptBatchError
from antiphon.invariants import InvariantError
from antiphon.model.attributes import PutAttributed
from antiphon.model.requests import Delete, Put, TableOp
from antiphon.records.attributes import Attributes
from antiphon.records.batch import HEADER_BYTES, read_header
from antiphon.records.builder import build_batch
from antiphon.records.changes import effects_in, effects_in_pieces
from antiphon.records.packed_effects import EffectKernels
from antiphon.table.key_order import ENTRY
from antiphon.table.merge import pack_id, rule_named
from antiphon.table.merge_state import MergedState
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState, open_state
from tests.records.test_packed_effects import loaded_kernels
from tests.table.leading import LeaderAndFollower
from tests.table.test_merge import Change, cell
from tests.table.test_merge import batch_of as merged_batch

KEYS = [*(b"%d" % number for number in range(12)), b"1/a", b"2/b", b"2/b/c"]
SIZES = (1, 7, 2, 30, 3, 1, 20)  # of the requests


def stored(state: TableState) -> dict[bytes, bytes]:
    return dict(state.store.items(b""))


def without_entries(state: TableState) -> dict[bytes, bytes]:
    """Of the order of keys, which a store need not have of keys without slashes."""
    return {key: value for key, value in stored(state).items() if key[:1] != ENTRY}


def in_order(state: TableState) -> list[bytes]:
    return [] if state.order is None else list(state.order.keys(b"", b""))


def drawn_op(random: Random) -> TableOp:
    key, kind = random.choice(KEYS), random.randrange(4)
    if kind == 0:
        return Delete(key)
    if kind == 1:
        indexes = tuple(("i", bytes([random.randrange(3)])) for _ in range(random.randrange(3)))
        return PutAttributed(key, b"a%d" % random.randrange(9), Attributes(identity="me", indexes=indexes))
    return Put(key, b"p%d" % random.randrange(9))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[list[bytes]]:
    """Of requests of many sizes, small ones next to large ones."""
    both, random = LeaderAndFollower(tmp_path), Random(3)
    for size in SIZES:
        both.write(*(drawn_op(random) for _ in range(size)))
        both.evaluator.committed(both.end)
    yield both.log
    both.close()


@pytest.mark.parametrize("piece", [1, 2, 5, 7, 1000])
@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "ordered"])
@pytest.mark.parametrize("kernels", [None, loaded_kernels()], ids=["decoded", "compiled"])
def test_steps_of_any_size_come_to_the_same(
    tmp_path: Path, log: list[bytes], piece: int, ordered: bool, kernels: EffectKernels | None
) -> None:
    ends = {0, *(read_header(batch).next_offset for batch in log)}
    with (
        open_state(str(tmp_path / "whole"), RocksEngine(), ordered=ordered) as whole,
        open_state(str(tmp_path / "steps"), RocksEngine(), ordered=ordered) as state,
    ):
        whole.apply(log)
        state.kernels = kernels
        before, count = stored(state), 0
        for _ in state.folding(log, piece):
            count += 1
            assert state.applied_offset in ends, "it is between two batches"
            if state.applied_offset == 0:
                assert stored(state) == before, "nothing of a batch is there before all of it"
        assert without_entries(state) == without_entries(whole)
        assert in_order(state) == in_order(whole)
        assert (state.applied_offset, state.next_version_id) == (whole.applied_offset, whole.next_version_id)
        assert (count == 0) is (piece == 1000)
        if piece == 5:
            assert count >= sum(size // 5 for size in SIZES if size > 5)


def test_a_large_plain_batch_takes_indexes_away_that_the_batch_before_it_made(tmp_path: Path) -> None:
    both = LeaderAndFollower(tmp_path)
    rows = [b"%d" % number for number in range(8)]
    attributes = Attributes(identity="me", indexes=(("i", b"s"),))
    both.write(*(PutAttributed(key, b"a", attributes) for key in rows))
    both.write(*(Put(key, b"p") for key in rows))
    with open_state(str(tmp_path / "compiled"), RocksEngine()) as state:
        state.kernels = loaded_kernels()
        state.apply(both.log)
        both.evaluator.committed(both.end)
        assert stored(state) == stored(both.state)
    both.close()


def test_what_is_forgotten_between_two_steps_has_changed_nothing_and_comes_again(
    tmp_path: Path, log: list[bytes]
) -> None:
    with (
        open_state(str(tmp_path / "whole"), RocksEngine()) as whole,
        open_state(str(tmp_path / "steps"), RocksEngine()) as state,
    ):
        whole.apply(log)
        for left in range(1, 40):
            steps = state.folding(log, 3)
            for _ in range(left):
                next(steps, None)
            steps.close()
        assert stored(state) == stored(whole)


def test_two_folds_at_once_are_a_bug(tmp_path: Path, log: list[bytes]) -> None:
    with open_state(str(tmp_path / "t"), RocksEngine()) as state:
        steps = state.folding(log, 3)
        while state.applied_offset < 1:
            next(steps)
        next(steps)
        state.apply(log[1:2])
        with pytest.raises(InvariantError, match="something was applied while a batch was"):
            for _ in steps:
                pass


def test_a_batch_that_is_damaged_further_on_leaves_nothing(tmp_path: Path) -> None:
    batch = bytearray(build_batch([(b"k", b"v", [("v", bytes(32))], 1)] * 9))
    with open_state(str(tmp_path / "t"), RocksEngine()) as state:
        before = stored(state)
        batch[-1] ^= 1
        with pytest.raises(CorruptBatchError):
            list(state.folding([batch], 2))
        assert stored(state) == before


@pytest.mark.parametrize("piece", [1, 3, 5, 10, 11])
def test_effects_in_pieces_are_those_of_the_batch(piece: int) -> None:
    batch = build_batch([(b"%d" % at, b"v", [("v", bytes(32))], 1) for at in range(10)])
    header = read_header(batch)
    pieces = list(effects_in_pieces(header, batch, piece))
    assert [len(one) for one in pieces] == [min(piece, 10 - at) for at in range(0, 10, piece)]
    assert [effect for one in pieces for effect in one] == effects_in(header, batch)
    empty = build_batch([(b"k", None, [], 1)])[:HEADER_BYTES]
    assert list(effects_in_pieces(read_header(batch), batch, 1 << 30)) == [effects_in(header, batch)]
    with pytest.raises(CorruptBatchError):
        list(effects_in_pieces(read_header(empty), empty, piece))


@pytest.mark.parametrize("piece", [1, 2, 5, 1000])
@pytest.mark.parametrize("rule", ["last-writer-wins", "first-writer-wins"])
def test_steps_of_any_size_merge_to_the_same(tmp_path: Path, piece: int, rule: str) -> None:
    random, log, end = Random(5), list[bytes](), 0
    for lsn, size in enumerate(SIZES, 1):
        changes: list[Change] = [
            (
                random.choice(KEYS),
                cell(random.choice([None, b"v"]), random.randrange(5), 1 + lsn % 3, lsn, at),
            )
            for at in range(size)
        ]
        log.append(bytes(merged_batch(changes, end)))
        end += size
    with (
        MergedState.open(str(tmp_path / "whole"), rule_named(rule), RocksEngine()) as whole,
        MergedState.open(str(tmp_path / "steps"), rule_named(rule), RocksEngine()) as state,
    ):
        for batch in log:
            whole.apply([batch])
        before = stored(state)
        for _ in state.folding(log, piece):
            if state.applied_offset == 0:
                assert stored(state) == before
        assert stored(state) == stored(whole)
        assert state.conflicts == whole.conflicts
        assert (state.clock_ms, state.foreign_ms) == (whole.clock_ms, whole.foreign_ms)


def test_a_row_takes_the_place_of_a_tombstone_and_the_other_way_round(tmp_path: Path) -> None:
    with MergedState.open(str(tmp_path / "t"), rule_named("last-writer-wins"), RocksEngine()) as state:
        for lsn, value in enumerate([b"v", None, b"w", None], 1):
            state.apply([merged_batch([(b"k", cell(value, lsn, 1, lsn))], state.applied_offset)])
            there = {key[:1] for key in stored(state) if key[1:] == b"k"}
            assert there == ({b"\x10"} if value is None else {b"\x01"})
        assert pack_id(4, 1, 0) == state.cells([b"k"])[b"k"].version[0]  # type: ignore[union-attr]
