"""When committed offsets expire: Kafka's rules (KIP-211) as a table, and the clock that they go by."""

from dataclasses import dataclass

import pytest

from antiphon.coordination.offset_expiry import (
    JUMP_MS,
    NEVER,
    TRUST_MS,
    UNKNOWN,
    Aged,
    EvenClock,
    Readers,
    is_expired,
)

KEPT_MS = 1_000
READING_T = Readers(frozenset({"t"}))
NOBODY_SINCE_500 = Readers(empty_ms=500)


@dataclass
class Case:
    what: str
    offset: Aged
    readers: Readers
    expires_ms: int | None  # None: never
    retention_ms: int = KEPT_MS


CASES = [
    Case("members read the topic", Aged("t", 0), READING_T, None),
    Case("members read another topic", Aged("u", 100), READING_T, 1_100),
    Case("members do not say what they read", Aged("u", 100), UNKNOWN, None),
    Case(
        "members read a topic of the same name, made anew",
        Aged("t", 100, is_of_topic=False),
        READING_T,
        1_100,
    ),
    Case("empty after the commit", Aged("t", 100), NOBODY_SINCE_500, 1_500),
    Case("committed after the group became empty", Aged("t", 700), NOBODY_SINCE_500, 1_700),
    Case("pending", Aged("t", 0, is_pending=True), NOBODY_SINCE_500, None),
    Case("kept for ever", Aged("t", 0), NOBODY_SINCE_500, None, NEVER),
    Case("its own retention, from the commit", Aged("t", 100, 200), NOBODY_SINCE_500, 300),
    Case("its own retention, though others stay for ever", Aged("t", 100, 200), NOBODY_SINCE_500, 300, NEVER),
    Case("its own retention, longer than that of others", Aged("t", 100, 5_000), NOBODY_SINCE_500, 5_100),
    Case("its own retention of nothing", Aged("t", 100, 0), NOBODY_SINCE_500, 100),
    Case("its own retention, while members read on", Aged("t", 100, 200), READING_T, None),
    Case(
        "its own retention, while it is pending", Aged("t", 100, 200, is_pending=True), NOBODY_SINCE_500, None
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.what for case in CASES])
def test_an_offset_expires_when_nobody_reads_on_from_it_for_so_long(case: Case) -> None:
    def gone(now_ms: int) -> bool:
        return is_expired(case.offset, case.readers, now_ms, case.retention_ms)

    if case.expires_ms is None:
        assert not gone(10**12)
    else:
        assert (gone(case.expires_ms - 1), gone(case.expires_ms)) == (False, True)


def test_a_clock_counts_once_it_has_gone_evenly_for_an_hour() -> None:
    clock = EvenClock(5_000_000, 100)
    assert clock.read(5_000_000 + TRUST_MS - 1, 100 + TRUST_MS - 1, NEVER) is None
    assert clock.read(5_000_000 + TRUST_MS, 100 + TRUST_MS, NEVER) == 5_000_000 + TRUST_MS
    assert clock.read(5_000_000 + TRUST_MS, 100 + TRUST_MS, 10 * TRUST_MS) == 5_000_000 + TRUST_MS


def test_a_retention_shorter_than_an_hour_is_waited_for_only() -> None:
    clock = EvenClock(0, 0)
    assert clock.read(1_999, 1_999, 2_000) is None
    assert clock.read(2_000, 2_000, 2_000) == 2_000


def test_a_clock_that_is_set_ahead_is_believed_an_hour_later_and_one_that_is_set_back_at_once() -> None:
    clock = EvenClock(0, 0)
    at = TRUST_MS
    assert clock.read(at + JUMP_MS - 1, at, NEVER) == at + JUMP_MS - 1, "it is put right now and then"
    assert clock.read(at + 10**12, at, NEVER) is None
    assert clock.read(at + 10**12 + TRUST_MS - 1, at + TRUST_MS - 1, NEVER) is None
    assert clock.read(at + 10**12 + TRUST_MS, at + TRUST_MS, NEVER) == at + 10**12 + TRUST_MS
    assert clock.read(at + TRUST_MS, at + TRUST_MS, NEVER) == at + TRUST_MS
