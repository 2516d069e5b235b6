"""The share-partition's state machine, against a model that keeps each record by itself."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from antiphon.coordination.share_partition import SharePartition
from antiphon.coordination.share_terms import (
    Ack,
    AckType,
    Acquired,
    LogBatch,
    RecordState,
    ShareBounds,
    ShareCounts,
    ShareRefused,
    Span,
)

BOUNDS = ShareBounds(record_lock_duration_ms=100, delivery_count_limit=3, partition_max_record_locks=12)
MEMBERS = ("a", "b", "c")


class Record:
    """One record, as the model has it."""

    def __init__(self) -> None:
        self.state = RecordState.AVAILABLE
        self.count = 0
        self.holder = ""
        self.lock_ms = 0

    def free(self, counts: ShareCounts) -> None:
        spent = self.count >= BOUNDS.delivery_count_limit
        counts.exhausted += spent
        self.state = RecordState.ARCHIVED if spent else RecordState.AVAILABLE
        self.holder = ""


class Model:
    """Records one by one. `log`: batches, by (first, end, visible); offsets between them are gaps."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.start = 0
        self.end = 0
        self.counts = ShareCounts()

    def known(self) -> list[int]:
        return list(range(self.start, self.end))

    def held(self) -> int:
        return sum(
            1
            for at in self.known()
            if not (self.records[at].state is RecordState.ARCHIVED and not self.records[at].count)
        )

    def tick(self, now_ms: int) -> None:
        for at in self.known():
            record = self.records[at]
            if record.state is RecordState.ACQUIRED and record.lock_ms <= now_ms:
                self.counts.timed_out += 1
                record.free(self.counts)
        self.advance()

    def advance(self) -> None:
        done = {RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}
        while self.start < self.end and self.records[self.start].state in done:
            self.start += 1

    def skip(self, at: int) -> None:
        record = self.records.setdefault(at, Record())
        self.end = max(self.end, at + 1)
        if record.state is RecordState.AVAILABLE:
            record.state = RecordState.ARCHIVED

    def acquire(
        self, now_ms: int, member: str, at: int, batches: Sequence[LogBatch], most: int, strict: bool
    ) -> dict[int, int]:
        found: dict[int, int] = {}
        self.tick(now_ms)
        for batch in batches:
            if len(found) >= most:
                break
            for offset in range(max(at, self.start), batch.first):
                self.skip(offset)
            at = batch.end
            for offset in range(max(batch.first, self.start), batch.end):
                if not batch.visible:
                    self.skip(offset)
                    continue
                if offset >= self.end:
                    if self.held() >= BOUNDS.partition_max_record_locks:
                        self.advance()
                        return found
                    self.records[offset] = Record()
                    self.end = offset + 1
                record = self.records[offset]
                if record.state is RecordState.AVAILABLE and not (strict and len(found) >= most):
                    record.state, record.holder = RecordState.ACQUIRED, member
                    record.count += 1
                    self.counts.delivered += 1
                    record.lock_ms = now_ms + BOUNDS.record_lock_duration_ms
                    found[offset] = record.count
        self.advance()
        return found

    def acknowledge(self, now_ms: int, member: str, acks: Sequence[Ack]) -> bool:
        self.tick(now_ms)
        told: dict[int, int] = {}
        for ack in acks:
            types = ack.types * (ack.end - ack.first) if len(ack.types) == 1 else ack.types
            told.update(zip(range(ack.first, ack.end), types, strict=True))
        told = {at: kind for at, kind in told.items() if at >= self.start}
        for at in told:
            if at >= self.end or self.records[at].holder != member:
                return False
        for at, kind in told.items():
            record = self.records[at]
            self.counts.acknowledged[AckType(kind)] += 1
            if kind == AckType.RENEW:
                record.lock_ms = now_ms + BOUNDS.record_lock_duration_ms
            elif kind == AckType.RELEASE:
                record.free(self.counts)
            else:
                accepted = kind == AckType.ACCEPT
                record.state = RecordState.ACKNOWLEDGED if accepted else RecordState.ARCHIVED
                record.holder = ""
        self.advance()
        return True


def spread(acquired: Sequence[Acquired]) -> dict[int, int]:
    return {at: each.deliveries for each in acquired for at in range(each.first, each.end)}


BATCHES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 7), st.sampled_from((True, True, True, False))),
    min_size=1,
    max_size=14,
)


class Compared(RuleBasedStateMachine):
    """Both do the same, and must stay the same."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.machine = SharePartition(0, BOUNDS)
        self.model = Model()
        self.log: list[LogBatch] = []

    @precondition(lambda self: not self.log)
    @rule(drawn=BATCHES)
    def write(self, drawn: list[tuple[int, int, bool]]) -> None:
        at = 0
        for gap, length, visible in drawn:
            self.log.append(LogBatch(at + gap, at + gap + length, visible))
            at += gap + length

    @precondition(lambda self: self.log)
    @rule(
        member=st.sampled_from(MEMBERS), most=st.integers(1, 9), strict=st.booleans(), read=st.integers(1, 5)
    )
    def acquire(self, member: str, most: int, strict: bool, read: int) -> None:
        self.machine.tick(self.now_ms)
        at = self.machine.next_offset()
        if at is None:
            return
        batches = [batch for batch in self.log if batch.end > at][:read]
        got = self.machine.acquire(self.now_ms, member, at, batches, most, strict=strict)
        wanted = self.model.acquire(self.now_ms, member, at, batches, most, strict)
        assert spread(got) == wanted
        if strict:
            assert len(wanted) <= most

    @rule(
        member=st.sampled_from(MEMBERS),
        first=st.integers(0, 30),
        kinds=st.lists(st.sampled_from(list(AckType)), min_size=1, max_size=6),
        one_for_all=st.integers(0, 6),
    )
    def acknowledge(self, member: str, first: int, kinds: list[AckType], one_for_all: int) -> None:
        first += self.machine.start
        types = tuple(int(kind) for kind in kinds)
        length = one_for_all if one_for_all and len(types) == 1 else len(types)
        self._acknowledge(member, Ack(first, first + length, types))

    @precondition(lambda self: any(span.holder for span in self.machine.spans))
    @rule(data=st.data())
    def acknowledge_what_is_held(self, data: st.DataObject) -> None:
        held = [span for span in self.machine.spans if span.holder]
        span = data.draw(st.sampled_from(held))
        first = data.draw(st.integers(span.first, span.end - 1))
        end = data.draw(st.integers(first + 1, span.end))
        kind = data.draw(st.sampled_from(list(AckType)))
        self._acknowledge(span.holder, Ack(first, end, (int(kind),)))

    def _acknowledge(self, member: str, ack: Ack) -> None:
        refused = self.machine.acknowledge(self.now_ms, member, [ack])
        assert (refused is None) == self.model.acknowledge(self.now_ms, member, [ack])

    @rule(member=st.sampled_from(MEMBERS), unseen=st.booleans())
    def release(self, member: str, unseen: bool) -> None:
        self.model.tick(self.now_ms)
        held = [at for at in self.model.known() if self.model.records[at].holder == member]
        for at in held:
            self.model.records[at].count -= unseen
            self.model.records[at].free(self.model.counts)
        self.model.advance()
        assert self.machine.release(self.now_ms, member, unseen=unseen) == bool(held)

    @rule(passes_ms=st.sampled_from((1, 40, 60, 100)))
    def tick(self, passes_ms: int) -> None:
        self.now_ms += passes_ms
        self.machine.tick(self.now_ms)
        self.model.tick(self.now_ms)

    @rule(more=st.integers(-2, 9))
    def trim(self, more: int) -> None:
        log_start = self.machine.start + more
        self.machine.trim(log_start)
        for at in range(self.model.start, min(log_start, self.model.end)):
            record = self.model.records[at]
            record.state, record.holder = RecordState.ARCHIVED, ""
        if log_start >= self.model.end and log_start > self.model.start:
            self.model.start = self.model.end = log_start
        self.model.advance()
        self.log = [batch for batch in self.log if batch.end > self.machine.start]

    @rule()
    def restart(self) -> None:
        """Another leader goes on with what was stored."""
        revision = self.machine.revision
        counts = self.machine.counts
        self.machine = SharePartition.restored(BOUNDS, self.machine.start, self.machine.stored(), counts)
        self.machine.revision = revision
        for at in self.model.known():
            record = self.model.records[at]
            if record.state is RecordState.ACQUIRED:
                record.free(self.model.counts)
        last = max(
            (
                at
                for at in self.model.known()
                if self.model.records[at].count or self.model.records[at].state is not RecordState.AVAILABLE
            ),
            default=self.model.start - 1,
        )
        self.model.end = last + 1
        self.model.advance()

    @invariant()
    def same(self) -> None:
        assert (self.machine.start, self.machine.end) == (self.model.start, self.model.end)
        for span in self.machine.spans:
            for at in range(span.first, span.end):
                record = self.model.records[at]
                assert (span.state, span.deliveries, span.holder) == (
                    record.state,
                    record.count,
                    record.holder,
                )
        held = sum(1 for at in self.model.known() if self.model.records[at].holder)
        assert held <= BOUNDS.partition_max_record_locks
        assert self.machine.locked() == held
        assert self.machine.counts == self.model.counts


TestCompared = Compared.TestCase
TestCompared.settings = settings(max_examples=120, stateful_step_count=60, deadline=None)


def partition(bounds: ShareBounds = BOUNDS, start: int = 0) -> SharePartition:
    return SharePartition(start, bounds)


def test_a_lock_that_ends_makes_records_available_until_the_limit_is_reached() -> None:
    one = partition()
    for count in (1, 2, 3):
        now_ms = 1_000 * count
        assert one.acquire(now_ms, "a", 0, [LogBatch(0, 5)], 10) == [Acquired(0, 5, count)]
        assert one.deadline_ms() == now_ms + 100
        assert not one.tick(now_ms + 99)
        assert one.tick(now_ms + 100)
    assert (one.start, one.spans) == (5, [])


def test_two_members_are_given_different_records() -> None:
    one = partition()
    log = [LogBatch(0, 3), LogBatch(3, 6)]
    assert one.acquire(0, "a", 0, log, 1) == [Acquired(0, 3, 1)]
    assert one.next_offset() == 3
    assert one.acquire(0, "b", 3, log[1:], 10) == [Acquired(3, 6, 1)]
    assert one.acknowledge(0, "a", [Ack(2, 4, (1,))]) is ShareRefused.BAD_STATE
    assert one.acknowledge(0, "a", [Ack(0, 3, (1,))]) is None
    assert one.start == 3


def test_a_strict_member_is_given_no_more_than_it_wants_and_others_get_the_rest() -> None:
    one = partition()
    assert one.acquire(0, "a", 0, [LogBatch(0, 9)], 2, strict=True) == [Acquired(0, 2, 1)]
    assert one.acquire(0, "b", 2, [LogBatch(0, 9)], 2, strict=True) == [Acquired(2, 4, 1)]


def test_no_more_records_are_in_flight_than_may_be() -> None:
    one = partition()
    assert one.acquire(0, "a", 0, [LogBatch(0, 40), LogBatch(41, 50)], 100) == [Acquired(0, 12, 1)]
    assert one.next_offset() is None
    assert one.acknowledge(0, "a", [Ack(0, 2, (2,))]) is None
    assert one.next_offset() == 0
    assert one.acknowledge(0, "a", [Ack(2, 12, (1,))]) is None
    assert one.acquire(0, "b", 0, [LogBatch(0, 40)], 100) == [Acquired(0, 2, 2)]
    assert one.acknowledge(0, "b", [Ack(0, 2, (1,))]) is None
    assert (one.start, one.next_offset()) == (12, 12)


def test_renewing_begins_the_lock_anew_and_stores_nothing() -> None:
    one = partition()
    one.acquire(0, "a", 0, [LogBatch(0, 2)], 10)
    before = one.revision
    assert one.acknowledge(90, "a", [Ack(0, 2, (4,))]) is None
    assert one.deadline_ms() == 190
    assert one.revision == before


def test_one_acknowledgement_that_is_refused_refuses_all_of_them() -> None:
    one = partition()
    one.acquire(0, "a", 0, [LogBatch(0, 4)], 10)
    before = list(one.spans)
    assert one.acknowledge(0, "a", [Ack(0, 2, (1,)), Ack(4, 5, (1,))]) is ShareRefused.BAD_STATE
    assert one.spans == before


@pytest.mark.parametrize(
    "acks",
    [
        [Ack(0, 3, (1, 1))],
        [Ack(2, 2, (1,))],
        [Ack(-1, 1, (1,))],
        [Ack(0, 1, (5,))],
        [Ack(0, 1, (-1,))],
        [Ack(0, 1, ())],
        [Ack(0, 2, (1,)), Ack(1, 3, (1,))],
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(acks: list[Ack]) -> None:
    one = partition()
    one.acquire(0, "a", 0, [LogBatch(0, 4)], 10)
    assert one.acknowledge(0, "a", acks) is ShareRefused.BAD_RANGE


def test_records_that_a_closing_member_did_not_see_count_as_not_delivered() -> None:
    one = partition()
    one.acquire(0, "a", 0, [LogBatch(0, 4)], 10)
    one.release(0, "a", unseen=True)
    assert one.acquire(0, "b", 0, [LogBatch(0, 4)], 10) == [Acquired(0, 4, 1)]


def test_gaps_of_a_compacted_log_are_done() -> None:
    one = partition()
    got = one.acquire(0, "a", 0, [LogBatch(3, 5), LogBatch(8, 9)], 10)
    assert got == [Acquired(3, 5, 1), Acquired(8, 9, 1)]
    assert one.start == 3
    assert one.acknowledge(0, "a", [Ack(3, 5, (1,))]) is None
    assert one.start == 8
    one.release(0, "a")
    assert one.acquire(0, "a", 8, [LogBatch(12, 13)], 10) == [Acquired(12, 13, 1)]
    assert one.start == 12


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 5), st.integers(-1, 4)), max_size=6))
def test_what_is_no_state_is_refused(rows: list[tuple[int, int, int]]) -> None:
    try:
        found = SharePartition.restored(BOUNDS, 7, rows)
    except ValueError:
        return
    assert all(length > 0 and count >= 0 and state in {0, 2, 3} for length, state, count in rows)
    assert found.start >= 7
    assert all(isinstance(span, Span) for span in found.spans)
