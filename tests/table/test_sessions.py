"""Sessions in a table's store and judged by its leader: what belongs to one, and what its end takes away."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import CorruptBatchError, InvalidRequestError
from antiphon.model.requests import Delete, OpStatus, Put
from antiphon.model.rows import Row, Version
from antiphon.model.sessions import PutEphemeral
from antiphon.records.builder import build_batch
from antiphon.records.changes import VERSION, decode_changes, owned_version, stored_version
from antiphon.records.session_entries import (
    SessionEnded,
    SessionOpened,
    build_session_entry,
    session_entry_of,
)
from antiphon.records.split_entries import Freeze, Inherit, Release, build_split_entry
from antiphon.table import session_rows, sessions
from antiphon.table.copying import CopiedRow, records_of
from antiphon.table.evaluation import Evaluation
from antiphon.table.evaluator import TableEvaluator
from antiphon.table.ranges import WHOLE
from antiphon.table.session_rows import LINK, SESSION_ROW
from antiphon.table.state import TableState
from tests.table.leading import LeaderAndFollower

S, T = 11, 12


class Leader(LeaderAndFollower):
    """One that knows of sessions."""

    def open(self, session_id: int, timeout_ms: int = 5000) -> None:
        self.entry(SessionOpened(session_id, timeout_ms))

    def entry(self, entry: SessionOpened | SessionEnded) -> None:
        self.evaluator.appended_session(session_rows.change_by(entry), self.end)
        self.add(bytes(build_session_entry(entry, 1, self.end, 100)))

    def finish(self, session_id: int) -> Evaluation:
        found = self.evaluator.ending(session_id, 200)
        if found.records:
            self.take(found)
        else:
            self.entry(SessionEnded(session_id))
        return found

    def commit(self) -> None:
        self.evaluator.committed(self.end)
        if self.log:
            self.follower.apply([b"".join(self.log)])
            self.log = []


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path)
    yield made
    made.close()


def rows(state: TableState) -> dict[bytes, tuple[bytes | None, int | None]]:
    return {row.key: (row.value, row.session_id) for row in state.scan(b"", b"", 10_000)[0]}


def all_of(state: TableState) -> dict[bytes, bytes]:
    """Everything in a store, the rows of sessions included."""
    return dict(state._store.items(b"\x01"))


def removed(found: Evaluation) -> list[bytes]:
    return [key for key, value, _, _ in found.records if value is None]


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_takes_what_still_belongs_to_the_session(leader: Leader, committed: bool) -> None:
    leader.open(S)
    leader.open(T)
    leader.write(*(PutEphemeral(bytes([key]), b"1", S) for key in b"abcdef"))
    if committed:
        leader.commit()
    leader.write(
        Put(b"a", b"plain"), PutEphemeral(b"b", b"other", T), Delete(b"c"), PutEphemeral(b"d", b"2", S)
    )
    leader.write(Delete(b"e"), Put(b"e", b"put again"))
    assert removed(leader.finish(S)) == [b"d", b"f"]
    assert leader.write(PutEphemeral(b"x", b"late", S)).results[0].status == OpStatus.SESSION_NOT_FOUND
    leader.commit()
    left = {b"a": (b"plain", None), b"b": (b"other", T), b"e": (b"put again", None)}
    assert rows(leader.state) == rows(leader.follower) == left
    assert all_of(leader.state) == all_of(leader.follower)
    assert leader.state.sessions() == {T: 5000}
    assert leader.state.session_keys(S) == {}
    assert leader.finish(T).records
    leader.commit()
    assert {key[:1] for key in all_of(leader.follower)} == {b"\x01"}


def test_a_session_without_rows_ends_by_an_entry(leader: Leader) -> None:
    leader.open(S)
    leader.write(PutEphemeral(b"a", b"1", S))
    leader.write(Put(b"a", b"2"))
    assert not leader.finish(S).records
    leader.commit()
    assert rows(leader.follower) == {b"a": (b"2", None)}
    assert [key for key in all_of(leader.follower) if key[:1] != b"\x01"] == []
    assert all_of(leader.state) == all_of(leader.follower)


def test_a_new_leader_knows_sessions_and_their_rows(leader: Leader) -> None:
    leader.open(S, 7000)
    leader.write(PutEphemeral(b"a", b"1", S), PutEphemeral(b"b", b"1", S), Put(b"b", b"2"))
    leader.commit()
    successor = TableEvaluator(leader.follower)
    assert [(i, one.timeout_ms) for i, one in successor.sessions.by_id.items()] == [(S, 7000)]
    assert successor.sessions.fresh == [S]
    assert removed(successor.ending(S, 1)) == [b"a"]


def test_rows_say_whose_they_are_in_every_kind_of_read(leader: Leader) -> None:
    leader.open(S)
    leader.write(PutEphemeral(b"a", b"1", S))
    leader.write(PutEphemeral(b"a", b"22", S))
    leader.commit()
    row = Row(b"a", b"22", Version(1, 1, 100, 100), S)
    for state in (leader.state, leader.follower):
        assert state.get(b"a") == state.find(b"0", 2) == state.scan(b"", b"", 9)[0][0] == row
        assert state.get_many([b"a", b"b"]) == [row, None]
        assert state.versions([b"a", b"b"]) == [(1, 1, 100, 100), None]
        assert state.versions_in(b"", b"", 9)[0] == [(b"a", (1, 1, 100, 100))]
    fresh = TableEvaluator(leader.follower)
    (result,) = fresh.evaluate([Put(b"a", b"3", 1)], 300).results
    assert result.version == Version(2, 2, 100, 300)


def test_conditions_and_atomic_requests(leader: Leader) -> None:
    leader.open(S)
    found = leader.write(
        PutEphemeral(b"a", b"1", S, -1), PutEphemeral(b"a", b"1", S, -1), PutEphemeral(b"b", b"1", T)
    )
    assert [one.status for one in found.results] == [
        OpStatus.OK,
        OpStatus.UNEXPECTED_VERSION,
        OpStatus.SESSION_NOT_FOUND,
    ]
    refused = leader.write(Put(b"p", b"1"), PutEphemeral(b"b", b"1", T), atomic=True)
    assert [one.status for one in refused.results] == [OpStatus.NOT_CARRIED_OUT, OpStatus.SESSION_NOT_FOUND]
    assert not refused.records
    leader.commit()
    assert rows(leader.state) == {b"a": (b"1", S)}


def test_a_refusal_waits_for_the_end_that_it_rests_on(leader: Leader) -> None:
    leader.open(S)
    leader.commit()
    leader.finish(S)
    assert leader.write(PutEphemeral(b"a", b"1", S)).wait_for == leader.end
    leader.commit()


def test_keys_of_a_session_are_bounded(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSION_KEYS_MAX", 3)
    leader.open(S)
    leader.write(PutEphemeral(b"a", b"1", S), PutEphemeral(b"b", b"1", S))
    with pytest.raises(InvalidRequestError, match="at most 3 keys"):
        leader.write(PutEphemeral(b"c", b"1", S), PutEphemeral(b"d", b"1", S))
    leader.write(PutEphemeral(b"c", b"1", S), PutEphemeral(b"a", b"1", S))
    monkeypatch.setattr(sessions, "SESSION_KEYS_MAX", 1000)
    monkeypatch.setattr(sessions, "SESSION_KEYS_BYTES_MAX", 10)
    with pytest.raises(InvalidRequestError, match="10 bytes of keys"):
        leader.write(PutEphemeral(b"12345678", b"1", S))
    leader.commit()


def test_changes_say_whose_they_are(leader: Leader) -> None:
    leader.open(S)
    leader.write(PutEphemeral(b"a", b"1", S), Put(b"b", b"1"))
    leader.finish(S)
    changes = [(c.key, c.value, c.version_id, c.session_id) for c in decode_changes(leader.log)]
    assert changes == [(b"a", b"1", 0, S), (b"b", b"1", 1, None), (b"a", None, 0, S)]
    leader.commit()


def test_what_a_parent_released_is_not_its_sessions_any_more(leader: Leader) -> None:
    leader.open(S)
    keys = [b"%d" % i for i in range(20)]
    leader.write(*(PutEphemeral(key, b"1", S) for key in keys))
    for entry in (Freeze(1 << 31, 9), Release(leader.end, 1 << 31, 9, 0)):
        leader.evaluator.appended_entry(entry, leader.end)
        leader.add(bytes(build_split_entry(entry, 1, leader.end, 100)))
    mine = leader.evaluator.owned
    assert mine != WHOLE
    assert removed(leader.finish(S)) == sorted(filter(mine.holds, keys))
    leader.commit()
    assert rows(leader.follower) == {}


def test_a_child_takes_rows_and_sessions_over(leader: Leader, tmp_path: Path) -> None:
    leader.open(S)
    leader.write(*(PutEphemeral(b"%d" % i, b"1", S) for i in range(5)), Put(b"plain", b"1"))
    leader.commit()
    stored, _ = leader.state.stored_rows(b"", None, (0, 2**32 - 1), examined_max=99, size_bytes_max=1 << 20)
    (tmp_path / "c").mkdir()
    child = Leader(tmp_path / "c")
    records = records_of([CopiedRow(*row, 5) for row in stored])
    child.evaluator.imported(records, child.end)
    child.add(bytes(build_batch(records, base_offset=child.end, leader_epoch=1)), len(records))
    inherit = Inherit(0, 2**32 - 1, 0, 3, 77, b"", tuple(leader.state.sessions().items()))
    child.evaluator.appended_entry(inherit, child.end)
    child.add(bytes(build_split_entry(inherit, 1, child.end, 100)))
    child.commit()
    assert rows(child.state) == rows(child.follower) == rows(leader.state)
    assert child.follower.sessions() == {S: 5000}
    assert len(removed(TableEvaluator(child.follower).ending(S, 1))) == 5
    assert len(removed(child.finish(S))) == 5
    child.commit()
    assert rows(child.follower) == {b"plain": (b"1", None)}
    child.close()


def test_a_removal_that_is_copied_ends_no_session() -> None:
    version = owned_version(VERSION.pack(3, 0, 1, 1), S)
    assert records_of([CopiedRow(b"a", version, None, 5)]) == [
        (b"a", None, [("v", VERSION.pack(3, 0, 1, 1))], 5)
    ]


def test_golden_bytes() -> None:
    """As in docs/formats.md and docs/tables.md."""
    stored = owned_version(VERSION.pack(5, 2, 100, 200), 7)
    assert stored.hex() == (
        "0000000000000005fffffffffffffffd000000000000006400000000000000c80000000000000007"
    )  # fmt: skip
    assert stored_version(stored + b"value") == ((5, 2, 100, 200), 7, 40)
    opened = build_session_entry(SessionOpened(7, 10_000), 3, 9, 1000)
    assert opened[-10:].hex() == "00680c930107cd271000"
    assert session_entry_of(opened) == SessionOpened(7, 10_000)
    ended = build_session_entry(SessionEnded(7), 3, 9, 1000)
    assert ended[-5:].hex() == "0692020700"
    assert session_entry_of(ended) == SessionEnded(7)
    assert (SESSION_ROW, LINK) == (b"\x02", b"\x03")


def test_an_entry_that_nobody_can_read() -> None:
    from antiphon.records.builder import build_control
    from antiphon.records.session_entries import SESSION_TYPE

    with pytest.raises(CorruptBatchError, match="entry of a session"):
        session_entry_of(build_control(SESSION_TYPE, b"\xc1", 1, 0, 0))


OPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(b"abc"), st.just(0)),
        st.tuples(st.just("own"), st.sampled_from(b"abc"), st.sampled_from([S, T])),
        st.tuples(st.just("delete"), st.sampled_from(b"abc"), st.just(0)),
        st.tuples(st.sampled_from(["open", "end"]), st.just(0), st.sampled_from([S, T])),
        st.tuples(st.sampled_from(["commit", "lead"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(OPS)
def test_any_history_comes_to_what_plain_rules_say(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]]
) -> None:
    leader = Leader(tmp_path_factory.mktemp("s"))
    wanted: dict[bytes, int | None] = {}
    is_open: set[int] = set()
    for what, number, session_id in history:
        key = bytes([number])
        if what == "put":
            leader.write(Put(key, b"v"))
            wanted[key] = None
        elif what == "own":
            status = leader.write(PutEphemeral(key, b"v", session_id)).results[0].status
            assert (status == OpStatus.OK) == (session_id in is_open)
            if session_id in is_open:
                wanted[key] = session_id
        elif what == "delete":
            leader.write(Delete(key))
            wanted.pop(key, None)
        elif what == "open" and session_id not in is_open:
            leader.open(session_id)
            is_open.add(session_id)
        elif what == "end" and session_id in is_open:
            leader.finish(session_id)
            is_open.discard(session_id)
            wanted = {key: owner for key, owner in wanted.items() if owner != session_id}
        elif what == "commit":
            leader.commit()
        elif what == "lead":
            leader.commit()
            leader.evaluator = TableEvaluator(leader.state)
    leader.commit()
    for state in (leader.state, leader.follower):
        assert {key: owner for key, (_, owner) in rows(state).items()} == wanted
        assert set(state.sessions()) == is_open
        links = {key for key in all_of(state) if key[:1] == LINK}
        assert all(int.from_bytes(key[1:9], "big") in is_open for key in links)
    assert all_of(leader.state) == all_of(leader.follower)
    leader.close()
