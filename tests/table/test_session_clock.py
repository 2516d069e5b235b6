"""When sessions are due: by the clock of whoever drives it, never early, and not for time in which nobody listened."""

from typing import Any, cast

from antiphon.table.session_clock import AGAIN_S, STALL_S, SessionClock
from antiphon.table.session_rows import ENDED, SessionChange
from antiphon.table.sessions import OpenSessions


class _NoState:
    def sessions(self) -> dict[int, int]:
        return {}

    def session_keys(self, _session_id: int) -> dict[bytes, int]:
        return {}


def opened(*ids: int, timeout_ms: int = 5000) -> OpenSessions:
    made = OpenSessions(cast("Any", _NoState()))
    for session_id in ids:
        made.changed(SessionChange(session_id, timeout_ms))
    return made


def run(clock: SessionClock, sessions: OpenSessions, start_s: float, end_s: float) -> dict[float, list[int]]:
    """Turns each half second; what is due is ended."""
    found: dict[float, list[int]] = {}
    now_s = start_s
    while now_s <= end_s:
        due = clock.turn(sessions, now_s, 100)
        for session_id in due:
            sessions.changed(SessionChange(session_id, ENDED))
        if due:
            found[now_s] = due
        now_s += 0.5
    return found


def test_due_after_the_time_out_from_when_it_was_first_seen_or_kept() -> None:
    clock, sessions = SessionClock(0.0), opened(1, 2)
    assert run(clock, sessions, 0.0, 3.0) == {}
    clock.kept(2, sessions.by_id[2], 3.0)
    assert run(clock, sessions, 3.5, 20.0) == {5.0: [1], 8.0: [2]}


def test_what_is_due_comes_again_until_it_has_ended() -> None:
    clock, sessions = SessionClock(0.0), opened(1)
    run(clock, sessions, 0.0, 4.5)
    assert clock.turn(sessions, 5.0, 10) == [1]
    assert clock.turn(sessions, 5.1, 10) == []
    assert clock.turn(sessions, 5.0 + AGAIN_S, 10) == [1]
    assert clock.is_due(1, 5.0)
    clock.kept(1, sessions.by_id[1], 5.6)
    assert not clock.is_due(1, 5.6)
    assert run(clock, sessions, 5.7, 12.0) == {10.7: [1]}


def test_so_many_at_a_time() -> None:
    clock, sessions = SessionClock(0.0), opened(*range(1, 8))
    run(clock, sessions, 0.0, 4.5)
    assert clock.turn(sessions, 5.0, 5) == [1, 2, 3, 4, 5]
    assert clock.turn(sessions, 5.1, 5) == [6, 7]


def test_time_in_which_the_node_stood_still_does_not_count() -> None:
    clock, sessions = SessionClock(0.0), opened(1)
    run(clock, sessions, 0.0, 2.0)
    assert clock.turn(sessions, 60.0, 10) == []
    assert run(clock, sessions, 60.5, 70.0) == {63.0: [1]}
    clock, sessions = SessionClock(0.0), opened(1)
    run(clock, sessions, 0.0, 2.0)
    assert clock.turn(sessions, 2.0 + STALL_S, 10) == [], "a late turn is no stall"
    assert run(clock, sessions, 3.5, 70.0) == {5.0: [1]}


def test_all_begin_anew() -> None:
    clock, sessions = SessionClock(0.0), opened(1, 2)
    run(clock, sessions, 0.0, 4.0)
    clock.begin(sessions, 4.0)
    assert run(clock, sessions, 4.0, 20.0) == {9.0: [1, 2]}


def test_one_that_was_ended_and_opened_again_is_another_one() -> None:
    clock, sessions = SessionClock(0.0), opened(1)
    run(clock, sessions, 0.0, 3.0)
    sessions.changed(SessionChange(1, ENDED))
    sessions.changed(SessionChange(1, 5000))
    assert run(clock, sessions, 3.5, 20.0) == {8.5: [1]}
