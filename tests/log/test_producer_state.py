"""Kafka's rules of idempotence, and those of tables and jobs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.errors import (
    CorruptBatchError,
    OutOfOrderSequenceError,
    OverloadedError,
    ProducerFencedError,
    ReplayConflictError,
)
from antiphon.log import producer_state
from antiphon.log.producer_state import (
    JOB_ID_MIN,
    TABLE_ID_MIN,
    Duplicate,
    ProducerState,
    is_newer_job_epoch,
)
from antiphon.records.batch import BatchHeader
from tests.clock import Clock

LAST = 2**31 - 1


def header(
    pid: int, sequence: int, *, epoch: int = 0, count: int = 1, at: int = 0, crc: int = 0, ts: int = 0
) -> BatchHeader:
    return BatchHeader(at, 49, 1, 2, crc, 0, count - 1, ts, ts, pid, epoch, sequence, count)


class Shard:
    """Appends what check allows, as a leader does."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.headers: list[BatchHeader] = []
        self.end = 0

    def send(self, pid: int, sequence: int, *, table: bool = False, **kwargs: Any) -> Duplicate | int:
        found = header(pid, sequence, at=self.end, **kwargs)
        duplicate = self.state.check(found, table=table)
        if duplicate is not None:
            return duplicate
        self.state.update(found)
        self.headers.append(found)
        self.end = found.next_offset
        return found.base_offset


def test_sequences_follow_each_other() -> None:
    shard = Shard()
    assert shard.send(7, 0, count=3) == 0
    assert shard.send(7, 3) == 3
    with pytest.raises(OutOfOrderSequenceError) as caught:
        shard.send(7, 5)
    assert caught.value.details == {"expected": 4, "actual": 5}
    assert shard.send(8, 0) == 4  # other producers are independent


def test_the_last_five_are_recognised_older_ones_are_out_of_order() -> None:
    shard = Shard()
    for n in range(7):
        shard.send(7, n * 2, count=2)
    for n in range(2, 7):
        assert shard.send(7, n * 2, count=2) == Duplicate(n * 2, n * 2 + 2, 0)
    with pytest.raises(OutOfOrderSequenceError):
        shard.send(7, 2, count=2)
    with pytest.raises(OutOfOrderSequenceError):
        shard.send(7, 12, count=1)  # same start, other end: not that batch


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert Shard().send(7, 1234) == 0


def test_sequences_wrap_to_zero() -> None:
    shard = Shard()
    shard.send(7, LAST - 1, count=2)
    assert shard.send(7, 0) == 2
    shard = Shard()
    shard.send(7, LAST - 1, count=4)  # LAST-1, LAST, 0, 1
    assert shard.send(7, 2) == 4
    assert shard.send(7, LAST - 1, count=4) == Duplicate(0, 4, 0)


def test_epochs_fence() -> None:
    shard = Shard()
    shard.send(7, 0, epoch=3)
    with pytest.raises(ProducerFencedError):
        shard.send(7, 1, epoch=2)
    with pytest.raises(OutOfOrderSequenceError):
        shard.send(7, 1, epoch=4)
    assert shard.send(7, 0, epoch=4) == 1
    with pytest.raises(ProducerFencedError):
        shard.send(7, 0, epoch=3)  # even a repeat
    assert shard.send(7, 0, epoch=4) == Duplicate(1, 2, 0)


def test_batches_without_a_producer_and_control_batches_do_not_matter() -> None:
    shard = Shard()
    assert shard.send(-1, -1) == 0
    control = header(7, 0)._replace(attributes=0x20)
    shard.state.update(control)
    assert len(shard.state) == 0


def test_table_sequences_only_rise_and_the_last_64_are_recognised() -> None:
    shard, pid = Shard(), TABLE_ID_MIN + 5
    for n in range(100):
        shard.send(pid, n * 10, count=3)
    assert shard.send(pid, 990) == Duplicate(297, 300)
    assert shard.send(pid, 36 * 10) == Duplicate(108, 111)
    for unknown in (350, 355, 985):
        with pytest.raises(OutOfOrderSequenceError):
            shard.send(pid, unknown)
    assert shard.send(pid, 5000) == 300
    assert shard.send(pid, 3, epoch=1) == 301
    with pytest.raises(ProducerFencedError):
        shard.send(pid, 5001, epoch=0)


def test_a_job_on_a_table_only_rises_and_remembers_its_epoch() -> None:
    """What the log holds of a request says nothing of how many operations it had."""
    shard, pid = Shard(), JOB_ID_MIN + 9
    for n in range(5000):
        shard.send(pid, 3 + n * 10, count=1 + n % 3, crc=n, table=True)
    kept = shard.headers[5000 - 4096]
    again = shard.send(pid, kept.base_sequence, count=70, crc=1, table=True)
    assert again == Duplicate(kept.base_offset, kept.next_offset)
    for unknown in (2, 3, 4, 9 * 10, 4998 * 10, 4999 * 10 + 2):
        with pytest.raises(OutOfOrderSequenceError):
            shard.send(pid, unknown, table=True)
    end = shard.end
    assert shard.send(pid, 77, epoch=1, table=True) == end
    with pytest.raises(ProducerFencedError):
        shard.send(pid, 3 + 4999 * 10, table=True)
    assert shard.send(pid, 77, epoch=1, table=True) == Duplicate(end, end + 1)
    assert ProducerState.decode(shard.state.encode()).last_batch(pid) == shard.state.last_batch(pid)


def test_a_job_that_says_what_its_table_requests_hold_cannot_change_them() -> None:
    shard, pid = Shard(), JOB_ID_MIN | TABLE_ID_MIN | 9
    for number in (0, 1, 4):  # 2 and 3 had no effect
        shard.send(pid, number << 16 | 100, table=True)
    for number in (0, 1, 4):
        assert isinstance(shard.send(pid, number << 16 | 100, table=True), Duplicate)
        for checksum in (99, 101):
            with pytest.raises(ReplayConflictError):
                shard.send(pid, number << 16 | checksum, table=True)
    for number in (2, 3):
        with pytest.raises(OutOfOrderSequenceError):
            shard.send(pid, number << 16 | 100, table=True)
    assert shard.send(pid, 5 << 16, table=True) == 3


def test_any_producer_of_a_table_may_leave_gaps() -> None:
    shard = Shard()
    shard.send(7, 0, count=5, table=True)
    assert shard.send(7, 1, count=2, table=True) == 5
    assert shard.send(7, 0, table=True) == Duplicate(0, 5)


def test_job_epochs_start_at_zero_and_are_dense() -> None:
    shard, pid = Shard(), JOB_ID_MIN + 9
    with pytest.raises(OutOfOrderSequenceError):
        shard.send(pid, 1)
    shard.send(pid, 0, count=10, crc=1)
    with pytest.raises(OutOfOrderSequenceError):
        shard.send(pid, 11, crc=2)
    shard.send(pid, 10, count=5, crc=2)
    with pytest.raises(OutOfOrderSequenceError):
        shard.send(pid, 15, epoch=1)
    shard.send(pid, 0, epoch=1, crc=3)
    with pytest.raises(ProducerFencedError):
        shard.send(pid, 15, epoch=0)


def test_a_replayed_job_batch_must_be_equal() -> None:
    shard, pid = Shard(), JOB_ID_MIN
    shard.send(pid, 0, count=10, crc=1)
    shard.send(pid, 10, count=10, crc=2)
    assert shard.send(pid, 0, count=10, crc=1) == Duplicate(0, 10)
    assert shard.send(pid, 10, count=10, crc=2) == Duplicate(10, 20)
    for sequence, count, crc in ((0, 10, 9), (0, 5, 1), (5, 10, 1), (10, 11, 2), (19, 1, 2)):
        with pytest.raises(ReplayConflictError):
            shard.send(pid, sequence, count=count, crc=crc)


def test_a_job_remembers_4096_batches_of_its_epoch() -> None:
    shard, pid = Shard(), JOB_ID_MIN
    for n in range(5000):
        shard.send(pid, n, crc=n)
    assert shard.send(pid, 5000 - 4096, crc=5000 - 4096) == Duplicate(904, 905)
    with pytest.raises(ReplayConflictError):
        shard.send(pid, 903, crc=903)


@pytest.mark.parametrize(
    ("epoch", "current", "newer"),
    [
        (1, 0, True),
        (0, 1, False),
        (0, 0, False),
        (0, 32767, True),
        (5, 32760, True),
        (32767, 0, False),
        (16384, 0, False),
    ],
)
def test_job_epochs_compare_by_serial_number(epoch: int, current: int, newer: bool) -> None:
    assert is_newer_job_epoch(epoch, current) is newer


def test_a_job_goes_through_all_epochs_and_around() -> None:
    shard = Shard()
    for n in range(0, 3 * 32768, 97):
        shard.send(JOB_ID_MIN, 0, epoch=n % 32768, crc=n)
    assert len(shard.state.encode()) < 10_000


SENDS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, TABLE_ID_MIN, JOB_ID_MIN]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(SENDS, st.floats(0, 1))
def test_cutting_back_equals_never_having_sent(sends: list[tuple[int, int, int, int]], part: float) -> None:
    shard = Shard()
    for pid, gap, epoch_step, count in sends:
        last = shard.state.last_batch(pid)
        epoch = (last.epoch if last else 0) + (epoch_step == 2)
        fresh = last is None or epoch != last.epoch
        sequence = 0 if fresh or last is None else last.last_sequence + 1
        if TABLE_ID_MIN <= pid < JOB_ID_MIN:
            sequence += gap
        shard.send(pid, sequence, epoch=epoch, count=count, crc=shard.end)
    kept = int(part * len(shard.headers))
    cut = shard.headers[kept].base_offset if kept < len(shard.headers) else shard.end
    again = ProducerState()
    for old in shard.headers[:kept]:
        again.update(old)
    decoded = ProducerState.decode(shard.state.encode())
    assert decoded.encode() == shard.state.encode()
    if shard.state.truncate(cut):
        for state in (shard.state, decoded):
            state.truncate(cut)
            for old in shard.headers:
                assert _verdict(state, old) == _verdict(again, old)


def _verdict(state: ProducerState, found: BatchHeader) -> object:
    try:
        return state.check(found)
    except (OutOfOrderSequenceError, ProducerFencedError, ReplayConflictError) as error:
        return type(error)


def test_a_deep_cut_asks_for_a_rebuild() -> None:
    shard = Shard()
    for n in range(300):
        shard.send(7, n)
    assert not shard.state.truncate(10)
    assert shard.state.truncate(298)
    assert shard.send(7, 298) == 300


def test_idle_producers_expire_but_jobs_do_not() -> None:
    shard = Shard()
    shard.send(1, 0, ts=100)
    shard.send(2, 0, ts=200)
    shard.send(JOB_ID_MIN, 0, ts=50)
    assert shard.state.expire(before_ms=150) == 1
    assert shard.state.last_batch(1) is None
    assert shard.state.last_batch(2) is not None
    assert shard.state.last_batch(JOB_ID_MIN) is not None
    assert not shard.state.truncate(0)


def test_the_number_of_producers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    shard = Shard()
    for pid in (1, 2, 3):
        shard.send(pid, 0)
    shard.send(1, 1)
    shard.send(4, 0)
    assert shard.state.last_batch(2) is None  # the one not heard of for longest
    assert all(shard.state.last_batch(pid) is not None for pid in (1, 3, 4))


def test_other_producers_never_displace_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do jobs displace others; also after a restart, which reads them from a snapshot."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 3)
    shard = Shard()
    shard.send(JOB_ID_MIN + 7, 0, crc=5)
    for pid in range(10):
        shard.send(TABLE_ID_MIN + pid, 0)
    shard.state = ProducerState.decode(shard.state.encode())
    for pid in range(10):
        shard.send(pid, 0)
    assert shard.send(JOB_ID_MIN + 7, 0, crc=5) == Duplicate(0, 1)
    for number in range(10):
        shard.send(JOB_ID_MIN + 100 + number, 0)
    assert len(shard.state) == 11 + 3
    assert shard.send(9, 0) == Duplicate(20, 21, 0)
    assert not shard.state.truncate(5)  # who was forgotten by then would be missing


def test_a_shard_that_remembers_all_the_jobs_it_can_refuses_another_one(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(producer_state, "JOBS_MAX", 3)
    shard = Shard()
    for number in range(3):
        shard.send(JOB_ID_MIN + number, 0, crc=number)
        clock.now_s += 60
    for table in (False, True):
        with pytest.raises(OverloadedError, match="remembers the last writes of 3 Spark jobs"):
            shard.send(JOB_ID_MIN + 3, 0, table=table)
    assert shard.send(JOB_ID_MIN, 0, crc=0) == Duplicate(0, 1)
    assert shard.send(JOB_ID_MIN + 1, 1, crc=1) == 3, "jobs that are known go on"
    assert shard.send(7, 0) == 4, "and so do others"


def test_no_job_is_ever_forgotten_however_long_it_was_silent(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Also where the log of a version that forgot some is read, which holds more of them than are taken now."""
    monkeypatch.setattr(producer_state, "JOBS_MAX", 2)
    shard = Shard()
    shard.send(JOB_ID_MIN, 0)
    shard.send(JOB_ID_MIN + 1, 0)
    clock.now_s += 365 * 24 * 3600
    with pytest.raises(OverloadedError, match="never forgets"):
        shard.send(JOB_ID_MIN + 2, 0)
    assert shard.send(JOB_ID_MIN, 1) == 2
    replica = ProducerState()
    for number in range(5):
        replica.update(header(JOB_ID_MIN + number, 0))
    assert replica.jobs_known == 5
    with pytest.raises(OverloadedError):
        replica.check(header(JOB_ID_MIN + 5, 0))


def test_a_full_node_refuses_new_producers_of_shards_with_many_and_its_replicas_learn_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_state, "SHARE", 2)
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 4)
    shard = Shard()
    for at, number in enumerate((1, 2, JOB_ID_MIN, JOB_ID_MIN + 1)):
        assert shard.state.check(header(number, 0), full=True) is None, "there is room for a share"
        assert shard.send(number, 0) == at
    for table in (False, True):
        with pytest.raises(OverloadedError, match=r"`limits\.producers`: .*antiphon node settings"):
            shard.state.check(header(3, 0), table=table, full=True)
        with pytest.raises(OverloadedError, match="2 Spark jobs"):
            shard.state.check(header(JOB_ID_MIN + 3, 0), table=table, full=True)
    assert shard.state.check(header(1, 1), full=True) is None, "those that are known go on"
    for number in (3, 4):
        shard.send(number, 0)
    assert shard.state.check(header(5, 0), full=True) is None, "it takes the place of another one"
    replica = ProducerState()
    for one in shard.headers:
        replica.update(one)
    assert replica.encode() == shard.state.encode()


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x92\x01\x02", b"garbage"])
def test_bad_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        ProducerState.decode(data)
