"""Prepared transactions in a shard of a table: locks, rows after the marker, the store, and a plain model beside both."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.errors import InvalidRequestError, KeyLockedError, OverloadedError, StorageFailedError
from antiphon.model.requests import Check, Delete, DeleteRange, OpStatus, Put, TableOp
from antiphon.model.sessions import PutEphemeral
from antiphon.records.builder import build_batch, build_end_marker
from antiphon.table import prepared, removals
from antiphon.table import state as states
from antiphon.table.evaluator import ABSENT, TableEvaluator
from antiphon.table.prepared import Prepare, PreparedTransactions
from antiphon.table.prepared_rows import PREPARED, PRODUCER
from antiphon.table.removals import RecentRemovals
from antiphon.table.rocks_store import RocksEngine
from antiphon.table.session_rows import SessionChange
from antiphon.table.state import TableState
from tests.table.leading import Leader

P, Q = 7, 8  # producers


def open_state(path: Path) -> TableState:
    return states.open_state(str(path), RocksEngine())


class Shard(Leader):
    """A leader that judges, and a follower that applies what the log says."""

    def __init__(self, leader: TableState, follower: TableState) -> None:
        super().__init__(leader)
        self.follower = follower
        self.number = 0

    def prepare(self, producer_id: int, *ops: TableOp) -> list[int]:
        evaluation = self.evaluator.evaluate_prepare(ops, 100)
        if evaluation.records:
            batch = build_batch(
                evaluation.records,
                base_offset=self.end,
                leader_epoch=1,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
            base = self.add(bytes(batch), len(evaluation.records))
            self.evaluator.appended_prepare(producer_id, evaluation, base)
        return [result.status for result in evaluation.results]

    def finish(self, producer_id: int, *, commit: bool) -> None:
        self.number += 1
        marker = build_end_marker(
            commit=commit,
            number=self.number,
            producer=(producer_id, 0),
            term=1,
            base_offset=self.end,
            timestamp_ms=100,
        )
        self.evaluator.appended_marker(producer_id, self.add(bytes(marker), 1), commit=commit)

    def commit(self) -> None:
        self.evaluator.committed(self.end)
        self.follower.apply(self.log)
        assert rows(self.state) == rows(self.follower)
        assert self.state.next_version_id == self.follower.next_version_id
        assert self.state.transactions.by_producer == self.follower.transactions.by_producer

    def elect(self) -> None:
        """What is committed is all that the new leader knows."""
        self.evaluator = TableEvaluator(self.state)


def rows(state: TableState) -> dict[bytes, tuple[bytes | None, int]]:
    return {row.key: (row.value, row.version.id) for row in state.scan(b"", b"", 10_000)[0]}


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    with open_state(tmp_path / "leader") as leader, open_state(tmp_path / "follower") as follower:
        yield Shard(leader, follower)


def test_what_is_prepared_becomes_rows_with_the_commit_marker(shard: Shard) -> None:
    shard.write(Put(b"a", b"1"), Put(b"b", b"1"))
    shard.prepare(P, Check(b"a", 0), Put(b"a", b"2", 0), Delete(b"b"), Put(b"c", b"2"))
    shard.commit()
    assert rows(shard.state) == {b"a": (b"1", 0), b"b": (b"1", 1)}
    shard.finish(P, commit=True)
    assert rows(shard.state)[b"a"] == (b"1", 0), "before the marker is committed"
    shard.commit()
    assert rows(shard.state) == {b"a": (b"2", 2), b"c": (b"2", 3)}


def test_an_abort_leaves_the_rows_and_the_versions_are_not_given_again(shard: Shard) -> None:
    shard.write(Put(b"a", b"1"))
    shard.prepare(P, Put(b"a", b"2"), Put(b"b", b"2"))
    shard.finish(P, commit=False)
    shard.write(Put(b"b", b"3"))
    shard.commit()
    assert rows(shard.state) == {b"a": (b"1", 0), b"b": (b"3", 3)}


@pytest.mark.parametrize(
    "op", [Put(b"a", b"x"), Delete(b"a"), Check(b"a", 0), DeleteRange(b"", b""), DeleteRange(b"a", b"b")]
)
def test_whatever_touches_a_locked_key_is_refused(shard: Shard, op: TableOp) -> None:
    shard.write(Put(b"a", b"1"), Put(b"b", b"1"))
    shard.commit()
    shard.prepare(P, Put(b"a", b"2"))
    for committed in (False, True):
        with pytest.raises(KeyLockedError, match="key b'a'"):
            shard.write(op)
        with pytest.raises(KeyLockedError, match="key b'a'"):
            shard.prepare(Q, Put(b"b", b"1"), Put(b"a", b"1"))
        if not committed:
            shard.commit()
    assert shard.write(Put(b"b", b"2"), DeleteRange(b"b", b"c")).records, "other keys are free"
    shard.finish(P, commit=True)
    shard.write(op if not isinstance(op, Check) else Check(b"a", 2))
    shard.commit()


def test_a_refused_prepare_locks_nothing(shard: Shard) -> None:
    shard.write(Put(b"a", b"1"))
    found = shard.prepare(P, Put(b"b", b"1"), Put(b"a", b"2", 5))
    assert found == [OpStatus.NOT_CARRIED_OUT, OpStatus.UNEXPECTED_VERSION]
    assert not shard.evaluator.transactions.locked
    assert shard.prepare(P, Put(b"b", b"1"), Delete(b"x")) == [
        OpStatus.NOT_CARRIED_OUT,
        OpStatus.KEY_NOT_FOUND,
    ]
    shard.write(Put(b"b", b"2"))


def test_a_new_leader_keeps_the_locks_and_ends_what_is_prepared(shard: Shard) -> None:
    shard.prepare(P, Put(b"a", b"1"))
    shard.prepare(Q, Put(b"b", b"1"))
    shard.commit()
    shard.elect()
    with pytest.raises(KeyLockedError):
        shard.write(Put(b"a", b"2"))
    shard.finish(P, commit=True)
    shard.finish(Q, commit=False)
    shard.write(Put(b"a", b"2", 0), Put(b"b", b"2", ABSENT))
    shard.commit()
    assert rows(shard.state) == {b"a": (b"2", 2), b"b": (b"2", 3)}


def test_the_store_keeps_what_is_prepared_over_a_restart_and_in_a_copy(tmp_path: Path) -> None:
    with open_state(tmp_path / "leader") as leader, open_state(tmp_path / "follower") as follower:
        shard = Shard(leader, follower)
        shard.prepare(P, Put(b"a", b"1"), Put(b"a", b"2"))
        shard.prepare(Q, Put(b"b", b"1"))
        shard.commit()
        follower.checkpoint(str(tmp_path / "copy"))
        log = shard.log[:]
        shard.finish(P, commit=True)
        shard.commit()
        shard.finish(Q, commit=True)
        log = shard.log
    for name, known in (("copy", {P, Q}), ("follower", {Q})):
        with open_state(tmp_path / name) as state:
            assert set(state.transactions.by_producer) == known
            assert state.transactions.locked == ({b"a": P, b"b": Q} if P in known else {b"b": Q})
            state.apply(log)
            assert rows(state) == {b"a": (b"2", 1), b"b": (b"1", 2)}
            assert not state.transactions.locked
            assert not state.transactions.size_bytes


def test_a_marker_of_a_producer_with_nothing_here_changes_nothing(shard: Shard) -> None:
    shard.write(Put(b"a", b"1"))
    shard.finish(P, commit=True)
    shard.finish(Q, commit=False)
    shard.commit()
    assert rows(shard.state) == {b"a": (b"1", 0)}
    assert shard.state.applied_offset == 3


def test_writes_go_on_beside_a_prepared_transaction(shard: Shard) -> None:
    shard.prepare(P, Put(b"a", b"1"))
    shard.write(Put(b"b", b"1"))
    shard.finish(P, commit=True)
    shard.write(Put(b"a", b"2"), Delete(b"b"))
    shard.commit()
    assert rows(shard.state) == {b"a": (b"2", 2)}


def test_a_session_does_not_end_while_one_of_its_keys_is_locked(shard: Shard) -> None:
    evaluator = shard.evaluator
    evaluator.appended_session(SessionChange(5, 1000), 0)
    shard.end = 1
    shard.log.append(b"")
    evaluator.committed(1)
    evaluation = evaluator.evaluate([PutEphemeral(b"a", b"1", 5)], 100)
    evaluator.appended(evaluation, 1)
    shard.end = 2
    evaluator.committed(2)
    shard.prepare(P, Put(b"a", b"2"))
    with pytest.raises(KeyLockedError):
        evaluator.ending(5, 100)
    shard.finish(P, commit=True)
    assert not evaluator.ending(5, 100).records, "the row belongs to nobody now"


def test_the_end_of_a_session_is_a_removal(shard: Shard) -> None:
    evaluator = shard.evaluator
    evaluator.appended_session(SessionChange(5, 1000), 0)
    evaluator.appended(evaluator.evaluate([PutEphemeral(b"a", b"1", 5)], 100), 1)
    evaluator.committed(2)
    evaluator.appended(evaluator.ending(5, 100), 2)
    assert not evaluator.removals.is_known_absent(b"a", 2)
    assert evaluator.removals.is_known_absent(b"a", 3)


def test_what_is_no_prepare_is_refused(shard: Shard) -> None:
    refused: list[list[TableOp]] = [
        [],
        [Check(b"a", 0)],
        [DeleteRange(b"a", b"b"), Put(b"a", b"")],
        [PutEphemeral(b"a", b"", 5)],
        [Put(b"a", b"")] * 1_001,
    ]
    for ops in refused:
        with pytest.raises(InvalidRequestError):
            shard.evaluator.evaluate_prepare(ops, 100)


def test_prepared_transactions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    known = PreparedTransactions()
    known.check_room(1 << 40)  # one always has room: it is one batch
    known.prepare(Prepare(P, [(b"a", b"x" * 1_000, b"")]))
    monkeypatch.setattr(prepared, "PREPARED_BYTES_MAX", known.size_bytes + 10)
    known.check_room(10)
    with pytest.raises(OverloadedError, match="1 transactions"):
        known.check_room(11)
    monkeypatch.setattr(prepared, "PREPARED_MAX", 1)
    with pytest.raises(OverloadedError):
        known.check_room(0)
    known.end(P)
    assert not known.size_bytes
    known.check_room(11)


def test_a_store_that_cannot_be_decoded_is_not_opened(tmp_path: Path) -> None:
    for key, stored in ((PREPARED + PRODUCER.pack(5), b"no"), (PREPARED + b"no", b"\x90")):
        store = RocksEngine().open(str(tmp_path / "t"))
        batch = store.batch()
        batch.put(key, stored)
        store.write(batch)
        store.close()
        with pytest.raises(StorageFailedError, match="prepared transaction"):
            open_state(tmp_path / "t")
        store = RocksEngine().open(str(tmp_path / "t"))
        batch = store.batch()
        batch.delete(key)
        store.write(batch)
        store.close()


def test_removals_are_known_from_where_leadership_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "GENERATION_KEYS", 2)
    known = RecentRemovals(10)
    assert not known.is_known_absent(b"a", 9), "whoever led before knew"
    assert known.is_known_absent(b"a", 10)
    known.note([b"a"], 12)
    assert not known.is_known_absent(b"a", 11)
    assert known.is_known_absent(b"a", 12)
    assert known.is_known_absent(b"b", 10)
    known.note([b"b", b"c"], 15)  # a generation is full
    known.note([b"d", b"e", b"f"], 20)  # and another one: of the first nothing is known any more
    assert not known.is_known_absent(b"x", 14)
    assert known.is_known_absent(b"x", 15)
    assert not known.is_known_absent(b"e", 19)


def test_the_leader_notes_every_kind_of_removal(shard: Shard) -> None:
    shard.write(*(Put(key, b"") for key in (b"a", b"b", b"c", b"d")))
    shard.commit()
    began = shard.end
    shard.write(Delete(b"a"), DeleteRange(b"b", b"c"))
    shard.prepare(P, Delete(b"c"))
    shard.prepare(Q, Delete(b"d"))
    shard.finish(P, commit=True)
    shard.finish(Q, commit=False)
    shard.commit()
    absent = [
        key
        for key in (b"a", b"b", b"c", b"d", b"e")
        if not shard.evaluator.removals.is_known_absent(key, began)
    ]
    assert absent == [b"a", b"b", b"c"]


KEYS = (b"a", b"b", b"c")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(KEYS), st.booleans()),
        st.tuples(st.just("prepare"), st.sampled_from((P, Q)), st.sets(st.sampled_from(KEYS), min_size=1)),
        st.tuples(st.just("end"), st.sampled_from((P, Q)), st.booleans()),
        st.tuples(st.sampled_from(("commit", "elect", "reopen")), st.none(), st.none()),
    ),
    max_size=30,
)


class Model:
    """What the rows are to be, in plain words."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.rows: dict[bytes, bytes] = {}
        self.pending: dict[int, dict[bytes, bytes | None]] = {}

    def change(self, key: bytes, value: bytes | None) -> None:
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = value

    def is_locked(self, keys: set[bytes]) -> bool:
        return any(keys & set(ops) for ops in self.pending.values())

    def write(self, key: bytes, value: bytes | None) -> None:
        op: TableOp = Delete(key) if value is None else Put(key, value)
        if self.is_locked({key}):
            with pytest.raises(KeyLockedError):
                self.shard.write(op)
        else:
            self.shard.write(op)
            self.change(key, value)

    def prepare(self, producer_id: int, keys: set[bytes], value: bytes) -> None:
        if producer_id in self.pending:
            return
        wanted = {key: None if key in self.rows else value for key in sorted(keys)}
        ops = [Delete(key) if new is None else Put(key, new) for key, new in wanted.items()]
        if self.is_locked(keys):
            with pytest.raises(KeyLockedError):
                self.shard.prepare(producer_id, *ops)
        else:
            self.shard.prepare(producer_id, *ops)
            self.pending[producer_id] = wanted

    def finish(self, producer_id: int, *, commit: bool) -> None:
        self.shard.finish(producer_id, commit=commit)
        for key, value in self.pending.pop(producer_id, {}).items():
            if commit:
                self.change(key, value)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_leader_follower_and_a_plain_model_agree(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("model")
    leader = open_state(folder / "leader")
    shard = Shard(leader, open_state(folder / "follower"))
    model = Model(shard)
    for serial, (kind, one, other) in enumerate(steps):
        value = b"%d" % serial
        if kind == "write":
            model.write(one, value if other else None)
        elif kind == "prepare":
            model.prepare(one, other, value)
        elif kind == "end":
            model.finish(one, commit=other)
        else:
            shard.commit()
            if kind == "elect":
                shard.elect()
            elif kind == "reopen":
                shard.follower.close()
                shard.follower = open_state(folder / "follower")
    shard.commit()
    assert {key: found for key, (found, _) in rows(shard.state).items()} == model.rows
    leader.close()
    shard.follower.close()
