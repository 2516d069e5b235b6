"""The leader's evaluator: conditions, versions, the overlay, refusals, duplicates."""

from collections.abc import Generator, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import CorruptBatchError, InvalidRequestError, OverloadedError
from antiphon.invariants import InvariantError
from antiphon.model.key_order import DeleteOrdered
from antiphon.model.requests import Check, Delete, DeleteRange, OpResult, OpStatus, Put, TableOp, TableWritten
from antiphon.model.rows import Version
from antiphon.records.batch import stamp
from antiphon.records.builder import build_batch, building
from antiphon.records.changes import VERSION, ChangeKind, decode_changes
from antiphon.table import evaluator as module
from antiphon.table import range_removals
from antiphon.table import state as states
from antiphon.table.evaluation import Evaluation
from antiphon.table.evaluator import ABSENT
from antiphon.table.known_keys import KnownKeys
from antiphon.table.outcomes import results_from_batch
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.state import TableState
from tests.table import leading

OK = OpResult(OpStatus.OK)
NOT_FOUND = OpResult(OpStatus.KEY_NOT_FOUND)


def open_state(path: str) -> TableState:
    return states.open_state(path, RocksEngine())


def ok(version_id: int, modifications: int = 0, created_ms: int = 100, modified_ms: int = 100) -> OpResult:
    return OpResult(OpStatus.OK, Version(version_id, modifications, created_ms, modified_ms))


def refused(version: Version | None = None) -> OpResult:
    return OpResult(OpStatus.UNEXPECTED_VERSION, version)


class Leader(leading.Leader):
    """Puts can be committed at once."""

    def put(self, key: bytes, value: bytes = b"v") -> Evaluation:
        evaluation = self.write(Put(key, value))
        self.commit()
        return evaluation


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with open_state(str(tmp_path / "t")) as state:
        yield Leader(state)


def keys(leader: Leader) -> list[bytes]:
    return [row.key for row in leader.state.scan(b"", b"", 10_000)[0]]


def test_versions_count_successful_puts_of_the_shard(leader: Leader) -> None:
    written = leader.write(
        Put(b"a", b"1"),
        Put(b"b", b"1"),
        Put(b"a", b"2", expected_version=99),
        Delete(b"b"),
        Put(b"a", b"3"),
        Put(b"b", b"2"),
    )
    assert written.results == [ok(0), ok(1), refused(Version(0, 0, 100, 100)), OK, ok(2, 1), ok(3)]
    leader.commit()
    again = leader.write(Put(b"a", b"4"), now_ms=200)
    assert again.results == [ok(4, 3 - 1, 100, 200)]


@pytest.mark.parametrize("committed", [True, False])
def test_conditions(leader: Leader, committed: bool) -> None:
    """The same answers whether the state that they are judged by is committed or not."""
    leader.write(Put(b"there", b"1"))
    if committed:
        leader.commit()
    found = Version(0, 0, 100, 100)
    for op, result in (
        (Put(b"there", b"x", ABSENT), refused(found)),
        (Put(b"there", b"x", 5), refused(found)),
        (Put(b"missing", b"x", 0), refused()),
        (Delete(b"there", 3), refused(found)),
        (Delete(b"there", ABSENT), refused(found)),
        (Delete(b"missing", 0), refused()),
        (Delete(b"missing", ABSENT), NOT_FOUND),
        (Delete(b"missing"), NOT_FOUND),
        (DeleteRange(b"x", b"z"), OK),
        (Check(b"there", 0), OK),
        (Check(b"there", 5), refused(found)),
        (Check(b"there", ABSENT), refused(found)),
        (Check(b"missing", ABSENT), OK),
        (Check(b"missing", 0), refused()),
    ):
        evaluation = leader.write(op)
        assert evaluation.results == [result], op
        assert not evaluation.records
        looked_at_pending = not committed and getattr(op, "key", b"") == b"there"
        assert evaluation.wait_for == (1 if looked_at_pending else 0), op
    assert leader.write(Put(b"missing", b"x", ABSENT)).results == [ok(1)]
    assert leader.write(Put(b"there", b"x", 0)).results == [ok(2, 1)]
    assert leader.write(Delete(b"there", 2)).results == [OK]
    assert leader.write(Put(b"there", b"x", ABSENT)).results == [ok(3)]


def test_s0_19_store_changes_at_commit_only(leader: Leader) -> None:
    leader.put(b"k", b"old")
    evaluation = leader.write(Put(b"k", b"new"))
    row = leader.state.get(b"k")
    assert row is not None
    assert row.value == b"old"
    assert evaluation.wait_for == 2
    leader.commit()
    row = leader.state.get(b"k")
    assert row is not None
    assert row.value == b"new"


def test_s1_02_the_same_log_makes_the_same_rows_in_whatever_pieces_it_is_applied(
    leader: Leader, tmp_path: Path
) -> None:
    """The leader applies what it judged, followers apply the log, entry by entry or many at once."""
    random = Random(7)
    for number in range(200):
        key = b"%d" % random.randrange(8)
        leader.write(random.choice((Put(key, b"%d" % number), Put(key, b"x"), Delete(key))), now_ms=number)
        if random.random() < 0.2:
            leader.commit()
    leader.commit()
    for name, pieces in (("each", 1), ("seven", 7), ("all", 1000)):
        with open_state(str(tmp_path / name)) as follower:
            for at in range(0, len(leader.log), pieces):
                follower.apply(leader.log[at : at + pieces])
            assert follower.scan(b"", b"", 100) == leader.state.scan(b"", b"", 100), name
            assert follower.applied_offset == leader.state.applied_offset
            assert follower.next_version_id == leader.state.next_version_id


def test_pending_effects_are_seen_until_each_is_committed(leader: Leader) -> None:
    leader.write(Put(b"k", b"1"))
    leader.write(Delete(b"k"))
    leader.write(Put(b"k", b"2"))
    leader.write(Delete(b"k"))
    for committed in (1, 2, 3, 4):
        assert leader.evaluator.evaluate([Delete(b"k")], 1).results == [NOT_FOUND]
        leader.evaluator.committed(committed)
    assert leader.evaluator.overlay_keys == 0
    assert leader.state.applied_offset == 4
    evaluation = leader.evaluator.evaluate([Delete(b"k")], 1)
    assert (evaluation.results, evaluation.wait_for) == ([NOT_FOUND], 0)


def test_an_atomic_request_is_carried_out_whole_or_not_at_all(leader: Leader) -> None:
    leader.put(b"a")
    not_carried_out = OpResult(OpStatus.NOT_CARRIED_OUT)
    cases: list[tuple[TableOp, OpResult]] = [
        (Put(b"b", b"x", 7), refused()),
        (Put(b"a", b"x", ABSENT), refused(Version(0, 0, 100, 100))),
        (Delete(b"none"), NOT_FOUND),
        (Check(b"a", 7), refused(Version(0, 0, 100, 100))),
    ]
    for refused_op, why in cases:
        evaluation = leader.write(Put(b"c", b"1"), refused_op, Delete(b"a"), atomic=True)
        assert evaluation.results == [not_carried_out, why, not_carried_out]
        assert evaluation.records == []
    assert keys(leader) == [b"a"]
    # Operations see each other, and all of it is one batch.
    evaluation = leader.write(
        Check(b"a", 0),
        Put(b"c", b"1", ABSENT),
        Put(b"c", b"2", 1),
        Check(b"c", 2),
        Delete(b"a", 0),
        atomic=True,
    )
    assert [result.status for result in evaluation.results] == [OpStatus.OK] * 5
    leader.commit()
    assert keys(leader) == [b"c"]
    assert results_from_batch(leader.log[-1]).results == tuple(evaluation.results)


def test_the_refusal_of_an_atomic_request_waits_for_what_it_was_judged_on(leader: Leader) -> None:
    leader.write(Put(b"a", b"1"))
    evaluation = leader.write(Put(b"b", b"1"), Put(b"a", b"2", ABSENT), atomic=True)
    assert evaluation.wait_for == 1  # the put of `a` might still never have been


def test_delete_range_sees_store_overlay_and_request(leader: Leader) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        leader.put(key)
    leader.write(Delete(b"b"), Put(b"bb", b"pending"))
    evaluation = leader.write(
        Put(b"ba", b"own"), Delete(b"c"), DeleteRange(b"b", b"d"), DeleteRange(b"x", b"")
    )
    assert [(key, value) for key, value, _, _ in evaluation.records] == [
        (b"ba", b"own"), (b"c", None), (b"ba", None), (b"bb", None),
    ]  # fmt: skip
    assert evaluation.results == [ok(5), OK, OK, OK]
    leader.commit()
    assert keys(leader) == [b"a", b"d"]
    leader.write(DeleteRange(b"", b""))
    nothing_left = leader.write(DeleteRange(b"", b""))
    assert (nothing_left.results, nothing_left.records, nothing_left.wait_for) == ([OK], [], leader.end)
    leader.commit()
    assert keys(leader) == []


def test_put_after_delete_range_in_one_request_starts_anew(leader: Leader) -> None:
    leader.put(b"k")
    assert leader.write(DeleteRange(b"", b""), Put(b"k", b"2", ABSENT)).results == [OK, ok(1)]
    leader.commit()
    assert keys(leader) == [b"k"]


def test_delete_range_is_bounded(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_removals, "RANGE_KEYS_MAX", 3)
    for key in (b"a", b"b", b"c", b"d"):
        leader.put(key)
    leader.write(Delete(b"d"), Put(b"dd", b""))
    with pytest.raises(InvalidRequestError, match="more than 3 keys"):
        leader.write(DeleteRange(b"", b""))
    assert leader.write(DeleteRange(b"b", b"")).results == [OK]


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((), "1 to"),
        ((Put(b"k" * 65_537, b""),), "65536 bytes"),
        ((Delete(b"k" * 65_537),), "65536 bytes"),
        ((Put(b"k", b"", -2),), "expected version"),
        ((Put(b"fine", b""), Delete(b"k", -5)), "expected version"),
    ],
)
def test_impossible_requests_are_refused_whole(
    leader: Leader, ops: tuple[TableOp, ...], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        leader.write(*ops)
    assert leader.write(Put(b"k", b"")).results == [ok(0)]


def test_too_much_in_flight_is_refused(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OVERLAY_KEYS_MAX", 2)
    leader.write(*(Put(b"%d" % i, b"") for i in range(3)))
    with pytest.raises(OverloadedError):
        leader.write(Put(b"k", b""))
    leader.commit()
    assert leader.write(Put(b"k", b"")).results == [ok(3)]


def test_an_evaluation_that_is_not_appended_leaves_no_trace(leader: Leader) -> None:
    forgotten = leader.evaluator.evaluate([Put(b"k", b"1")], 1)
    assert leader.write(Put(b"k", b"2", ABSENT)).results == [ok(0)]
    with pytest.raises(InvariantError, match="older state"):
        leader.evaluator.appended(forgotten, leader.end)


def test_appends_must_follow_each_other(leader: Leader) -> None:
    leader.write(Put(b"k", b"1"), Put(b"k", b"2"))
    evaluation = leader.evaluator.evaluate([Put(b"k", b"3")], 1)
    with pytest.raises(InvariantError, match="the log grows"):
        leader.evaluator.appended(evaluation, 1)
    refusal = leader.evaluator.evaluate([Delete(b"none")], 1)
    with pytest.raises(InvariantError, match="with effects"):
        leader.evaluator.appended(refusal, 2)


def test_settled_versions_stay_right_when_memory_is_short(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLED_KEYS_MAX", 2)
    count: dict[bytes, int] = {}
    for i in range(60):
        key = b"%d" % (i * 7 % 11)
        modifications = count.get(key, -1) + 1
        count[key] = modifications
        assert leader.put(key).results == [ok(i, modifications)]


def test_new_leader_goes_on_from_the_log(tmp_path: Path, leader: Leader) -> None:
    leader.put(b"a")
    leader.write(Put(b"b", b"1"), Delete(b"a"))  # never committed by this leader
    with open_state(str(tmp_path / "follower")) as state:
        state.apply(leader.log[:1])
        state.apply(leader.log)  # the next leader committed the rest
        successor = Leader(state)
        assert successor.write(Put(b"c", b""), Put(b"a", b"", ABSENT)).results == [ok(2), ok(3)]


def test_changes_tell_what_happened(leader: Leader) -> None:
    leader.write(Put(b"k", b"1"), Put(b"k", b"2"), now_ms=5)
    leader.write(Delete(b"k"), Put(b"j", b""), now_ms=9)
    changes = list(decode_changes(leader.log, start=1))
    assert [(c.key, c.value, c.kind, c.offset, c.timestamp_ms) for c in changes] == [
        (b"k", b"2", ChangeKind.MODIFIED, 1, 5),
        (b"k", None, ChangeKind.DELETED, 2, 9),
        (b"j", b"", ChangeKind.CREATED, 3, 9),
    ]
    assert changes[0][4:] == (1, 1, 5, 5, None, None)
    assert changes[1][4:] == (1, 1, 5, 5, None, None)  # of the row that was removed


@pytest.mark.parametrize(
    "ops",
    [
        (Put(b"n", b"1"),),
        (Put(b"n", b"1"), Put(b"m", b"2"), Put(b"n", b"3")),
        (Delete(b"a"),),
        (Delete(b"none"), Put(b"n", b"1")),
        (Put(b"n", b"1"), Delete(b"none")),
        (Put(b"a", b"1", 77), Put(b"n", b"1"), Put(b"none", b"1", 77)),
        (DeleteRange(b"x", b"y"), DeleteRange(b"", b""), DeleteRange(b"x", b"y")),
        (DeleteRange(b"", b"b"), Put(b"n", b""), DeleteRange(b"", b""), Delete(b"n")),
        (DeleteRange(b"", b""), DeleteRange(b"", b"")),
        (Check(b"a", 0), Put(b"n", b"1"), Check(b"b", 7), Check(b"none", ABSENT)),
    ],
)
def test_answers_can_be_rebuilt_from_the_log(leader: Leader, ops: tuple[TableOp, ...]) -> None:
    leader.write(Put(b"a", b""), Put(b"b", b""))
    evaluation = leader.write(*ops)
    assert results_from_batch(leader.log[-1]) == TableWritten(tuple(evaluation.results), 2)


def test_rebuilding_refuses_other_batches() -> None:
    with pytest.raises(CorruptBatchError, match="no effect"):
        results_from_batch(build_batch([(b"k", b"v", [], 1)]))
    version = VERSION.pack(0, 0, 0, 0)
    with pytest.raises(CorruptBatchError, match="middle of a version"):
        results_from_batch(build_batch([(b"k", b"v", [("v", version), ("s", b"\x82abc")], 1)]))


class Model:
    """Oxia's rules, written down a second time without any of the machinery."""

    def __init__(self) -> None:
        self.rows: dict[bytes, tuple[bytes, int, int, int]] = {}
        self.next_id = 0

    def carry_out(self, op: TableOp, now_ms: int) -> OpResult:
        if isinstance(op, DeleteRange):
            for key in [k for k in self.rows if k >= op.start and (not op.end or k < op.end)]:
                del self.rows[key]
            return OK
        assert not isinstance(op, DeleteOrdered), "ranges in another order are removed in tests of their own"
        row = self.rows.get(op.key)
        if op.expected_version is not None and op.expected_version != (row[1] if row else -1):
            return refused(Version(row[1], row[2], row[3], 0) if row else None)
        if isinstance(op, Check):
            return OK
        if isinstance(op, Delete):
            return OK if self.rows.pop(op.key, None) else NOT_FOUND
        made = (op.value, self.next_id, row[2] + 1 if row else 0, row[3] if row else now_ms)
        self.rows[op.key], self.next_id = made, self.next_id + 1
        return ok(made[1], made[2], made[3], now_ms)


some_key = st.sampled_from([b"", b"a", b"b", b"ba", b"c"])
some_version = st.none() | st.integers(-1, 6)
some_op = st.one_of(
    st.builds(Put, some_key, st.binary(max_size=2), some_version),
    st.builds(Delete, some_key, some_version),
    st.builds(DeleteRange, some_key, some_key),
    st.builds(Check, some_key, st.integers(-1, 6)),
)


def in_pieces(leader: Leader, ops: list[TableOp], now_ms: int, piece: int, ends: list[int]) -> Evaluation:
    """Write `ops` in pieces; between two of them some more of what was written before is committed."""
    to_commit = iter(ends)

    def step_by_step(steps: Generator[Any, None, Any]) -> Any:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            leader.evaluator.committed(max(next(to_commit, 0), leader.state.applied_offset))

    evaluator = leader.evaluator
    evaluation: Evaluation = step_by_step(evaluator.evaluating(ops, now_ms, piece))
    if evaluation.records:
        batch = step_by_step(building(evaluation.records, piece, (-1, -1, -1)))
        step_by_step(evaluator.preparing(evaluation, piece))
        stamp(batch, leader.end, 1)
        leader.log.append(bytes(batch))
        evaluator.appended(evaluation, leader.end)
        leader.end += len(evaluation.records)
    return evaluation


Requests = list[tuple[list[TableOp], int]]  # operations, and how many requests behind commits are


def carried_out(leader: Leader, requests: Requests, piece: int) -> Iterator[tuple[int, TableOp, OpResult]]:
    """Carry out requests, every other one in pieces if `piece` says so: when, each operation and what it came to."""
    ends = [0]
    for now_ms, (ops, behind) in enumerate(requests):
        if piece and now_ms % 2:
            evaluation = in_pieces(leader, ops, now_ms, piece, ends[1:])
        else:
            evaluation = leader.write(*ops, now_ms=now_ms)
        for op, result in zip(ops, evaluation.results, strict=True):
            yield now_ms, op, result
        if evaluation.records:
            assert results_from_batch(leader.log[-1]).results == tuple(evaluation.results)
            ends.append(leader.end)
        leader.evaluator.committed(max(ends[max(0, len(ends) - 1 - behind)], leader.state.applied_offset))
    leader.commit()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.lists(some_op, min_size=1, max_size=5), st.integers(0, 3)), max_size=12),
    st.integers(0, 3),
)
def test_equals_the_plain_rules(
    tmp_path_factory: pytest.TempPathFactory, requests: Requests, piece: int
) -> None:
    """Whatever is pending, the outcome is that of carrying out every operation in order, in pieces or at once."""
    model = Model()
    directory = tmp_path_factory.mktemp("e")
    with open_state(str(directory / "leader")) as state, open_state(str(directory / "follower")) as follower:
        leader = Leader(state)
        for now_ms, op, result in carried_out(leader, requests, piece):
            expected = model.carry_out(op, now_ms)
            assert result.status == expected.status
            if result.status == OpStatus.OK:
                assert result.version == expected.version
        follower.apply(leader.log)
        for replica in (state, follower):
            rows = replica.scan(b"", b"", 1000)[0]
            assert {
                r.key: (r.value, r.version.id, r.version.modifications, r.version.created_ms) for r in rows
            } == model.rows
        assert follower.applied_offset == leader.end


def test_the_cost_of_a_range_does_not_rise_with_what_waits_for_its_commit(leader: Leader) -> None:
    """Each of many ranges looks at its own keys only; what is known beside the store is sorted once."""
    leader.write(*(Put(b"%04d" % number, b"v") for number in range(2000)))
    ranges = [DeleteRange(b"%04d" % number, b"%04d" % (number + 1)) for number in range(0, 2000, 2)]
    looked_at = 0
    between = KnownKeys.between

    def counted(self: KnownKeys, start: bytes, end: bytes) -> Iterator[bytes]:
        nonlocal looked_at
        for key in between(self, start, end):
            looked_at += 1
            yield key

    with (
        patch.object(KnownKeys, "between", counted),
        patch.object(KnownKeys, "sort", autospec=True, side_effect=KnownKeys.sort) as sort,
    ):
        assert len(leader.write(*ranges).records) == 1000
    assert looked_at == 1000
    assert sort.call_count == 1


def test_the_ranges_of_a_request_hold_so_many_keys_together(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed rows are in the store until that is committed: ranges that overlap would look at them again and again."""
    monkeypatch.setattr(range_removals, "RANGE_KEYS_MAX", 10)
    leader.write(*(Put(b"%02d" % number, b"v") for number in range(6)))
    leader.commit()
    assert len(leader.write(DeleteRange(b"", b"05")).records) == 5
    with pytest.raises(InvalidRequestError, match="more than 10 keys"):
        leader.write(DeleteRange(b"", b""), DeleteRange(b"", b""))


def test_keys_are_found_by_range_whatever_run_they_are_in() -> None:
    keys = [b"%03d" % number for number in Random(1).sample(range(300), 200)]
    known = KnownKeys(keys)
    while known.sort(7):
        pass
    for start, end in ((b"", b""), (b"100", b"200"), (b"2", b""), (b"3", b"1"), (b"100", b"100")):
        expected = sorted(key for key in keys if key >= start and (not end or key < end))
        assert sorted(known.between(start, end)) == expected
